//! The rules of Citus 13.2 for statements on distributed and reference tables. A rule sees only the
//! text of a statement, so it recognizes the table by name.

/// The name of the table that the rules are for, as pgspate writes it.
pub(crate) const TABLE: &str = "public.spread";

/// Catalog entries that make pgspate take [`TABLE`] for a table of Citus.
pub(crate) const CREATE_CATALOG: &str = "\
set allow_system_table_mods = on;
create table pg_catalog.pg_dist_partition (
    logicalrelid regclass, partmethod \"char\", partkey text, repmodel \"char\");
create function pg_catalog.column_to_column_name(regclass, text) returns text
    language sql as 'select $2';
insert into pg_catalog.pg_dist_partition values ('public.spread', 'n', null, 't')";

/// Returns why Citus refuses a statement, or `None` if Citus accepts the statement.
pub(crate) fn refusal(sql: &str) -> Option<&'static str> {
    // A literal with the table's name, as for `to_regclass`, is no table for Citus.
    let sql = sql.to_ascii_lowercase().replace(&format!("'{TABLE}'"), "''");
    if !sql.contains(TABLE) {
        return None;
    }
    let is_ddl = |statement: &str| {
        let ddl = ["alter table", "create index", "create unique index", "drop index"];
        ddl.iter().any(|words| statement.trim_start().starts_with(words))
            && statement.contains(TABLE)
    };
    let statements: Vec<&str> = sql.split(';').filter(|part| !part.trim().is_empty()).collect();
    if statements.len() > 1 && statements.iter().any(|statement| is_ddl(statement)) {
        return Some("cannot insert multiple commands into a prepared statement");
    }
    if sql.contains(&format!("select from {TABLE}")) {
        return Some("a column definition list is required for functions returning record");
    }
    if sql.contains("::record operator(pg_catalog.*<>) ") {
        return Some("operator does not exist: numeric pg_catalog.*<> numeric");
    }
    let has_temporary_table = sql.contains("pg_temp.");
    if has_temporary_table && sql.starts_with("explain") {
        return Some("relation is not distributed");
    }
    if has_temporary_table && sql.contains("s.ctid") {
        return Some("could not find attribute -1 in subquery targetlist");
    }
    if sql.starts_with("update pg_temp.") && !sql.contains(" offset 0) ") {
        return Some("relation is not distributed");
    }
    let words = ["update public", "delete from public"];
    let is_write = words.iter().any(|words| sql.starts_with(words));
    let in_subquery = sql.replace("(select * from pg_temp.", "(");
    let joins_temporary_table = [" from pg_temp.", " using pg_temp.", " join pg_temp."];
    if is_write && joins_temporary_table.iter().any(|words| in_subquery.contains(words)) {
        return Some("relation is not distributed");
    }
    if sql.starts_with("insert into") && sql.contains("not exists (select") {
        return Some("complex joins are only supported on the distribution columns");
    }
    None
}

#[test]
fn statements_that_citus_refuses_are_recognised() {
    for refused in [
        "drop index public.spread_grp; alter table only public.spread drop constraint k; commit",
        "select not exists (select from public.spread)",
        "explain (format json) select 1 from public.spread t join (select * from pg_temp.s) s on t",
        "select 1 from public.spread t full join pg_temp.s s on true where s.ctid is null",
        "delete from public.spread t using pg_temp.s s where t.id = s.id",
        "update public.spread t set a = s.a from pg_temp.s s where t.id = s.id",
        "insert into public.spread select 1 from (select * from pg_temp.s) s \
         where not exists (select from public.spread t where t.id = s.id)",
    ] {
        assert!(refusal(refused).is_some(), "{refused}");
    }
    for accepted in [
        "alter table only public.spread drop constraint spread_pkey",
        "begin; set local lock_timeout = 0; lock table only public.spread in share mode",
        "delete from public.spread t using (select * from pg_temp.s) s where t.id = s.id",
        "explain select 1 from public.other t join pg_temp.s s on true",
    ] {
        assert_eq!(refusal(accepted), None, "{accepted}");
    }
}
