//! Members of fleets: one write by many processes that no driver coordinates.
//!
//! A member's row is marked as done in the transaction that makes the member's rows visible. So a
//! member that is killed at any moment is either done, or has written nothing. Generations of a
//! fleet have an order. A member that replaces rows is refused if a newer generation has written
//! the same rows, so a late retry cannot undo a newer run.

use tokio_postgres::Client;

use super::generation::{CheckedLedger, Generation};
use super::identity::{digest_texts, lock_key};
use super::job::ledger_error;
use super::{lock, schema};
use crate::{Error, ErrorKind, Result, TypedParameter, TypedQuery, quote_literal};

/// Creates the tables for fleets.
///
/// - `fleet` has a row for each generation of a fleet. `fleet.sort` orders the generations.
///   `fleet.tended` is when the work that belongs to the whole table was done, such as ANALYZE.
/// - `member` has a row for each member that has begun. `member.attempt` counts its attempts, and
///   only the latest attempt may write the row. The counts are those of the attempt that wrote.
/// - `member_scope` says which generation and member wrote a scope last.
pub(super) const CREATE_TABLES: &str = "\
create table pgspate.fleet (
    fleet text not null,
    generation text not null,
    sort text collate \"C\" not null,
    first integer not null,
    members integer not null,
    command text not null,
    table_oid oid not null,
    table_name text not null,
    role name not null default current_user,
    begun timestamptz not null default clock_timestamp(),
    tended timestamptz,
    primary key (fleet, generation));
create table pgspate.member (
    fleet text not null,
    generation text not null,
    member integer not null,
    attempt integer not null default 1,
    state text not null default 'running',
    failure text,
    started timestamptz not null default clock_timestamp(),
    finished timestamptz,
    waited_ms bigint not null,
    rows_in bigint not null default 0,
    inserted bigint not null default 0,
    updated bigint not null default 0,
    deleted bigint not null default 0,
    unchanged bigint not null default 0,
    rejected bigint not null default 0,
    wal_bytes bigint,
    primary key (fleet, generation, member));
create table pgspate.member_scope (
    fleet text not null,
    scope text not null,
    generation text not null,
    sort text collate \"C\" not null,
    member integer not null,
    primary key (fleet, scope))";

/// Policies of the tables for fleets. All roles can see them. A role may record a fleet only for a
/// table that it may write to, and members only of a fleet that is its own.
pub(super) const POLICIES: &str = "\
alter table pgspate.fleet enable row level security;
create policy look on pgspate.fleet for select using (true);
create policy record on pgspate.fleet for insert with check (role = current_user and MAY_WRITE);
create policy work on pgspate.fleet for update using (IS_OURS) with check (IS_OURS and MAY_WRITE);
create policy forget on pgspate.fleet for delete using (IS_OURS);
alter table pgspate.member enable row level security;
create policy look on pgspate.member for select using (true);
create policy work on pgspate.member using (exists (
    select from pgspate.fleet where fleet.fleet = member.fleet
        and fleet.generation = member.generation and IS_OURS));
alter table pgspate.member_scope enable row level security;
create policy look on pgspate.member_scope for select using (true);
create policy work on pgspate.member_scope using (exists (
    select from pgspate.fleet where fleet.fleet = member_scope.fleet
        and fleet.generation = member_scope.generation and IS_OURS))";

/// Which members of its generation an array of jobs has. Slurm starts some members again as an
/// array of their indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrayExtent {
    /// All members.
    All,
    /// All members, or some members of a generation that has begun.
    AllOrSome,
    /// Some members of a generation that has begun: the array's indexes have gaps.
    Some,
}

/// A member of a fleet, in one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetMember {
    /// The fleet's name.
    pub fleet: String,
    /// The generation's name. [`generation_sort`] orders the generations.
    pub generation: String,
    /// The index of the first member.
    pub first: i32,
    /// The number of members.
    pub members: i32,
    /// This member's index, from `first` on.
    pub member: i32,
    /// Which members `first` and `members` describe. If only some, these are the first of them and
    /// the number of indexes up to the last.
    pub extent: ArrayExtent,
    /// Whether the member's rows replace rows of earlier generations.
    pub replaces_rows: bool,
}

/// What a member writes to. All members of a generation write to the same table.
#[derive(Debug, Clone, Copy)]
pub struct MemberTarget<'a> {
    /// `load` or `sync`.
    pub command: &'a str,
    /// The table's name in SQL.
    pub table: &'a str,
    /// The table's oid.
    pub table_oid: u32,
}

/// Whether a session may do a member's work now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberEntry {
    /// The session holds the member's lock, and a slot if slots are limited.
    Entered,
    /// Another session works on this member.
    Occupied,
    /// Other members have taken all slots.
    NoSlot,
}

/// An attempt of a member, which the ledger has recorded.
#[derive(Debug, Clone)]
pub struct OpenMember {
    /// The member.
    pub member: FleetMember,
    /// The attempt's number, from 1 on.
    pub attempt: i32,
    /// Whether an earlier attempt has finished the member in this generation.
    pub was_done: bool,
}

/// What a member has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemberCounts {
    /// Rows of the source.
    pub rows_in: u64,
    /// Rows inserted, or loaded.
    pub inserted: u64,
    /// Rows updated.
    pub updated: u64,
    /// Rows deleted.
    pub deleted: u64,
    /// Rows that were already equal.
    pub unchanged: u64,
    /// WAL bytes of the writing statements, if known.
    pub wal_bytes: Option<u64>,
}

/// Returns a text by which generations are ordered, byte by byte. Numbers within a generation's
/// name count by value: `run-9` is older than `run-10`, and `2026-09-30` older than `2026-10-01`.
pub fn generation_sort(generation: &str) -> String {
    let mut sort = String::with_capacity(generation.len() + 8);
    let mut rest = generation;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|it: char| it.is_ascii_digit() != first.is_ascii_digit());
        let (run, later) = rest.split_at(end.unwrap_or(rest.len()));
        if first.is_ascii_digit() {
            let digits = run.trim_start_matches('0');
            // More digits make a larger number.
            sort.push_str(&format!("{:03}{digits}", digits.len()));
        } else {
            sort.push_str(run);
        }
        rest = later;
    }
    sort
}

impl FleetMember {
    /// Returns the key of the advisory lock that a session holds while it works on the member.
    pub(super) fn lock_key(&self) -> i64 {
        member_lock_key(&self.fleet, &self.generation, self.member)
    }

    /// Returns the member in words.
    pub fn name(&self) -> String {
        format!("member {} of fleet \"{}\"", self.member, self.fleet)
    }

    /// Takes one of the slots that all members of the fleet share, if `slots` are limited, and then
    /// the member's lock. The session holds both until it ends. A session that holds no slot holds
    /// no lock either. After any other result than [`MemberEntry::Entered`] the session must be
    /// closed.
    ///
    /// # Errors
    /// [`ErrorKind::Server`] if the server refuses a query. [`ErrorKind::Connect`] if the
    /// connection fails.
    pub async fn enter(&self, client: &Client, slots: Option<u32>) -> Result<MemberEntry> {
        if let Some(slots) = slots {
            let name = digest_texts(["fleet slot", &self.fleet]);
            if !lock::take_slot(client, &name, slots).await? {
                return Ok(MemberEntry::NoSlot);
            }
        }
        match lock::try_lock(client, self.lock_key()).await? {
            true => Ok(MemberEntry::Entered),
            false => Ok(MemberEntry::Occupied),
        }
    }

    /// Describes the session that works on the member, if there is one.
    pub async fn worker(&self, client: &Client) -> Result<Option<String>> {
        lock::lock_holder(client, self.lock_key()).await
    }

    /// Records an attempt of the member. Creates the ledger if it is missing, unless
    /// [`FleetMember::check_ledger`] has found it in this session: `known`.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if another role owns the fleet, or if the generation has another
    /// table, command or number of members. [`ErrorKind::Server`] if the ledger cannot be written.
    pub async fn open(
        &self,
        client: &Client,
        target: MemberTarget<'_>,
        waited: std::time::Duration,
        known: Option<&CheckedLedger>,
    ) -> Result<OpenMember> {
        let refused = |error| schema::with_grant_hint(ledger_error()(error));
        // A generation that had begun when the session entered needs no second look.
        let begun = known.and_then(|it| it.generation.as_ref());
        if let Some(generation) = begun.filter(|it| self.check_generation(it, target).is_ok())
            && let Some(open) =
                self.record_attempt(client, generation, waited).await.map_err(refused)?
        {
            return Ok(open);
        }
        if known.is_none() {
            schema::ensure_ledger(client).await?;
        }
        if self.extent != ArrayExtent::Some {
            self.record_generation(client, target).await.map_err(refused)?;
        }
        let generation = self.read_generation(client).await?;
        self.check_generation(&generation, target)?;
        let open = self.record_attempt(client, &generation, waited).await.map_err(refused)?;
        open.ok_or_else(|| self.forgotten_error())
    }

    /// Records an attempt of the member. Returns `None` if the ledger has no such generation any
    /// more.
    async fn record_attempt(
        &self,
        client: &Client,
        generation: &Generation,
        waited: std::time::Duration,
    ) -> Result<Option<OpenMember>, tokio_postgres::Error> {
        let sql = "insert into pgspate.member as m (fleet, generation, member, waited_ms) \
                   select $1, $2, $3, $4 from pgspate.fleet f \
                   where f.fleet = $1 and f.generation = $2 and f.first = $5 and f.members = $6 \
                     and f.command = $7 and f.table_name = $8 and f.table_oid = $9 \
                   on conflict (fleet, generation, member) do update \
                   set attempt = m.attempt + 1, waited_ms = m.waited_ms + excluded.waited_ms, \
                       failure = null, \
                       state = case m.state when 'done' then 'done' else 'running' end, \
                       started = case m.state when 'done' then m.started \
                                 else clock_timestamp() end \
                   returning attempt, state = 'done'";
        let Generation { first, members, command, table, table_oid } = generation;
        let waited = i64::try_from(waited.as_millis()).unwrap_or(i64::MAX);
        let values: [&dyn TypedParameter; 9] = [
            &self.fleet,
            &self.generation,
            &self.member,
            &waited,
            first,
            members,
            command,
            table,
            table_oid,
        ];
        let row = client.fetch_opt(sql, &values).await?;
        let member = FleetMember { first: *first, members: *members, ..self.clone() };
        Ok(row.map(|row| OpenMember { member, attempt: row.get(0), was_done: row.get(1) }))
    }

    /// Returns a part of the statement that finishes a job: it marks the member as done. `finished`
    /// has the job's counts of rows. No attempt is named: whoever finished the job, it is done.
    pub(super) fn finish_sql(&self) -> String {
        let [fleet, generation] = [&self.fleet, &self.generation].map(|it| quote_literal(it));
        format!(
            ", member as (update pgspate.member m set {DONE}, rows_in = finished.rows_in, \
             inserted = finished.rows_written, rejected = finished.rows_rejected from finished \
             where m.fleet = {fleet} and m.generation = {generation} and m.member = {})",
            self.member
        )
    }

    /// Returns the name of the scope that stands for the member itself.
    pub(super) fn own_scope(&self) -> String {
        format!("member {}", self.member)
    }
}

impl OpenMember {
    /// Marks the member as done, as the last statement of the transaction that writes its rows. In
    /// that session, the user's search path may be set, so operators are qualified.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if a later attempt of the member has begun. [`ErrorKind::Server`] if
    /// the ledger cannot be written.
    pub async fn finish(&self, client: &Client, counts: &MemberCounts) -> Result<()> {
        let is_repeated = self.was_done && counts.inserted + counts.updated + counts.deleted == 0;
        if is_repeated {
            return Ok(());
        }
        let [rows_in, inserted, updated, deleted, unchanged] =
            [counts.rows_in, counts.inserted, counts.updated, counts.deleted, counts.unchanged]
                .map(u64::cast_signed);
        let wal_bytes = counts.wal_bytes.map(u64::cast_signed);
        let sql = format!(
            "update pgspate.member set {DONE}, rows_in = $5, inserted = $6, updated = $7, \
                    deleted = $8, unchanged = $9, wal_bytes = $10 where {IS_ATTEMPT}"
        );
        let FleetMember { fleet, generation, member, .. } = &self.member;
        let values: [&dyn TypedParameter; 10] = [
            fleet,
            generation,
            member,
            &self.attempt,
            &rows_in,
            &inserted,
            &updated,
            &deleted,
            &unchanged,
            &wal_bytes,
        ];
        match client.run_statement(&sql, &values).await.map_err(ledger_error())? {
            1 => Ok(()),
            _ => Err(self.overtaken_error()),
        }
    }

    /// Returns the error of an attempt after which another attempt of the member has begun.
    pub(super) fn overtaken_error(&self) -> Error {
        let message = format!("another attempt of {} has begun", self.member.name());
        Error::new(ErrorKind::Ledger, message)
            .hint("`pgspate fleet NAME` shows what the members have done.")
    }

    /// Marks the attempt as failed. `failure` has no value of a row: a kind of error and SQLSTATE.
    pub async fn fail(&self, client: &Client, failure: &str) -> Result<()> {
        let sql = format!(
            "update pgspate.member set state = 'failed', failure = $5 \
             where {IS_ATTEMPT} and state operator(pg_catalog.=) 'running'"
        );
        let FleetMember { fleet, generation, member, .. } = &self.member;
        let values: [&dyn TypedParameter; 5] = [fleet, generation, member, &self.attempt, &failure];
        client.run_statement(&sql, &values).await.map(drop).map_err(ledger_error())
    }

    /// Returns whether this member must do the work that belongs to the whole table. Then all
    /// members of the generation are done, and no session has done or is doing that work. The
    /// session holds a lock until it ends, so no other session does the work at the same time.
    pub async fn must_tend(&self, client: &Client) -> Result<bool> {
        let sql = "select tended is null and members <= ( \
                       select count(*) from pgspate.member m where m.fleet = f.fleet \
                       and m.generation = f.generation and m.state = 'done') \
                   from pgspate.fleet f where fleet = $1 and generation = $2";
        let FleetMember { fleet, generation, .. } = &self.member;
        let key = lock_key(&digest_texts(["fleet is tended", fleet, generation]));
        let values: [&dyn TypedParameter; 2] = [fleet, generation];
        let must = async || -> Result<bool> {
            let row = client.fetch_opt(sql, &values).await.map_err(ledger_error())?;
            Ok(row.is_some_and(|row| row.get(0)))
        };
        // The second query sees what an earlier holder of the lock has done.
        Ok(must().await? && lock::try_lock(client, key).await? && must().await?)
    }

    /// Records that the work that belongs to the whole table is done.
    pub async fn record_tended(&self, client: &Client) -> Result<()> {
        let sql = "update pgspate.fleet set tended = clock_timestamp() \
                   where fleet = $1 and generation = $2";
        let FleetMember { fleet, generation, .. } = &self.member;
        client.run_statement(sql, &[fleet, generation]).await.map(drop).map_err(ledger_error())
    }

    /// Returns how many rows the members of the generation have inserted.
    pub async fn rows_of_generation(&self, client: &Client) -> Result<u64> {
        let sql = "select coalesce(sum(inserted), 0)::bigint from pgspate.member \
                   where fleet = $1 and generation = $2";
        let FleetMember { fleet, generation, .. } = &self.member;
        let row = client.fetch_one(sql, &[fleet, generation]).await.map_err(ledger_error())?;
        Ok(row.get::<_, i64>(0).unsigned_abs())
    }
}

/// Sets the columns of a member that is done.
pub(super) const DONE: &str = "\
state = 'done', finished = pg_catalog.clock_timestamp(), failure = null";

/// A condition: the row is that of the attempt with the parameters $1 to $4.
pub(super) const IS_ATTEMPT: &str = "\
fleet operator(pg_catalog.=) $1 and generation operator(pg_catalog.=) $2 \
and member operator(pg_catalog.=) $3 and attempt operator(pg_catalog.=) $4";

/// Returns the key of a member's advisory lock.
pub(super) fn member_lock_key(fleet: &str, generation: &str, member: i32) -> i64 {
    lock_key(&digest_texts(["fleet member", fleet, generation, &member.to_string()]))
}

#[cfg(test)]
mod tests {
    use super::generation_sort;

    #[test]
    fn generations_are_ordered_by_the_numbers_in_their_names() {
        let in_order = [
            "2025-12-31",
            "2026-09-30",
            "2026-9-30T01",
            "2026-10-01",
            "2026-10-01T23:59:59Z",
            "2026-10-02",
            "20261003",
            "run-9",
            "run-10",
            "run-10b",
        ];
        let sorts: Vec<_> = in_order.iter().map(|it| generation_sort(it)).collect();
        assert!(sorts.is_sorted_by(|a, b| a < b), "{sorts:?}");
        assert_eq!(generation_sort("007"), generation_sort("7"));
        assert!(generation_sort("0") < generation_sort("1"));
    }
}
