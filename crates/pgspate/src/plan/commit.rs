//! Chooses when a load commits.

use super::{InputFacts, PlanRequest};
use crate::copy::Commit;
use crate::{Error, ErrorKind, Result};

/// A load of fewer stored bytes takes seconds, so it commits once and leaves nothing behind if it
/// fails. In a larger load, the rows written so far are worth keeping.
const COMMIT_AT_END_BYTES_MAX: u64 = 1 << 30;

/// Chooses when to commit, as the user asked or by the size of the input.
pub(super) fn choose_commit(
    input: &InputFacts,
    request: &PlanRequest,
    has_ledger: bool,
    one_statement: bool,
) -> Result<Commit> {
    if request.rejects {
        return Ok(Commit::EachChunk);
    }
    match request.options.commit {
        Some(Commit::EachChunk) if !has_ledger => {
            let why = if input.is_for_this_run_only {
                "the input cannot be read again later"
            } else {
                "there is no ledger to record them"
            };
            let message = format!("chunks cannot be committed one by one: {why}");
            Err(Error::new(ErrorKind::Usage, message).hint("Leave `--commit chunk` out."))
        }
        Some(Commit::EachChunk) if one_statement => {
            let message =
                "chunks cannot be committed one by one: the table needs one COPY statement";
            Err(Error::new(ErrorKind::Plan, message).hint("Leave `--commit chunk` out."))
        }
        Some(commit) => Ok(commit),
        None if !has_ledger || one_statement => Ok(Commit::AtEnd),
        // An input of unknown size may be large.
        None if input.stored_bytes.is_none_or(|bytes| bytes >= COMMIT_AT_END_BYTES_MAX) => {
            Ok(Commit::EachChunk)
        }
        None => Ok(Commit::AtEnd),
    }
}

/// Checks that rejected rows can be set aside. Rows are set aside chunk by chunk and kept in the
/// ledger. `one_statement` is the reason why the table needs a single COPY statement, if it does.
pub(super) fn check_rejects(request: &PlanRequest, one_statement: Option<&str>) -> Result<()> {
    let (why, hint) = match one_statement {
        Some(why) => (why, "Load without `--rejects`: the error names the first refused row."),
        None if request.options.commit == Some(Commit::AtEnd) => {
            ("each chunk must be committed on its own", "Leave `--commit end` out.")
        }
        None if request.options.no_ledger => {
            ("rejected rows are kept in the ledger", "Leave `--no-ledger` out.")
        }
        None => return Ok(()),
    };
    let message = format!("rows cannot be set aside: {why}");
    Err(Error::new(ErrorKind::Usage, message).hint(hint))
}
