//! Random unusual settings of a database. Under these settings, every command works correctly, or
//! refuses to run and says why. The correct rows are the rows that COPY stores in a session with
//! the same settings.
//!
//! `PGSPATE_TEST_SETTINGS=200` tries 200 new combinations instead of a few. `PGSPATE_TEST_SEED=7`
//! begins with the combination of seed 7.

mod odd_settings;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../support/run.rs"]
mod run;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/test_random.rs"]
mod test_random;

use std::fmt::Write as _;
use std::fs;
use std::io::Cursor;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::SinkExt;
use pgspate_embedded::testing::{self, TestDb};
use tempfile::TempDir;

use crate::odd_settings::{ODD_SETTINGS, OddSetting};
use crate::run::{Run, command, finish, session, spawn};
use crate::test_random::{TestRandom, from_environment};

/// The number of combinations of a short run.
const COMBINATIONS: u64 = 6;
const ROWS: usize = 300;

const COLUMNS: &str = "\
id int primary key, d date, at timestamptz, moment timestamp, span interval, part time with time \
zone, f float8, r real, n numeric, price money, bytes bytea, words text[], numbers int[], \
doc jsonb, x xml, flag bool, note text";

/// The values of each column, as people write them. Some settings change how the server reads a
/// value, or make the server refuse the value.
const VALUES: [&[&str]; 16] = [
    &["2024-02-03", "01/02/2024", "3 Feb 2024", "20240229", "infinity", "13/02/2024"],
    &["2024-03-10 02:30:00", "2024-02-03 04:05:06.789+05:30", "1.2.2024 10:00", "epoch"],
    &["2024-02-03 04:05:06", "04/05/2006 07:08:09", "2024-02-03T04:05"],
    &["1 day 02:03:04", "-1-2 +3 -4:05:06", "P1DT2H", "-1 2:03", "1 year -3 days", "1:02"],
    &["04:05:06+02", "04:05", "23:59:60 UTC"],
    &["0.1", "1e308", "-0", "NaN", "123456789.123456789", "Infinity"],
    &["0.1", "16777217", "1e-40"],
    &["1.00", "123456789012345678901234567890.5", "NaN", "-1e-20"],
    &["12.34", "$1,234.56", "-0.01"],
    &["\\x00ff", "abc\\000\\134", "\\\\x41", ""],
    &["{a,b}", "{NULL,\"NULL\",null}", "{\"a \\\\ b\",\"\"}", "{}"],
    &["{1,2}", "{{1},{2}}", "[2:3]={5,6}", "{}"],
    &["{\"a\": [1, null]}", "\"\\u00e9\"", "1.0"],
    &["<a/>", "words <b/>", "<?xml version=\"1.0\"?><a>é</a>"],
    &["t", "no", "1", "ON"],
    &["a\\nb", "it's", "say \"hi\"", "\\.", "é", " ", "$$"],
];

/// A database with odd settings, and a folder.
struct SettingsCase {
    db: TestDb,
    folder: TempDir,
    settings: Vec<(String, String)>,
    random: TestRandom,
}

impl SettingsCase {
    /// Creates a database with a few of the settings that this server knows.
    fn new(seed: u64) -> SettingsCase {
        let (db, mut random) = (testing::database(), TestRandom::new(seed));
        db.run(&format!(
            "create schema odd; create table public.t ({COLUMNS}); \
             create table public.o (like public.t including all); \
             create table public.a (id int primary key, d date, v text)"
        ));
        let mut settings = Vec::new();
        for _ in 0..random.among(1..=8) {
            let OddSetting { name, values } = random.pick(ODD_SETTINGS);
            let (name, value) = (name.to_owned(), random.pick(values).to_owned());
            let is_there = format!("select count(*) from pg_settings where name = '{name}'");
            let is_there =
                name == "event trigger" || db.query(&is_there)[0][0].as_deref() == Some("1");
            if is_there && settings.iter().all(|(other, _)| *other != name) {
                settings.push((name, value));
            }
        }
        let folder = TempDir::with_prefix("pgspate-settings-").unwrap();
        let scene = SettingsCase { db, folder, settings, random };
        // Set them last, because they affect every later session.
        scene.settings.iter().for_each(|(name, value)| scene.set(name, value));
        scene
    }

    /// Applies a setting to the database.
    fn set(&self, name: &str, value: &str) {
        let database = self.db.name();
        let sql = match name {
            "event trigger" => odd_settings::event_trigger(value),
            "search_path" => format!("alter database \"{database}\" set search_path = {value}"),
            _ => format!("alter database \"{database}\" set {name} = '{value}'"),
        };
        self.ask_with_defaults(&sql);
    }

    /// Runs SQL in a session that none of the odd settings affects.
    fn ask_with_defaults(&self, sql: &str) -> String {
        let dsn = format!("{} options='{}'", self.db.dsn(), odd_settings::DEFAULT_OPTIONS);
        run::ask(&dsn, sql)
    }

    /// Returns whether the database has an odd value of this setting.
    fn has(&self, name: &str) -> bool {
        self.settings.iter().any(|(other, _)| other == name)
    }

    /// Runs a command with the database as target.
    fn run(&self, args: &str) -> Run {
        let args: Vec<&str> = args.split(' ').collect();
        let mut command = command(self.folder.path(), &args);
        finish(spawn(command.args(["--to", &self.db.dsn()])))
    }

    /// Writes rows to a CSV file with a header.
    fn put(&self, name: &str, rows: &[String]) {
        let header = COLUMNS.replace("time with time zone", "timetz");
        let names = header.split(", ").map(|it| it.split_once(' ').unwrap().0);
        let header = names.collect::<Vec<_>>().join(",");
        fs::write(self.folder.path().join(name), format!("{header}\n{}", rows.concat())).unwrap();
    }

    /// Returns the rows that COPY accepts under the same settings, and the SQLSTATE of the first
    /// refusal.
    fn acceptable(&self, rows: Vec<String>) -> (Vec<String>, Option<String>) {
        let (runtime, client) = session(&self.db.dsn());
        runtime.block_on(async {
            client
                .batch_execute("set exit_on_error = off; set statement_timeout = 0")
                .await
                .unwrap();
            let (mut good, mut refused) = (Vec::new(), None);
            for row in rows {
                let copied = async {
                    let sql = "copy public.o from stdin (format csv)";
                    let mut sink = Box::pin(client.copy_in::<_, Cursor<Vec<u8>>>(sql).await?);
                    sink.send(Cursor::new(row.clone().into_bytes())).await?;
                    sink.as_mut().finish().await
                };
                match copied.await {
                    Ok(_) => good.push(row),
                    Err(error) => {
                        let code = error.code().map(|code| code.code().to_owned());
                        refused = refused.or(Some(code.unwrap_or_else(|| error.to_string())));
                    }
                }
            }
            (good, refused)
        })
    }

    /// Returns how table `t` differs from table `o`. The session that reads them has none of the
    /// odd settings.
    fn difference(&self) -> String {
        self.ask_with_defaults(
            "select string_agg(side || row, E'\\n') from ( \
                 (select 'only in t: ' side, t::text row from public.t \
                  except all select 'only in t: ', o::text from public.o) \
                 union all (select 'only in o: ', o::text from public.o \
                            except all select 'only in o: ', t::text from public.t)) x",
        )
    }

    /// Returns whether the odd settings allow a command to fail with this message.
    fn is_excused(&self, said: &str) -> bool {
        let excuses = odd_settings::ALLOWED_REFUSALS.iter().filter(|(name, _)| self.has(name));
        excuses.clone().any(|(_, words)| said.contains(words))
    }
}

/// Returns random records with these ids.
fn random_rows(random: &mut TestRandom, ids: std::ops::Range<usize>) -> Vec<String> {
    let row = |id: usize| {
        let mut row = format!("{id}");
        for values in VALUES {
            match random.among(0..=9) {
                0 => row.push(','),
                _ => write!(row, ",\"{}\"", random.pick(values).replace('"', "\"\"")).unwrap(),
            }
        }
        row + "\n"
    };
    ids.map(row).collect()
}

#[test]
fn every_command_works_correctly_or_refuses() {
    let count = from_environment("PGSPATE_TEST_SETTINGS");
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let first = from_environment("PGSPATE_TEST_SEED");
    let first = first.unwrap_or_else(|| count.map_or(0, |_| now()));
    let mut failures = String::new();
    for seed in first..first + count.unwrap_or(COMBINATIONS) {
        let mut scene = SettingsCase::new(seed);
        if let Err(broken) = run_all_commands(&mut scene) {
            writeln!(failures, "seed {seed}, {:?}: {broken}", scene.settings).unwrap();
        }
    }
    assert_eq!(failures, "");
}

/// Runs every command in the database. The error describes the broken rule.
fn run_all_commands(scene: &mut SettingsCase) -> Result<(), String> {
    load(scene)?;
    sync(scene)?;
    apply(scene)?;
    for args in ["status --json", "doctor --json"] {
        let run = scene.run(args);
        if !matches!(run.status, Some(0 | 1)) && !scene.is_excused(&run.stderr) {
            return Err(format!("{args}: {:?} {}", run.status, run.stderr));
        }
        let _: serde_json::Value = match run.status {
            Some(0 | 1) => serde_json::from_str(&run.stdout).map_err(|error| error.to_string())?,
            _ => serde_json::Value::Null,
        };
    }
    Ok(())
}

/// Loads rows of which the server may refuse some. The first load takes all rows or none. The
/// second load rejects the refused rows and loads the others.
fn load(scene: &mut SettingsCase) -> Result<(), String> {
    let all = random_rows(&mut scene.random, 0..ROWS);
    scene.put("all.csv", &all);
    let (good, refused) = scene.acceptable(all);
    if scene.has("default_transaction_read_only") {
        let run = scene.run("load all.csv --table public.t --quiet");
        return match run.stderr.contains("read-only") && run.status == Some(2) {
            true => Ok(()),
            false => Err(format!("read-only: {:?} {}", run.status, run.stderr)),
        };
    }
    scene.put("good.csv", &good);
    let how = ["--commit end", "--commit chunk", "--lanes 2", "--atomic", "--replace"];
    let how = scene.random.pick(&how);
    if let Some(code) = refused {
        let run = scene.run("load all.csv --table public.t --quiet --lanes 1");
        let is_said = run.stderr.contains(&format!("SQLSTATE {code}"));
        if run.status != Some(2) || !(is_said || scene.is_excused(&run.stderr)) {
            return Err(format!("refused with {code}: {:?} {}", run.status, run.stderr));
        }
        if scene.ask_with_defaults("select count(*) from public.t") != "0" {
            return Err("the refused load left rows in the table".to_owned());
        }
        let run = scene.run("load all.csv --table public.t --quiet --rejects bad.csv");
        check_table(scene, "rejects", &run, 1)?;
        scene.ask_with_defaults("truncate public.t");
    }
    let args = format!("load good.csv --table public.t --quiet {how}");
    let run = scene.run(&args);
    check_table(scene, &args, &run, 0)
}

/// Syncs the table with a file that has changed, removed and new rows.
fn sync(scene: &mut SettingsCase) -> Result<(), String> {
    if scene.has("default_transaction_read_only") {
        return Ok(());
    }
    scene.ask_with_defaults("truncate public.o");
    let other = random_rows(&mut scene.random, ROWS / 3..ROWS + ROWS / 3);
    let (good, _) = scene.acceptable(other);
    scene.put("other.csv", &good);
    let args = "sync other.csv --table public.t --scope all --max-delete 100% --quiet";
    let run = scene.run(args);
    check_table(scene, args, &run, 0)
}

/// Checks that the command ended with this status, and that the table then has the right rows. A
/// command that the settings allow to fail passes the check, too.
fn check_table(scene: &SettingsCase, what: &str, run: &Run, status: i32) -> Result<(), String> {
    if run.status == Some(2) && scene.is_excused(&run.stderr) {
        return Ok(());
    }
    let difference = scene.difference();
    match run.status == Some(status) && difference.is_empty() {
        true => Ok(()),
        false => Err(format!("{what}: {:?} {}\n{difference}", run.status, run.stderr)),
    }
}

/// Applies inserts, updates and deletes of 50 rows.
fn apply(scene: &mut SettingsCase) -> Result<(), String> {
    let mut events = String::new();
    for id in 0..50 {
        let row = format!("{{\"id\":{id},\"d\":\"2024-02-03\",\"v\":\"it's \\\\\\\\ {id}\"}}");
        writeln!(events, "{{\"op\":\"insert\",\"table\":\"public.a\",\"row\":{row}}}").unwrap();
    }
    for id in 0..50 {
        let event = match id % 3 {
            0 => format!("{{\"op\":\"delete\",\"table\":\"public.a\",\"key\":{{\"id\":{id}}}}}"),
            _ => format!(
                "{{\"op\":\"update\",\"table\":\"public.a\",\"row\":{{\"id\":{id},\"v\":\"new\"}}}}"
            ),
        };
        writeln!(events, "{event}").unwrap();
    }
    fs::write(scene.folder.path().join("s.ndjson"), events).unwrap();
    let how = scene.random.pick(&["", " --direct-rows 0", " --batch-rows 30"]);
    let run = scene.run(&format!("apply s.ndjson --quiet{how}"));
    if scene.has("default_transaction_read_only") {
        return match run.stderr.contains("read-only") {
            true => Ok(()),
            false => Err(format!("apply, read-only: {:?} {}", run.status, run.stderr)),
        };
    }
    let found = scene.ask_with_defaults(
        "select count(*) || ' ' || count(*) filter (where v = 'new' and d = date '2024-02-03') \
         from public.a",
    );
    match run.status {
        Some(0) if found == "33 33" => Ok(()),
        Some(2) if scene.is_excused(&run.stderr) => Ok(()),
        status => Err(format!("apply{how}: {status:?} {found} {}", run.stderr)),
    }
}
