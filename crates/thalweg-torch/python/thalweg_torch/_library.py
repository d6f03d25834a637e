"""libthalweg_torch.so: its location, its functions, and its statuses as exceptions."""

import atexit
import ctypes
import os
import pathlib

_FOLDER = pathlib.Path(__file__).parent

ABI_VERSION = 2

OK, OUT_OF_MEMORY, INVALID, CAPTURE, DRIVER, PANIC, FORKED = range(7)

WRITE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class HistorySettings(ctypes.Structure):
    """`thalweg_history_settings` of the header."""

    _fields_ = [
        ("enabled", ctypes.c_uint8),
        ("context", ctypes.c_uint8),
        ("clear_history", ctypes.c_uint8),
        ("compile_context", ctypes.c_uint8),
        ("record_annotations", ctypes.c_uint8),
        ("skip_actions", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint64),
    ]


_handle, _device, _u64, _pointer = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint64, ctypes.c_void_p
_write = [WRITE, ctypes.c_void_p]

# The arguments of those functions that are called from Python; all return a status.
_FUNCTIONS = {
    "thalweg_open": [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)],
    "thalweg_close": [_handle],
    "thalweg_set_settings": [_handle, ctypes.c_char_p],
    "thalweg_settings": [_handle, _device, *_write],
    "thalweg_malloc": [_handle, _device, _u64, _u64, ctypes.POINTER(ctypes.c_uint64)],
    "thalweg_free": [_handle, _u64],
    "thalweg_record_stream": [_handle, _u64, _device, _u64],
    "thalweg_record_use": [_handle, _u64, _device, _u64],
    "thalweg_set_stream_transient": [_handle, _device, _u64],
    "thalweg_empty_cache": [_handle],
    "thalweg_memory_fraction": [_handle, _device, ctypes.POINTER(ctypes.c_double)],
    "thalweg_set_memory_fraction": [_handle, _device, ctypes.c_double],
    "thalweg_memory_stats": [_handle, _device, *_write],
    "thalweg_memory_summary": [_handle, _device, ctypes.c_uint8, *_write],
    "thalweg_reset_peak_statistics": [_handle, _device],
    "thalweg_reset_accumulated_statistics": [_handle, _device],
    "thalweg_write_snapshot": [_handle, ctypes.c_uint8, *_write],
    "thalweg_record_history": [_handle, ctypes.POINTER(HistorySettings)],
    "thalweg_stop_stacks": [_handle],
    "thalweg_enable_kernels": [_handle, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint8],
    "thalweg_disable_kernels": [_handle],
    "thalweg_kernels": [_handle, *_write],
    "thalweg_sanitizer_at": [_handle, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32],
    "thalweg_sanitizer_work": [_handle, _device, _u64, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32, _pointer, ctypes.c_size_t],
    "thalweg_sanitizer_event": [_handle, ctypes.c_int32, _u64, _device, _u64],
    "thalweg_sanitizer_stream_done": [_handle, _device, _u64],
    "thalweg_sanitizer_device_done": [_handle, ctypes.c_uint32],
    "thalweg_sanitizer_name_stream": [_handle, _device, _u64, ctypes.c_char_p],
    "thalweg_sanitizer_findings": [_handle, _u64, ctypes.POINTER(ctypes.c_uint64), *_write],
}


def path(name):
    """Returns the path of a shared library of this package; `THALWEG_TORCH_LIBRARIES` names another folder."""
    folder = os.environ.get("THALWEG_TORCH_LIBRARIES")
    return (pathlib.Path(folder) if folder else _FOLDER) / name


class Library:
    """The library with one of its allocators."""

    def __init__(self, kind="cuda", settings=""):
        file = path("libthalweg_torch.so")
        if not file.exists():
            raise ImportError(f"{file} is missing: this is a source checkout, or the wheel is broken; install the wheel")
        self.functions = ctypes.CDLL(str(file))
        self.functions.thalweg_abi_version.restype = ctypes.c_uint32
        self.functions.thalweg_version.restype = ctypes.c_char_p
        self.functions.thalweg_error_message.restype = ctypes.c_char_p
        version = self.functions.thalweg_abi_version()
        if version != ABI_VERSION:
            raise ImportError(f"{file} has interface version {version}, but this package needs {ABI_VERSION}: reinstall it")
        for name, arguments in _FUNCTIONS.items():
            function = getattr(self.functions, name)
            function.argtypes, function.restype = arguments, ctypes.c_int32
        handle = ctypes.c_void_p()
        self.check(self.functions.thalweg_open(kind.encode(), settings.encode(), ctypes.byref(handle)))
        self.handle = handle
        # A thread that waits for an ending interpreter is killed, which ends the process.
        atexit.register(self.call, "thalweg_stop_stacks")

    def check(self, status):
        """Raises the exception for a status."""
        if status == OK:
            return
        message = self.functions.thalweg_error_message().decode()
        if status == OUT_OF_MEMORY:
            import torch

            raise torch.cuda.OutOfMemoryError(message)
        raise (ValueError if status == INVALID else RuntimeError)(message)

    def call(self, name, *arguments):
        """Calls a function on the allocator."""
        self.check(getattr(self.functions, name)(self.handle, *arguments))

    def text(self, name, *arguments):
        """Calls a function that writes, and returns its output as bytes."""
        pieces = []
        write = WRITE(lambda _user, address, count: pieces.append(ctypes.string_at(address, count)))
        self.call(name, *arguments, write, None)
        return b"".join(pieces)
