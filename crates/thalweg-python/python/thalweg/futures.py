"""Results that become available later (`torch.futures`)."""

import threading


class Future:
    """A result that another thread sets."""

    def __init__(self, *, devices=None):
        self._event, self._lock = threading.Event(), threading.Lock()
        self._value, self._error, self._callbacks = None, None, []

    def __class_getitem__(cls, item):
        return cls

    def done(self):
        """Returns whether the result is available."""
        return self._event.is_set()

    def wait(self):
        """Waits for the result and returns it, or raises the exception that was set."""
        self._event.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def value(self):
        """Returns the result, which must be available."""
        if not self.done():
            raise RuntimeError("value() can only be called on a completed future")
        return self.wait()

    def _finish(self, value, error):
        with self._lock:
            if self.done():
                raise RuntimeError("Future can only be marked completed once")
            self._value, self._error = value, error
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def set_result(self, result):
        """Sets the result, and calls the registered callbacks."""
        self._finish(result, None)

    def set_exception(self, result):
        """Sets the exception that `wait` raises."""
        if not isinstance(result, Exception):
            raise AssertionError(f"{result} is of type {type(result)}, not an Exception.")
        self._finish(None, result)

    def add_done_callback(self, callback):
        """Calls a function with this future once the result is available."""
        with self._lock:
            if not self.done():
                self._callbacks.append(callback)
                return
        callback(self)

    def then(self, callback):
        """Returns a future for the result of calling a function with this future."""
        after = Future()

        def call(future):
            try:
                after.set_result(callback(future))
            except Exception as error:
                after.set_exception(error)
        self.add_done_callback(call)
        return after


def collect_all(futures):
    """Returns the future of a list of futures. It completes when all of them have their results."""
    futures, after = list(futures), Future()
    missing, lock = [len(futures)], threading.Lock()

    def count(_):
        with lock:
            missing[0] -= 1
            is_last = missing[0] == 0
        if is_last:
            after.set_result(futures)
    for future in futures:
        future.add_done_callback(count)
    if not futures:
        after.set_result(futures)
    return after


def wait_all(futures):
    """Waits for futures and returns their results."""
    return [future.wait() for future in collect_all(futures).wait()]
