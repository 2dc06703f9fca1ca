#!/bin/sh
# Runs an array of 100 jobs on this machine: each job syncs the readings of one meter.
#
# The jobs are members of one fleet. Eight run at once, over at most six connections. Run the script
# again: the members find nothing to do.
# Usage: array.sh [path of the pgspate program [connection string [number of jobs]]]
set -eu
pgspate=${1:-pgspate}
members=${3:-100}
table=array_readings

if [ $# -ge 2 ]; then
    server=$2
else
    "$pgspate" server start
    server=$("$pgspate" server dsn)
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
awk -v members="$members" -v folder="$folder" 'BEGIN {
    for (meter = 0; meter < members; meter++) {
        file = folder "/" meter ".csv"
        print "meter,hour,use" > file
        for (hour = 0; hour < 24; hour++)
            printf "%d,%d,%.2f\n", meter, hour, (meter * 7 + hour * 13) % 50 / 10 > file
        close(file)
    }
}'

# Without --create, a plan fails if the table is missing.
if ! "$pgspate" load "$folder/0.csv" --table $table --to "$server" --plan >/dev/null 2>&1; then
    "$pgspate" load "$folder/0.csv" --table $table --to "$server" --create --quiet
fi

# An engine for arrays of jobs starts the members and sets their index. Here xargs does both.
last=$((members - 1))
seq 0 $last | xargs -P 8 -I '{}' env JOB_COMPLETION_INDEX='{}' \
    "$pgspate" sync "$folder/{member}.csv" --table $table --to "$server" --quiet \
    --key meter,hour --scope-by meter --connections 6 \
    --fleet array-example --generation "$(date -u +%Y-%m-%d)" --members "$members"

"$pgspate" fleet array-example --to "$server"
