//! What a sync did, and what would make the next one cheaper.

use std::time::Duration;

use serde::Serialize;

use pgspate_target::measure::{Bill, Difference, StatementCost};

/// What a sync did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SyncReport {
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
    /// Of these, those that were not staged, where the table was read ahead.
    pub rows_known: Option<u64>,
    /// Nothing was written: it was asked whether there are differences.
    pub is_check: bool,
    /// Keys of rows to insert, to update and to delete, three of each at most; for a check.
    pub examples: Examples,
    /// Sessions that shared the scopes, each with a transaction of its own.
    pub sessions: usize,
    /// Transactions that a session had for the scopes, one after the other.
    pub transactions: usize,
    /// Seconds for staging the source.
    pub stage_seconds: f64,
    /// Seconds for comparing and writing.
    pub write_seconds: f64,
    /// Seconds for vacuuming afterwards, where that was done.
    pub vacuum_seconds: Option<f64>,
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
    /// What could not be done although everything is written.
    pub warnings: Vec<String>,
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

impl Examples {
    /// So many of each.
    pub(super) const MOST: usize = 3;
}

impl SyncReport {
    /// Whether the table was, or is, like the source.
    pub fn is_same(&self) -> bool {
        self.inserted + self.updated + self.deleted == 0
    }

    /// The sum of what sessions found and did.
    pub(super) fn of_parts<'a>(parts: impl IntoIterator<Item = &'a SyncReport>) -> SyncReport {
        let parts: Vec<&SyncReport> = parts.into_iter().collect();
        let sum = |of: fn(&SyncReport) -> u64| parts.iter().map(|part| of(part)).sum::<u64>();
        let some = |of: fn(&SyncReport) -> &Vec<String>| {
            parts.iter().flat_map(|part| of(part)).take(Examples::MOST).cloned().collect()
        };
        let (inserted, updated) = (sum(|it| it.inserted), sum(|it| it.updated));
        SyncReport {
            rows_in: sum(|it| it.rows_in),
            inserted,
            updated,
            updated_hot: sum(|it| it.updated_hot),
            deleted: sum(|it| it.deleted),
            unchanged: sum(|it| it.rows_in).saturating_sub(inserted + updated),
            examples: Examples {
                insert: some(|it| &it.examples.insert),
                update: some(|it| &it.examples.update),
                delete: some(|it| &it.examples.delete),
            },
            sessions: parts.len(),
            transactions: 1,
            vacuum_seconds: parts.iter().filter_map(|it| it.vacuum_seconds).reduce(|a, b| a + b),
            warnings: parts.iter().flat_map(|it| &it.warnings).cloned().collect(),
            wal_bytes: sum(|it| it.wal_bytes),
            blocks_dirtied: sum(|it| it.blocks_dirtied),
            dead_rows: sum(|it| it.dead_rows),
            ..SyncReport::default()
        }
    }

    /// Takes in what another transaction has written, and what was left of it.
    pub(super) fn add(&mut self, written: SyncReport) {
        self.inserted += written.inserted;
        self.updated += written.updated;
        self.updated_hot += written.updated_hot;
        self.deleted += written.deleted;
        self.wal_bytes += written.wal_bytes;
        self.blocks_dirtied += written.blocks_dirtied;
        self.dead_rows += written.dead_rows;
        let vacuums = [self.vacuum_seconds, written.vacuum_seconds];
        self.vacuum_seconds = vacuums.into_iter().flatten().reduce(|sum, took| sum + took);
        let new = written.warnings.into_iter().filter(|it| !self.warnings.contains(it));
        let new: Vec<String> = new.collect();
        self.warnings.extend(new);
    }

    /// Takes in how long staging took, and what came after it; `vacuumed`: seconds of vacuums
    /// before that.
    pub(super) fn set_seconds(&mut self, stage: f64, written: Duration, vacuumed: Option<f64>) {
        self.stage_seconds = stage;
        let meanwhile = self.vacuum_seconds.unwrap_or_default() - vacuumed.unwrap_or_default();
        self.write_seconds = written.as_secs_f64() - meanwhile;
    }

    /// Whether its updates and deletes have made the table much larger.
    pub(super) fn has_grown(&self) -> bool {
        let [Some(before), Some(after)] = self.table_bytes else { return false };
        let grown = after.saturating_sub(before);
        // New rows alone make it grow as well.
        let is_of_updates = self.dead_rows >= self.inserted;
        grown >= GROWTH_THAT_TELLS && grown * 5 >= before && before > 0 && is_of_updates
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

/// AdviceFacts that advice depends on.
pub(super) struct AdviceFacts {
    /// `fillfactor` of the table, 100 unless set.
    pub(super) fillfactor: i32,
    /// Updates that the server has counted, and those of them that were HOT.
    pub(super) history: [u64; 2],
    /// Indexes on columns that updates change and which no query has used: name, columns.
    pub(super) unused: Vec<(String, String)>,
    /// There are scopes, and one transaction wrote all of them.
    pub(super) may_take_turns: bool,
}

/// Below this many updates, how they were done says little.
const UPDATES_THAT_TELL: u64 = 1000;

/// A table that grew by less is not worth more transactions.
const GROWTH_THAT_TELLS: u64 = 1 << 20;

/// What the numbers say. Updates that need not touch an index need room in the page. Ten nights of
/// the usual mix, with updates of 43 % of the rows each, left 1.31 M dead rows at fillfactor 100
/// and 0.68 M at 60. Where fewer rows change, less room is enough.
pub(super) fn advice(report: &SyncReport, facts: &AdviceFacts) -> Vec<String> {
    let mut advice: Vec<String> = turns_advice(report, facts).into_iter().collect();
    // A check has not updated anything; what others did before tells how it would have gone.
    let [updated, hot] = match report.is_check {
        true => facts.history,
        false => [report.updated, report.updated_hot],
    };
    if updated < UPDATES_THAT_TELL || report.updated == 0 || hot * 2 >= updated {
        return advice;
    }
    for (index, columns) in &facts.unused {
        advice.push(format!(
            "index {index} on {columns} is used by no query, and every update of these columns \
             has to write all indexes because of it: drop index {index}"
        ));
    }
    let fillfactor = if report.updated * 5 >= report.rows_in { 60 } else { 90 };
    if facts.fillfactor > fillfactor && facts.unused.is_empty() {
        advice.push(format!(
            "{} % of the updates found room in their page: alter table {} set (fillfactor = \
             {fillfactor}), and vacuum full or cluster it once, leaves room for them",
            100 * hot / updated,
            report.table
        ));
    }
    advice
}

/// Space of dead rows is free once the transaction that left them is over: the first of several
/// makes room for the others.
fn turns_advice(report: &SyncReport, facts: &AdviceFacts) -> Option<String> {
    let [Some(before), Some(after)] = report.table_bytes else { return None };
    (facts.may_take_turns && report.has_grown()).then(|| {
        format!(
            "the table grew by {} %, as new rows had no room where the old ones died: with \
             `--vacuum --transactions 2`, or more, later ones write into what the first one left",
            100 * after.saturating_sub(before) / before.max(1)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_given_when_the_numbers_say_so() {
        let report = |updated, updated_hot| SyncReport {
            table: "t".to_owned(),
            rows_in: 30_000,
            updated,
            updated_hot,
            ..SyncReport::default()
        };
        let facts = |fillfactor| AdviceFacts {
            fillfactor,
            history: [9000, 0],
            unused: Vec::new(),
            may_take_turns: false,
        };
        assert_eq!(advice(&report(100, 0), &facts(100)).len(), 0);
        assert_eq!(advice(&report(10_000, 9_000), &facts(100)).len(), 0);
        assert_eq!(advice(&report(10_000, 100), &facts(60)).len(), 0);
        let said = advice(&report(10_000, 100), &facts(100));
        assert!(said[0].starts_with("1 % of the updates"), "{said:?}");
        assert!(said[0].contains("(fillfactor = 60)"), "{said:?}");
        // Where little changes, a table two thirds larger is no help.
        assert!(advice(&report(2000, 0), &facts(100))[0].contains("(fillfactor = 90)"));
        assert_eq!(advice(&report(2000, 0), &facts(90)).len(), 0);
        let check = SyncReport { is_check: true, ..report(10_000, 0) };
        assert!(advice(&check, &facts(100))[0].starts_with("0 % of the updates"));
        assert_eq!(advice(&check, &AdviceFacts { history: [9000, 8000], ..facts(100) }).len(), 0);
        let unused = vec![("i".to_owned(), "a".to_owned())];
        let facts = AdviceFacts { unused, ..facts(100) };
        assert!(advice(&report(10_000, 100), &facts)[0].contains("drop index i"));
    }

    #[test]
    fn a_table_that_grew_may_take_turns() {
        let report = |before, after| SyncReport {
            updated: 500,
            inserted: 100,
            dead_rows: 600,
            table_bytes: [Some(before), Some(after)],
            ..SyncReport::default()
        };
        let facts = |may_take_turns| AdviceFacts {
            fillfactor: 100,
            history: [0, 0],
            unused: Vec::new(),
            may_take_turns,
        };
        let grown = report(10 << 20, 15 << 20);
        let said = advice(&grown, &facts(true));
        assert!(said[0].starts_with("the table grew by 50 %"), "{said:?}");
        assert_eq!(advice(&grown, &facts(false)).len(), 0);
        assert_eq!(advice(&report(10 << 20, 11 << 20), &facts(true)).len(), 0);
        assert_eq!(advice(&report(1 << 20, 3 << 19), &facts(true)).len(), 0);
        let new = SyncReport { dead_rows: 0, ..grown };
        assert_eq!(advice(&new, &facts(true)).len(), 0);
    }
}
