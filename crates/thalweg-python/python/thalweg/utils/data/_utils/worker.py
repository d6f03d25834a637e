"""Workers of loaders (`torch.utils.data._utils.worker`).
There are none, because samples are created in the program's own thread."""

_worker_info = None


class WorkerInfo:
    """The worker of a dataset. Programs refer to the class, but no object of it is created."""


def get_worker_info():
    """Returns None: samples are created in the program's own thread, and there are no workers."""
    return _worker_info
