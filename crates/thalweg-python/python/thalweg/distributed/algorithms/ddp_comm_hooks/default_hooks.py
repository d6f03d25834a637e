"""Functions that reduce the gradients of `DistributedDataParallel`: as they are, or in a dtype of 16 bits."""

from .... import _core
from ...._left_out import attributes
from ....futures import Future
from ... import _check, all_reduce


def _reduced(group, buffer, dtype):
    own = _check("communication hook", group)
    sent = buffer.to(dtype).div_(own.size()) if dtype is not None else buffer / own.size()
    all_reduce(sent, group=own)
    made = Future()
    made.set_result(sent.to(buffer.dtype))
    return made


def allreduce_hook(process_group, bucket):
    """Returns the mean of the gradients of all ranks."""
    return _reduced(process_group, bucket.buffer(), None)


def fp16_compress_hook(process_group, bucket):
    """Returns the mean of the gradients of all ranks, which are sent as float16."""
    return _reduced(process_group, bucket.buffer(), _core.float16)


def bf16_compress_hook(process_group, bucket):
    """Returns the mean of the gradients of all ranks, which are sent as bfloat16."""
    return _reduced(process_group, bucket.buffer(), _core.bfloat16)


def _wrapper(dtype):
    def wrap(hook):
        def compressed(state, bucket):
            buffer = bucket.buffer()
            bucket.set_buffer(buffer.to(dtype))
            return hook(state, bucket).then(lambda found: found.value().to(buffer.dtype))
        return compressed
    wrap.__doc__ = f"Returns a hook that reduces gradients as {dtype}."
    return wrap


fp16_compress_wrapper, bf16_compress_wrapper = _wrapper(_core.float16), _wrapper(_core.bfloat16)

__getattr__ = attributes(__name__)
