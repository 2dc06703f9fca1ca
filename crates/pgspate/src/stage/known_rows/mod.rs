//! Rows that a table has already, recognised by their bytes in binary COPY format.
//!
//! If pgspate encodes a source row to exactly the bytes that `copy ... to` writes for a row of the
//! table, the row is unchanged and need not be sent. Every other row is sent, and the server
//! compares that row with the table. Rows are recognised by a keyed hash of 128 bits. The key is
//! random, so that an attacker cannot make a source whose rows collide.

mod filter;

pub(crate) use filter::KnownRowFilter;

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use siphasher::sip128::SipHasher13;

/// Number of source rows after which the filter's benefit is judged.
const TRIAL_ROWS: u64 = 1 << 16;
/// The filter stays in use if, on average, at least one in this many source rows is in the table.
const SOURCE_ROWS_PER_MATCH_MAX: u64 = 5;

/// Flag in [`KnownRow::address`]: the source has the row.
const IS_MATCHED: u64 = 1 << 63;

type RowHash = [u64; 2];

/// The address of a row version: block and item, as in `ctid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tid {
    pub(crate) block: u32,
    pub(crate) item: u16,
}

/// Hashes rows. All readers of one table have the same hasher.
#[derive(Debug, Clone)]
pub(crate) struct RowHasher {
    hasher: SipHasher13,
    /// Number of fields in a row.
    columns: usize,
    /// Positions of the fields that identify a row's scope, in ascending order.
    scope: Vec<usize>,
}

/// Rows of a table, in the order in which one reader read them.
#[derive(Debug, Default)]
pub(crate) struct RowsRead {
    rows: Vec<KnownRow>,
    /// The hash of each row's scope; empty if the sync has no scopes.
    scopes: Vec<RowHash>,
    /// The scope of the last row: its fields in binary COPY format, and their hash.
    last_scope: (Vec<u8>, RowHash),
}

#[derive(Debug)]
struct KnownRow {
    hash: RowHash,
    /// The row version's block and item, and the flag [`IS_MATCHED`].
    address: AtomicU64,
}

/// The rows of a table, indexed by hash.
#[derive(Debug)]
pub(crate) struct KnownRows {
    hasher: RowHasher,
    read: RowsRead,
    /// An open-addressing hash table. A slot holds a row's position plus one; zero marks a free
    /// slot.
    index: Vec<u32>,
    /// Number of source rows that were looked up.
    looked_up: AtomicU64,
    /// Number of source rows that the table has.
    matched: AtomicU64,
    is_useless: AtomicBool,
}

impl RowHasher {
    /// Creates a hasher for rows of `columns` fields, with a random key. `scope` lists the
    /// positions of the fields that identify a row's scope.
    pub(crate) fn new(columns: usize, mut scope: Vec<usize>) -> RowHasher {
        scope.sort_unstable();
        // The standard library's random keys differ for each thread and call.
        let [one, two] = [RandomState::new().hash_one(0), RandomState::new().hash_one(1)];
        RowHasher { hasher: SipHasher13::new_with_keys(one, two), columns, scope }
    }

    fn hash(&self, bytes: &[u8]) -> RowHash {
        let hash = self.hasher.hash(bytes);
        [hash.h1, hash.h2]
    }

    /// Adds the first row of `bytes` to `read`. `bytes` are rows that `copy (select ctid, ...) to`
    /// writes. Returns the bytes after the row, or `None` if the bytes do not begin with a complete
    /// row.
    pub(crate) fn read<'a>(&self, read: &mut RowsRead, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let count = i16::from_be_bytes(*bytes.first_chunk()?);
        if usize::try_from(count).ok()? != self.columns + 1 {
            return None;
        }
        let (tid, fields) = split_field(&bytes[2..])?;
        let (block, item) = tid?.split_first_chunk()?;
        let tid = Tid {
            block: u32::from_be_bytes(*block),
            item: u16::from_be_bytes(item.try_into().ok()?),
        };
        let end = self.fields_length(fields)?;
        let (row, rest) = fields.split_at(end);
        let address = AtomicU64::new(u64::from(tid.block) << 16 | u64::from(tid.item));
        read.rows.push(KnownRow { hash: self.hash(row), address });
        if !self.scope.is_empty() {
            let scope = self.scope_of(row, &mut read.last_scope);
            read.scopes.push(scope);
        }
        Some(rest)
    }

    /// Returns the number of bytes of the fields of the first row in `bytes`; `None` if the row is
    /// incomplete.
    fn fields_length(&self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        for _ in 0..self.columns {
            let length = i32::from_be_bytes(*bytes.get(at..)?.first_chunk()?);
            at += 4 + usize::try_from(length).unwrap_or(0);
        }
        (at <= bytes.len()).then_some(at)
    }

    /// Returns the hash of the fields that identify the row's scope. Does not hash again if `last`,
    /// the previous row's scope, has the same fields.
    fn scope_of(&self, mut row: &[u8], last: &mut (Vec<u8>, RowHash)) -> RowHash {
        let mut scope = Vec::with_capacity(last.0.len());
        let mut wanted = self.scope.iter().peekable();
        for column in 0..self.columns {
            let Some((_, rest)) = split_field(row) else { break };
            if wanted.next_if_eq(&&column).is_some() {
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

/// Returns a field's bytes (`None` for NULL) and the bytes after the field. Returns `None` if there
/// is no complete field.
fn split_field(bytes: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
        return Some((None, rest));
    };
    let (value, rest) = rest.split_at_checked(length)?;
    Some((Some(value), rest))
}

impl RowsRead {
    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}

impl KnownRows {
    /// Builds the index over the rows of several readers. The readers' rows, one after the other,
    /// are in the table's order.
    pub(crate) fn new(hasher: RowHasher, parts: Vec<RowsRead>) -> KnownRows {
        let mut parts = parts.into_iter();
        let mut read = parts.next().unwrap_or_default();
        let others = parts.as_slice();
        read.rows.reserve_exact(others.iter().map(|part| part.rows.len()).sum());
        read.scopes.reserve_exact(others.iter().map(|part| part.scopes.len()).sum());
        for part in parts {
            read.rows.extend(part.rows);
            read.scopes.extend(part.scopes);
        }
        // At least one slot stays free, so that every search ends.
        let slots = (read.rows.len() * 3 / 2 + 1).next_power_of_two();
        let mut index = vec![0_u32; slots];
        for (number, row) in (1..).zip(&read.rows) {
            let mut slot = row.hash[0] as usize & (slots - 1);
            while index[slot] != 0 {
                slot = (slot + 1) & (slots - 1);
            }
            index[slot] = number;
        }
        KnownRows {
            hasher,
            read,
            index,
            looked_up: AtomicU64::new(0),
            matched: AtomicU64::new(0),
            is_useless: AtomicBool::new(false),
        }
    }

    /// Returns the number of the table's rows.
    pub(crate) fn len(&self) -> usize {
        self.read.len()
    }

    /// Counts those of `rows` that the table has too. `rows` is in binary COPY format. Returns
    /// `None` if a row is incomplete.
    pub(crate) fn count_matched(&self, mut rows: &[u8]) -> Option<u64> {
        let (mut matched, mut next_match) = (0, 0);
        while !rows.is_empty() {
            let fields = rows.get(2..)?;
            let (row, rest) = fields.split_at(self.hasher.fields_length(fields)?);
            matched += u64::from(self.mark_if_known(row, &mut next_match));
            rows = rest;
        }
        Some(matched)
    }

    /// Returns whether the table has this row, and marks the table's row as matched. `row` is the
    /// row's fields in binary COPY format.
    ///
    /// `next_match` is the position of the table's row that is compared first. The function moves
    /// `next_match` to the following row, because sources often have the table's order.
    fn mark_if_known(&self, row: &[u8], next_match: &mut usize) -> bool {
        let hash = self.hasher.hash(row);
        let found = match self.read.rows.get(*next_match) {
            Some(row) if row.hash == hash => Some(*next_match),
            _ => self.find(hash),
        };
        *next_match = found.unwrap_or(*next_match) + 1;
        let Some(position) = found else { return false };
        if self.read.rows[position].address.fetch_or(IS_MATCHED, Relaxed) & IS_MATCHED != 0 {
            // The source has the row twice. The server must see all rows to report the duplicate.
            self.is_useless.store(true, Relaxed);
        }
        true
    }

    /// Returns the position of the table's row with this hash, if there is one.
    fn find(&self, hash: RowHash) -> Option<usize> {
        let mut slot = hash[0] as usize & (self.index.len() - 1);
        while let Some(position) = self.index[slot].checked_sub(1) {
            if self.read.rows[position as usize].hash == hash {
                return Some(position as usize);
            }
            slot = (slot + 1) & (self.index.len() - 1);
        }
        None
    }

    /// Counts source rows that were looked up, and rows that matched. After the trial rows, marks
    /// the filter as useless if too few rows match.
    fn count_lookups(&self, rows: u64, matched: u64) {
        let before = self.looked_up.fetch_add(rows, Relaxed);
        let matched = self.matched.fetch_add(matched, Relaxed) + matched;
        let looked_up = before + rows;
        let has_few_matches = matched * SOURCE_ROWS_PER_MATCH_MAX < looked_up;
        if before < TRIAL_ROWS && looked_up >= TRIAL_ROWS && has_few_matches {
            self.is_useless.store(true, Relaxed);
        }
    }

    /// Returns whether the filter is useless: too few source rows match, or two source rows match
    /// the same row of the table.
    pub(crate) fn is_useless(&self) -> bool {
        self.is_useless.load(Relaxed)
    }

    /// Returns the number of source rows that the table has.
    pub(crate) fn matched(&self) -> u64 {
        self.matched.load(Relaxed)
    }

    /// Returns the table's rows that the source does not have, in the table's order. The flag says
    /// whether the source has other rows of the same scope; without scopes it is true.
    pub(crate) fn unmatched(&self) -> impl Iterator<Item = (Tid, bool)> {
        let is_matched = |row: &KnownRow| row.address.load(Relaxed) & IS_MATCHED != 0;
        let RowsRead { rows, scopes, .. } = &self.read;
        let rows_with_scopes = rows.iter().zip(scopes);
        let source_scopes: HashSet<RowHash> =
            rows_with_scopes.filter(|(row, _)| is_matched(row)).map(|(_, scope)| *scope).collect();
        let unmatched = rows.iter().enumerate().filter(move |(_, row)| !is_matched(row));
        unmatched.map(move |(position, row)| {
            let address = row.address.load(Relaxed);
            let tid = Tid { block: (address >> 16) as u32, item: address as u16 };
            (tid, scopes.get(position).is_none_or(|scope| source_scopes.contains(scope)))
        })
    }
}

#[cfg(test)]
mod tests;
