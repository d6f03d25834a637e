"""`record_use`: records another stream's last use of a tensor."""

import contextlib
import functools
import sys

from . import _state


def record_use(tensor, stream=None):
    """Records that the work of `stream` (by default the current one) so far is its last use of the tensor's memory, until the
    next call. An event is recorded there now, and once the tensor is freed its memory waits only for that event: not for the
    stream's later work, as after `Tensor.record_stream`. Nothing blocks. On the stream that the tensor was made on it does
    nothing.

    The work must be ordered *after* the tensor's creation, as for `record_stream`, and the call must follow the work.
    """
    import torch

    stream = torch.cuda.current_stream(tensor.device) if stream is None else stream
    _mark_transient_if_external(stream)
    _state.library().call(
        "thalweg_record_use", tensor.untyped_storage().data_ptr(), stream.device.index, stream.cuda_stream
    )


def _mark_transient_if_external(stream):
    # PyTorch identifies a stream that it did not make by its handle. Its owner may destroy it at any moment.
    if stream.stream_id == stream.cuda_stream != 0:
        _state.library().call("thalweg_set_stream_transient", stream.device.index, stream.cuda_stream)


@contextlib.contextmanager
def record_use_region():
    """In this region, on this thread, `tensor.record_stream(stream)` becomes `record_use`: it records the last use *so far*, and
    each later operator of the region that uses the tensor on that stream records it again. So the memory waits for the last of
    them, wherever the tensor is dropped.

    That is safe for whatever goes through PyTorch's dispatcher on this thread: operators, collectives, custom operators. What
    does not (a kernel that is launched by hand, a library that was given a pointer, the backward pass, which runs on its own
    thread) is not seen, and must be followed by its own `record_use`, or stay outside the region. Compiled functions run as they
    do without `torch.compile`. Operators that are given functions (`torch.cond`, `scan`) need the compiler to be imported before
    the region begins, as it is after the first `torch.compile`; PyTorch raises otherwise.
    """
    with _mode("torch._dynamo" in sys.modules)():
        yield


@functools.cache
def _mode(with_compiler):
    """Returns the mode of PyTorch's dispatcher for a region that begins when PyTorch's compiler was imported, or was not."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    no_handler = torch.Tensor.__torch_dispatch__
    parts_of_sparse = {
        torch.sparse_coo: ("_indices", "_values"),
        torch.sparse_csr: ("crow_indices", "col_indices", "values"),
        torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
        torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
        torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
    }

    # Why memory is not reused too early. All that an operator does with memory of ours it does through its arguments, on the
    # stream that is current; so behind it, also if it raised, each plain tensor in them is reported again, if it was recorded for
    # that stream. An argument need not be plain, and the mode is off inside the operator, where it is taken apart:
    #
    # - a sparse tensor is its indices and values, and a wrapper with __tensor_flatten__ (DTensor, NestedTensor) is what that
    #   names: these are told of, down to plain tensors;
    # - of any other tensor with operators of its own it is not known what it holds. Before such an operator everything that was
    #   recorded is handed to the real record_stream, which waits for all that the stream is given as long as the memory lives;
    # - and so before an operator that is given functions (torch.cond, scan): they may hold tensors, too.
    #
    # record_stream of a tensor that is not plain is PyTorch's own: what it reaches inside, it reaches with the mode off.
    class RecordUseMode(TorchDispatchMode):
        # A mode that the compiler is to leave alone is wrapped by PyTorch, and that imports the compiler at the first operator, which
        # takes seconds. So it is asked for only where the compiler is there; if it comes later, `follow_uncompiled` takes over. That
        # is not enough inside operators that are given functions, which compile them: those want the first way.
        supports_higher_order_operators = with_compiler

        @classmethod
        def _should_skip_dynamo(cls):
            return with_compiler

        def __init__(self):
            super().__init__()
            # Storages by address, with the streams that were recorded for them. Weak: dropping a tensor frees its memory.
            self.recorded = {}

        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            came_later = not with_compiler and "torch._dynamo" in sys.modules
            follow = self.follow_uncompiled if came_later else self.follow
            return follow(function, arguments, keywords or {})

        def follow(self, function, arguments, keywords):
            if function is torch.ops.aten.record_stream.default and is_plain(arguments[0]):
                self.record(*arguments)
                return None
            tensors = []
            if isinstance(function, torch._ops.HigherOrderOperator):
                self.give_up()
            elif self.recorded:
                values = tree_iter((arguments, keywords))
                tensors = [plain for value in values if isinstance(value, torch.Tensor) for plain in self.plain(value)]
            try:
                return function(*arguments, **keywords)
            finally:
                for tensor in tensors:
                    self.touch(tensor)

        follow_uncompiled = torch._disable_dynamo(follow)

        def record(self, tensor, stream):
            stream = torch.cuda.Stream(
                stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
            )
            storage = tensor.untyped_storage()
            key = storage.data_ptr()
            if key == 0:
                return
            known = self.recorded.get(key)
            if known is None or known[0].expired():
                known = self.recorded[key] = (StorageWeakRef(storage), set())
            known[1].add(stream)
            record_use(tensor, stream)

        def touch(self, tensor):
            key = tensor.untyped_storage().data_ptr()
            known = self.recorded.get(key)
            if known is None:
                return
            if known[0].expired():
                del self.recorded[key]
                return
            for stream in known[1]:
                if stream == torch.cuda.current_stream(stream.device):
                    record_use(tensor, stream)

        def plain(self, tensor):
            """Returns the plain tensors that a tensor consists of, as far as is known."""
            if is_plain(tensor):
                return [tensor]
            if hasattr(tensor, "__tensor_flatten__"):
                parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
            elif has_own_operators(tensor) or tensor.layout not in parts_of_sparse:
                self.give_up()
                return []
            else:
                parts = [getattr(tensor, name)() for name in parts_of_sparse[tensor.layout]]
            return [plain for part in parts if isinstance(part, torch.Tensor) for plain in self.plain(part)]

        def give_up(self):
            for address, (weak, streams) in self.recorded.items():
                # Nothing may free it meanwhile.
                storage = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
                for stream in streams if storage is not None else ():
                    _state.library().call("thalweg_record_stream", address, stream.device.index, stream.cuda_stream)
            self.recorded.clear()

    def is_plain(tensor):
        return tensor.layout is torch.strided and not has_own_operators(tensor)

    def has_own_operators(tensor):
        return type(tensor).__torch_dispatch__ is not no_handler

    return RecordUseMode
