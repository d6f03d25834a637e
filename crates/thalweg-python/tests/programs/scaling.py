"""Gradient scaling with several optimizers, fused and user-defined: the program's only import of a tensor library is `torch`."""

import torch
import torch.nn as nn


class Momentum(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    kept = self.state[p].setdefault("kept", torch.zeros_like(p))
                    kept.mul_(0.9).add_(p.grad)
                    p.add_(kept, alpha=-group["lr"])


class Halved(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(0.5)
        return super().step(closure)


def train():
    """Returns four parameters, each with its own optimizer, and the scale after each step. Some gradients are not finite."""
    parameters = [nn.Parameter(torch.tensor([1.0, -2.0, 0.5]) * (place + 1)) for place in range(5)]
    optimizers = [torch.optim.SGD([parameters[0]], lr=0.1, momentum=0.9), torch.optim.Adam([parameters[1]], lr=0.05),
                  Momentum([parameters[2]], lr=0.1), Halved([parameters[3]], lr=0.1),
                  torch.optim.Adafactor([parameters[4]], lr=0.1)]
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
    found = []
    bad = {1: [0], 3: [2], 4: [0, 1, 2, 3, 4], 6: [3]}
    for step in range(10):
        factors = [float("inf") if place in bad.get(step, []) else 1.0 + 0.1 * place for place in range(5)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = sum((p * p * factor).sum() for p, factor in zip(parameters, factors))
        scaler.scale(loss).backward()
        for place, optimizer in enumerate(optimizers):
            if (step + place) % 2:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 2.0)
            scaler.step(optimizer)
        scaler.update(12.0 if step == 7 else None)
        if step == 5:
            state = scaler.state_dict()
            scaler = torch.amp.GradScaler("cpu")
            scaler.load_state_dict(state)
        found.append([scaler.get_scale(), *(value for p in parameters for value in p.detach().tolist())])
    return found


if __name__ == "__main__":
    print(train())
