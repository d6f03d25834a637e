"""Names and parts of PyTorch's inside that libraries import, replace or set: under PyTorch's name they are here."""

import math
import typing
import warnings

import thalweg as th
import thalweg.nn as nn
import thalweg.nn.functional as F
from support import close, raises
from test_door import program, run
from thalweg import _private
from thalweg._compiled_libraries import audio, define, vision


def test_modules_have_the_names_of_their_package():
    program("""
        import importlib, importlib.util
        import torch
        from torch.nn.utils.clip_grad import clip_grad_norm_
        from torch.cuda.amp.grad_scaler import GradScaler
        from torch.distributed.checkpoint.state_dict_loader import load
        from torch.torch_version import TorchVersion
        from torch.nn.common_types import _size_2_t
        from torch.fx.graph_module import _USER_PRESERVED_ATTRIBUTES_KEY
        import torch.autograd.profiler_util, torch.nn.parallel.comm, torch._VF
        assert clip_grad_norm_ is torch.nn.utils.clip_grad_norm_ and GradScaler is torch.cuda.amp.GradScaler and load is torch.distributed.checkpoint.load
        assert torch._VF.lstm is torch.lstm and isinstance(torch.__version__, TorchVersion)
        assert importlib.util.find_spec("torch.nn.utils.nosuch") is None
        # Modules that PyTorch imports itself are attributes.
        assert torch.cuda.amp.common.amp_definitely_not_available() == (not torch.cuda.is_available())
        assert torch.nn.utils.convert_parameters.vector_to_parameters is torch.nn.utils.vector_to_parameters and not hasattr(torch.nn, "common")
        try:
            torch.autograd.profiler_util.EventList()
        except NotImplementedError as error:
            assert "profiler_util.EventList is left out" in str(error)
        else:
            raise AssertionError
        try:
            torch.ops.load_library("/nosuch/library.so")
        except OSError as error:
            assert "/nosuch/library.so" in str(error) and "custom_op" in str(error)
        else:
            raise AssertionError
        """)


def test_programs_of_the_cpu_have_the_memory_of_the_host():
    host = "os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')"
    text = f"import os, torch; print(abs(torch.cuda.get_device_properties(0).total_memory - {host}) < 1 << 21)"
    if not th._core._cuda._gpu_count():
        assert run("-c", text)[0] == "True\n" and run("--simulated-as", "cuda", "-c", text)[0] == "False\n"
        assert run("-c", text, THALWEG_SIM_MEMORY_BYTES=str(1 << 30))[0] == "False\n"


def test_private_functions():
    rows = th.tensor([0, 0, 2, 3, 3, 3])
    starts = th._convert_indices_from_coo_to_csr(rows, 5)
    assert starts.tolist() == [0, 2, 2, 3, 6, 6]
    columns = th.arange(6)
    assert th._convert_indices_from_csr_to_coo(starts, columns).tolist() == [rows.tolist(), columns.tolist()]
    assert th._convert_indices_from_csr_to_coo(starts, columns, transpose=True).tolist() == [columns.tolist(), rows.tolist()]
    assert th._shape_as_tensor(th.ones(2, 3)).tolist() == [2, 3] and th._cast_Long(th.tensor([1.5])).dtype is th.int64
    mask = F._canonical_mask(th.tensor([True, False]), "mask", None, "", th.float32)
    assert mask.tolist() == [-math.inf, 0.0] and F._none_or_dtype(None) is None and not hasattr(th, "_nosuch")
    x, w, b = th.randn(2, 4), th.randn(12, 4), th.randn(12)
    for part, value in enumerate(F._in_projection_packed(x, x, x, w, b)):
        close(value, (x @ w[4 * part:4 * part + 4].T + b[4 * part:4 * part + 4]).tolist(), 1e-5)
    assert _private.found("nn", "nosuch") == (False, None)


def _overlap(one, other):
    shared = max(0.0, min(one[2], other[2]) - max(one[0], other[0])) * max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return shared / (sum(areas) - shared)


def test_boxes_that_overlap_are_left_out():
    th.manual_seed(0)
    corners = th.rand(60, 2, dtype=th.float64) * 8
    boxes = th.cat([corners, corners + 1 + th.rand(60, 2, dtype=th.float64) * 4], 1)
    scores, kept = th.rand(60), []
    for place in sorted(range(60), key=lambda place: -scores[place].item()):
        if all(_overlap(boxes[place].tolist(), boxes[other].tolist()) <= 0.3 for other in kept):
            kept.append(place)
    former, vision._ROWS = vision._ROWS, 7
    try:
        assert vision.nms(boxes, scores, 0.3).tolist() == kept and 5 < len(kept) < 60
    finally:
        vision._ROWS = former
    assert vision.nms(boxes[:0], scores[:0], 0.5).tolist() == []
    with raises(RuntimeError, "4 values in each row"):
        vision.nms(boxes[:, :3], scores, 0.5)


def _between(image, y, x):
    """Returns an image's value between pixels, as a number."""
    height, width = len(image), len(image[0])
    if not (-1 <= y <= height and -1 <= x <= width):
        return 0.0
    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    low, left = int(y), int(x)
    high, right = min(low + 1, height - 1), min(left + 1, width - 1)
    dy, dx = y - low, x - left
    return (image[low][left] * (1 - dx) + image[low][right] * dx) * (1 - dy) + (image[high][left] * (1 - dx) + image[high][right] * dx) * dy


def test_regions_are_means_of_points():
    th.manual_seed(1)
    images = th.randn(2, 2, 6, 7, dtype=th.float64, requires_grad=True)
    rois = th.tensor([[1, 0.5, 1.0, 6.3, 5.2], [0, -3.0, 2.0, 4.0, 9.0], [1, 2.0, 2.0, 2.5, 2.5]], dtype=th.float64)
    values = images.tolist()
    for aligned, ratio in ((True, 2), (False, -1), (True, -1)):
        found = vision.roi_align(images, rois, 0.8, 3, 2, ratio, aligned)
        for number, (image, *corners) in enumerate(rois.tolist()):
            left, top, right, bottom = (corner * 0.8 - (0.5 if aligned else 0) for corner in corners)
            height, width = ((end - start if aligned else max(end - start, 1.0)) for start, end in ((top, bottom), (left, right)))
            down, across = (ratio if ratio > 0 else math.ceil(size / count) for size, count in ((height, 3), (width, 2)))
            for p in range(3):
                for q in range(2):
                    points = [_between(values[int(image)][1], top + (p + (i + 0.5) / down) * height / 3, left + (q + (j + 0.5) / across) * width / 2)
                              for i in range(down) for j in range(across)]
                    assert abs(found[number, 1, p, q].item() - sum(points) / len(points)) < 1e-9, (aligned, ratio, number, p, q)
    assert th.autograd.gradcheck(lambda x: vision.roi_align(x, rois, 0.8, 2, 2, 2, True), (images,), check_undefined_grad=False)
    assert vision.roi_align(images, rois[:0], 1.0, 3, 2, 2, True).shape == (0, 2, 3, 2)


def test_convolutions_at_moved_places():
    th.manual_seed(2)
    x, w = th.randn(2, 4, 6, 5, dtype=th.float64), th.randn(6, 2, 3, 2, dtype=th.float64)
    bias = th.randn(6, dtype=th.float64)
    options = dict(stride_h=2, stride_w=1, pad_h=1, pad_w=1, dilation_h=1, dilation_w=2, groups=2, offset_groups=2)
    expected = F.conv2d(x, w, bias, (2, 1), (1, 1), (1, 2), 2)
    assert expected.shape == (2, 6, 3, 5)
    still, mask = th.zeros(2, 2 * 2 * 6, 3, 5, dtype=th.float64), th.rand(2, 2 * 6, 3, 5, dtype=th.float64)
    close(vision.deform_conv2d(x, w, still, mask, bias, use_mask=False, **options), expected.tolist(), 1e-9)
    close(vision.deform_conv2d(x, w, still, th.full_like(mask, 0.5), bias * 0, use_mask=True, **options), ((expected - bias.view(-1, 1, 1)) / 2).tolist(), 1e-9)
    # A move of every point by one row is the convolution of the image that is moved.
    moved = still.view(2, 2, 6, 2, 3, 5).clone()
    moved[:, :, :, 0] = 1
    close(vision.deform_conv2d(x, w, moved.view_as(still), mask, bias, use_mask=False, **options),
          F.conv2d(F.pad(x, (1, 1, 0, 2)), w, bias, (2, 1), 0, (1, 2), 2).tolist(), 1e-9)
    leaves = [one[:1].clone().requires_grad_() for one in (x, th.rand_like(still) - 0.5, mask)]
    assert th.autograd.gradcheck(lambda x, moves, mask: vision.deform_conv2d(x, w, moves, mask, bias, use_mask=True, **options), leaves,
                                 check_undefined_grad=False)


def test_filters():
    th.manual_seed(3)
    signal, coefficients = th.randn(2, 3, 9), th.tensor([[0.2, -0.5, 1.0], [0.0, 0.3, 1.0], [0.1, 0.1, 1.0]])
    padded = th.zeros(2, 3, 11)
    assert audio._lfilter_core_loop(signal, coefficients, padded) is padded
    for batch in range(2):
        for channel in range(3):
            former = [0.0, 0.0]
            for place in range(9):
                former.append(signal[batch, channel, place].item() - former[-2] * coefficients[channel, 0].item() - former[-1] * coefficients[channel, 1].item())
            close(padded[batch, channel], former, 1e-5)
    wave, changed, last = th.randn(2, 5), th.randn(2, 5), [th.randn(2), th.randn(2)]
    out, expected, ends = th.empty(2, 5), [], [one.tolist() for one in last]
    for row in range(2):
        before, held, line = ends[0][row], ends[1][row], []
        for place in range(5):
            held, before = changed[row, place].item() - before + 0.995 * held, changed[row, place].item()
            line.append(0.5 * wave[row, place].item() + 0.75 * held)
        expected.append(line)
        ends[0][row], ends[1][row] = before, held
    audio._overdrive_core_loop(wave, changed, *last, out)
    close(out, expected, 1e-5)
    close(th.stack(last), ends, 1e-5)


def test_compiled_files_are_known_by_their_places():
    assert define("/anywhere/torchvision/_C.so") and define("/anywhere/torchaudio/lib/_torchaudio.abi3.so") and not define("/anywhere/other/_C.so")
    assert th.ops.torchvision.nms(th.tensor([[0.0, 0.0, 1.0, 1.0]]), th.ones(1), 0.5).tolist() == [0] and th.ops._torchaudio.cuda_version() is None
    with raises(NotImplementedError, "torchvision::roi_pool"):
        th.ops.torchvision.roi_pool(th.ones(1, 1, 2, 2), th.ones(1, 5), 1.0, 1, 1)


def test_parts_of_layers_can_be_called_and_replaced():
    class Standardized(nn.Conv2d):
        def forward(self, x):
            return self._conv_forward(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)
    conv, x = Standardized(2, 3, 3, padding=1, padding_mode="circular"), th.randn(1, 2, 4, 4)
    weight = conv.weight - conv.weight.mean((1, 2, 3), keepdim=True)
    close(conv(x), F.conv2d(F.pad(x, (1, 1, 1, 1), "circular"), weight, conv.bias).tolist(), 1e-5)
    up = nn.ConvTranspose2d(2, 3, 3, stride=2)
    assert up._output_padding(x, [10, 9], up.stride, up.padding, up.kernel_size, 2, up.dilation) == [1, 0]

    class Doubled(nn.TransformerEncoderLayer):
        def _sa_block(self, x, attn_mask, key_padding_mask, is_causal=False):
            return 2 * super()._sa_block(x, attn_mask, key_padding_mask, is_causal)

        def _ff_block(self, x):
            return 0 * x
    layer, x = Doubled(4, 2, 8, dropout=0.0, batch_first=True, norm_first=True), th.randn(2, 3, 4)
    normed = layer.norm1(x)
    close(layer(x), (x + 2 * layer.self_attn(normed, normed, normed, need_weights=False)[0]).tolist(), 1e-5)
    decoder = nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0)
    decoder._mha_block = lambda x, mem, *rest: mem
    memory = th.randn(3, 2, 4)
    first = decoder.norm1(x.transpose(0, 1) + decoder._sa_block(x.transpose(0, 1), None, None))
    second = decoder.norm2(first + memory)
    close(decoder(x.transpose(0, 1), memory), decoder.norm3(second + decoder._ff_block(second)).tolist(), 1e-5)
    attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
    attention.in_proj_bias.data.fill_(1.0)
    th.manual_seed(0)
    attention._reset_parameters()
    th.manual_seed(0)
    assert th.equal(nn.init.xavier_uniform_(th.empty(12, 4)), attention.in_proj_weight) and not attention.in_proj_bias.any()


def test_passes_over_loaders_are_replaced_in_part():
    from thalweg.utils.data import dataloader

    class Own:
        """A data loader that a library defines, with the attributes that an iterator over it reads."""

        dataset, collate_fn, drop_last, num_workers, pin_memory, generator, timeout = range(5), list, False, 0, False, None, 0
        _IterableDataset_len_called, persistent_workers = None, False
        _dataset_kind, _auto_collation, _index_sampler = dataloader._DatasetKind.Map, True, [[0, 1], [4]]

    assert list(dataloader._SingleProcessDataLoaderIter(Own())) == [[0, 1], [4]]

    class Backwards(dataloader._SingleProcessDataLoaderIter):
        def _reset(self, loader, first_iter=False):
            self._num_yielded, self._sampler_iter = 0, reversed(self._index_sampler)
    again = Backwards(Own())
    assert list(again) == [[0, 1], [4]] and again._reset(None) is None and list(again) == [[4], [0, 1]]
    fetcher = dataloader._DatasetKind.create_fetcher(dataloader._DatasetKind.Iterable, range(3), True, list, False)
    assert fetcher.fetch([None, None]) == [0, 1] and fetcher.fetch([None, None]) == [2]


def test_programs_give_tensors_methods_and_functions_attributes():
    class Own(th.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return NotImplemented
    th.Tensor.tagged = lambda self, tag: (type(self), tag)
    try:
        class Later(Own):
            pass
        for kind in (Own, Later):
            assert th.ones(1).as_subclass(kind).tagged(3) == (kind, 3)
    finally:
        del th.Tensor.tagged
    F.tanh.own_mark = 1
    assert F.tanh.own_mark == 1 and F.tanh(th.zeros(1)).item() == 0
    del F.tanh.own_mark
    assert typing.get_type_hints(nn.Linear(1, 1))["training"] is bool


def test_pinned_batches_keep_their_containers():
    from thalweg.utils.data._utils.pin_memory import pin_memory

    class Graph:
        """A batch of a library, which returns another object when it is pinned."""

        def __init__(self, x, is_pinned=False):
            self.x, self.is_pinned = x, is_pinned

        def pin_memory(self):
            return Graph(self.x, True)

    class Named(typing.NamedTuple):
        x: th.Tensor
        y: list

    batch = pin_memory({"pair": (th.ones(1), Graph(th.ones(1))), "named": Named(th.ones(1), [Graph(1), "text"])})
    assert isinstance(batch["pair"], list) and batch["pair"][1].is_pinned and batch["pair"][0].is_pinned()
    assert isinstance(batch["named"], Named) and batch["named"].y[0].is_pinned and batch["named"].y[1] == "text"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader = th.utils.data.DataLoader([th.ones(1)] * 2, pin_memory=True, pin_memory_device="cuda")
        assert all(one.is_pinned() for one in loader)
    assert any("pin_memory_device is deprecated" in str(one.message) for one in said)


def test_maps_over_containers_of_a_library():
    from thalweg._C import _functorch

    class Pair:
        """A container of tensors with a common dimension, which maps itself over it."""

        def __init__(self, first, second):
            self.parts = first, second

        shape = property(lambda self: self.parts[0].shape[:1])

        def dim(self):
            return 1

        def _add_batch_dim(self, *, in_dim, vmap_level):
            return Pair(*(_functorch._add_batch_dim(part, in_dim, vmap_level) for part in self.parts))

        def _maybe_remove_batch_dim(self, funcname, vmap_level, batch_size, out_dim):
            assert batch_size == 4
            return Pair(*(_functorch._remove_batch_dim(part, vmap_level, batch_size, out_dim) for part in self.parts))

    x, y = th.randn(4, 3), th.randn(4, 3, 2)

    def product(pair, factor):
        assert all(_functorch.is_batchedtensor(part) for part in pair.parts) and pair.parts[1].shape == (3, 2)
        assert _functorch.get_unwrapped(pair.parts[0]).shape == (4, 3)
        return Pair(pair.parts[0] @ pair.parts[1], pair.parts[0] * factor)
    made = th.func.vmap(product, in_dims=(0, None))(Pair(x, y), 2.0)
    close(made.parts[0], th.einsum("bi,bij->bj", x, y).tolist(), 1e-5)
    assert th.equal(made.parts[1], 2 * x)


def test_functions_receive_themselves():
    seen = []

    class Own:
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append((function, kwargs))
            return "own"
    for name in ("empty_like", "zeros_like", "rand_like"):
        assert getattr(th, name)(Own(), dtype=th.float64) == "own"
        assert seen.pop() == (getattr(th, name), {"dtype": th.float64})
    assert th.zeros_like(th.ones(2), device="meta").device.type == "meta"
    for function in (F.conv2d, F.max_pool2d, F.conv_transpose1d, th.block_diag):
        assert function(Own(), Own(), Own()) == "own" and seen.pop()[0] is function
    assert F.conv2d(th.ones(1, 1, 2, 2), th.ones(1, 1, 2, 2)).item() == 4


def test_parameters_with_one_memory_are_stepped_one_by_one():
    whole = th.arange(6.0)
    first, second = nn.Parameter(whole[:4]), nn.Parameter(whole[2:])
    optimizer = th.optim.SGD([first, second], lr=1.0)
    (first.sum() + 2 * second.sum()).backward()
    optimizer.step()
    assert whole.tolist() == [-1.0, 0.0, -1.0, 0.0, 2.0, 3.0]


def test_optimizers_have_names_of_their_own():
    kinds, names = [th.optim.Optimizer], []
    while kinds:
        below = kinds.pop().__subclasses__()
        kinds += below
        names += [kind.__name__ for kind in below if kind.__module__.startswith(("thalweg.optim", "torch.optim"))]
    assert len(names) == len(set(names)) > 15 and th.optim.RMSprop.__mro__[1].__name__ == "FusedRMSprop"


def test_calls_beside_the_program():
    assert th.jit.wait(th.jit.fork(lambda x, y: x + y, 1, y=2)) == 3


def test_data_that_are_assigned_leave_the_gradient():
    p = nn.Parameter(th.ones(2))
    (3 * p).sum().backward()
    p.data = p.data * 0.5
    assert p.grad.tolist() == [3.0, 3.0] and p.is_leaf
    th.optim.SGD([p], lr=0.1).step()
    close(p, [0.2, 0.2], 1e-6)
    p.data = th.zeros(3)
    assert p.grad.tolist() == [3.0, 3.0] and p.shape == (3,)
