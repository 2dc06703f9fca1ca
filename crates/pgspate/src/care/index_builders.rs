//! Builds indexes in parallel, over several connections.

use std::collections::VecDeque;
use std::sync::Mutex;

use futures_util::future::join_all;

use super::TableWork;
use crate::{Error, Result};
use pgspate_target::connect::Connection;
use pgspate_target::session::cancel_when;

/// Maximum number of connections that build at the same time. Each connection uses up to
/// `maintenance_work_mem`. Measured on two processors with three indexes of 2.4 M rows, and with
/// two parallel workers per connection: 3.9 s in three connections, 6.7 s in one connection.
pub(super) const BUILDERS_MAX: usize = 4;

/// Settings of the connections that build indexes.
pub(super) struct IndexBuilders<'a> {
    pub(super) work: TableWork<'a>,
    /// Application name of the builders' sessions.
    pub(super) application_name: &'a str,
    /// Number of builders.
    pub(super) count: usize,
    /// An open connection for the first builder.
    pub(super) first_connection: Option<&'a Connection>,
    /// Whether the first failed build cancels the other builds.
    pub(super) stops_at_first_error: bool,
}

impl IndexBuilders<'_> {
    /// Builds the indexes of `queue` (names and work) in this order. The caller puts the largest
    /// index first, so that the other builders are not idle at the end. Returns the result of each
    /// build, in any order.
    ///
    /// # Errors
    /// If the first connection cannot be opened. With `stops_at_first_error`, also the first failed
    /// build. No build is running any more then.
    pub(super) async fn run<W, T>(
        &self,
        queue: Vec<(String, W)>,
        build: impl AsyncFn(&Connection, W) -> Result<T>,
    ) -> Result<Vec<Result<T>>> {
        let queue = Mutex::new(VecDeque::from(queue));
        let (done, names) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        // The error that ends all builders. The builds that it cancels have errors of their own.
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let is_over = || failure.lock().expect("no panic while held").is_some();
        let end_with = |error| {
            failure.lock().expect("no panic while held").get_or_insert(error);
        };
        let builder = async |ordinal: usize| {
            let new_connection = match (ordinal, self.first_connection) {
                (0, Some(_)) => None,
                _ => match self.work.dsn.connect(self.application_name).await {
                    Ok(connection) => Some(connection),
                    Err(error) if ordinal == 0 => return end_with(error),
                    // The server has no free connection for this builder. The other builders do its
                    // work.
                    Err(_) => return,
                },
            };
            let Some(connection) = new_connection.as_ref().or(self.first_connection) else {
                return;
            };
            while !is_over() {
                let next = queue.lock().expect("no panic while held").pop_front();
                let Some((name, work)) = next else { return };
                self.update_names(&names, |names| names.push(name.clone()));
                let sessions = [connection.canceller()];
                let built = cancel_when(is_over, &sessions, build(connection, work)).await;
                self.update_names(&names, |names| names.retain(|it| *it != name));
                match built {
                    Err(error) if self.stops_at_first_error => return end_with(error),
                    built => done.lock().expect("no panic while held").push(built),
                }
            }
        };
        join_all((0..self.count).map(builder)).await;
        self.work.progress.set_phase(None);
        match failure.into_inner().expect("no panic while held") {
            Some(error) => Err(error),
            None => Ok(done.into_inner().expect("no panic while held")),
        }
    }

    /// Changes the list of indexes that are being built, and displays the list.
    fn update_names(&self, names: &Mutex<Vec<String>>, change: impl FnOnce(&mut Vec<String>)) {
        let mut names = names.lock().expect("no panic while held");
        change(&mut names);
        let phase = (!names.is_empty()).then(|| format!("building {}", names.join(", ")));
        self.work.progress.set_phase(phase);
    }
}
