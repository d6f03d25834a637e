"""Automatic mixed precision (`torch.amp`)."""

import functools
import inspect
import sys
import threading
import types
import warnings

from . import _core, _underscored
from ._regions import Open

# The dtypes of the regions that each thread has entered.
_entered = threading.local()
# Held while a scaler is created, because several threads may use it first.
_making = threading.Lock()


def get_autocast_dtype(device_type="cuda"):
    """Returns the dtype of this thread's innermost `autocast` region. Outside of all regions, it is the default for the kind of
    device: bfloat16 for the CPU, float16 for others."""
    dtypes = getattr(_entered, "dtypes", None)
    return dtypes[-1] if dtypes else _usual(device_type)


def _usual(device_type):
    return _core.bfloat16 if device_type == "cpu" else _core.float16


class autocast:
    """A region whose operators choose the dtype that they compute in: a context manager and a decorator."""

    def __init__(self, device_type="cuda", dtype=None, enabled=True, cache_enabled=None):
        if not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        if not is_autocast_available(device_type):
            raise RuntimeError(f"User specified an unsupported autocast device_type '{device_type}'")
        self.device, self.fast_dtype = device_type, dtype or _usual(device_type)
        if enabled and device_type == "cpu" and self.fast_dtype not in (_core.float16, _core.bfloat16):
            warnings.warn("In CPU autocast, but the target dtype is not supported. Disabling autocast.\nCPU Autocast only supports dtypes of "
                          f"torch.bfloat16, torch.float16 currently. It is {self.fast_dtype}.", stacklevel=2)
            enabled = False
        self._enabled, self._cache_enabled = enabled, True if cache_enabled is None else cache_enabled
        self._regions = Open()

    def __enter__(self):
        # A disabled region may name any dtype.
        self._regions.enter(_core._AutocastRegion(self.fast_dtype if self._enabled else _core.float16, self._enabled, self._cache_enabled))
        if not hasattr(_entered, "dtypes"):
            _entered.dtypes = []
        _entered.dtypes.append(self.fast_dtype)
        return self

    def __exit__(self, *_):
        region = self._regions.leave()
        _entered.dtypes.pop()
        region.close()

    def __call__(self, function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            with autocast(self.device, self.fast_dtype, self._enabled, self._cache_enabled):
                return function(*args, **kwargs)
        return wrapped


def is_autocast_available(device_type):
    """Returns whether `autocast` regions work on a kind of device."""
    return device_type in ("cuda", "cpu", "sim") or _core.device(device_type).type in ("cuda", "cpu", "sim")


def custom_fwd(fwd=None, *, device_type="cuda", cast_inputs=None):
    """Makes the `forward` of an autograd function note whether `autocast` is on, for its `custom_bwd`. With `cast_inputs`,
    floating-point tensors are cast to that dtype, and `forward` runs outside of `autocast`."""
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def decorated(*args, **kwargs):
        ctx = args[0]
        ctx._dtype = get_autocast_dtype(device_type)
        ctx._fwd_used_autocast = _core.is_autocast_enabled()
        if cast_inputs is None or not ctx._fwd_used_autocast:
            return fwd(*args, **kwargs)
        ctx._fwd_used_autocast = False
        with autocast(device_type, enabled=False):
            return fwd(*_cast(args, cast_inputs), **_cast(kwargs, cast_inputs))
    return decorated


def custom_bwd(bwd=None, *, device_type="cuda"):
    """Makes the `backward` of an autograd function run in the `autocast` state that its `custom_fwd` noted."""
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def decorated(*args, **kwargs):
        with autocast(device_type, args[0]._dtype, args[0]._fwd_used_autocast):
            return bwd(*args, **kwargs)
    return decorated


def _cast(value, dtype):
    """Returns a value with its floating-point tensors cast to a dtype."""
    if isinstance(value, _core.Tensor):
        return value.to(dtype) if value.is_floating_point() and value.dtype is not _core.float64 else value
    if isinstance(value, dict):
        return {_cast(key, dtype): _cast(inner, dtype) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(inner, dtype) for inner in value)
    return value


class GradScaler:
    """Scales losses so that small gradients in low precision do not vanish. The scale adapts itself on the device."""

    def __init__(self, device="cuda", init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
        self._numbers = (init_scale, growth_factor, backoff_factor, growth_interval)
        self._enabled = enabled
        self._inner = None
        self._steps = 0
        # The state of each optimizer since the last update: "unscaled" or "stepped", and the result of `unscale_` if `step`
        # needs it.
        self._stages = {}

    def _scaler(self, device=None):
        with _making:
            if self._inner is None:
                made = _core._GradientScaler(*self._numbers, device)
                if self._steps:
                    made.tensors()[1].fill_(self._steps)
                self._inner = made
            return self._inner

    def is_enabled(self):
        """Returns whether scaling is enabled."""
        return self._enabled

    def scale(self, outputs):
        """Returns the scaled loss, or several scaled losses."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, _core.Tensor):
            return self._scaler(outputs.device).scale(outputs)
        return type(outputs)(self.scale(output) for output in outputs)

    # The tensors that PyTorch programs read. They are None until the first loss is scaled.
    _scale = property(lambda self: self._tensor(0), doc="The scale, on its device.")
    _growth_tracker = property(lambda self: self._tensor(1), doc="The number of finite steps since the scale grew, on its device.")
    _init_scale = property(lambda self: float(self._numbers[0]), doc="The scale before the first loss.")
    _init_growth_tracker = property(lambda self: self._steps, lambda self, steps: setattr(self, "_steps", steps),
                                    doc="The number of finite steps before the first loss.")

    def _tensor(self, place):
        return None if not self._enabled or self._inner is None else self._inner.tensors()[place]

    def _lazy_init_scale_growth_tracker(self, device):
        """Creates the tensors on a device, if no loss has been scaled yet."""
        if self._inner is not None:
            raise AssertionError("_growth_tracker initialized before _scale")
        self._scaler(device)

    def _stage(self, optimizer):
        return self._stages.get(id(optimizer), (None, None))[0]

    def step(self, optimizer, *args, **kwargs):
        """Steps an optimizer, unless one of its gradients is not finite. A fused optimizer decides that on the device, and the
        host does not wait. Any other optimizer is stepped by the host, which waits for the result."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or args:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        if self._stage(optimizer) == "stepped":
            raise RuntimeError("step() has already been called since the last update().")
        self._check_scaled("step")
        with_gradients = _check_gradients(optimizer)
        if _is_fused(optimizer):
            is_unscaled = self._stage(optimizer) == "unscaled"
            if not is_unscaled and all(parameter.grad.dtype is not _core.float16 for parameter in with_gradients):
                # Programs read the gradients after the step, when PyTorch has unscaled them as well.
                optimizer._unscale(self._inner)
                is_unscaled = True
            result = optimizer._around(lambda *_, **__: optimizer._step(self._inner, is_unscaled), args, kwargs)
        elif getattr(optimizer, "_step_supports_amp_scaling", False):
            result = self._step_of_others(optimizer, with_gradients, args, kwargs)
        else:
            if self._stage(optimizer) is None:
                self.unscale_(optimizer)
            found = self._stages[id(optimizer)][1]
            result = None if found.item() else optimizer.step(**kwargs)
        self._stages[id(optimizer)] = "stepped", None
        return result

    def _step_of_others(self, optimizer, with_gradients, args, kwargs):
        """Steps an optimizer that unscales its gradients itself: it receives the scaler, or the scale and the non-finite flag as
        attributes."""
        if "grad_scaler" in inspect.signature(optimizer.step).parameters:
            warnings.warn("GradScaler is going to stop passing itself as a keyword argument to the passed optimizer. In the near future GradScaler "
                          "registers `grad_scale: Tensor` and `found_inf: Tensor` to the passed optimizer and let the optimizer use them directly.",
                          FutureWarning, stacklevel=3)
            return optimizer.step(*args, **kwargs, grad_scaler=self)
        scale, _, found_inf = self._inner.tensors()
        is_unscaled = self._stage(optimizer) == "unscaled"
        if not is_unscaled:
            one = _core.ones([], device=found_inf.device)
            _underscored._amp_foreach_non_finite_check_and_unscale_([parameter.grad for parameter in with_gradients], found_inf, one)
        optimizer.grad_scale, optimizer.found_inf = None if is_unscaled else scale, found_inf
        try:
            return optimizer.step(*args, **kwargs)
        finally:
            del optimizer.grad_scale, optimizer.found_inf

    def update(self, new_scale=None):
        """Ends the step: the scale grows or shrinks, or is set to a number or to the value of a tensor of one element."""
        if not self._enabled:
            return
        self._check_scaled("update")
        if new_scale is not None:
            scale, _, found_inf = self._inner.tensors()
            if isinstance(new_scale, _core.Tensor):
                if new_scale.numel() != 1 or new_scale.requires_grad:
                    raise AssertionError("new_scale should be a float or a 1-element tensor with requires_grad=False.")
                scale.copy_(new_scale.reshape([]))
            else:
                scale.fill_(float(new_scale))
            found_inf.zero_()
        elif not self._stages:
            raise AssertionError("No inf checks were recorded prior to update.")
        else:
            self._inner.update()
        self._stages.clear()

    def _check_scaled(self, name):
        if self._inner is None:
            raise AssertionError(f"Attempted {name} but _scale is None.  This may indicate your script did not use scaler.scale(loss or "
                                 "outputs) earlier in the iteration.")

    def unscale_(self, optimizer):
        """Divides the gradients of an optimizer by the scale, in place, so that they can be clipped. Its step then does not
        unscale them again."""
        if not self._enabled:
            return
        stage = self._stage(optimizer)
        if stage == "unscaled":
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if stage == "stepped":
            raise RuntimeError("unscale_() is being called after step().")
        self._check_scaled("unscale_")
        with_gradients = _check_gradients(optimizer)
        if any(parameter.grad.dtype is _core.float16 for parameter in with_gradients):
            raise ValueError("Attempting to unscale FP16 gradients.")
        if _is_fused(optimizer):
            optimizer._unscale(self._inner)
            self._stages[id(optimizer)] = "unscaled", None
        else:
            self._stages[id(optimizer)] = "unscaled", self._inner.unscale(with_gradients)

    def get_scale(self):
        """Returns the scale. Blocks until it has been computed."""
        if not self._enabled:
            return 1.0
        return float(self._numbers[0]) if self._inner is None else self._inner.tensors()[0].item()

    def _growth_steps(self):
        return self._steps if self._inner is None else int(self._inner.tensors()[1].item())

    def state_dict(self):
        """Returns the scaler's state, with PyTorch's names; empty if it is disabled. Blocks."""
        if not self._enabled:
            return {}
        _, growth_factor, backoff_factor, growth_interval = self._numbers
        return {"scale": self.get_scale(), "growth_factor": growth_factor, "backoff_factor": backoff_factor,
                "growth_interval": growth_interval, "_growth_tracker": self._growth_steps()}

    def load_state_dict(self, state_dict):
        """Overwrites the scaler's state with a saved one."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler.")
        self._numbers = tuple(state_dict[name] for name in ("scale", "growth_factor", "backoff_factor", "growth_interval"))
        self._steps = state_dict["_growth_tracker"]
        self._inner = None

    def __getstate__(self):
        if self._stages:
            raise AssertionError("A GradScaler instance may only be pickled at the beginning of an iteration, or at the end after "
                                 "scaler.update().")
        return self._enabled, self._numbers, self.state_dict()

    def __setstate__(self, state):
        self._enabled, self._numbers, saved = state
        self._inner, self._steps, self._stages = None, 0, {}
        if saved:
            self.load_state_dict(saved)

    def _with(self, **changes):
        if self._enabled:
            self.load_state_dict({**self.state_dict(), **changes})

    def get_growth_factor(self):
        """Returns the factor by which the scale grows after enough finite steps."""
        return self._numbers[1]

    def set_growth_factor(self, new_factor):
        """Sets the factor by which the scale grows after enough finite steps."""
        self._with(growth_factor=new_factor)

    def get_backoff_factor(self):
        """Returns the factor by which the scale shrinks after a step that is not finite."""
        return self._numbers[2]

    def set_backoff_factor(self, new_factor):
        """Sets the factor by which the scale shrinks after a step that is not finite."""
        self._with(backoff_factor=new_factor)

    def get_growth_interval(self):
        """Returns after how many consecutive finite steps the scale grows."""
        return self._numbers[3]

    def set_growth_interval(self, new_interval):
        """Sets the number of consecutive finite steps after which the scale grows."""
        self._with(growth_interval=new_interval)


def _is_fused(optimizer):
    """Returns whether an optimizer decides on the device. A subclass with a `step` of its own does not."""
    from .optim.fused import Fused
    return isinstance(optimizer, Fused) and type(optimizer).step is Fused.step and not optimizer._composes()


def _check_gradients(optimizer):
    """Returns the parameters of an optimizer that have gradients. There must be at least one."""
    found = [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None]
    if not found:
        raise AssertionError("No inf checks were recorded for this optimizer.")
    return found


def _deprecated(place, name):
    """Warns that a class is used by its deprecated name."""
    warnings.warn(
        f"`torch.{place}.amp.{name}(args...)` is deprecated. Please use `torch.amp.{name}('{place}', args...)` instead.", FutureWarning,
        stacklevel=3)


def _placed():
    """Creates the modules in which PyTorch defines the names of this one."""
    for name, members in (("autocast_mode", (autocast, custom_fwd, custom_bwd, is_autocast_available)), ("grad_scaler", (GradScaler,))):
        made = types.ModuleType(f"{__name__}.{name}", f"What PyTorch has in `torch.amp.{name}`.")
        vars(made).update({member.__name__: member for member in members})
        sys.modules[made.__name__] = globals()[name] = made


_placed()
# Makes the modules importable as if this module were a package.
__path__ = []
