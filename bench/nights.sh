#!/usr/bin/env bash
# Measure nightly results, written by pgspate and by others; `bench/nights.sh --help` says how.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$(dirname "${BASH_SOURCE[0]}")/nights.py" "$@"
