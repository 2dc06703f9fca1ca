#!/bin/sh
# Prints what CHANGELOG.md says of the version that TAG names: the notes of its release.
#
# It fails if TAG is not `v` and the version of Cargo.toml, or CHANGELOG.md has no such section.
# Usage: notes.sh TAG
set -eu
tag=$1
root=$(cd "$(dirname "$0")/.." && pwd)
version=$(sh "$root/release/version.sh")
if [ "$tag" != "v$version" ]; then
    echo "error: the tag is $tag, and Cargo.toml has the version $version" >&2
    exit 1
fi
notes=$(awk -v version="$version" '
    /^## / { printing = $2 == version; next }
    printing' "$root/CHANGELOG.md")
if [ -z "$notes" ]; then
    echo "error: CHANGELOG.md has no section \"## $version\"" >&2
    exit 1
fi
echo "$notes"
