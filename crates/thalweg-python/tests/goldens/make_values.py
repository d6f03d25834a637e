"""Writes values.pt, stream.pt and optimizer.pt: files in PyTorch's formats. Needs PyTorch, no GPU:

    python3 make_values.py
"""

import collections
import pathlib

FOLDER = pathlib.Path(__file__).parent

if __name__ == "__main__":
    import torch
    row = torch.arange(6.0)
    shared = torch.nn.Parameter(torch.ones(2))
    marked = torch.ones(1)
    marked.note = "kept"
    values = {
        "row": row, "view": row[1:], "turned": row.view(2, 3).t(), "parameter": shared, "same": shared, "wants": torch.ones(1, requires_grad=True),
        "conjugate": torch.tensor([1 + 2j]).conj(), "frozen": torch.nn.Parameter(torch.ones(1), requires_grad=False), "set": {1, 2},
        "device": torch.device("cpu"), "bytes": b"a\0b", "array": bytearray(b"x"), "ordered": collections.OrderedDict(b=1, a=2),
        "counter": collections.Counter([1, 1, 2]), "meta": torch.ones(2, 3, device="meta"), "dtype": torch.float16, "size": row.shape,
        "float8": torch.ones(2).to(torch.float8_e5m2), "large": 2**70, "complex": 1 + 2j, "none": None, "empty": torch.empty(0, 3),
        "marked": marked, "expanded": torch.ones(1).expand(3)}
    torch.save(values, FOLDER / "values.pt")
    torch.save({"row": row, "view": row[1:], "parameter": shared, "words": ["a", 1.5]}, FOLDER / "stream.pt", _use_new_zipfile_serialization=False)
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter], lr=0.5)
    parameter.grad = torch.ones(2)
    optimizer.step()
    torch.save(optimizer, FOLDER / "optimizer.pt")
