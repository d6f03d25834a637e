"""The two tiers, and the choice between them.

The second tier replaces PyTorch's allocator by an object of ours. Its class is PyTorch's, so there is one shared library for each
version of PyTorch. The first tier uses PyTorch's documented hooks, and fits every version that has them.
"""

import ctypes
import re
import warnings

from . import _library


class Refused(RuntimeError):
    """An error: the request cannot work. The message has the reason, and what to do."""


def torch_version():
    import torch

    return tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", torch.__version__).groups())


def native_library(version=None):
    """Returns the path of the second tier's library for a version of PyTorch, or None."""
    major, minor = version or torch_version()
    file = _library.path(f"libthalweg_native_{major}_{minor}.so")
    return file if file.exists() else None


def load_native(version):
    """Returns the second tier's library for a version of PyTorch, after checking the version that it was built for: an object of
    another version would crash."""
    file, wanted = native_library(version), ".".join(map(str, version))
    try:
        functions = ctypes.CDLL(str(file))
        functions.thalweg_native_torch_version.restype = ctypes.c_char_p
        built_for = functions.thalweg_native_torch_version().decode()
    except (OSError, AttributeError) as error:
        raise Refused(f"the native class for PyTorch {wanted} does not load ({error})") from error
    if built_for != wanted:
        raise Refused(f"{file} was built for PyTorch {built_for}, and not for {wanted}")
    return functions


def is_release(version):
    """Returns whether this is a version that PyTorch released. Other versions (nightly, built from source, NVIDIA's)
    may have a different allocator class under the same number."""
    return re.fullmatch(r"\d+\.\d+\.\d+(\.post\d+)?(\+cu\d+)?", version) is not None


def check_build():
    """Refuses a PyTorch without CUDA."""
    import torch

    if torch.version.cuda is None:
        kind = "for ROCm" if torch.version.hip else "without CUDA"
        raise Refused(f"PyTorch {torch.__version__} was built {kind}; Thalweg's allocator needs one that was built for CUDA")


def pick(wanted):
    """Returns the tier to use and the reason, for people."""
    import torch

    version, (major, minor) = torch.__version__, torch_version()
    if wanted not in (None, 1, 2):
        raise ValueError(f"tier is {wanted!r}, but must be None (the best that fits), 1 (hooks) or 2 (native class)")
    check_build()
    file = native_library()
    if wanted == 2 and file is None:
        raise Refused(
            f"there is no native class for PyTorch {version} in this wheel; use tier=1, or install a wheel of thalweg-torch that "
            "has it"
        )
    if wanted == 1:
        return 1, "hooks, as asked for"
    if file is None:
        return 1, f"hooks, since this wheel has no native class for PyTorch {major}.{minor}"
    if wanted is None and not is_release(version):
        return 1, f"hooks, since PyTorch {version} is not a release, and the native class is for {major}.{minor} as released"
    try:
        load_native((major, minor))
    except Refused as error:
        if wanted == 2:
            raise
        warnings.warn(f"thalweg_torch: {error}; PyTorch's hooks are used instead (tier 1)", RuntimeWarning, stacklevel=4)
        return 1, f"hooks, since {error}"
    return 2, f"native class for PyTorch {major}.{minor}"


class Native:
    """The second tier."""

    tier = 2

    def __init__(self, library):
        self.functions = load_native(torch_version())
        self.functions.thalweg_native_error.restype = ctypes.c_char_p
        self.functions.thalweg_native_install.argtypes = [ctypes.c_void_p]
        self.check(self.functions.thalweg_native_install(library.handle))

    def check(self, status):
        if status:
            raise Refused(self.functions.thalweg_native_error().decode())

    def remove(self):
        """Restores PyTorch's allocator. Possible as long as nothing was allocated."""
        self.check(self.functions.thalweg_native_uninstall())


class Hooks:
    """The first tier."""

    tier = 1

    # Setters of CUDAPluggableAllocator, and our functions.
    _SETTERS = {
        "set_init_fn": "thalweg_hook_init",
        "set_reset_fn": "thalweg_hook_reset",
        "set_memory_fraction_fn": "thalweg_hook_memory_fraction",
        "set_base_alloc_fn": "thalweg_hook_base_alloc",
        "set_record_stream_fn": "thalweg_hook_record_stream",
        "set_begin_allocate_to_pool": "thalweg_hook_begin_allocate_to_pool",
        "set_end_allocate_to_pool_fn": "thalweg_hook_end_allocate_to_pool",
        "set_release_pool": "thalweg_hook_release_pool",
    }

    def __init__(self, library):
        import torch

        self.allocator = pluggable()
        try:
            torch.cuda.memory.change_current_allocator(self.allocator)
        except RuntimeError as error:
            raise Refused(
                f"it is too late for PyTorch's hooks ({str(error).splitlines()[0]}): call enable(tier=1) before the program "
                "initialises CUDA, by torch.cuda.init(), set_device, get_device_name or a tensor; thalweg_torch's second tier "
                "(enable(tier=2)) may come later, as long as nothing was allocated"
            ) from error
        use_for_hooks(library)


def pluggable():
    """Returns a `torch.cuda.memory.CUDAPluggableAllocator` with every hook set. `use_for_hooks` must be called afterwards."""
    import torch

    file, functions = _hooks()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(file, "thalweg_hook_malloc", "thalweg_hook_free")
    inner = allocator.allocator()
    for setter, function in Hooks._SETTERS.items():
        if not hasattr(inner, setter):
            raise Refused(f"PyTorch {torch.__version__} has no {setter}: hooks of this form came with PyTorch 2.2")
        getattr(inner, setter)(ctypes.cast(getattr(functions, function), ctypes.c_void_p).value)
    return allocator


def use_for_hooks(library):
    """Makes the hooks call the library's allocator, permanently. Call it last, when nothing else can fail."""
    _, functions = _hooks()
    functions.thalweg_hooks_use.argtypes = [ctypes.c_void_p]
    if not functions.thalweg_hooks_use(library.handle):
        raise RuntimeError("the hooks have another allocator already")


def _hooks():
    file = str(_library.path("libthalweg_hooks.so"))
    return file, ctypes.CDLL(file)
