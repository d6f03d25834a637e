"""Random programs: eager, compiled and captured calls leave the same bits. `THALWEG_CASES` is the number of programs,
`THALWEG_FIRST_CASE` the first one."""

import os
import random

import thalweg as torch
from thalweg.nn import functional as F

SHAPES = [(4, 8), (8,), (4, 1), (3, 4, 8), (1,), (), (8, 8), (2, 70), (0, 8)]
DTYPES = [torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.int64]
UNARY = [torch.exp, torch.tanh, torch.neg, torch.abs, torch.sigmoid, torch.relu, F.silu, F.gelu, torch.square, torch.clone]
BINARY = [torch.add, torch.sub, torch.mul, torch.maximum, torch.lt, torch.where]


class Program:
    """A program that a seed determines. It is run with the same choices each time."""

    def __init__(self, seed):
        self.seed = seed
        choices = random.Random(seed)
        self.inputs = [(choices.choice(SHAPES), choices.choice(DTYPES)) for _ in range(choices.randint(2, 4))]
        self.steps = [(choices.randrange(16), choices.random(), choices.randrange(9) / 4 - 1, [choices.random() for _ in range(3)],
                       choices.random()) for _ in range(choices.randint(4, 24))]

    def given(self, call):
        """Returns the inputs of a call."""
        torch.manual_seed(1000 * self.seed + call)
        return [(torch.randn(shape) * 2).to(dtype) for shape, dtype in self.inputs]

    def __call__(self, *tensors):
        tensors = list(tensors)
        for kind, pick, number, places, removed in self.steps:
            x, y, z = (tensors[int(place * len(tensors))] for place in places)
            try:
                result = self.step(kind, pick, int(pick * 7) % max(x.dim(), 1), number, (x, y, z))
            except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
                continue
            if result is not None and result.numel() < 5000:
                tensors.append(result)
            elif len(tensors) > 6:
                del tensors[len(self.inputs) + int(removed * (len(tensors) - len(self.inputs)))]
        return tensors[len(self.inputs):]

    @staticmethod
    def step(kind, pick, dim, number, tensors):
        x, y, z = tensors
        chosen = lambda options: options[int(pick * len(options))]  # noqa: E731
        if kind < 4:
            return chosen(UNARY)(x)
        if kind < 7:
            function = chosen(BINARY)
            return torch.where(x > 0, y, z) if function is torch.where else function(x, y)
        if kind == 7:
            return chosen([lambda: x * number, lambda: x + number, lambda: x.to(DTYPES[int(pick * 5)])])()
        if kind == 8:
            return chosen([torch.sum, torch.mean, torch.amax])(x, dim, keepdim=pick > 0.4)
        if kind == 9:
            return torch.softmax(x.float(), dim)
        if kind == 10:
            views = [lambda: x.transpose(dim, 0), lambda: x.unsqueeze(dim), lambda: x.flatten(), lambda: x.narrow(dim, 0, x.shape[dim] // 2)]
            return chosen(views)()
        if kind == 11:
            chosen([lambda: x.add_(y), lambda: x.mul_(number), lambda: x.copy_(y), lambda: x.zero_(), lambda: x.sub_(y)])()
        elif kind == 12:
            return chosen([lambda: x @ y, lambda: F.linear(x, y), lambda: torch.bmm(x, y)])()
        elif kind == 13:
            return chosen([lambda: x.cumsum(dim), lambda: x.sort(dim)[0], lambda: x.flip(dim), lambda: torch.cat([x, y], dim)])()
        elif kind == 14:
            return chosen([lambda: F.dropout(x, 0.5), lambda: torch.rand_like(x), lambda: torch.rand(x.shape)])()
        elif kind == 15:
            index = torch.arange(x.shape[dim])
            chosen([lambda: x.index_copy_(dim, index, y), lambda: x.index_add_(dim, index, x), lambda: x.index_fill_(dim, index[:1], 2)])()
        return None


def bits(tensors):
    return [(one.shape, one.stride(), one.dtype, one.double().nan_to_num(nan=12345.0).tolist()) for one in tensors]


@torch.no_grad()
def test_random_programs_leave_the_bits_of_eager_ones():
    cases, first = int(os.environ.get("THALWEG_CASES", 40)), int(os.environ.get("THALWEG_FIRST_CASE", 0))
    before = torch._core._capture_counters()["replays"]
    for seed in range(first, first + cases):
        program = Program(seed)
        runs = [torch.compile(program), torch.compile(program, mode="reduce-overhead")]
        for call in range(5):
            left = []
            for run in (program, *runs):
                given = program.given(call)
                left.append(bits([*run(*given), *given]))
            for place, found in enumerate(left[1:]):
                assert found == left[0], (seed, call, place, found, left[0])
    assert torch._core._capture_counters()["replays"] > before
