"""Nested tensors, against the same functions of each sample."""

import copy

import thalweg as th
from support import close, raises
from thalweg import nn
from thalweg.nested import as_nested_tensor, masked_select, narrow, nested_tensor, nested_tensor_from_jagged, to_padded_tensor

F = nn.functional


def samples(*extents, width=6):
    return [(th.arange(float(extent * width)) + extent).sin().view(extent, width) for extent in extents]


def test_constructors_and_parts():
    x, y = samples(2, 4, width=3)
    nt = nested_tensor([x, y], layout=th.jagged)
    assert nt.is_nested and not x.is_nested and nt.layout is th.jagged and nt.dim() == 3 and nt.size(0) == 2 and nt.size(2) == 3 and nt.numel() == 18
    assert str(nt.shape).startswith("torch.Size([2, j") and nt.offsets().tolist() == [0, 2, 6] and nt.values().shape == (6, 3) and len(nt) == 2
    assert repr(nt).startswith("NestedTensor(size=(2, j") and nt.dtype is th.float32 and nt.device == x.device
    assert [part.tolist() for part in nt.unbind()] == [x.tolist(), y.tolist()] and nt[1].tolist() == y.tolist() and nt.select(0, 0).tolist() == x.tolist()
    padded = to_padded_tensor(nt, -1.0)
    assert padded[1].tolist() == y.tolist() and padded[0, :2].tolist() == x.tolist() and padded[0, 2:].tolist() == [[-1.0] * 3] * 2
    assert nt.to_padded_tensor(0.0, (2, 5, 4)).shape == (2, 5, 4)
    again = nested_tensor_from_jagged(nt.values(), nt.offsets())
    assert again.unbind()[0].tolist() == x.tolist() and nested_tensor_from_jagged(nt.values(), lengths=th.tensor([1, 5])).unbind()[1].shape == (5, 3)
    assert [part.shape for part in narrow(th.ones(2, 5), 1, th.tensor([0, 1]), th.tensor([3, 2]), layout=th.jagged).unbind()] == [(3,), (2,)]
    assert [part.shape for part in masked_select(th.ones(2, 3), th.tensor([[True, False, True], [True, False, False]])).unbind()] == [(2,), (1,)]
    plain = nested_tensor([x, y])
    assert plain.layout is th.strided and repr(plain).startswith("nested_tensor([\n  tensor([[") and plain.size(0) == 2
    with raises(RuntimeError, "Given dimension 1 is irregular and does not have a size."):
        plain.size(1)
    assert copy.deepcopy(nt).values().tolist() == nt.values().tolist()


def test_functions_are_those_of_each_sample():
    first, second = samples(2, 4), [one * 2 for one in samples(2, 4)]
    weight, bias = th.arange(18.0).view(3, 6).cos(), th.ones(3)
    cases = {
        "elements": lambda x, y: (x * y + 2 * x - 1).tanh() / (y * y + 1) + x.relu(), "linear": lambda x, y: F.linear(x, weight, bias).sigmoid(),
        "product": lambda x, y: x @ weight.t(), "norm": lambda x, y: F.layer_norm(x, [6]) + F.softmax(y, -1), "sums": lambda x, y: x.sum(-1) * y.mean(-1),
        "parts": lambda x, y: th.cat([x.chunk(2, -1)[0], y[..., 1:3]], -1), "choice": lambda x, y: th.where(x > 0, x, y), "halves": lambda x, y: x.double() + y}
    for name, function in cases.items():
        one = nested_tensor(first, layout=th.jagged, requires_grad=True)
        other = nested_tensor_from_jagged(th.cat(second).requires_grad_(), one.offsets())
        result = function(one, other)
        (result * result).sum().backward()
        for place, (x, y) in enumerate(zip(first, second)):
            x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
            wanted = function(x, y)
            (wanted * wanted).sum().backward()
            close(result.unbind()[place], wanted.tolist())
            close(one.grad.unbind()[place], (th.zeros_like(x) if x.grad is None else x.grad).tolist(), 1e-4)


def test_reductions_of_rows():
    parts = samples(2, 4, width=3)
    nt = nested_tensor(parts, layout=th.jagged)
    close(nt.sum(1), [part.sum(0).tolist() for part in parts])
    close(nt.mean(1), [part.mean(0).tolist() for part in parts])
    close(nt.amax(1), [part.amax(0).tolist() for part in parts])
    close(nt.softmax(1).unbind()[0], parts[0].softmax(0).tolist())
    close(nt.sum(), sum(part.sum().item() for part in parts))
    close((nt * th.tensor([[[1.0]], [[10.0]]])).unbind()[1], (parts[1] * 10).tolist())


def test_attention_of_samples():
    layer, parts = nn.Linear(8, 24), samples(3, 5, 1, width=8)
    for is_causal in (False, True):
        leaves = [part.clone().requires_grad_() for part in parts]
        nt = as_nested_tensor(leaves, layout=th.jagged)
        query, key, value = (one.unflatten(-1, [2, 4]).transpose(1, 2) for one in layer(nt).chunk(3, -1))
        assert str(query.shape).startswith("torch.Size([3, 2, j")
        found = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal).transpose(1, 2).flatten(-2)
        found.sum().backward()
        for own, leaf, part in zip(found.unbind(), leaves, parts):
            plain = part.clone().requires_grad_()
            heads = [one.unflatten(-1, [2, 4]).transpose(0, 1) for one in layer(plain).chunk(3, -1)]
            wanted = F.scaled_dot_product_attention(*heads, is_causal=is_causal).transpose(0, 1).flatten(-2)
            wanted.sum().backward()
            close(own, wanted.tolist())
            close(leaf.grad, plain.grad.tolist(), 1e-4)


def test_a_network_of_nested_batches_trains():
    th.manual_seed(0)
    net = nn.Sequential(nn.Embedding(10, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.0), nn.Linear(8, 2))
    optimizer = th.optim.AdamW(net.parameters(), lr=0.05)
    batch = nested_tensor([th.tensor([1, 2, 3]), th.tensor([4, 5])], layout=th.jagged)
    losses = []
    for _ in range(10):
        loss = F.cross_entropy(net(batch).mean(1), th.tensor([0, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_what_is_left_out_is_refused_by_name():
    nt = nested_tensor(samples(2, 4), layout=th.jagged)
    for call, kind, text in (
            (lambda: nt.cumsum(1), NotImplementedError, "cumsum of nested tensors is left out"),
            (lambda: nt + nested_tensor(samples(2, 4), layout=th.jagged), RuntimeError, "cannot call binary pointwise function add with inputs of shapes (2, j"),
            (lambda: nt.flatten(1, 2), RuntimeError, "flatten(): not supported for NestedTensor on ragged dim"),
            (lambda: nt[:, 0], RuntimeError, "slice(): not supported for NestedTensor"), (lambda: nt.tolist(), RuntimeError, ".tolist() is not supported"),
            (lambda: nested_tensor([th.ones(2, 3), th.ones(2, 4)]), NotImplementedError, "differ in another dimension than the first"),
            (lambda: nt @ nt, NotImplementedError, "matmul of two nested tensors"), (lambda: nt.sum((1, 2)), RuntimeError, "reducing along a ragged")):
        with raises(kind, text):
            call()


def test_strided_samples_of_the_same_extents_go_together():
    parts = [th.ones(2, 3), th.ones(1, 3) * 2]
    one, other = th.nested.nested_tensor(parts), th.nested.as_nested_tensor(parts)
    assert [sample.tolist() for sample in one * other - one] == [[[0] * 3] * 2, [[2] * 3]] and one.values().shape == (9,)
    with raises(RuntimeError, "with inputs of shapes"):
        one + th.nested.nested_tensor(parts[::-1])
    with raises(RuntimeError, "with inputs of shapes"):
        th.nested.nested_tensor(parts, layout=th.jagged) + th.nested.nested_tensor(parts, layout=th.jagged)
