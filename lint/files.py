"""Checks files that other programs run: scripts, workflows, Dockerfile, and files in how-to pages.

    python3 lint/files.py

The programs are on PATH: shellcheck, check-jsonschema, hadolint and kubernetes-validate. actionlint
and systemd-analyze are run if they are installed. A how-to page shows a file as a block of code
with `title="NAME"`; its name tells how it is checked. The exit status is 1 after any finding.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ["*.sh", ".ci/run", "**/*.sh"]
# A block of code that is a whole file: its language, name and text.
FILE_BLOCK = re.compile(r'^```\w* title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
CRON_LINE = re.compile(r"(?:[\d*/,-]+\s+){5}[a-z_]+\s+(.+)")
ASSIGNMENT = re.compile(r"[A-Z]+=\S+")


def main() -> int:
    results = [
        check_scripts(),
        check_workflow(*sorted((ROOT / ".github/workflows").glob("*.yml"))),
        run("hadolint", ROOT / "Dockerfile"),
        run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", ROOT / "compose.yaml"),
        check_page_files(),
    ]
    return 0 if all(results) else 1


def run(program: str, *args: object, warning: str | None = None) -> bool:
    """Runs a program and prints what it says if it fails, or says `warning`."""
    command = [program, *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = done.stdout.decode(errors="replace")
    is_good = done.returncode == 0 and (warning is None or warning not in said)
    if not is_good:
        print(f"{' '.join(command)}\n{said}", file=sys.stderr)
    return is_good


def run_if_installed(program: str, *args: object, warning: str | None = None) -> bool:
    if shutil.which(program):
        return run(program, *args, warning=warning)
    print(f"{program} is not installed: {args[-1]} was not checked with it")
    return True


def check_scripts() -> bool:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *SCRIPTS],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = [name for name in sorted(set(listed.stdout.split())) if (ROOT / name).exists()]
    return run("shellcheck", *names)


def check_workflow(*paths: Path) -> bool:
    schema = run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *paths)
    return run_if_installed("actionlint", *paths) and schema


def check_kubernetes(path: Path) -> bool:
    return run("kubernetes-validate", "--strict", path)


def check_unit(path: Path) -> bool:
    """Checks a unit of systemd, with a program that this machine has in place of pgspate."""
    path.write_text(path.read_text().replace("/usr/bin/pgspate", shutil.which("true") or ""))
    # An unknown key is a warning, with the file's path.
    return run_if_installed("systemd-analyze", "verify", "--man=no", path, warning=str(path))


def check_crontab(path: Path) -> bool:
    """Checks a file of /etc/cron.d: settings, and lines of time, user and command."""
    commands = []
    for line in path.read_text().splitlines():
        if not line or line.startswith("#") or ASSIGNMENT.fullmatch(line):
            continue
        match = CRON_LINE.fullmatch(line)
        # In a crontab, an unescaped % ends the command.
        if not match or re.search(r"(?<!\\)%", match[1]):
            print(f"{path.name}: not a line of a crontab: {line}", file=sys.stderr)
            return False
        commands.append(match[1])
    script = path.with_suffix(".sh")
    script.write_text("\n".join(["#!/bin/sh", *commands, ""]))
    return bool(commands) and run("shellcheck", script)


# The ends of the names that files in how-to pages have. Some page must show a file of each.
CHECKS: dict[str, Callable[[Path], bool]] = {
    ".yml": check_workflow,
    ".yaml": check_kubernetes,
    ".service": check_unit,
    ".timer": check_unit,
    ".cron": check_crontab,
}


def check_page_files() -> bool:
    """Checks the files that how-to pages show."""
    good, missing = True, set(CHECKS)
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for page in sorted((ROOT / "docs/how-to").glob("*.md")):
            for name, text in FILE_BLOCK.findall(page.read_text()):
                path = Path(folder, Path(name).name)
                path.write_text(text)
                files.append(path)
        # All are written first: a timer names its service.
        for path in files:
            missing.discard(path.suffix)
            if path.suffix not in CHECKS:
                print(f"{path.name}: no check is known for such a file", file=sys.stderr)
                good = False
            elif not CHECKS[path.suffix](path):
                good = False
    for suffix in sorted(missing):
        print(f"no how-to page shows a file *{suffix}", file=sys.stderr)
    return good and not missing


if __name__ == "__main__":
    sys.exit(main())
