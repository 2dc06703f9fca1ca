#!/bin/sh
# Regenerates the manual page, the page of options and the completions from the built command.
set -eu
cd "$(dirname "$0")/../.."
cargo build -q -p pgspate-cli
pgspate=${CARGO_TARGET_DIR:-target}/debug/pgspate
into=docs/reference
"$pgspate" man >$into/pgspate.1
"$pgspate" reference >$into/options.md
mkdir -p $into/completions
"$pgspate" completions bash >$into/completions/pgspate.bash
"$pgspate" completions zsh >$into/completions/_pgspate
"$pgspate" completions fish >$into/completions/pgspate.fish
