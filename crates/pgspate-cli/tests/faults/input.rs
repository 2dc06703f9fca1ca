//! Files to load: records that the table accepts and, for some tests, records that it rejects.

use std::sync::LazyLock;

use crate::chance::{TestRandom, long_run};

/// Chunks of the file, of 4 MiB each: more than lanes, where chunks are committed one by one.
pub(crate) static CHUNKS: LazyLock<u64> =
    LazyLock::new(|| if long_run().is_some() { 4 } else { 3 });
/// Rows that are always taken: so many that the last chunk has a tenth of what it could.
static ROWS: LazyLock<u64> = LazyLock::new(|| (*CHUNKS * 10 - 9) * (4 << 20) / 7030);

/// Pairs of rows with the same key: one of the two is refused, whichever comes second.
const TWINS: u64 = 12;
/// Records that are refused whatever else there is.
const BAD: u64 = 24;

pub(crate) const HEADER: &str = "id,name,amount,at,note\n";

/// Which kinds of rows a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RowKinds {
    /// Only rows that the table accepts.
    Good,
    /// Only accepted rows, into a table whose indexes the load drops and rebuilds.
    Indexed,
    /// Also records that must become rejects; the table has a unique key.
    Mixed,
}

/// A file, and what its records are.
pub(crate) struct FaultInput {
    pub(crate) text: String,
    /// Records that are always refused, each a line, in the order of the file.
    pub(crate) bad: Vec<String>,
    /// Pairs of records with one key: the second one that arrives is rejected.
    pub(crate) twins: Vec<[String; 2]>,
}

/// A record that is put before the good row of this ordinal.
enum ExtraRecord {
    Bad(u64),
    Twin(u64, usize),
}

/// Made once for all tests.
static GOOD: LazyLock<FaultInput> = LazyLock::new(|| FaultInput::new(RowKinds::Good));
static MIXED: LazyLock<FaultInput> = LazyLock::new(|| FaultInput::new(RowKinds::Mixed));

impl FaultInput {
    pub(crate) fn of(rows: RowKinds) -> &'static FaultInput {
        match rows {
            RowKinds::Good | RowKinds::Indexed => &GOOD,
            RowKinds::Mixed => &MIXED,
        }
    }

    fn new(rows: RowKinds) -> FaultInput {
        let mut extras = if rows == RowKinds::Mixed { extras() } else { Vec::new() };
        extras.sort_by_key(|(before, _)| *before);
        let mut extras = extras.into_iter().peekable();
        let mut text = HEADER.to_owned();
        let mut bad = Vec::new();
        let mut twins = vec![[String::new(), String::new()]; TWINS as usize];
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
            text += &row(id);
        }
        if rows == RowKinds::Good {
            twins.clear();
        }
        FaultInput { text, bad, twins }
    }

    /// All records.
    pub(crate) fn records(&self) -> u64 {
        *ROWS + self.refused() + self.twins.len() as u64
    }

    /// Records that are refused in the end.
    pub(crate) fn refused(&self) -> u64 {
        (self.bad.len() + self.twins.len()) as u64
    }
}

/// Places the extra records at random but repeatably; twins are often in different chunks.
fn extras() -> Vec<(u64, ExtraRecord)> {
    let mut chance = TestRandom::new(11);
    let mut extras = Vec::new();
    for nth in 0..BAD {
        extras.push((chance.among(0..=*ROWS - 1), ExtraRecord::Bad(nth)));
    }
    for nth in 0..TWINS {
        for which in [0, 1] {
            extras.push((chance.among(0..=*ROWS - 1), ExtraRecord::Twin(nth, which)));
        }
    }
    extras
}

/// With quotes, line ends, NULLs, and now and then a spelling that is left to the server.
fn row(id: u64) -> String {
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

/// What no conversion takes, or what has too few or too many fields.
fn bad_record(nth: u64) -> String {
    match nth % 4 {
        0 => format!("x{nth},name,1.5,2024-01-05 03:04:05,no number\n"),
        1 => format!("-{nth},too few\n"),
        2 => format!("-{nth},too many,1.5,2024-01-05 03:04:05,note,and one more\n"),
        _ => format!("-{nth},name,1.5,2024-13-05 03:04:05,no such month\n"),
    }
}

fn twin(nth: u64, which: usize) -> String {
    format!("{},twin,1.5,2024-01-05 03:04:05,twin {nth:02} {which}\n", *ROWS + nth)
}
