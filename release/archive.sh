#!/bin/sh
# Packs the command, its licences, manual page and completions into an archive in FOLDER, and prints
# the archive's path. PLATFORM is for the archive's name. Usage: archive.sh BINARY PLATFORM FOLDER
set -eu
binary=$1 platform=$2 folder=$3
root=$(cd "$(dirname "$0")/.." && pwd)
name=pgspate-$(sh "$root/release/version.sh")-$platform
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/$name" "$folder"
cp "$binary" "$root/LICENSE" "$root/THIRD-PARTY-NOTICES.txt" "$root/README.md" "$work/$name"
cp -r "$root/docs/reference/pgspate.1" "$root/docs/reference/completions" "$work/$name"
tar -C "$work" -czf "$folder/$name.tar.gz" "$name"
echo "$folder/$name.tar.gz"
