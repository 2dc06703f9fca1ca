//! Tasks in which the sessions with the nodes write, while the lanes encode.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, Sender};
use tokio::task::JoinHandle;

use super::split::ShardPiece;
use super::writer::ShardWriter;
use super::{ShardRoute, panicked};
use crate::Result;
use pgspate_target::connect::Canceller;

/// The most pieces that wait for a session.
const PIECES_WAITING_MAX: usize = 4;

/// A task for each session, which writes the pieces that lanes send.
pub(super) struct WriterTasks {
    tasks: Vec<JoinHandle<Result<ShardWriter>>>,
    cancellers: Vec<Canceller>,
}

impl WriterTasks {
    /// Starts the tasks. Returns them with the sender of each session. A task ends when its senders
    /// are dropped.
    pub(super) fn start(
        writers: Vec<ShardWriter>,
        route: &Arc<ShardRoute>,
        runtime: &Handle,
    ) -> (WriterTasks, Vec<Sender<ShardPiece>>) {
        let cancellers = writers.iter().map(|it| it.connection.canceller()).collect();
        let start = |writer: ShardWriter| {
            let (sender, receiver) = mpsc::channel(PIECES_WAITING_MAX);
            let route = Arc::clone(route);
            let writing = async move { writer.write_all(&route, receiver).await };
            (runtime.spawn(writing), sender)
        };
        let (tasks, senders) = writers.into_iter().map(start).unzip();
        (WriterTasks { tasks, cancellers }, senders)
    }

    pub(super) fn are_finished(&self) -> bool {
        self.tasks.iter().all(JoinHandle::is_finished)
    }

    /// Aborts the tasks, and cancels the statements of their sessions.
    pub(super) async fn abort(&self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        join_all(self.cancellers.iter().map(Canceller::cancel)).await;
    }

    /// Waits until all tasks have ended. Returns the sessions, whose transactions are open; `None`
    /// if a task was aborted.
    ///
    /// # Errors
    /// The error of the first session that failed.
    pub(super) async fn join(self) -> Result<Option<Vec<ShardWriter>>> {
        let mut writers = Some(Vec::with_capacity(self.tasks.len()));
        for result in join_all(self.tasks).await {
            match result {
                Ok(written) => {
                    let writer = written?;
                    if let Some(writers) = &mut writers {
                        writers.push(writer);
                    }
                }
                Err(error) if error.is_cancelled() => writers = None,
                Err(error) => return Err(panicked().because(error)),
            }
        }
        Ok(writers)
    }
}
