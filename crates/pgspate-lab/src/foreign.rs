//! A server that is not the lab's own: experiments have one schema there, and leave nothing.
//!
//! The schema is marked as the lab's by its comment; one without that mark is never touched. What
//! pgspate's ledger came to know of the lab's tables is forgotten, and a ledger that was not there
//! before is gone afterwards. No setting of the server is ever changed.

use std::collections::BTreeSet;

use pgspate::target::connect::{Connection, Dsn};
use pgspate::{Error, Kind, Result, ledger};

use crate::ground::SCHEMA;

const MARK: &str = "scratch of pgspate lab, made and dropped by it";
/// One run at a time in a database.
const LOCK: i64 = 0x7067_7370_6c61_6230;

/// The server, locked for this run.
pub(crate) struct Foreign {
    pub(crate) dsn: Dsn,
    connection: Connection,
    had_ledger: bool,
    jobs_before: BTreeSet<i64>,
}

impl Foreign {
    /// Connects, and makes sure that nobody's schema is in the way.
    pub(crate) async fn open(dsn: &Dsn) -> Result<Foreign> {
        // Under another name than the sessions that `reset` ends.
        let connection = dsn.connect("pgspate lab keeper").await?;
        let client = &connection.client;
        let failed = |error| connection.explain("could not lock the lab's schema", error);
        let locked = client.query_one("select pg_try_advisory_lock($1)", &[&LOCK]).await;
        if !locked.map_err(failed)?.get::<_, bool>(0) {
            let message = "another lab is at work in this database";
            return Err(Error::new(Kind::Usage, message).hint("Wait for its end."));
        }
        let sql = "select obj_description(oid, 'pg_namespace') from pg_namespace \
                   where nspname = $1";
        let found = client.query_opt(sql, &[&SCHEMA]).await.map_err(failed)?;
        if let Some(row) = found
            && row.get::<_, Option<String>>(0).as_deref() != Some(MARK)
        {
            let message = format!("schema \"{SCHEMA}\" is there already, and is not the lab's");
            return Err(Error::new(Kind::Plan, message).hint(format!(
                "Rename or drop it: `alter schema {SCHEMA} rename to {SCHEMA}_kept`."
            )));
        }
        let sql = "select to_regnamespace('pgspate') is not null";
        let had_ledger = client.query_one(sql, &[]).await.map_err(failed)?.get(0);
        let jobs = ledger::list(client, None).await?;
        let jobs_before = jobs.into_iter().map(|job| job.job).collect();
        Ok(Foreign { dsn: dsn.clone(), connection, had_ledger, jobs_before })
    }

    /// The session that holds the lock.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The schema, new and empty.
    pub(crate) async fn reset(&self) -> Result<()> {
        self.tidy().await?;
        let sql = format!("create schema {SCHEMA}; comment on schema {SCHEMA} is '{MARK}'");
        let made = self.connection.client.batch_execute(&sql).await;
        made.map_err(|error| {
            let message = format!("could not make schema \"{SCHEMA}\"");
            self.connection.explain(message, error).hint(
                "The role needs the right to create schemas: `grant create on database ... to \
                 ...`.",
            )
        })
    }

    /// Takes away everything that the lab has made.
    pub(crate) async fn tidy(&self) -> Result<()> {
        let client = &self.connection.client;
        let failed =
            |error| self.connection.explain(format!("could not drop schema \"{SCHEMA}\""), error);
        // Sessions of a trial that was stopped may still be at work.
        let sql = "select pg_terminate_backend(pid) from pg_stat_activity \
                   where application_name = 'pgspate lab' and usename = current_user \
                     and datname = current_database() and pid <> pg_backend_pid()";
        client.batch_execute(sql).await.map_err(failed)?;
        let sql = format!("drop schema if exists {SCHEMA} cascade");
        client.batch_execute(&sql).await.map_err(failed)?;
        if self.had_ledger {
            let jobs = ledger::list(client, None).await?;
            let own = format!("{SCHEMA}.");
            let is_ours = |job: &&ledger::JobStatus| {
                job.table.starts_with(&own) && !self.jobs_before.contains(&job.job)
            };
            for job in jobs.iter().filter(is_ours) {
                ledger::forget(client, job.job).await?;
            }
            return Ok(());
        }
        client.batch_execute("drop schema if exists pgspate cascade").await.map_err(failed)
    }

    /// The same, and lets others in.
    pub(crate) async fn close(self) -> Result<()> {
        let tidied = self.tidy().await;
        self.connection.close().await;
        tidied
    }
}
