"""Runs the Python code of Markdown pages in a temporary folder: `python guide.py PAGE.md...`."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import types
from pathlib import Path


def run(page: Path) -> int:
    """Runs the Python blocks of a page in order, as one program. Returns the number of blocks."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)
    # A dataclass looks up its module in `sys.modules`.
    module = sys.modules["guide_page"] = types.ModuleType("guide_page")
    try:
        for block in blocks:
            exec(compile(block, page.name, "exec"), vars(module))
    finally:
        del sys.modules["guide_page"]
        server = vars(module).get("server")
        if server is not None:
            server.stop()
    return len(blocks)


if __name__ == "__main__":
    pages = [Path(name).resolve() for name in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for page in pages:
            print(f"{page.name}: {run(page)} blocks run")
