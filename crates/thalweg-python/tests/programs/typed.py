"""A fully typed program for `mypy --strict`: its annotations match the stubs, except for lines that the stubs refuse."""

from collections.abc import Iterator

import thalweg as th
import thalweg.nn.functional as F
from thalweg import nn


class Net(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, 8, bias=False)
        self.rest = nn.Sequential(nn.GELU(), nn.Linear(8, 1))

    def forward(self, x: th.Tensor) -> th.Tensor:
        y: th.Tensor = self.rest(self.first(x))
        return y.squeeze(-1)


class Square(th.autograd.Function):
    @staticmethod
    def forward(ctx: th.autograd.function.FunctionCtx, x: th.Tensor) -> th.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: th.autograd.function.FunctionCtx, gradient: th.Tensor) -> th.Tensor:
        x: th.Tensor
        x, = ctx.saved_tensors
        return gradient * x * 2


@th.no_grad()
def evaluate(net: Net, x: th.Tensor) -> float:
    return float(net.eval()(x).mean())


def batches(count: int) -> Iterator[tuple[th.Tensor, th.Tensor]]:
    for _ in range(count):
        x = th.randn(16, 4)
        yield x, x.sum(dim=1)


def train() -> list[float]:
    th.manual_seed(0)
    net = Net(4).to("sim")
    optimizer = th.optim.AdamW(net.parameters(), lr=1e-2, betas=(0.9, 0.99))
    schedule = th.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    losses: list[float] = []
    for x, target in batches(4):
        loss = F.mse_loss(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    values, places = th.tensor(losses).max(dim=0)
    shape: th.Size = values.shape
    assert shape == () and places.dtype == th.int64 and isinstance(evaluate(net, th.ones(2, 4)), float)
    th.cuda.synchronize()
    return losses


def refused() -> None:
    th.nosuch  # type: ignore[attr-defined]
    th.add(th.ones(1), [1])  # type: ignore[call-overload]
    th.optim.AdamW([], leaning_rate=1.0)  # type: ignore[call-arg]


if __name__ == "__main__":
    print(train())
