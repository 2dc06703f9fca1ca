//! Sessions that run the same query at the same time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all, try_join_all};
use pgspate::target::connect::Connection;
use pgspate::{Error, ErrorKind, Result};

use super::super::sending::{failed, number};
use super::{CREATE_AS, DISTINCT};
use crate::TrialContext;

/// The SQLSTATE for temporary files that exceed `temp_file_limit`.
const LIMIT_EXCEEDED: &str = "53400";

/// A query that spills to disk, and the number of sessions that run it.
pub(super) struct SpillingQueries {
    pub(super) clients: usize,
    pub(super) query: String,
    pub(super) work_mem_kb: u64,
    pub(super) tablespace: Option<&'static str>,
    /// The expected number of rows of each query.
    pub(super) rows: u64,
    /// Whether another session inserts rows while the queries run.
    pub(super) has_bystander: bool,
}

/// The open sessions, whose settings are set.
pub(super) struct OpenSessions {
    clients: Vec<Connection>,
    bystander: Connection,
}

/// The results of all queries.
#[derive(Default)]
pub(super) struct QueryResults {
    /// The seconds of each successful query.
    pub(super) seconds: Vec<f64>,
    /// The errors of the failed queries, in the server's words.
    pub(super) errors: Vec<String>,
    /// Bytes of all temporary tables.
    pub(super) table_bytes: u64,
    /// The number of rows that the bystander session has committed.
    pub(super) bystander_rows: u64,
}

/// The query's seconds and the bytes of its table, or the server's message about the limit.
type QueryAnswer = Result<(f64, u64), String>;

impl QueryResults {
    /// Returns the mean seconds of the successful queries, if there is one.
    pub(super) fn mean_seconds(&self) -> Option<f64> {
        let count = self.seconds.len();
        (count > 0).then(|| self.seconds.iter().sum::<f64>() / count as f64)
    }

    /// Checks that no query has failed.
    ///
    /// # Errors
    /// [`ErrorKind::Server`] if a query has failed.
    pub(super) fn check(&self) -> Result<()> {
        match self.errors.first() {
            None => Ok(()),
            Some(error) => Err(Error::new(ErrorKind::Server, format!("a query failed: {error}"))),
        }
    }
}

impl SpillingQueries {
    /// Opens the sessions and sets their settings.
    pub(super) async fn connect(&self, context: &TrialContext) -> Result<OpenSessions> {
        let space = match self.tablespace {
            Some(name) => format!("set temp_tablespaces = '{name}';"),
            None => String::new(),
        };
        // Without parallel workers all queries get the same number of processes.
        let settings = format!(
            "set work_mem = {}; set max_parallel_workers_per_gather = 0; set jit = off; {space}",
            self.work_mem_kb
        );
        let open = async || -> Result<Connection> {
            let connection = context.open().await?;
            let set = connection.client.batch_execute(&settings).await;
            set.map_err(failed(&connection, "set a session's options"))?;
            Ok(connection)
        };
        let clients = try_join_all((0..self.clients).map(|_| open())).await?;
        Ok(OpenSessions { clients, bystander: context.open().await? })
    }

    /// Runs the query in all sessions, and waits for the last one.
    pub(super) async fn run(&self, ready: &OpenSessions) -> Result<QueryResults> {
        let is_over = AtomicBool::new(false);
        let queries = async {
            let all = join_all(ready.clients.iter().map(|client| self.query(client))).await;
            is_over.store(true, Relaxed);
            all
        };
        let bystander = async {
            match self.has_bystander {
                true => write_until(&ready.bystander, &is_over).await,
                false => Ok(0),
            }
        };
        let (all, bystander_rows) = join(queries, bystander).await;
        let mut answers =
            QueryResults { bystander_rows: bystander_rows?, ..QueryResults::default() };
        for answer in all {
            match answer? {
                Ok((seconds, bytes)) => {
                    answers.seconds.push(seconds);
                    answers.table_bytes += bytes;
                }
                Err(words) => answers.errors.push(words),
            }
        }
        Ok(answers)
    }

    /// Returns the SQL of the query. Its result or its command tag has the number of rows.
    fn sql(&self) -> &'static str {
        match self.query.as_str() {
            CREATE_AS => "create temp table copied as table lineitem",
            // The query needs all columns, so the server must keep all columns.
            DISTINCT => "select count(d) from (select distinct * from lineitem) d",
            _ => {
                "select count(s) from (select * from lineitem \
                 order by l_comment, l_orderkey offset 0) s"
            }
        }
    }

    /// Runs the query in one session.
    async fn query(&self, connection: &Connection) -> Result<QueryAnswer> {
        let makes_table = self.query == CREATE_AS;
        let client = &connection.client;
        let began = Instant::now();
        let done = match makes_table {
            true => client.execute(self.sql(), &[]).await,
            false => client.query_one(self.sql(), &[]).await.map(|row| row.get::<_, i64>(0) as u64),
        };
        let seconds = began.elapsed().as_secs_f64();
        let rows = match done {
            Ok(rows) => rows,
            Err(error) => {
                let words = error.as_db_error().filter(|it| it.code().code() == LIMIT_EXCEEDED);
                let Some(words) = words else {
                    return Err(failed(connection, "run a query that spills")(error));
                };
                let words = format!("{} (SQLSTATE {LIMIT_EXCEEDED})", words.message());
                // Check that the session still works after the error.
                number(connection, "go on after the error", "select 1::int8").await?;
                return Ok(Err(words));
            }
        };
        if rows != self.rows {
            let message = format!("a query counted {rows} rows; expected {}", self.rows);
            return Err(Error::new(ErrorKind::Bug, message));
        }
        let bytes = match makes_table {
            true => {
                let size = "select pg_table_size('copied')";
                number(connection, "look up a table's size", size).await?.unsigned_abs()
            }
            false => 0,
        };
        Ok(Ok((seconds, bytes)))
    }

    /// Closes the sessions and waits until their backends have ended.
    pub(super) async fn close(&self, ready: OpenSessions) -> Result<()> {
        let OpenSessions { clients, bystander } = ready;
        let pids: Vec<i32> = clients.iter().map(Connection::backend_pid).collect();
        join_all(clients.into_iter().map(Connection::close)).await;
        let sql = "select count(*) from pg_stat_activity where pid = any($1)";
        for _ in 0..500 {
            let row = bystander.client.query_one(sql, &[&pids]).await;
            if row.map_err(failed(&bystander, "wait for sessions"))?.get::<_, i64>(0) == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bystander.close().await;
        Ok(())
    }
}

/// Inserts and commits single rows until `is_over` is true. Returns the number of rows.
async fn write_until(connection: &Connection, is_over: &AtomicBool) -> Result<u64> {
    let mut rows = 0;
    while !is_over.load(Relaxed) || rows == 0 {
        let done = connection.client.execute("insert into bystander values (1)", &[]).await;
        rows += done.map_err(failed(connection, "write during the queries"))?;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(rows)
}
