#!/bin/sh
# Prints the lines of src/pinned.txt for releases of PostgreSQL: version, platform, SHA-256.
#
# Maven fetches the archives from Maven Central. If a release has no build for a platform, there is
# no line. Usage: pin.sh 18.6.0 17.11.0 > src/pinned.txt
set -eu
platforms='darwin-amd64 darwin-arm64v8 linux-amd64 linux-arm64v8'
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in "$@"; do
    for platform in $platforms; do
        name=embedded-postgres-binaries-$platform
        if mvn -B -q -Dmaven.repo.local="$folder" dependency:get -Dtransitive=false \
            -Dartifact="io.zonky.test.postgres:$name:$version:jar" >&2; then
            sum=$(sha256sum "$folder/io/zonky/test/postgres/$name/$version/$name-$version.jar")
            echo "$version $platform ${sum%% *}"
        fi
        rm -rf "$folder/io/zonky"
    done
done
