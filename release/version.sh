#!/bin/sh
# Prints pgspate's version, as Cargo.toml has it.
set -eu
sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"$/\1/p' "$(dirname "$0")/../Cargo.toml"
