"""Fused Adam and AdamW inside PyTorch, for `kernels.py --check` and `--time`."""

import torch
import thalweg_torch

aten = torch.ops.aten
OPERATORS = ["_fused_adam_", "_fused_adamw_"]


def gpt2_sizes(features=768, layers=12, vocabulary=50304, tokens=1024):
    """Returns the sizes of GPT-2's parameters."""
    block = [features] * 4 + [3 * features * features, 3 * features, features * features, features]
    block += [4 * features * features, 4 * features, 4 * features * features, features]
    return [vocabulary * features, tokens * features] + layers * block + [features] * 2


class Lists:
    """A call of a fused optimizer: parameters, gradients, moments, numbers of steps."""

    def __init__(self, operator, dtype, sizes, device):
        self.operator, self.dtype, self.sizes, self.device = operator, dtype, sizes, device
        generator = torch.Generator(device).manual_seed(1)

        def numbers(size):
            return torch.randn(size, generator=generator, device=device).to(dtype)

        self.parameters, self.gradients, self.firsts = ([numbers(size) for size in sizes] for _ in range(3))
        self.seconds = [numbers(size).square() for size in sizes]
        self.steps = [torch.full((), 4.0, device=device) for _ in sizes]

    def call(self):
        getattr(aten, self.operator)(
            self.parameters, self.gradients, self.firsts, self.seconds, [], self.steps, lr=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8,
            amsgrad=False, maximize=False)

    def elements(self):
        return sum(self.sizes)

    def bytes(self):
        """Four tensors are read and three written."""
        return 7 * self.elements() * self.parameters[0].element_size()


def cases():
    """Operator, dtype, the name of a list, sizes."""
    lists = [("GPT-2", gpt2_sizes())]
    lists += [(f"{1 << count} of {1 << size}", [1 << size] * (1 << count)) for count, size in ((0, 26), (4, 22), (8, 18), (10, 16), (11, 13), (12, 11), (0, 23), (7, 16), (10, 13))]
    for dtype in (torch.float32, torch.bfloat16):
        for name, sizes in lists:
            yield "_fused_adamw_", dtype, name, sizes
    for name, sizes in lists[:4]:
        yield "_fused_adam_", torch.float32, name, sizes


# ---- Results --------------------------------------------------------------------------------------------------------------


def parameters_of(device, dtype, exact):
    """Returns parameters of several layouts, more than one launch takes, whose values are exact in float64 as well."""
    generator = torch.Generator().manual_seed(2)
    sizes = [(3,), (64, 33), (4096,), (5000,), (0, 3), (2, 6, 5, 5)] + [(7,)] * 90
    made = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    made[5] = made[5].contiguous(memory_format=torch.channels_last)
    # A transposed parameter, whose gradient and states have the same layout.
    made.append(torch.randn(12, 8, generator=generator).to(dtype).t())
    return [torch.nn.Parameter(part.to(device, torch.float64 if exact else dtype)) for part in made]


def run(make, device, dtype, exact=False, found_inf=0.0, scale=None, steps=3):
    """Parameters, gradients and states after some steps."""
    parameters = parameters_of(device, dtype, exact)
    optimizer = make(parameters, not exact)
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=generator).to(dtype)
            parameter.grad = torch.empty_like(parameter).copy_(gradient)
        if exact and scale is not None:
            for parameter in parameters:
                parameter.grad /= scale
        if scale is not None and not exact:
            optimizer.grad_scale = torch.full((), scale, device=device)
            optimizer.found_inf = torch.full((), found_inf if step == 1 else 0.0, device=device)
        if not (exact and found_inf and step == 1):
            optimizer.step()
    states = [value for state in optimizer.state.values() for name, value in sorted(state.items())]
    # Values that were not unscaled because they are not finite are not gradients.
    return [part.detach() for part in parameters] + [part.grad for part in parameters] + states


def check(device):
    """Steps of PyTorch's optimizers against float64, with and without kernels."""
    options = [dict(), dict(weight_decay=0.3, amsgrad=True), dict(maximize=True), dict(lr="tensor"), dict(weight_decay=0.0, betas=(0.5, 0.7), eps=1e-3)]
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for option in options:
                for scale, found_inf in ((None, 0.0), (8.0, 0.0), (8.0, 1.0)):

                    def make(parameters, fused):
                        chosen = dict(lr=0.01) | option
                        if chosen["lr"] == "tensor":
                            chosen["lr"] = torch.tensor(0.01, device=device) if fused else 0.01
                        return kind(parameters, fused=fused, **chosen)

                    thalweg_torch.disable_kernels()
                    theirs = run(make, device, dtype, scale=scale, found_inf=found_inf)
                    exact = run(make, device, dtype, exact=True, scale=scale, found_inf=found_inf)
                    thalweg_torch.enable_kernels(everywhere=True, device=device)
                    before = calls()
                    ours = run(make, device, dtype, scale=scale, found_inf=found_inf)
                    assert calls() == before + 3, (kind, dtype, option, calls(), before)
                    compare((kind.__name__, dtype, option, scale, found_inf), theirs, ours, exact, dtype)
    if device == "cuda":
        check_capture()
    check_passed_on(device)
    print("ok fused Adam and AdamW")


def calls():
    return sum(kernel.taken for kernel in thalweg_torch.kernels() if "_fused_adam" in kernel.operator)


def compare(what, theirs, ours, exact, dtype):
    eps = torch.finfo(dtype).eps
    for place, (their, our, reference) in enumerate(zip(theirs, ours, exact)):
        assert our.shape == their.shape and our.stride() == their.stride() and our.dtype == their.dtype, what
        if our.numel() == 0:
            continue
        size = reference.double().abs() + reference.double().abs().mean()
        error, limit = ((part.double() - reference.double()).abs().div(size).nan_to_num().max().item() for part in (our, their))
        assert error <= 2 * limit + 8 * eps, f"{what}, tensor {place}: error {error:.2e}, PyTorch's {limit:.2e}"


def check_passed_on(device):
    """Checks that calls with tensors that do not fit together are passed on to PyTorch, with its exceptions and its
    results."""
    thalweg_torch.enable_kernels(everywhere=True, device=device)
    before = calls()
    parameter = torch.zeros(3, 4, device=device, dtype=torch.float64)
    lists = [[parameter.clone()] for _ in range(4)]
    steps = [torch.ones((), device=device)]
    numbers = dict(lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)
    aten._fused_adamw_(*lists, [], steps, **numbers)
    outcomes = []
    for enabled in (True, False):
        if not enabled:
            thalweg_torch.disable_kernels()
        lists = [[torch.zeros(3, 4, device=device)] for _ in range(4)]
        lists[1][0] = lists[1][0].half()
        try:
            outcomes.append(aten._fused_adamw_(*lists, [], steps, **numbers))
        except Exception as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1], outcomes
    thalweg_torch.enable_kernels(everywhere=True, device=device)
    assert calls() == before


def check_capture():
    """A captured step takes the learning rate and the numbers of steps that the device has at each replay."""
    results = []
    for enabled in (False, True):
        thalweg_torch.disable_kernels()
        if enabled:
            thalweg_torch.enable_kernels(everywhere=True)
        parameter = torch.nn.Parameter(torch.ones(1000, device="cuda"))
        rate = torch.tensor(0.1, device="cuda")
        optimizer = torch.optim.AdamW([parameter], lr=rate, fused=True, capturable=True)
        parameter.grad = torch.ones_like(parameter)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            optimizer.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        before = calls()
        with torch.cuda.graph(graph):
            optimizer.step()
        assert calls() == before + enabled
        for step in range(4):
            rate.fill_(0.1 / (step + 1))
            parameter.grad.mul_(-0.5)
            graph.replay()
        results.append(parameter.detach().clone())
    assert torch.allclose(*results, rtol=1e-5), results
