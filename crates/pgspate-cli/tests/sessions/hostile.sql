-- A schema with a namesake of everything that a statement can name: types, functions, aggregates,
-- operators and catalogs of PostgreSQL. To use one is an error. On a search path before pg_catalog,
-- each of them is what a name means that is not qualified.
create schema hostile;

-- Operators and functions of the same name and the same parameters.
do $$
declare
    one record;
begin
    for one in
        select p.proname, p.oid, pg_catalog.pg_get_function_identity_arguments(p.oid) as args,
               pg_catalog.pg_get_function_result(p.oid) as result
        from pg_catalog.pg_proc p
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f'
          and p.proname !~ '^(RI_FKey|binary_upgrade|pg_stop_making|gin|gist|spg|brin|bt|hash)'
          and p.prorettype not in ('internal'::regtype, 'trigger'::regtype, 'cstring'::regtype)
          and 'internal'::regtype <> all (p.proargtypes) and 'cstring'::regtype <> all (p.proargtypes)
    loop
        begin
            execute format('create function hostile.%I(%s) returns %s language plpgsql as %L',
                           one.proname, regexp_replace(one.args, '(OUT|INOUT) \S+ ', '\1 ', 'g'),
                           one.result,
                           format('begin raise exception ''hostile function: %s''; end', one.proname));
        exception when others then null;
        end;
    end loop;

    for one in
        select o.oprname, o.oprcode::oid::regprocedure as code, o.oprleft::regtype as l,
               o.oprright::regtype as r, o.oprresult::regtype as result
        from pg_catalog.pg_operator o
        where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprkind = 'b' and o.oprcode <> 0
    loop
        begin
            execute format('create or replace function hostile.op(%s, %s) returns %s '
                           'language plpgsql as %L', one.l, one.r, one.result,
                           format('begin raise exception ''hostile operator: %s %s %s''; end',
                                  one.l, replace(one.oprname, '%', '%%'), one.r));
            execute format('create operator hostile.%s (leftarg = %s, rightarg = %s, '
                           'function = hostile.op)', one.oprname, one.l, one.r);
            execute format('alter function hostile.op(%s, %s) rename to %I', one.l, one.r,
                           'op_' || md5(one.oprname));
        exception when others then null;
        end;
    end loop;
end $$;

-- Operators for pairs of types for which the server has none, so that none is cast.
do $$
declare
    one record;
    types regtype[] := array['tid', 'oid', 'regclass', 'regnamespace', 'regproc', 'regtype',
                             'name', '"char"', 'xid', 'int2', 'int4', 'int8', 'numeric', 'text',
                             'varchar', 'bool', 'oid[]', 'name[]', 'int2[]', 'int4[]', 'int8[]',
                             'text[]', 'int2vector', 'oidvector'];
begin
    for one in
        select op.oprname, l.oid::regtype as l, r.oid::regtype as r
        from unnest(array['=', '<>', '>', '<', '>=', '<=', '&&', '@>', '<@', '||', '*<>', '&', '-',
                          '+', '*', '/', '~']) as op(oprname),
             unnest(types) as l(oid), unnest(types) as r(oid)
        where not exists (select from pg_catalog.pg_operator o where o.oprname = op.oprname
                            and o.oprleft = l.oid and o.oprright = r.oid)
    loop
        execute format('create function hostile.op(%s, %s) returns boolean language plpgsql as %L',
                       one.l, one.r, format('begin raise exception ''hostile operator: %s %s %s''; end',
                                            one.l, one.oprname, one.r));
        execute format('create operator hostile.%s (leftarg = %s, rightarg = %s, '
                       'function = hostile.op)', one.oprname, one.l, one.r);
        execute format('alter function hostile.op(%s, %s) rename to %I', one.l, one.r,
                       'op_' || md5(one.oprname));
    end loop;
end $$;

-- Aggregates, catalogs and types.
create function hostile.step(state int, it anyelement) returns int language plpgsql as
    $$begin raise exception 'hostile aggregate'; end$$;
create function hostile.step(state int) returns int language plpgsql as
    $$begin raise exception 'hostile aggregate: count'; end$$;
create aggregate hostile.count(*) (sfunc = hostile.step, stype = int, initcond = '0');

do $$
declare
    name text;
begin
    foreach name in array array['count', 'max', 'min', 'sum', 'array_agg', 'bool_or', 'bool_and',
                                'json_agg'] loop
        execute format('create aggregate hostile.%I(anyelement) (sfunc = hostile.step, '
                       'stype = int, initcond = 0)', name);
    end loop;
    for name in
        select relname from pg_catalog.pg_class
        where relnamespace = 'pg_catalog'::regnamespace and relkind in ('r', 'v')
    loop
        execute format('create view hostile.%I as select 1 / (random() * 0)::int as hostile', name);
    end loop;
    foreach name in array array['text', 'oid', 'name', 'int2', 'int4', 'int8', 'float8', 'bool',
                                'regclass', 'regtype', 'regprocedure', 'json', 'jsonb', 'bytea',
                                'xid', 'tid', 'date', 'uuid', 'timestamptz'] loop
        execute format('create type hostile.%I as enum (''hostile'')', name);
    end loop;
end $$;

-- What fits the types of an argument better than a polymorphic function, or one that casts: also
-- where pg_catalog is searched first.
do $$
declare
    one record;
    arrays text[] := array['text[]', 'name[]', 'oid[]', 'int2[]', 'int4[]', 'int8[]', 'bool[]'];
    plain text[] := array['text', 'name', 'oid', 'int4', 'int8', 'bool', 'regclass', '"char"'];
begin
    for one in
        select distinct p.proname, replace(a.args, 'VARIADIC ', '') as args
        from pg_catalog.pg_proc p,
             lateral (select pg_catalog.pg_get_function_identity_arguments(p.oid)) as i(args),
             unnest(arrays) as arr, unnest(plain) as pl,
             lateral (select replace(replace(replace(replace(i.args, 'anycompatiblearray', arr),
                      'anyarray', arr), 'anyelement', pl), '"any"', pl)) as a(args)
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f' and p.pronargs <= 2
          and p.proname in ('array_length', 'array_lower', 'array_ndims', 'array_position',
                            'array_to_json', 'array_to_string', 'array_upper', 'cardinality',
                            'concat', 'format', 'json_build_array', 'json_build_object',
                            'pg_column_size', 'pg_typeof', 'quote_literal', 'quote_nullable',
                            'to_json', 'unnest')
          and i.args ~ '"any"|anyarray|anyelement'
    loop
        begin
            execute format('create function hostile.%I(%s) returns text language plpgsql as %L',
                           one.proname, one.args,
                           format('begin raise exception ''hostile function: %s''; end', one.proname));
        exception when others then null;
        end;
    end loop;
end $$;
create function hostile.get_bit(bytea, int4) returns int4 language plpgsql as
    $$begin raise exception 'hostile function: get_bit'; end$$;
create function hostile.format(text, text, text) returns text language plpgsql as
    $$begin raise exception 'hostile function: format'; end$$;
create function hostile.format(text, name, name) returns text language plpgsql as
    $$begin raise exception 'hostile function: format'; end$$;
create function hostile.format(text, text, name) returns text language plpgsql as
    $$begin raise exception 'hostile function: format'; end$$;
create function hostile.concat(text, int4) returns text language plpgsql as
    $$begin raise exception 'hostile function: concat'; end$$;
