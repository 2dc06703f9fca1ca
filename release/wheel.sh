#!/bin/sh
# Builds the Python package for a processor as a manylinux wheel in FOLDER.
#
# zig links against glibc 2.17, so that the wheel runs on every distribution since 2014.
# PROFILE is cargo's profile, `release` if it is not set. Usage: wheel.sh x86_64|aarch64 FOLDER
set -eu
processor=$1 folder=$2
target=$processor-unknown-linux-gnu
cd "$(dirname "$0")/.."

rustup target add "$target"
maturin build --locked --zig --compatibility manylinux2014 \
    --profile "${PROFILE:-release}" --target "$target" -m python/Cargo.toml -o "$folder"
