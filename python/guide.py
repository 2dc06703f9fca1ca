"""Runs the Python code of Markdown pages in a temporary folder: `python guide.py PAGE.md...`."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import types
from pathlib import Path


def run(page: Path, name: str = "guide_page") -> int:
    """Runs the Python blocks of a page in order, as the module of this name.

    Returns the number of blocks.
    """
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)
    # A dataclass looks up its module in `sys.modules`.
    previous = sys.modules.get(name)
    module = sys.modules[name] = types.ModuleType(name)
    try:
        for block in blocks:
            exec(compile(block, page.name, "exec"), vars(module))
    finally:
        del sys.modules[name]
        if previous is not None:
            sys.modules[name] = previous
        server = vars(module).get("server")
        if server is not None:
            server.stop()
    return len(blocks)


if __name__ == "__main__":
    pages = [Path(name).resolve() for name in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for page in pages:
            # Engines send the functions of the main program to their workers.
            print(f"{page.name}: {run(page, '__main__')} blocks run")
