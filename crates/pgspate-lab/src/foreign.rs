//! A server that is not the lab's own: experiments have one schema there, and leave nothing.
//!
//! The schema is marked as the lab's by its comment; one without that mark is never touched. What
//! pgspate's ledger came to know of the lab's tables is forgotten, by name; a ledger that was not
//! there before is gone afterwards, unless somebody else has begun to use it. That holds also after
//! a kill: the next run puts back what the mark tells of. No setting of the server is ever changed.

use std::collections::BTreeSet;
use std::time::Duration;

use pgspate::target::connect::{Connection, Dsn};
use pgspate::{Error, Kind, Result, ledger};
use tokio_postgres::error::SqlState;

use crate::ground::{SCHEMA, STREAM};

const MARK: &str = "scratch of pgspate lab, made and dropped by it";
/// The same, where the database had no ledger before.
const MARK_NO_LEDGER: &str = "scratch of pgspate lab, made and dropped by it; so is the ledger";
/// One run at a time in a database.
const LOCK: i64 = 0x7067_7370_6c61_6230;
/// Looks at whether sessions that were ended are gone: five seconds in all.
const LOOKS_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// Jobs on the lab's tables: these are in its schema, or gone. A table that only had been in a
/// schema of that name is somebody else's.
const JOBS: &str = "\
select job from pgspate.job j
where starts_with(table_name, $1) and not exists (
    select from pg_class c
    where c.oid = j.table_oid and c.relnamespace is distinct from to_regnamespace($2))
order by job";

/// Drops a ledger in which there is nothing, at a moment at which nobody is about to write to it.
/// Waits for nobody, as others would then wait for us.
const DROP_LEDGER: &str = "\
do $drop$
declare
    found regclass;
    is_used boolean;
begin
    if to_regnamespace('pgspate') is null then return; end if;
    for look in 1..2 loop
        for found in select oid from pg_class
                     where relnamespace = 'pgspate'::regnamespace and relkind in ('r', 'p')
                       and relname <> 'version' loop
            execute format('select exists (select from %s)', found) into is_used;
            if is_used then return; end if;
        end loop;
        if look = 2 then exit; end if;
        if exists (select from pg_stat_activity
                   where datname = current_database() and application_name like 'pgspate%'
                     and pid <> pg_backend_pid()) then
            raise lock_not_available;
        end if;
        for found in select oid from pg_class
                     where relnamespace = 'pgspate'::regnamespace and relkind in ('r', 'p') loop
            execute format('lock table %s in access exclusive mode nowait', found);
        end loop;
    end loop;
    drop schema pgspate cascade;
end
$drop$";

/// The server, locked for this run.
pub(crate) struct Foreign {
    pub(crate) dsn: Dsn,
    connection: Connection,
    had_ledger: bool,
    jobs_before: BTreeSet<i64>,
}

impl Foreign {
    /// Connects, and makes sure that nobody's schema is in the way. What a run that was killed has
    /// left is taken away.
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
        let mark = found.as_ref().map(|row| row.get::<_, Option<&str>>(0).unwrap_or_default());
        if mark.is_some_and(|mark| ![MARK, MARK_NO_LEDGER].contains(&mark)) {
            let message = format!("schema \"{SCHEMA}\" is there already, and is not the lab's");
            return Err(Error::new(Kind::Plan, message).hint(format!(
                "Rename or drop it: `alter schema {SCHEMA} rename to {SCHEMA}_kept`."
            )));
        }
        let sql = "select to_regnamespace('pgspate') is not null";
        let has_ledger: bool = client.query_one(sql, &[]).await.map_err(failed)?.get(0);
        let had_ledger = has_ledger && mark != Some(MARK_NO_LEDGER);
        let is_left_over = mark.is_some();
        let jobs_before = match is_left_over {
            // They are the lab's, of the run that was killed.
            true => BTreeSet::new(),
            false => ledger::list(client, None).await?.into_iter().map(|job| job.job).collect(),
        };
        let foreign = Foreign { dsn: dsn.clone(), connection, had_ledger, jobs_before };
        if is_left_over {
            foreign.tidy().await?;
        }
        Ok(foreign)
    }

    /// The session that holds the lock.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The schema, new and empty.
    pub(crate) async fn reset(&self) -> Result<()> {
        self.tidy().await?;
        let mark = if self.had_ledger { MARK } else { MARK_NO_LEDGER };
        let sql = format!("create schema {SCHEMA}; comment on schema {SCHEMA} is '{mark}'");
        let made = self.connection.client.batch_execute(&sql).await;
        made.map_err(|error| {
            let message = format!("could not make schema \"{SCHEMA}\"");
            self.connection.explain(message, error).hint(
                "The role needs the right to create schemas: `grant create on database ... to \
                 ...`.",
            )
        })
    }

    /// Takes away everything that the lab has made. The schema goes last: while it is there, its
    /// mark tells what has to be put back.
    pub(crate) async fn tidy(&self) -> Result<()> {
        let client = &self.connection.client;
        let failed =
            |error| self.connection.explain(format!("could not drop schema \"{SCHEMA}\""), error);
        // Sessions of a trial that was stopped may still be at work.
        let sql = "select pg_terminate_backend(pid) from pg_stat_activity \
                   where application_name = 'pgspate lab' and usename = current_user \
                     and datname = current_database() and pid <> pg_backend_pid()";
        client.batch_execute(sql).await.map_err(failed)?;
        self.forget_jobs().await?;
        self.forget_streams().await?;
        if !self.had_ledger {
            self.drop_ledger().await?;
        }
        let sql = format!("drop schema if exists {SCHEMA} cascade");
        client.batch_execute(&sql).await.map_err(failed)
    }

    /// Jobs on the lab's tables, also such as were killed before they put back what they had
    /// changed: the tables go as well.
    async fn forget_jobs(&self) -> Result<()> {
        let client = &self.connection.client;
        let failed = |error| self.connection.explain("could not look into the ledger", error);
        if !self.has_table("pgspate.job").await? {
            return Ok(());
        }
        let own = format!("{SCHEMA}.");
        let rows = client.query(JOBS, &[&own, &SCHEMA]).await.map_err(failed)?;
        let jobs = rows.iter().map(|row| row.get::<_, i64>(0));
        for job in jobs.filter(|job| !self.jobs_before.contains(job)) {
            let changes = "delete from pgspate.change where job = $1";
            client.execute(changes, &[&job]).await.map_err(failed)?;
            let mut looks = 0;
            loop {
                match ledger::forget(client, job).await {
                    // Its session has been ended, or ends by itself, and is not gone yet.
                    Err(error) if error.kind() == Kind::Ledger && looks < LOOKS_MAX => {
                        looks += 1;
                        tokio::time::sleep(PAUSE).await;
                    }
                    done => break done?,
                }
            }
        }
        Ok(())
    }

    /// Streams by the lab's names, and by the one that it gave them all before these were new for
    /// each trial.
    async fn forget_streams(&self) -> Result<()> {
        if !self.has_table("pgspate.stream").await? {
            return Ok(());
        }
        for table in ["pgspate.stream", "pgspate.dead_letter"] {
            let sql = format!("delete from {table} where stream = $1 or starts_with(stream, $2)");
            let gone =
                self.connection.client.execute(&sql, &[&STREAM, &format!("{STREAM} ")]).await;
            gone.map_err(|error| {
                self.connection.explain("could not forget the lab's streams", error)
            })?;
        }
        Ok(())
    }

    async fn has_table(&self, name: &str) -> Result<bool> {
        let sql = "select to_regclass($1) is not null";
        let row = self.connection.client.query_one(sql, &[&name]).await;
        let row =
            row.map_err(|error| self.connection.explain("could not look for the ledger", error))?;
        Ok(row.get(0))
    }

    /// Drops the ledger if nobody has anything in it. Another session of pgspate may be about to
    /// write its first row, so it stays as long as there is one.
    async fn drop_ledger(&self) -> Result<()> {
        for _ in 0..LOOKS_MAX {
            let Err(error) = self.connection.client.batch_execute(DROP_LEDGER).await else {
                return Ok(());
            };
            match error.code() {
                Some(&SqlState::LOCK_NOT_AVAILABLE) => tokio::time::sleep(PAUSE).await,
                // Another role has made it meanwhile.
                Some(&SqlState::INSUFFICIENT_PRIVILEGE) => return Ok(()),
                _ => return Err(self.connection.explain("could not drop the ledger", error)),
            }
        }
        Ok(())
    }

    /// The same, and lets others in.
    pub(crate) async fn close(self) -> Result<()> {
        let tidied = self.tidy().await;
        self.connection.close().await;
        tidied
    }
}
