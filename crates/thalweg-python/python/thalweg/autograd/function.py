"""User-defined functions with their own backward pass (`torch.autograd.function`)."""

import functools
import inspect
import operator
import warnings

from .. import _core, _external
from .. import _transform_levels as _levels


# The attributes that a context reads from its node.
_OF_NODES = ("name", "next_functions", "metadata", "register_hook", "register_prehook", "_sequence_nr", "_register_hook_dict", "_input_metadata")


class FunctionCtx:
    """The values that a function's forward pass keeps for its backward pass. Programs may set their own attributes."""

    needs_input_grad = ()
    _materializes = True
    _materialize_non_diff_grads = True
    _kept = ()
    _without_gradient = ()
    _dirty = ()
    _saved = None
    _node = None
    # The saved instances of classes without elements of their own, by their places.
    _objects = {}
    # The tensors of `save_for_forward`, and whether `jvp` reads them.
    _kept_forward, _is_forward = None, False

    def __getattr__(self, name):
        if name in _OF_NODES and self._node is not None:
            node = self._node.get()
            if node is None:
                raise RuntimeError(f"Attribute '{name}' is invalid for this instance of _C._FunctionBase: the graph that it was a part of is gone")
            return getattr(node, name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def save_for_backward(self, *tensors):
        """Saves tensors for the backward pass, which detects in-place writes since then."""
        self._kept = tensors

    def save_for_forward(self, *tensors):
        """Saves tensors for `jvp`."""
        assert all(tensor is None or isinstance(tensor, _core.Tensor) for tensor in tensors), \
            "save_for_forward expects all arguments to be tensors; you should save non-tensors as attributes on ctx."
        self._kept_forward = tensors

    def mark_non_differentiable(self, *args):
        """Marks results that have no gradient."""
        self._without_gradient = args

    def mark_dirty(self, *args):
        """Marks inputs that were written in place. They must be results as well."""
        self._dirty = args

    def mark_shared_storage(self, *pairs):
        """Does nothing but warn: shared memory is detected automatically."""
        warnings.warn("mark_shared_storage is deprecated. Tensors with shared storages are automatically tracked. Note that calls to `set_()` are not "
                      "tracked", FutureWarning, stacklevel=2)

    def set_materialize_grads(self, value):
        """Sets whether a missing gradient is passed to the backward pass as zeros, which is the default, or as None."""
        self._materializes = bool(value)

    @property
    def saved_tensors(self):
        """The tensors that were saved."""
        if self._is_forward and self._kept_forward is not None:
            return self._kept_forward
        if self._saved is None:
            return ()
        found = self._saved.get()
        return tuple(self._objects.get(place, one) for place, one in enumerate(found)) if self._objects else found

    @property
    def saved_variables(self):
        """The tensors that were saved, under the former name."""
        warnings.warn("'saved_variables' is deprecated; use 'saved_tensors'", DeprecationWarning, stacklevel=2)
        return self.saved_tensors

    @property
    def _raw_saved_tensors(self):
        """The handles of the saved tensors."""
        if self._saved is None or self._node is None:
            return ()
        self._saved.check()
        node = self._node.get()
        return tuple(_core._saved_tensor(node, f"tensors.{place}") for place in range(self._saved.count()))


class BackwardCFunction(_core._Node):
    """The node of a function. It also has the attributes of the context."""

    def __getattr__(self, name):
        if name == "_context" or name in _OF_NODES:
            raise AttributeError(name)
        return getattr(self._context, name)


class FunctionMeta(type):
    """The metaclass of functions: each function has a class of nodes."""

    @property
    def _backward_cls(cls):
        """The class of the nodes."""
        found = cls.__dict__.get("_node_class")
        if found is None:
            found = cls._node_class = type(f"{cls.__name__}Backward", (BackwardCFunction,), {
                "__module__": cls.__module__, "_forward_cls": cls, "__doc__": f"The node of `{cls.__name__}`."})
        return found


def _gradients(cls, ctx, inputs, results, gradients):
    """Calls the backward pass of a function. `inputs` has, for each argument, the properties of its tensor or None. `results`
    has, for each result, its properties and whether a missing gradient may be replaced by zeros, or None."""
    if _levels.local.is_forward and cls.jvp is not Function.jvp:
        return list(_Transposed.apply(cls, ctx, inputs, *gradients))
    given = []
    for known, gradient in zip(results, gradients):
        if gradient is None and known is not None and ctx._materializes and known[3]:
            gradient = _core.zeros(known[0], dtype=known[1], device=known[2])
        given.append(gradient)
    found = (cls.vjp if cls.backward is Function.backward else cls.backward)(ctx, *given)
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
    return _external.apart(fitting) if _external.may_exist else fitting


def _fitting(title, place, gradient, shape, dtype, device, is_wanted):
    """Returns a gradient in the shape and dtype of its input: summed where the input was broadcast, and converted."""
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


_LEGACY = ("Legacy autograd function with non-static forward method is deprecated. Please use new-style autograd function with static forward method. "
           "(Example: https://pytorch.org/docs/stable/autograd.html#torch.autograd.Function)")


class Function(metaclass=FunctionMeta):
    """A user-defined operator. A subclass has `forward` and `backward` as static methods, and `apply` calls it."""

    # Whether `vmap` calls the function for one slice after another.
    generate_vmap_rule = False

    def __init__(self, *args, **kwargs):
        warnings.warn(f"{type(self)} should not be instantiated. Methods on autograd functions are all static, so you should invoke them on the class itself. "
                      "Instantiating an autograd function will raise an error in a future version of PyTorch.", DeprecationWarning, stacklevel=2)

    def __call__(self, *args, **kwargs):
        raise RuntimeError(_LEGACY)

    def __getattr__(self, name):
        if name == "metadata":
            raise RuntimeError("You attempted to access the anomaly metadata of a custom autograd function but the underlying PyNode has already been "
                               "deallocated. The most likely reason this occurred is because you assigned x.grad_fn to a local variable and then let "
                               "the original variable get deallocated. Don't do that! If you really have no way of restructuring your code so this is the "
                               "case, please file an issue reporting that you are affected by this.")
        if name in _OF_NODES:
            raise RuntimeError(f"Attribute '{name}' is invalid for this instance of _C._FunctionBase. Accessing this attribute directly on an instance of "
                               "autograd.Function is a legacy access pattern that is no longer supported.")
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    @staticmethod
    def forward(*args, **kwargs):
        """Computes the results from `ctx` and the inputs, or from the inputs only if there is a `setup_context`."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Saves the values that the backward pass needs."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx, *grad_outputs):
        """Computes the gradients of the inputs from those of the results."""
        raise NotImplementedError("You must implement either the backward or vjp method for your custom autograd.Function to use it "
                                  "with backward mode AD.")

    # An alias: a subclass may define either.
    vjp = backward

    @staticmethod
    def jvp(ctx, *grad_inputs):
        """Computes the tangents of the results from those of the inputs."""
        raise NotImplementedError("You must implement the jvp function for custom autograd.Function to use it with forward mode AD.")

    @staticmethod
    def vmap(info, in_dims, *args):
        """Computes the results over a dimension of the arguments. It is never called, because `vmap` calls the function for one
        slice after another."""
        raise NotImplementedError("To use autograd.Function with vmap, you must either override the vmap staticmethod or set generate_vmap_rule=True.")

    @classmethod
    def apply(cls, *args, **kwargs):
        """Calls the function and records it."""
        if kwargs or cls.setup_context is not Function.setup_context:
            args = _bound(cls, args, kwargs)
        if cls.backward is not Function.backward and cls.vjp is not Function.vjp:
            raise RuntimeError("Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only implement one "
                               "of them.")
        if _levels.local.maps:
            from ..func._batching import find, function_called
            if find(args):
                return function_called(cls, args)
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
        if any(not any(dirty is value for value in args) for dirty in ctx._dirty):
            warnings.warn("Only input Tensors should be given to ctx.mark_dirty(). If a Tensor is not an input, there is no need to pass it to "
                          "mark_dirty().", stacklevel=2)
        if is_recorded:
            return cls._recorded(ctx, args, is_tensor, output)
        if not _core.is_grad_enabled():
            return output
        # As in a recorded call, a view of an input must not be used to write to the input.
        listed = tuple(value._of_function() if isinstance(value, _core.Tensor) and value._is_part() and not any(value is one for one in args) else value
                       for value in listed)
        return listed if isinstance(output, tuple) else listed[0]

    @classmethod
    def _recorded(cls, ctx, args, is_tensor, output):
        listed = output if isinstance(output, tuple) else (output,)
        # A tensor that was written in place takes the history of the result. A view is written again by a copy, which its base
        # records.
        dirty = ctx._dirty
        copies = [value.detach().clone() if value._is_part() else value.detach() for value in dirty]

        def apart(value):
            return next((copy for one, copy in zip(dirty, copies) if one is value), value)
        listed, ctx._kept = (tuple(apart(value) for value in values) for values in (listed, ctx._kept))
        results = [value if isinstance(value, _core.Tensor) else None for value in listed]
        for place, tensor in enumerate(ctx._kept):
            if tensor is not None and not isinstance(tensor, _core.Tensor):
                raise TypeError(f"save_for_backward can only save variables, but argument {place} is of type {type(tensor).__name__}")
        inputs = [value for known, value in zip(is_tensor, args) if known]
        # An input that is returned becomes a separate result, but is saved as the input.
        kept_as = [None if result is None or any(result is value for value in inputs) else result for result in results]
        ctx._saved = _core._SavedTensors(list(ctx._kept), kept_as)
        ctx._objects = {place: value for place, value in enumerate(ctx._kept) if _external.is_own_class(value)}
        marked = ctx._without_gradient
        described = [(value.shape, value.dtype, value.device, ctx._materialize_non_diff_grads or not any(value is one for one in marked))
                     if isinstance(value, _core.Tensor) else None for value in listed]
        known = [(value.shape, value.dtype, value.device, value.requires_grad) if is_one else None
                 for is_one, value in zip(is_tensor, args)]
        backward = functools.partial(_gradients, cls, ctx, known, described)
        made, ctx._node = _core._record_function(f"{cls.__name__}Backward", backward, ctx._saved, inputs, results, cls._backward_cls, ctx)
        found = iter(made)
        ctx._kept = ctx._without_gradient = ctx._dirty = ()

        def of(value):
            recorded = next(found)
            if recorded is None:
                return value
            for one, copy in zip(dirty, copies):
                if copy is value:
                    if any(one is other for other in marked):
                        return one
                    if one._is_part():
                        one.copy_(recorded)
                    elif one.is_leaf and one.requires_grad:
                        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
                    else:
                        one._take_history(recorded)
                    return one
            if any(value is other for other in marked):
                return value
            if _external.is_own_class(value) and not any(value is one for one in args):
                value._take_history(recorded)
                return value
            return recorded
        once = {}
        made = tuple(once.setdefault(id(value), new) for value, new in [(value, of(value)) for value in listed])
        return made if isinstance(output, tuple) else made[0]


def _bound(cls, args, kwargs):
    """Returns the arguments of a call with keyword arguments, in positional order."""
    is_split = cls.setup_context is not Function.setup_context
    signature = inspect.signature(cls.forward)
    bound = signature.bind(*args, **kwargs) if is_split else signature.bind(None, *args, **kwargs)
    bound.apply_defaults()
    return bound.args if is_split else bound.args[1:]


class _Transposed(Function):
    """The gradients of the inputs of a function with tangents of its own, from zeros: their own gradients are the tangents."""

    @staticmethod
    def forward(ctx, function, own, inputs, *gradients):
        ctx.call, ctx.is_given = (function, own, inputs), [gradient is not None for gradient in gradients]
        return tuple(_core.zeros(known[0], dtype=known[1], device=known[2]) for known in inputs if known is not None)

    @staticmethod
    def backward(ctx, *tangents):
        function, own, inputs = ctx.call
        listed = iter(tangents)
        given = [None if known is None else next(listed) for known in inputs]
        own._is_forward = True
        try:
            found = function.jvp(own, *given)
        finally:
            own._is_forward = False
        found = found if isinstance(found, tuple) else (found,)
        if len(found) != len(ctx.is_given):
            raise RuntimeError(f"Function's jvp returned {len(found)} tangents where {len(ctx.is_given)} were expected.")
        return (None, None, None, *(tangent if is_given else None for tangent, is_given in zip(found, ctx.is_given)))


class _DifferentiatedTwice(Function):
    """Results whose differentiation is refused."""

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
    """A function that may work in place, as its attribute `inplace` states."""

    def __init__(self, inplace=False):
        self.inplace = inplace
