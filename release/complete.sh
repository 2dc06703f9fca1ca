#!/bin/sh
# Completes the files of a release in FOLDER: notices, bill of materials (SBOM) and checksums.
#
# The wheel, which has the command in it, has a list of its crates in the format CycloneDX. maturin
# writes it. Every file that a release must have is checked to be there. Usage: complete.sh FOLDER
set -eu
folder=$1
root=$(cd "$(dirname "$0")/.." && pwd)
version=$(sh "$root/release/version.sh")
cd "$folder"

missing=
for file in "pgspate-$version-x86_64-unknown-linux-musl.tar.gz" "pgspate_${version}_amd64.deb" \
    "pgspate-$version-aarch64-unknown-linux-musl.tar.gz" "pgspate_${version}_arm64.deb" \
    "pgspate-$version-"*manylinux*_x86_64.whl "pgspate-$version-"*manylinux*_aarch64.whl; do
    [ -f "$file" ] || missing="$missing $file"
done
if [ -n "$missing" ]; then
    echo "error: the release lacks:$missing" >&2
    exit 1
fi
python3 - "pgspate-$version-"*manylinux*_x86_64.whl "pgspate-$version.cyclonedx.json" <<'END'
import json, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    [name] = [name for name in wheel.namelist() if "/sboms/" in name]
    text = wheel.read(name)
components = {component["name"] for component in json.loads(text)["components"]}
assert {"pgspate-cli", "tokio-postgres"} <= components, f"{name} lacks crates of the command"
open(sys.argv[2], "wb").write(text)
END
cp "$root/LICENSE" "$root/THIRD-PARTY-NOTICES.txt" .
rm -f SHA256SUMS
sums=$(sha256sum -- *)
echo "$sums" > SHA256SUMS
sha256sum --check --quiet SHA256SUMS
ls -l
