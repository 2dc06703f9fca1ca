#!/usr/bin/env bash
# Compares ways to apply a stream of changes; `bench/stream.sh --help` lists the options.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$(dirname "${BASH_SOURCE[0]}")/stream.py" "$@"
