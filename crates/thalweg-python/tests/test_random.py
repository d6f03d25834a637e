"""Generators as objects, and complex numbers. The dtypes, values and errors that are asserted are also PyTorch's."""

import math

import thalweg as th
from support import close, raises


def test_generators():
    first, second = th.Generator().manual_seed(7), th.Generator().manual_seed(7)
    a, b = th.rand(5, generator=first), th.rand(5, generator=second)
    assert a.tolist() == b.tolist() != th.rand(5, generator=first).tolist()
    assert first.initial_seed() == 7 and th.Generator().initial_seed() == 67280421310721
    state = first.get_state()
    a = th.randn(3, generator=first).tolist()
    first.set_state(state)
    assert th.randn(3, generator=first).tolist() == a
    assert first.clone_state().get_state().tolist() == first.get_state().tolist()
    assert first.manual_seed(3) is first and first.manual_seed(-1).initial_seed() == 2 ** 64 - 1
    seed = first.seed()
    assert first.initial_seed() == seed
    with raises(ValueError, "Overflow when unpacking long"):
        first.manual_seed(2 ** 64)


def test_states_are_bytes():
    th.manual_seed(7)
    state = th.get_rng_state()
    assert state.dtype is th.uint8 and state.shape == (16,) and th.initial_seed() == 7
    drawn = th.rand(3).tolist()
    with th.random.fork_rng():
        th.manual_seed(8)
        assert th.initial_seed() == 8
    assert th.initial_seed() == 7
    th.default_generator.manual_seed(9)
    assert th.initial_seed() == 9
    th.set_rng_state(state)
    assert th.initial_seed() == 7 and th.rand(3).tolist() == drawn
    for kind, part, wrong in ((TypeError, "torch.ByteTensor", [1, 2]), (TypeError, "torch.ByteTensor", th.zeros(16)),
                              (RuntimeError, "wrong size", state[:8])):
        with raises(kind, part):
            th.Generator().set_state(wrong)


def test_ends_of_ranges():
    # The word of element 9905 is one whose uniform number is rounded to 1, so `rand` has 0 there.
    def drawn(draw):
        th.manual_seed(678)
        return draw()
    count, place = 16384, 9905
    assert drawn(lambda: th.rand(count))[place] == 0
    for dtype in (th.float16, th.bfloat16, th.float32, th.float64):
        assert drawn(lambda: th.empty(count, dtype=dtype).exponential_()).min() > 0
        assert drawn(lambda: th.empty(count, dtype=dtype).bernoulli_(1.0)).min() == 1
    assert drawn(lambda: th.empty(count).geometric_(0.5)).min() == 1
    # A weight of 0 over a waiting time of 0 would be NaN, which is the greatest.
    weights = th.zeros(count)
    weights[[3, 5]] = 1
    assert drawn(lambda: th.multinomial(weights, 1)).item() in (3, 5) and sorted(drawn(lambda: th.multinomial(weights, 2)).tolist()) == [3, 5]
    meta = weights.to("meta")
    assert th.multinomial(meta, 4).shape == (4,) and th.poisson(meta).shape == (count,)
    # 69,999 is none of bfloat16's numbers, and the nearest one is above it.
    assert th.empty(4000, dtype=th.bfloat16).random_(0, 70000).max() == 69632
    with raises(RuntimeError, "out of bounds for"):
        th.empty(4, dtype=th.float16).random_(0, 70000)
    assert sorted(th.randperm(256, dtype=th.uint8).tolist()) == list(range(256))
    for dtype, count in ((th.uint8, 257), (th.int8, 129), (th.float16, 2050)):
        with raises(RuntimeError, "n cannot be greater than"):
            th.randperm(count, dtype=dtype)


def test_draws_leave_the_default_generator():
    th.manual_seed(0)
    expected = th.rand(4).tolist()
    th.manual_seed(0)
    generator = th.Generator().manual_seed(0)
    x = th.ones(100)
    for draw in (lambda: th.randn(4, generator=generator), lambda: th.randint(9, (4,), generator=generator),
                 lambda: th.randperm(50, generator=generator), lambda: x.clone().normal_(generator=generator),
                 lambda: x.clone().uniform_(0, 2, generator=generator), lambda: th.bernoulli(x / 2, generator=generator),
                 lambda: th.multinomial(x, 3, generator=generator), lambda: x.clone().exponential_(generator=generator),
                 lambda: th.nn.init.xavier_uniform_(th.empty(3, 3), generator=generator)):
        generator.manual_seed(5)
        one = draw().tolist()
        two = draw().tolist()
        generator.manual_seed(5)
        assert draw().tolist() == one
        assert one != two
    assert th.rand(4).tolist() == expected


def test_generators_in_wrong_places():
    generator = th.Generator()
    with raises(TypeError):
        th.add(th.ones(1), 1, generator=generator)
    with raises(TypeError):
        th.rand(2, generator=3)


def test_order_of_a_loader():
    orders = []
    for _ in range(2):
        loader = th.utils.data.DataLoader(list(range(20)), batch_size=20, shuffle=True, generator=th.Generator().manual_seed(1))
        orders.append(next(iter(loader)).tolist())
    assert orders[0] == orders[1] and sorted(orders[0]) == list(range(20)) != orders[0]


def test_complex_elements():
    x = th.tensor([1, 2j, 3.5 - 1j])
    assert x.dtype is th.complex64 and x.is_complex() and x.dtype.is_complex and x.tolist() == [1, 2j, 3.5 - 1j]
    assert x[1].item() == 2j and isinstance(x[0].item(), complex) and complex(x[2]) == 3.5 - 1j and complex(th.tensor(2.0)) == 2
    assert x.imag.tolist() == [0, 2, -1] and x.real.tolist() == [1, 0, 3.5] and not th.ones(1).is_complex()
    assert th.tensor([[1j], [2]], dtype=th.complex128).tolist() == [[1j], [2]]
    assert th.tensor(1j).dtype is th.complex64 and th.zeros(1, dtype=complex).dtype is th.complex128
    assert th.zeros(1, dtype=float).dtype is th.float64 and th.cfloat is th.complex64 and th.cdouble is th.complex128
    assert bool(x[1]) and not bool(th.tensor(0j)) and f"{x[2]:.1f}" == "3.5-1.0j"
    assert float(x[0]) == 1.0
    with raises(RuntimeError, "value cannot be converted to type double without overflow"):
        float(x[1])
    with raises(RuntimeError, "imag is not implemented for tensors with non-complex dtypes"):
        th.ones(1).imag
    x[0] = 5j
    x[1:] = 1 + 1j
    assert x.tolist() == [5j, 1 + 1j, 1 + 1j]


def test_complex_operands():
    x = th.tensor([1.0, 2.0])
    for found, expected in ((x + 1j, [1 + 1j, 2 + 1j]), (1j + x, [1 + 1j, 2 + 1j]), (x - 1j, [1 - 1j, 2 - 1j]), (1j - x, [-1 + 1j, -2 + 1j]),
                            (x * 2j, [2j, 4j]), (2j * x, [2j, 4j]), (x / 1j, [-1j, -2j]), (2j / x, [2j, 1j]), (x.mul(1j), [1j, 2j]),
                            (x ** (1 + 0j), [1, 2]), (1j ** x, [1j, -1])):
        assert found.dtype is th.complex64, found
        for one, other in zip(found.tolist(), expected):
            assert abs(one - other) < 1e-6, (found, expected)
    assert (th.ones(2, dtype=th.float64) * 1j).dtype is th.complex128 and (th.ones(2, dtype=th.int64) * 1j).dtype is th.complex64
    assert (x == 1 + 0j).tolist() == [True, False] and (x != 1j).tolist() == [True, True]
    assert th.full((2,), 1j).tolist() == [1j, 1j] and th.zeros(2, dtype=th.complex64).fill_(3j).tolist() == [3j, 3j]
    y = th.tensor([1j, 2.0])
    y += 1j
    y *= 2
    assert y.tolist() == [4j, 4 + 2j]
    with raises(RuntimeError, "can't be cast to the desired output type"):
        x.add_(1j)


def test_gradients_of_complex_numbers():
    x = th.tensor([1.0 + 2j, -1j], requires_grad=True)
    (x * (2 - 1j)).abs().sum().backward()
    scale = math.sqrt(5)
    for one, other in zip(x.grad.tolist(), [(1 + 2j) / scale * scale / math.sqrt(5) * math.sqrt(5), -1j * scale]):
        close(abs(one), abs(other) if other.real == 0 else scale)


def test_many_draws_from_many_places():
    th.manual_seed(33)
    weights = th.randn(200_000).clamp(min=0) * 3e-5
    places = weights.multinomial(200_000, replacement=True)
    assert weights[places].min().item() > 0
    rows = th.tensor([[0.0, 1.0, 0.0, 3.0], [2.0, 0.0, 2.0, 0.0]])
    counts = th.nn.functional.one_hot(rows.multinomial(40_000, replacement=True), 4).sum(1) / 40_000
    assert (counts - rows / rows.sum(1, keepdim=True)).abs().max().item() < 0.02


def test_states_where_tensors_are_made_without_elements():
    before = th.get_rng_state()
    with th.device("meta"):
        state = th.get_rng_state()
        with th.random.fork_rng():
            th.manual_seed(5)
            assert th.rand(2).is_meta
        assert state.tolist() == before.tolist() == th.get_rng_state().tolist()
        th.set_rng_state(state)
        assert th.Generator(device="sim").manual_seed(3).get_state().tolist()[:2] == [3, 0]


def test_sobol_sequences():
    from thalweg.quasirandom import SobolEngine
    # The points are PyTorch's.
    engine = SobolEngine(2)
    assert engine.draw(5).tolist() == [[0.0, 0.0], [0.5, 0.5], [0.75, 0.25], [0.25, 0.75], [0.375, 0.375]]
    assert engine.fast_forward(63).draw(1, dtype=th.float64).tolist() == [[0.3984375, 0.0234375]] and engine.num_generated == 69
    assert engine.reset().draw(1).tolist() == [[0.0, 0.0]]
    for dimension, total in ((7, 210.7109375), (40, 1199.015625), (1024, 30718.640625)):
        engine = SobolEngine(dimension)
        engine.draw(5)
        assert engine.draw(60).double().sum().item() == total
    # In each dimension every interval has as many points, also if they are scrambled.
    scrambled = SobolEngine(5, scramble=True, seed=3)
    points = scrambled.draw_base2(6)
    assert (points * 64).floor().sort(0).values.tolist() == [[float(row)] * 5 for row in range(64)] and repr(scrambled).endswith("scramble=True, seed=3)")
    assert points.tolist() == SobolEngine(5, scramble=True, seed=3).draw(64).tolist()
    with raises(ValueError, "balance properties"):
        SobolEngine(1).fast_forward(1).draw_base2(2)
