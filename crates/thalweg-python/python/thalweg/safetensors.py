"""Files in the format `safetensors`: tensors by name, with metadata. Reading one never runs code."""

import os

from . import _core

__all__ = ["save_file", "load_file", "save", "load"]


def _checked(tensors, metadata):
    if not isinstance(tensors, dict):
        raise TypeError(f"a safetensors file holds a dictionary of tensors by name, not {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, _core.Tensor):
            raise TypeError(f"a safetensors file holds tensors by names, not {type(tensor).__name__} by {name!r}; "
                            "save other values with `thalweg.save`")
    for name, text in (metadata or {}).items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"metadata are texts by names, not {text!r} by {name!r}")
    return dict(tensors), dict(metadata or {})


def save_file(tensors, filename, metadata=None):
    """Writes tensors by name to a path, with metadata. Blocks."""
    _core._save_safetensors(*_checked(tensors, metadata), os.fspath(filename))


def load_file(filename, device=None):
    """Returns the tensors of a file by name, on one device, by default the current one. Blocks."""
    return _core._load_safetensors(os.fspath(filename), device)


def save(tensors, metadata=None):
    """Returns tensors by name as the bytes of a file. Blocks."""
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tensors.safetensors")
        save_file(tensors, path, metadata)
        with open(path, "rb") as written:
            return written.read()


def load(data, device=None):
    """Returns the tensors in the bytes of a file, by name. Blocks."""
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tensors.safetensors")
        with open(path, "wb") as written:
            written.write(data)
        return load_file(path, device)
