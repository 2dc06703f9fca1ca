//! How long, and how often, what failed for want of a server is tried again.

use std::time::{Duration, Instant};

use super::stop::pause_for;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Patience with a server that is away: pauses that double, within a bounded time.
#[derive(Debug, Clone)]
pub struct Patience {
    limit: Duration,
    since: Option<Instant>,
    pause: Duration,
}

impl Patience {
    /// For at most `limit` without any success.
    pub fn new(limit: Duration) -> Patience {
        Patience { limit, since: None, pause: FIRST_PAUSE }
    }

    /// Notes a success.
    pub fn renew(&mut self) {
        *self = Patience::new(self.limit);
    }

    /// Waits before the next try, unless `is_over` meanwhile. False when it is time to give up.
    pub fn wait(&mut self, is_over: impl Fn() -> bool) -> bool {
        self.next_pause().is_some_and(|pause| pause_for(pause, is_over))
    }

    /// How long to wait before the next try; `None` when it is time to give up.
    fn next_pause(&mut self) -> Option<Duration> {
        let since = *self.since.get_or_insert_with(Instant::now);
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
        let mut patience = Patience::new(Duration::from_hours(1));
        let pauses: Vec<_> = (0..8).map(|_| patience.next_pause().unwrap().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        patience.renew();
        assert_eq!(patience.next_pause(), Some(FIRST_PAUSE));
        assert_eq!(Patience::new(Duration::ZERO).next_pause(), None);
    }
}
