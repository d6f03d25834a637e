"""The device on which a function makes tensors (`torch.utils._device`)."""

import functools
import inspect

from .. import _core


class DeviceContext:
    """A region whose tensors are made on a device where they name none."""

    def __init__(self, device):
        self.device = _core.device(device)

    def __enter__(self):
        self.device.__enter__()
        return self

    def __exit__(self, *error):
        self.device.__exit__(*error)


def set_device(device):
    """Returns a decorator: its function, or each step of a generator, makes tensors on a device where they name none."""
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
