//! Decides how many rows to try in one COPY when some of them are refused.
//!
//! A refusal costs the rows sent before it, and two round trips. So a COPY has many rows while rows
//! are accepted, and few rows where many are refused.

/// Up to this many good rows are sent again together with the next rows instead of alone. The
/// server takes about this many rows in the time of a round trip.
const RESENT_ROWS_MAX: usize = 32;
/// Minimum number of new rows to try after a refusal.
const SEARCHED_ROWS_MIN: usize = 4;
/// Growth factor when all rows were accepted.
const GROWTH: usize = 4;

/// The number of rows to try next, and the observations that it is computed from.
#[derive(Debug)]
pub(super) struct BatchSize {
    rows: usize,
    /// Number of leading rows that were accepted once before a rollback, and would be again.
    known: usize,
    /// Number of leading rows among which one was refused, without the server naming it.
    suspects: usize,
    /// Number of rows accepted since the last refusal, without the known ones.
    accepted_since: usize,
    /// Average number of accepted rows between two refusals.
    spacing: usize,
    /// Whether the last refused row was found by bisection, because the server did not name it.
    was_bisected: bool,
}

impl Default for BatchSize {
    /// Tries all rows.
    fn default() -> BatchSize {
        BatchSize {
            rows: usize::MAX,
            known: 0,
            suspects: 0,
            accepted_since: 0,
            spacing: 0,
            was_bisected: false,
        }
    }
}

impl BatchSize {
    /// Returns how many rows to try: at least one.
    pub(super) fn rows_to_try(&self) -> usize {
        match self.suspects {
            0 => self.rows.max(1),
            suspects => suspects.div_ceil(2),
        }
    }

    /// Records that the first `rows` rows were written.
    pub(super) fn note_written(&mut self, rows: usize) {
        let new = rows.saturating_sub(self.known);
        self.known = self.known.saturating_sub(rows);
        self.suspects = self.suspects.saturating_sub(rows);
        self.accepted_since += new;
        self.rows = match (self.was_bisected, new) {
            (true, _) => self.accepted_since.max(self.spacing + 1),
            (false, 0) => self.rows_to_search(),
            (false, _) => self.accepted_since.max(self.rows_to_search()).saturating_mul(GROWTH),
        };
    }

    /// Records that the row after `good` rows was refused by name and removed. The good rows are
    /// not written yet.
    pub(super) fn note_named_refusal(&mut self, good: usize) {
        self.note_gap(good.saturating_sub(self.known));
        self.known = good;
        self.was_bisected = false;
        self.suspects = self.suspects.saturating_sub(usize::from(good < self.suspects));
        self.rows = if good < RESENT_ROWS_MAX { good + self.rows_to_search() } else { good };
    }

    /// Records that one of the first `rows` rows was refused, without being named.
    pub(super) fn note_unnamed_refusal(&mut self, rows: usize) {
        self.suspects = rows;
    }

    /// Records that a row that was tried alone was refused and removed.
    pub(super) fn note_single_refusal(&mut self) {
        self.note_gap(0);
        (self.known, self.suspects) = (0, 0);
        self.was_bisected = true;
        // The more rows there are, the more tries it takes to find the one that is refused.
        self.rows = self.spacing + 1;
    }

    /// Makes the known rows the next ones to try.
    pub(super) fn try_known_next(&mut self) {
        if self.known > 0 {
            self.rows = self.known;
        }
    }

    /// Records that a row was put back at this index.
    pub(super) fn note_put_back(&mut self, place: usize) {
        self.known = self.known.min(place);
        self.suspects += usize::from(place < self.suspects);
    }

    /// Returns how many rows to search for the next refusal.
    fn rows_to_search(&self) -> usize {
        self.spacing.saturating_mul(2) + SEARCHED_ROWS_MIN
    }

    /// Updates the average with the number of rows accepted since the last refusal.
    fn note_gap(&mut self, good: usize) {
        self.spacing = (self.spacing + std::mem::take(&mut self.accepted_since) + good) / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many COPY statements it takes to reject the bad rows, and how many rows are sent
    /// in total.
    fn tries(rows: usize, is_bad: impl Fn(usize) -> bool, is_named: bool) -> (usize, usize) {
        let mut queue: Vec<usize> = (0..rows).collect();
        let (mut batch, mut tries, mut sent) = (BatchSize::default(), 0, 0);
        while !queue.is_empty() {
            let rows = batch.rows_to_try().min(queue.len());
            assert!(rows > 0);
            tries += 1;
            let bad = queue[..rows].iter().position(|row| is_bad(*row));
            sent += bad.filter(|_| is_named).unwrap_or(rows);
            match bad {
                None => {
                    queue.drain(..rows);
                    batch.note_written(rows);
                }
                Some(nth) if is_named => {
                    queue.remove(nth);
                    batch.note_named_refusal(nth);
                }
                Some(_) if rows == 1 => {
                    queue.remove(0);
                    batch.note_single_refusal();
                }
                Some(_) => batch.note_unnamed_refusal(rows),
            }
        }
        (tries, sent)
    }

    /// Returns whether a row is bad, pseudo-randomly, for `in_1000` of 1000 rows.
    fn is_bad(row: usize, in_1000: usize) -> bool {
        (row.wrapping_mul(2_654_435_761) >> 7) % 1000 < in_1000
    }

    #[test]
    fn tries_are_few_whatever_the_share_of_bad_rows() {
        for (in_1000, named, unnamed) in [
            (0, 1, 1),
            (1, 40, 200),
            (10, 300, 1_000),
            (100, 1_500, 6_000),
            (500, 5_500, 15_000),
            (900, 9_500, 11_000),
            (1000, 10_000, 10_020),
        ] {
            let (found, sent) = tries(10_000, |row| is_bad(row, in_1000), true);
            assert!(found <= named && sent <= 200_000, "{in_1000}: {found} {sent}");
            let (found, sent) = tries(10_000, |row| is_bad(row, in_1000), false);
            assert!(found <= unnamed && sent <= 200_000, "{in_1000}: {found} {sent}");
        }
    }
}
