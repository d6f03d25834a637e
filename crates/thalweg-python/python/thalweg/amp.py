"""Automatic mixed precision (`torch.amp`)."""

import functools

from . import _core


class autocast:
    """A region whose operators choose the dtype that they compute in: a context manager, and a decorator."""

    def __init__(self, device_type="cuda", dtype=None, enabled=True, cache_enabled=None):
        if not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        self._options = (dtype or _core.float16, enabled, True if cache_enabled is None else cache_enabled)
        self._regions = []

    def __enter__(self):
        self._regions.append(_core._AutocastRegion(*self._options))
        return self

    def __exit__(self, *_):
        self._regions.pop().close()

    def __call__(self, function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            with autocast("cuda", *self._options):
                return function(*args, **kwargs)
        return wrapped


class GradScaler:
    """Scales losses so that small gradients of low precision do not vanish, by a scale that finds itself on the device."""

    def __init__(self, device="cuda", init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
        self._numbers = (init_scale, growth_factor, backoff_factor, growth_interval)
        self._enabled = enabled
        self._inner = None
        self._steps = 0
        # What was done since the last update with each optimizer.
        self._stages = {}

    def _scaler(self, device=None):
        if self._inner is None:
            self._inner = _core._GradientScaler(*self._numbers, device)
            if self._steps:
                self._inner.tensors()[1].fill_(self._steps)
        return self._inner

    def is_enabled(self):
        """Returns whether it scales at all."""
        return self._enabled

    def scale(self, outputs):
        """Returns a loss, or several, scaled."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, _core.Tensor):
            return self._scaler(outputs.device).scale(outputs)
        return type(outputs)(self.scale(output) for output in outputs)

    def step(self, optimizer, *args, **kwargs):
        """Steps an optimizer, unless a gradient is not finite: that is decided on the device, and the host learns nothing."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or args:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        stage = self._stages.get(id(optimizer))
        if stage == "stepped":
            raise RuntimeError("step() has already been called since the last update().")
        self._stages[id(optimizer)] = "stepped"
        return optimizer._step(self._scaler(), stage == "unscaled")

    def update(self, new_scale=None):
        """Ends the step: the scale grows or shrinks."""
        if new_scale is not None:
            raise NotImplementedError("GradScaler.update(new_scale) is left out")
        if self._enabled:
            self._stages.clear()
            self._scaler().update()

    def unscale_(self, optimizer):
        """Divides the gradients of an optimizer by the scale, in place, so that they can be clipped; its step then does not."""
        if not self._enabled:
            return
        stage = self._stages.get(id(optimizer))
        if stage == "unscaled":
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if stage == "stepped":
            raise RuntimeError("unscale_() is being called after step().")
        optimizer._unscale(self._scaler())
        self._stages[id(optimizer)] = "unscaled"

    def get_scale(self):
        """Returns the scale. Blocks until it is there."""
        if not self._enabled:
            return 1.0
        return float(self._numbers[0]) if self._inner is None else self._inner.tensors()[0].item()

    def _growth_steps(self):
        return self._steps if self._inner is None else int(self._inner.tensors()[1].item())

    def state_dict(self):
        """Returns the numbers of the scaler, as PyTorch names them; nothing where it does not scale. Blocks."""
        if not self._enabled:
            return {}
        _, growth_factor, backoff_factor, growth_interval = self._numbers
        return {"scale": self.get_scale(), "growth_factor": growth_factor, "backoff_factor": backoff_factor,
                "growth_interval": growth_interval, "_growth_tracker": self._growth_steps()}

    def load_state_dict(self, state_dict):
        """Overwrites the numbers with saved ones."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler.")
        self._numbers = tuple(state_dict[name] for name in ("scale", "growth_factor", "backoff_factor", "growth_interval"))
        self._steps = state_dict["_growth_tracker"]
        self._inner = None

    def _with(self, **changes):
        if self._enabled:
            self.load_state_dict({**self.state_dict(), **changes})

    def get_growth_factor(self):
        """Returns the factor of the scale after many finite steps."""
        return self._numbers[1]

    def set_growth_factor(self, new_factor):
        """Sets the factor of the scale after many finite steps."""
        self._with(growth_factor=new_factor)

    def get_backoff_factor(self):
        """Returns the factor of the scale after a step that is not finite."""
        return self._numbers[2]

    def set_backoff_factor(self, new_factor):
        """Sets the factor of the scale after a step that is not finite."""
        self._with(backoff_factor=new_factor)

    def get_growth_interval(self):
        """Returns after how many finite steps the scale grows."""
        return self._numbers[3]

    def set_growth_interval(self, new_interval):
        """Sets after how many finite steps the scale grows."""
        self._with(growth_interval=new_interval)
