"""Programs that could use several GPUs run on one: groups of one rank, the module wrapper, and the switches that such programs
set."""

import copy
import os

import thalweg as th
import thalweg.distributed as dist
from thalweg import nn
from thalweg.nn.parallel import DistributedDataParallel
from support import close, raises


class group:
    def __enter__(self):
        dist.init_process_group(backend="nccl")

    def __exit__(self, *_):
        dist.destroy_process_group()


def test_group_of_one():
    assert dist.is_available() and not dist.is_initialized()
    with raises(ValueError, "has not been initialized"):
        dist.get_rank()
    with group():
        assert dist.is_initialized() and dist.get_rank() == 0 and dist.get_world_size() == 1 and dist.get_backend() == "nccl"
        with raises(ValueError, "twice"):
            dist.init_process_group("gloo")
        x = th.tensor([1.0, 2.0])
        assert dist.all_reduce(x, op=dist.ReduceOp.SUM) is None and x.tolist() == [1.0, 2.0]
        assert dist.broadcast(x, 0, async_op=True).wait()
        gathered = [th.zeros(2)]
        dist.all_gather(gathered, x)
        assert gathered[0].tolist() == [1.0, 2.0]
        with raises(ValueError, "rank 1"):
            dist.broadcast(x, src=1)
        with raises(ValueError, "2 tensors"):
            dist.all_gather([th.zeros(2), th.zeros(2)], x)
        dist.barrier()
    assert not dist.is_initialized()


def test_more_ranks_are_refused_by_name():
    with raises(NotImplementedError, "thalweg::distributed"):
        dist.init_process_group("nccl", world_size=2, rank=0)
    os.environ["WORLD_SIZE"] = "4"
    try:
        with raises(NotImplementedError, "4 ranks"):
            dist.init_process_group("nccl")
    finally:
        del os.environ["WORLD_SIZE"]
    with raises(ValueError, "not within"):
        dist.init_process_group("nccl", world_size=1, rank=1)
    assert not dist.is_initialized()
    for used in (lambda: dist.new_group([0, 1]), lambda: dist.send(None, 1), lambda: dist.fsdp.fully_shard(None)):
        with raises(NotImplementedError, "thalweg::distributed"):
            used()


def test_wrapped_module_trains_as_the_module():
    plain = nn.Linear(3, 2)
    with raises(ValueError, "has not been initialized"):
        DistributedDataParallel(plain)
    with group():
        wrapped = DistributedDataParallel(copy.deepcopy(plain), device_ids=[0])
        assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]
        x = th.randn(4, 3)
        wrapped.require_backward_grad_sync = True
        with wrapped.no_sync():
            assert not wrapped.require_backward_grad_sync
        for net in (plain, wrapped):
            net(x).square().sum().backward()
        close(wrapped.module.weight.grad, plain.weight.grad.tolist())
        with raises(RuntimeError, "doesn't have any parameter"):
            DistributedDataParallel(nn.ReLU())
        with raises(NotImplementedError, "left out"):
            wrapped.register_comm_hook(None, None)


def test_bits_that_repeat():
    try:
        th.use_deterministic_algorithms(True, warn_only=True)
        assert th.get_deterministic_debug_mode() == 1 and th.is_deterministic_algorithms_warn_only_enabled()
        filled = th.empty(3, dtype=th.int32, device="sim")
        assert filled.tolist() == [2**31 - 1] * 3
        th.utils.deterministic.fill_uninitialized_memory = False
        assert not th.utils.deterministic.fill_uninitialized_memory
        th.set_deterministic_debug_mode("error")
        assert th.get_deterministic_debug_mode() == 2
    finally:
        th.utils.deterministic.fill_uninitialized_memory = True
        th.set_deterministic_debug_mode(0)
    assert not th.are_deterministic_algorithms_enabled()
    with raises(RuntimeError, "expected one of `default`, `warn`, `error`"):
        th.set_deterministic_debug_mode("loud")
    with raises(TypeError):
        th.utils.deterministic.fill_uninitialized_memory = 1


def test_switches():
    import thalweg.backends.cudnn as cudnn
    from thalweg.backends import cuda
    former = cuda.matmul.allow_tf32, cudnn.allow_tf32, th.are_deterministic_algorithms_enabled()
    try:
        th.backends.cuda.matmul.allow_tf32 = True
        assert th.get_float32_matmul_precision() == "high" and cuda.matmul.allow_tf32
        th.set_float32_matmul_precision("highest")
        assert not th.backends.cuda.matmul.allow_tf32
        cudnn.allow_tf32 = False
        cudnn.deterministic = True
        assert not th.backends.cudnn.allow_tf32 and th._core._backends._switch("cudnn.deterministic")
        cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
        assert th._core._backends._reduction("bf16") == (False, False)
        assert not cuda.matmul.allow_bf16_reduced_precision_reduction
        cuda.matmul.allow_bf16_reduced_precision_reduction = True
        assert th._core._backends._reduction("bf16") == (True, True)
        th.use_deterministic_algorithms(True)
        assert th.are_deterministic_algorithms_enabled()
    finally:
        cudnn.deterministic = False
        cuda.matmul.allow_tf32, cudnn.allow_tf32 = former[:2]
        th.use_deterministic_algorithms(former[2])
    with raises(RuntimeError):
        th.set_float32_matmul_precision("fast")
    with raises(RuntimeError, "True or False"):
        cudnn.enabled = 1
    with raises(AttributeError, "no attribute 'alow_tf32'"):
        cudnn.alow_tf32 = True
    q = th.randn(1, 2, 8, 16)
    expected = nn.functional.scaled_dot_product_attention(q, q, q)
    with th.backends.cuda.sdp_kernel(enable_flash=False, enable_mem_efficient=False, enable_cudnn=False):
        assert th.backends.cuda.math_sdp_enabled() and not th.backends.cuda.flash_sdp_enabled()
        close(nn.functional.scaled_dot_product_attention(q, q, q), expected.tolist(), 1e-5)
    assert th.backends.cuda.flash_sdp_enabled()
    with raises(AttributeError, "left out"):
        th.backends.cuda.cufft_plan_cache
    assert not th.backends.mps.is_available()
    assert th.accelerator.is_available() == th.cuda.is_available()
    assert (th.accelerator.current_accelerator() is None) == (not th.cuda.is_available())
