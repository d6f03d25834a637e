"""Stores: values that all ranks see (`torch.distributed.TCPStore`, …)."""

import datetime
import os
import pickle
import tempfile
import time

from ._hub import Client, Hub, serve

_DEFAULT = datetime.timedelta(seconds=300)


def seconds(timeout, default=1800.0):
    """Returns a time in seconds."""
    if timeout is None:
        return default
    return timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)


class Store:
    """Values that all ranks see."""

    timeout = _DEFAULT
    _hub = None

    def _key(self, key):
        return key

    def set(self, key, value):
        """Sets a value."""
        self._hub.set(self._key(key), value if isinstance(value, bytes) else str(value).encode())

    def get(self, key):
        """Returns a value as bytes, once there is one."""
        try:
            return self._hub.get(self._key(key), seconds(self.timeout))
        except TimeoutError as error:
            raise _expired(error) from None

    def add(self, key, amount):
        """Adds to a number, and returns the sum."""
        return self._hub.add(self._key(key), int(amount))

    def compare_set(self, key, expected_value, desired_value):
        """Sets a value if it is the expected one, and returns the present one."""
        encoded = [value if isinstance(value, bytes) else str(value).encode() for value in (expected_value, desired_value)]
        return self._hub.compare_set(self._key(key), *encoded)

    def append(self, key, value):
        """Appends to a value."""
        self._hub.append(self._key(key), value if isinstance(value, bytes) else str(value).encode())

    def wait(self, keys, timeout=None):
        """Waits until there are values of all keys."""
        try:
            self._hub.wait([self._key(key) for key in keys], seconds(timeout, seconds(self.timeout)))
        except TimeoutError as error:
            raise _expired(error) from None

    def check(self, keys):
        """Returns whether there are values of all keys."""
        return self._hub.check([self._key(key) for key in keys])

    def multi_get(self, keys):
        """Returns the values of several keys."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys, values):
        """Sets the values of several keys."""
        for key, value in zip(keys, values):
            self.set(key, value)

    def delete_key(self, key):
        """Deletes a value. Returns whether there was one."""
        return self._hub.delete_key(self._key(key))

    def num_keys(self):
        """Returns the number of values."""
        return self._hub.num_keys()

    def list_keys(self):
        """Returns the keys."""
        return self._hub.list_keys()

    def set_timeout(self, timeout):
        """Sets how long `get` and `wait` wait."""
        self.timeout = timeout

    def has_extended_api(self):
        """Returns True."""
        return True


def _expired(error):
    from . import DistStoreError
    return DistStoreError(f"wait timeout: {error}")


class HashStore(Store):
    """A store in this process, for ranks that are its threads."""

    def __init__(self):
        self._hub = Hub()


class TCPStore(Store):
    """A store that one process serves at a port."""

    def __init__(self, host_name, port=0, world_size=None, is_master=False, timeout=_DEFAULT, wait_for_workers=True, multi_tenant=False,
                 master_listen_fd=None, use_libuv=True):
        self.host, self.timeout, self._listener = host_name, timeout, None
        if is_master:
            own = Hub()
            self._listener = serve(own, host_name if host_name not in ("localhost",) else "127.0.0.1", port)
            port = self._listener.address[1]
            self._hub = own
        else:
            self._hub = Client(host_name, port, seconds(timeout))
        self.port, self.world_size = port, world_size
        if world_size and wait_for_workers:
            self.add("worker-count", 1)
            limit = time.monotonic() + seconds(timeout)
            while is_master and int(self.get("worker-count")) < world_size:
                if time.monotonic() > limit:
                    raise _expired(TimeoutError(f"{world_size} processes were waited for"))
                time.sleep(0.02)


class PrefixStore(Store):
    """A store whose keys begin with a text."""

    def __init__(self, prefix, store):
        self._prefix, self.underlying_store = prefix, store
        self._hub, self.timeout = store._hub, store.timeout

    def _key(self, key):
        return self.underlying_store._key(f"{self._prefix}/{key}")


class _FileHub(Hub):
    """Values in a file, which all processes read and write under a lock."""

    def __init__(self, path):
        super().__init__()
        self._path = path

    def _locked(self, change):
        import fcntl
        with open(f"{self._path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            values = {}
            if os.path.exists(self._path) and os.path.getsize(self._path):
                with open(self._path, "rb") as file:
                    values = pickle.load(file)
            self._values = values
            result = change()
            handle, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(self._path)))
            with os.fdopen(handle, "wb") as file:
                pickle.dump(self._values, file)
            os.replace(temporary, self._path)
            return result

    def get(self, key, timeout):
        """Returns a value, once there is one."""
        self.wait([key], timeout)
        return self._locked(lambda: self._values[key])

    def wait(self, keys, timeout):
        """Waits until there are values of all keys."""
        limit = time.monotonic() + timeout
        while not self.check(keys):
            if time.monotonic() > limit:
                raise TimeoutError(f"the keys {keys} were waited for {timeout:.0f} seconds")
            time.sleep(0.02)


for _name in ("set", "add", "compare_set", "append", "check", "delete_key", "num_keys", "list_keys"):
    def _made(method):
        def call(self, *args):
            return self._locked(lambda: method(self, *args))
        call.__doc__ = method.__doc__
        return call
    setattr(_FileHub, _name, _made(getattr(Hub, _name)))


class FileStore(Store):
    """A store in a file that all processes see."""

    def __init__(self, file_name, world_size=-1):
        self.path, self._hub = file_name, _FileHub(file_name)
