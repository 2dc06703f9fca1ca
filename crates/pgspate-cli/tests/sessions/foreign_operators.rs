//! Other roles' operators and functions in a schema of the search path. pgspate calls none of them.

use crate::poolers::run;
use crate::support::LoadCase;

/// Creates the operators that a sync's statements use, for each pair of types that has no operator
/// of the server. PostgreSQL would prefer such an operator to the server's own operators. A call of
/// such an operator raises an error.
const HOSTILE_OPERATORS: &str = "\
do $$
declare
    one record;
    types regtype[] := array['tid', 'int4', 'int8', 'text', 'int2[]', 'int4[]', 'int8[]',
                              'text[]', 'citext', 'citext[]'];
begin
    for one in
        select op.oprname, l.oid as l, r.oid as r, format_type(l.oid, null) as lname,
               format_type(r.oid, null) as rname,
               case when op.oprname in ('||', '-', '+', '&', '%') then format_type(l.oid, null)
                    else 'boolean' end as result
        from unnest(array['=', '<>', '>', '<', '>=', '<=', '&&', '@>', '||', '*<>']) as op(oprname),
             unnest(types) as l(oid), unnest(types) as r(oid)
        where not exists (select from pg_operator o where o.oprname = op.oprname
                            and o.oprleft = l.oid and o.oprright = r.oid)
    loop
        execute format('create function hostile.op(%s, %s) returns %s language plpgsql as %L',
                       one.lname, one.rname, one.result,
                       format('begin raise exception ''hostile: %s %s %s''; end',
                              one.lname, replace(one.oprname, '%', '%%'), one.rname));
        execute format('create operator hostile.%s (leftarg = %s, rightarg = %s, '
                       'function = hostile.op)', one.oprname, one.lname, one.rname);
        execute format('alter function hostile.op(%s, %s) rename to op_%s',
                       one.lname, one.rname, md5(one.oprname));
    end loop;
end $$";

/// Returns whether the server has an extension.
fn has_extension(case: &LoadCase, extension: &str) -> bool {
    case.value(&format!("select count(*) from pg_available_extensions where name = '{extension}'"))
        == "1"
}

/// Syncs a table with each kind of scope and each way to write.
fn sync_in_every_way(case: &LoadCase, dsn: &str) {
    for (nth, way) in [
        "--scope all --read-ahead never",
        "--scope all --read-ahead always",
        "--scope-by kind --lanes 2",
        "--scope-by kind --transactions 2",
        "--scope kind<9 --keep last",
        "--no-delete",
        "--check --scope all",
        "--advise-only --scope all",
    ]
    .into_iter()
    .enumerate()
    {
        case.put("s.csv", format!("kind,id,name,n\n1,1,ada,{nth}\n2,2,Bob,2\n{},9,,\n", nth + 3));
        let run = run(
            case,
            dsn,
            &format!("sync s.csv --table s --key kind,id,name --max-delete 100 {way}"),
        );
        assert!(matches!(run.status, Some(0 | 1)), "{way}: {}", run.stderr);
    }
}

#[test]
fn a_sync_calls_no_operators_of_other_roles() {
    let case = LoadCase::new("");
    let types = if has_extension(&case, "citext") { ["citext", "text"] } else { ["text", "text"] };
    for name in types {
        let case = LoadCase::new("create schema hostile; create schema ext");
        case.db.run(match name {
            "citext" => "create extension citext schema ext",
            _ => "create domain ext.citext as int8",
        });
        case.db.run(&format!(
            "set search_path = public, ext; \
             create table s (kind int not null, id int, name {name}, n int); \
             insert into s values (1, 1, 'Ada', 1), (1, 5, null, 3); {HOSTILE_OPERATORS}"
        ));
        let path = "set search_path = hostile, public, ext";
        case.db.run(&format!("alter database \"{}\" {path}", case.db.name()));
        let dsn = case.db.dsn();
        // Statements that do not qualify an operator find these operators.
        let called = crate::run::try_ask(&dsn, "select array[1::int2] && array[1::int2]");
        assert!(called.is_err());
        sync_in_every_way(&case, &dsn);
        assert_eq!(case.value("select count(*) from public.s where name is not null"), "2");
    }
}

#[test]
fn an_extension_with_operators_for_arrays_disturbs_no_command() {
    let case = LoadCase::new("create table t (id int primary key, n int)");
    if !has_extension(&case, "intarray") {
        return;
    }
    case.db.run("create extension intarray");
    case.put("t.csv", "id,n\n1,1\n2,2\n");
    for command in ["load t.csv", "sync t.csv --scope all", "doctor", "doctor --table t", "tune"] {
        let run = run(&case, &case.db.dsn(), command);
        assert!(matches!(run.status, Some(0 | 1)), "{command}: {}", run.stderr);
        assert!(!run.stdout.contains("operator"), "{command}: {}", run.stdout);
    }
}
