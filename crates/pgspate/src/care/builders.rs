//! Indexes built beside each other, in connections of their own.

use std::collections::VecDeque;
use std::sync::Mutex;

use futures_util::future::try_join_all;

use super::TableWork;
use crate::Result;
use pgspate_target::connect::Connection;

/// Connections that build at the same time, where the server's processors cannot be counted: each
/// takes `maintenance_work_mem`. Measured on two processors with three indexes of 2.4 M rows: 3.9 s
/// in three connections, 6.7 s in one, both with two parallel workers each.
pub(super) const BUILDERS_MAX: usize = 4;

/// What builds.
pub(super) struct IndexBuilders<'a> {
    pub(super) work: TableWork<'a>,
    /// What their sessions are called.
    pub(super) application_name: &'a str,
    pub(super) count: usize,
    /// A connection that is there, for the first of them.
    pub(super) first: Option<&'a Connection>,
    /// The first failure ends them all.
    pub(super) stops: bool,
}

impl IndexBuilders<'_> {
    /// Builds in the order of the `queue`, of which each has a name: the largest is best first, so
    /// that it is not the last to end. What has become of each, in any order.
    ///
    /// # Errors
    /// When nobody builds for want of a connection, or the first failure where that stops them.
    pub(super) async fn run<W, T>(
        &self,
        queue: Vec<(String, W)>,
        build: impl AsyncFn(&Connection, W) -> Result<T>,
    ) -> Result<Vec<Result<T>>> {
        let queue = Mutex::new(VecDeque::from(queue));
        let (done, names) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let builder = async |nth: usize| {
            let own = match (nth, self.first) {
                (0, Some(_)) => None,
                _ => match self.work.dsn.connect(self.application_name).await {
                    Ok(connection) => Some(connection),
                    Err(error) if nth == 0 => return Err(error),
                    // The others do the work of one for which there is no room.
                    Err(_) => return Ok(()),
                },
            };
            let Some(connection) = own.as_ref().or(self.first) else { return Ok(()) };
            loop {
                let next = queue.lock().expect("no panic while held").pop_front();
                let Some((name, work)) = next else { return Ok(()) };
                self.show(&names, |names| names.push(name.clone()));
                let built = build(connection, work).await;
                self.show(&names, |names| names.retain(|it| *it != name));
                match built {
                    Err(error) if self.stops => return Err(error),
                    built => done.lock().expect("no panic while held").push(built),
                }
            }
        };
        let ended = try_join_all((0..self.count).map(builder)).await;
        self.work.progress.set_phase(None);
        ended?;
        Ok(done.into_inner().expect("no panic while held"))
    }

    /// Shows which are being built, after a change.
    fn show(&self, names: &Mutex<Vec<String>>, change: impl FnOnce(&mut Vec<String>)) {
        let mut names = names.lock().expect("no panic while held");
        change(&mut names);
        let phase = (!names.is_empty()).then(|| format!("building {}", names.join(", ")));
        self.work.progress.set_phase(phase);
    }
}
