"""User-defined operators (`torch.library`): Python functions that are called by their names under `ops` and run unchanged."""

import functools

_REASON = "programs run eagerly: a function of Python is called as it is"


class CustomOpDef:
    """A function that was registered as an operator. Calling it calls the function, or the one for the device."""

    def __init__(self, name, function):
        self._name, self._init_fn, self._kernels = name, function, {}
        self._backward = self._setup_context = None
        functools.update_wrapper(self, function)

    def __call__(self, *args, **kwargs):
        if self._backward is None:
            return self._computed(*args, **kwargs)
        return _with_gradient(self, args, kwargs)

    def _computed(self, *args, **kwargs):
        from ._core import Tensor
        tensor = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        return self._kernels.get(getattr(tensor, "device", None) and tensor.device.type, self._init_fn)(*args, **kwargs)

    def register_fake(self, fn, /):
        """Returns the function: nothing is traced."""
        return fn

    def register_kernel(self, device_types, fn=None, /):
        """Registers a function for kinds of devices."""
        if fn is None:
            return lambda function: self.register_kernel(device_types, function)
        for kind in [device_types] if isinstance(device_types, str) else device_types:
            self._kernels[kind] = fn
        return fn

    def register_autograd(self, backward, /, *, setup_context=None):
        """Sets the backward pass of the operator."""
        self._backward, self._setup_context = backward, setup_context

    register_vmap = register_torch_dispatch = register_autocast = register_fake


def _with_gradient(operator, args, kwargs):
    from .autograd import Function
    names = list(kwargs)

    class _Called(Function):
        @staticmethod
        def forward(ctx, *values):
            named = dict(zip(names, values[len(args):]))
            output = operator._computed(*values[:len(args)], **named)
            if operator._setup_context is not None:
                operator._setup_context(ctx, values, output)
            return output

        @staticmethod
        def backward(ctx, *gradients):
            found = operator._backward(ctx, *gradients)
            return found if isinstance(found, tuple) else (found,)
    return _Called.apply(*args, *kwargs.values())


def custom_op(name, fn=None, /, *, mutates_args=(), device_types=None, schema=None, tags=None):
    """Registers a Python function as an operator."""
    if fn is None:
        return lambda function: custom_op(name, function, mutates_args=mutates_args, device_types=device_types, schema=schema)
    return CustomOpDef(name, fn)


triton_op = custom_op


def _kept(*args, **kwargs):
    """Returns a decorator that returns its function unchanged, or the function that was passed."""
    given = [value for value in args if callable(value)]
    return given[-1] if given else lambda function: function


register_fake = impl_abstract = register_kernel = register_autocast = register_vmap = register_torch_dispatch = impl = wrap_triton = _kept


def register_autograd(op, backward, /, *, setup_context=None, lib=None):
    """Sets the backward pass of an operator from `custom_op`."""
    if not isinstance(op, CustomOpDef):
        raise NotImplementedError(f"library.register_autograd by the name {op!r} is left out: give it the operator that `custom_op` returned")
    op.register_autograd(backward, setup_context=setup_context)


def define(*args, **kwargs):
    """Does nothing: operators have no schemas of their own here."""
    return _kept(*args[2:])


class Library:
    """A group of operators. Definitions are accepted, but never looked up."""

    def __init__(self, ns, kind, dispatch_key=""):
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key

    def define(self, schema, alias_analysis="", *, tags=()):
        """Returns the name of the schema."""
        return schema.partition("(")[0]

    def impl(self, op_name, fn, dispatch_key="", *, with_keyset=False, allow_override=False):
        """Does nothing."""

    def fallback(self, fn, dispatch_key="", *, with_keyset=False):
        """Does nothing."""

    def _destroy(self):
        pass

    _register_fake = impl


def get_ctx():
    """Raises: nothing is traced."""
    raise NotImplementedError(f"library.get_ctx is left out: {_REASON}")


def opcheck(*args, **kwargs):
    """Raises: operators have no schemas to check."""
    raise NotImplementedError(f"library.opcheck is left out: {_REASON}")


infer_schema = opcheck
