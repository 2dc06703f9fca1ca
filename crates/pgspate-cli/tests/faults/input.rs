//! Files to load: records that the table accepts and, for some tests, records that it rejects.

use std::sync::LazyLock;

use crate::test_random::{TestRandom, long_run};

/// The number of chunks of the file, of 4 MiB each. Loads that commit each chunk have fewer lanes.
pub(crate) static CHUNKS: LazyLock<u64> =
    LazyLock::new(|| if long_run().is_some() { 4 } else { 3 });
/// The number of accepted rows. One tenth of the last chunk has rows.
static ROWS: LazyLock<u64> = LazyLock::new(|| (*CHUNKS * 10 - 9) * (4 << 20) / 7030);

/// The number of pairs of records with the same key. The second of a pair to arrive is rejected.
const TWIN_PAIR_COUNT: u64 = 12;
/// The number of records that are always rejected.
const BAD_RECORD_COUNT: u64 = 24;

pub(crate) const CSV_HEADER: &str = "id,name,amount,at,note\n";

/// Which kinds of rows a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RowKinds {
    /// Only rows that the table accepts.
    Good,
    /// Only accepted rows, into a table whose indexes the load drops and rebuilds.
    Indexed,
    /// Accepted rows, and records that must become rejects; the table has a unique key.
    Mixed,
}

/// The text of a file, and its records that become rejects.
pub(crate) struct FaultInput {
    pub(crate) text: String,
    /// Records that are always rejected, one line each, in the order of the file.
    pub(crate) bad: Vec<String>,
    /// Pairs of records with the same key. The second of a pair to arrive is rejected.
    pub(crate) twins: Vec<[String; 2]>,
}

/// A record that becomes a reject, or one of two records with the same key.
enum ExtraRecord {
    Bad(u64),
    Twin(u64, usize),
}

/// Files that are made once for all tests.
static GOOD_INPUT: LazyLock<FaultInput> = LazyLock::new(|| FaultInput::new(RowKinds::Good));
static MIXED_INPUT: LazyLock<FaultInput> = LazyLock::new(|| FaultInput::new(RowKinds::Mixed));

impl FaultInput {
    /// Returns the file with these kinds of rows.
    pub(crate) fn of(rows: RowKinds) -> &'static FaultInput {
        match rows {
            RowKinds::Good | RowKinds::Indexed => &GOOD_INPUT,
            RowKinds::Mixed => &MIXED_INPUT,
        }
    }

    fn new(rows: RowKinds) -> FaultInput {
        let mut extras = if rows == RowKinds::Mixed { extra_records() } else { Vec::new() };
        extras.sort_by_key(|(before, _)| *before);
        let mut extras = extras.into_iter().peekable();
        let mut text = CSV_HEADER.to_owned();
        let mut bad = Vec::new();
        let mut twins = vec![[String::new(), String::new()]; TWIN_PAIR_COUNT as usize];
        for id in 0..*ROWS {
            while let Some((_, extra)) = extras.next_if(|(before, _)| *before <= id) {
                let record = match extra {
                    ExtraRecord::Bad(nth) => {
                        bad.push(bad_record(nth));
                        bad_record(nth)
                    }
                    ExtraRecord::Twin(nth, which) => {
                        let record = twin(nth, which);
                        twins[nth as usize][which].clone_from(&record);
                        record
                    }
                };
                text += &record;
            }
            text += &good_row(id);
        }
        if rows == RowKinds::Good {
            twins.clear();
        }
        FaultInput { text, bad, twins }
    }

    /// Returns the number of records.
    pub(crate) fn records(&self) -> u64 {
        *ROWS + self.refused() + self.twins.len() as u64
    }

    /// Returns the number of records that are rejected in the end.
    pub(crate) fn refused(&self) -> u64 {
        (self.bad.len() + self.twins.len()) as u64
    }
}

/// Returns the extra records, each with the good row that it precedes. The places are random but
/// repeatable. Records with the same key are often in different chunks.
fn extra_records() -> Vec<(u64, ExtraRecord)> {
    let mut random = TestRandom::new(11);
    let mut extras = Vec::new();
    for nth in 0..BAD_RECORD_COUNT {
        extras.push((random.among(0..=*ROWS - 1), ExtraRecord::Bad(nth)));
    }
    for nth in 0..TWIN_PAIR_COUNT {
        for which in [0, 1] {
            extras.push((random.among(0..=*ROWS - 1), ExtraRecord::Twin(nth, which)));
        }
    }
    extras
}

/// Returns a good row. Some have quotes, line breaks, NULLs, or a timestamp that pgspate leaves to
/// the server.
fn good_row(id: u64) -> String {
    let at = match id % 997 {
        0 => "Jan 5 2024 03:04:05".to_owned(),
        n => format!("2024-01-{:02} 03:04:{:02}", n % 28 + 1, n % 60),
    };
    let name = match id % 50 {
        0 => "\"two\nlines, \"\"quoted\"\"\"".to_owned(),
        1 => String::new(),
        _ => format!("name {id}"),
    };
    format!("{id},{name},{}.{:02},{at},{}{id}\n", id * 7, id % 100, "-".repeat(640))
}

/// Returns a record with an invalid value, or with too few or too many fields.
fn bad_record(nth: u64) -> String {
    match nth % 4 {
        0 => format!("x{nth},name,1.5,2024-01-05 03:04:05,no number\n"),
        1 => format!("-{nth},too few\n"),
        2 => format!("-{nth},too many,1.5,2024-01-05 03:04:05,note,and one more\n"),
        _ => format!("-{nth},name,1.5,2024-13-05 03:04:05,no such month\n"),
    }
}

/// Returns one of the two records of a pair with the same key.
fn twin(nth: u64, which: usize) -> String {
    format!("{},twin,1.5,2024-01-05 03:04:05,twin {nth:02} {which}\n", *ROWS + nth)
}
