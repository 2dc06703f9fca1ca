//! Generations of fleets: what a member checks before it works, and what its generation's first
//! member has recorded.

use tokio_postgres::{Client, Row};

use super::job::ledger_error;
use super::member::{ArrayExtent, FleetMember, MemberTarget, generation_sort};
use super::trust::{self, TrustedLedger};
use super::{member_scope, schema};
use crate::{Error, ErrorKind, Result, TypedParameter, TypedQuery, quote_literal};

/// The ledger that a member has found and trusts.
#[derive(Debug, Clone)]
pub struct CheckedLedger {
    /// The ledger.
    pub ledger: TrustedLedger,
    /// The member's generation, if it had begun.
    pub(super) generation: Option<Generation>,
}

/// A generation, as its first member has recorded it.
#[derive(Debug, Clone)]
pub(super) struct Generation {
    pub(super) first: i32,
    pub(super) members: i32,
    pub(super) command: String,
    pub(super) table: String,
    pub(super) table_oid: u32,
}

impl Generation {
    /// Parses the columns of `row` from `at` on.
    fn of_row(row: &Row, at: usize) -> Generation {
        Generation {
            first: row.get(at),
            members: row.get(at + 1),
            command: row.get(at + 2),
            table: row.get(at + 3),
            table_oid: row.get(at + 4),
        }
    }
}

impl FleetMember {
    /// Returns the ledger that the database has, if the member's rows replace others. Otherwise the
    /// ledger is not looked up.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if a newer generation of this member is done, or if another role owns
    /// the fleet. [`ErrorKind::Server`] if the server refuses a query, [`ErrorKind::Connect`] if
    /// the connection fails.
    pub async fn check_ledger(&self, client: &Client) -> Result<Option<CheckedLedger>> {
        if !self.replaces_rows {
            return Ok(None);
        }
        let Some(ledger) = schema::find_ledger_of_any_version(client).await? else {
            return Ok(None);
        };
        if let Some(generation) = self.check_at_once(client).await? {
            return Ok(Some(CheckedLedger { ledger, generation }));
        }
        schema::check_version(client).await?;
        self.check_role(client).await?;
        member_scope::check_not_superseded(client, self, &[self.own_scope()]).await?;
        Ok(Some(CheckedLedger { ledger, generation: None }))
    }

    /// Makes the checks of [`FleetMember::check_ledger`] in one query. Returns the member's
    /// generation if it has begun; or `None` if the ledger has another version or cannot be read.
    async fn check_at_once(&self, client: &Client) -> Result<Option<Option<Generation>>> {
        let sql = format!(
            "select v.version, ({} limit 1), w.generation, w.member, \
                    f.first, f.members, f.command, f.table_name, f.table_oid \
             from pgspate.version v \
             left join pgspate.member_scope w on w.fleet = $1 and w.scope = $5 and not {} \
             left join pgspate.fleet f on f.fleet = $1 and f.generation = $2",
            trust::untrusted_role_sql("pgspate.fleet r where r.fleet = $1"),
            member_scope::MAY_WRITE
        );
        let (sort, scope) = (generation_sort(&self.generation), self.own_scope());
        let values: [&dyn TypedParameter; 5] =
            [&self.fleet, &self.generation, &sort, &self.member, &scope];
        let found = client.fetch_opt(&sql, &values).await;
        let Ok(Some(row)) = found else { return Ok(None) };
        if row.get::<_, i32>(0) != schema::VERSION {
            return Ok(None);
        }
        if let Some(role) = row.get::<_, Option<&str>>(1) {
            return Err(self.role_error(role));
        }
        if let Some(newer) = row.get::<_, Option<&str>>(2) {
            return Err(member_scope::superseded_error(self, newer, row.get(3)));
        }
        let has_begun = row.get::<_, Option<i32>>(4).is_some();
        Ok(Some(has_begun.then(|| Generation::of_row(&row, 4))))
    }

    /// Refuses a fleet of an untrusted role, since that role controls which members count as done.
    async fn check_role(&self, client: &Client) -> Result<()> {
        let fleet = &self.fleet;
        let rows = format!("pgspate.fleet where fleet = {}", quote_literal(fleet));
        match trust::untrusted_role(client, &rows).await? {
            Some(role) => Err(self.role_error(&role)),
            None => Ok(()),
        }
    }

    fn role_error(&self, role: &str) -> Error {
        let message = format!("fleet \"{}\" belongs to role \"{role}\"", self.fleet);
        Error::new(ErrorKind::Ledger, message)
            .hint("Run the members as that role, or name another fleet with `--fleet NAME`.")
    }

    /// Records the member's generation, if no member of it has begun.
    pub(super) async fn record_generation(
        &self,
        client: &Client,
        target: MemberTarget<'_>,
    ) -> std::result::Result<u64, tokio_postgres::Error> {
        let sort = generation_sort(&self.generation);
        let MemberTarget { command, table, table_oid } = target;
        let sql = "insert into pgspate.fleet \
                   (fleet, generation, sort, first, members, command, table_oid, table_name) \
                   values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict do nothing";
        let values: [&dyn TypedParameter; 8] = [
            &self.fleet,
            &self.generation,
            &sort,
            &self.first,
            &self.members,
            &command,
            &table_oid,
            &table,
        ];
        client.run_statement(sql, &values).await
    }

    /// Reads the member's generation, and checks that the fleet belongs to a trusted role.
    pub(super) async fn read_generation(&self, client: &Client) -> Result<Generation> {
        let sql = format!(
            "select first, members, command, table_name, table_oid, ({} limit 1) \
             from pgspate.fleet where fleet = $1 and generation = $2",
            trust::untrusted_role_sql("pgspate.fleet f where f.fleet = $1")
        );
        let values: [&dyn TypedParameter; 2] = [&self.fleet, &self.generation];
        let Some(row) = client.fetch_opt(&sql, &values).await.map_err(ledger_error())? else {
            return Err(self.forgotten_error());
        };
        match row.get::<_, Option<&str>>(5) {
            Some(role) => Err(self.role_error(role)),
            None => Ok(Generation::of_row(&row, 0)),
        }
    }

    /// Returns the error of a member whose generation the ledger does not have.
    pub(super) fn forgotten_error(&self) -> Error {
        let generation = self.generation_name();
        let (message, hint) = match self.extent {
            ArrayExtent::Some => (
                format!("{generation} has not begun, and the indexes of this array have gaps"),
                "Begin with consecutive indexes: `--array=0-99`, without a step. Any of its \
                 members can run again later.",
            ),
            _ => (format!("{generation} was forgotten"), "Run the member again."),
        };
        Error::new(ErrorKind::Ledger, message).hint(hint)
    }

    fn generation_name(&self) -> String {
        format!("generation {} of fleet \"{}\"", self.generation, self.fleet)
    }

    /// Checks that this member's options fit its generation.
    pub(super) fn check_generation(
        &self,
        begun: &Generation,
        target: MemberTarget<'_>,
    ) -> Result<()> {
        let refuse = |message: String, hint: &str| {
            Err(Error::new(ErrorKind::Ledger, message).hint(hint.to_owned()))
        };
        let generation = self.generation_name();
        let Generation { first, members, command, table, table_oid } = begun;
        let (first, members) = (*first, *members);
        let is_part = self.extent != ArrayExtent::All
            && first <= self.first
            && self.first + self.members <= first + members;
        if (first, members) != (self.first, self.members) && !is_part {
            return refuse(
                format!(
                    "{generation} has members {first} to {}, not {} to {}",
                    first + members - 1,
                    self.first,
                    self.first + self.members - 1
                ),
                "Give all members of a generation the same `--members`.",
            );
        }
        if (command.as_str(), table.as_str()) != (target.command, target.table) {
            return refuse(
                format!(
                    "{generation} is a {command} of {table}, not a {} of {}",
                    target.command, target.table
                ),
                "Name another fleet for another command or table with `--fleet NAME`.",
            );
        }
        if *table_oid != target.table_oid {
            return refuse(
                format!("{table} was created again after {generation} began"),
                "Run all members again under a new `--generation`.",
            );
        }
        Ok(())
    }
}
