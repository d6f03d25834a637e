"""Writes docs/names.md: for each namespace of PyTorch 2.11 how many of its public names are here, and why the others are left out."""

import importlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve()
PACKAGE = HERE.parent.parent / "python"
NAMES = HERE.parent.parent / "tests" / "names" / "torch.txt"
DOCUMENT = HERE.parents[3] / "docs" / "names.md"
# Names of PyTorch that are variables of types, or that its classes have by accident.
ACCIDENTAL = {"T_destination", "OptimizerPostHook", "OptimizerPreHook"}


def listed():
    """Returns the names of PyTorch, by namespace."""
    lines = [line for line in NAMES.read_text().splitlines() if not line.startswith("#")]
    return {place: names.split() for place, names in (line.split(": ") for line in lines)}


def owner(place):
    """Returns the module or class of a namespace."""
    module, _, last = place.replace("torch", "thalweg", 1).rpartition(".")
    if last[0].isupper():
        return getattr(importlib.import_module(module), last)
    return importlib.import_module(f"{module}.{last}" if module else last)


def reason(place, name):
    """Returns why a name is left out, or None if it is here. Raises `AttributeError` if nothing is said."""
    try:
        value = getattr(owner(place), name)
    except NotImplementedError as error:
        return str(error).partition("is left out: ")[2] or str(error)
    except AttributeError as error:
        if "left out" not in str(error):
            raise
        return str(error).partition("left out: ")[2] or str(error)
    own = getattr(type(value), "__name__", "")
    if own == "_LeftOut":
        return value._reason
    doc = getattr(value, "__doc__", None) or ""
    if isinstance(doc, str) and doc.startswith("Raises: there are no devices of this kind"):
        return "there is no backend of it"
    return doc.removeprefix("Left out: ").rstrip(".") if isinstance(doc, str) and doc.startswith("Left out: ") else None


def outcomes():
    """Returns for each namespace the number of names that are here, and the others by their reasons."""
    found = {}
    for place, names in listed().items():
        here, left = 0, {}
        for name in names:
            if name in ACCIDENTAL:
                continue
            why = reason(place, name)
            if why is None:
                here += 1
            else:
                left.setdefault(why, []).append(name)
        found[place] = here, left
    return found


def document():
    """Returns the document."""
    found = outcomes()
    total = sum(here for here, _ in found.values())
    count = total + sum(len(names) for _, left in found.values() for names in left.values())
    lines = ["# Names of PyTorch 2.11", "",
             f"{total} of {count} public names are here. The others can be imported, and say why they are left out when they are used.",
             "`crates/thalweg-python/tools/names.py` writes this page.", ""]
    for place, (here, left) in found.items():
        names = sum(map(len, left.values()))
        lines += [f"## `{place}`: {here} of {here + names}", ""] if names else [f"- `{place}`: all {here}"]
        lines += [f"- {', '.join(f'`{name}`' for name in own)}: {why}" for why, own in left.items()]
        lines += [""] if names else []
    return "\n".join(lines) + "\n"


def main():
    sys.path.insert(0, str(PACKAGE))
    DOCUMENT.write_text(document())


if __name__ == "__main__":
    main()
