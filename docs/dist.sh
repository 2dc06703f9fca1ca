#!/bin/sh
# Packs the command, its licences, manual page and completions into an archive in FOLDER, and prints
# the archive's path. Usage: dist.sh BINARY FOLDER
set -eu
binary=$1 folder=$2
root=$(cd "$(dirname "$0")/.." && pwd)
name=pgspate-$("$binary" --version | awk '{ print $2 }')-$(uname -s)-$(uname -m)
rm -rf "${folder:?}/$name"
mkdir -p "$folder/$name"
cp "$binary" "$root/LICENSE" "$root/THIRD-PARTY-NOTICES.txt" "$root/README.md" "$folder/$name"
cp -r "$root/docs/reference/pgspate.1" "$root/docs/reference/completions" "$folder/$name"
tar -C "$folder" -czf "$folder/$name.tar.gz" "$name"
echo "$folder/$name.tar.gz"
