"""Writes the wheel `thalweg` from the package and its extension module.

    python3 tools/wheel.py OUT VERSION

A wheel is a zip file with the package, its precompiled kernels where `thalweg/kernels` has them, and a folder with its metadata and a list of all files with their digests (PEP 427, PEP
491). The platform tag is that of the oldest C library with the symbols that the module needs (PEP 600). The wheel is for the
interpreter that runs this script: for a free-threaded build only this version, else all versions from 3.10 on, by the stable ABI.
"""

import base64
import hashlib
import pathlib
import platform
import re
import sys
import sysconfig
import zipfile

FOLDER = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = FOLDER / "python"

METADATA = """\
Metadata-Version: 2.1
Name: thalweg
Version: {version}
Summary: PyTorch's CUDA backend in Rust, with PyTorch's names in Python and a simulated GPU
License: MIT OR Apache-2.0
Project-URL: Repository, https://github.com/thalweg-rs/thalweg
Classifier: Operating System :: POSIX :: Linux
Classifier: Environment :: GPU :: NVIDIA CUDA
Requires-Python: {python}
Description-Content-Type: text/markdown

{readme}"""


def platform_tag(module):
    """Returns the tag of the oldest platform on which the module loads."""
    versions = {(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", module.read_bytes())}
    major, minor = max(versions | {(2, 17)})
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def extension():
    """Returns the extension module's file name, the versions of Python that load it, and the wheel's tag without the platform."""
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "_core.abi3.so", ">=3.10", "cp310-abi3"
    major, minor = sys.version_info[:2]
    return f"_core{sysconfig.get_config_var('EXT_SUFFIX')}", f"=={major}.{minor}.*", f"cp{major}{minor}-cp{major}{minor}t"


def main(out, version):
    name, python, tag = extension()
    module = PACKAGE / "thalweg" / name
    tag = f"{tag}-{platform_tag(module)}"
    info = f"thalweg-{version}.dist-info"
    files = {str(path.relative_to(PACKAGE)): path.read_bytes() for path in sorted(PACKAGE.rglob("*"))
             if path == module or path.is_file() and path.suffix in (".py", ".pyi", ".typed", ".kernels")}
    readme = (FOLDER / "README.md").read_text()
    files[f"{info}/METADATA"] = METADATA.format(version=version, python=python, readme=readme).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: thalweg\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = b"[pytest11]\nthalweg = thalweg._pytest\n\n[torch_dynamo_backends]\nthalweg = thalweg.dynamo:backend\n"
    for licence in ("LICENSE-APACHE", "LICENSE-MIT"):
        files[f"{info}/licenses/{licence}"] = (FOLDER / licence).read_bytes()
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    files[f"{info}/RECORD"] = ("".join(lines) + f"{info}/RECORD,,\n").encode()
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"thalweg-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            # Identical input files result in an identical wheel.
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, content)
    print(f"{wheel} ({wheel.stat().st_size / 2**20:.1f} MiB)")


if __name__ == "__main__":
    main(*sys.argv[1:])
