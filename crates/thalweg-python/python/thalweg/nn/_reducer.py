"""The reductions of gradients while a backward pass computes others (`DistributedDataParallel`).

Buckets hold parameters of one dtype, the last of the module first, because their gradients come first. When all gradients of a bucket have
been accumulated, and those of the buckets before it, its reduction begins; all ranks reduce the buckets in the same order. At the end of
the pass the remaining buckets follow, with zeros for parameters that this rank has not used, and a map of the parameters that the
ranks have used.
"""

from .. import _core
from ..autograd import no_grad
from ..autograd.variable import Variable

_FIRST_BUCKET, _MIB = 1 << 20, 1 << 20


class Bucket:
    """Gradients that are reduced together (`torch.distributed.GradBucket`)."""

    def __init__(self, buffer, parameters, gradients, index, is_last):
        self._buffer, self._parameters, self._gradients, self._index, self._is_last = buffer, parameters, gradients, index, is_last

    def buffer(self):
        """Returns the gradients, one after another."""
        return self._buffer

    def gradients(self):
        """Returns the gradients."""
        return self._gradients

    def parameters(self):
        """Returns the parameters."""
        return self._parameters

    def index(self):
        """Returns the number of the bucket, in the order of reductions."""
        return self._index

    def is_last(self):
        """Returns whether no bucket follows."""
        return self._is_last

    def set_buffer(self, tensor):
        """Replaces the gradients."""
        self._buffer = tensor


def _buckets(parameters, most_bytes):
    """Returns the numbers of the parameters of each bucket."""
    done, open_ones, limit = [], {}, min(_FIRST_BUCKET, most_bytes)
    for number in reversed(range(len(parameters))):
        kind = parameters[number].dtype, parameters[number].device
        bucket = open_ones.setdefault(kind, [])
        bucket.append(number)
        if sum(parameters[one].numel() * parameters[one].element_size() for one in bucket) >= limit:
            done.append(open_ones.pop(kind))
            limit = most_bytes
    return done + list(open_ones.values())


def _flat(tensor):
    """Returns the elements of a tensor in the order of their addresses, in the same memory; None if they do not follow one another."""
    tensor = _core.view_as_real(tensor) if tensor.is_complex() else tensor
    order = sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride(dim), -tensor.shape[dim]))
    flat = tensor.permute(order)
    return flat.view(-1) if flat.is_contiguous() else None


class Reducer:
    """The buckets of a module, and those of the pass that runs."""

    def __init__(self, parameters, group, most_mib):
        self._parameters, self._group = parameters, group
        self._buckets = _buckets(parameters, int((25 if most_mib is None else most_mib) * _MIB))
        self._bucket_of = {number: place for place, bucket in enumerate(self._buckets) for number in bucket}
        self._pass = None
        # A function that reduces a bucket, and its state; a factor of the means.
        self.hook, self.factor = None, 1.0

    def watch(self, is_needed):
        """Reduces the gradients of later passes, if a function says so at their beginning."""
        def watched(number):
            def accumulated(_):
                if self._pass is not None or is_needed():
                    self._accumulated(number)
            return accumulated
        for number, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(watched(number))

    def forget(self):
        """Forgets a pass that has failed, before a forward pass."""
        if _core._current_graph_task_id() < 0:
            self._pass = None

    def _accumulated(self, number):
        """Called when a gradient has been accumulated."""
        if self._pass is None:
            self._begin_pass()
            Variable._execution_engine.queue_callback(self._end)
        current = self._pass
        if number in current.ready:
            return
        current.ready.add(number)
        current.see_stream(self._parameters[number])
        current.missing[self._bucket_of[number]] -= 1
        while current.begun < len(self._buckets) and not current.missing[current.begun]:
            self._begin()

    def _begin_pass(self):
        self._pass = _Pass([len(bucket) for bucket in self._buckets])

    def follow(self):
        """Takes part in the reductions of a pass of the other ranks with zeros."""
        self._begin_pass()
        try:
            while self._pass.begun < len(self._buckets):
                self._begin(is_followed=True)
            for _, gradients, work in self._pass.results:
                self._means(gradients, work)
            self._used(self._pass, is_followed=True)
        finally:
            self._pass = None

    def _begin(self, is_followed=False):
        """Begins the reduction of the next bucket."""
        place = self._pass.begun
        self._pass.begun += 1
        self._pass.join_streams()
        parameters, gradients = [self._parameters[number] for number in self._buckets[place]], []
        with no_grad():
            for parameter in parameters:
                gradient = None if is_followed else parameter.grad
                if gradient is not None and gradient.layout is not _core.strided:
                    raise NotImplementedError("DistributedDataParallel: sparse gradients are left out; make the module's embeddings with sparse=False")
                gradients.append(_core.zeros_like(parameter) if gradient is None else gradient.detach())
            if self.hook is not None:
                hook, state = self.hook
                flat = _core.cat([gradient.reshape(-1) for gradient in gradients])
                future = hook(state, Bucket(flat, parameters, gradients, place, place == len(self._buckets) - 1))
                self._pass.results.append((parameters, gradients, future))
                return
            from ..distributed._collectives import reduced_together
            from ..distributed._group import ReduceOp
            dense = [gradient if _flat(gradient) is not None else gradient.contiguous() for gradient in gradients]
            work = reduced_together([_flat(gradient) for gradient in dense], ReduceOp.AVG, self._group)
            self._pass.results.append((parameters, dense, work))

    def _end(self):
        """Begins the remaining reductions, and gives the parameters their gradients."""
        current = self._pass
        try:
            while current.begun < len(self._buckets):
                self._begin()
            is_used = self._used(current)
            with no_grad():
                for bucket, (parameters, gradients, work) in zip(self._buckets, current.results):
                    means = self._means(gradients, work)
                    if self.factor != 1.0:
                        means = [mean.mul_(self.factor) for mean in means]
                    for number, parameter, mean in zip(bucket, parameters, means):
                        if is_used(number) and parameter.grad is None:
                            parameter.grad = mean.clone() if self.hook is not None else mean
                        elif is_used(number) and parameter.grad.data_ptr() != mean.data_ptr():
                            parameter.grad.detach().copy_(mean)
        finally:
            self._pass = None

    def _means(self, gradients, work):
        """Returns the reduced gradients of a bucket."""
        if self.hook is None:
            work.wait()
            return gradients
        parts = work.wait().split([gradient.numel() for gradient in gradients])
        return [part.reshape(gradient.shape) for part, gradient in zip(parts, gradients)]

    def _used(self, current, is_followed=False):
        """Returns a function that says whether any rank has a gradient of a parameter. It waits only on a rank that lacks some."""
        from ..distributed._collectives import all_reduce
        from ..distributed._group import ReduceOp
        count, device = len(self._parameters), self._parameters[0].device
        missing = [number for number in range(count) if is_followed or number not in current.ready and self._parameters[number].grad is None]
        with no_grad():
            used = _core.ones(count, dtype=_core.uint8, device=device)
            if missing:
                used[_core.tensor(missing, device=device)] = 0
            all_reduce(used, ReduceOp.MAX, self._group)
        if not missing:
            return lambda number: True
        by_any = used.tolist()
        return lambda number: bool(by_any[number])


class _Pass:
    """A backward pass that runs."""

    def __init__(self, missing):
        # The numbers of gradients that each bucket waits for, and of buckets whose reductions have begun.
        self.missing, self.begun, self.ready, self.results, self._streams = missing, 0, set(), [], []

    def see_stream(self, parameter):
        """Notes the stream that has computed a gradient."""
        if parameter.is_cuda:
            from ..cuda import current_stream
            stream = current_stream(parameter.device)
            if stream not in self._streams:
                self._streams.append(stream)

    def join_streams(self):
        """Makes the current stream wait for the others that have computed gradients."""
        if len(self._streams) > 1:
            from ..cuda import current_stream
            current = current_stream(self._streams[0].device)
            for stream in self._streams:
                if stream != current:
                    current.wait_stream(stream)
