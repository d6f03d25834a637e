"""Runs well-known libraries under PyTorch's name over this package, and prints a table of the stages that each goes through.

usage: libraries.py [NAME ...] [--python PYTHON] [--seconds N] [--list]

Each case runs in a process of its own, as `PYTHON -m thalweg --simulated-as cpu libraries.py --one NAME`: PYTHON is an
environment with the libraries and without PyTorch (this one by default), and this package is found beside this file. A case
is a short program that a user of the library would write: construct, forward, backward, step, save and load, generate. Models
are small and have random weights, so nothing is downloaded. A library that is not installed is reported as such.
"""

import argparse
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile

CASES = {}


def case(distribution):
    """Registers a function as a case, with the distribution whose version is printed."""
    def register(function):
        CASES[function.__name__] = (distribution, function)
        return function
    return register


def stage(name):
    print("stage", name, flush=True)


def finite(value):
    import torch
    assert torch.isfinite(torch.as_tensor(value)).all(), "a value is not finite"


def train(model, loss_of, steps=3, learning_rate=1e-3):
    """Trains for a few steps and checks that the loss falls (dropout may make one of them rise)."""
    import torch
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    stage("construct")
    losses = []
    for _ in range(steps):
        loss = loss_of(model)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    finite(losses)
    assert min(losses[1:]) < losses[0], losses
    stage("forward, backward, step")


def save_and_load(model):
    import torch
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state.pt")
        torch.save(model.state_dict(), path)
        state = torch.load(path)
        model.load_state_dict(state)
        for name, value in model.state_dict().items():
            assert torch.equal(value, state[name]), name
    stage("save and load")


def pretrained(model):
    """Saves a model of transformers or diffusers by its own format and reads it again."""
    import torch
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = type(model).from_pretrained(folder)
        for name, value in model.state_dict().items():
            assert torch.equal(value, again.state_dict()[name]), name
    stage("save_pretrained, from_pretrained")


def causal(name, **sizes):
    """A causal language model of transformers: training steps, files, and three kinds of generation."""
    import torch
    import transformers
    common = dict(vocab_size=97, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    config = getattr(transformers, name + "Config")(**common, **sizes)
    suffix = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    model = getattr(transformers, name + suffix)(config)
    tokens = torch.randint(3, 97, (2, 16))
    train(model, lambda m: m(input_ids=tokens, labels=tokens).loss)
    pretrained(model)
    generate(model.eval(), tokens[:, :4])


def generate(model, tokens, **more):
    import torch
    greedy = model.generate(tokens, max_new_tokens=6, do_sample=False, **more)
    again = model.generate(tokens, max_new_tokens=6, do_sample=False, **more)
    assert torch.equal(greedy, again)
    model.generate(tokens, max_new_tokens=6, do_sample=True, top_k=10, top_p=0.9, temperature=0.8, **more)
    model.generate(tokens, max_new_tokens=6, num_beams=3, do_sample=False, **more)
    stage("generate: greedy, sampled, beams")


SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)


@case("transformers")
def gpt2():
    causal("GPT2", n_embd=32, n_layer=2, n_head=4, n_positions=64)


@case("transformers")
def llama():
    causal("Llama", num_key_value_heads=2, **SIZES)


@case("transformers")
def qwen3():
    causal("Qwen3", num_key_value_heads=2, head_dim=8, **SIZES)


@case("transformers")
def mistral():
    causal("Mistral", num_key_value_heads=2, sliding_window=8, **SIZES)


@case("transformers")
def mixtral():
    causal("Mixtral", num_key_value_heads=2, num_local_experts=4, **SIZES)


@case("transformers")
def gpt_neox():
    causal("GPTNeoX", **SIZES)


@case("transformers")
def phi():
    causal("Phi", **SIZES)


@case("transformers")
def gemma():
    causal("Gemma", num_key_value_heads=2, head_dim=8, **SIZES)


@case("transformers")
def opt():
    causal("OPT", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, word_embed_proj_dim=32)


@case("transformers")
def bloom():
    causal("Bloom", hidden_size=32, n_layer=2, n_head=4)


@case("transformers")
def t5():
    import torch
    import transformers
    config = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                                   decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config)
    tokens = torch.randint(3, 97, (2, 12))
    train(model, lambda m: m(input_ids=tokens, labels=tokens).loss)
    pretrained(model)
    generate(model.eval(), tokens)


def encoder(name, **sizes):
    import torch
    import transformers
    config = getattr(transformers, name + "Config")(vocab_size=97, num_labels=3, **sizes)
    model = getattr(transformers, name + "ForSequenceClassification")(config)
    tokens, labels = torch.randint(3, 97, (4, 12)), torch.tensor([0, 1, 2, 1])
    mask = torch.ones(4, 12, dtype=torch.long)
    mask[1, 8:] = 0
    train(model, lambda m: m(input_ids=tokens, attention_mask=mask, labels=labels).loss)
    pretrained(model)


@case("transformers")
def bert():
    encoder("Bert", **SIZES)


@case("transformers")
def roberta():
    encoder("Roberta", pad_token_id=1, **SIZES)


@case("transformers")
def distilbert():
    encoder("DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=64)


@case("transformers")
def deberta():
    encoder("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"], **SIZES)


@case("transformers")
def electra():
    encoder("Electra", embedding_size=16, **SIZES)


@case("transformers")
def vit():
    import torch
    import transformers
    model = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=32, patch_size=8, num_labels=3, **SIZES))
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 2])
    train(model, lambda m: m(pixel_values=images, labels=labels).loss)
    pretrained(model)


@case("transformers")
def clip():
    import torch
    import transformers
    text = dict(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                eos_token_id=2, bos_token_id=1, pad_token_id=0)
    vision = dict(image_size=32, patch_size=8, **SIZES)
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    model = transformers.CLIPModel(config)
    tokens, images = torch.randint(3, 97, (2, 10)), torch.randn(2, 3, 32, 32)
    train(model, lambda m: m(input_ids=tokens, pixel_values=images, return_loss=True).loss)
    pretrained(model)


@case("transformers")
def whisper():
    import torch
    import transformers
    config = transformers.WhisperConfig(vocab_size=97, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                                        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=16,
                                        max_source_positions=32, max_target_positions=32, pad_token_id=0, bos_token_id=1,
                                        eos_token_id=2, decoder_start_token_id=1, begin_suppress_tokens=None)
    model = transformers.WhisperForConditionalGeneration(config)
    sounds, tokens = torch.randn(2, 16, 64), torch.randint(3, 97, (2, 8))
    train(model, lambda m: m(input_features=sounds, labels=tokens).loss)
    pretrained(model)
    model.eval().generate(sounds, max_new_tokens=5)
    stage("generate")


@case("transformers")
def trainer():
    import torch
    import transformers
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=2, n_positions=32))
    rows = [dict(input_ids=row, labels=row) for row in torch.randint(0, 97, (16, 12))]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(output_dir=folder, max_steps=4, per_device_train_batch_size=4, save_steps=2,
                                                   logging_steps=1, report_to=[], disable_tqdm=True)
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
        trainer.train()
        stage("train, checkpoint")
        finite(trainer.evaluate()["eval_loss"])
        stage("evaluate")
        trainer.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-2"))
        stage("resume")


@case("peft")
def peft_lora():
    import peft
    import torch
    import transformers
    base = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    tokens = torch.randint(0, 97, (2, 16))
    train(model, lambda m: m(input_ids=tokens, labels=tokens).loss, learning_rate=1e-2)
    before = model.eval()(input_ids=tokens).logits
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        stage("save_pretrained")
    after = model.merge_and_unload()(input_ids=tokens).logits
    torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-4)
    stage("merge")


@case("accelerate")
def accelerate_loop():
    import accelerate
    import torch
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    stage("prepare")
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    finite(accelerator.gather(loss.detach()).cpu())
    stage("accumulate, clip, step, gather")
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        accelerator.load_state(folder)
    stage("save_state, load_state")


def diffusion(scheduler):
    import diffusers
    import torch
    model = diffusers.UNet2DModel(sample_size=16, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(16, 32),
                                  down_block_types=("DownBlock2D", "AttnDownBlock2D"), norm_num_groups=8,
                                  up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8)
    scheduler = getattr(diffusers, scheduler)(num_train_timesteps=50)
    images, noise = torch.randn(2, 1, 16, 16), torch.randn(2, 1, 16, 16)
    times = torch.tensor([3, 40])

    def loss_of(model):
        return torch.nn.functional.mse_loss(model(scheduler.add_noise(images, noise, times), times).sample, noise)
    train(model, loss_of)
    scheduler.set_timesteps(3)
    sample = torch.randn(1, 1, 16, 16) * scheduler.init_noise_sigma
    with torch.no_grad():
        for time in scheduler.timesteps:
            sample = scheduler.step(model(scheduler.scale_model_input(sample, time), time).sample, time, sample).prev_sample
    finite(sample)
    stage("sample")
    pretrained(model)


@case("diffusers")
def ddpm():
    diffusion("DDPMScheduler")


@case("diffusers")
def ddim():
    diffusion("DDIMScheduler")


@case("diffusers")
def euler():
    diffusion("EulerDiscreteScheduler")


@case("diffusers")
def autoencoder():
    import diffusers
    import torch
    model = diffusers.AutoencoderKL(block_out_channels=(16,), norm_num_groups=8, latent_channels=2, sample_size=16)
    images = torch.randn(2, 3, 16, 16)
    train(model, lambda m: torch.nn.functional.mse_loss(m.decode(m.encode(images).latent_dist.mode()).sample, images))
    pretrained(model)


def image_model(name):
    import timm
    import torch
    model = timm.create_model(name, num_classes=5)
    images, labels = torch.randn(2, 3, 64, 64), torch.tensor([0, 4])
    if "vit" in name:
        model = timm.create_model(name, num_classes=5, img_size=64)
    train(model, lambda m: torch.nn.functional.cross_entropy(m(images), labels))
    finite(model.eval().forward_features(images))
    stage("forward_features")
    save_and_load(model)


@case("timm")
def timm_resnet18():
    image_model("resnet18")


@case("timm")
def timm_vit():
    image_model("vit_tiny_patch16_224")


@case("timm")
def timm_convnext():
    image_model("convnext_atto")


@case("timm")
def timm_efficientnet():
    image_model("efficientnet_lite0")


@case("torchmetrics")
def metrics():
    import torch
    import torchmetrics
    scores, labels = torch.rand(64, 4), torch.randint(0, 4, (64,))
    both = torchmetrics.MetricCollection([torchmetrics.Accuracy(task="multiclass", num_classes=4),
                                          torchmetrics.F1Score(task="multiclass", num_classes=4),
                                          torchmetrics.AUROC(task="multiclass", num_classes=4)])
    both.update(scores, labels)
    finite(list(both.compute().values()))
    stage("accuracy, F1, AUROC")
    torchmetrics.ConfusionMatrix(task="multiclass", num_classes=4)(scores, labels)
    stage("confusion matrix")
    image = torch.rand(1, 1, 32, 32)
    assert torchmetrics.image.StructuralSimilarityIndexMeasure(data_range=1.0)(image, image).item() > 0.999
    stage("SSIM")


@case("pytorch-lightning")
def lightning():
    import pytorch_lightning
    import torch

    class Network(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch, _):
            return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)
    data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
    with tempfile.TemporaryDirectory() as folder:
        trainer = pytorch_lightning.Trainer(max_epochs=2, default_root_dir=folder, accelerator="cpu", logger=False,
                                            enable_progress_bar=False)
        trainer.fit(Network(), torch.utils.data.DataLoader(data, batch_size=8))
        stage("Trainer.fit")
        trainer.save_checkpoint(os.path.join(folder, "a.ckpt"))
        stage("checkpoint")


@case("gpytorch")
def gaussian_process():
    import gpytorch
    import torch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))
    x = torch.linspace(0, 1, 20)
    y = torch.sin(6 * x)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(x, y, likelihood)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    train(model, lambda m: -objective(m(x), y), learning_rate=0.1)
    model.eval(), likelihood.eval()
    with torch.no_grad():
        finite(likelihood(model(torch.linspace(0, 1, 7))).mean)
    stage("predict")
    save_and_load(model)


@case("linear_operator")
def linear_operators():
    import linear_operator
    import torch
    x = torch.randn(12, 12)
    matrix = linear_operator.to_linear_operator(x @ x.T + 12 * torch.eye(12))
    right = torch.randn(12, 2)
    torch.testing.assert_close(matrix.to_dense() @ matrix.solve(right), right, rtol=1e-3, atol=1e-3)
    stage("solve")
    torch.testing.assert_close(matrix.logdet(), torch.logdet(matrix.to_dense()), rtol=1e-2, atol=1e-2)
    matrix.inv_quad_logdet(right, logdet=True)
    stage("logdet, inv_quad_logdet")


def graph_network(layer):
    import torch
    import torch_geometric
    edges = torch.randint(0, 40, (2, 160))
    data = torch_geometric.data.Data(x=torch.randn(40, 8), edge_index=edges, y=torch.randint(0, 3, (40,)))

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = getattr(torch_geometric.nn, layer)(8, 16)
            self.second = getattr(torch_geometric.nn, layer)(16, 3)

        def forward(self, data):
            return self.second(self.first(data.x, data.edge_index).relu(), data.edge_index)
    train(Network(), lambda m: torch.nn.functional.cross_entropy(m(data), data.y), learning_rate=1e-2)
    for batch in torch_geometric.loader.DataLoader([data, data], batch_size=2):
        assert batch.num_graphs == 2
    stage("loader")


@case("torch-geometric")
def geometric_gcn():
    graph_network("GCNConv")


@case("torch-geometric")
def geometric_gat():
    graph_network("GATConv")


@case("torch-geometric")
def geometric_sage():
    graph_network("SAGEConv")


@case("vector-quantize-pytorch")
def vector_quantize():
    import torch
    import vector_quantize_pytorch
    x = torch.randn(2, 16, 32)
    for kind, options in (("VectorQuantize", dict(codebook_size=16)), ("ResidualVQ", dict(codebook_size=16, num_quantizers=2))):
        model = getattr(vector_quantize_pytorch, kind)(dim=32, **options)
        finite(model(x)[0])
        save_and_load(model)
    finite(vector_quantize_pytorch.FSQ(levels=[8, 5, 5], dim=32)(x)[0])
    stage("VectorQuantize, ResidualVQ, FSQ")


@case("vit-pytorch")
def vit_pytorch():
    import torch
    import vit_pytorch
    model = vit_pytorch.ViT(image_size=32, patch_size=8, num_classes=3, dim=32, depth=2, heads=2, mlp_dim=64, dropout=0.1)
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 2])
    train(model.eval(), lambda m: torch.nn.functional.cross_entropy(m(images), labels))


@case("x-transformers")
def x_transformers():
    import torch
    import x_transformers
    network = x_transformers.TransformerWrapper(num_tokens=97, max_seq_len=32,
                                                attn_layers=x_transformers.Decoder(dim=32, depth=2, heads=4, rotary_pos_emb=True))
    model = x_transformers.AutoregressiveWrapper(network)
    tokens = torch.randint(0, 97, (2, 16))
    train(model, lambda m: m(tokens))
    model.generate(tokens[:, :3], 5)
    stage("generate")


@case("einops")
def einops_all():
    import einops
    import einops.layers.torch
    import torch
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(einops.rearrange(x, "b c h w -> b (h w) c"), x.permute(0, 2, 3, 1).reshape(2, 64, 3))
    torch.testing.assert_close(einops.reduce(x, "b c h w -> b c", "mean"), x.mean((2, 3)))
    einops.einsum(x, x, "b c h w, b d h w -> b c d")
    einops.layers.torch.Rearrange("b c (h a) w -> b (c a) h w", a=2)(x)
    einops.repeat(x, "b c h w -> b c h (w r)", r=2)
    stage("functions and layers")


@case("einx")
def einx_all():
    import einx
    import torch
    x = torch.randn(4, 6)
    torch.testing.assert_close(einx.sum("a [b]", x), x.sum(1))
    einx.id("(a b) c -> a b c", x, a=2) if hasattr(einx, "id") else einx.rearrange("(a b) c -> a b c", x, a=2)
    stage("sum, rearrange")


@case("opt_einsum")
def optimal_einsum():
    import opt_einsum
    import torch
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5, 2)
    torch.testing.assert_close(opt_einsum.contract("ij,jk,kl->il", a, b, c), a @ b @ c)
    stage("contract")


@case("torchdiffeq")
def differential_equations():
    import torch
    import torchdiffeq
    rate = torch.nn.Linear(2, 2)
    times = torch.linspace(0, 1, 4)
    for solve, options in ((torchdiffeq.odeint, dict(method="dopri5")), (torchdiffeq.odeint, dict(method="rk4")),
                           (torchdiffeq.odeint_adjoint, dict(adjoint_params=tuple(rate.parameters())))):
        rate.zero_grad()
        solve(lambda t, y: rate(y), torch.randn(3, 2), times, **options)[-1].square().sum().backward()
        finite(rate.weight.grad)
    stage("dopri5, rk4, adjoint")


@case("safetensors")
def safetensors_files():
    import safetensors
    import safetensors.torch
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.safetensors")
        safetensors.torch.save_file(model.state_dict(), path)
        state = safetensors.torch.load_file(path)
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
        with safetensors.safe_open(path, framework="pt") as file:
            assert file.get_slice("0.weight")[2:4].shape == (2, 4)
        safetensors.torch.save_model(model, path)
        safetensors.torch.load_model(model, path)
    stage("files, slices, models")


@case("matplotlib")
def numpy_and_matplotlib():
    import matplotlib
    matplotlib.use("agg")
    import matplotlib.pyplot
    import numpy
    import torch
    x = torch.linspace(0, 1, 10)
    assert numpy.allclose(numpy.sin(x), torch.sin(x).numpy())
    matplotlib.pyplot.plot(x, torch.sin(x))
    matplotlib.pyplot.hist(torch.randn(100).numpy())
    stage("mixed with tensors")


@case("jaxtyping")
def shape_types():
    import jaxtyping
    import torch

    def matches(tensor, annotation):
        return isinstance(tensor, annotation)
    assert matches(torch.zeros(2, 3), jaxtyping.Float[torch.Tensor, "a b"])
    assert not matches(torch.zeros(2), jaxtyping.Float[torch.Tensor, "a b"])
    assert not matches(torch.zeros(2, dtype=torch.long), jaxtyping.Float[torch.Tensor, "a"])
    stage("checks of shapes and dtypes")


@case("e3nn")
def equivariant():
    import e3nn.o3
    import torch
    irreps = e3nn.o3.Irreps("2x0e + 1x1o")
    layer = e3nn.o3.Linear(irreps, irreps)
    x = irreps.randn(4, -1)
    layer(x).sum().backward()
    product = e3nn.o3.FullyConnectedTensorProduct(irreps, irreps, irreps)
    rotation = e3nn.o3.rand_matrix()
    turn = irreps.D_from_matrix(rotation)
    torch.testing.assert_close(product(x @ turn.T, x @ turn.T), product(x, x) @ turn.T, rtol=1e-3, atol=1e-3)
    stage("linear, tensor products, equivariance")


def one(name):
    import torch
    torch.manual_seed(0)
    CASES[name][1]()
    print("done", flush=True)


def version(python, distribution):
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def run(name, options):
    """Runs one case in a process and returns a row of the table."""
    installed = version(options.python, CASES[name][0])
    if installed is None:
        return name, "–", False, "not installed"
    package = str(pathlib.Path(__file__).resolve().parents[1] / "python")
    paths = [package] + os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    command = [options.python, "-m", "thalweg", "--simulated-as", "cpu", __file__, "--one", name]
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=options.seconds)
        output, errors, ended = result.stdout, result.stderr, result.returncode == 0 and "\ndone" in "\n" + result.stdout
    except subprocess.TimeoutExpired as error:
        output, errors, ended = (error.stdout or b"").decode(), f"not done after {options.seconds} s", False
    stages = ", ".join(line[6:] for line in output.splitlines() if line.startswith("stage "))
    note = "" if ended else " · " + next((line for line in reversed(errors.splitlines()) if line.strip()), "no output")
    return name, installed, ended, stages + note


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seconds", type=int, default=280)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one(options.one)
    unknown = [name for name in options.names if name not in CASES]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; the cases are {', '.join(CASES)}")
    names = options.names or list(CASES)
    if options.list:
        print("\n".join(names))
        return 0
    print("| case | library | version | ends | stages |\n|---|---|---|---|---|")
    passed = 0
    for name in names:
        _, installed, ended, stages = run(name, options)
        passed += ended
        print(f"| {name} | {CASES[name][0]} | {installed} | {'yes' if ended else 'no'} | {stages[:300]} |", flush=True)
    print(f"\n{passed} of {len(names)} cases run to their end.")
    return 0 if passed == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
