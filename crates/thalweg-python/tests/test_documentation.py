"""The Python blocks in `docs/python.md` run unchanged."""

import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs/python.md"


def test_blocks_run():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    for place, block in enumerate(blocks):
        exec(compile(block, f"docs/python.md, block {place}", "exec"), {"__name__": "__main__"})
