#!/usr/bin/env python3
"""Runs cargo-deny and pip-audit over what pgspate is built from and tested with.

A finding fails. An advisory database that cannot be reached is one line of warning, as a change
must be possible to test without the network. Usage: audit.py FOLDER, which has both programs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What Python installs for tests, lints and this audit.
REQUIREMENTS = [
    *sorted((ROOT / "python" / "tests").glob("requirements*.txt")),
    ROOT / "audit" / "requirements.txt",
    ROOT / "site" / "requirements.txt",
]


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1].strip()


def check_crates(deny: Path) -> bool:
    """Advisories, licences, bans and sources of crates, by deny.toml."""

    def run(*args: str, quiet: bool = False) -> subprocess.CompletedProcess:
        # A connection that gives nothing for half a minute is none.
        env = {**os.environ, "GIT_HTTP_LOW_SPEED_LIMIT": "1", "GIT_HTTP_LOW_SPEED_TIME": "30"}
        # What cannot be reached must not ask for a password either.
        env["GIT_TERMINAL_PROMPT"] = "0"
        stderr = subprocess.PIPE if quiet else None
        return subprocess.run([deny, *args], cwd=ROOT, env=env, stderr=stderr, text=True)

    checks = ["bans", "licenses", "sources"]
    fetched = run("fetch", "db", quiet=True)
    if fetched.returncode == 0:
        checks.append("advisories")
    else:
        warn(f"crates were not checked for advisories: {last_line(fetched.stderr)}")
    known = ["--disable-fetch"] if fetched.returncode == 0 else []
    return run("--locked", "check", "--hide-inclusion-graph", *known, *checks).returncode == 0


def check_packages(pip_audit: Path) -> bool:
    """Advisories of Python packages, by PyPI's own list."""
    args = [pip_audit, "--disable-pip", "--require-hashes", "--progress-spinner", "off"]
    args += ["--format", "json", "--timeout", "30"]
    for path in REQUIREMENTS:
        args += ["--requirement", path]
    done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        if "ConnectionError" in done.stderr or "Timeout" in done.stderr:
            warn(f"packages were not checked for advisories: {last_line(done.stderr)}")
            return True
        print(f"error: pip-audit failed: {last_line(done.stderr)}", file=sys.stderr)
        return False
    skipped = [package for package in packages if "skip_reason" in package]
    if skipped:
        reason = skipped[0]["skip_reason"]
        count = f"{len(skipped)} of {len(packages)} packages"
        warn(f"{count} were not checked for advisories: {reason}")
    holes = [(package, hole) for package in packages for hole in package.get("vulns", [])]
    for package, hole in holes:
        fixed = ", ".join(hole.get("fix_versions", [])) or "no release yet"
        name = f"{package['name']} {package['version']}"
        print(f"error: {name} has {hole['id']}; fixed in: {fixed}", file=sys.stderr)
    return not holes and done.returncode == 0


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    # Both, so that one run shows all.
    results = [check_crates(folder / "cargo-deny"), check_packages(folder / "pip-audit")]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
