//! Keys of JSON records that a load has found after its sample.
//!
//! A job keeps its late keys beside its options. They are a result of reading the sources, so they
//! are not compared with the options of a later run.

use serde_json::{Map, Value};
use tokio_postgres::Client;

use super::job::{JobId, JobRecord, ledger_error};
use crate::{Result, TypedQuery};

/// The name of the late keys among the options.
const LATE_KEYS: &str = "late keys";

/// Records that the rows of a job have the column of this key.
///
/// # Errors
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the ledger cannot be written.
pub async fn record_late_key(client: &Client, job: JobId, key: &str) -> Result<()> {
    let sql = format!(
        "update pgspate.job \
         set options = jsonb_set(options, '{{{LATE_KEYS}}}', \
                                 coalesce(options -> '{LATE_KEYS}', '[]') || to_jsonb($2::text)) \
         where job = $1"
    );
    let recorded = client.run_statement(&sql, &[&job.0, &key.to_owned()]).await;
    recorded.map(drop).map_err(ledger_error())
}

/// Removes the late keys from the options of a job, and returns them.
pub(super) fn take_late_keys(options: &mut Map<String, Value>) -> Vec<String> {
    let keys = options.remove(LATE_KEYS).unwrap_or_default();
    serde_json::from_value(keys).unwrap_or_default()
}

impl JobRecord {
    /// Returns the keys that earlier runs of the job have found after the sample.
    pub fn late_keys(&self) -> Vec<String> {
        take_late_keys(&mut serde_json::from_str(&self.options).unwrap_or_default())
    }
}
