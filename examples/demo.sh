#!/bin/sh
# Loads the files of examples/ into the embedded PostgreSQL, and runs a query on them.
#
# The tables are named demo_*. If psql is installed, existing tables are dropped and loaded again.
# Without psql, existing tables are kept. Usage: demo.sh [path of the pgspate program]
set -eu
cd "$(dirname "$0")/.."
pgspate=${1:-${CARGO_TARGET_DIR:-target}/demo/pgspate}
case $pgspate in
/*) ;;
*) pgspate=$PWD/$pgspate ;;
esac

# Without these variables, pgspate uses the embedded server.
unset PGHOST PGHOSTADDR PGPORT PGDATABASE PGUSER PGPASSWORD PGSERVICE PGSSLMODE PGOPTIONS

"$pgspate" server start
server=$("$pgspate" server dsn)

if command -v psql >/dev/null; then
    psql -X -q "$server" -v ON_ERROR_STOP=1 -c 'set client_min_messages = warning' -c '
        drop table if exists
            demo_airlines, demo_airports, demo_planes, demo_weather, demo_flights'
fi

# load TABLE FILE...: creates demo_TABLE from the files, or loads them into the existing table.
load() {
    table=demo_$1
    shift
    printf '\n$ pgspate load %s --table %s --create\n' "$*" "$table"
    "$pgspate" load "$@" --table "$table" --create
}

# table_is_missing TABLE FILE: succeeds if demo_TABLE is missing.
# In that case, a plan without --create fails.
table_is_missing() {
    if "$pgspate" load "$2" --table "demo_$1" --plan --quiet >/dev/null 2>&1; then
        echo "table demo_$1 already exists; it is not loaded again"
        return 1
    fi
}

cd examples
! table_is_missing airlines airlines.csv || load airlines airlines.csv
! table_is_missing airports airports.ndjson.gz || load airports airports.ndjson.gz
! table_is_missing planes planes.tsv.gz || load planes planes.tsv.gz
! table_is_missing weather weather.csv.zst || load weather weather.csv.zst
if table_is_missing flights flights-2013-01.csv.gz; then
    load flights flights-2013-01.csv.gz flights-2013-02.csv.gz
    load flights flights-2013-03.parquet
fi

query="select name as airline, count(*) as flights,
       round(100.0 * count(*) filter (where dep_time is null) / count(*), 1) as cancelled_percent,
       round(avg(dep_delay), 1) as mean_delay_minutes,
       round(avg(dep_delay) filter (where wind_speed > 20), 1) as mean_delay_in_strong_wind
from demo_flights join demo_airlines using (carrier)
     left join demo_weather using (origin, time_hour)
group by name order by flights desc limit 8"

printf '\nHow late did each airline leave New York in early 2013, overall and in strong wind?\n\n'
if command -v psql >/dev/null; then
    psql -X "$server" -P pager=off -c "$query"
    printf 'open the database with  psql "%s"\n' "$server"
else
    printf 'psql is not installed here. With psql, this command shows the answer:\n\n'
    printf 'psql "%s" -c "%s"\n' \
        "$server" "$query"
fi
