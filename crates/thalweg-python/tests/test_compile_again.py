"""Saved results that a compiled function computes again, and what remains of a compiled call that failed. Results of 1 MiB are computed again."""

import thalweg as torch
import thalweg.nn.functional as F
from support import raises

ROWS, TERMS = 520, 8


def gradients(function, compiled, between=lambda x: None):
    """Returns the gradients of the inputs of a function, a large and two narrow ones, with work between the passes."""
    torch.manual_seed(5)
    shapes = (ROWS, ROWS), (ROWS, TERMS), (TERMS, ROWS)
    inputs = [(torch.randn(shape) / 4).requires_grad_() for shape in shapes]
    result = (torch.compile(function) if compiled else function)(*inputs)
    between(inputs[0])
    result.sum().backward()
    return [one.grad for one in inputs]


def agree(function, **options):
    eager, compiled = (gradients(function, compiled, **options) for compiled in (False, True))
    assert all(one is other is None or torch.equal(one, other) for one, other in zip(eager, compiled))


def test_a_result_that_a_kernel_completes_is_not_computed_again_by_its_first_step():
    def with_x_saved(function):
        def saving(x, a, b):
            square = x * x
            return F.logsigmoid(function(x, a, b)) @ a + square @ a
        return saving

    # The sum starts as a copy of x, and a product is added to it.
    agree(with_x_saved(torch.addmm))
    agree(with_x_saved(lambda x, a, b: x.index_add(0, torch.tensor([1, 1]), (a @ b)[:2])))
    agree(with_x_saved(lambda x, a, b: torch.cat([x[:500] * 2, (a @ b)[500:]])))


def test_results_are_computed_again_before_a_write_changes_their_inputs():
    def function(x, a, b):
        z = torch.fmod(x, x.detach().abs() + 1)
        saving_x = x.addcmul(x, x)
        result = F.linear(b, z) @ z @ a
        del saving_x
        return result

    def write(x):
        with torch.no_grad():
            x[0].add_(1)

    agree(function, between=write)


def test_a_failed_call_leaves_no_failure_to_later_ones():
    torch.cuda.empty_cache()
    layers = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(6)])
    function = torch.compile(layers)
    small, large = torch.ones(16, 64), torch.ones(16384, 64)
    expected = function(small).sum().item()
    total = torch.cuda.get_device_properties(0).total_memory
    failures = 0
    for mebibytes in (1, 3, 5, 9, 13):
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + mebibytes * 2**20) / total)
        try:
            function(large).sum().backward()
        except torch.OutOfMemoryError:
            failures += 1
        torch.cuda.set_per_process_memory_fraction(1.0)
        for _ in range(3):
            loss = function(small).sum()
            loss.backward()
            assert loss.item() == expected
    assert failures >= 3


def test_a_result_that_was_lost_is_not_read():
    total, kept = torch.cuda.get_device_properties(0).total_memory, []

    @torch.compile
    def function(x):
        kept.append(x + 1)
        return kept[0] * 2

    @torch.compile
    def later(x):
        return x * 3

    x = torch.ones(1 << 20)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + (1 << 20)) / total)
    try:
        with raises(torch.OutOfMemoryError):
            function(x)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    with raises(torch.OutOfMemoryError):
        later(kept[0])
    assert later(x)[:2].tolist() == [3.0, 3.0]
