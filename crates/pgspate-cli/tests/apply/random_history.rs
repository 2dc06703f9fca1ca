//! Random histories: random statements change a source. Triggers record the row changes as events,
//! and applying the events must lead to the same tables in the target.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::support::LoadCase;
use crate::{apply, rows};

/// Random numbers from a seed, by splitmix64. Equal seeds give equal numbers.
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    /// Returns a number below the limit.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

const CREATE_TABLES: &str = "\
create table parent (id int primary key, code text unique, note text);
create table child (id int primary key, parent int references parent ACTION, n int, big text);
create table loner (a int, b text);
alter table loner replica identity full";

/// Triggers that record the events of a change stream. An update has every column except an
/// unchanged `big`, because databases omit unchanged values that are stored out of line.
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
    if tg_op = 'UPDATE' and said ? 'big' and said -> 'big' = was -> 'big' then
      said := said - 'big';
    end if;
    line := line || jsonb_build_object('row', said);
  end if;
  if tg_op <> 'INSERT' then
    if tg_table_name = 'loner' then
      line := line || jsonb_build_object('old', was);
    elsif tg_op = 'DELETE' or new.id <> old.id then
      line := line || jsonb_build_object('key', jsonb_build_object('id', old.id));
    end if;
  end if;
  insert into events (line) values (line);
  return null;
end $$;
create function note_truncate() returns trigger language plpgsql as $$ begin
  insert into events (line) values (jsonb_build_object('op', 'truncate', 'table', tg_table_name));
  return null;
end $$;
create trigger note after insert or update or delete on parent for each row execute function note();
create trigger note after insert or update or delete on child for each row execute function note();
create trigger note after insert or update or delete on loner for each row execute function note();
create trigger note_truncate after truncate on loner for each statement
  execute function note_truncate()";

/// Returns a random statement, which may fail.
fn random_statement(random: &mut SplitMix) -> String {
    let mut n = |limit| random.below(limit);
    let (id, other, x) = (n(12), n(12), n(6));
    match n(17) {
        0 | 1 => format!("insert into parent values ({id}, 'c{x}', 'note {other}')"),
        2 | 3 => format!("insert into child values ({id}, {other}, {x}, repeat('x', {x}))"),
        4 => format!("insert into child values ({id}, null, {x}, null)"),
        5 => format!("update parent set note = 'n{x}' where id = {id}"),
        6 => format!("update parent set code = 'c{x}' where id = {id}"),
        7 => format!("update child set n = n + 1 where id % 3 = {}", x % 3),
        8 => format!("update child set parent = {other} where id = {id}"),
        9 => format!("update child set big = repeat('y', {x}) where id = {id}"),
        10 => format!("update child set id = {other} where id = {id}"),
        11 => format!("update parent set id = {other} where id = {id}"),
        12 => format!("delete from parent where id = {id}"),
        13 => format!("delete from child where id = {id}"),
        14 => format!("insert into loner values ({x}, 'b{}'), ({x}, null)", other % 3),
        15 => format!("update loner set b = 'u{x}' where a = {}", other % 6),
        _ => match x {
            0 => "truncate loner".to_owned(),
            _ => format!("delete from loner where a = {x}"),
        },
    }
}

/// Runs random transactions on the source. Returns their events.
fn run_transactions(source: &LoadCase, random: &mut SplitMix) -> String {
    let (runtime, client) = crate::run::session(&source.db.dsn());
    for _ in 0..60 {
        let mut sql = "begin;".to_owned();
        for _ in 0..=random.below(4) {
            // A failed statement is ignored and changes nothing.
            writeln!(
                sql,
                "do $do$ begin {}; exception when others then null; end $do$;",
                random_statement(random)
            )
            .unwrap();
        }
        runtime.block_on(client.batch_execute(&format!("{sql} commit"))).unwrap();
    }
    let lines = "select (line || jsonb_build_object('tx', tx::text, \
                        'end', nth = max(nth) over (partition by tx)))::text \
                 from events order by nth";
    let lines = source.db.query(lines);
    lines.iter().map(|row| format!("{}\n", row[0].as_ref().unwrap())).collect()
}

#[test]
fn random_histories_lead_to_the_same_tables() {
    for (seed, action) in
        [(1, ""), (2, "on delete cascade"), (3, "on delete set null"), (4, "deferrable"), (5, "")]
    {
        let tables = CREATE_TABLES.replace("ACTION", action);
        let source = LoadCase::new(&format!("{tables}; {TRIGGERS}"));
        let target = LoadCase::new(&tables);
        let mut random = SplitMix(seed);
        let mut events = run_transactions(&source, &mut random);
        let mut sizes = BTreeMap::new();
        // Apply the stream in several runs, with batches of any size.
        let all: Vec<String> = events.lines().map(str::to_owned).collect();
        for _ in 0..3 {
            let upto = random.below(all.len() as u64) as usize;
            events = all[..upto].join("\n") + "\n";
            target.put("s.ndjson", &events);
            let rows = 1 + random.below(60);
            sizes.insert(upto, rows);
            let direct = [0, 1000][random.below(2) as usize];
            let args = format!("--stream s --batch-rows {rows} --direct-rows {direct}");
            let run = apply(&target, &format!("s.ndjson --quiet {args}"));
            // The run fails if the input ends within a transaction, or before the applied position.
            assert!(matches!(run.status, Some(0 | 2)), "seed {seed} {sizes:?}: {}", run.stderr);
        }
        target.put("s.ndjson", all.join("\n"));
        let run = apply(&target, "s.ndjson --quiet --stream s --json");
        assert_eq!(run.status, Some(0), "seed {seed} {sizes:?}: {}{}", run.stderr, run.stdout);
        for table in ["parent", "child", "loner"] {
            assert_eq!(rows(&target, table), rows(&source, table), "seed {seed} {table}");
        }
        assert!(rows(&source, "child").len() > 20, "seed {seed}: the history leaves too few rows");
    }
}
