-- Tables for the example data. `pgspate load --create` would create tables without keys.
-- dep_time, sched_dep_time, arr_time and sched_arr_time are local clock times as numbers: 517 is
-- 05:17.

create table airlines (
    carrier text primary key,
    name text not null
);

create table airports (
    faa text primary key,
    name text not null,
    lat double precision not null,
    lon double precision not null,
    alt integer not null,
    tz integer not null,
    dst text not null,
    tzone text
);

create table planes (
    tailnum text primary key,
    year integer,
    type text not null,
    manufacturer text not null,
    model text not null,
    engines integer not null,
    seats integer not null,
    speed integer,
    engine text not null
);

create table weather (
    origin text not null,
    year integer not null,
    month integer not null,
    day integer not null,
    hour integer not null,
    temp numeric,
    dewp numeric,
    humid numeric,
    wind_dir integer,
    wind_speed numeric,
    wind_gust numeric,
    precip numeric not null,
    pressure numeric,
    visib numeric not null,
    time_hour timestamp with time zone not null,
    primary key (origin, time_hour)
);

create table flights (
    year integer not null,
    month integer not null,
    day integer not null,
    dep_time integer,
    sched_dep_time integer not null,
    dep_delay integer,
    arr_time integer,
    sched_arr_time integer not null,
    arr_delay integer,
    carrier text not null,
    flight integer not null,
    tailnum text,
    origin text not null,
    dest text not null,
    air_time integer,
    distance integer not null,
    hour integer not null,
    minute integer not null,
    time_hour timestamp with time zone not null,
    primary key (time_hour, carrier, flight, origin)
);
