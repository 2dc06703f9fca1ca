//! Decides how many rows to try in one COPY when the server refuses some of the rows.
//!
//! After a refusal, the rows sent before the refused row must be sent again, which also takes two
//! round trips. So a COPY has many rows while rows are accepted, and few rows where many rows are
//! refused.

/// Up to this many accepted rows are sent again together with new rows, instead of in a COPY of
/// their own. The server reads about this many rows in the time of a round trip.
const RESENT_ROWS_MAX: usize = 32;
/// Minimum number of new rows to try after a refusal.
const SEARCHED_ROWS_MIN: usize = 4;
/// Growth factor of the number of rows after a COPY in which all rows were accepted.
const GROWTH: usize = 4;

/// The number of rows to try next, and the observations that it is computed from.
#[derive(Debug)]
pub(super) struct BatchSize {
    /// Number of rows to try next, while there are no suspects.
    rows: usize,
    /// Number of rows at the start of the queue that the server accepted before a rollback. The
    /// server would accept these rows again.
    accepted_before: usize,
    /// Number of rows at the start of the queue that contain a refused row that the server did not
    /// name.
    suspects: usize,
    /// Number of rows that were accepted for the first time since the last refusal.
    accepted_since: usize,
    /// Average number of accepted rows between two refusals; later refusals count more.
    spacing: usize,
    /// Whether the last refused row was found by bisection, because the server named no row.
    was_bisected: bool,
}

impl Default for BatchSize {
    /// Returns a state in which all rows are tried.
    fn default() -> BatchSize {
        BatchSize {
            rows: usize::MAX,
            accepted_before: 0,
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
        let new = rows.saturating_sub(self.accepted_before);
        self.accepted_before = self.accepted_before.saturating_sub(rows);
        self.suspects = self.suspects.saturating_sub(rows);
        self.accepted_since += new;
        self.rows = match (self.was_bisected, new) {
            (true, _) => self.accepted_since.max(self.spacing + 1),
            (false, 0) => self.rows_to_search(),
            (false, _) => self.accepted_since.max(self.rows_to_search()).saturating_mul(GROWTH),
        };
    }

    /// Records that the server named the row after `good` rows as refused, and that the row was
    /// removed from the queue. The good rows were rolled back and are not written yet.
    pub(super) fn note_named_refusal(&mut self, good: usize) {
        self.note_gap(good.saturating_sub(self.accepted_before));
        self.accepted_before = good;
        self.was_bisected = false;
        self.suspects = self.suspects.saturating_sub(usize::from(good < self.suspects));
        self.rows = if good < RESENT_ROWS_MAX { good + self.rows_to_search() } else { good };
    }

    /// Records that the server refused one of the first `rows` rows without naming the row.
    pub(super) fn note_unnamed_refusal(&mut self, rows: usize) {
        self.suspects = rows;
    }

    /// Records that a row that was tried alone was refused, and removed from the queue.
    pub(super) fn note_single_refusal(&mut self) {
        self.note_gap(0);
        (self.accepted_before, self.suspects) = (0, 0);
        self.was_bisected = true;
        // Bisecting more rows takes more tries.
        self.rows = self.spacing + 1;
    }

    /// Tries only those rows next that were accepted before a rollback.
    pub(super) fn try_accepted_next(&mut self) {
        if self.accepted_before > 0 {
            self.rows = self.accepted_before;
        }
    }

    /// Records that a row was inserted into the queue again, at this index.
    pub(super) fn note_requeued(&mut self, index: usize) {
        self.accepted_before = self.accepted_before.min(index);
        self.suspects += usize::from(index < self.suspects);
    }

    /// Returns how many new rows to try after a refusal.
    fn rows_to_search(&self) -> usize {
        self.spacing.saturating_mul(2) + SEARCHED_ROWS_MIN
    }

    /// Updates the average spacing at a refusal. `good` rows were accepted after the last COPY that
    /// was not rolled back.
    fn note_gap(&mut self, good: usize) {
        self.spacing = (self.spacing + std::mem::take(&mut self.accepted_since) + good) / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the COPY statements that it takes to reject the bad rows, and the rows sent in total.
    /// `is_named` says whether the server names the refused row.
    fn count_tries(rows: usize, is_bad: impl Fn(usize) -> bool, is_named: bool) -> (usize, usize) {
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
                Some(index) if is_named => {
                    queue.remove(index);
                    batch.note_named_refusal(index);
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

    /// Returns whether a row is bad. The result is pseudo-random; of 1000 rows, about
    /// `bad_per_1000` are bad.
    fn is_bad(row: usize, bad_per_1000: usize) -> bool {
        (row.wrapping_mul(2_654_435_761) >> 7) % 1000 < bad_per_1000
    }

    #[test]
    fn few_tries_for_any_share_of_bad_rows() {
        for (bad_per_1000, named_max, unnamed_max) in [
            (0, 1, 1),
            (1, 40, 200),
            (10, 300, 1_000),
            (100, 1_500, 6_000),
            (500, 5_500, 15_000),
            (900, 9_500, 11_000),
            (1000, 10_000, 10_020),
        ] {
            let (tries, sent) = count_tries(10_000, |row| is_bad(row, bad_per_1000), true);
            assert!(tries <= named_max && sent <= 200_000, "{bad_per_1000}: {tries} {sent}");
            let (tries, sent) = count_tries(10_000, |row| is_bad(row, bad_per_1000), false);
            assert!(tries <= unnamed_max && sent <= 200_000, "{bad_per_1000}: {tries} {sent}");
        }
    }
}
