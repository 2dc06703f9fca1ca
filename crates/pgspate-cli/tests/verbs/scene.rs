//! A server and a folder of files. The scene is prepared before a command and compared afterwards.

use std::collections::HashMap;
use std::path::Path;
use std::process::Child;

use pgspate_embedded::{ThrowawayServer, testing};
use tempfile::TempDir;
use tokio_postgres::SimpleQueryMessage;

use crate::disturbed_commands::{DISTURBED_COMMANDS, DisturbedCommand, write_files};
use crate::proxy::Proxy;
use crate::run::{Run, ask, command, finish, session, spawn};

/// The `--stall-timeout` of all commands, in seconds.
pub(crate) const STALL_TIMEOUT: u64 = 2;

/// The user's tables with their definitions, one row each. Tables of the ledger are left out.
const SELECT_TABLES: &str = "\
select c.oid::regclass::text,
       concat_ws(' ', c.relkind, c.relpersistence, c.reloptions::text,
           (select string_agg(concat_ws(' ', pg_get_indexdef(i.indexrelid), i.indisvalid, k.conname,
                                        k.contype, obj_description(i.indexrelid)), '; '
                              order by i.indexrelid::regclass::text)
            from pg_index i left join pg_constraint k
                 on k.conindid = i.indexrelid and k.contype <> 'f'
            where i.indrelid = c.oid),
           (select string_agg(concat_ws(' ', f.conname, pg_get_constraintdef(f.oid)), '; '
                              order by f.conname)
            from pg_constraint f where f.conrelid = c.oid and f.contype in ('f', 'c')))
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'S') and n.nspname not in ('pg_catalog', 'pgspate')
  and n.nspname <> 'information_schema' and n.nspname not like 'pg\\_toast%'
  and n.nspname not like 'pg\\_temp%'
order by 1";

/// The settings in `postgresql.auto.conf`. The value of the marker `pgspate.tuned` ends with row
/// numbers of the ledger. The query cuts these numbers off, because they differ after each run.
const SELECT_SETTINGS: &str = "\
select coalesce(string_agg(name || '=' || regexp_replace(setting, ' [0-9]+-[0-9]+$', ''), ' '
                           order by name), '')
from pg_file_settings where sourcefile like '%postgresql.auto.conf'";

/// Sessions and locks of pgspate, locks on public tables, and prepared transactions.
const SELECT_LEFT_OVER: &str = "\
select concat_ws('; ',
    (select string_agg(concat_ws(' ', 'session', pid, application_name, state, wait_event, query),
                       ', ')
     from pg_stat_activity where application_name like 'pgspate%' and pid <> pg_backend_pid()),
    (select string_agg(concat_ws(' ', 'lock', pid, locktype, mode), ', ') from pg_locks
     where pid <> pg_backend_pid()
       and (locktype = 'advisory' or relation in (select oid from pg_class
            where relnamespace = 'public'::regnamespace))),
    (select string_agg('prepared ' || gid, ', ') from pg_prepared_xacts))";

/// The server and the folder in which commands run.
pub(crate) struct CommandScene {
    folder: TempDir,
    pub(crate) server: ThrowawayServer,
    /// The undisturbed run of each command, by the command's index.
    baselines: HashMap<usize, CommandBaseline>,
}

/// The final state, messages, commits and time of an undisturbed run.
#[derive(Debug, Clone)]
pub(crate) struct CommandBaseline {
    pub(crate) state: String,
    pub(crate) messages: u64,
    pub(crate) commits: u64,
    pub(crate) seconds: f64,
}

impl CommandScene {
    pub(crate) fn new() -> CommandScene {
        let folder = TempDir::with_prefix("pgspate-cli-").unwrap();
        write_files(folder.path());
        // Autovacuum would hold locks.
        let server = testing::server("autovacuum = off");
        CommandScene { folder, server, baselines: HashMap::new() }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the undisturbed run of a command. The first call runs it through a counting proxy.
    pub(crate) fn baseline(&mut self, nth: usize) -> CommandBaseline {
        if let Some(known) = self.baselines.get(&nth) {
            return known.clone();
        }
        let disturbed = &DISTURBED_COMMANDS[nth];
        self.reset(disturbed);
        let proxy = Proxy::start(&self.server.dsn(), None);
        let begin = std::time::Instant::now();
        let run = finish(self.start(disturbed, &proxy.dsn()));
        let seconds = begin.elapsed().as_secs_f64();
        assert!(is_done(disturbed, &run), "{}: {}", disturbed.name, run.stderr);
        let (messages, commits) = proxy.counts();
        drop(proxy);
        let baseline = CommandBaseline { state: self.state(), messages, commits, seconds };
        self.undo(disturbed).unwrap();
        self.baselines.insert(nth, baseline.clone());
        baseline
    }

    /// Restores the state before a command.
    pub(crate) fn reset(&self, disturbed: &DisturbedCommand) {
        let dsn = self.server.dsn();
        ask(
            &dsn,
            "set client_min_messages = warning; drop schema if exists pgspate, public cascade; \
             create schema public",
        );
        ask(&dsn, "alter system reset all");
        ask(&dsn, "select pg_reload_conf()");
        if !disturbed.prepare.is_empty() {
            ask(&dsn, disturbed.prepare);
        }
        for name in ["no.csv", "no.csv.json"] {
            let _ = std::fs::remove_file(self.folder().join(name));
        }
        if !disturbed.before.is_empty() {
            let run = self.run(disturbed.before);
            assert_eq!(run.status, Some(0), "{}", run.stderr);
        }
    }

    /// Starts a command with `dsn` as target.
    pub(crate) fn start(&self, disturbed: &DisturbedCommand, dsn: &str) -> Child {
        let mut command = command(self.folder(), &disturbed.args.split(' ').collect::<Vec<_>>());
        command.args(["--to", dsn, "--stall-timeout", &STALL_TIMEOUT.to_string()]);
        let mut child = spawn(&mut command);
        // No command reads standard input here.
        drop(child.stdin.take());
        child
    }

    /// Runs a command without any fault.
    pub(crate) fn run(&self, args: &str) -> Run {
        let mut command = command(self.folder(), &args.split(' ').collect::<Vec<_>>());
        command.args(["--to", &self.server.dsn()]);
        finish(spawn(&mut command))
    }

    /// Runs the command that undoes a command, if there is one. Then no setting may remain.
    pub(crate) fn undo(&self, disturbed: &DisturbedCommand) -> Result<(), String> {
        if disturbed.undo.is_empty() {
            return Ok(());
        }
        let run = self.run(disturbed.undo);
        let left = ask(&self.server.dsn(), SELECT_SETTINGS);
        match (run.status, left.as_str()) {
            (Some(0), "") => Ok(()),
            _ => Err(format!("after {} there is {left:?}: {}", disturbed.undo, run.stderr)),
        }
    }

    /// Returns all tables with their definitions and rows, and all settings.
    pub(crate) fn state(&self) -> String {
        let dsn = self.server.dsn();
        let (runtime, client) = session(&dsn);
        let tables = runtime.block_on(client.simple_query(SELECT_TABLES)).unwrap();
        let mut state = ask(&dsn, SELECT_SETTINGS);
        for message in &tables {
            let SimpleQueryMessage::Row(row) = message else { continue };
            let (table, shape) = (row.get(0).unwrap(), row.get(1).unwrap_or_default());
            let rows = ask(
                &dsn,
                &format!(
                    "select count(*) || ' rows ' || \
                     coalesce(sum(hashtextextended(x::text, 0)::numeric), 0) from {table} x"
                ),
            );
            state += &format!("\n{table} {shape}: {rows}");
        }
        state
    }

    /// Returns the sessions and locks of ended commands as text, which is empty if there are none.
    pub(crate) fn left_over(&self) -> String {
        ask(&self.server.dsn(), SELECT_LEFT_OVER)
    }
}

/// Returns whether a command reports success.
pub(crate) fn is_done(disturbed: &DisturbedCommand, run: &Run) -> bool {
    run.status.is_some_and(|status| disturbed.done.contains(&status))
}
