"""Functions with a backward pass of their own (`torch.autograd.function`)."""

import functools
import operator

from .. import _core


class FunctionCtx:
    """The values that the forward pass of a function leaves for its backward pass. Attributes of one's own may be set."""

    needs_input_grad = ()
    _materializes = True
    _kept = ()
    _without_gradient = ()
    _dirty = ()
    _saved = None

    def save_for_backward(self, *tensors):
        """Keeps tensors for the backward pass, which finds a write in place meanwhile."""
        self._kept = tensors

    def save_for_forward(self, *tensors):
        """Does nothing: there is no forward-mode differentiation."""

    def mark_non_differentiable(self, *args):
        """Says which results have no gradient."""
        self._without_gradient = args

    def mark_dirty(self, *args):
        """Says which inputs were written in place; they are results, too."""
        self._dirty = args

    def set_materialize_grads(self, value):
        """Sets whether a gradient that is missing is zeros in the backward pass, which is the default, or None."""
        self._materializes = bool(value)

    @property
    def saved_tensors(self):
        """The tensors that were kept."""
        return () if self._saved is None else self._saved.get()


def _gradients(cls, ctx, inputs, results, gradients):
    """Calls the backward pass of a function. `inputs` has, for each argument, what is known of the tensor, or None."""
    if ctx._materializes:
        gradients = [
            _core.zeros(shape, dtype=dtype, device=device) if gradient is None and dtype.is_floating_point else gradient
            for gradient, (shape, dtype, device) in zip(gradients, results)]
    found = (cls.vjp if cls.backward is Function.backward else cls.backward)(ctx, *gradients)
    found = found if isinstance(found, tuple) else (found,)
    title = f"{cls.__name__}Backward"
    while len(found) > len(inputs) and found[-1] is None:
        found = found[:-1]
    if len(found) != len(inputs):
        raise RuntimeError(
            f"function {title} returned an incorrect number of gradients (expected {len(inputs)}, got {len(found)})")
    fitting = []
    for place, (gradient, known) in enumerate(zip(found, inputs)):
        if known is None:
            if gradient is not None:
                raise RuntimeError(
                    f"function {title} returned a gradient different than None at position {place + 1}, but the corresponding forward "
                    "input was not a Variable")
        else:
            fitting.append(_fitting(title, len(fitting), gradient, *known))
    return fitting


def _fitting(title, place, gradient, shape, dtype, device, is_wanted):
    """Returns a gradient as its input has it: summed where the input was broadcast, and converted."""
    if gradient is None or not is_wanted:
        return None
    if not isinstance(gradient, _core.Tensor):
        raise RuntimeError(f"expected Variable or None (got {type(gradient).__name__})")
    if tuple(gradient.shape) != tuple(shape):
        own, found = tuple(shape), tuple(gradient.shape)
        padded = (1,) * (len(found) - len(own)) + own
        if len(found) < len(own) or any(one not in (1, other) for one, other in zip(padded, found)):
            raise RuntimeError(f"Function {title} returned an invalid gradient at index {place} - got {list(found)} but expected shape "
                               f"compatible with {list(own)}")
        dims = [dim for dim, (one, other) in enumerate(zip(padded, found)) if one != other]
        gradient = gradient.sum(dims, keepdim=True).reshape(own) if dims else gradient.reshape(own)
    if gradient.device != device:
        raise RuntimeError(f"Function {title} returned an invalid gradient at index {place} - expected device {device} but got "
                           f"{gradient.device}")
    return gradient if gradient.dtype is dtype else gradient.to(dtype)


class Function:
    """An operator of one's own: a subclass has `forward` and `backward` as static methods, and `apply` calls it."""

    @staticmethod
    def forward(*args, **kwargs):
        """Computes the results, from `ctx` and the inputs; or from the inputs alone where there is a `setup_context`."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keeps what the backward pass needs."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx, *grad_outputs):
        """Computes the gradients of the inputs from those of the results."""
        raise NotImplementedError("You must implement either the backward or vjp method for your custom autograd.Function to use it "
                                  "with backward mode AD.")

    # Another name: a subclass has either.
    vjp = backward

    @classmethod
    def apply(cls, *args):
        """Calls the function, and records it."""
        if cls.backward is not Function.backward and cls.vjp is not Function.vjp:
            raise RuntimeError("Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only implement one "
                               "of them.")
        ctx = FunctionCtx()
        is_tensor = [isinstance(value, _core.Tensor) for value in args]
        ctx.needs_input_grad = tuple(known and value.requires_grad for known, value in zip(is_tensor, args))
        is_recorded = any(ctx.needs_input_grad) and _core.is_grad_enabled()
        former = _core._set_grad_enabled(False)
        try:
            if cls.setup_context is Function.setup_context:
                output = cls.forward(ctx, *args)
            else:
                output = cls.forward(*args)
                cls.setup_context(ctx, args, output)
        finally:
            _core._set_grad_enabled(former)
        listed = output if isinstance(output, tuple) else (output,)
        if any(not any(dirty is value for value in listed) for dirty in ctx._dirty):
            raise RuntimeError("Some elements marked as dirty during the forward method were not returned as output. The inputs that are "
                               "modified inplace must all be outputs of the Function.")
        return cls._recorded(ctx, args, is_tensor, output) if is_recorded else output

    @classmethod
    def _recorded(cls, ctx, args, is_tensor, output):
        listed = output if isinstance(output, tuple) else (output,)
        # What was written in place is a result in memory of its own, and written once more by a copy, which autograd knows, of views too.
        dirty = ctx._dirty
        copies = [value.detach().clone() for value in dirty]

        def apart(value):
            return next((copy for one, copy in zip(dirty, copies) if one is value), value)
        listed, ctx._kept = (tuple(apart(value) for value in values) for values in (listed, ctx._kept))
        results = [value for value in listed if isinstance(value, _core.Tensor)]
        for place, tensor in enumerate(ctx._kept):
            if tensor is not None and not isinstance(tensor, _core.Tensor):
                raise TypeError(f"save_for_backward can only save variables, but argument {place} is of type {type(tensor).__name__}")
        inputs = [value for known, value in zip(is_tensor, args) if known]
        # An input that is given back is a result of its own, and kept as the input that it is.
        kept_as = [result for result in results if not any(result is value for value in inputs)]
        if len(kept_as) != len(results):
            kept_as = [result.detach() if any(result is value for value in inputs) else result for result in results]
        ctx._saved = _core._SavedTensors(list(ctx._kept), kept_as)
        described = [(value.shape, value.dtype, value.device) for value in results]
        known = [(value.shape, value.dtype, value.device, value.requires_grad) if is_one else None
                 for is_one, value in zip(is_tensor, args)]
        backward = functools.partial(_gradients, cls, ctx, known, described)
        made = _core._record_function(f"{cls.__name__}Backward", backward, ctx._saved, inputs, results)
        found = iter(made)
        marked = ctx._without_gradient
        ctx._kept = ctx._without_gradient = ctx._dirty = ()

        def of(value):
            if not isinstance(value, _core.Tensor):
                return value
            recorded = next(found)
            for one, copy in zip(dirty, copies):
                if copy is value:
                    if not any(one is other for other in marked):
                        one.copy_(recorded)
                    return one
            return value if any(value is other for other in marked) else recorded
        made = tuple(of(value) for value in listed)
        return made if isinstance(output, tuple) else made[0]


class _DifferentiatedTwice(Function):
    """Results whose own gradient is refused."""

    @staticmethod
    def forward(ctx, count, *tensors):
        return tuple(tensor.detach() for tensor in tensors[:count])

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")


def once_differentiable(fn):
    """Decorates a `backward` whose operators are not recorded: differentiating its gradients is an error."""
    @functools.wraps(fn)
    def wrapped(ctx, *args):
        former = _core._set_grad_enabled(False)
        try:
            found = fn(ctx, *args)
        finally:
            _core._set_grad_enabled(former)
        if not former:
            return found
        given = [value for value in args if isinstance(value, _core.Tensor) and value.requires_grad]
        listed = found if isinstance(found, tuple) else (found,)
        tensors = [value for value in listed if isinstance(value, _core.Tensor)]
        if not given or not tensors:
            return found
        marked = iter(_DifferentiatedTwice.apply(len(tensors), *tensors, *given))
        listed = tuple(next(marked) if isinstance(value, _core.Tensor) else value for value in listed)
        return listed if isinstance(found, tuple) else operator.itemgetter(0)(listed)
    return wrapped


class InplaceFunction(Function):
    """A function that may write in place, as `inplace` says."""

    def __init__(self, inplace=False):
        self.inplace = inplace
