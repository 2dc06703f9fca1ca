//! A source and a target server that a test may kill, and a history of changes in the source. The
//! target's tables show whether an event was lost or applied twice.
//!
//! The table `news` has no key, so that an event applied twice leaves two equal rows. Every version
//! of a row of `child` has a unique number, and the target logs each version that is written.

use std::ops::Range;
use std::process::Child;

use pgspate_embedded::{ThrowawayServer, testing};
use tempfile::TempDir;

use crate::proxy::Proxy;
use crate::run::{ask, command, spawn, try_ask};
use crate::source::CONF;

/// A setting that makes the source notice a lost client after three seconds.
const FAST_SENDER_TIMEOUT: &str = "wal_sender_timeout = 3s\n";

const CREATE_TABLES: &str = "\
create sequence version;
create table parent (id int primary key, code text unique, note text);
create table child (id int primary key, parent int references parent, v int, big text);
alter table child alter big set storage external;
create table news (n int, what text);
create table whole (a int, b text);
alter table whole replica identity full";

const TABLES: [&str; 4] = ["parent", "child", "news", "whole"];

/// A trigger in the target that logs each version of a row of `child` that was written.
const VERSION_LOG: &str = "\
create table log (n bigint generated always as identity, id int, v int);
create function note() returns trigger language plpgsql as $$ begin
  insert into log (id, v) values (new.id, new.v); return new; end $$;
create trigger note after insert or update on child for each row execute function note();
create function forget() returns trigger language plpgsql as $$ begin
  delete from log; return null; end $$;
create trigger forget after truncate on child for each statement execute function forget()";

/// The first rows of the source, which a snapshot copies.
const INSERT_ROWS: &str = "\
insert into parent select n, 'c' || n, E'a\\tb\\\\ \\n' || n from generate_series(1, 12) n;
insert into child select n, n % 12 + 1, nextval('version'),
       case n % 3 when 0 then repeat('x', 3000) end from generate_series(1, 40) n;
insert into news select n, 'before' from generate_series(1, 30) n;
insert into whole select n % 3, 'b' || n % 2 from generate_series(1, 9) n";

/// The transactions of the history, one per line. One transaction is larger than the batches of a
/// trial.
const HISTORY: &str = "\
insert into news select n, 'first' from generate_series(1, 7) n
update child set v = nextval('version') where id % 5 = 0; insert into news values (1, 'with')
update child set v = nextval('version'); \
insert into news select n, 'large' from generate_series(1, 60) n
update child set id = id + 1000, v = nextval('version') where id in (3, 4); \
delete from child where id = 7
insert into elsewhere values (1)
update parent set code = 'tmp' where id = 2; update parent set code = 'c2' where id = 3; \
update parent set code = 'c3' where id = 2
update whole set b = 'u' where a = 1; delete from whole where a = 2
update child set big = repeat('y', 3000), v = nextval('version') where id % 9 = 0
insert into parent values (50, 'new', null); \
insert into child values (50, 50, nextval('version'), 'z')
truncate whole; insert into whole values (1, 'a'), (1, 'a')
delete from child where parent = 5; delete from parent where id = 5
update child set v = nextval('version') where id % 2 = 0
insert into news select n, 'last' from generate_series(1, 9) n";

/// All transactions of the history.
pub(crate) const WHOLE_HISTORY: Range<usize> = 0..13;

/// One of the two servers of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SlotTrialServer {
    Source,
    Target,
}

/// Both servers, and the folder in which the command runs.
pub(crate) struct SlotServers {
    folder: TempDir,
    source: ThrowawayServer,
    target: ThrowawayServer,
}

impl SlotServers {
    pub(crate) fn new() -> SlotServers {
        let scene = SlotServers {
            folder: TempDir::with_prefix("pgspate-cli-").unwrap(),
            source: testing::server(&format!("{CONF}{FAST_SENDER_TIMEOUT}")),
            target: testing::server(""),
        };
        let publish = format!("create publication p for table {}", TABLES.join(", "));
        ask(
            &scene.source.dsn(),
            &format!("{CREATE_TABLES}; create table elsewhere (n int); {publish}"),
        );
        ask(&scene.target.dsn(), &format!("{CREATE_TABLES}; {VERSION_LOG}"));
        scene
    }

    pub(crate) fn server(&self, end: SlotTrialServer) -> &ThrowawayServer {
        match end {
            SlotTrialServer::Source => &self.source,
            SlotTrialServer::Target => &self.target,
        }
    }

    pub(crate) fn ask(&self, end: SlotTrialServer, sql: &str) -> String {
        ask(&self.server(end).dsn(), sql)
    }

    /// Starts `pgspate apply` of the slot through the proxies.
    pub(crate) fn start(&self, source: &Proxy, target: &Proxy, args: &str) -> Child {
        self.spawn(&source.address().to_string(), &target.dsn(), args)
    }

    /// Starts `pgspate apply` of the slot without proxies.
    pub(crate) fn start_plain(&self, args: &str) -> Child {
        let address = format!("127.0.0.1:{}", self.source.port());
        self.spawn(&address, &self.target.dsn(), args)
    }

    fn spawn(&self, source: &str, target: &str, args: &str) -> Child {
        let password = self.source.password();
        let slot = format!(
            "postgres://postgres:{password}@{source}/postgres?sslmode=disable&slot=s&publication=p"
        );
        let mut apply = command(self.folder.path(), &["apply", "--to", target, "--quiet"]);
        apply.args(["--batch-delay", "0", "--retry-for", "20", "--stall-timeout", "5"]);
        spawn(apply.args(args.split_whitespace()).arg(slot))
    }

    /// Removes the slot, all rows and the ledger.
    pub(crate) fn reset(&self) {
        self.drop_slot();
        let names = TABLES.join(", ");
        self.ask(SlotTrialServer::Source, &format!("truncate {names} restart identity"));
        self.ask(SlotTrialServer::Source, "select setval('version', 1)");
        self.ask(
            SlotTrialServer::Target,
            &format!(
                "set client_min_messages = warning; truncate {names}, log restart identity; \
                 drop schema if exists pgspate cascade"
            ),
        );
    }

    /// Drops the slot, after terminating the session that reads it.
    pub(crate) fn drop_slot(&self) {
        let sql = "select pg_terminate_backend(active_pid) from pg_replication_slots where active; \
                   select pg_drop_replication_slot(slot_name) from pg_replication_slots";
        while self.ask(SlotTrialServer::Source, "select count(*) from pg_replication_slots") != "0"
        {
            // The terminated reader may take a moment to exit.
            let _ = try_ask(&self.source.dsn(), sql);
        }
    }

    pub(crate) fn make_slot(&self) {
        self.ask(
            SlotTrialServer::Source,
            "select pg_create_logical_replication_slot('s', 'pgoutput')",
        );
    }

    /// Inserts the first rows into the source.
    pub(crate) fn fill(&self) {
        self.ask(SlotTrialServer::Source, INSERT_ROWS);
    }

    /// Runs these transactions of the history on the source.
    pub(crate) fn change(&self, which: Range<usize>) {
        for transaction in HISTORY.lines().take(which.end).skip(which.start) {
            self.ask(SlotTrialServer::Source, transaction);
        }
    }

    /// Returns how the target's tables differ from the source's, or `None`.
    pub(crate) fn difference(&self) -> Option<String> {
        for name in TABLES {
            let rows = format!(
                "select count(*) || ' rows ' || md5(coalesce(string_agg(t::text, ' ' \
                 order by t::text), '')) from {name} t"
            );
            let (ours, theirs) = (
                self.ask(SlotTrialServer::Target, &rows),
                self.ask(SlotTrialServer::Source, &rows),
            );
            if ours != theirs {
                return Some(format!("the target's {name} has {ours}, the source's has {theirs}"));
            }
        }
        self.repeated_writes()
    }

    /// Returns how many rows or versions were written twice, or after a later version of the row.
    /// Returns `None` if there are none.
    pub(crate) fn repeated_writes(&self) -> Option<String> {
        let twice = "select count(*) from (select from log group by v having count(*) > 1) x";
        let back = "select count(*) from (select v < lag(v) over (partition by id order by n) as \
                    is_back from log) x where is_back";
        let news = "select count(*) from (select from news group by n, what having count(*) > 1) x";
        for (what, sql) in [
            ("versions written twice", twice),
            ("versions written after a later version", back),
            ("rows of news written twice", news),
        ] {
            let count = self.ask(SlotTrialServer::Target, sql);
            if count != "0" {
                return Some(format!("{what}: {count}"));
            }
        }
        None
    }

    /// Returns the ledger's record of the stream: events, dead letters and position.
    pub(crate) fn ledger(&self) -> (u64, u64, String) {
        let ask = |what: &str| {
            self.ask(SlotTrialServer::Target, &format!("select {what} from pgspate.stream"))
        };
        let letters = self.ask(SlotTrialServer::Target, "select count(*) from pgspate.dead_letter");
        assert_eq!(ask("count(*)"), "1");
        assert_eq!(ask("sum(dead_letters)"), letters);
        let number = |text: String| text.parse().unwrap_or(u64::MAX);
        (number(ask("ordinal")), number(letters), ask("source"))
    }

    /// Returns how the slot's confirmed position differs from the ledger's position, or `None`.
    pub(crate) fn slot_difference(&self) -> Option<String> {
        let (_, _, at) = self.ledger();
        let confirmed = self.ask(
            SlotTrialServer::Source,
            "select string_agg(confirmed_flush_lsn::text, ' ') from pg_replication_slots",
        );
        (confirmed != at).then(|| format!("the slot is at {confirmed}, the ledger at {at}"))
    }

    /// Returns the command's remaining sessions as text. The text is empty if no session remains.
    pub(crate) fn remaining_sessions(&self) -> String {
        let sessions = "select string_agg(concat_ws(' ', pid, application_name, state, \
                        wait_event, left(query, 60)), ', ') from pg_stat_activity \
                        where application_name like 'pgspate%'";
        [SlotTrialServer::Source, SlotTrialServer::Target]
            .map(|end| self.ask(end, sessions))
            .join("")
    }
}
