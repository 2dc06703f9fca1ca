//! Tests of which rows a sync writes, and of its summary, its measurements and its advice.

use insta::assert_snapshot;

use crate::run::wait_until;
use crate::support::{LoadCase, folded, redact};
use crate::{counts, sync};

const CREATE_TABLE: &str = "create table t (meter int, at int, value numeric, note text, \
                                     primary key (meter, at))";

fn new_case() -> LoadCase {
    let case = LoadCase::new(CREATE_TABLE);
    case.db.run(
        "insert into t select m, a, a * 10, 'n' || a from generate_series(1, 3) m, \
         generate_series(1, 4) a",
    );
    case
}

/// Returns whether the server counts changes at once. Before PostgreSQL 15, a small sync is not
/// measured: waiting for the counters would take longer than the sync.
fn counts_at_once(case: &LoadCase) -> bool {
    case.value("select (current_setting('server_version_num')::int >= 150000)::int") == "1"
}

/// A source in which meter 2 has one changed, one missing and one new row, and meter 9 is new.
const CHANGED_SOURCE: &str = "\
meter,at,value,note
2,1,10,n1
2,2,99,n2
2,3,30,n3
2,5,50,n5
9,1,10,n1
";

#[test]
fn scope_by_syncs_the_scopes_of_the_source() {
    let case = new_case();
    case.put("t.csv", CHANGED_SOURCE);
    assert_eq!(counts(&case, "t.csv --scope-by meter"), [2, 1, 1, 2]);
    assert_eq!(case.value("select count(*) from t where meter in (1, 3)"), "8");
    let rows = "select string_agg(concat_ws(',', meter, at, value, note), ' ' order by meter, at) \
                from t where meter in (2, 9)";
    assert_eq!(case.value(rows), "2,1,10,n1 2,2,99,n2 2,3,30,n3 2,5,50,n5 9,1,10,n1");
    assert_eq!(counts(&case, "t.csv --scope-by meter"), [0, 0, 0, 5]);
}

#[test]
fn modes_and_scopes_choose_the_rows_to_write() {
    let case = new_case();
    case.put("t.csv", CHANGED_SOURCE);
    let check = sync(&case, "t.csv --insert-only --check").stderr;
    let counted = "public.t: 2 to insert; 3 of 5 have keys of the table, and were not compared";
    assert!(check.contains(counted), "{check}");
    assert_eq!(counts(&case, "t.csv --insert-only"), [2, 0, 0, 3]);
    assert_eq!(counts(&case, "t.csv --no-delete"), [0, 1, 0, 4]);
    assert_eq!(counts(&case, "t.csv --scope all --max-delete 100%"), [0, 0, 9, 5]);
    assert_eq!(case.rows("t").len(), 5);
    case.put("m.csv", "meter,at,value,note\n9,2,1,x\n");
    let mut command = crate::command(&case, "m.csv --table t --json --quiet --max-delete 100%");
    let run = crate::finish(crate::spawn(command.args(["--scope", "meter = 9 and at > 0"])));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(case.value("select string_agg(at::text, ',') from t where meter = 9"), "2");
}

#[test]
fn the_summary_counts_changes_and_gives_advice() {
    let case = new_case();
    case.put("t.csv", CHANGED_SOURCE);
    let check = sync(&case, "t.csv --scope-by meter --check");
    assert_eq!((check.status, check.stdout.as_str()), (Some(1), ""));
    assert_snapshot!(redact(&check.stderr), @r#"
    format csv: the name ends with .csv
    delimiter ",": 4 fields in each line
    header yes: the first line names the table's columns
    public.t: 2 to insert, 1 to update, 1 to delete; 2 of 5 unchanged
      insert  2, 5; 9, 1
      update  2, 2
      delete  2, 4
    "#);
    assert_eq!(case.rows("t").len(), 12);
    let run = sync(&case, "t.csv --scope-by meter");
    if !counts_at_once(&case) {
        return;
    }
    let blocks = r"\d+ blocks read, \d+ changed|billed: \d+ read, \d+ written, \S+";
    let blocks = regex_lite::Regex::new(blocks).unwrap();
    assert_snapshot!(blocks.replace_all(&run.success(), "[BLOCKS]"), @r#"
    format csv: the name ends with .csv
    delimiter ",": 4 fields in each line
    header yes: the first line names the table's columns
    public.t: 2 inserted, 1 updated, 1 deleted; 2 of 5 unchanged
      staged in [TIME], compared and written in [TIME]
      [SIZE] of WAL, [BLOCKS]; 2 dead rows, 1 HOT update
      where I/Os are [BLOCKS] at $0.20 per million
      table 8.19 kB to 8.19 kB, indexes 16.4 kB to 16.4 kB; 0 to 2 dead rows in the table
    "#);
    let same = sync(&case, "t.csv --scope-by meter --check --quiet");
    assert_eq!(same.status, Some(0));
    assert_snapshot!(folded(&sync(&case, "t.csv --scope-by meter --plan").stdout), @r#"
    create temporary table pgspate_diff on commit drop as select t."pgspate tid",
          … t."pgspate part", s."pgspate staged" is not null as "pgspate stays", s.meter,
          … s.at, s.value, s.note from (select t.*, t.ctid as "pgspate tid", t.tableoid as
          … "pgspate part" from public.t t where exists (select from (select distinct meter
          … from pg_temp.pgspate_stage) scopes where t.meter operator(pg_catalog.=)
          … scopes.meter)) t full join (select *, true as "pgspate staged" from
          … pg_temp.pgspate_stage) s on t.meter operator(pg_catalog.=) s.meter and t.at
          … operator(pg_catalog.=) s.at where t."pgspate tid" is null or s."pgspate staged"
          … is null or ((t.note operator(pg_catalog.=) s.note) is not true and (t.note is
          … not null or s.note is not null) or pg_catalog.record_image_ne(row(t.value),
          … row(s.value)));
    delete from public.t t using (select * from pg_temp.pgspate_diff) s where t.ctid
          … operator(pg_catalog.=) s."pgspate tid" and t.tableoid operator(pg_catalog.=)
          … s."pgspate part" and not s."pgspate stays";
    update public.t t set value = s.value, note = s.note from (select * from
          … pg_temp.pgspate_diff) s where t.ctid operator(pg_catalog.=) s."pgspate tid" and
          … t.tableoid operator(pg_catalog.=) s."pgspate part" and s."pgspate stays" and
          … s."pgspate tid" is not null;
    insert into public.t (meter, at, value, note) select s.meter, s.at, s.value, s.note
          … from pg_temp.pgspate_diff s where s."pgspate tid" is null;
    "#);
}

#[test]
fn unchanged_rows_are_not_written() {
    let case = new_case();
    case.put("t.csv", CHANGED_SOURCE);
    // A new row version has another ctid and xmin, and a row lock sets xmax.
    let rows = "select string_agg(concat_ws(' ', meter, at, ctid, xmin, xmax), ';' \
                                  order by meter, at) \
                from t where (meter, at) in ((2, 1), (2, 3), (1, 1))";
    let before = case.value(rows);
    assert_eq!(counts(&case, "t.csv --scope-by meter"), [2, 1, 1, 2]);
    assert_eq!(case.value(rows), before);
    // This sync prunes dead rows as it reads, which writes WAL once. The next sync writes none.
    sync(&case, "t.csv --scope-by meter --quiet");
    let run = sync(&case, "t.csv --scope-by meter --json --quiet");
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&report["wal_bytes"], &report["dead_rows"]), (&0.into(), &0.into()));
}

#[test]
fn wal_and_cost_are_measured() {
    let case = new_case();
    if !counts_at_once(&case) {
        return;
    }
    case.put("t.csv", CHANGED_SOURCE);
    let report = |args: &str| -> serde_json::Value {
        let run = sync(&case, &format!("t.csv --scope-by meter --json --quiet {args}"));
        serde_json::from_str(&run.stdout).unwrap()
    };
    let wrote = report("--price-per-million-io 1000000");
    let tables = &wrote["measured"]["tables"];
    assert_eq!(tables["counted"]["rows_updated"], 1);
    assert_eq!(tables["counted"]["rows_inserted"], 2);
    assert_eq!(wrote["table_dead_rows"], serde_json::json!([0, 2]));
    assert_eq!(wrote["table_bytes"], serde_json::json!([8192, 8192]));
    let wal = wrote["wal_bytes"].as_u64().unwrap();
    assert!(wal > 0 && wrote["measured"]["wal_bytes"].as_u64() >= Some(wal));
    let bill = &wrote["bill"];
    let all = bill["reads"].as_u64().unwrap() + bill["writes"].as_u64().unwrap();
    assert_eq!(bill["writes"], wal.div_ceil(4096));
    assert_eq!(bill["cost"], all as f64);
    let same = report("");
    assert_eq!(
        (&same["bill"]["writes"], &same["bill"]["price_per_million"]),
        (&0.into(), &0.2.into())
    );
    let refused = sync(&case, "t.csv --scope-by meter --price-per-million-io cheap");
    assert_eq!(refused.status, Some(2));
}

#[test]
fn ignored_columns_are_written_only_with_other_changes() {
    let case = new_case();
    case.put("t.csv", "meter,at,value,note\n1,1,10,other\n1,2,0,other\n1,3,30,n3\n1,4,40,n4\n");
    assert_eq!(counts(&case, "t.csv --scope-by meter --ignore-columns note"), [0, 1, 0, 3]);
    let notes = "select string_agg(note, ' ' order by at) from t where meter = 1";
    assert_eq!(case.value(notes), "n1 other n3 n4");
}

#[test]
fn columns_missing_from_the_source_keep_their_values() {
    let case = new_case();
    case.put("t.csv", "at,meter,value\n1,1,11\n7,1,70\n");
    assert_eq!(counts(&case, "t.csv --no-delete"), [1, 1, 0, 0]);
    let rows = "select string_agg(concat_ws(',', at, value, note), ' ' order by at) from t \
                where meter = 1 and at in (1, 7)";
    assert_eq!(case.value(rows), "1,11,n1 7,70");
}

#[test]
fn advise_only_changes_nothing() {
    let case = LoadCase::new(
        "create table t (id int primary key, n int) with (autovacuum_enabled = off); \
         insert into t select n, 0 from generate_series(1, 5000) n",
    );
    let rows: Vec<_> = (1..=5000).map(|id| format!("{id},{}\n", id % 2)).collect();
    case.put("t.csv", format!("id,n\n{}", rows.concat()));
    let run = sync(&case, "t.csv --scope all --advise-only --quiet");
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""));
    let said = redact(&sync(&case, "t.csv --scope all --advise-only").stderr);
    assert_snapshot!(said, @r#"
    format csv: the name ends with .csv
    delimiter ",": 2 fields in each line
    header yes: the first line names the table's columns
    public.t: 0 to insert, 2,500 to update, 0 to delete; 2,500 of 5,000 unchanged
    no advice: by the table's earlier updates, neither an unused index nor the fillfactor
          … slows such a sync down
    "#);
    // An update of all rows finds no free space, because the pages are full.
    case.db.run("update t set n = 2; update t set n = 3");
    wait_until("the updates are counted", || {
        case.value("select pg_stat_get_tuples_updated('t'::regclass) >= 5000") == "t"
    });
    let run = sync(&case, "t.csv --scope all --advise-only");
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    assert_snapshot!(redact(&run.stderr), @r#"
    format csv: the name ends with .csv
    delimiter ",": 2 fields in each line
    header yes: the first line names the table's columns
    public.t: 0 to insert, 5,000 to update, 0 to delete; 0 of 5,000 unchanged
    advice: 0 % of the updates found room in their page; to leave room for more, run alter
          … table public.t set (fillfactor = 60), and vacuum full or cluster the table once
    "#);
    assert_eq!(case.value("select count(*) from t where n = 3"), "5000");
}

#[test]
fn dead_rows_are_vacuumed_when_asked() {
    let case = new_case();
    // Autovacuum must not vacuum the table.
    case.db.run("alter table t set (autovacuum_enabled = off)");
    case.put("t.csv", CHANGED_SOURCE);
    let vacuums = "select vacuum_count from pg_stat_user_tables where relname = 't'";
    let check = sync(&case, "t.csv --scope-by meter --vacuum --check --quiet");
    assert_eq!(check.status, Some(1));
    let said = sync(&case, "t.csv --scope-by meter --vacuum --lanes 2").success();
    assert!(said.contains(" by 2 sessions, vacuumed in "), "{said}");
    wait_until("the vacuum is counted", || case.value(vacuums) == "1");
    wait_until("its sessions are gone", || case.is_quiet());
    assert_eq!(case.value("select n_dead_tup from pg_stat_user_tables where relname = 't'"), "0");
    // The second sync leaves no dead rows.
    let said = sync(&case, "t.csv --scope-by meter --vacuum").success();
    assert!(!said.contains("vacuumed"), "{said}");
    let role = format!("pgspate_test_reader_{}", std::process::id());
    // Since PostgreSQL 17, `all` would include the privilege `maintain`.
    let rights = "select, insert, update, delete";
    case.db.run(&format!("create role {role}; grant {rights} on t to {role}"));
    let mut command = crate::command(&case, "t.csv --scope-by meter --vacuum --quiet");
    let refused = crate::finish(crate::spawn(command.env("PGOPTIONS", format!("-c role={role}"))));
    case.db.run(&format!("drop owned by {role}; drop role {role}"));
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("may not vacuum public.t"), "{}", refused.stderr);
}

#[test]
fn the_last_row_of_a_key_is_the_last_in_the_source() {
    let case = LoadCase::new("create table t (id int primary key, at timestamptz, v int)");
    // pgspate leaves the first row to the server as text. The server gets a chunk's text rows last.
    case.put("t.csv", "id,at,v\n1,yesterday,1\n1,2024-01-01 00:00:00+00,2\n");
    assert_eq!(counts(&case, "t.csv --scope all --keep last"), [1, 0, 0, 0]);
    assert_eq!(case.value("select v from t"), "2");
}

/// The server puts small rows into the free space of earlier pages of the stage.
#[test]
fn the_last_row_of_a_key_is_the_last_whatever_the_sizes_of_the_rows() {
    let case = LoadCase::new("create table t (id int primary key, v text)");
    let large = (0..2000).map(|id| format!("{id},{}\n", "x".repeat(1500)));
    let small = (0..2000).rev().map(|id| format!("{id},{}\n", "y".repeat(100)));
    case.put("t.csv", format!("id,v\n{}", large.chain(small).collect::<String>()));
    for args in ["--scope all", "--scope-by id --lanes 2", "--scope all --transactions 2"] {
        case.db.run("truncate t");
        let counts = counts(&case, &format!("t.csv {args} --keep last"));
        assert_eq!(counts, [2000, 0, 0, 0], "{args}");
        assert_eq!(case.value("select count(*) from t where v like 'y%'"), "2000", "{args}");
    }
}

/// A trigger may keep rows out, so the rows that it gets are not the rows that are written.
#[test]
fn rows_that_a_trigger_keeps_out_are_not_counted_as_written() {
    let case = LoadCase::new(
        "create table t (id int primary key, v int); insert into t values (1, 1), (2, 2), (3, 3); \
         create function skip() returns trigger language plpgsql as $$ begin \
           if coalesce(new.id, old.id) % 2 = 0 then return null; end if; \
           return coalesce(new, old); end $$; \
         create trigger skip before insert or update or delete on t for each row \
           execute function skip()",
    );
    case.put("t.csv", "id,v\n1,10\n2,20\n4,40\n5,50\n");
    let run = sync(&case, "t.csv --scope all --json --quiet");
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let counts = ["inserted", "updated", "deleted", "unchanged"].map(|name| report[name].as_u64());
    assert_eq!(counts, [Some(1), Some(1), Some(1), Some(0)]);
    assert_eq!(report["warnings"][0], "triggers of public.t kept out 2 changes");
    assert_eq!((run.status, report["changes_kept_out"].as_u64()), (Some(1), Some(2)));
    assert_eq!(case.rows("t").join(" "), "(1,10) (2,2) (5,50)");
}
