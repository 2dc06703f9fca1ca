//! Runs the command `pgspate` in a folder and with a database that only one test uses.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use pgspate_embedded::testing::{self, TestDb};
use regex_lite::Regex;
use tempfile::TempDir;

pub(crate) use crate::run::{Run, ask, command, finish, session, spawn, wait_until};

/// Turns the ledger into one of version 3, which kept up to a thousand files with each job.
pub(crate) const TO_VERSION_3: &str = "\
alter table pgspate.job add column sources jsonb;
update pgspate.job set sources = (
    select jsonb_agg(source order by input) from pgspate.source_file f
    where f.job = job.job and input < 1000);
drop table pgspate.source_file, pgspate.fleet, pgspate.member, pgspate.member_scope, \
           pgspate.part, pgspate.fleet_job, pgspate.request, pgspate.stream_file;
alter table pgspate.job drop column lists_all_files;
update pgspate.version set version = 3";

/// A folder to run commands in and a database to load into. Both are removed with the value.
pub(crate) struct LoadCase {
    folder: TempDir,
    pub(crate) db: TestDb,
}

impl LoadCase {
    /// Creates an empty folder and a database, and runs `sql` in the database.
    pub(crate) fn new(sql: &str) -> LoadCase {
        let db = testing::database();
        if !sql.is_empty() {
            db.run(sql);
        }
        LoadCase { folder: TempDir::with_prefix("pgspate-cli-").unwrap(), db }
    }

    /// Returns the path of a file in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file into the folder.
    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Returns the command `pgspate` with `args`, run in the folder.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        command(self.folder.path(), args)
    }

    /// Returns the command `pgspate load` with `args`, split at spaces, into the database.
    pub(crate) fn load_command(&self, args: &str) -> Command {
        let mut command = self.command(&["load", "--to", &self.db.dsn()]);
        command.args(args.split_whitespace());
        command
    }

    /// Runs `pgspate load` with `args`, split at spaces, to its end.
    pub(crate) fn load(&self, args: &str) -> Run {
        let mut command = self.load_command(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command.spawn().unwrap())
    }

    /// Runs the load with `stdin` as its standard input.
    pub(crate) fn load_from(&self, stdin: impl Into<Vec<u8>>, args: &str) -> Run {
        let mut child = spawn(&mut self.load_command(args));
        let (mut pipe, bytes) = (child.stdin.take().unwrap(), stdin.into());
        // A command that fails early does not read to the end.
        let writer = thread::spawn(move || drop(pipe.write_all(&bytes)));
        let run = finish(child);
        writer.join().unwrap();
        run
    }

    /// Runs a load that must fail and change nothing; returns its redacted messages.
    pub(crate) fn refusal(&self, args: &str) -> String {
        let before = self.contents();
        let run = self.load(&format!("--quiet {args}"));
        assert_eq!(self.contents(), before, "the load left something behind");
        run.refusal()
    }

    /// Returns all tables with their rows, also the tables of the ledger that are not empty.
    /// Temporary tables are left out: their sessions may still be ending. So are tables of
    /// extensions: TimescaleDB's own work changes them.
    pub(crate) fn contents(&self) -> Vec<(String, Vec<String>)> {
        let tables = "select format('%s.%I', c.relnamespace::regnamespace, c.relname) \
                      from pg_class c where c.relkind in ('r', 'p') and c.relname <> 'version' \
                      and c.relnamespace not in ('pg_catalog'::regnamespace, \
                                                 'information_schema'::regnamespace) \
                      and c.relpersistence <> 't' \
                      and not exists (select from pg_depend d where d.objid = c.oid \
                                      and d.classid = 'pg_class'::regclass and d.deptype = 'e') \
                      order by 1";
        let tables = self.db.query(tables).into_iter().map(|row| row[0].clone().unwrap());
        let all = tables.map(|table| (table.clone(), self.rows(&table)));
        // A load that fails may leave an empty ledger.
        all.filter(|(table, rows)| !table.starts_with("pgspate.") || !rows.is_empty()).collect()
    }

    /// Returns the rows of a table as text, sorted. The keys of files are left out: a load that is
    /// refused may have seen that the rows of earlier files no longer exist.
    pub(crate) fn rows(&self, table: &str) -> Vec<String> {
        let row = match table {
            "pgspate.source_file" => "(t.job, t.input, t.source, t.rows)",
            _ => "t",
        };
        let rows = self.db.query(&format!("select {row}::text from {table} t order by 1"));
        rows.into_iter().map(|row| row[0].clone().unwrap_or_default()).collect()
    }

    /// Returns the columns of table `t` with their types.
    pub(crate) fn columns(&self) -> String {
        self.value(
            "select string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' \
                 order by attnum) from pg_attribute where attrelid = 't'::regclass and attnum > 0",
        )
    }

    /// Returns whether the database has no session of pgspate.
    pub(crate) fn is_quiet(&self) -> bool {
        let sql = "select count(*) from pg_stat_activity where datname = current_database() \
                   and application_name like 'pgspate%'";
        self.value(sql) == "0"
    }

    /// Returns the first column of the first row of a query.
    pub(crate) fn value(&self, sql: &str) -> String {
        self.db.query(sql)[0][0].clone().unwrap_or_else(|| "null".to_owned())
    }
}

impl Run {
    /// Checks that the command failed with exit status 2 and an empty stdout; returns the redacted
    /// stderr.
    #[track_caller]
    pub(crate) fn refusal(&self) -> String {
        assert_eq!(self.status, Some(2), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "");
        redact(&self.stderr)
    }

    /// Checks that the command left rows out (exit status 1) and that stdout is empty; returns the
    /// redacted stderr.
    #[track_caller]
    pub(crate) fn partial(&self) -> String {
        assert_eq!(self.status, Some(1), "{}", self.stderr);
        assert_eq!(self.stdout, "");
        redact(&self.stderr)
    }

    /// Checks that the command succeeded with an empty stdout; returns the redacted stderr.
    #[track_caller]
    pub(crate) fn success(&self) -> String {
        assert_eq!(self.status, Some(0), "{}", self.stderr);
        assert_eq!(self.stdout, "");
        redact(&self.stderr)
    }
}

/// Replaces everything that differs from run to run: times, rates, sizes of WAL, sessions, folders.
/// Folders are replaced first: their random names may match the other patterns.
pub(crate) fn redact(text: &str) -> String {
    let rules = [
        (r"/[^ \x22]*/\.?pgspate-[A-Za-z0-9-]+", "[DIR]"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-][\d:]*", "[WHEN]"),
        (r"\d+ s ago", "[AGE] ago"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+ UTC", "[WHEN]"),
        (r"(fingerprint|then,|content) [0-9a-f]{8,}", "$1 [HASH]"),
        (r"session \d+", "session [N]"),
        (r"role \w+([,)])", "role [ROLE]$1"),
        (r"\d+(\.\d+)? s\b", "[TIME]"),
        (r"\d+(\.\d+)? [kMG]?B/s", "[RATE]"),
        (r"\d+(\.\d+)? [kMG]?B of WAL", "[SIZE] of WAL"),
        (r"(?m)^open it with .*?( -c |$)", "open it with [PSQL]$1"),
        (r"pgspate_test_[0-9a-f_]+", "[DATABASE]"),
        (r"port \d+|127\.0\.0\.1:\d+|PGSQL\.\d+", "[PORT]"),
    ];
    let mut text = text.to_owned();
    for (pattern, with) in rules {
        text = Regex::new(pattern).unwrap().replace_all(&text, with).into_owned();
    }
    // The width of a column of the table of stages depends on the times in the column.
    let spaces = Regex::new(r" +\[TIME\]").unwrap();
    folded(&spaces.replace_all(&text, " [TIME]"))
}

/// Breaks lines longer than 88 characters and trims their ends, for inline snapshots.
pub(crate) fn folded(text: &str) -> String {
    const WIDTH: usize = 88;
    let mut folded = String::new();
    for line in text.lines() {
        let mut rest = line.trim_end().to_owned();
        while rest.chars().count() > WIDTH {
            let end = rest.char_indices().nth(WIDTH).map_or(rest.len(), |(at, _)| at);
            let Some(at) = rest[..end].rfind(' ').filter(|at| *at > WIDTH / 2) else { break };
            folded += &format!("{}\n", &rest[..at]);
            rest = format!("      … {}", &rest[at + 1..]);
        }
        folded += &format!("{rest}\n");
    }
    folded
}
