//! A MariaDB server for the tests, random changes in it, and the comparison of its tables.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use pgspate_embedded::testing::TestDb;
use tempfile::TempDir;

use crate::run::wait_until;
use crate::test_random::TestRandom;
use crate::values::{quoted, word};

/// A MariaDB server, which is killed and removed when the value is dropped.
pub(crate) struct MariaDbServer {
    folder: TempDir,
    process: Child,
    pub(crate) port: u16,
}

impl MariaDbServer {
    /// Starts a server that every local user may read.
    pub(crate) fn start() -> MariaDbServer {
        let folder = TempDir::with_prefix("pgspate-mariadb-").unwrap();
        let data = folder.path().join("data");
        let made = Command::new("mariadb-install-db")
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg(format!("--datadir={}", data.display()))
            .args(user())
            .output()
            .expect("mariadb-install-db of Debian's mariadb-server");
        assert!(made.status.success(), "{made:?}");
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let process = Command::new(program("mariadbd"))
            .args(["--no-defaults", "--bind-address=127.0.0.1", "--server-id=1", "--log-bin=bin"])
            .args(["--binlog-format=ROW", "--binlog-row-image=FULL", "--skip-name-resolve"])
            .args(["--character-set-server=utf8mb4", "--default-time-zone=+00:00"])
            .args(["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M"])
            .arg(format!("--port={port}"))
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", folder.path().join("socket").display()))
            .args(user())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = MariaDbServer { folder, process, port };
        wait_until("MariaDB takes connections", || server.client("select 1", false).is_ok());
        server.run(
            "create user 'reader'@'%' identified by 'reader'; grant all on *.* to 'reader'@'%';",
        );
        server
    }

    /// Runs SQL in MariaDB's client. If `is_forced`, failed statements are ignored.
    fn client(&self, sql: &str, is_forced: bool) -> Result<String, String> {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "-u", "root", "--batch", "--raw", "--skip-column-names"]);
        client.args(["--default-character-set=utf8mb4", "--init-command=set sql_mode=''"]);
        client.args(is_forced.then_some("--force"));
        client.arg(format!("--socket={}", self.folder.path().join("socket").display()));
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut client = client.spawn().map_err(|error| error.to_string())?;
        // A client that cannot connect does not read its input.
        let _ = client.stdin.take().unwrap().write_all(sql.as_bytes());
        let output = client.wait_with_output().unwrap();
        match output.status.success() || is_forced {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn run(&self, sql: &str) -> String {
        self.client(sql, false).unwrap_or_else(|error| panic!("{error}: {sql}"))
    }
}

/// A database of the server with the tables of the workload.
pub(crate) struct MariaDbDatabase<'a> {
    pub(crate) server: &'a MariaDbServer,
    pub(crate) name: String,
}

impl<'a> MariaDbDatabase<'a> {
    pub(crate) fn new(server: &'a MariaDbServer) -> MariaDbDatabase<'a> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("shop_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        server.run(&format!("create database {name} character set utf8mb4"));
        let shop = MariaDbDatabase { server, name };
        shop.run(&schema());
        shop
    }

    /// Runs statements, which must succeed.
    pub(crate) fn run(&self, sql: &str) -> String {
        self.server.run(&format!("use {}; {sql}", self.name))
    }

    /// Runs statements and ignores failures.
    pub(crate) fn try_each(&self, sql: &str) {
        self.server.client(&format!("use {};\n{sql}", self.name), true).unwrap();
    }
}

impl Drop for MariaDbServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the option that MariaDB needs to run as root.
fn user() -> Option<&'static str> {
    let id = Command::new("id").arg("-u").output().unwrap();
    (id.stdout.trim_ascii() == b"0").then_some("--user=root")
}

/// Returns the path of a program that may be outside of a user's `PATH`.
fn program(name: &str) -> PathBuf {
    let folders = ["/usr/sbin", "/usr/local/sbin", "/usr/libexec"];
    let mut paths = folders.iter().map(|folder| Path::new(folder).join(name));
    paths.find(|path| path.exists()).unwrap_or_else(|| name.into())
}

/// A column's types in MariaDB and in the target, and expressions that write its values equally in
/// both.
struct MariaDbColumn {
    ty: &'static str,
    target: &'static str,
    theirs: &'static str,
    ours: &'static str,
}

const fn column(
    ty: &'static str,
    target: &'static str,
    theirs: &'static str,
    ours: &'static str,
) -> MariaDbColumn {
    MariaDbColumn { ty, target, theirs, ours }
}

const SAME_TEXT: (&str, &str) = ("@", "@::text");
const TEXT: (&str, &str) = ("hex(@)", "upper(encode(convert_to(@, 'UTF8'), 'hex'))");
const FLOAT: (&str, &str) = ("@ + 0e0", "replace(@::float8::text, 'e+', 'e')");
const STAMP: (&str, &str) =
    ("date_format(@, '%Y-%m-%d %H:%i:%s.%f')", "to_char(@, 'YYYY-MM-DD HH24:MI:SS.US')");
const CLOCK: (&str, &str) = ("time_format(@, '%H:%i:%s.%f')", "to_char(@, 'HH24:MI:SS.US')");
const BYTES: (&str, &str) = ("hex(@)", "upper(encode(@, 'hex'))");

const COLUMNS: [MariaDbColumn; 28] = [
    column("tinyint", "int2", SAME_TEXT.0, SAME_TEXT.1),
    column("smallint unsigned", "int4", SAME_TEXT.0, SAME_TEXT.1),
    column("int unsigned", "int8", SAME_TEXT.0, SAME_TEXT.1),
    column("bigint", "int8", SAME_TEXT.0, SAME_TEXT.1),
    column("bigint unsigned", "numeric(20,0)", SAME_TEXT.0, SAME_TEXT.1),
    column("decimal(30,5)", "numeric(30,5)", SAME_TEXT.0, SAME_TEXT.1),
    column("float", "float4", FLOAT.0, FLOAT.1),
    column("double", "float8", FLOAT.0, FLOAT.1),
    column("bit(1)", "bool", "@ + 0", "@::int::text"),
    column("bit(9)", "bit(9)", "lpad(bin(@ + 0), 9, '0')", SAME_TEXT.1),
    column("year", "int2", SAME_TEXT.0, SAME_TEXT.1),
    column("varchar(60)", "varchar(60)", TEXT.0, TEXT.1),
    column("longtext", "text", TEXT.0, TEXT.1),
    column("char(9)", "varchar(9)", TEXT.0, TEXT.1),
    column("varchar(60) character set latin1", "text", "hex(convert(@ using utf8mb4))", TEXT.1),
    column("enum('sad','it''s ok','a,b')", "text", TEXT.0, TEXT.1),
    column("set('x','y','z z')", "text", TEXT.0, TEXT.1),
    column("json", "text", TEXT.0, TEXT.1),
    column("varbinary(40)", "bytea", BYTES.0, BYTES.1),
    column("longblob", "bytea", BYTES.0, BYTES.1),
    column("binary(4)", "bytea", BYTES.0, BYTES.1),
    column("date", "date", SAME_TEXT.0, SAME_TEXT.1),
    column("datetime", "timestamp(0)", STAMP.0, STAMP.1),
    column("datetime(3)", "timestamp(3)", STAMP.0, STAMP.1),
    column("datetime(6)", "timestamp(6)", STAMP.0, STAMP.1),
    column("timestamp(6) null", "timestamptz", STAMP.0, STAMP.1),
    column("time(6)", "time(6)", CLOCK.0, CLOCK.1),
    column("time", "interval", CLOCK.0, CLOCK.1),
];

/// Returns the name of the column of this type.
pub(crate) fn column_of(ty: &str) -> String {
    let nth = COLUMNS.iter().position(|column| column.ty == ty);
    format!("c{}", nth.unwrap_or_else(|| panic!("no table has a column of type {ty}")))
}

fn columns(of: impl Fn(&MariaDbColumn) -> &'static str) -> String {
    let columns = COLUMNS.iter().enumerate();
    columns.map(|(nth, column)| format!(", c{nth} {}", of(column))).collect()
}

/// Returns the SQL that creates the tables in MariaDB.
fn schema() -> String {
    format!(
        "create table wide (id int primary key{});
         create table pair (a varchar(20), b int, v text, primary key (b, a)) collate utf8mb4_bin;
         create table loner (a int, b varchar(20), v text);
         create table `odd \"name` (`Id` int primary key, `sel ect` text);
         create table counted (id bigint auto_increment primary key, v text,
                               twice int generated always as (char_length(v) * 2) virtual);
         create table grows (id int primary key, v text);
         create table zz_marker (id int primary key);",
        columns(|column| column.ty)
    )
}

/// Returns the SQL that creates the tables in the target.
pub(crate) fn target_schema() -> String {
    format!(
        "create table wide (id int primary key{});
         create table pair (a text, b int, v text, primary key (b, a));
         create table loner (a int, b text, v text);
         create table \"odd \"\"name\" (\"Id\" int primary key, \"sel ect\" text);
         create table counted (id int8 primary key, v text, twice int);
         create table grows (id int primary key, v text);
         create table zz_marker (id int primary key)",
        columns(|column| column.target)
    )
}

/// Compares the rows of both databases as text. Returns the differences.
pub(crate) fn differences(source: &MariaDbDatabase<'_>, target: &TestDb) -> Vec<String> {
    let with =
        |name: String, how: (&str, &str)| (how.0.replace('@', &name), how.1.replace('@', &name));
    let wide = COLUMNS
        .iter()
        .enumerate()
        .map(|(nth, column)| with(format!("c{nth}"), (column.theirs, column.ours)));
    let known = "select string_agg(attrelid::regclass || '.' || attname, ' ') from pg_attribute \
                 where attrelid in ('wide'::regclass, 'grows'::regclass) and attnum > 0 \
                 and not attisdropped";
    let known = target.query(known)[0][0].clone().unwrap_or_default();
    let has = |column: &str| known.split(' ').any(|name| name == column);
    let wide = wide.enumerate().filter(|(nth, _)| has(&format!("wide.c{nth}"))).map(|(_, it)| it);
    let plain = |names: &[&str]| -> Vec<(String, String)> {
        names.iter().map(|name| with((*name).to_owned(), TEXT)).collect()
    };
    let bare = |names: &[&str]| -> Vec<(String, String)> {
        names.iter().map(|name| (format!("`{name}`"), format!("\"{name}\""))).collect()
    };
    let grown = (0..20).map(|nth| format!("g{nth}")).filter(|name| has(&format!("grows.{name}")));
    let mut tables = vec![
        ("wide", "wide", bare(&["id"]).into_iter().chain(wide).collect::<Vec<_>>()),
        ("pair", "pair", [plain(&["a", "v"]), bare(&["b"])].concat()),
        ("loner", "loner", [plain(&["b", "v"]), bare(&["a"])].concat()),
        ("counted", "counted", [bare(&["id", "twice"]), plain(&["v"])].concat()),
        ("zz_marker", "zz_marker", bare(&["id"])),
    ];
    let odd = ("hex(`sel ect`)".to_owned(), TEXT.1.replace('@', "\"sel ect\""));
    tables.push(("`odd \"name`", "\"odd \"\"name\"", [bare(&["Id"]), vec![odd]].concat()));
    let grown = grown.map(|name| (name.clone(), format!("{name}::text")));
    tables.push(("grows", "grows", [bare(&["id"]), plain(&["v"]), grown.collect()].concat()));
    let mut found = Vec::new();
    for (theirs, ours, columns) in tables {
        let list = |of: fn(&(String, String)) -> &String, ty: &str| {
            let nullable = |it: &String| format!("coalesce(cast({it} as {ty}), 'NULL')");
            columns.iter().map(|it| nullable(of(it))).collect::<Vec<_>>().join(", ")
        };
        let sql = format!("select concat_ws('|', {}) from {theirs}", list(|it| &it.0, "char"));
        let mut source_rows: Vec<String> = source.run(&sql).lines().map(str::to_owned).collect();
        let sql = format!("select concat_ws('|', {}) from {ours}", list(|it| &it.1, "text"));
        let mut target_rows: Vec<String> =
            target.query(&sql).into_iter().filter_map(|row| row[0].clone()).collect();
        source_rows.sort();
        target_rows.sort();
        if source_rows != target_rows {
            let difference =
                crate::database::line_differences(&source_rows.join("\n"), &target_rows.join("\n"));
            found.push(format!("{theirs}\n{difference}"));
        }
    }
    found
}

/// Makes random changes of the database.
pub(crate) struct MariaDbWorkload {
    pub(crate) random: TestRandom,
    grown: Vec<String>,
    names: u32,
    /// Whether rows of the table without a key change.
    keyless: bool,
}

/// A part of a workload: its statements, and the SQL for the target before and after the events of
/// these statements are applied.
pub(crate) struct MariaDbPhase {
    pub(crate) sql: String,
    pub(crate) before: Vec<String>,
    pub(crate) after: Vec<String>,
}

impl MariaDbWorkload {
    pub(crate) fn new(seed: u64, keyless: bool) -> MariaDbWorkload {
        MariaDbWorkload { random: TestRandom::new(seed), grown: Vec::new(), names: 0, keyless }
    }

    /// Makes the next part with this number of transactions.
    pub(crate) fn phase(&mut self, transactions: u64) -> MariaDbPhase {
        let mut phase = MariaDbPhase { sql: String::new(), before: vec![], after: vec![] };
        let ddl_at = self.random.below(2 * transactions);
        for nth in 0..transactions {
            if nth == ddl_at {
                self.change_of_table(&mut phase);
            }
            phase.sql += "start transaction;\n";
            for _ in 0..=self.random.below(8) {
                phase.sql += &format!("{};\n", self.statement());
                if self.random.below(20) == 0 {
                    let statement = self.statement();
                    phase.sql += &format!("savepoint s; {statement}; rollback to savepoint s;\n");
                }
            }
            phase.sql += if self.random.below(9) == 0 { "rollback;\n" } else { "commit;\n" };
            if self.random.below(20) == 0 {
                let tables: &[&str] = if self.keyless { &["pair", "loner", "wide"] } else { &[] };
                if !tables.is_empty() {
                    phase.sql += &format!("truncate table {};\n", self.random.pick(tables));
                }
            }
        }
        phase
    }

    /// Adds a column to `grows` or drops one.
    fn change_of_table(&mut self, phase: &mut MariaDbPhase) {
        if self.grown.len() > 1 {
            let sql = format!("alter table grows drop column {};\n", self.grown.remove(0));
            phase.sql += &sql;
            phase.after.push(sql);
            return;
        }
        let name = format!("g{}", self.names);
        self.names += 1;
        phase.sql += &format!("alter table grows add column {name} int default 7;\n");
        phase.before.push(format!("alter table grows add column {name} int default 7"));
        self.grown.push(name);
    }

    /// Returns a random literal for the nth column of `wide`.
    fn value(&mut self, nth: usize) -> String {
        let random = &mut self.random;
        if random.below(7) == 0 {
            return "null".to_owned();
        }
        let n = random.below(2000);
        let from = |random: &mut TestRandom, values: &[&str]| random.pick(values).to_owned();
        match COLUMNS[nth].ty {
            "tinyint" => from(random, &["-128", "127", "0", "1"]),
            "smallint unsigned" => from(random, &["0", "65535", "255"]),
            "int unsigned" => from(random, &["0", "4294967295", "12"]),
            "bigint" => from(random, &["-9223372036854775808", "9223372036854775807", "0"]),
            "bigint unsigned" => from(random, &["0", "18446744073709551615", "1"]),
            "decimal(30,5)" => {
                from(random, &["0", "-0.00001", "1234567890123456789012345.99999", "12.5", "-100"])
            }
            "float" => from(random, &["0.1", "-1.5", "65536", "0"]),
            "double" => {
                from(random, &["0.1", "1.7976931348623157e308", "-2.2250738585072014e-308", "-7"])
            }
            "bit(1)" => from(random, &["b'0'", "b'1'"]),
            "bit(9)" => from(random, &["b'0'", "b'1'", "b'100000000'", "b'101010101'"]),
            "year" => from(random, &["1901", "2155", "2024"]),
            "char(9)" => {
                quoted(&word(random).replace('\\', "").chars().take(8).collect::<String>())
            }
            "varchar(60) character set latin1" => from(random, &["''", "'café'", "'a\\nb'", "'ÿ'"]),
            "enum('sad','it''s ok','a,b')" => from(random, &["'sad'", "'it''s ok'", "'a,b'"]),
            "set('x','y','z z')" => from(random, &["''", "'x'", "'x,z z'", "'x,y,z z'"]),
            "json" => from(random, &["'{\"a\": 1.50}'", "'[]'", "'\"x\\\\ny\"'", "'null'"]),
            "varbinary(40)" | "longblob" => {
                from(random, &["''", "x'00'", "x'ff00fe'", "x'68690000'", "x'5c78'"])
            }
            "binary(4)" => from(random, &["''", "x'00'", "x'ff00fe01'", "x'61620000'"]),
            "date" => {
                from(random, &["'1000-01-01'", "'9999-12-31'", "'1969-12-31'", "'2024-02-29'"])
            }
            "datetime" => from(random, &["'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'"]),
            "datetime(3)" | "datetime(6)" => match n % 3 {
                0 => "'1969-12-31 23:59:59.999'".to_owned(),
                1 => format!("'20{:02}-03-31 02:30:00.{n:03}'", n % 100),
                _ => "'9999-12-31 23:59:59.001'".to_owned(),
            },
            "timestamp(6) null" => {
                from(random, &["'1970-01-01 00:00:01.000001'", "'2038-01-19 03:14:07.999999'"])
            }
            "time(6)" => from(random, &["'00:00:00'", "'23:59:59.999999'", "'00:00:00.000001'"]),
            "time" => from(random, &["'00:00:00'", "'23:59:59'", "'12:34:56'"]),
            _ => quoted(&word(random).replace('\\', "\\\\")),
        }
    }

    /// Returns a random statement.
    fn statement(&mut self) -> String {
        let (id, other, x) = (self.random.below(14), self.random.below(14), self.random.below(4));
        let word = quoted(&word(&mut self.random).replace('\\', "\\\\"));
        match self.random.below(26) {
            0..=5 => {
                let values: Vec<_> = (0..COLUMNS.len()).map(|nth| self.value(nth)).collect();
                format!("insert into wide values ({id}, {})", values.join(", "))
            }
            6..=9 => {
                let nth = self.random.below(COLUMNS.len() as u64) as usize;
                format!("update wide set c{nth} = {} where id >= {id} limit 2", self.value(nth))
            }
            10 => format!("update wide set id = {other} where id >= {id} limit 1"),
            11 => format!("delete from wide where id >= {id} limit 1"),
            12 | 13 => format!("insert into pair values ('k{x}', {other}, {word})"),
            14 => format!("update pair set a = 'k{x}', v = {word} where b >= {id} limit 1"),
            15 => format!("update pair set b = b + 1 where b >= {id} order by b desc"),
            16 => format!("delete from pair where b >= {id} limit 1"),
            17 if self.keyless => {
                format!("insert into loner values ({x}, 'b', {word}), ({x}, 'c', 'd')")
            }
            18 if self.keyless => "update loner set a = a + 1 where b = 'c' and a < 9".to_owned(),
            19 if self.keyless => format!("delete from loner where a = {x} limit 1"),
            20 => format!("insert into `odd \"name` values ({id}, {word})"),
            21 => format!("replace into `odd \"name` values ({id}, {word})"),
            22 => format!("insert into counted (v) values ({word})"),
            23 => format!("update counted set v = {word} where id % 3 = {}", x % 3),
            _ => match self.grown.last() {
                Some(name) if x == 0 => {
                    format!("update grows set {name} = {other} where id = {id}")
                }
                _ if x < 3 => format!("insert into grows (id, v) values ({id}, {word})"),
                _ => format!("delete from grows where id >= {id} limit 1"),
            },
        }
    }
}
