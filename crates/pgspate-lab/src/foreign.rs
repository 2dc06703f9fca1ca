//! A server that is not the lab's own: experiments have one schema there, and leave nothing.
//!
//! The schema is marked as the lab's by its comment; one without that mark is never touched. What
//! pgspate's ledger came to know of the lab's tables is forgotten, by name; a ledger that was not
//! there before is gone afterwards, unless somebody else has begun to use it. That holds also after
//! a kill, and where another session of pgspate was in the way: the schema with its mark is there
//! as long as there is something to put back, and the next run does that. No setting of the server
//! is ever changed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgspate::target::connect::{Connection, Dsn};
use pgspate::{Error, Kind, Result, ledger};
use tokio_postgres::error::SqlState;

use crate::ground::{SCHEMA, SESSION, STREAM};

const MARK: &str = "scratch of pgspate lab, made and dropped by it";

/// What a database had of a ledger before the lab came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Ledger,
    /// The schema, made for the role that loads, with nothing in it.
    EmptySchema,
    Nothing,
}

impl Before {
    const ALL: [Before; 3] = [Before::Ledger, Before::EmptySchema, Before::Nothing];

    /// The comment on the lab's schema.
    fn mark(self) -> String {
        let rest = match self {
            Before::Ledger => "",
            Before::EmptySchema => "; so are the tables of the ledger",
            Before::Nothing => "; so is the ledger",
        };
        format!("{MARK}{rest}")
    }

    /// What takes the ledger away.
    fn drop_ledger(self) -> String {
        let drop = match self {
            Before::Nothing => "drop schema pgspate cascade",
            Before::Ledger | Before::EmptySchema => DROP_TABLES,
        };
        DROP_LEDGER.replace("DROP", drop)
    }
}

/// That the ledger could not go.
const LEDGER_LEFT: &str = "Other sessions of pgspate are connected to that database, so the ledger \
    that the lab has made stays there, empty (schema \"pgspate\"), and beside it the empty schema \
    \"pgspate_lab\", by which the next run of the lab there knows to take both away.";
/// What the session is called that holds the lock.
const KEEPER: &str = "pgspate lab keeper";
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

/// Drops all the ledger's tables, which are not parts of each other.
const DROP_TABLES: &str = "\
execute (select 'drop table ' || string_agg(oid::regclass::text, ', ')
         from pg_class where relnamespace = 'pgspate'::regnamespace and relkind in ('r', 'p'))";

/// Drops a ledger in which there is nothing, at a moment at which nobody is about to write to it.
/// Waits for nobody, as others would then wait for us.
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

/// The server, locked for this run.
pub(crate) struct Foreign {
    pub(crate) dsn: Dsn,
    connection: Connection,
    before: Before,
    /// Whether the lab's schema is there.
    has_schema: AtomicBool,
    jobs_before: BTreeSet<i64>,
}

impl Foreign {
    /// Connects, and makes sure that nobody's schema is in the way. What a run that was killed has
    /// left is taken away.
    pub(crate) async fn open(dsn: &Dsn) -> Result<Foreign> {
        // Under another name than the sessions that are ended.
        let connection = dsn.called(KEEPER).connect(KEEPER).await?;
        let client = &connection.client;
        let failed = |error| connection.explain("could not lock the lab's schema", error);
        client.batch_execute("set statement_timeout = 0").await.map_err(failed)?;
        let locked = client.query_one("select pg_try_advisory_lock($1)", &[&LOCK]).await;
        if !locked.map_err(failed)?.get::<_, bool>(0) {
            let message = "another lab is at work in this database";
            return Err(Error::new(Kind::Usage, message).hint("Wait for its end."));
        }
        let sql = "select obj_description(oid, 'pg_namespace') from pg_namespace \
                   where nspname = $1";
        let found = client.query_opt(sql, &[&SCHEMA]).await.map_err(failed)?;
        let mark = found.as_ref().map(|row| row.get::<_, Option<&str>>(0).unwrap_or_default());
        let marked = Before::ALL.into_iter().find(|it| mark == Some(it.mark().as_str()));
        if mark.is_some() && marked.is_none() {
            let message = format!("schema \"{SCHEMA}\" is there already, and is not the lab's");
            return Err(Error::new(Kind::Plan, message).hint(format!(
                "Rename or drop it: `alter schema {SCHEMA} rename to {SCHEMA}_kept`."
            )));
        }
        let sql = "select to_regnamespace('pgspate') is not null, \
                   to_regclass('pgspate.version') is not null";
        let found = client.query_one(sql, &[]).await.map_err(failed)?;
        let now = match (found.get(0), found.get(1)) {
            (_, true) => Before::Ledger,
            (true, false) => Before::EmptySchema,
            (false, false) => Before::Nothing,
        };
        let jobs_before = match marked {
            // They are the lab's, of the run that was killed.
            Some(_) => BTreeSet::new(),
            None => ledger::list(client, None).await?.into_iter().map(|job| job.job).collect(),
        };
        let has_schema = AtomicBool::new(marked.is_some());
        let before = marked.unwrap_or(now);
        // Also where the user has another name for sessions: those that are left are ended by it.
        let dsn = dsn.called(SESSION);
        let foreign = Foreign { dsn, connection, before, has_schema, jobs_before };
        if marked.is_some() {
            foreign.reset().await?;
        }
        Ok(foreign)
    }

    /// The session that holds the lock.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The schema, new and empty: takes away everything that the lab has made. It is never gone in
    /// between, as its mark tells what has to be put back.
    pub(crate) async fn reset(&self) -> Result<()> {
        self.forget().await?;
        // These are one transaction.
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

    /// Ends what is at work, and has the ledger forget it.
    async fn forget(&self) -> Result<()> {
        let client = &self.connection.client;
        // Sessions of a trial that was stopped may still be at work.
        let sql = format!(
            "select pg_terminate_backend(pid) from pg_stat_activity \
             where application_name = '{SESSION}' and usename = current_user \
               and datname = current_database() and pid <> pg_backend_pid()"
        );
        let ended = client.batch_execute(&sql).await;
        ended
            .map_err(|error| self.connection.explain("could not end the lab's sessions", error))?;
        self.forget_jobs().await?;
        self.forget_streams().await
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

    /// Drops the ledger if nobody has anything in it, and tells whether nothing is left to do about
    /// it. Another session of pgspate may be about to write its first row, so it stays as long as
    /// there is one.
    async fn drop_ledger(&self) -> Result<bool> {
        let sql = self.before.drop_ledger();
        for _ in 0..LOOKS_MAX {
            let Err(error) = self.connection.client.batch_execute(&sql).await else {
                return Ok(true);
            };
            match error.code() {
                Some(&SqlState::LOCK_NOT_AVAILABLE) => tokio::time::sleep(PAUSE).await,
                // Another role has made it meanwhile.
                Some(&SqlState::INSUFFICIENT_PRIVILEGE) => return Ok(true),
                _ => return Err(self.connection.explain("could not drop the ledger", error)),
            }
        }
        Ok(false)
    }

    /// Takes everything away, and lets others in; tells what had to be left, if something had.
    pub(crate) async fn close(self) -> Result<Option<&'static str>> {
        let left = self.leave().await;
        self.connection.close().await;
        left
    }

    async fn leave(&self) -> Result<Option<&'static str>> {
        if !self.has_schema.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.forget().await?;
        if self.before != Before::Ledger && !self.drop_ledger().await? {
            self.reset().await?;
            return Ok(Some(LEDGER_LEFT));
        }
        // Last: its mark tells of the ledger.
        let sql = format!("drop schema if exists {SCHEMA} cascade");
        let dropped = self.connection.client.batch_execute(&sql).await;
        dropped.map_err(|error| {
            self.connection.explain(format!("could not drop schema \"{SCHEMA}\""), error)
        })?;
        Ok(None)
    }
}
