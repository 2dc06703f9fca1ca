//! The user's server: experiments use one schema there, which is dropped afterwards.
//!
//! A comment marks the schema as the lab's; a schema without the mark is never touched. The lab
//! deletes its jobs and streams from the ledger. It drops a ledger that did not exist before,
//! unless another program has begun to use it. After a kill, or if another session of pgspate
//! prevented the cleanup, the marked schema stays, and the next run cleans up. No setting of the
//! server is ever changed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgspate::target::connect::{Connection, Dsn};
use pgspate::{Error, ErrorKind, Result, ledger};
use tokio_postgres::error::SqlState;

use crate::context::{SCHEMA, SESSION, STREAM};

const MARK: &str = "scratch of pgspate lab, made and dropped by it";

/// The state of the ledger before the lab's first run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LedgerBefore {
    Ledger,
    /// The empty schema `pgspate`, made for the role that loads.
    EmptySchema,
    Nothing,
}

impl LedgerBefore {
    const ALL: [LedgerBefore; 3] =
        [LedgerBefore::Ledger, LedgerBefore::EmptySchema, LedgerBefore::Nothing];

    /// Returns the comment for the lab's schema.
    fn mark(self) -> String {
        let rest = match self {
            LedgerBefore::Ledger => "",
            LedgerBefore::EmptySchema => "; so are the tables of the ledger",
            LedgerBefore::Nothing => "; so is the ledger",
        };
        format!("{MARK}{rest}")
    }

    /// Returns the SQL that drops the ledger.
    fn drop_ledger(self) -> String {
        let drop = match self {
            LedgerBefore::Nothing => "drop schema pgspate cascade",
            LedgerBefore::Ledger | LedgerBefore::EmptySchema => DROP_TABLES,
        };
        DROP_LEDGER.replace("DROP", drop)
    }
}

/// The warning that the ledger could not be dropped.
const LEDGER_LEFT: &str = "Other sessions of pgspate are connected to that database, so the lab \
    has left two things there: its empty ledger (schema \"pgspate\") and the empty schema \
    \"pgspate_lab\". The next run of the lab in that database drops both.";
/// The application name of the session that holds the lock.
const KEEPER: &str = "pgspate lab keeper";
/// The advisory lock that allows one run at a time in a database.
const LOCK: i64 = 0x7067_7370_6c61_6230;
/// Checks whether terminated sessions have ended: five seconds in all.
const CHECKS_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// Finds jobs on the lab's tables: tables in the lab's schema, or dropped tables. A table that was
/// moved to another schema is the user's.
const JOBS: &str = "\
select job from pgspate.job j
where starts_with(table_name, $1) and not exists (
    select from pg_class c
    where c.oid = j.table_oid and c.relnamespace is distinct from to_regnamespace($2))
order by job";

/// Drops all tables of the ledger. None of them is a partition of another.
const DROP_TABLES: &str = "\
execute (select 'drop table ' || string_agg(oid::regclass::text, ', ')
         from pg_class where relnamespace = 'pgspate'::regnamespace and relkind in ('r', 'p'))";

/// Drops an empty ledger while no other session is about to write to it. It never waits for a lock,
/// as other sessions would then queue behind it.
const DROP_LEDGER: &str = "\
do $drop$
declare
    found regclass;
    is_used boolean;
begin
    if to_regclass('pgspate.version') is null then return; end if;
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
    DROP;
end
$drop$";

/// The user's server, with the lab's lock held.
pub(crate) struct UserServer {
    pub(crate) dsn: Dsn,
    connection: Connection,
    before: LedgerBefore,
    /// Whether the lab's schema exists.
    has_schema: AtomicBool,
    jobs_before: BTreeSet<i64>,
}

impl UserServer {
    /// Connects and takes the lab's lock. Refuses a schema of this name that is not the lab's, and
    /// cleans up after a killed run.
    pub(crate) async fn open(dsn: &Dsn) -> Result<UserServer> {
        // A name of its own, as sessions with the lab's usual name get terminated.
        let connection = dsn.with_application_name(KEEPER).connect(KEEPER).await?;
        let client = &connection.client;
        let failed = |error| connection.explain("could not lock the lab's schema", error);
        client.batch_execute("set statement_timeout = 0").await.map_err(failed)?;
        let locked = client.query_one("select pg_try_advisory_lock($1)", &[&LOCK]).await;
        if !locked.map_err(failed)?.get::<_, bool>(0) {
            let message = "another run of pgspate lab is using this database";
            return Err(Error::new(ErrorKind::Usage, message).hint(
                "Wait until that run has \
                                                                   ended.",
            ));
        }
        let sql = "select obj_description(oid, 'pg_namespace') from pg_namespace \
                   where nspname = $1";
        let found = client.query_opt(sql, &[&SCHEMA]).await.map_err(failed)?;
        let mark = found.as_ref().map(|row| row.get::<_, Option<&str>>(0).unwrap_or_default());
        let marked = LedgerBefore::ALL.into_iter().find(|it| mark == Some(it.mark().as_str()));
        if mark.is_some() && marked.is_none() {
            let message = format!("schema \"{SCHEMA}\" already exists, and is not the lab's");
            return Err(Error::new(ErrorKind::Plan, message).hint(format!(
                "Rename or drop it: `alter schema {SCHEMA} rename to {SCHEMA}_kept`."
            )));
        }
        let sql = "select to_regnamespace('pgspate') is not null, \
                   to_regclass('pgspate.version') is not null";
        let found = client.query_one(sql, &[]).await.map_err(failed)?;
        let now = match (found.get(0), found.get(1)) {
            (_, true) => LedgerBefore::Ledger,
            (true, false) => LedgerBefore::EmptySchema,
            (false, false) => LedgerBefore::Nothing,
        };
        let jobs_before = match marked {
            // They are jobs of the killed run.
            Some(_) => BTreeSet::new(),
            None => ledger::list_jobs(client, None).await?.into_iter().map(|job| job.job).collect(),
        };
        let has_schema = AtomicBool::new(marked.is_some());
        let before = marked.unwrap_or(now);
        // Overrides the user's application name: cleanup finds the lab's sessions by this name.
        let dsn = dsn.with_application_name(SESSION);
        let user_server = UserServer { dsn, connection, before, has_schema, jobs_before };
        if marked.is_some() {
            user_server.reset().await?;
        }
        Ok(user_server)
    }

    /// Returns the session that holds the lock.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Removes everything that the lab has made, and creates the schema again. Both happen in one
    /// transaction, as the mark records what has to be restored.
    pub(crate) async fn reset(&self) -> Result<()> {
        self.remove_jobs_and_streams().await?;
        // The statements of one query are one transaction.
        let sql = format!(
            "drop schema if exists {SCHEMA} cascade; create schema {SCHEMA}; \
             comment on schema {SCHEMA} is '{}'",
            self.before.mark()
        );
        let made = self.connection.client.batch_execute(&sql).await;
        made.map_err(|error| {
            let message = format!("could not make schema \"{SCHEMA}\"");
            self.connection.explain(message, error).hint(
                "The role needs the right to create schemas: `grant create on database ... to \
                 ...`.",
            )
        })?;
        self.has_schema.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Terminates the lab's sessions, and deletes its jobs and streams from the ledger.
    async fn remove_jobs_and_streams(&self) -> Result<()> {
        let client = &self.connection.client;
        // Sessions of a stopped trial may still be running.
        let sql = format!(
            "select pg_terminate_backend(pid) from pg_stat_activity \
             where application_name = '{SESSION}' and usename = current_user \
               and datname = current_database() and pid <> pg_backend_pid()"
        );
        let ended = client.batch_execute(&sql).await;
        ended.map_err(|error| {
            self.connection.explain("could not terminate the lab's sessions", error)
        })?;
        self.forget_jobs().await?;
        self.forget_streams().await
    }

    /// Deletes the jobs on the lab's tables, and their changes to restore: these tables are dropped
    /// anyway.
    async fn forget_jobs(&self) -> Result<()> {
        let client = &self.connection.client;
        let failed = |error| self.connection.explain("could not read the ledger", error);
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
                match ledger::forget_job(client, job).await {
                    // The job's session was terminated, but has not ended yet.
                    Err(error) if error.kind() == ErrorKind::Ledger && looks < CHECKS_MAX => {
                        looks += 1;
                        tokio::time::sleep(PAUSE).await;
                    }
                    done => break done?,
                }
            }
        }
        Ok(())
    }

    /// Deletes the lab's streams. Earlier versions gave all streams the name `pgspate lab`; now
    /// each trial's stream has a suffix.
    async fn forget_streams(&self) -> Result<()> {
        if !self.has_table("pgspate.stream").await? {
            return Ok(());
        }
        for table in ["pgspate.stream", "pgspate.dead_letter"] {
            let sql = format!("delete from {table} where stream = $1 or starts_with(stream, $2)");
            let gone =
                self.connection.client.execute(&sql, &[&STREAM, &format!("{STREAM} ")]).await;
            gone.map_err(|error| {
                self.connection.explain("could not delete the lab's streams from the ledger", error)
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

    /// Drops the ledger if it is empty. Returns false if it could not: another session of pgspate
    /// is connected, and might be about to write its first row.
    async fn drop_ledger(&self) -> Result<bool> {
        let sql = self.before.drop_ledger();
        for _ in 0..CHECKS_MAX {
            let Err(error) = self.connection.client.batch_execute(&sql).await else {
                return Ok(true);
            };
            match error.code() {
                Some(&SqlState::LOCK_NOT_AVAILABLE) => tokio::time::sleep(PAUSE).await,
                // Another role has created the ledger meanwhile.
                Some(&SqlState::INSUFFICIENT_PRIVILEGE) => return Ok(true),
                _ => return Err(self.connection.explain("could not drop the ledger", error)),
            }
        }
        Ok(false)
    }

    /// Removes everything, and releases the lock. Returns a warning if something had to be left.
    pub(crate) async fn close(self) -> Result<Option<&'static str>> {
        let left = self.remove_everything().await;
        self.connection.close().await;
        left
    }

    async fn remove_everything(&self) -> Result<Option<&'static str>> {
        if !self.has_schema.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.remove_jobs_and_streams().await?;
        if self.before != LedgerBefore::Ledger && !self.drop_ledger().await? {
            self.reset().await?;
            return Ok(Some(LEDGER_LEFT));
        }
        // Drop the schema last: its mark records the state of the ledger.
        let sql = format!("drop schema if exists {SCHEMA} cascade");
        let dropped = self.connection.client.batch_execute(&sql).await;
        dropped.map_err(|error| {
            self.connection.explain(format!("could not drop schema \"{SCHEMA}\""), error)
        })?;
        Ok(None)
    }
}
