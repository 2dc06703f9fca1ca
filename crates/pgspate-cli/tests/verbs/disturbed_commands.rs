//! The commands under test, each with its tables and files.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// One command with its own tables.
pub(crate) struct DisturbedCommand {
    pub(crate) name: &'static str,
    /// SQL that creates the tables.
    pub(crate) prepare: &'static str,
    /// A command that runs first, without a fault. The text is empty if there is no such command.
    pub(crate) before: &'static str,
    /// The command, without `--to`.
    pub(crate) args: &'static str,
    /// The exit statuses that mean success.
    pub(crate) done: &'static [i32],
    /// A command that undoes the command. The text is empty if there is no such command.
    pub(crate) undo: &'static str,
}

/// Rows of the files with wide rows.
const WIDE_ROWS: u64 = 1500;
/// The width of a row, with which the file has three chunks.
const WIDE_BYTES: usize = 6000;
/// Rows of the narrow files.
const NARROW_ROWS: u64 = 4000;
const EVENT_COUNT: u64 = 2500;

const CREATE_KEYED: &str = "\
create table t (id int8, n int, note text);
alter table t add constraint t_key primary key (id), add constraint t_unique unique (n, id);
create index t_n on t (n) where n > 3; comment on index t_n is 'some';
create table child (id int8 references t)";

const CREATE_NARROW: &str = "\
create table m (scope int not null, id int not null, v numeric, note text, primary key (scope, id));
create index m_v on m (v);
insert into m select g % 8, g, g % 100, 'old ' || g % 3 from generate_series(1, 4200) g";

const CREATE_STREAM_TABLES: &str = "\
create table a (id int primary key, v int, note text);
create table b (id int primary key, a int references a, u text unique);
create table news (id int, v int)";

pub(crate) const DISTURBED_COMMANDS: [DisturbedCommand; 13] = [
    DisturbedCommand {
        name: "load-indexed",
        prepare: CREATE_KEYED,
        args: "load rows.csv --table t --lanes 2 --rebuild-indexes always",
        ..LOAD
    },
    DisturbedCommand {
        name: "load-chunks",
        prepare: "create table t (id int8, n int, note text); create index on t (n)",
        args: "load rows.csv --table t --lanes 2 --commit chunk --rebuild-indexes never",
        ..LOAD
    },
    DisturbedCommand {
        name: "load-rejects",
        prepare: CREATE_KEYED,
        args: "load bad.csv --table t --lanes 2 --commit chunk --rejects no.csv --max-rejects 50",
        done: &[0, 1],
        ..LOAD
    },
    DisturbedCommand {
        name: "load-atomic",
        prepare: CREATE_KEYED,
        args: "load rows.csv --table t --lanes 2 --atomic",
        ..LOAD
    },
    DisturbedCommand {
        name: "load-replace",
        prepare: "create table t (id int8 primary key, n int, note text); \
                  insert into t select g, g, 'old' from generate_series(1, 100) g",
        args: "load rows.csv --table t --replace",
        ..LOAD
    },
    DisturbedCommand {
        name: "load-create",
        prepare: "",
        args: "load rows.csv --table t --create",
        ..LOAD
    },
    DisturbedCommand {
        name: "sync-staged",
        args: "sync m.csv --table m --scope all --read-ahead never --max-delete 100%",
        ..SYNC
    },
    DisturbedCommand {
        name: "sync-ahead",
        args: "sync m.csv --table m --scope all --read-ahead always --max-delete 100%",
        ..SYNC
    },
    DisturbedCommand {
        name: "sync-turns",
        args: "sync m.csv --table m --scope-by scope --transactions 3 --vacuum --max-delete 100%",
        ..SYNC
    },
    DisturbedCommand {
        name: "apply",
        prepare: CREATE_STREAM_TABLES,
        args: "apply events.ndjson --batch-rows 400 --batch-delay 0 --direct-rows 100",
        ..LOAD
    },
    DisturbedCommand {
        name: "tune",
        prepare: "",
        args: "tune --apply --memory 8GiB --cpus 4",
        undo: "tune --revert",
        ..LOAD
    },
    DisturbedCommand {
        name: "doctor",
        prepare: CREATE_NARROW,
        args: "doctor --json",
        done: &[0, 1],
        ..LOAD
    },
    DisturbedCommand {
        name: "status",
        prepare: CREATE_KEYED,
        before: "load rows.csv --table t --quiet",
        args: "status --json",
        ..LOAD
    },
];

const LOAD: DisturbedCommand =
    DisturbedCommand { name: "", prepare: "", before: "", args: "", done: &[0], undo: "" };
const SYNC: DisturbedCommand = DisturbedCommand { prepare: CREATE_NARROW, ..LOAD };

/// Writes the files that the commands read to a folder.
pub(crate) fn write_files(folder: &Path) {
    let mut rows = "id,n,note\n".to_owned();
    let mut bad = rows.clone();
    for id in 0..WIDE_ROWS {
        let wide = "x".repeat(WIDE_BYTES);
        writeln!(rows, "{id},{},{id}{wide}", id % 50).unwrap();
        writeln!(bad, "{id},{},{id}{wide}", id % 50).unwrap();
        if id % 250 == 7 {
            writeln!(bad, "{id},x,no number").unwrap();
            writeln!(bad, "{id},{},{id}{wide}", id % 50).unwrap();
        }
    }
    let mut narrow = "scope,id,v,note\n".to_owned();
    // The sync deletes some rows, updates some, and inserts some.
    for id in 150..NARROW_ROWS + 350 {
        let note = if id % 17 == 0 { "new" } else { "old" };
        writeln!(narrow, "{},{id},{},{note} {}", id % 8, id % 100, id % 3).unwrap();
    }
    let files =
        [("rows.csv", rows), ("bad.csv", bad), ("m.csv", narrow), ("events.ndjson", events())];
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
}

/// Returns events of rows without a key and of values that count up. A lost or repeated event
/// changes the final rows.
fn events() -> String {
    let mut text = String::new();
    let mut event = |op: &str, table: &str, row: String, tx: u64| {
        let line =
            format!(r#"{{"op":"{op}","table":"{table}","row":{{{row}}},"tx":{tx},"end":true}}"#);
        writeln!(text, "{line}").unwrap();
    };
    for nth in 0..EVENT_COUNT {
        let (id, v) = (nth % 60, nth / 60);
        match (v, nth % 7) {
            (0, _) => event("insert", "a", format!(r#""id":{id},"v":0,"note":"n{id}""#), 2 * nth),
            (1, _) => {
                event("insert", "b", format!(r#""id":{id},"a":{id},"u":"u{id}""#), 2 * nth);
            }
            (_, 3) => event("insert", "news", format!(r#""id":{nth},"v":{v}"#), 2 * nth),
            _ => event("update", "a", format!(r#""id":{id},"v":{v}"#), 2 * nth),
        }
    }
    text
}
