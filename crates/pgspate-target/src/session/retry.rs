//! How long and how often pgspate retries after it has lost the server.

use std::time::{Duration, Instant};

use super::stop::sleep_unless;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The pauses between retries. Each pause is twice as long as the one before it, up to 5 seconds.
/// The total time is limited.
#[derive(Debug, Clone)]
pub struct ReconnectBackoff {
    limit: Duration,
    /// When the first retry after the last success began.
    retrying_since: Option<Instant>,
    pause: Duration,
}

impl ReconnectBackoff {
    /// Returns a backoff that allows retries for `limit`, counted from the first retry after the
    /// last success.
    pub fn new(limit: Duration) -> ReconnectBackoff {
        ReconnectBackoff { limit, retrying_since: None, pause: FIRST_PAUSE }
    }

    /// Restarts the time limit after a success.
    pub fn reset(&mut self) {
        *self = ReconnectBackoff::new(self.limit);
    }

    /// Restarts the time limit, and keeps the pause between retries.
    pub fn restart_limit(&mut self) {
        self.retrying_since = None;
    }

    /// Blocks the thread until the next retry. Returns false if the time limit has passed, or as
    /// soon as `should_stop` is true.
    pub fn wait(&mut self, should_stop: impl Fn() -> bool) -> bool {
        self.next_pause().is_some_and(|pause| sleep_unless(pause, should_stop))
    }

    /// Returns the pause before the next retry, or `None` if the time limit has passed.
    pub fn next_pause(&mut self) -> Option<Duration> {
        let since = *self.retrying_since.get_or_insert_with(Instant::now);
        let left = self.limit.checked_sub(since.elapsed())?;
        if left.is_zero() {
            return None;
        }
        let pause = self.pause.min(left);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_end() {
        let mut backoff = ReconnectBackoff::new(Duration::from_hours(1));
        let pauses: Vec<_> = (0..8).map(|_| backoff.next_pause().unwrap().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        backoff.reset();
        assert_eq!(backoff.next_pause(), Some(FIRST_PAUSE));
        assert_eq!(ReconnectBackoff::new(Duration::ZERO).next_pause(), None);
    }
}
