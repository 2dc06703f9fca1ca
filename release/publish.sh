#!/bin/sh
# Publishes the files in FOLDER as the release TAG. GH is the program for it, `gh` if it is not set.
# Usage: publish.sh TAG FOLDER
set -eu
tag=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
notes=$(mktemp)
trap 'rm -f "$notes"' EXIT
sh "$here/notes.sh" "$tag" > "$notes"
"${GH:-gh}" release create "$tag" --verify-tag --title "pgspate ${tag#v}" --notes-file "$notes" \
    "$folder"/*
