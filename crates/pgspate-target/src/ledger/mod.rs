//! The ledger: what has been done to this database, kept in the database itself.
//!
//! A chunk's row is written in the chunk's own transaction, so the ledger and the table never
//! differ, whatever dies when. Its key is the job and the chunk: a chunk that somebody has written
//! cannot be written again. Nothing else writes the schema `pgspate`.

mod bound;
mod change;
mod finished;
mod forgotten;
mod identity;
mod job;
mod keys;
mod lock;
mod new;
mod parts;
mod policies;
mod reject;
mod schema;
pub mod shadow;
mod status;
mod stream;
mod trust;

pub use bound::{begin_over, bind_stream, check_stream, is_emptied, lacks_chunks};
pub use change::{
    Change, NewChange, SETTING, adopt, claim, count_kind, forget_void, is_renamed, is_under_way,
    outstanding, record,
};
pub use finished::emptied_sql;
pub use forgotten::{clear, forget_unused};
pub use identity::{Identity, SourcePrint, digest};
pub use job::{
    Begun, Done, Found, JobId, JobRecord, Known, Opened, Seal, find, finish, is_finished, is_taken,
    move_to, open, read_done, reread_done,
};
pub use keys::{KeysDown, check_no_keys_down, is_refused, keys_down, writer};
pub use lock::{hold, outlast_lost_lanes, share_sql};
pub use parts::{PartMove, read_parts};
pub use reject::{Reject, RejectRecord, insert as insert_rejects, rejects};
pub use schema::{ensure, is_there, secret};
pub use status::{JobStatus, forget, list};
pub use stream::{
    DeadLetter, Mark, Stream, StreamStatus, TRANSACTION, forget_stream, hold_stream, open_stream,
    read_mark, streams,
};
