"""Caches of keys and values that a compiled graph writes: parts are written in place, and a single query reads shared heads where they are."""

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "dynamo"))

from running import with_pytorch  # noqa: E402
from test_dynamo_gpu import without_gpu  # noqa: E402
from test_dynamo_rewritten import of_graph  # noqa: E402

SHAPE = (2, 3, 8, 4)

# Writes of x at places of the third dimension of a cache.
WRITES = {
    "index_copy": lambda c, x, at: c.index_copy_(2, at, x[:, :, : len(at)]),
    "index_add": lambda c, x, at: c.index_add_(2, at, x[:, :, : len(at)]),
    "index_put": lambda c, x, at: c.__setitem__((slice(None), slice(None), at), x[:, :, : len(at)]),
    "fill": lambda c, x, at: c.__setitem__((slice(None), slice(None), at), 3.0),
    "scatter": lambda c, x, at: c.scatter_(2, at.view(1, 1, -1, 1).expand(2, 3, -1, 4), x[:, :, : len(at)]),
    "slice": lambda c, x, at: c.__setitem__((slice(None), slice(None), slice(1, 3)), x[:, :, 1:3]),
    "select": lambda c, x, at: c.__setitem__(1, x[0].sin()),
    "part of a part": lambda c, x, at: c.__setitem__((0, slice(None), slice(2, 4)), x[1, :, 1:3]),
    "indices of a part": lambda c, x, at: c[1].index_copy_(1, at, x[0, :, : len(at)]),
    "turned": lambda c, x, at: c.transpose(0, 1).__setitem__((slice(None), slice(None), at), x.transpose(0, 1)[:, :, : len(at)]),
    "its own rows": lambda c, x, at: c.index_copy_(2, at, c[:, :, -len(at) :] * 1.5),
    "whole": lambda c, x, at: c.copy_(c * 0.5 + 1),
}


def drawn(torch, draw):
    """Returns a function that writes two caches and reads them before, between and after, and the names of what it does."""
    steps = [(draw.choice(list(WRITES)), draw.randrange(2), draw.choice(["", "", "view", "sum", "clone", "old", "cast"])) for _ in range(draw.randint(1, 4))]

    def function(x, at, *caches):
        found, old = [], [cache[:, :1] for cache in caches]
        for number, (write, place, read) in enumerate(steps):
            cache = caches[place]
            if read == "old":
                found.append(old[place] * 2)
            WRITES[write](cache, x * (number + 1), at)
            if read == "view":
                found.append(cache[:, 1:].sum(-1))
            elif read == "sum":
                found.append(cache.sum() + caches[0].sum())
            elif read == "clone":
                found.append(cache.clone())
            elif read == "cast":
                found.append(cache.to(torch.float64))
        return found

    return function, steps


@with_pytorch
def test_what_writes_caches_equals_eager_calls(torch, dynamo):
    import as_gpu

    if (reason := without_gpu(torch)) is not None:
        return reason
    in_place = 0
    for seed in range(40):
        draw = random.Random(seed)
        function, steps = drawn(torch, draw)
        at, is_turned = torch.randperm(SHAPE[2], generator=torch.Generator().manual_seed(seed))[: draw.choice([1, 1, 2, 3])], draw.random() < 0.2

        def inputs():
            numbers = torch.Generator().manual_seed(seed)
            x, *caches = (torch.randn(SHAPE, generator=numbers) for _ in range(3))
            if is_turned:
                caches[0] = caches[0].transpose(1, 2).contiguous().transpose(1, 2)
            return [x, at, *caches]

        torch._dynamo.reset()
        compiled, ours, theirs = torch.compile(function, backend=as_gpu.backend), inputs(), inputs()
        with torch.no_grad():
            for _ in range(2):
                nodes, found = of_graph(lambda: compiled(*ours))
                in_place += sum(node.op == "call_function" and node.name.startswith(("index_", "scatter")) and node.target._schema.is_mutable for node in nodes)
                pairs = [*zip(found, function(*theirs), strict=True), *zip(ours, theirs)]
                assert all(torch.allclose(one, other, rtol=1e-5, atol=1e-5) for one, other in pairs), (seed, steps)
    assert in_place > 20, in_place


@with_pytorch
def test_a_step_of_a_decoder_copies_no_cache_and_repeats_no_heads(torch, dynamo):
    import as_gpu

    if (reason := without_gpu(torch)) is not None:
        return reason
    aten, ours = torch.ops.aten, torch.ops.thalweg_graph
    for tokens, heads, is_masked, varies in ((1, 2, True, False), (1, 6, True, False), (1, 2, False, True), (3, 2, True, False), (1, 2, True, True)):

        def step(x, keys, values, count, mask):
            at = torch.arange(tokens) + count
            count.add_(tokens)
            keys.index_copy_(2, at, x[:, :heads])
            values.index_copy_(2, at, x[:, :heads] * 2)
            batch, _, length, features = keys.shape
            key, value = (cache[:, :, None].expand(batch, heads, 6 // heads, length, features).reshape(batch, 6, length, features) for cache in (keys, values))
            return torch.nn.functional.scaled_dot_product_attention(x, key, value, attn_mask=mask if is_masked else None)

        def inputs():
            numbers = torch.Generator().manual_seed(tokens + heads)
            x, keys, values = (torch.randn(2, count, size, 16, generator=numbers) for count, size in ((6, tokens), (heads, 20), (heads, 20)))
            return [x, keys, values, torch.tensor(5), torch.arange(20) < torch.arange(6, 6 + tokens)[:, None]]

        torch._dynamo.reset()
        compiled, given, expected = torch.compile(step, backend=as_gpu.backend, dynamic=None if varies else False), inputs(), inputs()
        for tensor, dimension in ((given[1], 2), (given[2], 2), (given[4], 1)) if varies else ():
            torch._dynamo.mark_dynamic(tensor, dimension)
        with torch.no_grad():
            for _ in range(2):
                nodes, found = of_graph(lambda: compiled(*given))
                assert torch.allclose(found, step(*expected), rtol=1e-4, atol=1e-5), (tokens, heads, is_masked)
                assert all(map(torch.equal, given, expected)), (tokens, heads, is_masked)
                targets = [node.target for node in nodes]
                if targets:
                    assert targets.count(aten.index_copy_.default) == 2 and aten.index_copy.default not in targets, targets
                    assert aten.expand.default not in targets or heads == 6 or is_masked, targets
                    attention = next(node for node in nodes if node.target in (ours.attention.default, ours.attention_of_one_query.default))
                    assert (attention.target is ours.attention_of_one_query.default) == (tokens == 1), targets
                    assert attention.args[1].meta["val"].shape[1] == heads, attention.args
