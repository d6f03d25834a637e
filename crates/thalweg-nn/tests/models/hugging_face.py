"""Writes checkpoints of Hugging Face's transformers, the results of its models, and the names and shapes of the weights
of published models.

    python3 hugging_face.py FOLDER

It needs PyTorch, transformers and torchvision; what is kept here was written by versions 2.11, 5.23 and 0.26. In FOLDER:

- `NAME.safetensors`: a small model with random weights, by `save_pretrained`;
- `NAME.results.safetensors`: its inputs, and its results in f64 (saved in f32);
- `names.txt.gz`: of the models at their published sizes, the name and shape of each weight, as `model.state_dict()` has them.
"""

import gzip
import os
import sys
import tempfile

import torch
import torchvision
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
)

BERT = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def small():
    """Models with their inputs, and the results that are stored."""
    tokens = torch.randint(0, 50, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    kinds = (torch.arange(9) > 4).long().expand(2, 9).contiguous()
    marked = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": kinds}
    gpt2 = GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    llama = LlamaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24
    )
    bert = BertConfig(max_position_embeddings=12, num_labels=3, **BERT)
    yield "gpt2", GPT2LMHeadModel(gpt2), {"input_ids": tokens}, ["logits"]
    # As `gpt2` itself was saved: without a head, and so without the name of what has it.
    yield "gpt2_base", GPT2Model(gpt2), {"input_ids": tokens}, ["last_hidden_state"]
    yield "llama", LlamaForCausalLM(llama), {"input_ids": tokens}, ["logits"]
    yield "bert", BertForSequenceClassification(bert), marked, ["logits"]
    # As encoders of sentences are saved.
    yield "bert_base", BertModel(bert), marked, ["last_hidden_state", "pooler_output"]


def published():
    """Models of published sizes; on the meta device they take no memory."""
    with torch.device("meta"):
        yield "gpt2", GPT2LMHeadModel(GPT2Config())
        yield "bert-base-uncased", BertModel(BertConfig())
        yield "llama-2-7b", LlamaForCausalLM(LlamaConfig(rms_norm_eps=1e-5))
        yield "resnet50", torchvision.models.resnet50()


def main():
    folder = sys.argv[1]
    torch.manual_seed(17)
    for name, model, inputs, results in small():
        with torch.no_grad():
            for parameter in model.parameters():
                # Large enough that each weight tells.
                parameter.add_(torch.randn_like(parameter) * 0.2)
        model.eval()
        with tempfile.TemporaryDirectory() as saved:
            model.save_pretrained(saved)
            os.rename(f"{saved}/model.safetensors", f"{folder}/{name}.safetensors")
        with torch.no_grad():
            output = model.double()(**inputs)
        results = {result: getattr(output, result).float().contiguous() for result in results}
        save_file({**inputs, **results}, f"{folder}/{name}.results.safetensors")
    with gzip.GzipFile(f"{folder}/names.txt.gz", "wb", mtime=0) as file:
        for model_name, model in published():
            for name, weight in model.state_dict().items():
                shape = ",".join(map(str, weight.shape))
                file.write(f"{model_name} {name} {shape}\n".encode())


main()
