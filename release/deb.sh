#!/bin/sh
# Packs the static command into a Debian package in FOLDER, and prints the package's path.
#
# The command needs no library, so one package suits every release of Debian and Ubuntu.
# Usage: deb.sh BINARY x86_64|aarch64 FOLDER
set -eu
binary=$1 processor=$2 folder=$3
root=$(cd "$(dirname "$0")/.." && pwd)
version=$(sh "$root/release/version.sh")
case $processor in
x86_64) architecture=amd64 ;;
aarch64) architecture=arm64 ;;
*) echo "error: Debian's name of the processor $processor is not known" >&2; exit 2 ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/pgspate
share=$tree/usr/share

# put FROM TO: copies a file that everybody may read.
put() {
    mkdir -p "$(dirname "$2")"
    cp "$1" "$2"
    chmod 644 "$2"
}

put "$binary" "$tree/usr/bin/pgspate"
chmod 755 "$tree/usr/bin/pgspate"
put "$root/docs/reference/pgspate.1" "$share/man/man1/pgspate.1"
gzip -9n "$share/man/man1/pgspate.1"
put "$root/CHANGELOG.md" "$share/doc/pgspate/changelog"
gzip -9n "$share/doc/pgspate/changelog"
put "$root/docs/reference/completions/pgspate.bash" "$share/bash-completion/completions/pgspate"
put "$root/docs/reference/completions/_pgspate" "$share/zsh/vendor-completions/_pgspate"
put "$root/docs/reference/completions/pgspate.fish" \
    "$share/fish/vendor_completions.d/pgspate.fish"
put "$root/LICENSE" "$share/doc/pgspate/copyright"
cat "$root/THIRD-PARTY-NOTICES.txt" >> "$share/doc/pgspate/copyright"

mkdir "$tree/DEBIAN"
cat > "$tree/DEBIAN/control" <<END
Package: pgspate
Version: $version
Architecture: $architecture
Maintainer: The maintainers of pgspate <maintainers@pgspate.invalid>
Section: database
Priority: optional
Installed-Size: $(du -sk "$tree/usr" | cut -f1)
Recommends: ca-certificates
Suggests: postgresql, postgresql-client
Description: fast and exact writer into PostgreSQL
 pgspate loads files, makes tables equal to a newer source, and applies streams
 of changes. A load that was stopped continues where it was, and nothing is
 loaded twice. It needs no extension of the server.
END
find "$tree" -type d -exec chmod 755 {} +
mkdir -p "$folder"
dpkg-deb --root-owner-group -Zxz --build "$tree" "$folder/pgspate_${version}_$architecture.deb" >&2
echo "$folder/pgspate_${version}_$architecture.deb"
