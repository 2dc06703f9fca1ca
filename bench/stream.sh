#!/usr/bin/env bash
# Measure a stream of changes, applied by pgspate and by others; `bench/stream.sh --help` says how.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$(dirname "${BASH_SOURCE[0]}")/stream.py" "$@"
