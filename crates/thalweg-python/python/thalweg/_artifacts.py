"""The machine code of kernels as bytes: `torch.compiler.save_cache_artifacts` and `load_cache_artifacts`."""

import io
import os
import pathlib
import re
import secrets
import types
import zipfile

from . import _core

# What the cache calls its files: the architecture, and a hash of what is compiled, with the compiler.
_NAME = re.compile(r"sm_\d+[a-z]?/[0-9a-f]{32}(-[\w.]+)?\.kernel")
_DATE = (1980, 1, 1, 0, 0, 0)


def _folder():
    folder = _core._kernel_folder()
    return None if folder is None else pathlib.Path(folder)


def _info(names):
    """Returns a description of the bytes' contents, as PyTorch's `CacheInfo`."""
    return types.SimpleNamespace(artifacts={"kernel": list(names)}, kernel_artifacts=list(names))


def save():
    """Returns the kernels as bytes, with their names; None if there is none."""
    folder = _folder()
    names = sorted(str(path.relative_to(folder)) for path in folder.glob("*/*.kernel")) if folder and folder.is_dir() else []
    names = [name for name in names if _NAME.fullmatch(name)]
    if not names:
        return None
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as file:
        for name in names:
            file.writestr(zipfile.ZipInfo(name, _DATE), (folder / name).read_bytes(), zipfile.ZIP_DEFLATED)
    return whole.getvalue(), _info(names)


def load(serialized):
    """Stores the kernels that the bytes contain. Returns their names, or None if kernels are not stored here or `save`
    did not write the bytes."""
    folder = _folder()
    if folder is None:
        return None
    try:
        file = zipfile.ZipFile(io.BytesIO(serialized))
        found = [(name, file.read(name)) for name in file.namelist()]
    except (zipfile.BadZipFile, OSError, ValueError):
        return None
    if any(_NAME.fullmatch(name) is None for name, _ in found):
        return None
    for name, content in found:
        target = folder / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Another process sees the whole file, or none. The reader checks what is in it.
        part = target.with_name(f".{secrets.token_hex(8)}")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as written:
            written.write(content)
        os.replace(part, target)
    return _info(name for name, _ in found)
