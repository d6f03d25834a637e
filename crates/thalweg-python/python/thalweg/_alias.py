"""The package under PyTorch's name, for programs and third-party libraries.
After `install_as_torch`, `import torch` imports this package."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys

from . import _core, _left_out, _shims

PACKAGE = __package__
# The release of PyTorch whose names and behaviour this package follows.
VERSION = "2.11.0"
# Modules that are read from a folder with PyTorch's own files, if one is named: helpers of PyTorch's tests.
_TESTS = ("testing._internal", "testing._comparison", "testing._creation", "_vendor")
_FOLDER = "THALWEG_TORCH_TESTING"


class TorchVersion(str):
    """A version that compares numerically with strings, tuples and versions."""

    __slots__ = ()

    def _numbers(self, other):
        if isinstance(other, (tuple, list)):
            return tuple(int(part) for part in other)
        release = re.match(r"\d+(\.\d+)*", str(other).strip())
        if release is None:
            raise ValueError(f"{other!r} is not a version")
        numbers = [int(part) for part in release.group().split(".")]
        # A version before its release: 2.12.0a0, 2.12.0.dev.
        is_before = re.match(r"[.\-_]?(a|b|c|rc|alpha|beta|pre|dev)", str(other).strip()[release.end():]) is not None
        while numbers and numbers[-1] == 0:
            numbers.pop()
        return (*numbers, -1) if is_before else tuple(numbers)

    def _both(self, other):
        mine, theirs = self._numbers(str(self)), self._numbers(other)
        while theirs and theirs[-1] == 0:
            theirs = theirs[:-1]
        return mine, theirs

    def __lt__(self, other):
        mine, theirs = self._both(other)
        return mine < theirs

    def __le__(self, other):
        mine, theirs = self._both(other)
        return mine <= theirs

    def __gt__(self, other):
        return not self <= other

    def __ge__(self, other):
        return not self < other

    def __eq__(self, other):
        try:
            mine, theirs = self._both(other)
        except (TypeError, ValueError):
            return False
        return mine == theirs

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


class _SameModule(importlib.abc.Loader):
    """Loads `torch.NAME` as the module `thalweg.NAME`, so that both names refer to one module object."""

    def __init__(self, own):
        self._own, self._spec = own, None

    def create_module(self, spec):
        module = importlib.import_module(self._own)
        self._spec = module.__spec__
        return module

    def exec_module(self, module):
        """Restores the spec that the module had as part of this package."""
        module.__spec__ = self._spec
        rename(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds `torch` and all its submodules in this package, and the distribution."""

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, fullname, path=None, target=None):
        package, _, name = fullname.partition(".")
        if package == "torchgen" and self.folder is not None:
            return importlib.machinery.PathFinder.find_spec(fullname, path or [self.folder])
        if fullname == "functorch":
            return importlib.machinery.ModuleSpec(fullname, _SameModule(f"{PACKAGE}.func._former"))
        if package != "torch":
            return _shims.spec_of(fullname, path)
        if self.folder is not None and any(name == known or name.startswith(f"{known}.") for known in _TESTS):
            parent = os.path.join(self.folder, *fullname.split(".")[:-1])
            return importlib.machinery.PathFinder.find_spec(fullname, [parent])
        own = PACKAGE + fullname.removeprefix("torch")
        if own not in sys.modules and importlib.util.find_spec(own) is None:
            from . import _mirrors
            return _mirrors.spec_of(fullname)
        return importlib.machinery.ModuleSpec(fullname, _SameModule(own), is_package=True)

    def find_distributions(self, context=None):
        """Returns the distribution if it is the requested one."""
        from ._distribution import Distribution
        return [Distribution()] if getattr(context, "name", None) in (None, "torch") else []

    def invalidate_caches(self):
        """Does nothing: nothing is cached."""


def rename(module):
    """Gives a module PyTorch's name, and its classes and functions as their `__module__`, because libraries read both."""
    if module.__name__.partition(".")[0] == PACKAGE:
        module.__name__ = "torch" + module.__name__.removeprefix(PACKAGE)
    if "__path__" not in vars(module):
        # Modules of PyTorch are packages where those of this package are files: `_mirrors` has what they contain.
        module.__path__ = []
    if "__getattr__" not in vars(module):
        module.__getattr__ = _left_out.attributes(module.__name__.replace("torch", PACKAGE, 1))
    for value in list(vars(module).values()):
        origin = getattr(value, "__module__", None)
        if not isinstance(origin, str) or origin.partition(".")[0] != PACKAGE or not (isinstance(value, type) or callable(value)):
            continue
        try:
            value.__module__ = "torch" + origin.removeprefix(PACKAGE)
        except (AttributeError, TypeError):
            continue  # Functions of the extension module keep their `__module__`.


def _hide_own(package):
    """Removes names that PyTorch does not have, because programs check whether they exist, or define them."""
    vars(package).pop("copy", None)
    vars(package.optim).pop("Lion", None)
    if "copy" in vars(_core.Tensor):
        del _core.Tensor.copy


def install_as_torch(*, simulated_as=None, testing=None):
    """Makes `import torch` import this package with all its submodules, and makes `importlib.metadata` find a distribution
    `torch`.

    Without a GPU, `cuda` then means the simulated GPU, and a warning says so once. The simulated GPU is shown as `simulated_as`:
    `cpu`, or `cuda` for programs that accept nothing else (the default is the variable `THALWEG_SIMULATED_AS`). `testing` is a
    folder of installed packages that contains PyTorch, from which `torch.testing._internal` is then read (the default is the
    variable `THALWEG_TORCH_TESTING`). Raises `ImportError` if the real PyTorch has been imported.
    """
    own = sys.modules[PACKAGE]
    former = sys.modules.get("torch")
    if former is not None and former is not own:
        raise ImportError(f"thalweg.install_as_torch(): PyTorch itself has been imported already, from {getattr(former, '__file__', '?')}; "
                          "call it before the first `import torch`")
    if testing is None:
        testing = os.environ.get(_FOLDER)
    if testing is not None and not os.path.isdir(os.path.join(testing, "torch", "testing", "_internal")):
        raise FileNotFoundError(f"install_as_torch: {testing} has no torch/testing/_internal; name the site-packages of an installed PyTorch")
    shown = simulated_as or os.environ.get("THALWEG_SIMULATED_AS") or "cpu"
    # Processes that the program starts show it in the same way.
    os.environ["THALWEG_SIMULATED_AS"] = shown
    # A program that computes on the CPU has the host's memory.
    _core._show_simulated_as(shown, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if shown == "cpu" else None)
    installed = next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)
    if installed is not None:
        installed.folder = testing or installed.folder
        return
    sys.meta_path.insert(0, _Finder(testing))
    for name, module in list(sys.modules.items()):
        if module is not None and (name == PACKAGE or name.startswith(f"{PACKAGE}.")):
            rename(module)
            sys.modules["torch" + name.removeprefix(PACKAGE)] = module
    _shims.change_loaded(sys.modules)
    own.__version__, own.torch = TorchVersion(VERSION), own
    _hide_own(own)
