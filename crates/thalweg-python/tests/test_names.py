"""Every public name of PyTorch 2.11 is here, or says why it is left out, and the documentation has the same list."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))

import names  # noqa: E402


def test_every_name_is_here_or_says_why_not():
    found = names.outcomes()
    assert len(found) > 70 and sum(here for here, _ in found.values()) > 2300


def test_the_page_has_every_namespace():
    text = names.DOCUMENT.read_text()
    assert all(f"`{place}`" in text for place in names.listed()), "run tools/names.py"
