//! Rows that a table has already, by what they are in binary COPY format.
//!
//! What `copy ... to` writes for a row of the table, byte for byte, is what `copy ... from` would
//! make that row of: a row of the source that is encoded to the same bytes is unchanged, and need
//! not be sent. Any other row is, and the server judges it. Rows are known by a keyed hash of 128
//! bits, under a key that nobody can know before.

mod winnow;

pub(crate) use winnow::KnownRowFilter;

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use siphasher::sip128::SipHasher13;

/// So many rows of the source are looked up before it is judged whether that pays.
const TRIAL_ROWS: u64 = 1 << 16;
/// One row in so many has to be known.
const WORTHWHILE: u64 = 5;

/// In a row's place: the source has it.
const IS_MET: u64 = 1 << 63;

type RowHash = [u64; 2];

/// Where a version of a row is in its table: block and item, as `ctid` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tid {
    pub(crate) block: u32,
    pub(crate) item: u16,
}

/// How rows are told apart. The same for all that read a table for one [`KnownRows`].
#[derive(Debug, Clone)]
pub(crate) struct RowHasher {
    hasher: SipHasher13,
    /// Fields of a row.
    columns: usize,
    /// Those that its scope is told by, in ascending order.
    scope: Vec<usize>,
}

/// Rows of a table, in the order in which they were read.
#[derive(Debug, Default)]
pub(crate) struct RowsRead {
    rows: Vec<KnownRow>,
    /// The scope of each row, where there are scopes.
    scopes: Vec<RowHash>,
    last_scope: (Vec<u8>, RowHash),
}

#[derive(Debug)]
struct KnownRow {
    hash: RowHash,
    place: AtomicU64,
}

/// The rows of a table, for looking them up.
#[derive(Debug)]
pub(crate) struct KnownRows {
    recognition: RowHasher,
    seen: RowsRead,
    /// One more than a row's number, at its hash or behind; zero where there is none.
    index: Vec<u32>,
    looked_up: AtomicU64,
    met: AtomicU64,
    is_futile: AtomicBool,
}

impl RowHasher {
    /// For rows of so many fields; `scope`: by which of them scopes are told.
    pub(crate) fn new(columns: usize, mut scope: Vec<usize>) -> RowHasher {
        scope.sort_unstable();
        // The standard library's keys are made anew by the system for each thread and step.
        let [one, two] = [RandomState::new().hash_one(0), RandomState::new().hash_one(1)];
        RowHasher { hasher: SipHasher13::new_with_keys(one, two), columns, scope }
    }

    fn hash(&self, bytes: &[u8]) -> RowHash {
        let hash = self.hasher.hash(bytes);
        [hash.h1, hash.h2]
    }

    /// Takes in a row as `copy (select ctid, ...) to` writes it, from its number of fields on. The
    /// rest of the bytes, or `None` if they do not begin with such a row.
    pub(crate) fn read<'a>(&self, seen: &mut RowsRead, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let count = i16::from_be_bytes(*bytes.first_chunk()?);
        if usize::try_from(count).ok()? != self.columns + 1 {
            return None;
        }
        let (tid, fields) = field(&bytes[2..])?;
        let (block, item) = tid?.split_first_chunk()?;
        let tid = Tid {
            block: u32::from_be_bytes(*block),
            item: u16::from_be_bytes(item.try_into().ok()?),
        };
        let end = self.fields_length(fields)?;
        let (row, rest) = fields.split_at(end);
        let place = AtomicU64::new(u64::from(tid.block) << 16 | u64::from(tid.item));
        seen.rows.push(KnownRow { hash: self.hash(row), place });
        if !self.scope.is_empty() {
            let scope = self.scope_of(row, &mut seen.last_scope);
            seen.scopes.push(scope);
        }
        Some(rest)
    }

    /// How many bytes a row's fields take.
    fn fields_length(&self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        for _ in 0..self.columns {
            let length = i32::from_be_bytes(*bytes.get(at..)?.first_chunk()?);
            at += 4 + usize::try_from(length).unwrap_or(0);
        }
        (at <= bytes.len()).then_some(at)
    }

    /// The hash of the fields that tell a row's scope; mostly it is that of the row before.
    fn scope_of(&self, mut row: &[u8], last: &mut (Vec<u8>, RowHash)) -> RowHash {
        let mut scope = Vec::with_capacity(last.0.len());
        let mut wanted = self.scope.iter().peekable();
        for nth in 0..self.columns {
            let Some((_, rest)) = field(row) else { break };
            if wanted.next_if_eq(&&nth).is_some() {
                scope.extend_from_slice(&row[..row.len() - rest.len()]);
            }
            row = rest;
        }
        if scope != last.0 || scope.is_empty() {
            *last = (scope, [0; 2]);
            last.1 = self.hash(&last.0);
        }
        last.1
    }
}

/// A field's bytes, or `None` for NULL; and what follows. `None` if there is no whole field.
fn field(bytes: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
        return Some((None, rest));
    };
    let (value, rest) = rest.split_at_checked(length)?;
    Some((Some(value), rest))
}

impl RowsRead {
    /// How many rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}

impl KnownRows {
    /// Of the rows that several have read, together in the table's order.
    pub(crate) fn new(recognition: RowHasher, parts: Vec<RowsRead>) -> KnownRows {
        let mut parts = parts.into_iter();
        let mut seen = parts.next().unwrap_or_default();
        let others = parts.as_slice();
        seen.rows.reserve_exact(others.iter().map(|part| part.rows.len()).sum());
        seen.scopes.reserve_exact(others.iter().map(|part| part.scopes.len()).sum());
        for part in parts {
            seen.rows.extend(part.rows);
            seen.scopes.extend(part.scopes);
        }
        // A slot stays free, where every search ends.
        let slots = (seen.rows.len() * 3 / 2 + 1).next_power_of_two();
        let mut index = vec![0_u32; slots];
        for (number, row) in (1..).zip(&seen.rows) {
            let mut slot = row.hash[0] as usize & (slots - 1);
            while index[slot] != 0 {
                slot = (slot + 1) & (slots - 1);
            }
            index[slot] = number;
        }
        KnownRows {
            recognition,
            seen,
            index,
            looked_up: AtomicU64::new(0),
            met: AtomicU64::new(0),
            is_futile: AtomicBool::new(false),
        }
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.seen.len()
    }

    /// How many of these rows, in binary COPY format, the table has. `None` if they are not whole.
    pub(crate) fn count_met(&self, mut rows: &[u8]) -> Option<u64> {
        let (mut met, mut next) = (0, 0);
        while !rows.is_empty() {
            let fields = rows.get(2..)?;
            let (row, rest) = fields.split_at(self.recognition.fields_length(fields)?);
            met += u64::from(self.meet(row, &mut next));
            rows = rest;
        }
        Some(met)
    }

    /// Whether the table has this row: its fields in binary COPY format. It is marked then.
    /// `next`: the number of the row that is likely to be it, and then of the one that is likely to
    /// follow, as sources are often in the order in which the table was written.
    fn meet(&self, row: &[u8], next: &mut usize) -> bool {
        let hash = self.recognition.hash(row);
        let found = match self.seen.rows.get(*next) {
            Some(row) if row.hash == hash => Some(*next),
            _ => self.find(hash),
        };
        *next = found.unwrap_or(*next) + 1;
        let Some(nth) = found else { return false };
        if self.seen.rows[nth].place.fetch_or(IS_MET, Relaxed) & IS_MET != 0 {
            // Twice in the source: which is for the server to say, with all rows.
            self.is_futile.store(true, Relaxed);
        }
        true
    }

    /// The number of the row with this hash.
    fn find(&self, hash: RowHash) -> Option<usize> {
        let mut slot = hash[0] as usize & (self.index.len() - 1);
        while let Some(nth) = self.index[slot].checked_sub(1) {
            if self.seen.rows[nth as usize].hash == hash {
                return Some(nth as usize);
            }
            slot = (slot + 1) & (self.index.len() - 1);
        }
        None
    }

    /// Counts rows that were looked up, and those of them that were met.
    fn count(&self, looked_up: u64, met: u64) {
        let before = self.looked_up.fetch_add(looked_up, Relaxed);
        let met = self.met.fetch_add(met, Relaxed) + met;
        let looked_up = before + looked_up;
        if before < TRIAL_ROWS && looked_up >= TRIAL_ROWS && met * WORTHWHILE < looked_up {
            self.is_futile.store(true, Relaxed);
        }
    }

    /// Whether knowing the table's rows is of no use: too few are met, or one twice.
    pub(crate) fn is_futile(&self) -> bool {
        self.is_futile.load(Relaxed)
    }

    /// How many rows of the source the table has.
    pub(crate) fn met(&self) -> u64 {
        self.met.load(Relaxed)
    }

    /// The rows that the source does not have, in the table's order; and whether it has others of
    /// their scope, where there are scopes.
    pub(crate) fn unmet(&self) -> impl Iterator<Item = (Tid, bool)> {
        let is_met = |row: &KnownRow| row.place.load(Relaxed) & IS_MET != 0;
        let RowsRead { rows, scopes, .. } = &self.seen;
        let both = rows.iter().zip(scopes);
        let in_source: HashSet<RowHash> =
            both.filter(|(row, _)| is_met(row)).map(|(_, scope)| *scope).collect();
        let unmet = rows.iter().enumerate().filter(move |(_, row)| !is_met(row));
        unmet.map(move |(nth, row)| {
            let place = row.place.load(Relaxed);
            let tid = Tid { block: (place >> 16) as u32, item: place as u16 };
            (tid, scopes.get(nth).is_none_or(|scope| in_source.contains(scope)))
        })
    }
}

#[cfg(test)]
mod tests;
