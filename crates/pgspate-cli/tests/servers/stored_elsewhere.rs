//! Loads, syncs and applies to a table whose rows an extension stores. After each command the table
//! must have the rows that a plain table would have.

use std::env;

use crate::citus_rules::{self, CREATE_CATALOG};
use crate::proxy::Proxy;
use crate::run::{ask, finish, spawn};
use crate::support::LoadCase;

/// The amounts are compared byte by byte, because their type has no scale.
const CREATE_TABLE: &str = "\
drop table if exists public.spread;
create table public.spread (id int primary key, grp int, name text, amount numeric);
create index spread_grp on public.spread (grp)";

/// A server with the table `public.spread`.
struct ServerWithTable {
    case: LoadCase,
    /// The connection string for the commands of pgspate.
    dsn: String,
    /// The connection string for the test's own statements.
    test_dsn: String,
    /// The proxy that imitates Citus, if the server has no extension.
    _proxy: Option<Proxy>,
}

impl ServerWithTable {
    /// Returns a plain server behind a proxy. The proxy makes the server refuse the statements that
    /// Citus refuses. Returns `None` if the server of the tests is a real Citus.
    fn with_rules_of_citus() -> Option<ServerWithTable> {
        let case = LoadCase::new(CREATE_TABLE);
        if ask(&case.db.dsn(), "select count(*) from pg_extension where extname = 'citus'") == "1" {
            return None;
        }
        case.db.run(CREATE_CATALOG);
        let test_dsn = case.db.dsn();
        let proxy = Proxy::start_with_rules(&test_dsn, None, citus_rules::refusal);
        Some(ServerWithTable { case, dsn: proxy.dsn(), test_dsn, _proxy: Some(proxy) })
    }

    /// Returns the server whose address is in the environment variable `name`. The statement
    /// `spread` makes the table a table of the extension. Returns `None` if the variable is not
    /// set.
    fn from_environment(name: &str, spread: &str) -> Option<ServerWithTable> {
        let dsn = env::var(name).ok().filter(|dsn| !dsn.trim().is_empty())?;
        ask(&dsn, "set client_min_messages = error; drop table if exists public.spread");
        // Citus accepts these statements only one by one.
        CREATE_TABLE.split(';').for_each(|sql| drop(ask(&dsn, sql)));
        ask(&dsn, spread);
        let test_dsn = dsn.clone();
        Some(ServerWithTable { case: LoadCase::new(""), dsn, test_dsn, _proxy: None })
    }

    /// Runs pgspate with `args`, split at spaces. The command must succeed.
    #[track_caller]
    fn run(&self, verb: &str, args: &str) {
        let mut command = self.case.command(&[verb, "--to", &self.dsn]);
        let run = finish(spawn(command.args(args.split_whitespace())));
        assert_eq!(run.status, Some(0), "{verb} {args}: {}", run.stderr);
        assert!(!run.stderr.contains("warning: indexes are kept"), "{}", run.stderr);
    }

    /// Returns the table's rows as text.
    fn rows(&self) -> String {
        let rows = "select coalesce(string_agg(concat_ws(',', id, grp, name, amount), ' ' \
                                               order by id), '') from public.spread";
        ask(&self.test_dsn, rows)
    }

    /// Checks that the table still has its primary key and its index.
    #[track_caller]
    fn check_indexes(&self) {
        let indexes = "select string_agg(indexrelid::regclass::text, ' ' order by 1) \
                       from pg_index where indrelid = 'public.spread'::regclass and indisvalid";
        let indexes = ask(&self.test_dsn, indexes).replace("public.", "");
        let all: Vec<&str> = indexes.split(' ').collect();
        assert!(all.contains(&"spread_pkey") && all.contains(&"spread_grp"), "{indexes}");
    }
}

/// Returns csv of the rows, with a header.
fn csv(rows: &str) -> String {
    format!("id,grp,name,amount\n{}\n", rows.replace(' ', "\n"))
}

/// Runs all commands that write rows, and checks the table after each of them.
fn write_with_all_commands(server: &ServerWithTable) {
    let first = "1,1,a,1.00 2,1,b,2.50 3,2,c,3.00 4,2,d,4.00";
    let second = "2,1,b,2.50 3,2,C,3.00 5,2,e,5.00 6,3,f,6.00";
    server.case.put("first.csv", csv(first));
    server.case.put("second.csv", csv(second));
    let table = "--table public.spread --quiet";

    server.run("load", &format!("first.csv {table}"));
    assert_eq!(server.rows(), first);
    server.check_indexes();
    server.run("load", &format!("second.csv {table} --replace"));
    assert_eq!(server.rows(), second);
    ask(&server.test_dsn, "truncate public.spread");
    server.run("load", &format!("first.csv {table} --atomic --restart"));
    assert_eq!(server.rows(), first);
    server.check_indexes();

    sync_all_scopes(server, table, first, second);
    apply_events(server);
    server.run("status", "");
    ask(&server.test_dsn, "drop table public.spread");
}

/// Syncs with each kind of scope.
fn sync_all_scopes(server: &ServerWithTable, table: &str, first: &str, second: &str) {
    server.run("sync", &format!("second.csv {table} --insert-only"));
    assert_eq!(server.rows(), format!("{first} 5,2,e,5.00 6,3,f,6.00"));
    server.run("sync", &format!("second.csv {table} --no-delete"));
    assert_eq!(server.rows(), "1,1,a,1.00 2,1,b,2.50 3,2,C,3.00 4,2,d,4.00 5,2,e,5.00 6,3,f,6.00");
    server.run("sync", &format!("second.csv {table} --scope-by grp"));
    assert_eq!(server.rows(), second);
    server.case.put("grp2.csv", csv("3,2,c,3.00"));
    server.run("sync", &format!("grp2.csv {table} --scope grp=2"));
    assert_eq!(server.rows(), "2,1,b,2.50 3,2,c,3.00 6,3,f,6.00");
    server.run("sync", &format!("first.csv {table} --scope true --max-delete 100"));
    assert_eq!(server.rows(), first);
}

/// Applies inserts, updates, deletes, a changed key and a truncate.
fn apply_events(server: &ServerWithTable) {
    let column = |name: &str, ty: &str, value: &str| {
        format!(r#"{{"name":"{name}","type":"{ty}","value":{value}}}"#)
    };
    let row = |id: u32, name: &str| {
        let columns = [
            column("id", "integer", &id.to_string()),
            column("grp", "integer", "1"),
            column("name", "text", &format!("\"{name}\"")),
            column("amount", "numeric(10,2)", "7.00"),
        ];
        format!(r#""columns":[{}]"#, columns.join(","))
    };
    let identity =
        |id: u32| format!(r#""identity":[{}]"#, column("id", "integer", &id.to_string()));
    let event = |action: &str, rest: &str| {
        format!(r#"{{"action":"{action}","schema":"public","table":"spread"{rest}}}"#)
    };
    let mut lsn = 0x100;
    let mut transaction = |events: &[String]| {
        lsn += 0x10;
        let mark = |action: &str| {
            format!(r#"{{"action":"{action}","lsn":"0/{lsn:X}","nextlsn":"0/{:X}"}}"#, lsn + 1)
        };
        format!("{}\n{}\n{}\n", mark("B"), events.join("\n"), mark("C"))
    };
    let changes = [
        event("I", &format!(",{}", row(7, "new"))),
        event("U", &format!(",{},{}", row(1, "changed"), identity(1))),
        event("U", &format!(",{},{}", row(9, "moved"), identity(2))),
        event("D", &format!(",{}", identity(3))),
        // The source leaves out a large value that has not changed.
        event(
            "U",
            &format!(
                r#","columns":[{},{}],{}"#,
                column("id", "integer", "10"),
                column("grp", "integer", "3"),
                identity(4)
            ),
        ),
    ];
    server.case.put("events.json", transaction(&changes));
    let oid = ask(&server.test_dsn, "select 'public.spread'::regclass::oid");
    let stream = format!("--stream test_{oid}");
    server.run("apply", &format!("events.json {stream} --quiet"));
    assert_eq!(server.rows(), "1,1,changed,7.00 7,1,new,7.00 9,1,moved,7.00 10,3,d,4.00");
    let emptied = [event("T", ""), event("I", &format!(",{}", row(8, "only")))];
    server.case.put("more.json", transaction(&changes[..4]) + &transaction(&emptied));
    server.run("apply", &format!("more.json {stream}_2 --quiet"));
    assert_eq!(server.rows(), "8,1,only,7.00");
}

#[test]
fn all_commands_follow_the_rules_of_citus() {
    let Some(server) = ServerWithTable::with_rules_of_citus() else { return };
    write_with_all_commands(&server);
}

#[test]
fn all_commands_write_to_a_real_citus() {
    for spread in [
        "select create_distributed_table('public.spread', 'id')",
        "select create_reference_table('public.spread')",
    ] {
        let Some(server) = ServerWithTable::from_environment("PGSPATE_TEST_CITUS_DSN", spread)
        else {
            return;
        };
        write_with_all_commands(&server);
    }
}

#[test]
fn all_commands_write_to_a_real_hypertable() {
    let spread = "select create_hypertable('public.spread', by_range('id', 3))";
    let server = || ServerWithTable::from_environment("PGSPATE_TEST_TIMESCALE_DSN", spread);
    let Some(plain) = server() else { return };
    write_with_all_commands(&plain);
    write_to_compressed_chunks(&server().unwrap());
}

/// Syncs and applies to a hypertable whose chunks are compressed.
fn write_to_compressed_chunks(server: &ServerWithTable) {
    let first = "1,1,a,1.00 2,1,b,2.50 3,2,c,3.00 4,2,d,4.00";
    let second = "2,1,b,2.50 3,2,C,3.00 5,2,e,5.00 6,3,f,6.00";
    server.case.put("first.csv", csv(first));
    server.case.put("second.csv", csv(second));
    let compress =
        "select count(compress_chunk(chunk, true)) from show_chunks('public.spread') chunk";
    let table = "--table public.spread --quiet";
    ask(&server.test_dsn, "alter table public.spread set (timescaledb.compress)");
    server.run("load", &format!("first.csv {table}"));
    ask(&server.test_dsn, compress);
    sync_all_scopes(server, table, first, second);
    ask(&server.test_dsn, compress);
    apply_events(server);
    ask(&server.test_dsn, "drop table public.spread");
}
