//! The report of a sync, and advice that would make the next sync cheaper.

use std::time::Duration;

use serde::Serialize;

use crate::fleet::MemberReport;
use crate::load::AddedColumn;
use crate::numbers;
use pgspate_target::advised_fillfactor;
use pgspate_target::measure::{IoBill, MeasuredDifference, StatementCost, TransactionCounters};

/// The result of a sync.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SyncReport {
    /// The table's name in SQL.
    pub table: String,
    /// Whether the sync created the table.
    pub created: bool,
    /// Columns that the sync added to the table.
    pub added_columns: Vec<AddedColumn>,
    /// Rows of the source. With `--keep last`, one for each key.
    pub rows_in: u64,
    /// Rows that were inserted.
    pub inserted: u64,
    /// Rows that were updated.
    pub updated: u64,
    /// Updated rows that were HOT: written to the same page, without touching an index. `None` if
    /// other servers store the rows.
    pub updated_hot: Option<u64>,
    /// Rows of the scope that were deleted, because the source does not have them.
    pub deleted: u64,
    /// Rows that were already equal. They were only read. With [`SyncReport::insert_only`], rows
    /// whose keys the table had; they were not compared.
    pub unchanged: u64,
    /// Unchanged rows that were not even staged, because the table was read ahead.
    pub rows_known: Option<u64>,
    /// Whether this was a check: differences are counted, and nothing is written.
    pub is_check: bool,
    /// Whether rows were only inserted, and rows that the table has were not compared.
    pub insert_only: bool,
    /// For a check: up to three keys each of rows to insert, to update and to delete.
    pub examples: Examples,
    /// Sessions that shared the scopes, each with its own transaction.
    pub sessions: usize,
    /// Consecutive transactions of one session.
    pub transactions: usize,
    /// Seconds for staging the source.
    pub stage_seconds: f64,
    /// Seconds for comparing and writing.
    pub write_seconds: f64,
    /// Seconds for vacuuming the table; `None` without a vacuum.
    pub vacuum_seconds: Option<f64>,
    /// WAL bytes of the writing statements, without the WAL of later index cleanup. `None` if other
    /// servers store the rows.
    pub wal_bytes: Option<u64>,
    /// Pages that were clean before the writing statements changed them. `None` if other servers
    /// store the rows.
    pub blocks_dirtied: Option<u64>,
    /// Dead row versions that the sync left.
    pub dead_rows: u64,
    /// Pages of the table, its indexes and its TOAST table that were read during the sync.
    pub blocks_read: Option<u64>,
    /// Pages that were found in the server's cache.
    pub blocks_hit: Option<u64>,
    /// Bytes of the table, before and after the sync.
    pub table_bytes: [Option<u64>; 2],
    /// Bytes of the table's indexes, before and after the sync.
    pub index_bytes: [Option<u64>; 2],
    /// Estimated dead row versions in the table, before and after the sync.
    pub table_dead_rows: [Option<u64>; 2],
    /// Estimated cost of the sync's reads and writes on a server whose I/Os are billed.
    pub bill: Option<IoBill>,
    /// Everything that the server counted during the sync, for all sessions.
    pub measured: MeasuredDifference,
    /// Advice that would make the next sync cheaper.
    pub advice: Vec<String>,
    /// Warnings about work that failed after the rows were committed, and about triggers that kept
    /// rows out.
    pub warnings: Vec<String>,
    /// Inserts, updates and deletes that triggers kept out.
    pub changes_kept_out: u64,
    /// Rows to insert or update that triggers kept out.
    #[serde(skip)]
    pub(super) kept_out: u64,
    /// Facts that were found about the source, such as its format and whether it has a header.
    pub input: Vec<String>,
    /// The warning about names in the input: the first line may be a row, or the names have
    /// another order than those of `--columns`.
    #[serde(skip)]
    pub names_warning: Option<String>,
    /// Which member of a fleet the sync was, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<MemberReport>,
}

/// Example keys, as text.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Examples {
    /// Keys of rows to insert.
    pub insert: Vec<String>,
    /// Keys of rows to update.
    pub update: Vec<String>,
    /// Keys of rows to delete.
    pub delete: Vec<String>,
}

impl Examples {
    /// Maximum number of examples of each kind.
    pub(super) const COUNT_MAX: usize = 3;
}

impl SyncReport {
    /// Returns whether the table and the source had no differences.
    pub fn is_same(&self) -> bool {
        self.inserted + self.updated + self.deleted == 0
    }

    /// Lowers the counts to the rows that the server has written, and warns if triggers kept rows
    /// out. More deletes than expected mean that rows were deleted and inserted again, or that a
    /// trigger has deleted rows. The counts then tell nothing.
    pub(super) fn note_kept_out(&mut self, counted: TransactionCounters, table: &str) {
        if !counted.may_keep_rows_out || counted.deleted > self.deleted {
            return;
        }
        let inserted = self.inserted.min(counted.inserted);
        let updated = self.updated.min(counted.updated);
        self.kept_out = self.inserted - inserted + self.updated - updated;
        self.changes_kept_out = self.kept_out + self.deleted - counted.deleted;
        (self.inserted, self.updated, self.deleted) = (inserted, updated, counted.deleted);
        if self.changes_kept_out > 0 {
            let changes = numbers::counted(self.changes_kept_out, "change");
            self.warnings.push(format!("triggers of {table} kept out {changes}"));
        }
    }

    /// Adds up the reports of several sessions.
    pub(super) fn of_parts<'a>(parts: impl IntoIterator<Item = &'a SyncReport>) -> SyncReport {
        let parts: Vec<&SyncReport> = parts.into_iter().collect();
        let sum = |of: fn(&SyncReport) -> u64| parts.iter().map(|part| of(part)).sum::<u64>();
        let sum_known = |of: fn(&SyncReport) -> Option<u64>| {
            parts.iter().map(|part| of(part)).sum::<Option<u64>>()
        };
        let some = |of: fn(&SyncReport) -> &Vec<String>| {
            parts.iter().flat_map(|part| of(part)).take(Examples::COUNT_MAX).cloned().collect()
        };
        let (inserted, updated) = (sum(|it| it.inserted), sum(|it| it.updated));
        let kept_out = sum(|it| it.kept_out);
        SyncReport {
            rows_in: sum(|it| it.rows_in),
            inserted,
            updated,
            updated_hot: sum_known(|it| it.updated_hot),
            deleted: sum(|it| it.deleted),
            unchanged: sum(|it| it.rows_in).saturating_sub(inserted + updated + kept_out),
            changes_kept_out: sum(|it| it.changes_kept_out),
            kept_out,
            examples: Examples {
                insert: some(|it| &it.examples.insert),
                update: some(|it| &it.examples.update),
                delete: some(|it| &it.examples.delete),
            },
            sessions: parts.len(),
            transactions: 1,
            vacuum_seconds: parts.iter().filter_map(|it| it.vacuum_seconds).reduce(|a, b| a + b),
            warnings: parts.iter().flat_map(|it| &it.warnings).cloned().collect(),
            wal_bytes: sum_known(|it| it.wal_bytes),
            blocks_dirtied: sum_known(|it| it.blocks_dirtied),
            dead_rows: sum(|it| it.dead_rows),
            ..SyncReport::default()
        }
    }

    /// Adds the report of another transaction.
    pub(super) fn add(&mut self, written: SyncReport) {
        let sum = |a: Option<u64>, b| [a, b].into_iter().flatten().reduce(|a, b| a + b);
        self.inserted += written.inserted;
        self.updated += written.updated;
        self.updated_hot = sum(self.updated_hot, written.updated_hot);
        self.deleted += written.deleted;
        self.changes_kept_out += written.changes_kept_out;
        self.wal_bytes = sum(self.wal_bytes, written.wal_bytes);
        self.blocks_dirtied = sum(self.blocks_dirtied, written.blocks_dirtied);
        self.dead_rows += written.dead_rows;
        let vacuums = [self.vacuum_seconds, written.vacuum_seconds];
        self.vacuum_seconds = vacuums.into_iter().flatten().reduce(|sum, took| sum + took);
        let new = written.warnings.into_iter().filter(|it| !self.warnings.contains(it));
        let new: Vec<String> = new.collect();
        self.warnings.extend(new);
    }

    /// Sets the seconds for staging, and the seconds for comparing and writing without vacuums.
    /// `written` includes vacuums. `vacuumed_before` is the seconds of vacuums before `written`
    /// began.
    pub(super) fn set_seconds(
        &mut self,
        stage: f64,
        written: Duration,
        vacuumed_before: Option<f64>,
    ) {
        self.stage_seconds = stage;
        let vacuumed =
            self.vacuum_seconds.unwrap_or_default() - vacuumed_before.unwrap_or_default();
        self.write_seconds = written.as_secs_f64() - vacuumed;
    }

    /// Returns whether updates and deletes have made the table much larger.
    pub(super) fn has_grown(&self) -> bool {
        let [Some(before), Some(after)] = self.table_bytes else { return false };
        let grown = after.saturating_sub(before);
        // Inserted rows alone also make the table grow.
        let has_grown_by_updates = self.dead_rows >= self.inserted;
        grown >= GROWTH_BYTES_MIN && grown * 5 >= before && before > 0 && has_grown_by_updates
    }

    /// Records the cost of the writing statements, if it is known, and their dead rows.
    pub(super) fn set_cost(&mut self, cost: Option<StatementCost>) {
        self.wal_bytes = cost.map(|cost| cost.wal_bytes);
        self.blocks_dirtied = cost.map(|cost| cost.blocks_dirtied);
        self.dead_rows = self.updated + self.deleted;
    }

    /// Records the server's counters.
    pub(super) fn set_measured(&mut self, measured: MeasuredDifference, price_per_million: f64) {
        if let Some(tables) = &measured.tables {
            let states = [&tables.before, &tables.after];
            self.blocks_read = tables.counted.blocks_read();
            self.blocks_hit = tables.counted.blocks_hit();
            self.table_bytes = states.map(|state| state.table_bytes);
            self.index_bytes = states.map(|state| state.index_bytes);
            self.table_dead_rows = states.map(|state| state.rows_dead);
        }
        self.bill = (self.blocks_read.zip(self.wal_bytes))
            .map(|(read, wal)| IoBill::estimate(read, wal, price_per_million));
        self.measured = measured;
    }
}

/// Facts that the advice depends on.
pub(super) struct AdviceFacts {
    /// The largest fillfactor of the table and its partitions; 100 unless set.
    pub(super) fillfactor: i32,
    /// Whether the table has partitions. Only they have a fillfactor then.
    pub(super) has_partitions: bool,
    /// Numbers of updates and of HOT updates in the server's statistics.
    pub(super) history: [u64; 2],
    /// Updates between two vacuums, in the server's statistics.
    pub(super) updates_per_vacuum: u64,
    /// Rows of the table, in the server's statistics.
    pub(super) rows: u64,
    /// Unused indexes on columns that updates change: name, columns.
    pub(super) unused: Vec<(String, String)>,
    /// Whether one transaction wrote all scopes, although several transactions could have written
    /// the scopes.
    pub(super) can_split: bool,
}

/// Minimum number of updates to draw conclusions from.
const UPDATES_MIN: u64 = 1000;

/// Minimum growth in bytes that justifies more transactions.
const GROWTH_BYTES_MIN: u64 = 1 << 20;

/// Returns whether there may be advice, which depends on facts that are to be read.
pub(super) fn may_be_advised(report: &SyncReport) -> bool {
    report.is_check || report.has_grown() || lack_room(updates(report))
}

/// Returns the numbers of updates and of HOT updates of a sync.
fn updates(report: &SyncReport) -> [u64; 2] {
    [report.updated, report.updated_hot.unwrap_or(report.updated)]
}

/// Returns whether most updates found no room in their page, or changed an indexed column.
fn lack_room([updated, hot]: [u64; 2]) -> bool {
    updated >= UPDATES_MIN && hot * 2 < updated
}

/// Returns advice that would make the next sync cheaper. HOT updates need free space in the page.
pub(super) fn advice(report: &SyncReport, facts: &AdviceFacts) -> Vec<String> {
    let mut advice: Vec<String> = split_advice(report, facts).into_iter().collect();
    // A check updates nothing, so the server's statistics of earlier updates count.
    let [updated, hot] = match report.is_check {
        true => facts.history,
        false => updates(report),
    };
    if report.updated == 0 || !lack_room([updated, hot]) {
        return advice;
    }
    for (index, columns) in &facts.unused {
        advice.push(format!(
            "no query uses index {index} on {columns}, and because of the index, every update of \
             these columns has to write all indexes: drop index {index}"
        ));
    }
    // `pgspate doctor` judges by the statistics alone, and must not advise another fillfactor.
    let fillfactor = advised_fillfactor(report.updated, report.rows_in)
        .min(advised_fillfactor(facts.updates_per_vacuum, facts.rows.max(report.rows_in)));
    if facts.fillfactor > fillfactor && facts.unused.is_empty() {
        let table = &report.table;
        let (of, each) = match facts.has_partitions {
            true => (format!("for each partition of {table}, "), "PARTITION"),
            false => (String::new(), table.as_str()),
        };
        advice.push(format!(
            "{} % of the updates found room in their page; to leave room for more, {of}run alter \
             table {each} set (fillfactor = {fillfactor}), and vacuum full or cluster the table \
             once",
            100 * hot / updated,
        ));
    }
    advice
}

/// Advises several transactions with a vacuum after each, if the table grew. A later transaction
/// then reuses the space of the dead rows that an earlier transaction left.
fn split_advice(report: &SyncReport, facts: &AdviceFacts) -> Option<String> {
    let [Some(before), Some(after)] = report.table_bytes else { return None };
    (facts.can_split && report.has_grown()).then(|| {
        format!(
            "the table grew by {} %, because new row versions could not reuse the space of dead \
             rows; with `--vacuum --transactions 2` or more, later transactions reuse the space \
             of dead rows that earlier transactions left",
            100 * after.saturating_sub(before) / before.max(1)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_depends_on_updates_and_fillfactor() {
        let report = |updated, updated_hot| SyncReport {
            table: "t".to_owned(),
            rows_in: 30_000,
            updated,
            updated_hot: Some(updated_hot),
            ..SyncReport::default()
        };
        let facts = |fillfactor| AdviceFacts {
            fillfactor,
            has_partitions: false,
            history: [9000, 0],
            updates_per_vacuum: 900,
            rows: 30_000,
            unused: Vec::new(),
            can_split: false,
        };
        assert_eq!(advice(&report(100, 0), &facts(100)).len(), 0);
        assert_eq!(advice(&report(10_000, 9_000), &facts(100)).len(), 0);
        assert_eq!(advice(&report(10_000, 100), &facts(60)).len(), 0);
        let said = advice(&report(10_000, 100), &facts(100));
        assert!(said[0].starts_with("1 % of the updates"), "{said:?}");
        assert!(said[0].contains("(fillfactor = 60)"), "{said:?}");
        let parts = AdviceFacts { has_partitions: true, ..facts(100) };
        let said = advice(&report(10_000, 100), &parts);
        assert!(said[0].contains("for each partition of t, run alter table PARTITION"), "{said:?}");
        // With few changes, a table that is larger by two thirds does not pay.
        assert!(advice(&report(2000, 0), &facts(100))[0].contains("(fillfactor = 90)"));
        assert_eq!(advice(&report(2000, 0), &facts(90)).len(), 0);
        // Several jobs between two vacuums need more room.
        let many = AdviceFacts { updates_per_vacuum: 6000, ..facts(90) };
        assert!(advice(&report(2000, 0), &many)[0].contains("(fillfactor = 60)"));
        let check = SyncReport { is_check: true, ..report(10_000, 0) };
        assert!(advice(&check, &facts(100))[0].starts_with("0 % of the updates"));
        assert_eq!(advice(&check, &AdviceFacts { history: [9000, 8000], ..facts(100) }).len(), 0);
        let unused = vec![("i".to_owned(), "a".to_owned())];
        let facts = AdviceFacts { unused, ..facts(100) };
        assert!(advice(&report(10_000, 100), &facts)[0].contains("drop index i"));
    }

    #[test]
    fn a_table_that_grew_is_advised_several_transactions() {
        let report = |before, after| SyncReport {
            updated: 500,
            inserted: 100,
            dead_rows: 600,
            table_bytes: [Some(before), Some(after)],
            ..SyncReport::default()
        };
        let facts = |can_split| AdviceFacts {
            fillfactor: 100,
            has_partitions: false,
            history: [0, 0],
            updates_per_vacuum: 0,
            rows: 0,
            unused: Vec::new(),
            can_split,
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
