#!/bin/sh
# Tries an installed command as a new user does: loads a csv file into the embedded PostgreSQL.
#
# The row count is read from the report, and `sync --check` compares table and file. As root, the
# user `nobody` tries the command as well, unless `nobody` cannot enter its folder.
# Usage: try-command.sh PGSPATE
set -eu
pgspate=$(readlink -f "$(command -v "$1")")
# A command that is a Python script begins with the path of its Python.
interpreter=$(LC_ALL=C sed -n '1 s/^#!\(\/[^ ]*\)$/\1/p; q' "$pgspate" | tr -d '\0')
interpreter=${interpreter:-$pgspate}
script=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
csv=${TRY_CSV:-$(dirname "$script")/../examples/airlines.csv}
started=$(date +%s)
# Without these variables, pgspate uses the embedded server.
unset PGHOST PGHOSTADDR PGPORT PGDATABASE PGUSER PGPASSWORD PGSERVICE PGSSLMODE PGOPTIONS

# As root, the server runs as another user, who must be able to enter the folder.
work=$(mktemp -d)
chmod 755 "$work"
end() {
    "$pgspate" server stop > /dev/null 2>&1 || true
    rm -rf "$work"
}
trap end EXIT
export PGSPATE_DATA_DIR="$work/data" HOME="$work"
cp "$csv" "$work/airlines.csv"
cp "$script" "$work/try-command.sh"
cd "$work"

fail() {
    echo "error: $1" >&2
    exit 1
}
nobody_enters() { runuser -u nobody -- test -x "$1"; }
load() { "$pgspate" load airlines.csv --table airlines --create --json 2> log; }

"$pgspate" --version
load > report || fail "could not load: $(cat log)"
grep '"rows_written": 16,' report > /dev/null ||
    fail "the load did not report 16 rows: $(cat report)"
load > report || fail "could not load again: $(cat log)"
grep 'has loaded this' log > /dev/null || fail "the file was loaded twice: $(cat log)"
"$pgspate" sync airlines.csv --table airlines --key carrier --scope all --check > report 2>&1 ||
    fail "table and file differ: $(cat report)"
echo "$(id -un) loaded a file with $pgspate in $(($(date +%s) - started)) s"

if [ "$(id -u)" = 0 ]; then
    # The copies are in a folder that `nobody` can enter; the clone may be in another.
    chmod 644 airlines.csv try-command.sh
    if nobody_enters "$(dirname "$pgspate")" &&
        nobody_enters "$(dirname "$(readlink -f "$interpreter")")"; then
        runuser -u nobody -- env TRY_CSV="$work/airlines.csv" sh "$work/try-command.sh" "$pgspate"
    else
        echo "nobody cannot enter the folder of $pgspate or $interpreter: not tried as nobody"
    fi
fi
