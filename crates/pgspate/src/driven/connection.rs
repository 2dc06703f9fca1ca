//! The connection of an attempt. One connection serves the whole attempt: what the attempt reads of
//! the server, its rows and its seal.
//!
//! Tasks of a job may have a limited number of connections. A task that finds all of them taken
//! disconnects before it waits. So waiting tasks hold no connections.

use std::time::Instant;

use tokio::runtime::Handle;

use super::FleetTicket;
use crate::Result;
use crate::fleet::slot_pause;
use crate::reading::LoadWatch;
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::ledger;
use pgspate_target::session::{ReconnectBackoff, WaitLimits};

/// Connects, and takes one of the connections that the job's tasks share. Waits as long as other
/// tasks have them. A server that has no connection left, or that cannot be reached, is tried again
/// for as long as `limits` say.
///
/// # Errors
/// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the server cannot be reached, or has no
/// connection left. [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) if the user stops.
pub(super) fn connect(
    ticket: &FleetTicket,
    dsn: &Dsn,
    limits: WaitLimits,
    runtime: &Handle,
    watch: &LoadWatch,
) -> Result<Connection> {
    let mut backoff = ReconnectBackoff::new(limits.retry_for);
    let looking_since = Instant::now();
    let is_cancelled = || watch.copy.is_cancelled();
    loop {
        let connected: Result<_> = runtime.block_on(async {
            let connection = dsn.connect("pgspate fleet").await?;
            let has_slot = match ticket.options.connections {
                Some(slots) => ledger::take_job_slot(&connection.client, ticket.job, slots).await?,
                None => true,
            };
            Ok((connection, has_slot))
        });
        match connected {
            Ok((connection, true)) => return Ok(connection),
            Ok((connection, false)) => {
                runtime.block_on(connection.close());
                backoff.reset();
                let pause = slot_pause(looking_since.elapsed());
                watch.copy.stop.sleep_unless_requested(pause)?;
            }
            Err(error) if error.is_retryable() && backoff.wait(is_cancelled) => {}
            Err(error) => {
                watch.copy.stop.check()?;
                return Err(error);
            }
        }
    }
}
