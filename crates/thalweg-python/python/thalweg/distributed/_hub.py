"""The place where the ranks of Python programs meet: one process keeps values, and passes messages between ranks.

`Hub` is the place itself. Ranks that are threads of its process call it, and other processes reach it through sockets (`serve`,
`Client`). The port accepts requests from every program that reaches it, as PyTorch's store does: use it in a network of machines
that trust each other.
"""

import collections
import socket
import threading
import time
from multiprocessing import connection

_POLL = 0.5


class Gone(RuntimeError):
    """The exception of a rank that waits for one that has ended."""


class Hub:
    """Values by their keys, and messages between ranks."""

    def __init__(self):
        self._changed = threading.Condition()
        self._values, self._rounds, self._messages, self._gone = {}, {}, collections.defaultdict(collections.deque), {}

    def _wait(self, condition, timeout, what):
        limit = time.monotonic() + timeout
        while not condition():
            left = limit - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{what} was waited for {timeout:.0f} seconds")
            self._changed.wait(min(left, _POLL))

    # ---- Values ---------------------------------------------------------------------------------------------------

    def set(self, key, value):
        """Sets a value."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key, timeout):
        """Returns a value, once there is one."""
        with self._changed:
            self._wait(lambda: key in self._values, timeout, f"the key {key!r}")
            return self._values[key]

    def add(self, key, amount):
        """Adds to a number, and returns the sum."""
        with self._changed:
            total = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(total).encode()
            self._changed.notify_all()
            return total

    def compare_set(self, key, expected, desired):
        """Sets a value if it is the expected one, and returns the present one."""
        with self._changed:
            if self._values.get(key, b"") == expected:
                self._values[key] = desired
                self._changed.notify_all()
            return self._values.get(key, expected)

    def append(self, key, value):
        """Appends to a value."""
        with self._changed:
            self._values[key] = self._values.get(key, b"") + value
            self._changed.notify_all()

    def wait(self, keys, timeout):
        """Waits until there are values of all keys."""
        with self._changed:
            self._wait(lambda: all(key in self._values for key in keys), timeout, f"one of the keys {list(keys)}")

    def check(self, keys):
        """Returns whether there are values of all keys."""
        with self._changed:
            return all(key in self._values for key in keys)

    def delete_key(self, key):
        """Deletes a value. Returns whether there was one."""
        with self._changed:
            return self._values.pop(key, None) is not None

    def num_keys(self):
        """Returns the number of values."""
        with self._changed:
            return len(self._values)

    def list_keys(self):
        """Returns the keys."""
        with self._changed:
            return list(self._values)

    # ---- Ranks ----------------------------------------------------------------------------------------------------

    def _check_alive(self, ranks):
        for rank in ranks:
            if rank in self._gone:
                raise Gone(f"rank {rank} has ended{self._gone[rank]}")

    def exchange(self, key, rank, ranks, value, timeout):
        """Passes a value to all ranks, and returns the values of all ranks in order, once each has passed one."""
        with self._changed:
            given = self._rounds.setdefault(key, {"values": {}, "read": 0})
            given["values"][rank] = value
            self._changed.notify_all()

            def is_complete():
                if len(given["values"]) < len(ranks):
                    self._check_alive(set(ranks) - set(given["values"]))
                    return False
                return True
            try:
                self._wait(is_complete, timeout, f"a collective ({key})")
            except TimeoutError as error:
                missing = [other for other in ranks if other not in given["values"]]
                raise TimeoutError(f"{error}: the ranks {missing} have not called it") from None
            given["read"] += 1
            if given["read"] == len(ranks):
                del self._rounds[key]
            return [given["values"][other] for other in ranks]

    def post(self, key, value):
        """Leaves a message."""
        with self._changed:
            self._messages[key].append(value)
            self._changed.notify_all()

    def take(self, keys, source, timeout):
        """Returns the first message under one of several keys, with its key, once there is one."""
        with self._changed:
            def is_there():
                if not any(self._messages.get(key) for key in keys):
                    self._check_alive([source] if source is not None else [])
                    return False
                return True
            self._wait(is_there, timeout, "a message")
            key = next(key for key in keys if self._messages.get(key))
            value = self._messages[key].popleft()
            if not self._messages[key]:
                del self._messages[key]
            return key, value

    def join(self, rank):
        """Registers a rank."""
        with self._changed:
            self._gone.pop(rank, None)

    def leave(self, rank, why=""):
        """Registers that a rank has ended, so that the ranks that wait for it get an error."""
        with self._changed:
            self._gone[rank] = why
            self._changed.notify_all()


def serve(hub, host, port):
    """Serves a hub at a port in threads of this process. Returns the listener, which has the port."""
    listener = connection.Listener((host, port), backlog=128)

    def accept():
        while True:
            try:
                client = listener.accept()
            except (OSError, EOFError):
                return
            threading.Thread(target=_answer, args=(hub, client), daemon=True, name="thalweg-hub-client").start()
    threading.Thread(target=accept, daemon=True, name="thalweg-hub").start()
    return listener


def _answer(hub, client):
    """Answers the requests of one process until it closes."""
    rank = None
    try:
        while True:
            name, args = client.recv()
            if name == "join":
                rank = args[0]
            if name == "leave":
                rank = None
            try:
                client.send((True, getattr(hub, name)(*args)))
            except (Gone, TimeoutError, ValueError) as error:
                client.send((False, error))
    except (EOFError, OSError, ConnectionResetError):
        if rank is not None:
            hub.leave(rank, " before the others")
    finally:
        client.close()


class Client:
    """A hub in another process. Each thread has a connection of its own."""

    def __init__(self, host, port, timeout):
        self._address, self._local, self._timeout = (host, port), threading.local(), timeout
        self._connection()

    def _connection(self):
        own = getattr(self._local, "connection", None)
        if own is None:
            limit = time.monotonic() + self._timeout
            while own is None:
                try:
                    own = connection.Client(self._address)
                except (ConnectionRefusedError, socket.gaierror, ConnectionResetError, OSError):
                    if time.monotonic() > limit:
                        raise TimeoutError(f"no process answers at {self._address[0]}:{self._address[1]}") from None
                    time.sleep(0.05)
            self._local.connection = own
        return own

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args):
            own = self._connection()
            try:
                own.send((name, args))
                is_answer, value = own.recv()
            except (EOFError, OSError) as error:
                raise Gone(f"the process with the store at {self._address[0]}:{self._address[1]} has ended") from error
            if not is_answer:
                raise value
            return value
        return call
