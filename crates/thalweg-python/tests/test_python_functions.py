"""Functions whose Python arguments or results are not those of one operator. Expected values are PyTorch's, or follow from a
definition."""

import collections
import inspect
import warnings

import thalweg as th
import thalweg.nn.functional as F
import thalweg.signal.windows as windows
from support import close, raises


def test_tensors_of_sequences_and_their_dtypes():
    assert th.tensor(range(3)).tolist() == [0, 1, 2] and th.tensor(collections.deque([1.5, 2])).tolist() == [1.5, 2.0]
    assert th.tensor([th.tensor(1, dtype=th.int8)]).dtype is th.int8
    assert th.tensor([1, th.tensor(2.0, dtype=th.float64)]).dtype is th.float64
    assert th.tensor([th.ones(1, 1)]).shape == (1,)
    for wrong, kind in (("a", TypeError), (b"ab", TypeError), (["a"], ValueError), ([None], RuntimeError), ({1}, RuntimeError),
                        ([th.ones(2)], ValueError)):
        with raises(kind):
            th.tensor(wrong)


def test_arrays_of_numpy():
    try:
        import numpy as np
    except ImportError:
        return "NumPy is not installed"
    assert th.tensor([np.ones(2), np.ones(2)]).dtype is th.float64 and th.tensor([np.ones(2, np.int8), [1, 2]]).dtype is th.int64
    assert th.tensor([np.float16(1.0)]).dtype is th.float16 and th.tensor([np.bool_(True)]).dtype is th.bool
    product = th.ones(2) * np.ones(2)
    assert isinstance(product, th.Tensor) and product.dtype is th.float64
    assert isinstance(np.sin(th.ones(2)), th.Tensor)
    with raises(TypeError):
        np.ones(2) * th.ones(2)
    assert (th.tensor([1, 2]) == np.array([1, 3])).tolist() == [True, False] and (th.tensor([1, 2]) != np.array([1, 3])).tolist() == [False, True]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert th.arange(8).reshape(2, 2, 2)[[np.array([0, 1]), np.array([0, 1])]].tolist() == [[0, 1], [6, 7]]


def test_sequences_as_subscripts():
    x = th.arange(9).reshape(3, 3)
    assert x[range(2)].tolist() == [[0, 1, 2], [3, 4, 5]] and x[[0, 1], range(2)].tolist() == [0, 4]
    assert x[range(0)].shape == (0, 3) and x[collections.deque([2])].tolist() == [[6, 7, 8]]
    x[range(2), [0, 1]] = 7
    assert x.tolist() == [[7, 1, 2], [3, 7, 5], [6, 7, 8]]


def test_numbers_stand_for_tensors():
    truths = th.tensor([True, False])
    assert (truths * True).tolist() == [True, False] and (True + truths).dtype is th.bool
    assert th.bitwise_and(5, th.tensor([4, 3])).tolist() == [4, 1] and th.remainder(5, th.tensor([3, 4])).tolist() == [2, 1]
    assert (5 % th.tensor(3, dtype=th.int8)).dtype is th.int8
    close(th.tensor([2.0]).xlogy(3), [2.19722], 1e-5)
    close(th.special.chebyshev_polynomial_t(th.tensor([0.5]), 2), [-0.5])


def test_parts_by_number_and_by_place():
    x = th.arange(6).reshape(2, 3)
    assert [part.tolist() for part in x.vsplit(2)] == [[[0, 1, 2]], [[3, 4, 5]]]
    assert [part.shape for part in x.hsplit([1])] == [(2, 1), (2, 2)]
    assert [tuple(part.shape) for part in th.split(tensor=x, split_size_or_sections=[1, 2], dim=1)] == [(2, 1), (2, 2)]


def test_results_are_what_was_asked_for():
    x = th.tensor([1, 1, 2, 2, 3])
    assert x.unique_consecutive().tolist() == [1, 2, 3]
    values, counts = th.unique_consecutive(x, return_counts=True)
    assert counts.tolist() == [2, 2, 1]
    rows, columns = th.tensor([[0, 1], [2, 0]]).nonzero(as_tuple=True)
    assert rows.tolist() == [0, 1] and columns.tolist() == [1, 0]
    assert th.nonzero(th.tensor(3), as_tuple=True)[0].tolist() == [0]
    assert type(th.var_mean(th.ones(2))) is tuple
    assert repr(th.sort(th.tensor([1]))).startswith("torch.return_types.sort(\nvalues=")
    assert th.repeat_interleave(th.tensor([1, 2])).tolist() == [0, 1, 1]


def test_norms():
    x = th.tensor([[3.0, 4.0], [0.0, 0.0]])
    close(x.norm("fro"), 5.0)
    close(x.norm(dim=-1, keepdim=True), [[5.0], [0.0]])
    close(x.norm(p="nuc"), 5.0)
    assert x.norm(dtype=th.float64).dtype is th.float64
    with raises(RuntimeError):
        x.norm("two")


def test_transforms_are_centred():
    x = th.arange(64.0)
    window = th.hann_window(16)
    frames = x.stft(16, 4, window=window, return_complex=True)
    assert frames.shape == (9, 17)
    close(th.istft(frames, 16, 4, window=window, length=64), x.tolist(), 1e-3)


def test_sums_of_products_by_numbers():
    a, b = th.arange(6.0).reshape(2, 3), th.arange(6.0).reshape(3, 2)
    assert th.einsum(a, [0, 1], b, [1, 2], [0, 2]).tolist() == (a @ b).tolist()
    assert th.einsum(a, [..., 0]).tolist() == th.einsum("...a->...a", a).tolist()
    assert th.chain_matmul(a, b, a).tolist() == (a @ b @ a).tolist()
    assert th.tensordot(a, b, dims=(1, 0)).tolist() == (a @ b).tolist()


def test_windows():
    close(th.hann_window(4), [0.0, 0.5, 1.0, 0.5])
    close(windows.hann(4), [0.0, 0.75, 0.75, 0.0])
    close(th.kaiser_window(4), [5.2773e-05, 0.21566, 1.0, 0.21566], 1e-4)
    close(windows.gaussian(3, std=0.9), [0.53941, 1.0, 0.53941], 1e-4)
    assert th.blackman_window(1).tolist() == [1.0] and windows.nuttall(0).shape == (0,)


def test_products_in_a_dtype():
    x = th.full((2, 2), 300.0, dtype=th.float16)
    assert th.mm(x, x, out_dtype=th.float32).tolist() == [[180000.0] * 2] * 2
    assert th.bmm(x[None], x[None], out_dtype=th.float32).dtype is th.float32
    assert th.addmm(th.ones(2, 2), x, x, out_dtype=th.float32, beta=2).tolist() == [[180002.0] * 2] * 2
    with raises(RuntimeError, "out_dtype"):
        th.mm(x, x, th.float64)


def test_errors_of_linear_algebra():
    with raises(th.linalg.LinAlgError, "singular"):
        th.linalg.inv(th.zeros(2, 2))
    assert issubclass(th.linalg.LinAlgError, RuntimeError)


def test_few_singular_values():
    th.manual_seed(0)
    x = th.randn(8, 3) @ th.randn(3, 6)
    for U, S, V in (th.svd_lowrank(x, 3), th.svd_lowrank(x.t(), 3)):
        close(S, th.linalg.svdvals(x)[:3].tolist(), 1e-3)
    U, S, V = th.svd_lowrank(x, 3)
    close(U * S @ V.t(), x.tolist(), 1e-3)


def test_grids_of_matrices():
    theta = th.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.5]]])
    close(F.affine_grid(theta, [1, 1, 2, 2], align_corners=True), [[[[-1.0, -0.5], [1.0, -0.5]], [[-1.0, 1.5], [1.0, 1.5]]]])
    close(F.affine_grid(theta, [1, 1, 2, 2], align_corners=False)[0, 0, 0], [-0.5, 0.0])


def test_projected_states():
    net = th.nn.LSTM(3, 4, num_layers=2, bidirectional=True, proj_size=2)
    assert net.weight_hr_l0.shape == (2, 4) and net.weight_hh_l1.shape == (16, 2) and net.weight_ih_l1.shape == (16, 4)
    output, (hidden, cell) = net(th.randn(5, 2, 3))
    assert output.shape == (5, 2, 4) and hidden.shape == (4, 2, 2) and cell.shape == (4, 2, 4)


def test_functions_have_signatures():
    assert list(inspect.signature(th.linalg.inv).parameters) == ["A"]
    assert str(inspect.signature(th.Tensor.transpose)) == "(self, /, dim0, dim1)"
    assert list(inspect.signature(th.nn.LeakyReLU).parameters) == ["negative_slope", "inplace"]
    assert th.ceil_(input=th.tensor([0.5])).tolist() == [1.0]


def test_types_by_name():
    x = th.ones(2)
    assert x.type("torch.DoubleTensor").dtype is th.float64 and x.type(th.LongTensor).dtype is th.int64
    with raises(ValueError, "invalid type"):
        x.type("torch.NothingTensor")


def test_histograms_of_several_dimensions():
    points = th.tensor([[0.0, 0.0], [1.0, 0.5], [2.0, 1.0], [0.5, 1.0], [9.0, 0.0]])
    counts, (rows, columns) = th.histogramdd(points, [2, 2], range=[0.0, 2.0, 0.0, 1.0])
    # The upper edge is in the last bin; a point outside is in none.
    assert counts.tolist() == [[1.0, 1.0], [0.0, 2.0]] and rows.tolist() == [0.0, 1.0, 2.0] and columns.tolist() == [0.0, 0.5, 1.0]
    edges = [th.tensor([0.0, 1.5, 10.0]), th.tensor([0.0, 1.0])]
    density = th.histogramdd(points, edges, weight=th.tensor([1.0, 2.0, 3.0, 4.0, 6.0]), density=True).hist
    close(density, [[7 / 16 / 1.5], [9 / 16 / 8.5]], 1e-6)


def test_extreme_eigenvalues():
    factor = (th.arange(144, dtype=th.float64) * 0.7).sin().reshape(12, 12)
    matrix, weight = factor @ factor.T, th.linspace(1, 2, 12, dtype=th.float64).diag()
    th.manual_seed(0)
    for options, expected in (({}, th.linalg.eigvalsh(matrix).flip(0)), ({"largest": False}, th.linalg.eigvalsh(matrix)),
                              ({"B": weight}, th.linalg.eigvalsh(weight.rsqrt().nan_to_num(0, 0, 0) @ matrix @ weight.rsqrt().nan_to_num(0, 0, 0)).flip(0))):
        values, vectors = th.lobpcg(matrix, k=2, niter=200, tol=1e-10, **options)
        close(values, expected[:2].tolist(), 1e-7)
        assert (matrix @ vectors - options.get("B", th.eye(12, dtype=th.float64)) @ vectors * values).abs().max() < 1e-5


def test_blocks_of_a_mask_are_seen():
    from thalweg.nn.attention import flex_attention as flex
    x = th.arange(32).sin().reshape(1, 1, 8, 4)
    counts, places = th.tensor([[[1, 2]]]), th.tensor([[[[0, 1], [1, 0]]]])
    causal = lambda batch, head, query, key: query >= key
    found = flex.flex_attention(x, x, x, block_mask=flex.BlockMask.from_kv_blocks(counts, places, BLOCK_SIZE=4, mask_mod=causal))
    close(found, F.scaled_dot_product_attention(x, x, x, is_causal=True).tolist(), 1e-5)
    seen = th.ones(8, 8).bool()
    seen[:4, 4:] = False
    full = flex.BlockMask.from_kv_blocks(counts * 0, places, counts, places, BLOCK_SIZE=4)
    close(flex.flex_attention(x, x, x, block_mask=full), F.scaled_dot_product_attention(x, x, x, seen).tolist(), 1e-5)


def test_losses_take_their_tensors_by_name():
    a, b = th.tensor([[1.0, 2.0], [0.0, 1.0]]), th.tensor([[0.1, 1.1], [1.1, 2.1]])
    assert th.nn.TripletMarginLoss()(anchor=a, positive=b, negative=a * 2).item() == F.triplet_margin_loss(a, b, a * 2).item()
    assert th.nn.GaussianNLLLoss()(a, target=b, var=a * a + 1).item() == F.gaussian_nll_loss(a, b, a * a + 1).item()
    with raises(TypeError, "missing 1 required positional argument: 'negative'"):
        th.nn.TripletMarginLoss()(a, b)


def test_the_default_dtype_is_not_printed():
    th.set_default_dtype(th.float64)
    try:
        shown = [repr(th.ones(1)), repr(th.ones(1, dtype=th.float32)), repr(th.ones(1) + 0j), repr(th.ones(1, dtype=th.complex64))]
    finally:
        th.set_default_dtype(th.float32)
    assert ["dtype" in text for text in shown] == [False, True, False, True]


def test_diagonals_of_sparse_matrices():
    rows = th.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    made = th.sparse.spdiags(rows, th.tensor([-1, 2]), (4, 5)).to_dense()
    assert made.tolist() == [[0, 0, 7, 0, 0], [1, 0, 0, 8, 0], [0, 2, 0, 0, 0], [0, 0, 3, 0, 0]]
    former = th.sparse.FloatTensor(th.tensor([[0, 1], [2, 0]]), th.tensor([3.0, 4.0]), th.Size([2, 3]))
    assert former.to_dense().tolist() == [[0, 0, 3], [4, 0, 0]]
