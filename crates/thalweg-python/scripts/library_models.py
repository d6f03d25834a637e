"""A training step of models of transformers and timm: time, time of the host, first step, peak memory. The same file runs under both libraries:

    python library_models.py transformers [--compile] [--kernels] [NAME ...]
    python -m thalweg library_models.py timm [--compile] [--kernels] [NAME ...]

Each model is trained under bfloat16 autocast with fused AdamW and has random weights. Milliseconds are medians of 11 steps, each between
waits for the GPU. `--kernels` also prints the kernels that take the most time.
"""

import argparse
import collections
import gc
import json
import os
import statistics
import tempfile
import time

import torch

VOCABULARY = 8192
DEVICE = "cuda"


def tokens(batch, length):
    return torch.randint(0, VOCABULARY, (batch, length), device=DEVICE)


def mask(batch, length):
    return (torch.arange(length, device=DEVICE)[None] < torch.randint(length // 2, length, (batch, 1), device=DEVICE)).long()


def language(model, batch, length, **options):
    ids = tokens(batch, length)
    return model, lambda run: run(input_ids=ids, labels=ids, **options).loss


def sequences(model):
    ids, labels = tokens(16, 256), tokens(16, 128)
    return model, lambda run: run(input_ids=ids, labels=labels).loss


def images(model, batch=32):
    pixels, labels = torch.randn(batch, 3, 224, 224, device=DEVICE), torch.randint(0, 100, (batch,), device=DEVICE)
    return model, lambda run: run(pixel_values=pixels, labels=labels).loss


def speech(model):
    sound, labels = torch.randn(4, 32000, device=DEVICE), torch.randint(1, 32, (4, 20), device=DEVICE)
    return model, lambda run: run(input_values=sound, labels=labels).loss


def of_transformers():
    """Returns functions that make a model and its loss, by name."""
    import transformers as t
    v, small = VOCABULARY, dict(vocab_size=VOCABULARY, num_hidden_layers=6)
    decoder = dict(small, hidden_size=768, intermediate_size=2048, num_attention_heads=12, num_key_value_heads=4)
    return {
        "bert": lambda: language(t.BertForMaskedLM(t.BertConfig(**small)), 16, 256, attention_mask=mask(16, 256)),
        "gpt2": lambda: language(t.GPT2LMHeadModel(t.GPT2Config(vocab_size=v, n_layer=6)), 8, 512),
        "llama": lambda: language(t.LlamaForCausalLM(t.LlamaConfig(**decoder)), 4, 1024),
        "qwen3": lambda: language(t.Qwen3ForCausalLM(t.Qwen3Config(**decoder, head_dim=64)), 4, 1024),
        "gemma2": lambda: language(t.Gemma2ForCausalLM(t.Gemma2Config(**decoder, head_dim=96, sliding_window=256)), 4, 512),
        "mixtral": lambda: language(t.MixtralForCausalLM(t.MixtralConfig(**decoder)), 4, 512),
        "t5": lambda: sequences(t.T5ForConditionalGeneration(t.T5Config(vocab_size=v, num_layers=6, decoder_start_token_id=0))),
        "deberta": lambda: language(t.DebertaV2ForMaskedLM(t.DebertaV2Config(
            **small, hidden_size=768, num_attention_heads=12, relative_attention=True, position_buckets=256, pos_att_type=["p2c", "c2p"])), 16, 256),
        "vit": lambda: images(t.ViTForImageClassification(t.ViTConfig(num_hidden_layers=6, num_labels=100))),
        "swin": lambda: images(t.SwinForImageClassification(t.SwinConfig(num_labels=100))),
        "convnext": lambda: images(t.ConvNextForImageClassification(t.ConvNextConfig(num_labels=100))),
        "wav2vec2": lambda: speech(t.Wav2Vec2ForCTC(t.Wav2Vec2Config(num_hidden_layers=4, vocab_size=32, apply_spec_augment=False))),
    }


def of_timm():
    """Returns functions that make a model and its loss, by name."""
    import timm

    def make(name, batch):
        pixels, labels = torch.randn(batch, 3, 224, 224, device=DEVICE), torch.randint(0, 100, (batch,), device=DEVICE)
        model = timm.create_model(name, num_classes=100)
        return model, lambda run: torch.nn.functional.cross_entropy(run(pixels).float(), labels)
    sizes = {"resnet50": 64, "efficientnet_b0": 64, "swin_tiny_patch4_window7_224": 32, "mobilenetv3_large_100": 64, "regnety_016": 64,
             "vit_small_patch16_224": 64, "mixer_s16_224": 64, "coatnet_0_rw_224": 32, "maxvit_tiny_rw_224": 16, "densenet121": 32,
             "poolformer_s12": 64, "xcit_tiny_12_p16_224": 32, "ghostnet_100": 64, "levit_192": 64, "hrnet_w18_small": 32, "volo_d1_224": 16}
    return {name: lambda name=name, batch=batch: make(name, batch) for name, batch in sizes.items()}


def print_kernels(step, steps=2, most=15):
    """Prints the kernels of a step that take the most time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recording:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    path = os.path.join(tempfile.mkdtemp(), "trace.json")
    recording.export_chrome_trace(path)
    with open(path, encoding="utf-8") as file:
        events = json.load(file)
    sums = collections.defaultdict(lambda: [0.0, 0])
    for event in events["traceEvents"] if isinstance(events, dict) else events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            sums[event["name"]][0] += event["dur"] / steps / 1e3
            sums[event["name"]][1] += 1
    print(f"  {sum(time for time, _ in sums.values()):8.3f} ms in {sum(count for _, count in sums.values()) / steps:.0f} kernels")
    for name, (total, count) in sorted(sums.items(), key=lambda row: -row[1][0])[:most]:
        print(f"  {total:8.3f} ms {count / steps:6.1f}  {name[:120]}")


def measure(name, make, options):
    torch.manual_seed(0)
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    model, loss_of = make()
    model = model.to(DEVICE).train()
    run = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = loss_of(run)
        loss.backward()
        optimizer.step()
        return loss.detach()

    began = time.perf_counter()
    loss = float(step())
    first = time.perf_counter() - began
    for _ in range(25 if options.compile else 5):
        step()
    torch.cuda.synchronize()
    whole, host = [], []
    for _ in range(11):
        began = time.perf_counter()
        step()
        host.append(time.perf_counter() - began)
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - began)
    whole, host, peak = statistics.median(whole) * 1e3, statistics.median(host) * 1e3, torch.cuda.max_memory_allocated() / 2**20
    print(f"{name:30} {whole:8.2f} ms, host {host:8.2f} ms, first {first:6.2f} s, peak {peak:7.0f} MiB, loss {loss:.4f}", flush=True)
    if options.kernels:
        print_kernels(step)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=("transformers", "timm"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    options = parser.parse_args()
    models = of_transformers() if options.library == "transformers" else of_timm()
    for name in options.names or models:
        try:
            measure(name, models[name], options)
        except Exception as error:
            print(f"{name:30} {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
