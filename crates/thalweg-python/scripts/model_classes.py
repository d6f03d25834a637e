"""Model classes of transformers, timm and torchvision with random weights, for `inside_pytorch.py`.

Each entry makes a model of a size and its inputs. `TINY` is for the simulated GPU, `GPU` for a GPU.
"""

import dataclasses

import torch


@dataclasses.dataclass
class Size:
    """The sizes of models and of their inputs."""

    hidden: int
    layers: int
    heads: int
    words: int
    tokens: int
    batch: int
    images: int
    image: int
    patch: int
    samples: int


TINY = Size(hidden=32, layers=2, heads=4, words=96, tokens=16, batch=2, images=2, image=32, patch=8, samples=1600)
GPU = Size(hidden=768, layers=6, heads=12, words=32000, tokens=512, batch=8, images=32, image=224, patch=16, samples=32000)


# ---- transformers -------------------------------------------------------------------------------------------------------------------


def _usual(s):
    """Returns the names that most configurations share."""
    return {
        "vocab_size": s.words, "hidden_size": s.hidden, "num_hidden_layers": s.layers, "num_attention_heads": s.heads,
        "intermediate_size": 4 * s.hidden, "max_position_embeddings": max(2 * s.tokens, 64), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


def _grouped(s):
    return {"num_key_value_heads": s.heads // 2}


def _experts(s):
    return {**_grouped(s), "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": s.hidden}


def _embedding(s):
    return {"embedding_size": s.hidden, "embed_dim": s.hidden}


def _of_gpt(s):
    return {"n_embd": s.hidden, "n_layer": s.layers, "n_head": s.heads, "n_positions": 2 * s.tokens, "n_ctx": 2 * s.tokens, "rotary_dim": s.hidden // s.heads // 2}


def _of_bart(s):
    both = {"d_model": s.hidden, "hidden_size": s.hidden}
    for part in ("encoder", "decoder"):
        both |= {f"{part}_layers": s.layers, f"{part}_attention_heads": s.heads, f"{part}_ffn_dim": 4 * s.hidden}
    return both | {"decoder_start_token_id": 1, "num_layers": s.layers, "ffn_dim": 4 * s.hidden, "attention_heads": s.heads}


def _of_t5(s):
    return {
        "d_model": s.hidden, "d_kv": s.hidden // s.heads, "d_ff": 4 * s.hidden, "num_layers": s.layers, "num_decoder_layers": s.layers,
        "num_heads": s.heads, "decoder_start_token_id": 0,
    }  # fmt: skip


def _images(s):
    return {"image_size": s.image, "patch_size": s.patch, "num_channels": 3, "num_labels": 10}


def _stages(s):
    """Returns the configuration of networks whose stages halve the image."""
    width = max(s.hidden // 8, 8)
    widths = [width, 2 * width, 4 * width, 8 * width]
    return {
        "num_channels": 3, "num_labels": 10, "image_size": max(s.image, 64), "hidden_sizes": widths, "embed_dim": widths[0], "depths": [1, 1, 2, 1],
        "embedding_size": widths[0], "num_heads": [1, 2, 2, 4], "window_size": 4, "drop_path_rate": 0.0, "num_stages": 4,
    }  # fmt: skip


def _sound(s):
    return {
        "conv_dim": (s.hidden,) * 3, "conv_stride": (5, 4, 4), "conv_kernel": (10, 4, 4), "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "num_feat_extract_layers": 3, "vocab_size": 32,
        "feat_extract_norm": "layer", "layerdrop": 0.0, "squeeze_factor": 2,
    }  # fmt: skip


def _spectrum(s):
    return {**_of_bart(s), "num_mel_bins": 16, "max_source_positions": s.tokens, "max_target_positions": s.tokens, "decoder_start_token_id": 1, "input_feat_per_channel": 16}


# The name of a class, its inputs, and its configuration beside the usual names.
TRANSFORMERS = {
    # Decoders.
    "GPT2LMHeadModel": ("causal", _of_gpt), "GPTNeoForCausalLM": ("causal", lambda s: {"num_heads": s.heads, "num_layers": s.layers, "attention_types": [[["global", "local"], s.layers // 2]], "window_size": 8}),
    "GPTNeoXForCausalLM": ("causal",), "GPTJForCausalLM": ("causal", _of_gpt), "CodeGenForCausalLM": ("causal", _of_gpt), "OPTForCausalLM": ("causal", lambda s: {"ffn_dim": 4 * s.hidden, "word_embed_proj_dim": s.hidden}),
    "BloomForCausalLM": ("causal", lambda s: {"n_layer": s.layers, "n_head": s.heads}), "LlamaForCausalLM": ("causal", _grouped), "MistralForCausalLM": ("causal", lambda s: {**_grouped(s), "sliding_window": 8}),
    "MixtralForCausalLM": ("causal", _experts), "Qwen2ForCausalLM": ("causal", _grouped), "Qwen2MoeForCausalLM": ("causal", lambda s: {**_experts(s), "shared_expert_intermediate_size": s.hidden}),
    "Qwen3ForCausalLM": ("causal", lambda s: {**_grouped(s), "head_dim": s.hidden // s.heads}), "Qwen3MoeForCausalLM": ("causal", lambda s: {**_experts(s), "head_dim": s.hidden // s.heads}),
    "GemmaForCausalLM": ("causal", lambda s: {**_grouped(s), "head_dim": s.hidden // s.heads}), "Gemma2ForCausalLM": ("causal", lambda s: {**_grouped(s), "head_dim": s.hidden // s.heads, "sliding_window": 8}),
    "Gemma3ForCausalLM": ("causal", lambda s: {**_grouped(s), "head_dim": s.hidden // s.heads, "sliding_window": 8}), "PhiForCausalLM": ("causal",), "Phi3ForCausalLM": ("causal", _grouped), "FalconForCausalLM": ("causal",),
    "StableLmForCausalLM": ("causal", _grouped), "CohereForCausalLM": ("causal", _grouped), "OlmoForCausalLM": ("causal", _grouped), "Olmo2ForCausalLM": ("causal", _grouped), "OlmoeForCausalLM": ("causal", _experts),
    "Starcoder2ForCausalLM": ("causal", _grouped), "GraniteForCausalLM": ("causal", _grouped), "GraniteMoeForCausalLM": ("causal", _experts), "XGLMForCausalLM": ("causal", lambda s: {**_of_bart(s), "ffn_dim": 4 * s.hidden}),
    "MptForCausalLM": ("causal", lambda s: {"d_model": s.hidden, "n_heads": s.heads, "n_layers": s.layers, "max_seq_len": 2 * s.tokens}), "PersimmonForCausalLM": ("causal",), "BioGptForCausalLM": ("causal",),
    "NemotronForCausalLM": ("causal", _grouped), "GlmForCausalLM": ("causal", lambda s: {**_grouped(s), "head_dim": s.hidden // s.heads}), "HeliumForCausalLM": ("causal", lambda s: {**_grouped(s), "head_dim": s.hidden // s.heads}),
    "GptOssForCausalLM": ("causal", lambda s: {**_experts(s), "head_dim": s.hidden // s.heads, "sliding_window": 8}), "SmolLM3ForCausalLM": ("causal", _grouped), "OpenAIGPTLMHeadModel": ("causal", _of_gpt),
    "MambaForCausalLM": ("causal", lambda s: {"state_size": 8}), "RwkvForCausalLM": ("causal", lambda s: {"attention_hidden_size": s.hidden}), "CTRLLMHeadModel": ("causal", lambda s: {**_of_gpt(s), "dff": 4 * s.hidden}),
    "DeepseekV3ForCausalLM": ("causal", lambda s: {**_experts(s), "num_key_value_heads": s.heads, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": s.hidden, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}),
    # Encoders.
    "BertForMaskedLM": ("masked",), "RobertaForMaskedLM": ("masked",), "DistilBertForMaskedLM": ("masked", lambda s: {"dim": s.hidden, "n_layers": s.layers, "n_heads": s.heads, "hidden_dim": 4 * s.hidden}),
    "AlbertForMaskedLM": ("masked", _embedding), "ElectraForMaskedLM": ("masked", _embedding), "DebertaForMaskedLM": ("masked", lambda s: {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "pooler_hidden_size": s.hidden}),
    "DebertaV2ForMaskedLM": ("masked", lambda s: {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "pooler_hidden_size": s.hidden}), "MPNetForMaskedLM": ("masked",), "LayoutLMForMaskedLM": ("masked",), "BigBirdForMaskedLM": ("masked", lambda s: {"attention_type": "original_full"}),
    "XLMRobertaForMaskedLM": ("masked",), "MobileBertForMaskedLM": ("masked", lambda s: {"embedding_size": s.hidden, "true_hidden_size": s.hidden, "intra_bottleneck_size": s.hidden}), "SqueezeBertForMaskedLM": ("masked", _embedding),
    "FunnelForMaskedLM": ("masked", lambda s: {"d_model": s.hidden, "n_head": s.heads, "d_head": s.hidden // s.heads, "d_inner": 4 * s.hidden, "block_sizes": [1, 1], "num_decoder_layers": 1, "num_hidden_layers": None}), "ConvBertForMaskedLM": ("masked", _embedding), "RoFormerForMaskedLM": ("masked", _embedding),
    "NystromformerForMaskedLM": ("masked", lambda s: {"segment_means_seq_len": s.tokens, "num_landmarks": s.tokens}), "FNetForMaskedLM": ("causal",), "MegatronBertForMaskedLM": ("masked",), "ModernBertForMaskedLM": ("masked", lambda s: {"reference_compile": False, "local_attention": 8}),
    "XLNetLMHeadModel": ("masked", lambda s: {"max_position_embeddings": None, "d_model": s.hidden, "n_layer": s.layers, "n_head": s.heads, "d_inner": 4 * s.hidden}), "LongformerForMaskedLM": ("masked", lambda s: {"attention_window": [8] * s.layers}), "ErnieForMaskedLM": ("masked",), "XLMWithLMHeadModel": ("masked", lambda s: {"emb_dim": s.hidden, "n_layers": s.layers, "n_heads": s.heads}),
    "BertForQuestionAnswering": ("answers",), "BertForSequenceClassification": ("classes",),
    # Encoders with decoders.
    "T5ForConditionalGeneration": ("both", _of_t5), "MT5ForConditionalGeneration": ("both", _of_t5), "UMT5ForConditionalGeneration": ("both", _of_t5), "LongT5ForConditionalGeneration": ("both", lambda s: {**_of_t5(s), "local_radius": 7}), "SwitchTransformersForConditionalGeneration": ("both", lambda s: {**_of_t5(s), "num_experts": 4, "expert_capacity": 8, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}),
    "BartForConditionalGeneration": ("both", _of_bart), "MBartForConditionalGeneration": ("both", _of_bart), "PegasusForConditionalGeneration": ("both", _of_bart), "PLBartForConditionalGeneration": ("both", _of_bart), "BlenderbotForConditionalGeneration": ("both", _of_bart),
    "M2M100ForConditionalGeneration": ("both", _of_bart), "MarianMTModel": ("both", _of_bart), "LEDForConditionalGeneration": ("both", lambda s: {**_of_bart(s), "attention_window": 8, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64}),
    "BartForCausalLM": ("causal", _of_bart), "BlenderbotSmallForConditionalGeneration": ("both", _of_bart), "TrOCRForCausalLM": ("causal", _of_bart),
    # Images.
    "ViTForImageClassification": ("image", _images), "DeiTForImageClassification": ("image", _images), "BeitForImageClassification": ("image", _images), "Dinov2ForImageClassification": ("image", _images), "ViTMSNForImageClassification": ("image", _images), "YolosForObjectDetection": ("detect", lambda s: {**_images(s), "image_size": [s.image, s.image], "num_detection_tokens": 4}),
    "SwinForImageClassification": ("image", lambda s: {**_stages(s), "patch_size": 4, "window_size": 2}), "Swinv2ForImageClassification": ("image", lambda s: {**_stages(s), "patch_size": 4, "window_size": 2}), "ConvNextForImageClassification": ("image", _stages), "ConvNextV2ForImageClassification": ("image", _stages),
    "ResNetForImageClassification": ("image", _stages), "RegNetForImageClassification": ("image", lambda s: {**_stages(s), "groups_width": 8}), "PoolFormerForImageClassification": ("image", _stages), "PvtForImageClassification": ("image", lambda s: {**_stages(s), "hidden_sizes": [16, 32, 32, 64], "num_attention_heads": [1, 2, 2, 4], "mlp_ratios": [2] * 4, "sequence_reduction_ratios": [8, 4, 2, 1], "num_encoder_blocks": 4, "patch_sizes": [4, 2, 2, 2]}),
    "MobileNetV2ForImageClassification": ("image", lambda s: {"num_labels": 10, "depth_multiplier": 0.35}), "MobileViTForImageClassification": ("image", lambda s: {"num_labels": 10, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64], "image_size": 64, "num_attention_heads": 4}),
    "SegformerForImageClassification": ("image", lambda s: {"num_labels": 10, "hidden_sizes": [16, 32, 32, 64], "num_attention_heads": [1, 2, 2, 4], "depths": [1, 1, 1, 1]}), "EfficientNetForImageClassification": ("image", lambda s: {"num_labels": 10, "image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320}), "FocalNetForImageClassification": ("image", lambda s: {**_stages(s), "patch_size": 4}),
    "BitForImageClassification": ("image", lambda s: {**_stages(s), "num_groups": 4}), "LevitForImageClassification": ("image", lambda s: {"num_labels": 10, "image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1], "key_dim": [8, 8, 8]}), "CvtForImageClassification": ("image", lambda s: {"num_labels": 10, "embed_dim": [16, 32, 64], "num_heads": [1, 2, 4], "depth": [1, 2, 3]}),
    "ViTMAEForPreTraining": ("pixels", lambda s: {**_images(s), "decoder_hidden_size": s.hidden, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": s.heads, "decoder_intermediate_size": 2 * s.hidden, "mask_ratio": 0.0}),
    "CLIPModel": ("pair", lambda s: {"projection_dim": s.hidden, "text_config": _usual(s), "vision_config": {**_usual(s), **_images(s)}}), "SiglipModel": ("pair", lambda s: {"text_config": _usual(s), "vision_config": {**_usual(s), **_images(s)}}),
    # Sound.
    "Wav2Vec2ForCTC": ("sound", _sound), "HubertForCTC": ("sound", _sound), "WavLMForCTC": ("sound", _sound), "SEWForCTC": ("sound", _sound), "UniSpeechForCTC": ("sound", _sound), "Data2VecAudioForCTC": ("sound", lambda s: {**_sound(s), "conv_pos_kernel_size": 5}),
    "WhisperForConditionalGeneration": ("spectrum", _spectrum), "Speech2TextForConditionalGeneration": ("spectrum", _spectrum), "ASTForAudioClassification": ("spectrum_image", lambda s: {"num_mel_bins": 16, "max_length": 32, "num_labels": 10, "patch_size": 8, "frequency_stride": 8, "time_stride": 8}),
}  # fmt: skip


def _inputs(kind, s, config):
    """Returns the inputs of a model by name, on the CPU."""
    words = getattr(config, "vocab_size", None) or s.words
    tokens = torch.randint(3, min(words, s.words), (s.batch, s.tokens))
    pixels = torch.randn(s.images, 3, *[config.image_size if isinstance(getattr(config, "image_size", None), int) else s.image] * 2)
    mask = torch.ones_like(tokens)
    mask[-1, s.tokens - s.tokens // 4 :] = 0
    classes, of_images = torch.arange(s.batch) % 2, torch.arange(s.images) % 2
    return {
        "causal": lambda: {"input_ids": tokens, "labels": tokens},
        "masked": lambda: {"input_ids": tokens, "attention_mask": mask, "labels": tokens},
        "answers": lambda: {"input_ids": tokens, "start_positions": classes, "end_positions": classes + 1},
        "classes": lambda: {"input_ids": tokens, "labels": classes},
        "both": lambda: {"input_ids": tokens, "decoder_input_ids": tokens, "labels": tokens},
        "image": lambda: {"pixel_values": pixels, "labels": of_images},
        "detect": lambda: {"pixel_values": pixels},
        "pixels": lambda: {"pixel_values": pixels, "noise": torch.rand(s.images, (config.image_size // config.patch_size) ** 2)},
        "pair": lambda: {"input_ids": tokens, "pixel_values": torch.randn(s.batch, 3, s.image, s.image), "return_loss": True},
        "sound": lambda: {"input_values": torch.randn(s.batch, s.samples), "labels": torch.randint(1, 30, (s.batch, 4))},
        "spectrum": lambda: {"input_features": torch.randn(s.batch, 16, 2 * s.tokens) if "Whisper" in type(config).__name__ else torch.randn(s.batch, 2 * s.tokens, 16), "decoder_input_ids": tokens, "labels": tokens},
        "spectrum_image": lambda: {"input_values": torch.randn(s.batch, 32, 16), "labels": classes},
    }[kind]()


def _without_drops(config):
    """Sets dropout probabilities to almost 0, as PyTorch's benchmarks do, and other noise to 0, so that results are
    reproducible."""
    parts = [config, *(part for part in vars(config).values() if hasattr(part, "to_dict"))]
    for part in parts:
        for name, value in list(vars(part).items()):
            if isinstance(value, list) and "drop" in name:
                setattr(part, name, [0.0] * len(value))
            elif isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(part, name, 1e-30 if "drop" in name and "layerdrop" not in name and "drop_path" not in name else 0.0)


def _transformers(name, size):
    import transformers

    kind, *more = TRANSFORMERS[name]
    kind_of_model = getattr(transformers, name)
    given = {**_usual(size), **(more[0](size) if more else {})}
    given = {key: value for key, value in given.items() if value is not None}
    config = kind_of_model.config_class(**given)
    config.use_cache = False
    _without_drops(config)
    return kind_of_model(config), _inputs(kind, size, config)


# ---- timm and torchvision -----------------------------------------------------------------------------------------------------------

TIMM = """test_resnet test_vit test_efficientnet test_byobnet test_convnext test_mambaout test_nfnet test_vit2 resnet18 resnet26d resnext26ts seresnet18 regnetx_002 regnety_002
mobilenetv2_035 mobilenetv3_small_050 mobilenetv4_conv_small efficientnet_b0 tf_efficientnet_b0 ghostnet_050 mnasnet_small repvgg_a0 densenet121 dla34 hrnet_w18_small
inception_v3 inception_next_tiny nfnet_l0 convnext_atto convnextv2_atto convmixer_768_32 mixer_s32_224 resmlp_12_224 gmlp_ti16_224 vit_tiny_patch16_224 deit_tiny_patch16_224
beit_base_patch16_224 swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 xcit_nano_12_p16_224 cait_xxs24_224 coat_tiny crossvit_tiny_240 pit_ti_224 levit_128s twins_svt_small visformer_tiny
poolformer_s12 mobilevit_xxs mobilevitv2_050 edgenext_xx_small efficientformer_l1 fastvit_t8 maxvit_rmlp_pico_rw_256 coatnet_pico_rw_224 volo_d1_224 mobileone_s0 pvt_v2_b0
rexnet_100 selecsls42b skresnet18 res2net50_14w_8s cspdarknet53 lcnet_035 tinynet_e eva02_tiny_patch14_224 davit_tiny focalnet_tiny_srf nextvit_small repghostnet_050 hardcorenas_a
botnet26t_256 convit_tiny dpn48b eca_halonext26ts ese_vovnet19b_dw fbnetc_100 gernet_s mixnet_s resnest14d nest_tiny tnt_s_legacy_patch16_224""".split()

# Arguments of those that are large, or whose images have one size; for the simulated GPU.
TIMM_TINY = {
    "densenet121": {"block_config": (2, 2, 2, 2)}, "beit_base_patch16_224": {"embed_dim": 48, "depth": 2, "num_heads": 4},
    "vit_tiny_patch16_224": {"depth": 2}, "deit_tiny_patch16_224": {"depth": 2},
    "swin_tiny_patch4_window7_224": {"depths": (1, 1, 1, 1), "embed_dim": 24, "window_size": 2, "num_heads": (1, 2, 2, 4)}, "swinv2_cr_tiny_224": {"depths": (1, 1, 1, 1), "embed_dim": 24, "num_heads": (1, 2, 2, 4)}, "xcit_nano_12_p16_224": {"depth": 2}, "cait_xxs24_224": {"depth": 2, "embed_dim": 48},
    "inception_v3": {"aux_logits": False}, "eva02_tiny_patch14_224": {"depth": 2}, "davit_tiny": {"depths": (1, 1, 1, 1), "embed_dims": (16, 32, 64, 96), "num_heads": (1, 2, 4, 4)},
}  # fmt: skip

TORCHVISION = "alexnet squeezenet1_1 shufflenet_v2_x0_5 mnasnet0_5 googlenet mobilenet_v3_small resnet18 wide_resnet50_2 vgg11 densenet121".split()


def _images_of(size, side):
    return {"x": torch.randn(size.images, 3, side, side)}


def _timm(name, size):
    import timm

    options, side = {"num_classes": 10, "drop_path_rate": 0.0}, size.image
    if size is TINY:
        options |= TIMM_TINY.get(name, {})
        side = 96 if name in ("inception_v3", "nfnet_l0", "visformer_tiny", "test_byobnet") else 64
    else:
        del options["drop_path_rate"]
    for chosen in ({"img_size": side}, {}):
        for dropped in ((), ("drop_path_rate",)):
            given = {key: value for key, value in options.items() if key not in dropped}
            try:
                model = timm.create_model(name, **given, **chosen)
            except TypeError:
                continue
            if size is TINY:
                # Some call dropout as a function, with this probability.
                model.drop_rate = 0.0
            needed = None if chosen else timm.data.resolve_model_data_config(model) if getattr(model, "fixed_input_size", False) or model.default_cfg.get("fixed_input_size") else None
            return model, _images_of(size, needed["input_size"][-1] if needed else side)
    raise RuntimeError(f"{name} cannot be made")


def _torchvision(name, size):
    import torchvision

    options = {"aux_logits": False} if name == "googlenet" else {}
    model = torchvision.models.get_model(name, weights=None, num_classes=10, **options)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model, _images_of(size, max(size.image, 64))


SUITES = {"transformers": (list(TRANSFORMERS), _transformers), "timm": (TIMM, _timm), "torchvision": (TORCHVISION, _torchvision)}


def made(suite, name, size):
    """Returns a model and its inputs by name, on the CPU, always with the same values."""
    torch.manual_seed(0)
    return SUITES[suite][1](name, size)
