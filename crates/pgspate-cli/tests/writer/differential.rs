//! Random tables and records: the writer's outcomes and table against those of plain INSERTs.
//!
//! A record's outcome may depend on the order in which records are written, but only in one way: of
//! records with equal keys, one is written. So the records that the writer has written are inserted
//! singly into an equal table, and must be taken. A refused record must be refused in the same
//! words, by that table with all rows or by an empty one. Its rival may have been written before or
//! after.

use std::fmt::Write as _;

use pgspate::writer::WriterOptions;
use pgspate_embedded::testing::TestDb;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls};

use crate::scene::{Record, WriterScene, into, short_waits, sqlstate, value};
use crate::test_random::{TestRandom, long_run};

/// Definitions that all tables may use.
const PREPARE: &str = "\
create domain word as text check (value <> 'bad');
create type mood as enum ('sad', 'happy');
create table parent (id int primary key);
insert into parent select generate_series(0, 5);
create function change() returns trigger language plpgsql as $$ begin
  if new.n = 7 then return null; end if;
  if new.n = 8 then raise exception 'no eights' using errcode = 'P0008'; end if;
  new.note := coalesce(new.note, 'by trigger'); return new; end $$;
create function watch() returns trigger language plpgsql as $$ begin
  if new.n = 9 then raise exception 'no nines'; end if; return null; end $$;";

/// Returns the statements that create a random table called `name`.
fn random_table(random: &mut TestRandom, name: &str) -> String {
    let mut yes = |percent: u64| random.among(1..=100) <= percent;
    let unique = match (yes(50), yes(50)) {
        (true, true) if yes(40) => " unique deferrable initially deferred",
        (true, false) if yes(40) => " unique",
        _ => "",
    };
    let is_partitioned = unique.is_empty() && yes(40);
    let mut columns = vec![
        "seq bigint generated always as identity".to_owned(),
        format!("n int not null{unique}"),
        "note varchar(12) default 'none'".to_owned(),
        "amount numeric(5, 2) check (amount < 500)".to_owned(),
    ];
    if yes(50) {
        columns.push("kind word not null default 'good'".to_owned());
    } else {
        columns.push("kind text".to_owned());
    }
    columns.push(format!("mood mood{}", if yes(30) { " not null" } else { "" }));
    columns.push(format!("owner int{}", if yes(50) { " references parent" } else { "" }));
    columns.push("tags int[]".to_owned());
    columns.push("twice numeric generated always as (amount * 2) stored".to_owned());
    let mut sql = format!("create table {name} ({})", columns.join(", "));
    if is_partitioned {
        let _ = write!(
            sql,
            " partition by range (n); create table {name}_low partition of {name} for values from \
             (minvalue) to (40); create table {name}_high partition of {name} for values from (40) \
             to (90)"
        );
    }
    sql += ";";
    if yes(25) {
        let _ = write!(
            sql,
            "create trigger a before insert on {name} for each row execute function change();"
        );
    }
    if yes(25) {
        let deferred = if yes(50) { "initially deferred" } else { "initially immediate" };
        let _ = write!(
            sql,
            "create constraint trigger b after insert on {name} deferrable {deferred} for each row \
             execute function watch();"
        );
    }
    if yes(25) {
        let _ = write!(sql, "create unique index on {name} (note, n);");
    }
    sql
}

const COLUMNS: [&str; 7] = ["n", "note", "amount", "kind", "mood", "owner", "tags"];

/// Returns a random record of these columns. `bad` of a thousand values are likely to be refused.
fn random_record(random: &mut TestRandom, columns: &[&str], bad: u64) -> Record {
    let value = |column: &&str| -> Option<String> {
        let is_bad = random.among(1..=1000) <= bad;
        if is_bad && random.among(0..=3) == 0 {
            return random.pick(&[None, Some("x"), Some("99999999999")]).map(str::to_owned);
        }
        let mut pick = |good: &[&'static str], refused: &[&'static str]| {
            random.pick(if is_bad { refused } else { good }).to_owned()
        };
        Some(match *column {
            "n" if is_bad => random.among(0..=95).to_string(),
            "n" => random.among(10..=89).to_string(),
            "note" => pick(&["a", "", "b c", "  d  "], &["longer than twelve"]),
            "amount" => pick(&["1", "2.555", "499.99", "-3e1", " 4 "], &["499.999", "NaN", ""]),
            "kind" => pick(&["good", "fine"], &["bad"]),
            "mood" => pick(&["sad", "happy"], &["angry"]),
            "owner" => pick(&["1", "2", "5"], &["6"]),
            _ => pick(&["{}", "{1,2}", "{NULL,3}", "{{1},{2}}"], &["{1,"]),
        })
    };
    columns.iter().map(value).collect()
}

/// A value that is sent as text.
#[derive(Debug)]
struct PlainText<'a>(&'a Option<String>);

impl ToSql for PlainText<'_> {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut bytes::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let Some(text) = self.0 else { return Ok(IsNull::Yes) };
        out.extend_from_slice(text.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// Inserts a record by a plain INSERT with a parameter for each value. Returns an empty string, or
/// SQLSTATE and message.
async fn insert_plainly(client: &Client, table: &str, columns: &[&str], record: &Record) -> String {
    let numbers: Vec<String> = (1..=columns.len()).map(|nth| format!("${nth}")).collect();
    let (names, numbers) = (columns.join(", "), numbers.join(", "));
    let sql = format!("insert into {table} ({names}) values ({numbers})");
    let values: Vec<PlainText<'_>> = record.iter().map(PlainText).collect();
    let values: Vec<&(dyn ToSql + Sync)> =
        values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
    match client.execute(&sql, &values).await {
        Ok(_) => String::new(),
        Err(error) => {
            let refusal = error.as_db_error().unwrap();
            format!("{} {}", refusal.code().code(), refusal.message())
        }
    }
}

/// Returns the rows of a table without their sequence numbers, sorted.
fn rows(db: &TestDb, table: &str) -> String {
    let columns = "n, note, amount, kind, mood, owner, tags, twice";
    value(
        db,
        &format!(
            "select string_agg(r::text, E'\\n' order by r::text) \
                  from (select {columns} from {table}) r"
        ),
    )
}

#[test]
fn random_records_have_the_outcomes_of_plain_inserts() {
    let mut random = TestRandom::for_test_run(24);
    let (mut written, mut refused, mut in_sets) = (0, 0, 0);
    for round in 0..long_run().unwrap_or(6) {
        let table = random_table(&mut random, "t");
        let shares_triggers = random.among(0..=1) == 1;
        let connections = random.among(1..=8) as usize;
        let options = WriterOptions { shares_triggers, connections, ..short_waits() };
        let like = |name: &str| {
            let created = table.replace("table t", &format!("table {name}"));
            created.replace(" t ", &format!(" {name} "))
        };
        let (full, empty) = (like("u"), like("v"));
        let sql = format!("{PREPARE} {table} {full} {empty}");
        let scene = WriterScene::with_options(&sql, options);
        let mut columns = COLUMNS.to_vec();
        // Columns of arrays keep records out of sets, so most rounds have none.
        columns.retain(|name| match *name {
            "n" => true,
            "tags" => random.among(0..=3) == 0,
            _ => random.among(0..=3) > 0,
        });
        let bad = random.pick(&[0, 2, 2, 20, 300]);
        let records: Vec<Record> =
            (0..400).map(|_| random_record(&mut random, &columns, bad)).collect();
        let outcomes = scene.insert_at_once(&into("t", &columns), &records);
        in_sets += scene.writer.report().set_rows;
        scene.runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&scene.db.dsn(), NoTls).await.unwrap();
            tokio::spawn(connection);
            let is_written = |outcome: &&pgspate::Result<_>| outcome.is_ok();
            let pairs = || records.iter().zip(&outcomes);
            for (record, _) in pairs().filter(|(_, outcome)| is_written(outcome)) {
                let plainly = insert_plainly(&client, "u", &columns, record).await;
                assert_eq!(plainly, "", "round {round}: {record:?}\n{table}");
                written += 1;
            }
            for (record, outcome) in pairs().filter(|(_, outcome)| !is_written(outcome)) {
                let error = outcome.as_ref().unwrap_err();
                let words = error.refusal().map_or_else(String::new, |it| it.message().to_owned());
                let told = format!("{} {words}", sqlstate(outcome));
                let mut expected = Vec::new();
                for like in ["u", "v"] {
                    let plainly = insert_plainly(&client, like, &columns, record).await;
                    let (name, prefix) = (format!("\"{like}\""), format!("\"{like}_"));
                    expected.push(plainly.replace(&name, "\"t\"").replace(&prefix, "\"t_"));
                }
                let context = || format!("round {round}: {record:?}\n{table}");
                assert!(expected.contains(&told), "{told}, {expected:?}, {}", context());
                client.batch_execute("truncate v").await.unwrap();
                refused += 1;
            }
        });
        assert_eq!(rows(&scene.db, "t"), rows(&scene.db, "u"), "round {round}\n{table}");
    }
    println!("{written} written, {refused} refused, {in_sets} in sets");
    assert!(written > 300 && refused > 100 && in_sets > 100, "{written} {refused} {in_sets}");
}
