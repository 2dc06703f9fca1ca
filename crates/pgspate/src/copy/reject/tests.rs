//! Tests which rows are written and which are rejected, on a real server.

mod random;
mod refusals;

use pgspate_target::session::WaitLimits;
use std::sync::Arc;

use pgspate_embedded::testing::{self, TestDb};
use tokio::runtime::Runtime;

use super::*;
use crate::copy::{Commit, CopySetup, Destination, EarlySession, Lanes, SessionOpener};
use crate::format::Cutter;
use crate::format::delimited::{
    CutOptions, DelimitedColumn, DelimitedCutter, DelimitedEncoder, Dialect,
};
use pgspate_target::connect::{Dsn, Environment};
use pgspate_target::{TableStorage, WrittenTable, users_path_sql};

/// A database, and a session in it.
struct RejectTestSession {
    runtime: Runtime,
    connection: Connection,
    job: CopyJob,
    db: TestDb,
}

impl RejectTestSession {
    /// Creates a session that loads csv into the columns of `t`, which `sql` creates.
    fn new(sql: &str, columns: &[&str]) -> RejectTestSession {
        let db = testing::database();
        db.run(sql);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let env = Environment { user: Some("tester".to_owned()), ..Environment::default() };
        let dsn = Arc::new(Dsn::resolve(Some(&db.dsn()), &env).unwrap().unwrap());
        let connection = runtime.block_on(dsn.connect("rejects")).unwrap();
        let users_path = users_path_sql(false);
        runtime.block_on(connection.client.batch_execute(&users_path)).unwrap();
        let job = job(&runtime, dsn, columns);
        RejectTestSession { runtime, connection, job, db }
    }

    fn run(&self, sql: &str) {
        self.runtime.block_on(self.connection.client.batch_execute(sql)).unwrap();
    }

    /// Returns the first column of all rows, one value per line.
    fn query(&self, sql: &str) -> String {
        let answers = self.runtime.block_on(self.connection.client.simple_query(sql)).unwrap();
        let values = answers.iter().filter_map(|answer| match answer {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("~")),
            _ => None,
        });
        values.collect::<Vec<_>>().join("\n")
    }

    /// Writes the input's only chunk in the open transaction.
    fn write(&self, input: &[u8]) -> Result<ChunkWithRejects> {
        let chunk = Arc::new(chunk(input, self.job.columns.len()));
        let mut encoder = (self.job.make_encoder)();
        self.runtime.block_on(write_good_rows(
            &self.connection,
            &self.job,
            encoder.as_mut(),
            &chunk,
        ))
    }
}

/// Cuts `input` into its only chunk.
fn chunk(input: &[u8], fields: usize) -> Chunk {
    let options = CutOptions {
        dialect: Dialect::csv(),
        header: false,
        chunk_bytes: 1 << 30,
        columns: Arc::default(),
        map: Arc::new(move |_| Ok((fields, (0..fields).collect()))),
    };
    let reader = Box::new(std::io::Cursor::new(input.to_vec()));
    let mut cutter = DelimitedCutter::open("in.csv", reader, options).unwrap();
    let chunk = cutter.next().unwrap().unwrap();
    assert!(cutter.next().unwrap().is_none());
    chunk
}

/// Returns a job that copies csv into the columns of table `t`.
fn job(runtime: &Runtime, dsn: Arc<Dsn>, columns: &[&str]) -> CopyJob {
    let control_connection = Arc::new(runtime.block_on(dsn.connect("control")).unwrap());
    let session_opener = SessionOpener::new(&dsn, "lane".to_owned());
    let names: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
    let column = |name: &String| DelimitedColumn {
        name: name.clone(),
        encoder: None,
        date_format: None,
        guessed_type: None,
        force_null: false,
        force_not_null: false,
    };
    let encoded: Vec<DelimitedColumn> = names.iter().map(column).collect();
    let list = columns.join(", ");
    let table = WrittenTable { sql_name: "t".to_owned(), oid: 0, binary_columns: Vec::new() };
    CopyJob {
        session_opener,
        early_session: EarlySession::default(),
        control_connection: Some(control_connection),
        make_encoder: Box::new(move || {
            Box::new(DelimitedEncoder::new(Dialect::csv(), encoded.clone(), 150_000))
        }),
        setup: CopySetup {
            binary_sql: format!("copy t ({list}) from stdin (format binary)"),
            text_sql: format!("copy t ({list}) from stdin (format text)"),
            limits: WaitLimits::default(),
            value_settings: String::new(),
            lock_key: None,
            commits_across_nodes: false,
            has_other_work: false,
        },
        mode: EncodeMode::Text,
        one_statement: false,
        lanes: Lanes::Fixed(1),
        table_name: "t".to_owned(),
        columns: names,
        input_names: vec!["in.csv".to_owned()],
        may_skip_rows: false,
        storage: TableStorage::Plain.facts(),
        is_stream: false,
        commit: Commit::EachChunk,
        ledger: None,
        check_unchanged: Box::new(|_| Ok(())),
        destination: Destination::Table { table, surrounding: None },
        shard_route: None,
    }
}

/// Returns the ordinals and SQLSTATEs of the rejected rows.
fn codes(written: &ChunkWithRejects) -> Vec<(u64, String)> {
    let code = |it: &Reject| (it.row, it.sqlstate.code().to_owned());
    written.rejects.iter().map(code).collect()
}

#[test]
fn a_newline_after_a_backslash_is_data() {
    assert_eq!(line_end(b"a\nb\n", 0), Some(2));
    assert_eq!(line_end(b"a\nb\n", 2), Some(4));
    assert_eq!(line_end(b"a\\\nb\n", 0), Some(5));
    assert_eq!(line_end(b"a\\\\\nb\n", 0), Some(4));
    assert_eq!(line_end(b"\\\n\n", 2), Some(3));
    assert_eq!(line_end(b"a", 0), None);
}

#[test]
fn sqlstates_that_are_about_a_row() {
    let is_row_error =
        |code: &str, names_row| is_row_error_code(&SqlState::from_code(code), names_row);
    for code in ["22P02", "23505", "23503", "P0001", "54000", "44000", "21000", "U0001", "99999"] {
        assert!(is_row_error(code, true) && is_row_error(code, false), "{code}");
    }
    for code in ["42601", "42P01", "0A000", "XX000", "HV000", "3F000"] {
        assert!(is_row_error(code, true) && !is_row_error(code, false), "{code}");
    }
    for code in [
        "08006", "25006", "28000", "40001", "40P01", "42501", "53100", "55P03", "57014", "58030",
        "72000", "F0000", "XX001", "XX002",
    ] {
        assert!(!is_row_error(code, true) && !is_row_error(code, false), "{code}");
    }
}
