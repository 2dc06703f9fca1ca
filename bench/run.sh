#!/usr/bin/env bash
# Measure pgspate and its peers on this machine; `bench/run.sh --help` says how.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$(dirname "${BASH_SOURCE[0]}")/main.py" "$@"
