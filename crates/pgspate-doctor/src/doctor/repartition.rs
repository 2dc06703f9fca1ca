//! Writes the statements that partition a table without copying it: the existing table becomes the
//! first partition.
//!
//! The partitioned table gets the same indexes, keys and foreign keys. The server attaches those of
//! the first partition to them, so no row is read again. Sequences keep their values.

use pgspate_target::{quote_ident, quote_literal, truncate_ident};

/// An unpartitioned table, and the properties that the partitioned table gets.
pub(super) struct LargeTable<'a> {
    pub(super) schema: &'a str,
    pub(super) name: &'a str,
    /// The partition column.
    pub(super) by: &'a str,
    pub(super) owner: &'a str,
    /// The storage options, such as ` with (fillfactor = '90')`; may be empty.
    pub(super) options: &'a str,
    /// The tablespace, such as ` tablespace fast`; may be empty.
    pub(super) tablespace: &'a str,
    /// The columns that own sequences.
    pub(super) sequence_columns: Vec<SequenceColumn<'a>>,
    /// Statements that add the foreign keys.
    pub(super) references: Vec<&'a str>,
    /// Statements that set the grants and the comment.
    pub(super) grants: Vec<&'a str>,
}

/// A column and its sequence, as SQL writes the sequence's name.
pub(super) struct SequenceColumn<'a> {
    pub(super) name: &'a str,
    pub(super) sequence: &'a str,
    pub(super) is_identity: bool,
}

/// The upper bounds of the first two partitions, as SQL writes them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PartitionBounds {
    first_end: String,
    second_end: String,
}

impl PartitionBounds {
    /// Returns the ends of this year and of the next year.
    pub(super) fn after_year(year: i32) -> PartitionBounds {
        let begin = |year: i32| format!("'{year}-01-01'");
        PartitionBounds { first_end: begin(year + 1), second_end: begin(year + 2) }
    }

    /// Returns bounds for numbers: the first is at least a quarter above the sequence's last value,
    /// rounded up to two digits; the second is twice the first. `largest` is the largest value of
    /// the column's type. Returns `None` if more than 70 % of the values are used.
    pub(super) fn after_number(last: Option<i64>, largest: i64) -> Option<PartitionBounds> {
        let last = last.filter(|last| (1..=largest / 10 * 7).contains(last))?;
        let wanted = last + last / 4 + 1;
        let unit = 10_i64.pow(wanted.ilog10().saturating_sub(1));
        let first_end = wanted.checked_add(unit - 1)? / unit * unit;
        let second_end = first_end.checked_mul(2).filter(|end| *end <= largest);
        let second_end = second_end.map_or("maxvalue".to_owned(), |end| end.to_string());
        Some(PartitionBounds { first_end: first_end.to_string(), second_end })
    }
}

impl LargeTable<'_> {
    /// Returns the advice that the user must read before running the statements.
    pub(super) fn advice(&self, bounds: &PartitionBounds) -> String {
        let (parent, old, by) = (self.parent(), self.part("_old"), quote_ident(self.by));
        let first_end = &bounds.first_end;
        let also = match self.references.is_empty() {
            true => "",
            false => ", and no session can write to the tables that it references",
        };
        format!(
            "The existing table becomes the first partition; rows whose {by} is {first_end} or \
             more go to new partitions. Choose bounds that suit your data, and another column if \
             {by} does not grow. Such rows are refused from the first statement until the last. \
             From begin to commit, which takes a moment, no session can use the table{also}. Keys, \
             indexes and the sequences of identity columns get new names. If a statement fails, \
             run: rollback; alter table {parent} drop constraint if exists {old};"
        )
    }

    /// Returns the statements in order. The first two do not block readers and writers.
    pub(super) fn statements(&self, bounds: &PartitionBounds) -> Vec<String> {
        let LargeTable { options, tablespace, .. } = self;
        let PartitionBounds { first_end, second_end } = bounds;
        let (schema, by) = (quote_ident(self.schema), quote_ident(self.by));
        let (owner, parent) = (quote_ident(self.owner), self.parent());
        let (old, new, rest) = (self.part("_old"), self.part("_new"), self.part("_rest"));
        let mut statements = vec![
            format!(
                "alter table {parent} add constraint {old} check ({by} < {first_end}) not valid;"
            ),
            format!("alter table {parent} validate constraint {old};"),
            format!(
                "begin; alter table {parent} rename to {old}; create table {parent} (like \
                 {schema}.{old} including all) partition by range ({by}){tablespace}; alter table \
                 {parent} drop constraint {old}; alter table {parent} owner to {owner};"
            ),
        ];
        let columns = self.sequence_columns.iter();
        statements.extend(columns.map(|column| self.keep_sequence(column)));
        statements.extend(self.references.iter().map(|it| (*it).to_owned()));
        statements.push(format!(
            "alter table {parent} attach partition {schema}.{old} for values from (minvalue) to \
             ({first_end});"
        ));
        statements.push(format!(
            "create table {schema}.{new} partition of {parent} for values from ({first_end}) \
             to ({second_end}){options}{tablespace}; create table {schema}.{rest} partition of \
             {parent} default{options}{tablespace}; alter table {schema}.{new} owner to {owner}; \
             alter table \
             {schema}.{rest} owner to {owner};"
        ));
        statements.extend(self.grants.iter().map(|it| (*it).to_owned()));
        statements.push("commit;".to_owned());
        // Autovacuum never analyzes a partitioned table.
        statements.push(format!("analyze {parent};"));
        statements
    }

    /// Returns the name of the partitioned table, as SQL writes it.
    fn parent(&self) -> String {
        format!("{}.{}", quote_ident(self.schema), quote_ident(self.name))
    }

    /// Returns the name of a partition or a constraint, short enough that the server keeps all of
    /// it.
    fn part(&self, suffix: &str) -> String {
        let cut = truncate_ident(self.name);
        let cut = &cut[..cut.floor_char_boundary(50)];
        quote_ident(&format!("{cut}{suffix}")).into_owned()
    }

    /// Returns a statement by which the partitioned table continues the column's sequence. An
    /// identity column of the partitioned table has a new sequence, and a partition has none.
    fn keep_sequence(&self, column: &SequenceColumn<'_>) -> String {
        let (parent, name, sequence) = (self.parent(), quote_ident(column.name), column.sequence);
        if !column.is_identity {
            return format!("alter sequence {sequence} owned by {parent}.{name};");
        }
        let old = format!("{}.{}", quote_ident(self.schema), self.part("_old"));
        format!(
            "select setval(pg_get_serial_sequence({}, {}), last_value, is_called) from {sequence}; \
             alter table {old} alter {name} drop identity;",
            quote_literal(&parent),
            quote_literal(column.name)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_leave_room_for_new_rows() {
        let int = i64::from(i32::MAX);
        for (last, largest, first_end, second_end) in [
            (1, int, "2", "4"),
            (100, int, "130", "260"),
            (8_000, i64::from(i16::MAX), "11000", "22000"),
            (22_000, i64::from(i16::MAX), "28000", "maxvalue"),
            (1_500_000_000, int, "1900000000", "maxvalue"),
            (1_500_000_000, i64::MAX, "1900000000", "3800000000"),
            (i64::MAX / 10 * 7, i64::MAX, "8100000000000000000", "maxvalue"),
        ] {
            let (first_end, second_end) = (first_end.to_owned(), second_end.to_owned());
            let bounds = PartitionBounds { first_end, second_end };
            assert_eq!(PartitionBounds::after_number(Some(last), largest), Some(bounds));
        }
        for none in [None, Some(0), Some(-1), Some(1_600_000_000)] {
            assert_eq!(PartitionBounds::after_number(none, int), None);
        }
        assert_eq!(PartitionBounds::after_year(2026).first_end, "'2027-01-01'");
    }
}
