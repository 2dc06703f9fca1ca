//! Connections over which nothing comes any more, and which nobody closes.
//!
//! A short question has a time in which it must be answered. Work may take as long as it likes:
//! now and then another session asks whether the server is at it. One that waits for us, while we
//! wait for it, has lost what one of both has sent; it is ended, so that its locks are free.

use std::time::Duration;

use tokio::time::timeout;

use crate::target::connect::{Connection, Dsn};
use crate::{Error, Kind, Result};

/// What the session that looks is called.
const NAME: &str = "pgspate apply";

/// Looks in a row at a server that cannot be asked, before a session with it is given up.
const MISSES_MAX: u32 = 2;

/// Whether a session waits for us, and since when, or what of a COPY it has by now. One of which
/// the server does not keep that (`track_activities`) passes for working.
const LOOK: &str = "\
select coalesce(state <> 'disabled' and (state like 'idle%' or wait_event_type = 'Client'
                                            and wait_event not ilike 'walsender%'), false),
       concat_ws(' ', state_change,
                 (select bytes_processed from pg_catalog.pg_stat_progress_copy c
                  where c.pid = a.pid))
from pg_catalog.pg_stat_activity a where pid = $1";

/// The same before PostgreSQL 14, where nothing tells how far a COPY is: it passes for working.
const LOOK_BEFORE_14: &str = "\
select coalesce(state like 'idle%', false), concat_ws(' ', state_change)
from pg_catalog.pg_stat_activity a where pid = $1";

/// Waits for what is answered at once or not at all; `what` completes "could not".
///
/// # Errors
/// Those of `work`; of [`Kind::Connect`] when it takes longer than `limit`.
pub(crate) async fn in_time<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(silent(what, limit)))
}

fn silent(what: &str, limit: Duration) -> Error {
    let seconds = limit.as_secs();
    let cause = Error::new(Kind::Connect, format!("nothing has come for {seconds} s"));
    Error::new(Kind::Connect, format!("could not {what}")).because(cause)
}

/// Watches over a session that is at work.
#[derive(Debug, Clone)]
pub(crate) struct Vigil {
    dsn: Dsn,
    pid: i32,
    /// Which of several servers it is on, where that is known.
    place: Option<String>,
    limit: Duration,
}

/// What a look has shown.
enum Seen {
    Works,
    /// It waits for us, and this tells whether it has done so all the time.
    Waits(String),
    Gone,
}

impl Vigil {
    /// Over the session of a connection that `dsn` has led to.
    pub(crate) fn new(dsn: &Dsn, connection: &Connection, limit: Duration) -> Vigil {
        let place = Some(connection.place().to_owned());
        Vigil { place, ..Vigil::of(dsn, connection.backend_pid(), limit) }
    }

    /// Over the session of the server's process of this number.
    pub(crate) fn of(dsn: &Dsn, pid: i32, limit: Duration) -> Vigil {
        Vigil { dsn: dsn.clone(), pid, place: None, limit }
    }

    /// Waits for work of the session; `what` completes "could not".
    ///
    /// # Errors
    /// Those of `work`; of [`Kind::Connect`] when the session has been silent for so long. It is
    /// of no use then.
    pub(crate) async fn over<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut work = std::pin::pin!(work);
        let (mut waits, mut misses) = (None, 0);
        loop {
            if let Ok(done) = timeout(self.limit, &mut work).await {
                return done;
            }
            // Where there is a pooler nobody may know the session.
            if self.pid == 0 {
                continue;
            }
            let looked = tokio::select! {
                done = &mut work => return done,
                looked = timeout(self.limit, self.look(waits.as_deref())) => looked,
            };
            match looked {
                Ok(Ok(Seen::Works)) => (waits, misses) = (None, 0),
                Ok(Ok(Seen::Waits(since))) if waits.as_ref() != Some(&since) => {
                    (waits, misses) = (Some(since), 0);
                }
                Ok(Ok(_)) => return Err(silent(what, self.limit)),
                // A server that says no is there.
                Ok(Err(error)) if error.sqlstate().is_some() => misses = 0,
                Ok(Err(_)) | Err(_) => {
                    misses += 1;
                    if misses >= MISSES_MAX {
                        return Err(silent(what, self.limit));
                    }
                }
            }
        }
    }

    /// Looks at the session, and ends it if it waits for us as it did `before`.
    async fn look(&self, before: Option<&str>) -> Result<Seen> {
        let beside = self.dsn.connect(NAME).await?;
        if self.place.as_deref().is_some_and(|place| place != beside.place()) {
            // Another server knows nothing of it.
            return Ok(Seen::Works);
        }
        let look = if beside.server_version() >= 140_000 { LOOK } else { LOOK_BEFORE_14 };
        let asked = beside.client.query_opt(look, &[&self.pid]).await;
        let asked = asked.map_err(|error| beside.explain("could not look at a session", error))?;
        let seen = match asked {
            None => Seen::Gone,
            Some(row) if !row.get::<_, bool>(0) => Seen::Works,
            Some(row) => Seen::Waits(row.get(1)),
        };
        if let Seen::Waits(since) = &seen
            && before == Some(since)
        {
            let end = "select pg_catalog.pg_terminate_backend($1)";
            // If that may not be, its locks are waited for.
            let _ = beside.client.query_one(end, &[&self.pid]).await;
        }
        beside.close().await;
        Ok(seen)
    }
}
