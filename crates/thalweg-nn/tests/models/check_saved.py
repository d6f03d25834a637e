"""Reads a file of `a_saved_model_keeps_its_tied_weights_one_storage` in PyTorch, into the model of make.py.

    THALWEG_KEEP=FOLDER cargo test -p thalweg-nn --test it a_saved_model
    python3 check_saved.py FOLDER/thalweg-*-gpt2.pt
"""

import sys

import torch
from make import GPT2

file = torch.load(sys.argv[1], weights_only=True)
weights = file["model"]
assert file["epoch"] == 3
model = GPT2()
print(model.load_state_dict(weights))
assert list(weights) == list(model.state_dict())
tied, head = weights["transformer.wte.weight"], weights["lm_head.weight"]
assert tied.data_ptr() == head.data_ptr()
assert abs(head.double().sum().item() - file["checksum"]) < 1e-9
print(len(weights), "tensors of", {str(tensor.dtype) for tensor in weights.values()})
