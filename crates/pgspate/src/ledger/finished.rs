//! Jobs that are finished: whether one of them has loaded the sources as they are now.

use tokio_postgres::Client;

use super::identity::{Identity, Likeness};
use super::job::{Found, JobRecord, is_void};
use crate::Result;
use crate::format::Contents;

/// Tells whether one of these jobs, which are finished, has loaded the sources.
///
/// # Errors
/// Of [`Kind::Ledger`] when one has loaded a part of what they hold now, or the same otherwise.
pub(super) async fn find_finished(
    client: &Client,
    identity: &Identity,
    records: Vec<JobRecord>,
) -> Result<Found> {
    let is_counted = |record: &JobRecord| record.table_oid == identity.table_oid;
    let records: Vec<_> = records.into_iter().filter(is_counted).collect();
    // Replacing once more is what was asked for.
    if records.is_empty() || identity.replaces() || is_void(client, identity).await? {
        return Ok(Found::Nothing);
    }
    let fingerprint = identity.fingerprint();
    for record in records {
        let is_same = record.fingerprint == fingerprint;
        match identity.likeness(&record.sources, &record.options) {
            Likeness::Same if is_same => return Ok(Found::Finished(record)),
            Likeness::Another => identity.check_new(&record)?,
            Likeness::Same | Likeness::Unsure => return Ok(Found::Alike(record)),
        }
    }
    Ok(Found::Nothing)
}

impl JobRecord {
    /// Whether all that it has read of its sources is what is read of them now.
    pub(crate) fn has_read(&self, identity: &Identity, contents: &Contents) -> bool {
        identity.has_contents(&self.sources, contents)
    }
}
