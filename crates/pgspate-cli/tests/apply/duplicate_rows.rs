//! Tables with equal or similar rows: after each round, the target's tables must equal the
//! source's.
//!
//! Random transactions change tables of many kinds, also with deferrable keys or without a key.
//! Their changes reach the target through a slot, through wal2json and as pgspate's own events.
//! `PGSPATE_TEST_LONG=300` runs rounds for 300 seconds. `PGSPATE_TEST_SEED=7` begins with the round
//! of seed 7.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::native_subscription::env_number;
use crate::random_history::SplitMix;
use crate::source::{PublishedDatabase, apply_slot_and_report};
use crate::support::LoadCase;
use crate::{apply, apply_and_report};

/// The kinds of tables: the definitions of the columns `k` and `u`.
const KEY_DEFINITIONS: [&str; 8] = [
    "k int primary key deferrable initially deferred, u int",
    "k int primary key deferrable, u int",
    "k int, u int",
    "k int unique deferrable initially deferred, u int",
    "k int primary key, u int unique deferrable initially deferred",
    "k int unique, u int",
    "k int, u int, primary key (k, u) deferrable initially deferred",
    "k int not null unique deferrable initially deferred, u int unique",
];

/// The ways by which changes reach the target: a slot of pgspate, pgspate's own events, wal2json
/// lines that the test writes, and lines that the wal2json plugin writes.
const WAYS: [&str; 4] = ["slot", "native", "wal2json", "plugin"];

/// Returns the SQL that creates the tables of a round.
fn create_tables(count: usize) -> String {
    let mut sql = String::new();
    for nth in 0..count {
        let sort = KEY_DEFINITIONS[nth % KEY_DEFINITIONS.len()];
        write!(
            sql,
            "create table t{nth} ({sort}, v text, big text);\n\
             alter table t{nth} alter big set storage external;\n\
             alter table t{nth} replica identity full;\n"
        )
        .unwrap();
    }
    sql
}

/// Triggers that record the events of a change stream. Old rows are complete. New rows lack
/// unchanged values that are stored out of line.
const TRIGGERS: &str = "\
create table events (nth bigint generated always as identity, tx xid8 default pg_current_xact_id(),
                     line jsonb);
create function note() returns trigger language plpgsql as $$
declare
  said jsonb; was jsonb := to_jsonb(old);
  line jsonb := jsonb_build_object('op', lower(tg_op), 'table', 'public.' || tg_table_name);
begin
  if tg_op <> 'DELETE' then
    said := to_jsonb(new);
    if tg_op = 'UPDATE' and length(new.big) > 2000 and new.big = old.big then
      said := said - 'big';
    end if;
    line := line || jsonb_build_object('row', said);
  end if;
  if tg_op <> 'INSERT' then line := line || jsonb_build_object('old', was); end if;
  insert into events (line) values (line);
  return null;
end $$;
create function note_truncate() returns trigger language plpgsql as $$ begin
  insert into events (line)
  values (jsonb_build_object('op', 'truncate', 'table', 'public.' || tg_table_name));
  return null;
end $$";

/// Returns the SQL that creates the triggers on all tables.
fn create_triggers(count: usize) -> String {
    let one = |nth: usize| {
        format!(
            ";\ncreate trigger note after insert or update or delete on t{nth} for each row \
             execute function note();\ncreate trigger note_truncate after truncate on t{nth} \
             for each statement execute function note_truncate()"
        )
    };
    format!("{TRIGGERS}{};\n", (0..count).map(one).collect::<String>())
}

/// Returns a random statement.
fn random_statement(random: &mut SplitMix, nth: u64) -> String {
    let mut n = |limit| random.below(limit);
    let (k, other, u, v) = (n(7), n(7), n(4), ["'a'", "'b'", "null"][n(3) as usize]);
    let big = ["null", "null", "'s'", "repeat('x', 3000)"][n(4) as usize];
    let t = format!("t{nth}");
    match n(22) {
        0..=3 => format!("insert into {t} values ({k}, {u}, {v}, {big})"),
        4 => format!("insert into {t} values ({k}, {u}, 'a', null), ({other}, {u}, 'a', null)"),
        5 => format!("insert into {t} (u, v) values ({u}, {v})"),
        6 | 7 => format!("update {t} set k = k + 1"),
        8 => format!("update {t} set k = 6 - k"),
        9 => format!("update {t} set k = {other} where k = {k}"),
        10 => format!(
            "update {t} set k = case k when {k} then {other} else {k} end \
                       where k in ({k}, {other})"
        ),
        11 => format!("update {t} set u = 3 - u"),
        12 => format!("update {t} set v = {v} where k = {k}"),
        13 => format!("update {t} set v = {v}, k = k - 1 where u = {u}"),
        14 => format!("update {t} set v = v"),
        15 => format!("update {t} set big = {big} where k = {k}"),
        16 => format!("delete from {t} where k = {k}"),
        17 => format!("delete from {t} where ctid = (select min(ctid) from {t})"),
        18 => format!("delete from {t} where ctid = (select max(ctid) from {t})"),
        19 => format!("update {t} set v = {v} where ctid = (select min(ctid) from {t})"),
        20 => format!("insert into {t} select * from {t} where k = {k}"),
        _ => match n(9) {
            0 => format!("truncate {t}"),
            _ => format!("delete from {t} where v is not distinct from {v}"),
        },
    }
}

/// Runs random transactions on the tables. A few statements are rolled back.
fn run_transactions(
    source: &PublishedDatabase,
    random: &mut SplitMix,
    count: u64,
    transactions: u64,
) {
    let (runtime, client) = crate::run::session(&source.dsn());
    for _ in 0..transactions {
        let table = random.below(count);
        let mut sql = "begin;".to_owned();
        for _ in 0..=random.below(6) {
            let statement = random_statement(random, table);
            let end = if random.below(9) == 0 { "raise division_by_zero;" } else { "" };
            // A failed statement is ignored and changes nothing.
            let body = format!("{statement}; {end} exception when others then null;");
            write!(sql, "do $do$ begin {body} end $do$;").unwrap();
        }
        if random.below(3) > 0 {
            // Keep one of the rows that share a key.
            write!(
                sql,
                "delete from t{table} a using t{table} b where a.k = b.k and a.ctid > b.ctid \
                 and exists (select from pg_index where indrelid = 't{table}'::regclass);"
            )
            .unwrap();
        }
        if runtime.block_on(client.batch_execute(&format!("{sql} commit"))).is_err() {
            runtime.block_on(client.batch_execute("rollback")).unwrap();
        }
    }
}

/// Returns the changes that the triggers recorded, as pgspate's own events.
fn recorded_events(source: &PublishedDatabase) -> Vec<Value> {
    let sql = "select coalesce(jsonb_agg(line || jsonb_build_object('tx', tx::text, 'end', \
               nth = max) order by nth), '[]')::text \
               from (select *, max(nth) over (partition by tx) from events) x";
    serde_json::from_str(&source.value(sql)).unwrap()
}

/// Returns the events as lines of JSON.
fn lines<'a>(events: impl IntoIterator<Item = &'a Value>) -> String {
    events.into_iter().map(|event| format!("{event}\n")).collect()
}

/// Returns the events in the form of wal2json's format version 2.
fn as_wal2json(events: &[Value]) -> Vec<Value> {
    let columns = |row: &Value| -> Value {
        let all = row.as_object().unwrap().iter();
        all.map(|(name, value)| json!({"name": name, "value": value})).collect()
    };
    let mut out = Vec::new();
    let mut is_open = false;
    for event in events {
        if !std::mem::replace(&mut is_open, event["end"] == false) {
            out.push(json!({"action": "B"}));
        }
        let op = event["op"].as_str().unwrap();
        let table = event["table"].as_str().unwrap().strip_prefix("public.").unwrap();
        let action = op[..1].to_uppercase();
        let mut line = json!({"action": action, "schema": "public", "table": table});
        for (from, to) in [("row", "columns"), ("old", "identity")] {
            if let Some(row) = event.get(from) {
                line[to] = columns(row);
            }
        }
        out.push(line);
        if !is_open {
            out.push(json!({"action": "C"}));
        }
    }
    out
}

/// Returns the output of wal2json, or `None` if the source lacks the plugin.
fn real_wal2json(source: &PublishedDatabase) -> Option<String> {
    let slot = format!("w_{}", source.name());
    let sql = format!(
        "select coalesce(string_agg(data, E'\\n'), '') from \
         pg_logical_slot_get_changes('{slot}', null, null, 'format-version', '2', \
         'filter-tables', 'public.events')"
    );
    crate::run::try_ask(&source.dsn(), &sql).ok()
}

/// Changes `count` tables in `parts` parts, and compares the tables after each part. Returns how
/// many tables have rows in the end.
fn run_round(seed: u64, count: usize, parts: u64) -> usize {
    let mut random = SplitMix(seed);
    let source = PublishedDatabase::new(&create_tables(count));
    source.value(&create_triggers(count));
    let names: Vec<_> = (0..count).map(|nth| format!("t{nth}")).collect();
    source.run(&format!("create publication p for table {}", names.join(", ")));
    let cases = WAYS.map(|way| (way, LoadCase::new(&create_tables(count))));
    apply_slot_and_report(&source, &cases[0].1, "--create-slot");
    let slot = format!("w_{}", source.name());
    let plugin = format!("select pg_create_logical_replication_slot('{slot}', 'wal2json')");
    let has_plugin = crate::run::try_ask(&source.dsn(), &plugin).is_ok();
    for part in 0..parts {
        run_transactions(&source, &mut random, count as u64, 5 * count as u64);
        // With many tables, a commit for each transaction would take long.
        let rows = &[1, 7, 60, 100_000][if count > 20 { 1 } else { 0 }..];
        let rows = rows[random.below(rows.len() as u64) as usize];
        let direct = [0, 1000][random.below(2) as usize];
        let args = format!("--batch-rows {rows} --direct-rows {direct}");
        let what = format!("seed {seed}, part {part}, {args}");
        apply_slot_and_report(&source, &cases[0].1, &args);
        let events = recorded_events(&source);
        for (nth, text) in [(1, lines(&events)), (2, lines(&as_wal2json(&events)))] {
            let report = apply_and_report(&cases[nth].1, &text, &format!("--stream s {args}"));
            assert_eq!(report["missing"], 0, "{what}: {report}");
        }
        if let (true, Some(text)) = (has_plugin, real_wal2json(&source)) {
            cases[3].1.put("w.json", &text);
            let args = format!("w.json --stream s{part} --format wal2json --quiet {args}");
            let run = apply(&cases[3].1, &args);
            assert_eq!(run.status, Some(0), "{what}: {}", run.stderr);
        }
        let theirs = table_rows(&source.dsn(), count);
        for (way, case) in cases.iter().filter(|(way, _)| *way != "plugin" || has_plugin) {
            let ours = table_rows(&case.db.dsn(), count);
            let pairs = ours.lines().zip(theirs.lines()).zip(KEY_DEFINITIONS.iter().cycle());
            for ((ours, theirs), sort) in pairs {
                assert!(ours == theirs, "{what}, {way}, {sort}:\n{ours}\n{theirs}");
            }
        }
    }
    if has_plugin {
        source.value(&format!("select pg_drop_replication_slot('{slot}')"));
    }
    table_rows(&source.dsn(), count).lines().filter(|line| line.contains('(')).count()
}

/// Returns the rows of the tables, one line for each table.
fn table_rows(dsn: &str, count: usize) -> String {
    let one = |nth| {
        let all = format!("select string_agg(t::text, ' ' order by t::text) from t{nth} t");
        format!("select {nth}, 't{nth} ' || coalesce(({all}), '')")
    };
    let all = (0..count).map(one).collect::<Vec<_>>().join(" union all ");
    crate::run::ask(dsn, &format!("select string_agg(l, E'\\n' order by n) from ({all}) x (n, l)"))
}

#[test]
fn tables_with_duplicate_rows_equal_the_source() {
    let limit = env_number("PGSPATE_TEST_LONG").map(Duration::from_secs);
    let first = env_number("PGSPATE_TEST_SEED").unwrap_or(1);
    let (count, parts) = if limit.is_some() { (80, 1) } else { (KEY_DEFINITIONS.len(), 2) };
    let (begin, mut seed, mut histories, mut filled) = (Instant::now(), first, 0, 0);
    while seed == first || limit.is_some_and(|limit| begin.elapsed() < limit) {
        filled += run_round(seed, count, parts);
        histories += count;
        seed += 1;
        println!("ran {histories} histories in {:?}; {filled} tables have rows", begin.elapsed());
    }
    assert!(filled > histories / 3, "{histories} histories filled only {filled} tables");
}
