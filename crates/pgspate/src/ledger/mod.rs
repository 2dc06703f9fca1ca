//! The ledger: what has been done to this database, kept in the database itself.
//!
//! A chunk's row is written in the chunk's own transaction, so the ledger and the table never
//! differ, whatever dies when. Its key is the job and the chunk: a chunk that somebody has written
//! cannot be written again. Nothing else writes the schema `pgspate`.

mod bound;
mod change;
mod finished;
mod identity;
mod job;
mod keys;
mod lock;
mod new;
mod parts;
mod policies;
mod reject;
mod schema;
pub(crate) mod shadow;
mod status;
mod stream;
mod trust;

pub(crate) use bound::{begin_over, bind_stream, check_stream, is_emptied, lacks_chunks};
pub use change::{Change, outstanding};
pub(crate) use change::{
    NewChange, SETTING, adopt, claim, count_kind, forget_void, is_renamed, is_under_way, record,
};
pub(crate) use finished::emptied_sql;
pub(crate) use identity::digest;
pub use identity::{Identity, SourcePrint};
pub(crate) use job::{
    Begun, JobId, Known, clear, finish, forget_unused, is_finished, is_taken, move_to, open,
    read_done, reread_done,
};
pub use job::{Done, Found, JobRecord, Opened, Seal, find};
pub(crate) use keys::{KeysDown, check_no_keys_down, is_refused, keys_down, writer};
pub(crate) use lock::{hold, outlast_lanes, outlast_lost_lanes, share_sql};
pub(crate) use parts::PartMove;
pub(crate) use parts::read_parts;
pub use reject::RejectRecord;
pub(crate) use reject::{Reject, insert as insert_rejects, rejects};
pub(crate) use schema::{ensure, is_there, secret};
pub use status::{JobStatus, forget, list};
pub(crate) use stream::{
    DeadLetter, Mark, Stream, TRANSACTION, hold_stream, open_stream, read_mark,
};
pub use stream::{StreamStatus, forget_stream, streams};
