//! Opens a member's session: with the member's lock, and with one of the slots that limit the
//! connections of all members.
//!
//! A member that finds no free slot disconnects before it waits, so that waiting members hold no
//! connections. It waits as long as other members work: an array can take hours. Too many
//! connections on the server, and another session on the same member, are waited for up to
//! `--retry-for`.

use std::time::{Duration, Instant};

use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::ledger::{
    CheckedLedger, FleetMember, MemberEntry, MemberTarget, OpenMember, TrustedLedger,
};
use pgspate_target::session::{ReconnectBackoff, StopFlag, WaitLimits};
use tokio::runtime::Handle;
use tokio_postgres::Client;

use crate::{Error, ErrorKind, Result};

/// The shortest and the longest pause before a member looks for a free slot again. The pause grows
/// with the time that the member has waited: 300 members that look every 5 seconds connect 60 times
/// a second.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// The pause is this part of the time that the member has waited.
const PAUSE_PART: u32 = 8;

/// A member, and how its sessions begin.
#[derive(Debug, Clone)]
pub(crate) struct FleetEntry {
    pub(crate) member: FleetMember,
    /// The number of members that may work at the same time; `None` for no limit.
    slots: Option<u32>,
    /// How long the member has waited for a slot.
    waited: Duration,
    /// The ledger that the member's session has found and trusts.
    ledger: Option<CheckedLedger>,
    /// Whether other members had all slots when this member last looked.
    lacks_slot: bool,
    /// Ends the waiting if a stop is requested.
    stop: StopFlag,
}

impl FleetEntry {
    pub(super) fn new(member: FleetMember, slots: Option<u32>, stop: StopFlag) -> FleetEntry {
        let waited = Duration::ZERO;
        FleetEntry { member, slots, waited, ledger: None, lacks_slot: false, stop }
    }

    /// Returns how long the member has waited for a slot.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns the ledger that the member's session has found and trusts.
    pub(crate) fn ledger(&self) -> Option<TrustedLedger> {
        self.ledger.as_ref().map(|it| it.ledger)
    }

    /// Returns whether other members had all slots when this member last looked.
    pub(crate) fn lacks_slot(&self) -> bool {
        self.lacks_slot
    }

    /// Records an attempt of the member, in the member's session.
    ///
    /// # Errors
    /// The errors of [`FleetMember::open`].
    pub(crate) async fn open(
        &self,
        client: &Client,
        target: MemberTarget<'_>,
    ) -> Result<OpenMember> {
        self.member.open(client, target, self.waited, self.ledger.as_ref()).await
    }

    /// Opens a session that holds the member's lock and a slot. Blocks until there is one.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] if the server cannot be reached. [`ErrorKind::Ledger`] if another
    /// session works on the member for too long, or if a newer generation is done.
    /// [`ErrorKind::Cancelled`] if a stop is requested.
    pub(crate) fn connect(
        &mut self,
        dsn: &Dsn,
        limits: WaitLimits,
        runtime: &Handle,
    ) -> Result<Connection> {
        let mut backoff = ReconnectBackoff::new(limits.retry_for);
        let mut looking_since: Option<Instant> = None;
        let stop = self.stop.clone();
        loop {
            stop.check()?;
            let entered = runtime.block_on(self.try_connect(dsn));
            match entered {
                Ok((connection, MemberEntry::Entered)) => {
                    self.waited += looking_since.map_or(Duration::ZERO, |since| since.elapsed());
                    return Ok(connection);
                }
                Ok((connection, MemberEntry::NoSlot)) => {
                    runtime.block_on(connection.close());
                    let since = *looking_since.get_or_insert_with(Instant::now);
                    backoff.reset();
                    stop.sleep_unless_requested(slot_pause(since.elapsed()))?;
                }
                Ok((connection, MemberEntry::Occupied)) => {
                    let worker = runtime.block_on(self.member.worker(&connection.client));
                    runtime.block_on(connection.close());
                    if !backoff.wait(|| stop.is_requested()) {
                        stop.check()?;
                        return Err(self.occupied_error(worker?));
                    }
                }
                Err(error) if error.is_retryable() => {
                    if !backoff.wait(|| stop.is_requested()) {
                        stop.check()?;
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn try_connect(&mut self, dsn: &Dsn) -> Result<(Connection, MemberEntry)> {
        let connection = dsn.connect("pgspate fleet").await?;
        let entry = self.enter(&connection).await?;
        Ok((connection, entry))
    }

    async fn enter(&mut self, connection: &Connection) -> Result<MemberEntry> {
        let client = &connection.client;
        self.lacks_slot = false;
        self.ledger = self.member.check_ledger(client).await?;
        let entry = self.member.enter(client, self.slots).await?;
        self.lacks_slot = entry == MemberEntry::NoSlot;
        Ok(entry)
    }

    /// Takes the member's lock and a slot in a new session, after the member's session was lost.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`], which is retryable, if the lock or a slot is not free yet.
    pub(crate) async fn enter_again(&mut self, connection: &Connection) -> Result<()> {
        match self.enter(connection).await? {
            MemberEntry::Entered => Ok(()),
            MemberEntry::NoSlot | MemberEntry::Occupied => {
                let message = format!("{} waits for its lock or for a slot", self.member.name());
                Err(Error::new(ErrorKind::Connect, message))
            }
        }
    }

    fn occupied_error(&self, worker: Option<String>) -> Error {
        let worker = worker.unwrap_or_else(|| "another session".to_owned());
        let message = format!("{} is running in {worker}", self.member.name());
        Error::new(ErrorKind::Ledger, message).hint(
            "Wait until that session ends, or wait longer with `--retry-for`. Then run the member \
             again.",
        )
    }
}

/// Returns the pause before the next look for a slot, after the time `waited`. The pause is random,
/// so that processes do not connect at the same moment.
pub(crate) fn slot_pause(waited: Duration) -> Duration {
    let [shortest, longest] = PAUSES;
    let pause = (waited / PAUSE_PART).clamp(shortest, longest);
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), waited);
    pause.mul_f64(0.5 + (random % 1024) as f64 / 1024.0)
}
