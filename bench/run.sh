#!/usr/bin/env bash
# Measures pgspate and its peers on this machine; `bench/run.sh --help` lists the options.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$(dirname "${BASH_SOURCE[0]}")/main.py" "$@"
