//! Builds indexes in parallel, each in its own connection.

use std::collections::VecDeque;
use std::sync::Mutex;

use futures_util::future::try_join_all;

use super::TableWork;
use crate::Result;
use pgspate_target::connect::Connection;

/// Maximum number of connections that build at the same time, if the server's processors cannot be
/// counted. Each one uses `maintenance_work_mem`. Measured on two processors with three indexes of
/// 2.4 M rows: 3.9 s in three connections, 6.7 s in one, both with two parallel workers each.
pub(super) const BUILDERS_MAX: usize = 4;

/// The connections that build.
pub(super) struct IndexBuilders<'a> {
    pub(super) work: TableWork<'a>,
    /// Application name of their sessions.
    pub(super) application_name: &'a str,
    pub(super) count: usize,
    /// An open connection for the first builder.
    pub(super) first_connection: Option<&'a Connection>,
    /// Whether the first failure ends all builders.
    pub(super) stops_at_first_error: bool,
}

impl IndexBuilders<'_> {
    /// Builds in the order of the `queue` of names and work. The caller puts the largest first, so
    /// that it does not end last. Returns the result of each, in any order.
    ///
    /// # Errors
    /// When no connection could be opened, or the first failure if `stops_at_first_error`.
    pub(super) async fn run<W, T>(
        &self,
        queue: Vec<(String, W)>,
        build: impl AsyncFn(&Connection, W) -> Result<T>,
    ) -> Result<Vec<Result<T>>> {
        let queue = Mutex::new(VecDeque::from(queue));
        let (done, names) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let builder = async |nth: usize| {
            let own = match (nth, self.first_connection) {
                (0, Some(_)) => None,
                _ => match self.work.dsn.connect(self.application_name).await {
                    Ok(connection) => Some(connection),
                    Err(error) if nth == 0 => return Err(error),
                    // The server has no free connection for this builder. The other builders do its
                    // work.
                    Err(_) => return Ok(()),
                },
            };
            let Some(connection) = own.as_ref().or(self.first_connection) else { return Ok(()) };
            loop {
                let next = queue.lock().expect("no panic while held").pop_front();
                let Some((name, work)) = next else { return Ok(()) };
                self.update_names(&names, |names| names.push(name.clone()));
                let built = build(connection, work).await;
                self.update_names(&names, |names| names.retain(|it| *it != name));
                match built {
                    Err(error) if self.stops_at_first_error => return Err(error),
                    built => done.lock().expect("no panic while held").push(built),
                }
            }
        };
        let ended = try_join_all((0..self.count).map(builder)).await;
        self.work.progress.set_phase(None);
        ended?;
        Ok(done.into_inner().expect("no panic while held"))
    }

    /// Changes the list of names that are being built, and displays it.
    fn update_names(&self, names: &Mutex<Vec<String>>, change: impl FnOnce(&mut Vec<String>)) {
        let mut names = names.lock().expect("no panic while held");
        change(&mut names);
        let phase = (!names.is_empty()).then(|| format!("building {}", names.join(", ")));
        self.work.progress.set_phase(phase);
    }
}
