//! The ledger: the record of what pgspate did to this database, kept in the database itself.
//!
//! A chunk's ledger row is written in the chunk's own transaction. So ledger and table always
//! agree, even after a crash. The row's key is the job and the chunk, so no chunk can be written
//! twice. Only this module writes to the schema `pgspate`.

mod change;
mod dropped_keys;
mod emptied;
mod fleet_end;
mod fleet_epoch;
mod fleet_job;
mod fleet_reject;
mod fleet_stage;
mod fleet_status;
mod forget;
mod found_jobs;
mod generation;
mod identity;
mod job;
mod known_files;
mod late_keys;
mod lock;
mod lookup;
mod member;
mod member_scope;
mod new_job;
mod open;
mod partitions;
mod policies;
mod record_writers;
mod reject;
mod request;
mod schema;
pub mod shadow;
mod source_file;
mod status;
mod stream;
mod stream_files;
mod trust;
mod unlogged;

pub use change::{
    NewChange, RecordedChange, SETTING_CHANGE, adopt_changes, claim_changes,
    forget_changes_of_dropped_tables, has_outstanding_on, is_job_running, is_table_renamed,
    mark_kind_restored, outstanding_changes, record_changes,
};
pub use dropped_keys::{
    DroppedKeys, check_no_dropped_keys, check_no_dropped_keys_in_transaction, dropped_keys,
    is_refused_for_dropped_keys, other_writer,
};
pub use emptied::record_emptied_sql;
pub use fleet_end::{
    abandoned_fleet_jobs, drop_stage, fence_off, fleet_job_of_other_role, keeps_committed_parts,
};
pub use fleet_epoch::{EpochOfStream, join_epoch};
pub use fleet_job::{
    BegunFleetJob, FleetDestination, JobAndWarning, LockedFleetJob, NewFleetJob, NewPart,
    SealedPart, begin_fleet_job, complete_fleet_job, find_part, fleet_job_table,
    is_fleet_job_emptied, is_fleet_job_open, is_part_sealed, lock_fence, lock_fleet_job,
    move_fleet_jobs, read_parts, seal_part, take_job_slot,
};
pub use fleet_reject::{ATTEMPT_COLUMN, insert_attempt_rejects, keep_rejects};
pub use fleet_stage::{create_job_stage, end_writers, has_stage_types, stage_columns, stage_name};
pub use fleet_status::{
    FailedMember, FleetReport, SlowestMember, forget_fleet, list_fleets, read_fleet,
};
pub use forget::{forget_chunks_and_shadow, forget_unused_job};
pub use generation::CheckedLedger;
pub use identity::{EmptyTable, JobIdentity, RowsIn, digest_texts};
pub use job::{
    ChunkRecord, ChunkRecorder, JobId, JobRecord, OpenJob, WrittenChunks, finish_job,
    is_chunk_recorded, is_job_finished, is_refused_for_altered_table, is_refused_for_emptied_table,
    is_refused_for_replaced_table, move_job_to, read_written_chunks, reread_written_chunks,
};
pub use known_files::{FileState, KnownFiles, LoadedFile};
pub use late_keys::record_late_key;
pub use lock::{end_lost_lanes, hold_job_lock, share_lanes_lock_sql};
pub use lookup::{FinishedJobs, JobLookup, LedgerState};
pub use member::{
    ArrayExtent, FleetMember, MemberCounts, MemberEntry, MemberTarget, OpenMember, generation_sort,
};
pub use open::{OpenOptions, OpenOutcome, open_job};
pub use partitions::{PartitionMove, find_stream_of_topics, read_partitions};
pub use record_writers::{
    KEYS_DROPPED, check_no_dropped_keys_for_writers, exclude_record_writers, join_record_writers,
};
pub use reject::{Reject, RejectRecord, insert_rejects, read_rejects};
pub use request::{
    AnsweredRequest, find_request, prune_requests, record_request_sql, record_written_request_sql,
};
pub use schema::{ensure_ledger, ledger_exists, read_url_key};
pub use source_file::SourceFingerprint;
pub use status::{JobStatus, forget_aborted_job, forget_job, list_jobs};
pub use stream::{
    AppliedStream, DeadLetter, IS_BEFORE_MOVE, OwnedParameters, StreamPosition, StreamStatus,
    TRANSACTION_SETTING, advance_if_sql, forget_stream, hold_stream, list_streams, open_stream,
    read_stream_position,
};
pub use stream_files::{find_stream_of_files, record_stream_files};
pub use trust::TrustedLedger;
pub use unlogged::{
    bind_stream, check_stream_not_emptied, is_emptied_by_crash, missing_chunks_error,
    restart_emptied_job,
};
