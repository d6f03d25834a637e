"""Model files (`torch.hub`), from a local folder or by URL. Repositories of code are left out, except for local ones."""

import hashlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import urllib.request
from urllib.parse import urlparse

try:
    from tqdm import tqdm
except ImportError:
    class tqdm:
        """A bar of progress, which shows nothing where the package `tqdm` is missing."""

        def __init__(self, iterable=None, *args, **kwargs):
            self._iterable = iterable

        def __iter__(self):
            return iter(self._iterable)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.close()

        def update(self, n=1):
            """Does nothing."""

        def close(self):
            """Does nothing."""

_directory = None
HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")


def _get_torch_home():
    return os.path.expanduser(os.environ.get("TORCH_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "torch"))


def get_dir():
    """Returns the folder for downloaded files: that of `set_dir`, else `hub` in `TORCH_HOME`, else in the user's cache."""
    return _directory if _directory is not None else os.path.join(_get_torch_home(), "hub")


def set_dir(d):
    """Sets the folder for downloaded files."""
    global _directory
    _directory = os.path.expanduser(d)


def download_url_to_file(url, dst, hash_prefix=None, progress=True):
    """Downloads a URL to a file, which is moved into place once it is complete and its hash has been checked."""
    os.makedirs(os.path.dirname(os.path.abspath(dst)), exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(os.path.abspath(dst)), delete=False) as file:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers={"User-Agent": "torch.hub"})) as source:
                while block := source.read(1 << 17):
                    file.write(block)
                    digest.update(block)
            file.close()
            if hash_prefix and not digest.hexdigest().startswith(hash_prefix):
                raise RuntimeError(f'invalid hash value (expected "{hash_prefix}", got "{digest.hexdigest()}")')
            shutil.move(file.name, dst)
        finally:
            if os.path.exists(file.name):
                os.remove(file.name)


def load_state_dict_from_url(url, model_dir=None, map_location=None, progress=True, check_hash=False, file_name=None, weights_only=False):
    """Returns the contents of the file at a URL. The local copy is used if there is one."""
    from .serialization import load
    folder = model_dir or os.path.join(get_dir(), "checkpoints")
    os.makedirs(folder, exist_ok=True)
    name = file_name or os.path.basename(urlparse(url).path)
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        found = HASH_REGEX.search(name) if check_hash else None
        download_url_to_file(url, path, found.group(1) if found else None, progress)
    return load(path, map_location=map_location, weights_only=weights_only)


def _entries(repo_or_dir, source):
    if source != "local":
        raise NotImplementedError(f"hub from source={source!r} is left out: bring the repository of {repo_or_dir} here, and say source='local'")
    path = os.path.join(repo_or_dir, "hubconf.py")
    sys.path.insert(0, str(repo_or_dir))
    try:
        spec = importlib.util.spec_from_file_location("hubconf", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(repo_or_dir))
    return module


def _entry(repo_or_dir, model, source):
    function = getattr(_entries(repo_or_dir, source), model, None)
    if not callable(function):
        raise RuntimeError(f"Cannot find callable {model} in hubconf")
    return function


def load(repo_or_dir, model, *args, source="github", trust_repo=None, force_reload=False, verbose=True, skip_validation=False, **kwargs):
    """Returns a model that a folder's hubconf.py creates."""
    return _entry(repo_or_dir, model, source)(*args, **kwargs)


def list(github, force_reload=False, skip_validation=False, trust_repo=None, verbose=True, source="github"):
    """Returns the names of the models that a folder's hubconf.py defines."""
    return [name for name, value in vars(_entries(github, source)).items() if callable(value) and not name.startswith("_")]


def help(github, model, force_reload=False, skip_validation=False, trust_repo=None, source="github"):
    """Returns the documentation of a model that a folder's hubconf.py defines."""
    return _entry(github, model, source).__doc__
