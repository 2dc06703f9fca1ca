//! The statements that partition a table without copying it: what there is becomes the first part.
//!
//! Its indexes and keys become parts of those of the whole, as they are the same, and its foreign
//! keys likewise, so that nothing is read again. Sequences go on where they are.

use pgspate_target::{quote_ident, quote_literal, truncate_ident};

/// A table in one piece, and what is brought over.
pub(super) struct Large<'a> {
    pub(super) schema: &'a str,
    pub(super) name: &'a str,
    /// The column to partition by.
    pub(super) by: &'a str,
    pub(super) owner: &'a str,
    /// ` with (fillfactor = '90')` and ` tablespace fast`, or nothing.
    pub(super) options: &'a str,
    pub(super) place: &'a str,
    /// Columns that have sequences of their own.
    pub(super) numbered: Vec<Column<'a>>,
    /// Statements that give the whole table its foreign keys; its grants and its comment.
    pub(super) references: Vec<&'a str>,
    pub(super) grants: Vec<&'a str>,
}

/// A column and the sequence, as SQL writes it, that belongs to it.
pub(super) struct Column<'a> {
    pub(super) name: &'a str,
    pub(super) sequence: &'a str,
    pub(super) is_identity: bool,
}

/// Where the first part ends and the second one does, as SQL writes them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    next: String,
    after: String,
}

impl Bounds {
    /// At the end of this year and of the next.
    pub(super) fn after_year(year: i32) -> Bounds {
        let begin = |year: i32| format!("'{year}-01-01'");
        Bounds { next: begin(year + 1), after: begin(year + 2) }
    }

    /// At least a quarter above what a sequence gave last, rounded up to two digits; twice that.
    /// `largest` is what the column holds at most; `None` where little of that is left.
    pub(super) fn after_number(last: Option<i64>, largest: i64) -> Option<Bounds> {
        let last = last.filter(|last| (1..=largest / 10 * 7).contains(last))?;
        let wanted = last + last / 4 + 1;
        let unit = 10_i64.pow(wanted.ilog10().saturating_sub(1));
        let next = wanted.checked_add(unit - 1)? / unit * unit;
        let after = next.checked_mul(2).filter(|after| *after <= largest);
        let after = after.map_or("maxvalue".to_owned(), |after| after.to_string());
        Some(Bounds { next: next.to_string(), after })
    }
}

impl Large<'_> {
    /// What to know before.
    pub(super) fn advice(&self, bounds: &Bounds) -> String {
        let (whole, old, by) = (self.whole(), self.part("_old"), quote_ident(self.by));
        let next = &bounds.next;
        let also = match self.references.is_empty() {
            true => "",
            false => ", or write to those it refers to,",
        };
        format!(
            "What there is becomes one part, and rows whose {by} is {next} or more go to new ones: \
             take bounds that suit what you have, and another column if this one does not grow. \
             Such rows are refused from the first statement to the last. Nobody can use the \
             table{also} from begin to commit, which takes a moment. Keys, indexes and the \
             sequences of identity columns get new names. If a statement fails: rollback; alter \
             table {whole} drop constraint if exists {old};"
        )
    }

    /// What to run, in order. The first two go beside readers and writers.
    pub(super) fn statements(&self, bounds: &Bounds) -> Vec<String> {
        let Large { options, place, .. } = self;
        let Bounds { next, after } = bounds;
        let (schema, by) = (quote_ident(self.schema), quote_ident(self.by));
        let (owner, whole) = (quote_ident(self.owner), self.whole());
        let (old, new, rest) = (self.part("_old"), self.part("_new"), self.part("_rest"));
        let mut statements = vec![
            format!("alter table {whole} add constraint {old} check ({by} < {next}) not valid;"),
            format!("alter table {whole} validate constraint {old};"),
            format!(
                "begin; alter table {whole} rename to {old}; create table {whole} (like \
                 {schema}.{old} including all) partition by range ({by}){place}; alter table \
                 {whole} drop constraint {old}; alter table {whole} owner to {owner};"
            ),
        ];
        statements.extend(self.numbered.iter().map(|column| self.keep_counting(column)));
        statements.extend(self.references.iter().map(|it| (*it).to_owned()));
        statements.push(format!(
            "alter table {whole} attach partition {schema}.{old} for values from (minvalue) to \
             ({next});"
        ));
        statements.push(format!(
            "create table {schema}.{new} partition of {whole} for values from ({next}) to \
             ({after}){options}{place}; create table {schema}.{rest} partition of {whole} \
             default{options}{place}; alter table {schema}.{new} owner to {owner}; alter table \
             {schema}.{rest} owner to {owner};"
        ));
        statements.extend(self.grants.iter().map(|it| (*it).to_owned()));
        statements.push("commit;".to_owned());
        // Nothing else ever does.
        statements.push(format!("analyze {whole};"));
        statements
    }

    fn whole(&self) -> String {
        format!("{}.{}", quote_ident(self.schema), quote_ident(self.name))
    }

    /// The name of a part or a constraint, which the server would not cut off.
    fn part(&self, suffix: &str) -> String {
        let cut = truncate_ident(self.name);
        let cut = &cut[..cut.floor_char_boundary(50)];
        quote_ident(&format!("{cut}{suffix}")).into_owned()
    }

    /// The whole table goes on with the column's numbers. An identity's sequence is a new one, and
    /// a part may have none.
    fn keep_counting(&self, column: &Column<'_>) -> String {
        let (whole, name, sequence) = (self.whole(), quote_ident(column.name), column.sequence);
        if !column.is_identity {
            return format!("alter sequence {sequence} owned by {whole}.{name};");
        }
        let old = format!("{}.{}", quote_ident(self.schema), self.part("_old"));
        format!(
            "select setval(pg_get_serial_sequence({}, {}), last_value, is_called) from {sequence}; \
             alter table {old} alter {name} drop identity;",
            quote_literal(&whole),
            quote_literal(column.name)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_leave_room() {
        let int = i64::from(i32::MAX);
        for (last, largest, next, after) in [
            (1, int, "2", "4"),
            (100, int, "130", "260"),
            (8_000, i64::from(i16::MAX), "11000", "22000"),
            (22_000, i64::from(i16::MAX), "28000", "maxvalue"),
            (1_500_000_000, int, "1900000000", "maxvalue"),
            (1_500_000_000, i64::MAX, "1900000000", "3800000000"),
            (i64::MAX / 10 * 7, i64::MAX, "8100000000000000000", "maxvalue"),
        ] {
            let bounds = Bounds { next: next.to_owned(), after: after.to_owned() };
            assert_eq!(Bounds::after_number(Some(last), largest), Some(bounds));
        }
        for none in [None, Some(0), Some(-1), Some(1_600_000_000)] {
            assert_eq!(Bounds::after_number(none, int), None);
        }
        assert_eq!(Bounds::after_year(2026).next, "'2027-01-01'");
    }
}
