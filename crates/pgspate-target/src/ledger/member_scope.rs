//! Which member of a fleet has written which scope last.
//!
//! A member that replaces rows claims its scopes in the transaction that writes them. The scopes'
//! rows in the ledger stay locked until that transaction ends. So two members never write one scope
//! at the same time, and no member writes a scope of a newer generation.

use tokio_postgres::{Client, Row};

use super::job::ledger_error;
use super::member::{FleetMember, OpenMember, generation_sort};
use crate::{Error, ErrorKind, Result, TypedParameter, TypedQuery};

/// A condition: the member with the generation $2, its order $3 and the index $4 may write the
/// scope of row `w`.
const MAY_WRITE: &str = "\
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
        "select w.generation, w.member, w.generation operator(pg_catalog.=) $2 \
         from pgspate.member_scope w where w.fleet operator(pg_catalog.=) $1 \
           and w.scope operator(pg_catalog.=) any ($5) and not {MAY_WRITE} limit 1"
    );
    let (sort, scopes) = (generation_sort(&member.generation), scopes.to_vec());
    let values: [&dyn TypedParameter; 5] =
        [&member.fleet, &member.generation, &sort, &member.member, &scopes];
    let found = client.fetch_opt(&sql, &values).await.map_err(ledger_error())?;
    found.map_or(Ok(()), |row| Err(superseded_error(member, &row)))
}

fn superseded_error(member: &FleetMember, row: &Row) -> Error {
    let (generation, other): (&str, i32) = (row.get(0), row.get(1));
    if row.get(2) {
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

impl OpenMember {
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
