//! `--json` prints the keys that docs/reference/json-output.md names, and no others.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use pgspate_embedded::testing;
use serde_json::Value;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/json-output.md");

/// Objects whose keys are data, such as the names of a check's numbers.
const KEYS_ARE_DATA: [&str; 2] = ["numbers", "trial"];

/// Runs the command with `--json` and returns the value that it prints.
fn run_with_json(folder: &Path, args: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgspate"));
    command.args(args).arg("--json").current_dir(folder).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("HOME", folder).env("PGSPATE_DATA_DIR", folder.join("data"));
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("pgspate {args:?}: {error}: {stderr}"))
}

/// Returns a section of the page, with its subsections.
fn section(page: &str, title: &str) -> String {
    let start = format!("\n## {title}\n");
    let (_, rest) =
        page.split_once(&start).unwrap_or_else(|| panic!("the page must have the section {title}"));
    rest.split("\n## ").next().unwrap().to_owned()
}

/// Returns the words between backticks.
fn named_keys(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the keys of the section's first table, which names the keys that are always present.
fn promised_keys(section: &str) -> BTreeSet<String> {
    let table = section.split("\n\n").find(|part| part.trim_start().starts_with("| key |"));
    let lines = table.unwrap_or_default().trim().lines().skip(2);
    let sure = lines.filter(|line| !line.contains("only with") && !line.contains("left out"));
    sure.flat_map(|line| named_keys(line.split('|').nth(1).unwrap())).collect()
}

/// Adds the keys of all objects within `value` to `keys`.
fn collect_keys(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                keys.insert(key.clone());
                if !KEYS_ARE_DATA.contains(&key.as_str()) {
                    collect_keys(value, keys);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect_keys(value, keys)),
        _ => {}
    }
}

#[test]
fn the_reference_names_every_key() {
    let page = fs::read_to_string(PAGE).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("t.csv"), "id,name\n1,bolt\n2,nut\n").unwrap();
    fs::write(folder.join("bad.csv"), "id,name\n3,pin\nfour,rod\n").unwrap();
    let event = r#"{"op":"insert","table":"public.t","row":{"id":3,"name":"washer"}}"#;
    fs::write(folder.join("e.ndjson"), format!("{event}\n")).unwrap();
    let db = testing::database();
    db.run("create table t (id int primary key, name text)");
    let dsn = db.dsn();
    let to = ["--to", dsn.as_str()];

    let fleet = ["--fleet", "f", "--generation", "1", "--members", "1", "--member", "0"];
    let sync_member = [&["sync", "t.csv", "--table", "t", "--scope-by", "id"], &fleet[..]].concat();
    let commands: [(&str, &[&str]); 21] = [
        ("load plan", &["load", "t.csv", "--table", "t", "--plan"]),
        ("load", &["load", "t.csv", "--table", "t"]),
        ("load", &["load", "t.csv", "--table", "t", "--replace", "--restart"]),
        ("sync", &["sync", "t.csv", "--table", "t", "--scope", "all"]),
        ("sync", &["sync", "t.csv", "--table", "t", "--scope", "all", "--check"]),
        ("apply plan", &["apply", "e.ndjson", "--plan"]),
        ("apply", &["apply", "e.ndjson"]),
        ("doctor", &["doctor", "--watch", "0s"]),
        ("tune", &["tune", "--memory", "16GiB", "--cpus", "4"]),
        ("status", &["status"]),
        ("sync", &sync_member),
        ("fleet", &["fleet", "f"]),
        ("server", &["server", "status"]),
        ("sync plan", &["sync", "t.csv", "--table", "t", "--scope", "all", "--plan"]),
        ("fleet forget", &["fleet", "f", "--generation", "1", "--forget"]),
        ("status forget", &["status", "1", "--forget"]),
        ("errors", &["load", "absent.csv", "--table", "t"]),
        ("errors", &["load", "bad.csv", "--table", "t"]),
        ("errors", &["sync", "t.csv", "--table", "absent", "--scope", "all"]),
        ("errors", &["apply", "absent.ndjson"]),
        ("errors", &["load", "t.csv", "--no-such-flag"]),
    ];
    for (title, args) in commands {
        let has_target = title != "server";
        let args = if has_target { [args, &to].concat() } else { args.to_vec() };
        let value = run_with_json(folder, &args);
        let section = section(&page, title);
        let named = named_keys(&section);
        let mut keys = BTreeSet::new();
        collect_keys(&value, &mut keys);
        let unknown: Vec<_> = keys.difference(&named).collect();
        assert!(unknown.is_empty(), "pgspate {args:?}: {unknown:?} are not in the reference");
        let missing: Vec<_> = match value {
            Value::Array(_) => Vec::new(),
            _ => promised_keys(&section).difference(&keys).cloned().collect(),
        };
        assert!(missing.is_empty(), "pgspate {args:?}: {missing:?} are missing");
    }
}

#[test]
fn an_error_is_json_with_its_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("bad.csv"), "id,name\n3,pin\nfour,rod\n").unwrap();
    let db = testing::database();
    db.run("create table t (id int primary key, name text)");
    let error = |args: &[&str]| run_with_json(folder, args)["error"].clone();

    let refused = error(&["load", "bad.csv", "--table", "t", "--to", &db.dsn()]);
    assert_eq!((&refused["kind"], &refused["sqlstate"]), (&"server".into(), &"22P02".into()));
    assert_eq!((&refused["place"]["line"], &refused["place"]["column"]), (&3.into(), &"id".into()));
    assert_eq!((&refused["exit_status"], &refused["is_retryable"]), (&2.into(), &false.into()));
    assert!(refused["message"].as_str().unwrap().starts_with("could not load"), "{refused}");
    let cause = "invalid input syntax for type integer: \"four\" (SQLSTATE 22P02)";
    assert_eq!(refused["causes"].as_array().unwrap().last().unwrap(), cause, "{refused}");

    let usage = error(&["load", "bad.csv", "--tabel", "t"]);
    assert_eq!((&usage["kind"], &usage["place"]), (&"usage".into(), &Value::Null));
    assert!(usage["message"].as_str().unwrap().contains("--tabel"), "{usage}");
    assert_eq!(usage["hint"], "A similar argument exists: '--table'.", "{usage}");
    // Flags of psql and other loaders.
    for (words, hint) in [
        (&["-U", "me"][..], "Name the server with '--to postgres://user@host:port/dbname'"),
        (&["--upsert"], "'pgspate sync --no-delete' updates rows and inserts new ones."),
        (&["--truncate"], "'--replace' replaces the rows of the table."),
        (&["--dry-run"], "'--plan' shows what would be done, and changes nothing."),
    ] {
        let usage = error(&[&["load", "bad.csv", "--table", "t"], words].concat());
        assert!(usage["hint"].as_str().unwrap().starts_with(hint), "{usage}");
    }
    let unknown = error(&["tune", "--memory", "16"]);
    assert!(unknown["message"].as_str().unwrap().contains("a size has a unit"), "{unknown}");
}
