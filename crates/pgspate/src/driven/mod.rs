//! Jobs of distributed engines, such as Spark and Ray: the driver begins a job, tasks write parts
//! of it, and the driver completes it.
//!
//! A task may be tried again, or several times at once. Each attempt writes in a transaction of its
//! own, and its receipt names that transaction. Attempts write into the job's stage, whose rows
//! become visible at once. The driver passes the receipts of the attempts that count. Rows of all
//! other attempts are left out. If the job says so, attempts write into the table. Then the first
//! attempt of a part that succeeds is the only one.
//!
//! Each epoch of a stream is a job. Its tasks begin the job or join it, because the driver of a
//! stream cannot act before them. A repeated epoch joins the job of the first try.

mod begin;
mod complete;
mod completion_sessions;
mod connection;
mod merge;
mod part;
mod rejects;
mod staged;
mod ticket;

pub use begin::{abort, begin};
pub use complete::complete;
pub use part::write_part;
pub use ticket::{
    AbortOutcome, FleetCommit, FleetJobOptions, FleetJobReport, FleetMode, FleetReceipt,
    FleetTicket, StreamEpoch,
};
