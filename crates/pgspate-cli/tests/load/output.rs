//! Tests of reports and plans: their text, and whether they go to stdout or stderr.

use std::process::Command;

use insta::assert_snapshot;

use crate::support::{LoadCase, Run, folded, redact};

fn new_case() -> LoadCase {
    let case = LoadCase::new("create table t (id int, name text)");
    case.put("t.csv", "id,name\n1,a\n 2,b\n3,\n");
    case
}

#[test]
fn the_report_as_json_reconciles() {
    let case = new_case();
    let run = case.load("t.csv --json");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    for (key, value) in [
        ("table", serde_json::json!("public.t")),
        ("created", serde_json::json!(false)),
        ("inputs", serde_json::json!(1)),
        ("rows_in", serde_json::json!(3)),
        ("rows_written", serde_json::json!(3)),
        ("path", serde_json::json!("binary")),
        ("lanes", serde_json::json!(1)),
        ("chunks", serde_json::json!(1)),
        ("stored_bytes", serde_json::json!(20)),
        ("bytes", serde_json::json!(12)),
        ("widened", serde_json::json!([])),
        ("warnings", serde_json::json!([])),
    ] {
        assert_eq!(report[key], value, "{key}");
    }
    assert!(report["wal_bytes"].as_u64().unwrap() > 0);
    assert!(report["seconds"].as_f64().unwrap() > 0.0);
    assert!(report["stages"]["server"].as_f64().is_some());
    // The summary is printed, too, but on stderr.
    assert!(run.stderr.contains("public.t: 3 rows"));
}

#[test]
fn quiet_prints_nothing_but_the_json_report() {
    let case = new_case();
    let run = case.load("t.csv --quiet");
    assert_eq!((run.status, run.stdout.as_str(), run.stderr.as_str()), (Some(0), "", ""));
    let run = case.load("t.csv --quiet --json");
    assert!(serde_json::from_str::<serde_json::Value>(&run.stdout).is_ok());
    assert_eq!(run.stderr, "");
}

#[test]
fn colours_are_printed_only_on_a_terminal_that_wants_them() {
    let case = new_case();
    let run = case.load("t.csv --restart");
    assert!(!run.stderr.contains('\x1b') && !run.stderr.contains('\r'), "{}", run.stderr);
    // `script` gives the command a terminal.
    let on_terminal = |more: &[(&str, &str)]| {
        let mut command = Command::new("script");
        let pgspate = env!("CARGO_BIN_EXE_pgspate");
        let load =
            format!("{pgspate} load --restart --to \"$DSN\" {}", case.path("t.csv").display());
        command.args(["-qec", &load, "/dev/null"]).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("DSN", case.db.dsn()).env("TERM", "xterm").envs(more.iter().copied());
        let output = command.output().ok()?;
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    };
    let Some(coloured) = on_terminal(&[]) else {
        println!("not tested: there is no program `script`");
        return;
    };
    assert!(coloured.contains("\x1b[1mpublic.t\x1b[0m: 3 rows"), "{coloured}");
    let plain = on_terminal(&[("NO_COLOR", "1")]).unwrap();
    assert!(plain.contains("public.t: 3 rows"), "{plain}");
    assert!(!plain.contains("\x1b[1m") && !plain.contains("\x1b[2m"), "{plain}");
}

#[test]
fn the_plan_shows_every_choice_and_its_reason() {
    let case = LoadCase::new(
        "create type mood as enum ('sad', 'ok'); create domain small as int check (value < 10); \
         create table u (id int primary key); \
         create table t (id serial primary key, a smallint, b bigint, c numeric(10,2), \
             d double precision, e bool, f varchar(10), g char(3), h date, i timestamp, \
             j timestamptz, k interval, l uuid, m jsonb, n bytea, o inet, p mood, q small, \
             r int[], s int4range, u int references u, key uuid default gen_random_uuid(), \
             made timestamptz default now(), twice int generated always as (a * 2) stored, \
             nothing text); \
         create function f() returns trigger language plpgsql as 'begin return new; end'; \
         create trigger watch before insert on t for each row execute function f(); \
         alter table t disable trigger watch",
    );
    let header = "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,u\n";
    case.put("t.csv", format!("{header}{}\n", ",".repeat(19)));
    let run = case.load("t.csv --plan --header yes");
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""));
    assert_snapshot!(folded(&run.stdout), @r#"
    input    format csv: the name ends with .csv
    input    delimiter ",": 20 fields in each line
    input    header yes: as given
    table    public.t
    path     binary COPY: all columns have exact encoders; unusual values go as text
    lanes    1: the input is small
    chunks   4 MiB of input, cut at record edges
    commit   all at the end: a load that fails leaves nothing behind
    others   read and write as always
    columns  a        smallint                     binary (int2)
             b        bigint                       binary (int8)
             c        numeric(10,2)                binary (numeric)
             d        double precision             binary (float8)
             e        boolean                      binary (bool)
             f        character varying(10)        binary (bytes)
             g        character(3)                 binary (bytes)
             h        date                         binary (date)
             i        timestamp without time zone  binary (timestamp)
             j        timestamp with time zone     binary (timestamptz)
             k        interval                     binary (interval)
             l        uuid                         binary (uuid)
             m        jsonb                        binary (jsonb)
             n        bytea                        binary (bytea)
             o        inet                         binary (inet)
             p        public.mood                  binary (bytes)
             q        public.small                 binary (int4)
             r        integer[]                    binary (array)
             s        int4range                    binary (range)
             u        integer                      binary (int4)
             id                                    not in the input:
          … nextval('public.t_id_seq'::regclass)
             key                                   not in the input: gen_random_uuid()
             made                                  not in the input: now()
             nothing                               not in the input: null
    indexes  stay: the input is small
    warning  column "key" is not in the input, and its volatile default gen_random_uuid()
          … makes COPY insert row by row
    warning  foreign key "t_u_fkey" is checked for each row after each COPY
    "#);
    case.db.run("alter table t enable trigger watch; alter table t add column z money");
    case.put("z.csv", "a,z\n1,2\n");
    assert_snapshot!(folded(&case.load("z.csv --table t --plan").stdout), @r#"
    input    format csv: the name ends with .csv
    input    delimiter ",": 2 fields in each line
    input    header yes: the first line names the table's columns
    table    public.t
    path     text COPY: one statement reads everything in order
    lanes    1: one COPY statement: trigger "watch" may depend on earlier rows; if not, use
          … `--lanes N`
    chunks   4 MiB of input, cut at record edges
    commit   all at the end: a load that fails leaves nothing behind
    others   read and write as always
    columns  a        smallint  text
             z        money     text: type money depends on lc_monetary
             id                 not in the input: nextval('public.t_id_seq'::regclass)
             b                  not in the input: null
             c                  not in the input: null
             d                  not in the input: null
             e                  not in the input: null
             f                  not in the input: null
             g                  not in the input: null
             h                  not in the input: null
             i                  not in the input: null
             j                  not in the input: null
             k                  not in the input: null
             l                  not in the input: null
             m                  not in the input: null
             n                  not in the input: null
             o                  not in the input: null
             p                  not in the input: null
             q                  not in the input: null
             r                  not in the input: null
             s                  not in the input: null
             u                  not in the input: null
             key                not in the input: gen_random_uuid()
             made               not in the input: now()
             nothing            not in the input: null
    indexes  stay: the input is small
    warning  trigger "watch" runs for each row and makes COPY insert row by row
    warning  column "key" is not in the input, and its volatile default gen_random_uuid()
          … makes COPY insert row by row
    warning  foreign key "t_u_fkey" is checked for each row after each COPY
    "#);
    assert_snapshot!(folded(&case.load("z.csv --table t --plan --lanes 3").stdout), @r#"
    input    format csv: the name ends with .csv
    input    delimiter ",": 2 fields in each line
    input    header yes: the first line names the table's columns
    table    public.t
    path     text COPY: all rows go as text, which the server parses: column "z": type
          … money depends on lc_monetary
    lanes    3: as asked
    chunks   4 MiB of input, cut at record edges
    commit   all at the end: a load that fails leaves nothing behind
    others   read and write as always
    columns  a        smallint  text
             z        money     text: type money depends on lc_monetary
             id                 not in the input: nextval('public.t_id_seq'::regclass),
          … counted in the order in which rows arrive
             b                  not in the input: null
             c                  not in the input: null
             d                  not in the input: null
             e                  not in the input: null
             f                  not in the input: null
             g                  not in the input: null
             h                  not in the input: null
             i                  not in the input: null
             j                  not in the input: null
             k                  not in the input: null
             l                  not in the input: null
             m                  not in the input: null
             n                  not in the input: null
             o                  not in the input: null
             p                  not in the input: null
             q                  not in the input: null
             r                  not in the input: null
             s                  not in the input: null
             u                  not in the input: null
             key                not in the input: gen_random_uuid()
             made               not in the input: now()
             nothing            not in the input: null
    indexes  stay: the input is small
    warning  trigger "watch" runs for each row and makes COPY insert row by row
    warning  column "key" is not in the input, and its volatile default gen_random_uuid()
          … makes COPY insert row by row
    warning  foreign key "t_u_fkey" is checked for each row after each COPY
    "#);
    assert_eq!(case.rows("t").len(), 0);
}

#[test]
fn the_plan_of_a_big_load_has_several_lanes() {
    let case = LoadCase::new("create table t (id serial, a int, b text)");
    case.put("t.csv", format!("a,b\n{}", "1,some text\n".repeat(100_000)));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let lanes = format!("lanes    {}: ", cores.clamp(2, 8));
    let said = case.load("t.csv --plan").stdout.replace(&lanes, "lanes    [LANES]: ");
    let said = said.replace(&format!("with {cores} processor"), "with [CORES] processor");
    assert_snapshot!(folded(&said), @r#"
    input    format csv: the name ends with .csv
    input    delimiter ",": 2 fields in each line
    input    header yes: the first line names the table's columns
    table    public.t
    path     binary COPY: all columns have exact encoders; unusual values go as text
    lanes    [LANES]: the server is on this machine, with [CORES] processors
    chunks   4 MiB of input, cut at record edges
    commit   all at the end: a load that fails leaves nothing behind
    others   read and write as always
    columns  a   integer  binary (int4)
             b   text     binary (bytes)
             id           not in the input: nextval('public.t_id_seq'::regclass), counted
          … in the order in which rows arrive
    "#);
}

#[test]
fn the_plan_for_a_new_table_creates_nothing() {
    let case = LoadCase::new("");
    case.put("t.csv", "id,name\n1,a\n");
    assert_snapshot!(folded(&case.load("t.csv --plan --create").stdout), @r#"
    input    format csv: the name ends with .csv
    input    delimiter ",": 2 fields in each line
    input    header yes: the first line has names, the other lines have values
    create table t (
        id bigint,
        name text
    );
    table    public.t
    path     binary COPY: all columns have exact encoders; unusual values go as text
    lanes    1: the input is small
    chunks   4 MiB of input, cut at record edges
    commit   all at the end: a load that fails leaves nothing behind
    others   read and write as always
    columns  id    bigint  binary (int8)
             name  text    binary (bytes)
    "#);
    assert_eq!(case.contents(), []);
}

#[test]
fn invalid_arguments_are_refused() {
    let case = new_case();
    for (args, expected) in [
        ("t.csv --lanes 0", "expected auto, or a number from 1 to 64"),
        ("t.csv --delimiter ab", "expected one single-byte character, or \\t"),
        ("t.csv --delimiter é", "expected one single-byte character, or \\t"),
        ("t.csv --format xml", "invalid value 'xml' for '--format <FORMAT>'"),
        ("", "the following required arguments were not provided"),
        ("t.csv --source-option x", "expected KEY=VALUE"),
    ] {
        let run = case.load(args);
        assert_eq!((run.status, run.stdout.as_str()), (Some(2), ""), "{args}");
        assert!(run.stderr.contains(expected), "{args}: {}", run.stderr);
    }
}

#[test]
fn a_password_is_never_shown() {
    let case = new_case();
    let server = pgspate_embedded::testing::server("");
    let dsn = server.tcp_dsn_for("postgres");
    let args = ["load", "--to", &dsn, "--create", "t.csv"];
    let run = Run::of(case.command(&args).output().unwrap());
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert!(!run.stderr.contains(server.password()), "{}", redact(&run.stderr));
}
