//! A database with a writer, and callers that send records.

use std::sync::Arc;

use pgspate::session::WaitLimits;
use pgspate::target::connect::{Dsn, Environment};
use pgspate::writer::{
    ENCODINGS_MAX, EncodedRows, InsertOutcome, InsertRequest, InsertShape, OnConflict, Writer,
    WriterOptions, has_outdated_types,
};
use pgspate::{Error, Result};
use pgspate_embedded::testing::{self, TestDb};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// A record: the texts of its columns; `None` is NULL.
pub(crate) type Record = Vec<Option<String>>;

/// Makes a record of texts.
pub(crate) fn record(texts: &[&str]) -> Record {
    texts.iter().map(|text| Some((*text).to_owned())).collect()
}

/// A writer on a database of its own.
pub(crate) struct WriterScene {
    pub(crate) db: TestDb,
    pub(crate) runtime: Runtime,
    pub(crate) writer: Arc<Writer>,
}

impl WriterScene {
    /// Creates a database by `sql`, and opens a writer on it.
    pub(crate) fn new(sql: &str) -> WriterScene {
        WriterScene::with_options(sql, short_waits())
    }

    pub(crate) fn with_options(sql: &str, options: WriterOptions) -> WriterScene {
        let db = testing::database();
        db.run(sql);
        let runtime = runtime();
        let writer = open_writer(&db.dsn(), options, &runtime).unwrap();
        WriterScene { db, runtime, writer }
    }

    pub(crate) fn shape(&self, request: &InsertRequest) -> Arc<InsertShape> {
        self.runtime.block_on(self.writer.shape(request)).unwrap()
    }

    /// Sends each record by a caller of its own, all at once. Returns their outcomes in order.
    pub(crate) fn insert_at_once(
        &self,
        request: &InsertRequest,
        records: &[Record],
    ) -> Vec<Result<InsertOutcome>> {
        let calls = records.iter().map(|record| vec![record.clone()]).collect();
        self.call_at_once(request, calls)
    }

    /// Makes calls with several records each, all at once. Returns their outcomes in order.
    pub(crate) fn call_at_once(
        &self,
        request: &InsertRequest,
        calls: Vec<Vec<Record>>,
    ) -> Vec<Result<InsertOutcome>> {
        self.runtime.block_on(call_at_once(&self.writer, request, calls))
    }

    /// Closes the writer, whose lanes end.
    pub(crate) fn close(&self) {
        self.runtime.block_on(self.writer.close());
    }
}

/// Options whose waits for the server are short.
pub(crate) fn short_waits() -> WriterOptions {
    let limits =
        WaitLimits { retry_for: std::time::Duration::from_secs(30), ..WaitLimits::default() };
    WriterOptions { limits, ..WriterOptions::default() }
}

pub(crate) fn runtime() -> Runtime {
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

pub(crate) fn open_writer(
    dsn: &str,
    options: WriterOptions,
    runtime: &Runtime,
) -> Result<Arc<Writer>> {
    let dsn = Dsn::resolve(Some(dsn), &Environment::default())?.unwrap();
    let writer = runtime.block_on(Writer::open(dsn, options, runtime.handle()))?;
    Ok(Arc::new(writer))
}

/// Returns a request for these columns of a table.
pub(crate) fn into(table: &str, columns: &[&str]) -> InsertRequest {
    InsertRequest {
        table: table.to_owned(),
        columns: columns.iter().map(|name| (*name).to_owned()).collect(),
        on_conflict: OnConflict::Refuse,
        returning: Vec::new(),
    }
}

/// Returns the request with columns to return.
pub(crate) fn returning(request: InsertRequest, names: &[&str]) -> InsertRequest {
    InsertRequest { returning: names.iter().map(|name| (*name).to_owned()).collect(), ..request }
}

/// Encodes records for a shape.
pub(crate) fn encode(shape: &InsertShape, records: &[Record]) -> Result<EncodedRows> {
    let mut rows = EncodedRows::default();
    push_records(shape, records, &mut rows)?;
    Ok(rows)
}

/// Encodes records of a call with an idempotency key.
pub(crate) fn encode_with_key(
    shape: &InsertShape,
    key: &str,
    records: &[Record],
) -> Result<EncodedRows> {
    let mut rows = EncodedRows::with_key(key.to_owned())?;
    push_records(shape, records, &mut rows)?;
    Ok(rows)
}

fn push_records(shape: &InsertShape, records: &[Record], rows: &mut EncodedRows) -> Result<()> {
    for record in records {
        let fields: Vec<Option<&[u8]>> =
            record.iter().map(|text| text.as_deref().map(str::as_bytes)).collect();
        shape.push_record(&fields, rows)?;
    }
    Ok(())
}

/// Makes calls by tasks that run at the same time. Returns their outcomes in order.
pub(crate) async fn call_at_once(
    writer: &Arc<Writer>,
    request: &InsertRequest,
    calls: Vec<Vec<Record>>,
) -> Vec<Result<InsertOutcome>> {
    let mut callers = JoinSet::new();
    let count = calls.len();
    for (nth, records) in calls.into_iter().enumerate() {
        let (writer, request) = (writer.clone(), request.clone());
        callers.spawn(async move { (nth, call(&writer, &request, &records).await) });
    }
    in_order(callers, count).await
}

/// Makes calls like [`call_at_once`], each with an idempotency key of its own.
pub(crate) async fn call_with_keys_at_once(
    writer: &Arc<Writer>,
    request: &InsertRequest,
    calls: Vec<(String, Vec<Record>)>,
) -> Vec<Result<InsertOutcome>> {
    let mut callers = JoinSet::new();
    let count = calls.len();
    for (nth, (key, records)) in calls.into_iter().enumerate() {
        let (writer, request) = (writer.clone(), request.clone());
        callers.spawn(async move {
            let outcome = async {
                let shape = writer.shape(&request).await?;
                writer.insert(&shape, encode_with_key(&shape, &key, &records)?).await
            };
            (nth, outcome.await)
        });
    }
    in_order(callers, count).await
}

/// Waits for the callers. Returns their outcomes in the order of their numbers.
async fn in_order(
    mut callers: JoinSet<(usize, Result<InsertOutcome>)>,
    count: usize,
) -> Vec<Result<InsertOutcome>> {
    let mut outcomes: Vec<Option<Result<InsertOutcome>>> = (0..count).map(|_| None).collect();
    while let Some(ended) = callers.join_next().await {
        let (nth, outcome) = ended.unwrap();
        outcomes[nth] = Some(outcome);
    }
    outcomes.into_iter().map(Option::unwrap).collect()
}

/// Makes one call. As callers do, encodes the records again if the columns have other types.
pub(crate) async fn call(
    writer: &Writer,
    request: &InsertRequest,
    records: &[Record],
) -> Result<InsertOutcome> {
    let mut tries = 1;
    loop {
        let shape = writer.shape(request).await?;
        match writer.insert(&shape, encode(&shape, records)?).await {
            Err(error) if has_outdated_types(&error) && tries < ENCODINGS_MAX => tries += 1,
            outcome => return outcome,
        }
    }
}

/// Returns the SQLSTATE of an outcome, or an empty string if the records were written.
pub(crate) fn sqlstate(outcome: &Result<InsertOutcome>) -> String {
    match outcome {
        Ok(_) => String::new(),
        Err(error) => code(error),
    }
}

/// Returns the SQLSTATE of an error.
pub(crate) fn code(error: &Error) -> String {
    error.sqlstate().map_or_else(|| error.kind().name().to_owned(), |code| code.code().to_owned())
}

/// Returns the single value of a query's result.
pub(crate) fn value(db: &TestDb, sql: &str) -> String {
    db.query(sql)[0][0].clone().unwrap_or_default()
}
