//! Reports what the members of a fleet have done, for `pgspate fleet` and `pgspate status`.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio_postgres::{Client, Row};

use super::job::ledger_error;
use super::member::member_lock_key;
use super::{lock, schema};
use crate::{Error, ErrorKind, Result, TypedParameter, TypedQuery};

/// What the members of one generation of a fleet have done.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FleetReport {
    /// The fleet's name.
    pub fleet: String,
    /// The generation's name.
    pub generation: String,
    /// `load` or `sync`.
    pub command: String,
    /// The table's name in SQL.
    pub table: String,
    /// Number of members.
    pub members: usize,
    /// Members that are done.
    pub done: usize,
    /// Indexes of members on which a session works.
    pub running: Vec<i32>,
    /// Members whose last attempt has failed, or whose session has ended before the member was
    /// done.
    pub failed: Vec<FailedMember>,
    /// Indexes of members that have not begun.
    pub missing: Vec<i32>,
    /// Rows of all sources.
    pub rows_in: u64,
    /// Rows inserted, or loaded.
    pub inserted: u64,
    /// Rows updated.
    pub updated: u64,
    /// Rows deleted.
    pub deleted: u64,
    /// Rows that were already equal.
    pub unchanged: u64,
    /// Rows rejected.
    pub rejected: u64,
    /// WAL bytes of the writing statements, as far as they are known.
    pub wal_bytes: u64,
    /// Attempts of all members.
    pub attempts: u64,
    /// When the first member began.
    pub begun: String,
    /// When the last member was done; `None` if no member is done.
    pub ended: Option<String>,
    /// Seconds from the first begin to the last end.
    pub seconds: f64,
    /// Seconds of work, added up over the members.
    pub busy_seconds: f64,
    /// Seconds of waiting for a slot of `--connections`, added up over the members.
    pub waited_seconds: f64,
    /// The member that took longest.
    pub slowest: Option<SlowestMember>,
    /// Whether the work that belongs to the whole table is done, such as ANALYZE.
    pub tended: bool,
}

/// A member that has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailedMember {
    /// The member's index.
    pub member: i32,
    /// Attempts so far.
    pub attempts: i32,
    /// The kind of error and its SQLSTATE; or that the session has ended.
    pub failure: String,
}

/// The member that took longest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlowestMember {
    /// The member's index.
    pub member: i32,
    /// Seconds of its successful attempt.
    pub seconds: f64,
}

impl FleetReport {
    /// Returns whether all members are done.
    pub fn is_complete(&self) -> bool {
        self.done == self.members
    }
}

const GENERATION: &str = "\
select f.generation, f.command, f.table_name, f.first, f.members, f.tended is not null,
       f.begun::timestamptz(0)::text, max(m.finished)::timestamptz(0)::text,
       coalesce(extract(epoch from max(m.finished) - f.begun), 0)::float8
from pgspate.fleet f left join pgspate.member m using (fleet, generation)
where f.fleet = $1 and ($2::text is null or f.generation = $2)
group by f.fleet, f.generation order by f.sort desc, f.begun desc limit 1";

const MEMBERS: &str = "\
select member, attempt, state, failure, waited_ms,
       coalesce(extract(epoch from finished - started), 0)::float8,
       rows_in, inserted, updated, deleted, unchanged, rejected, coalesce(wal_bytes, 0)
from pgspate.member where fleet = $1 and generation = $2 order by member";

/// Reads the report of a generation of a fleet, by default of the newest one.
///
/// # Errors
/// [`ErrorKind::Ledger`] if there is no such fleet or generation. [`ErrorKind::Server`] if the
/// ledger cannot be read.
pub async fn read_fleet(
    client: &Client,
    fleet: &str,
    generation: Option<&str>,
) -> Result<FleetReport> {
    if !schema::check_exists(client).await? {
        return Err(unknown_fleet_error(fleet, generation));
    }
    let asked = generation.map(str::to_owned);
    let values: [&dyn TypedParameter; 2] = [&fleet, &asked];
    let row = client.fetch_opt(GENERATION, &values).await.map_err(ledger_error())?;
    let row = row.ok_or_else(|| unknown_fleet_error(fleet, generation))?;
    let (first, members): (i32, i32) = (row.get(3), row.get(4));
    let mut report = FleetReport {
        fleet: fleet.to_owned(),
        generation: row.get(0),
        command: row.get(1),
        table: row.get(2),
        members: usize::try_from(members).unwrap_or_default(),
        tended: row.get(5),
        begun: row.get(6),
        ended: row.get(7),
        seconds: row.get(8),
        ..FleetReport::default()
    };
    let values: [&dyn TypedParameter; 2] = [&fleet, &report.generation];
    let rows = client.fetch_all(MEMBERS, &values).await.map_err(ledger_error())?;
    let mut missing: Vec<i32> = (first..first + members).collect();
    let mut open = BTreeMap::new();
    for row in &rows {
        let member: i32 = row.get(0);
        missing.retain(|it| *it != member);
        report.add(row);
        if row.get::<_, &str>(2) != "done" {
            open.insert(member, row);
        }
    }
    report.missing = missing;
    let names: Vec<i32> = open.keys().copied().collect();
    report.running = running_members(client, &report, &names).await?;
    for (member, row) in open {
        if !report.running.contains(&member) {
            let failure: Option<String> = row.get(3);
            let failure = failure.unwrap_or_else(|| "its session has ended".to_owned());
            report.failed.push(FailedMember { member, attempts: row.get(1), failure });
        }
    }
    Ok(report)
}

impl FleetReport {
    /// Adds what one member has done.
    fn add(&mut self, row: &Row) {
        let number = |column: usize| row.get::<_, i64>(column).unsigned_abs();
        let seconds: f64 = row.get(5);
        let member: i32 = row.get(0);
        self.attempts += u64::from(row.get::<_, i32>(1).unsigned_abs());
        self.waited_seconds += number(4) as f64 / 1000.0;
        if row.get::<_, &str>(2) != "done" {
            return;
        }
        self.done += 1;
        self.busy_seconds += seconds;
        self.rows_in += number(6);
        self.inserted += number(7);
        self.updated += number(8);
        self.deleted += number(9);
        self.unchanged += number(10);
        self.rejected += number(11);
        self.wal_bytes += number(12);
        if self.slowest.as_ref().is_none_or(|it| it.seconds < seconds) {
            self.slowest = Some(SlowestMember { member, seconds });
        }
    }
}

/// Returns those of the members on which a session works.
async fn running_members(
    client: &Client,
    report: &FleetReport,
    members: &[i32],
) -> Result<Vec<i32>> {
    let key = |member: &i32| member_lock_key(&report.fleet, &report.generation, *member);
    let keys: Vec<i64> = members.iter().map(key).collect();
    let held = lock::held_keys(client, &keys).await?;
    let is_held = |member: &i32| held.contains(&key(member));
    Ok(members.iter().copied().filter(is_held).collect())
}

/// Reads the newest generation of each fleet, in the order of their names. Empty without a ledger.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read.
pub async fn list_fleets(client: &Client) -> Result<Vec<FleetReport>> {
    if !schema::check_exists(client).await? {
        return Ok(Vec::new());
    }
    let sql = "select distinct fleet from pgspate.fleet order by fleet";
    let names = client.fetch_all(sql, &[]).await.map_err(ledger_error())?;
    let mut reports = Vec::with_capacity(names.len());
    for row in names {
        reports.push(read_fleet(client, row.get(0), None).await?);
    }
    Ok(reports)
}

/// Forgets a generation of a fleet, or the whole fleet. Its rows stay in the table. Scopes that the
/// generation has written can be written by any generation again.
///
/// # Errors
/// [`ErrorKind::Ledger`] if there is no such fleet or generation. [`ErrorKind::Server`] if the
/// ledger cannot be written.
pub async fn forget_fleet(client: &Client, fleet: &str, generation: Option<&str>) -> Result<()> {
    read_fleet(client, fleet, generation).await?;
    let sql = "with scopes as ( \
                   delete from pgspate.member_scope \
                   where fleet = $1 and ($2::text is null or generation = $2)), \
               members as ( \
                   delete from pgspate.member \
                   where fleet = $1 and ($2::text is null or generation = $2)) \
               delete from pgspate.fleet \
               where fleet = $1 and ($2::text is null or generation = $2)";
    let asked = generation.map(str::to_owned);
    client.run_statement(sql, &[&fleet, &asked]).await.map(drop).map_err(ledger_error())
}

fn unknown_fleet_error(fleet: &str, generation: Option<&str>) -> Error {
    let message = match generation {
        None => format!("the ledger of this database has no fleet \"{fleet}\""),
        Some(generation) => format!(
            "the ledger of this database has no generation {generation} of fleet \"{fleet}\""
        ),
    };
    Error::new(ErrorKind::Ledger, message).hint("`pgspate status` lists all fleets.")
}
