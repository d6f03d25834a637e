"""Workers of loaders (`torch.utils.data._utils.worker`): there are none, since samples are made in the program's own thread."""

_worker_info = None


class WorkerInfo:
    """The worker of a dataset; programs name the class, and none is made."""


def get_worker_info():
    """Returns None: samples are made in the program's own thread, and there are no workers."""
    return _worker_info
