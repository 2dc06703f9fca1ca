#!/bin/sh
# Builds the static command for a processor, and packs it in FOLDER as an archive and for Debian.
#
# zig compiles the C sources of dependencies and links, so no cross compiler is needed.
# PROFILE is cargo's profile, `release` if it is not set. Usage: binary.sh x86_64|aarch64 FOLDER
set -eu
processor=$1 folder=$2
profile=${PROFILE:-release}
target=$processor-unknown-linux-musl
cd "$(dirname "$0")/.."

rustup target add "$target"
cargo-zigbuild zigbuild --locked --profile "$profile" --target "$target" -p pgspate-cli
case $profile in
dev) built=debug ;;
*) built=$profile ;;
esac
binary=${CARGO_TARGET_DIR:-target}/$target/$built/pgspate
# A program that names an interpreter needs the libraries of its machine.
if LC_ALL=C readelf -l "$binary" | grep INTERP; then
    echo "error: $binary is not static" >&2
    exit 1
fi
sh release/archive.sh "$binary" "$target" "$folder"
sh release/deb.sh "$binary" "$processor" "$folder"
