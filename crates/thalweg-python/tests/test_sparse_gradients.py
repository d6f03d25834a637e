"""Sparse gradients of tables, and the optimizers that step by them, against the same table with dense gradients."""

import copy
import io

import thalweg as th
from support import close, raises
from thalweg import nn
from thalweg.optim import SGD, Adagrad, Adam, AdamW, RMSprop, SparseAdam

F = nn.functional
INDICES = th.tensor([[0, 2, 3], [2, 1, 2]])


def tables(**options):
    th.manual_seed(3)
    dense = nn.Embedding(6, 4, padding_idx=1, **options)
    sparse = nn.Embedding(6, 4, padding_idx=1, sparse=True, **options)
    sparse.load_state_dict(dense.state_dict())
    return dense, sparse


def loss_of(table, scale=1.0):
    rows = table(INDICES)
    return (rows * rows.detach().sin() * scale).sum()


def test_gradients_are_the_rows_that_were_read():
    dense, sparse = tables()
    for table in (dense, sparse):
        loss_of(table).backward()
    gradient = sparse.weight.grad
    assert gradient.is_sparse and gradient is sparse.weight.grad and not gradient.is_coalesced() and gradient.shape == (6, 4)
    assert gradient._indices().tolist() == [[0, 2, 3, 2, 2]] and gradient._values().shape == (5, 4) and not gradient.requires_grad
    close(gradient.to_dense(), dense.weight.grad.tolist())
    assert gradient.coalesce().indices().tolist() == [[0, 2, 3]]
    for table in (dense, sparse):
        loss_of(table, 2.0).backward()
    assert sparse.weight.grad.is_sparse
    close(sparse.weight.grad.to_dense(), dense.weight.grad.tolist())
    # With a dense gradient the sum is dense.
    for table in (dense, sparse):
        (table.weight * table.weight).sum().backward()
    assert not sparse.weight.grad.is_sparse
    close(sparse.weight.grad, dense.weight.grad.tolist())


def test_gradients_reach_operators_as_dense_ones():
    weight = th.arange(8.0).view(4, 2).requires_grad_()
    seen = []
    weight.register_hook(lambda gradient: seen.append(gradient.is_sparse))
    F.embedding(th.tensor([1, 3, 1]), weight * 3, sparse=True).sum().backward()
    assert weight.grad.tolist() == [[0.0, 0.0], [6.0, 6.0], [0.0, 0.0], [3.0, 3.0]] and seen == [False]
    gradient, = th.autograd.grad(F.embedding(th.tensor([1, 3, 1]), weight, sparse=True).sum(), weight)
    assert gradient.is_sparse and seen == [False, True]
    with raises(RuntimeError, "scale_grad_by_freq not supported with sparse gradients"):
        F.embedding(th.tensor([1]), weight, scale_grad_by_freq=True, sparse=True)


def test_bags_have_sparse_gradients():
    th.manual_seed(0)
    weight, factors = th.randn(6, 4), th.rand(7)
    indices, offsets = th.tensor([0, 2, 1, 2, 5, 0, 3]), th.tensor([0, 3, 3, 5])
    share = th.randn(4, 4)
    for mode in ("sum", "mean"):
        for padding in (None, 2):
            for per_sample in (None, factors) if mode == "sum" else (None,):
                found = []
                for sparse in (False, True):
                    table = weight.clone().requires_grad_()
                    scales = None if per_sample is None else per_sample.clone().requires_grad_()
                    result = F.embedding_bag(indices, table, offsets, mode=mode, sparse=sparse, per_sample_weights=scales, padding_idx=padding)
                    (result * share).sum().backward()
                    found.append([result, table.grad.to_dense() if sparse else table.grad, *([] if scales is None else [scales.grad])])
                    assert table.grad.is_sparse == sparse
                for one, other in zip(*found):
                    close(one, other.tolist(), 1e-5)
    bag = nn.EmbeddingBag(6, 4, sparse=True)
    bag(th.tensor([[0, 1], [2, 2]])).sum().backward()
    assert bag.weight.grad.is_sparse
    with raises(ValueError, "max mode does not support sparse weights"):
        F.embedding_bag(indices, weight.clone().requires_grad_(), offsets, mode="max", sparse=True)


def test_optimizers_step_by_sparse_gradients():
    def net(sparse):
        dense, own = tables()
        return nn.Sequential(own if sparse else dense, nn.Flatten(), nn.Linear(12, 2, bias=False))
    cases = [(SGD, {"lr": 0.1}), (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}), (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
             (Adagrad, {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2})]
    for kind, options in cases:
        results = []
        for sparse in (False, True):
            th.manual_seed(5)
            own = net(sparse)
            with th.no_grad():
                own[2].weight.copy_(th.arange(24.0).view(2, 12).cos())
            optimizer = kind(own.parameters(), **options)
            for step in range(3):
                optimizer.zero_grad()
                own(INDICES).tanh().sum().backward()
                optimizer.step()
                if step == 1:
                    # States can be saved, loaded and copied.
                    file = io.BytesIO()
                    th.save(optimizer.state_dict(), file)
                    file.seek(0)
                    state = th.load(file, weights_only=False)
                    optimizer = kind(own.parameters(), **options)
                    optimizer.load_state_dict(copy.deepcopy(state))
            results.append([parameter.detach().tolist() for parameter in own.parameters()])
        for one, other in zip(*results):
            close(th.tensor(one), other, 1e-5)


def test_adam_of_rows():
    dense, sparse = tables()
    optimizers = [SparseAdam(table.parameters(), lr=0.1) for table in (dense, sparse)]
    for _ in range(3):
        for table, optimizer in zip((dense, sparse), optimizers):
            optimizer.zero_grad(set_to_none=False)
            loss_of(table).backward()
            optimizer.step()
    close(sparse.weight, dense.weight.tolist(), 1e-5)
    assert optimizers[1].state[sparse.weight]["exp_avg"].shape == (6, 4)


def test_what_takes_no_sparse_gradient_says_so():
    _, sparse = tables()
    loss_of(sparse).backward()
    for kind, text in ((Adam, "Adam does not support sparse gradients, please consider SparseAdam instead"), (AdamW, "consider SparseAdam"),
                       (RMSprop, "RMSprop does not support sparse gradients"), (th.optim.Adafactor, "Adafactor does not support")):
        with raises(RuntimeError, text):
            kind(sparse.parameters()).step()
    with raises(RuntimeError, "weight_decay option is not compatible with sparse gradients"):
        Adagrad(sparse.parameters(), weight_decay=0.1).step()
    with raises(NotImplementedError, "linalg_vector_norm of sparse tensors is left out"):
        nn.utils.clip_grad_norm_(sparse.parameters(), 1.0)
    sparse.weight.grad.zero_()
    assert sparse.weight.grad._nnz() == 0


def test_each_leaf_keeps_its_own_gradient():
    class Twice(th.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, gradient):
            found = th.sparse_coo_tensor(th.tensor([[0, 2]]), gradient[[0, 2]], gradient.shape)
            return found, found
    x, y = th.ones(3, 2, requires_grad=True), th.ones(3, 2, requires_grad=True)
    Twice.apply(x, y).sum().backward()
    held = x.grad
    F.embedding(th.tensor([1]), x, sparse=True).sum().backward()
    # The gradient that a program holds is added to, and the other leaf's is not.
    assert held is x.grad and held.to_dense().tolist() == [[1.0, 1.0]] * 3 and y.grad.to_dense().tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    file = io.BytesIO()
    th.save({"gradient": x.grad}, file)
    file.seek(0)
    th.testing.assert_close(th.load(file)["gradient"], x.grad)
    with raises(AssertionError, "The number of specified values in sparse COO tensors does not match: 3 != 2"):
        th.testing.assert_close(x.grad, y.grad)


def test_a_leaf_with_several_values_of_an_index():
    values = th.tensor([1.0, 2.0, 4.0])
    leaf = th.sparse_coo_tensor([[2, 0, 2]], values, (3,), requires_grad=True)
    (leaf.to_dense() * th.tensor([3.0, 5.0, 7.0])).sum().backward()
    assert not values.requires_grad and leaf.grad.to_dense().tolist() == [3, 0, 7]
    given = values.clone().requires_grad_()
    (th.sparse_coo_tensor([[2, 0, 2]], given, (3,)).to_dense() * th.tensor([3.0, 5.0, 7.0])).sum().backward()
    assert given.grad.tolist() == [7, 3, 7]
    empty = th.sparse_coo_tensor(th.zeros(1, 0), th.zeros(0), (3,), requires_grad=True)
    empty.to_dense().sum().backward()
    assert empty.is_coalesced() and empty.grad.to_dense().tolist() == [0, 0, 0]


def test_slices_and_sums_that_stay_sparse():
    x = th.sparse_coo_tensor([[1, 0, 1], [2, 0, 1]], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], (2, 3, 2))
    for found, wanted in ((x[1], x.to_dense()[1]), (x.select(1, -1), x.to_dense().select(1, -1)), (x.select(2, 0), x.to_dense().select(2, 0)),
                          (th.sparse.sum(x, 2), x.to_dense().sum(2)), (th.sparse.sum(x, (1, 2)), x.to_dense().sum((1, 2)))):
        assert found.is_sparse and found.to_dense().tolist() == wanted.tolist()
    for found, wanted in ((x.permute(1, 0, 2), x.to_dense().permute(1, 0, 2)), (x.log1p(), x.to_dense().log1p()), (th.zeros_like(x), x.to_dense() * 0),
                          (th.zeros_like(x).copy_(x), x.to_dense()), (x.isnan(), x.to_dense().isnan())):
        assert found.is_sparse and th.equal(found.to_dense(), wanted)
    with raises(RuntimeError, "between sparse and dense dimensions"):
        x.permute(2, 1, 0)
    assert not th.sparse.sum(x, (0, 1)).is_sparse and not x[1][2].is_sparse and x[1][2].tolist() == [1, 2]
    with raises(IndexError, "out of range"):
        x[2]
    with raises(RuntimeError, "sparse_dim()!=2"):
        th.ones(1, 2, 3).to_sparse_csr()
