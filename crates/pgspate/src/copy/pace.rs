//! How many rows to try at once, when some of them will be refused.
//!
//! A refusal costs what was sent before it, and two round trips. So there are many rows at once
//! while they are taken, and few where many are refused.

/// Rows known to be good that are rather sent again together with the next ones than alone: about
/// what the server takes in the time of a round trip.
const RESENT_ROWS: usize = 32;
/// Beyond the good rows, at least so many are tried after a refusal.
const TRIED_ROWS: usize = 4;
/// How fast it grows when all were taken.
const GROWTH: usize = 4;

/// How many of the rows at hand to try next.
#[derive(Debug)]
pub(super) struct BatchSize {
    rows: usize,
    /// So many first rows were taken once, and would be again.
    known: usize,
    /// Among so many first rows there is one that was refused, and the server did not say which.
    suspects: usize,
    /// Rows taken since the last refusal, but for the known ones.
    run: usize,
    /// About how many rows are taken between two refusals.
    spacing: usize,
    /// The last row that was refused was looked for, as the server did not say which it was.
    is_search: bool,
}

impl Default for BatchSize {
    /// As many as there are.
    fn default() -> BatchSize {
        BatchSize { rows: usize::MAX, known: 0, suspects: 0, run: 0, spacing: 0, is_search: false }
    }
}

impl BatchSize {
    /// How many to try: at least one.
    pub(super) fn next(&self) -> usize {
        match self.suspects {
            0 => self.rows.max(1),
            suspects => suspects.div_ceil(2),
        }
    }

    /// So many were taken, and are gone.
    pub(super) fn written(&mut self, rows: usize) {
        let new = rows.saturating_sub(self.known);
        self.known = self.known.saturating_sub(rows);
        self.suspects = self.suspects.saturating_sub(rows);
        self.run += new;
        self.rows = match (self.is_search, new) {
            (true, _) => self.run.max(self.spacing + 1),
            (false, 0) => self.tried(),
            (false, _) => self.run.max(self.tried()).saturating_mul(GROWTH),
        };
    }

    /// The row after `good` ones was refused, and is gone; the good ones are not yet written.
    pub(super) fn refused_one(&mut self, good: usize) {
        self.note_gap(good.saturating_sub(self.known));
        self.known = good;
        self.is_search = false;
        self.suspects = self.suspects.saturating_sub(usize::from(good < self.suspects));
        self.rows = if good < RESENT_ROWS { good + self.tried() } else { good };
    }

    /// So many were tried and refused, and none of them was named.
    pub(super) fn refused_some(&mut self, rows: usize) {
        self.suspects = rows;
    }

    /// One that was tried alone was refused without being named, and is gone.
    pub(super) fn refused_alone(&mut self) {
        self.note_gap(0);
        (self.known, self.suspects) = (0, 0);
        self.is_search = true;
        // The more rows there are, the more tries it takes to find the one that is refused.
        self.rows = self.spacing + 1;
    }

    /// The known rows are to be taken before any other.
    pub(super) fn take_known(&mut self) {
        if self.known > 0 {
            self.rows = self.known;
        }
    }

    /// A row is back at this place.
    pub(super) fn put_back(&mut self, place: usize) {
        self.known = self.known.min(place);
        self.suspects += usize::from(place < self.suspects);
    }

    /// So many rows to look for the next refusal in.
    fn tried(&self) -> usize {
        self.spacing.saturating_mul(2) + TRIED_ROWS
    }

    /// Takes in how many rows were taken since the last refusal.
    fn note_gap(&mut self, good: usize) {
        self.spacing = (self.spacing + std::mem::take(&mut self.run) + good) / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many tries it takes to set bad rows aside, and how many rows are sent.
    fn tries(rows: usize, is_bad: impl Fn(usize) -> bool, is_named: bool) -> (usize, usize) {
        let mut queue: Vec<usize> = (0..rows).collect();
        let (mut pace, mut tries, mut sent) = (BatchSize::default(), 0, 0);
        while !queue.is_empty() {
            let rows = pace.next().min(queue.len());
            assert!(rows > 0);
            tries += 1;
            let bad = queue[..rows].iter().position(|row| is_bad(*row));
            sent += bad.filter(|_| is_named).unwrap_or(rows);
            match bad {
                None => {
                    queue.drain(..rows);
                    pace.written(rows);
                }
                Some(nth) if is_named => {
                    queue.remove(nth);
                    pace.refused_one(nth);
                }
                Some(_) if rows == 1 => {
                    queue.remove(0);
                    pace.refused_alone();
                }
                Some(_) => pace.refused_some(rows),
            }
        }
        (tries, sent)
    }

    /// As random as it takes.
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
