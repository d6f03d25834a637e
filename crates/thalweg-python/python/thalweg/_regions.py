"""Regions whose object may be shared by several threads, such as one `no_grad` for all."""

import threading


class Open(dict):
    """The values of the regions that one object has open, by thread, with the innermost last."""

    def enter(self, value):
        """Stores a value until this thread leaves the region."""
        self.setdefault(threading.get_ident(), []).append(value)

    def leave(self):
        """Returns the value that this thread stored last."""
        thread = threading.get_ident()
        values = self.get(thread)
        if not values:
            raise RuntimeError("this thread has not entered the region that it leaves")
        value = values.pop()
        if not values:
            del self[thread]
        return value
