#!/bin/sh
# Installs the wheel in FOLDER into the new environment ENV, without an index, and tries it.
#
# As root, ENV gets a Python that the user `nobody` can run, if there is one.
# PYTHON is the Python to use. Usage: try-wheel.sh FOLDER ENV
set -eu
folder=$1 env=$2
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

runs_for_all() {
    [ "$(id -u)" != 0 ] || runuser -u nobody -- "$1" -c '
import sys
sys.exit(sys.version_info < (3, 10))' 2> /dev/null
}

chosen=$python
for candidate in "$("$python" -c 'import sys; print(sys.executable)')" /usr/bin/python3; do
    if runs_for_all "$candidate"; then
        chosen=$candidate
        break
    fi
done
rm -rf "$env"
# pip of another environment installs, as Debian's Python has no pip for new environments.
"$chosen" -m venv --without-pip "$env"
"$python" -m pip --python "$env/bin/python" install -q --no-index --find-links "$folder" pgspate
sh "$here/try-command.sh" "$env/bin/pgspate"
