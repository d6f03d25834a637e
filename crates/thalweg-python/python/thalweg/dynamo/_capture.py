"""CUDA graphs of compiled graphs: `mode="reduce-overhead"`."""

import torch

import thalweg


class Captures:
    """The capture of the graphs of one function. `adapter` has the names of PyTorch that are not public."""

    def __init__(self, adapter):
        self._adapter, self._device = adapter, None

    def reason_against(self, gm, device):
        """Returns why a graph is not captured, or None."""
        if device.type != "cuda" or not torch.cuda.is_available():
            return f"the graph is on {device}, where no CUDA graphs are"
        return self._adapter.reason_against_capture(gm)

    def of(self, call, gm, inputs, kind, device):
        """Returns a function that replays a graph, and the reason why it does not. One of them is None."""
        reason = self.reason_against(gm, device)
        if reason is None and kind == "backward" and self._device is None:
            reason = "its forward pass is not captured"
        if reason is None:
            index = device.index or 0
            self._device = index if kind == "forward" else self._device
            return self._adapter.captured(_with_own_pool(call), gm, inputs, kind, index), None
        return self._uncaptured(call) if kind == "backward" else call, reason

    def _uncaptured(self, call):
        def run(inputs):
            if self._device is not None:
                self._adapter.running_backward(self._device)
            return call(inputs)

        return run


def _with_own_pool(call):
    """Returns a function that allocates from a pool of its own while it is captured, because each replay writes that
    memory again."""
    pools = []

    def run(inputs):
        if not torch.cuda.is_current_stream_capturing():
            return call(inputs)
        if not pools:
            pools.append(thalweg.cuda.MemPool())
        with thalweg.cuda.use_mem_pool(pools[0]):
            return call(inputs)

    return run
