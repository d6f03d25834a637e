"""Parts of data loaders (`torch.utils.data._utils`)."""

import atexit
import importlib.util

from . import collate, pin_memory, worker
from .worker import MP_STATUS_CHECK_INTERVAL

HAS_NUMPY = importlib.util.find_spec("numpy") is not None
# Whether the interpreter ends, when loaders of libraries do not wait for their workers.
python_exit_status = False


def _set_python_exit_flag():
    global python_exit_status
    python_exit_status = True


atexit.register(_set_python_exit_flag)
