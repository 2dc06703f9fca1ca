//! What a sync did, and what would make the next one cheaper.

use serde::Serialize;

use crate::measure::{Bill, Difference, StatementCost};

/// What a sync did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The table, as SQL writes it.
    pub table: String,
    /// Rows of the source.
    pub rows_in: u64,
    /// Rows that were new.
    pub inserted: u64,
    /// Rows that differed.
    pub updated: u64,
    /// Of these, those that the server could write beside the old ones without touching an index.
    pub updated_hot: u64,
    /// Rows of the scope that the source does not have.
    pub deleted: u64,
    /// Rows that were right already: read and nothing else.
    pub unchanged: u64,
    /// Nothing was written: it was asked whether there are differences.
    pub is_check: bool,
    /// Keys of rows to insert, to update and to delete, three of each at most; for a check.
    pub examples: Examples,
    /// Seconds for staging the source.
    pub stage_seconds: f64,
    /// Seconds for comparing and writing.
    pub write_seconds: f64,
    /// WAL of the statements that wrote, without that of their indexes' later work.
    pub wal_bytes: u64,
    /// Pages that they changed first.
    pub blocks_dirtied: u64,
    /// Dead row versions that this left behind.
    pub dead_rows: u64,
    /// Pages of the table and what belongs to it that were read meanwhile, for comparing too.
    pub blocks_read: Option<u64>,
    /// Those that were found in the server's cache.
    pub blocks_hit: Option<u64>,
    /// Bytes of the table, before and after.
    pub table_bytes: [Option<u64>; 2],
    /// Bytes of its indexes, before and after.
    pub index_bytes: [Option<u64>; 2],
    /// Dead row versions in the table, before and after, as the server estimates them.
    pub table_dead_rows: [Option<u64>; 2],
    /// What these reads and that WAL would cost where I/Os are billed.
    pub bill: Option<Bill>,
    /// Everything that the server counted meanwhile, for everybody.
    pub measured: Difference,
    /// What would make the next one cheaper.
    pub advice: Vec<String>,
}

/// Keys, in words.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Examples {
    /// To insert.
    pub insert: Vec<String>,
    /// To update.
    pub update: Vec<String>,
    /// To delete.
    pub delete: Vec<String>,
}

impl Report {
    /// Whether the table was, or is, like the source.
    pub fn is_same(&self) -> bool {
        self.inserted + self.updated + self.deleted == 0
    }

    /// Takes in what its statements took.
    pub(super) fn set_cost(&mut self, cost: StatementCost) {
        self.wal_bytes = cost.wal_bytes;
        self.blocks_dirtied = cost.blocks_dirtied;
        self.dead_rows = self.updated + self.deleted;
    }

    /// Takes in what the server counted meanwhile.
    pub(super) fn set_measured(&mut self, measured: Difference, price_per_million: f64) {
        if let Some(tables) = &measured.tables {
            let both = [&tables.before, &tables.after];
            self.blocks_read = tables.counted.blocks_read();
            self.blocks_hit = tables.counted.blocks_hit();
            self.table_bytes = both.map(|state| state.table_bytes);
            self.index_bytes = both.map(|state| state.index_bytes);
            self.table_dead_rows = both.map(|state| state.rows_dead);
        }
        self.bill =
            self.blocks_read.map(|read| Bill::estimate(read, self.wal_bytes, price_per_million));
        self.measured = measured;
    }
}

/// Facts that advice depends on.
pub(super) struct Facts {
    /// `fillfactor` of the table, 100 unless set.
    pub(super) fillfactor: i32,
    /// Indexes on columns that updates changed and which no query has used: name, columns.
    pub(super) unused: Vec<(String, String)>,
}

/// Below this many updates, how they were done says little.
const UPDATES_THAT_TELL: u64 = 1000;

/// Updates that need not touch an index need room in the page. Ten nights of the usual mix left
/// 1.97 M dead rows at fillfactor 100 and 0.66 M at 60.
pub(super) fn advice(report: &Report, facts: &Facts) -> Vec<String> {
    let mut advice = Vec::new();
    if report.updated < UPDATES_THAT_TELL || report.updated_hot * 2 >= report.updated {
        return advice;
    }
    let share = 100 * report.updated_hot / report.updated;
    for (index, columns) in &facts.unused {
        advice.push(format!(
            "index {index} on {columns} is used by no query, and every update of these columns \
             has to write all indexes because of it: drop index {index}"
        ));
    }
    if facts.fillfactor > 70 && facts.unused.is_empty() {
        advice.push(format!(
            "{share} % of the updates found room in their page: alter table {} set (fillfactor = \
             60), and vacuum full or cluster it once, leaves room for them",
            report.table
        ));
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_given_when_the_numbers_say_so() {
        let report = |updated, updated_hot| Report {
            table: "t".to_owned(),
            updated,
            updated_hot,
            ..Report::default()
        };
        let facts = |fillfactor| Facts { fillfactor, unused: Vec::new() };
        assert_eq!(advice(&report(100, 0), &facts(100)).len(), 0);
        assert_eq!(advice(&report(10_000, 9_000), &facts(100)).len(), 0);
        assert_eq!(advice(&report(10_000, 100), &facts(60)).len(), 0);
        assert!(advice(&report(10_000, 100), &facts(100))[0].starts_with("1 % of the updates"));
        let unused = vec![("i".to_owned(), "a".to_owned())];
        let facts = Facts { fillfactor: 100, unused };
        assert!(advice(&report(10_000, 100), &facts)[0].contains("drop index i"));
    }
}
