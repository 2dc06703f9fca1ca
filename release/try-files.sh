#!/bin/sh
# Tries the wheel, the archive and the Debian package in FOLDER that this machine can run: each
# loads a file.
# Usage: try-files.sh x86_64|aarch64 FOLDER
set -eu
processor=$1 folder=$2
root=$(cd "$(dirname "$0")/.." && pwd)
version=$(sh "$root/release/version.sh")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

sh "$root/release/try-wheel.sh" "$folder" "$work/env"
mkdir "$work/archive"
tar -C "$work/archive" -xzf "$folder/pgspate-$version-$processor-unknown-linux-musl.tar.gz"
sh "$root/release/try-command.sh" "$work/archive"/*/pgspate
case $processor in
x86_64) package=pgspate_${version}_amd64.deb ;;
aarch64) package=pgspate_${version}_arm64.deb ;;
esac
# The package has no scripts, so unpacking is installing.
dpkg-deb -x "$folder/$package" "$work/root"
sh "$root/release/try-command.sh" "$work/root/usr/bin/pgspate"
