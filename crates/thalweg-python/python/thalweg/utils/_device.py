"""The default device of tensors that a function creates (`torch.utils._device`)."""

import functools
import inspect

from .. import _core


class DeviceContext:
    """A region with a default device for new tensors."""

    def __init__(self, device):
        self.device = _core.device(device)

    def __enter__(self):
        self.device.__enter__()
        return self

    def __exit__(self, *error):
        self.device.__exit__(*error)


def set_device(device):
    """Returns a decorator that gives a function, or each step of a generator, a default device for new tensors."""
    device = _core.device(device)

    def decorated(function):
        if not inspect.isgeneratorfunction(function):
            @functools.wraps(function)
            def called(*args, **kwargs):
                with device:
                    return function(*args, **kwargs)
            return called

        @functools.wraps(function)
        def stepped(*args, **kwargs):
            steps, sent = function(*args, **kwargs), None
            while True:
                try:
                    with device:
                        value = steps.send(sent)
                except StopIteration as end:
                    return end.value
                sent = yield value
        return stepped
    return decorated
