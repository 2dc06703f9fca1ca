#!/bin/sh
# Loads the files of examples/ into the embedded PostgreSQL and asks them a question.
#
# The tables are called demo_*. With psql at hand they are made anew each time; without it, those
# that are there are left as they are. Usage: demo.sh [the pgspate to run]
set -eu
cd "$(dirname "$0")/.."
pgspate=${1:-${CARGO_TARGET_DIR:-target}/demo/pgspate}
case $pgspate in
/*) ;;
*) pgspate=$PWD/$pgspate ;;
esac

# This is about the embedded server, whatever else the environment names.
unset PGHOST PGHOSTADDR PGPORT PGDATABASE PGUSER PGPASSWORD PGSERVICE PGSSLMODE PGOPTIONS

"$pgspate" server start
server=$("$pgspate" server dsn)

if command -v psql >/dev/null; then
    psql -X -q "$server" -v ON_ERROR_STOP=1 -c 'set client_min_messages = warning' -c '
        drop table if exists
            demo_airlines, demo_airports, demo_planes, demo_weather, demo_flights'
fi

# load TABLE FILE...
load() {
    table=demo_$1
    shift
    printf '\n$ pgspate load %s --table %s --create\n' "$*" "$table"
    "$pgspate" load "$@" --table "$table" --create
}

# missing TABLE FILE: whether the table is not there; a plan without --create fails then.
missing() {
    if "$pgspate" load "$2" --table "demo_$1" --plan --quiet >/dev/null 2>&1; then
        echo "demo_$1 is there already"
        return 1
    fi
}

cd examples
! missing airlines airlines.csv || load airlines airlines.csv
! missing airports airports.ndjson.gz || load airports airports.ndjson.gz
! missing planes planes.tsv.gz || load planes planes.tsv.gz
! missing weather weather.csv.zst || load weather weather.csv.zst
if missing flights flights-2013-01.csv.gz; then
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

printf '\nWho left New York late in the first quarter of 2013, and what did the wind do?\n\n'
if command -v psql >/dev/null; then
    psql -X "$server" -P pager=off -c "$query"
    printf 'open it with  psql "%s"\n' "$server"
else
    printf 'psql is not installed. Where it is, this shows the answer:\n\npsql "%s" -c "%s"\n' \
        "$server" "$query"
fi
