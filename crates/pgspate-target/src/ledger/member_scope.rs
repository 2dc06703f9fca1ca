//! Which member of a fleet has written which scope last.
//!
//! A member that replaces rows claims its scopes in the transaction that writes them. The scopes'
//! rows in the ledger stay locked until that transaction ends. So two members never write one scope
//! at the same time, and no member writes a scope of a newer generation.
//!
//! A member that deletes no rows has no scope: its keys are known when it has compared. All rows of
//! such members are one scope, [`ALL_ROWS`], which the members of a generation share. The first
//! member of a generation takes it over from the older generation, in a transaction of its own. It
//! waits there for the transactions of older members, which lock the scope's row for reading. So
//! its snapshot has their rows, and later older members are refused.

use tokio_postgres::Client;

use super::identity::{digest_texts, lock_key};
use super::job::ledger_error;
use super::member::{FleetMember, OpenMember, generation_sort};
use crate::{Error, ErrorKind, Result, TypedParameter, TypedQuery, begin_pinned_sql};

/// The scope of all members that delete no rows.
const ALL_ROWS: &str = "all rows";

/// A condition: the member with the generation $2, its order $3 and the index $4 may write the
/// scope of row `w`.
pub(super) const MAY_WRITE: &str = "\
(w.sort operator(pg_catalog.<) $3
 or w.generation operator(pg_catalog.=) $2 and w.member operator(pg_catalog.=) $4
 or w.generation operator(pg_catalog.<>) $2 and w.sort operator(pg_catalog.=) $3)";

/// Refuses a member if one of its scopes was written by a member of a newer generation, or by
/// another member of the same generation.
pub(super) async fn check_not_superseded(
    client: &Client,
    member: &FleetMember,
    scopes: &[String],
) -> Result<()> {
    let sql = format!(
        "select w.generation, w.member \
         from pgspate.member_scope w where w.fleet operator(pg_catalog.=) $1 \
           and w.scope operator(pg_catalog.=) any ($5) and not {MAY_WRITE} limit 1"
    );
    let (sort, scopes) = (generation_sort(&member.generation), scopes.to_vec());
    let values: [&dyn TypedParameter; 5] =
        [&member.fleet, &member.generation, &sort, &member.member, &scopes];
    let found = client.fetch_opt(&sql, &values).await.map_err(ledger_error())?;
    found.map_or(Ok(()), |row| Err(superseded_error(member, row.get(0), row.get(1))))
}

/// Returns the error of a member of which the member `other` of `generation` has written a scope.
pub(super) fn superseded_error(member: &FleetMember, generation: &str, other: i32) -> Error {
    if generation == member.generation {
        let (what, hint) = match member.replaces_rows {
            true => (
                "has written a scope",
                "Give all rows of a scope to one member: two members would delete each other's \
                 rows.",
            ),
            false => (
                "loads a source",
                "Write `{member}` in the names of the sources, where each member's own number \
                 belongs.",
            ),
        };
        let message =
            format!("member {other} of generation {generation} {what} of member {}", member.member);
        return Error::new(ErrorKind::Ledger, message).hint(hint);
    }
    let message = format!(
        "generation {generation} of fleet \"{}\" has replaced the rows of member {} already; \
         generation {} is older",
        member.fleet, member.member, member.generation
    );
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "Do not retry this member. If generation {generation} is a mistake, forget it with \
         `pgspate fleet {} --generation {generation} --forget`.",
        member.fleet
    ))
}

/// Returns the error of a member without scopes whose generation is older than `newer`.
fn outdated_error(member: &FleetMember, newer: &str) -> Error {
    let FleetMember { fleet, generation, .. } = member;
    let message = format!(
        "generation {newer} of fleet \"{fleet}\" has begun to write; generation {generation} is \
         older"
    );
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "Do not retry this member. If generation {newer} is a mistake, forget it with `pgspate \
         fleet {fleet} --generation {newer} --forget`."
    ))
}

impl OpenMember {
    /// Takes [`ALL_ROWS`] over from older generations, for a member that deletes no rows. Waits for
    /// the transactions of their members for as long as the lock timeout; 0 is no limit. To be
    /// called outside of a transaction, before the snapshot of the transaction that writes. After
    /// an error a transaction may be open.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if a newer generation has begun to write. [`ErrorKind::Server`] if the
    /// ledger cannot be written, or with SQLSTATE 55P03 after the lock timeout.
    pub async fn begin_generation(&self, client: &Client, lock_timeout_millis: i32) -> Result<()> {
        if self.owns_all_rows(client).await? {
            return Ok(());
        }
        // Members of one generation come here one after the other. So a row that another member has
        // just taken over is not locked for writing any more.
        let FleetMember { fleet, generation, member, .. } = &self.member;
        let key = lock_key(&digest_texts(["fleet generation begins", fleet]));
        let begin = format!(
            "{}; set local lock_timeout = {lock_timeout_millis}; \
             select pg_catalog.pg_advisory_xact_lock({key})",
            begin_pinned_sql()
        );
        client.batch_execute(&begin).await.map_err(ledger_error())?;
        if !self.owns_all_rows(client).await? {
            let sql = "insert into pgspate.member_scope as w \
                           (fleet, scope, generation, sort, member) \
                       values ($1, $2, $3, $4, $5) on conflict (fleet, scope) do update \
                       set generation = excluded.generation, sort = excluded.sort, \
                           member = excluded.member where w.sort < excluded.sort";
            let sort = generation_sort(generation);
            let values: [&dyn TypedParameter; 5] = [fleet, &ALL_ROWS, generation, &sort, member];
            client.run_statement(sql, &values).await.map_err(ledger_error())?;
        }
        client.batch_execute("commit").await.map_err(ledger_error())
    }

    /// Returns whether the member's generation has [`ALL_ROWS`].
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if a newer generation has it.
    async fn owns_all_rows(&self, client: &Client) -> Result<bool> {
        let sql = "select w.generation, w.sort operator(pg_catalog.>) $3, \
                          w.sort operator(pg_catalog.=) $3 \
                   from pgspate.member_scope w where w.fleet operator(pg_catalog.=) $1 \
                     and w.scope operator(pg_catalog.=) $2";
        let sort = generation_sort(&self.member.generation);
        let values: [&dyn TypedParameter; 3] = [&self.member.fleet, &ALL_ROWS, &sort];
        let Some(row) = client.fetch_opt(sql, &values).await.map_err(ledger_error())? else {
            return Ok(false);
        };
        match row.get(1) {
            true => Err(outdated_error(&self.member, row.get(0))),
            false => Ok(row.get(2)),
        }
    }

    /// Locks [`ALL_ROWS`] in the transaction that writes, so that a newer generation waits for its
    /// end before it begins. Refuses a member if a newer generation has the scope; or any scope, if
    /// the member `has_no_scope` of its own. The user's search path may be set.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if the member is refused. [`ErrorKind::Server`] with SQLSTATE 40001 if
    /// a newer generation has begun after the transaction's snapshot.
    pub async fn share_all_rows(&self, client: &Client, has_no_scope: bool) -> Result<()> {
        let member = &self.member;
        let lock = "select w.generation, w.sort operator(pg_catalog.>) $3 \
                    from pgspate.member_scope w where w.fleet operator(pg_catalog.=) $1 \
                      and w.scope operator(pg_catalog.=) $2 for share";
        let newer = "select w.generation from pgspate.member_scope w \
                     where w.fleet operator(pg_catalog.=) $1 \
                       and w.sort operator(pg_catalog.>) $2 limit 1";
        let sort = generation_sort(&member.generation);
        let values: [&dyn TypedParameter; 3] = [&member.fleet, &ALL_ROWS, &sort];
        let of_scope: [&dyn TypedParameter; 2] = [&member.fleet, &sort];
        let find_newer = async {
            match has_no_scope {
                true => client.fetch_opt(newer, &of_scope).await,
                false => Ok(None),
            }
        };
        let (locked, newer) = tokio::join!(biased; client.fetch_opt(lock, &values), find_newer);
        let (locked, newer) = (locked.map_err(ledger_error())?, newer.map_err(ledger_error())?);
        let newer_owner = locked.as_ref().filter(|row| row.get(1));
        if let Some(row) = newer_owner.or(newer.as_ref()) {
            return Err(outdated_error(member, row.get(0)));
        }
        if locked.is_none() && has_no_scope {
            let message = format!("a generation of fleet \"{}\" was forgotten", member.fleet);
            return Err(Error::new(ErrorKind::Ledger, message).hint("Run the member again."));
        }
        Ok(())
    }

    /// Returns whether the member has claimed all of the scopes in its generation.
    ///
    /// # Errors
    /// [`ErrorKind::Server`] if the ledger cannot be read, [`ErrorKind::Connect`] if the connection
    /// fails.
    pub async fn has_claimed(&self, client: &Client, scopes: &[String]) -> Result<bool> {
        let member = &self.member;
        let sql = "select not exists ( \
                       select from unnest($4::text[]) as scope \
                       where not exists ( \
                           select from pgspate.member_scope w \
                           where w.fleet = $1 and w.scope = scope.scope \
                             and w.generation = $2 and w.member = $3))";
        let scopes = scopes.to_vec();
        let values: [&dyn TypedParameter; 4] =
            [&member.fleet, &member.generation, &member.member, &scopes];
        Ok(client.fetch_one(sql, &values).await.map_err(ledger_error())?.get(0))
    }

    /// Claims the scopes, in the transaction that writes their rows. A member that replaces rows
    /// also claims itself. A member that only adds rows claims its sources.
    /// `scopes` are digests of the scopes' names.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if a newer generation, or another member of the same generation, has
    /// written one of the scopes. [`ErrorKind::Server`] if the ledger cannot be written; with
    /// SQLSTATE 40001 if another member claims the same scope at the same time.
    pub async fn claim_scopes(&self, client: &Client, scopes: &[String]) -> Result<()> {
        let member = &self.member;
        let mut all = scopes.to_vec();
        if member.replaces_rows {
            all.push(member.own_scope());
        }
        // Two members that claim the same scopes lock them in the same order.
        all.sort_unstable();
        let sql = format!(
            "insert into pgspate.member_scope as w (fleet, scope, generation, sort, member) \
             select $1, scope, $2, $3, $4 from pg_catalog.unnest($5::text[]) as scope \
             on conflict (fleet, scope) do update \
             set generation = excluded.generation, sort = excluded.sort, \
                 member = excluded.member where {MAY_WRITE}"
        );
        let sort = generation_sort(&member.generation);
        let values: [&dyn TypedParameter; 5] =
            [&member.fleet, &member.generation, &sort, &member.member, &all];
        let claimed = client.run_statement(&sql, &values).await.map_err(ledger_error())?;
        if claimed == all.len() as u64 {
            return Ok(());
        }
        check_not_superseded(client, member, &all).await?;
        let message = format!("{claimed} of {} scopes are recorded", all.len());
        Err(Error::new(ErrorKind::Bug, message))
    }
}
