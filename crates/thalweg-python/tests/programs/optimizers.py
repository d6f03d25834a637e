"""Optimizers that are composed of operators, each with the same loss: the program's only import of a tensor library is
`torch`."""

import torch
from torch import nn

RUNS = [
    ("Muon", {}, [(3, 5), (6, 2)]),
    ("Muon", {"nesterov": False, "adjust_lr_fn": "match_rms_adamw", "lr": 0.1}, [(4, 4)]),
    ("Adafactor", {}, [(3, 5), (4,), (2, 3, 4)]),
    ("Adafactor", {"lr": 0.5, "weight_decay": 0.1, "maximize": True, "d": 1.5, "eps": (1e-3, 1e-2)}, [(3, 5), (4,)]),
    ("LBFGS", {"lr": 0.1}, [(3, 5), (4,)]),
    ("LBFGS", {"max_iter": 4, "line_search_fn": "strong_wolfe"}, [(3, 5), (4,)]),
    ("LBFGS", {"max_iter": 5, "line_search_fn": "strong_wolfe", "history_size": 2}, [(3, 5)]),
]


def start(shape, place):
    count = torch.tensor(shape).prod().item()
    return (torch.sin(torch.arange(count, dtype=torch.float64) * 1.7 + place) * 1.5).float().view(shape)


def run(name, options, shapes, steps=4):
    """Returns the loss of each step."""
    parameters = [nn.Parameter(start(shape, place)) for place, shape in enumerate(shapes)]
    optimizer = getattr(torch.optim, name)(parameters, **options)
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = sum(((p - 0.3) ** 4).sum() + p.reshape(-1)[0] * p.reshape(-1)[-1] for p in parameters)
        loss.backward()
        return loss

    for step in range(steps):
        losses.append(optimizer.step(closure).item())
        if step == 1:
            saved = optimizer.state_dict()
            optimizer = getattr(torch.optim, name)(parameters, **options)
            optimizer.load_state_dict(saved)
    with torch.no_grad():
        return losses + [p.double().sum().item() for p in parameters]


def train():
    return [run(*arguments) for arguments in RUNS]


if __name__ == "__main__":
    print(train())
