#!/usr/bin/env python3
"""Writes THIRD-PARTY-NOTICES.txt: the crates in the command and in the Python package.

If a crate offers several licences, the list names Apache-2.0, which is pgspate's own licence, or
else MIT. The file quotes each text of another licence once. Usage: notices.py [--check]
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "THIRD-PARTY-NOTICES.txt"
TARGETS = [
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "x86_64-apple-darwin",
    "aarch64-apple-darwin",
]
PREFERRED = ["Apache-2.0", "MIT"]
NAMES = re.compile(r"(licen[cs]e|copying|notice|copyright|unlicense)", re.IGNORECASE)
# Not notices: source files with such names, and the GPL of parts of xz that are not linked.
NOT_NAMES = re.compile(r"(\.(rs|py|c|h|toml|json|html|sh)$|gpl)", re.IGNORECASE)
RULE = "-" * 80
HEAD = """\
Third-party notices
===================

pgspate is under the Apache License 2.0 (LICENSE). The command `pgspate` and the Python package
contain the crates below and Rust's standard library (https://github.com/rust-lang/rust,
Apache-2.0 OR MIT).
Where a crate leaves a choice, it is used under the licence named here. The texts of all licences
but Apache-2.0, which LICENSE has, follow the list. `make notices` writes this file.

"""


def cargo(*args: str) -> str:
    done = subprocess.run(["cargo", *args], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def linked_crates() -> set[tuple[str, str]]:
    """Returns the name and version of each crate that is linked for any target."""
    found = set()
    for target in TARGETS:
        tree = cargo(
            *["tree", "--locked", "--quiet", "--edges", "normal,no-proc-macro", "--prefix", "none"],
            *["--format", "{p}", "--target", target],
            *["--package", "pgspate-cli", "--package", "pgspate-python"],
        )
        for line in filter(None, tree.splitlines()):
            name, version = line.split()[:2]
            found.add((name, version.removeprefix("v")))
    return found


def choose_licences(expression: str) -> list[str]:
    """Returns the licences under which a crate is used: one of each alternative."""
    parts = re.split(r"\s+AND\s+(?![^(]*\))", expression)
    choices = []
    for part in parts:
        options = re.split(r"\s+OR\s+|/", part.strip().strip("()"))
        best = [name for name in PREFERRED if name in options] or options
        choices.append(best[0])
    return choices


def notice_texts(package: dict, licences: list[str]) -> list[str]:
    """Returns the texts that the notices quote for a crate."""
    folder = Path(package["manifest_path"]).parent
    files = [path for depth in ("*", "*/*") for path in sorted(folder.glob(depth))]
    files = [path for path in files if NAMES.search(path.name) and path.is_file()]
    files = [path for path in files if not NOT_NAMES.search(path.name)]
    if licences == ["Apache-2.0"]:
        # LICENSE has the text. Quote notices, and the licences of C sources in subfolders.
        own = [path for path in files if "notice" in path.name.lower()]
        files = own + [path for path in files if path.parent != folder]
    found = []
    for path in files:
        lines = [line.rstrip() for line in path.read_text(errors="replace").splitlines()]
        text = "\n".join(lines).strip("\n\f\ufeff")
        # zstd offers the GPL and a BSD licence; pgspate uses the BSD licence.
        is_gpl = "GNU GENERAL PUBLIC LICENSE" in text[:200]
        is_apache = "Apache License" in text[:200] and len(text) > 8000
        if text and not is_apache and not is_gpl and text not in found:
            found.append(text)
    return found


def notices() -> str:
    metadata = json.loads(cargo("metadata", "--locked", "--format-version", "1"))
    wanted = linked_crates()
    rows, quoted = [], {}
    for package in sorted(metadata["packages"], key=lambda it: (it["name"], it["version"])):
        key = (package["name"], package["version"])
        if key not in wanted or package["source"] is None:
            continue
        licences = choose_licences(package["license"])
        row = f"{' '.join(key)}: {' AND '.join(licences)}"
        found = notice_texts(package, licences)
        if not found and licences != ["Apache-2.0"]:
            row += f", by {', '.join(package['authors']) or package['repository']}"
        rows.append(row)
        for text in found:
            quoted.setdefault(text, []).append(" ".join(key))
    parts = [HEAD + "\n".join(rows)]
    parts += [f"{', '.join(crates)}\n\n{text}" for text, crates in quoted.items()]
    return f"\n\n{RULE}\n".join(parts) + "\n"


def main() -> int:
    text = notices()
    if sys.argv[1:] == ["--check"]:
        if FILE.read_text() != text:
            print(f"{FILE.name} is out of date: run `make notices`", file=sys.stderr)
            return 1
        return 0
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
