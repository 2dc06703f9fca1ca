//! The statements that apply what is staged. Pure: names in, SQL out.
//!
//! `t` is the target, `s` the stage: a temporary table, or for a few rows the statement's own
//! parameters. Only one for a single row sets a column of the key, none has `on conflict` or is a
//! `merge`, and none writes a row that is as it should be. The text depends on the table and on
//! which columns a batch gives, never on values, and of few rows not on their number.

use crate::apply::batch::{ColumnPresence, EncodedTable, RowAction};
use crate::apply::route::{ApplyTable, ApplyColumn};
use pgspate_target::ledger::TRANSACTION;
use pgspate_target::quote_ident;

const WHAT: &str = "\"pgspate what\"";
const GIVEN: &str = "\"pgspate given\"";
const NTH: &str = "\"pgspate nth\"";

/// Builds statements for the staged rows of one table.
pub(crate) struct ApplyStatements<'a> {
    facts: &'a ApplyTable,
    /// The target, with its heirs left alone.
    table: String,
    stage: String,
    /// Where rows are read from, as `s`.
    source: String,
    is_direct: bool,
    given: Vec<ColumnPresence>,
    truncates: bool,
    frees: bool,
    /// Of many rows, those that go or those that come are so many that the planner should know.
    goes_many: bool,
    comes_many: bool,
}

/// Where staged rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowSource {
    /// In the table's stage.
    Stage,
    /// In the statement's three parameters: rows of the table, what becomes of each, and which
    /// columns each gives. None of them comes from another key or begins anew.
    Parameters,
}

/// From so many rows on it counts how they are found.
const MANY_ROWS: u64 = 1000;

/// The name of a table's stage.
pub(crate) fn stage_name(facts: &ApplyTable) -> String {
    format!("pgspate_apply_{}_{}", facts.table.oid, facts.version)
}

/// Makes the stage of a table, for the session.
pub(crate) fn make_stage(facts: &ApplyTable) -> String {
    let columns: Vec<_> = facts
        .columns
        .iter()
        .map(|column| format!("{} as {}", beneath("", column), column.sql))
        .collect();
    let mut from: Vec<_> = from_names(facts)
        .zip(key(facts))
        .map(|(name, column)| format!(", {} as {name}", beneath("", column)))
        .collect();
    if !facts.has_key() {
        from.push(format!(", 0::int8 as {NTH}"));
    }
    format!(
        "create temporary table {} on commit delete rows as \
         select {}, 0::int2 as {WHAT}, ''::bytea as {GIVEN}{} from {} with no data",
        stage_name(facts),
        columns.join(", "),
        from.concat(),
        facts.table.sql_name
    )
}

/// A column of the type that its stage has: a domain may refuse the NULL of what is absent.
fn beneath(of: &str, column: &ApplyColumn) -> String {
    match &column.beneath {
        Some(ty) => format!("{of}{}::{ty}", column.sql),
        None => format!("{of}{}", column.sql),
    }
}

/// Fills the stage of a table.
pub(crate) fn copy(facts: &ApplyTable, format: &str) -> String {
    let columns: Vec<_> = facts.columns.iter().map(|column| column.sql.clone()).collect();
    let mut from: Vec<_> = from_names(facts).map(|name| format!(", {name}")).collect();
    if !facts.has_key() {
        from.push(format!(", {NTH}"));
    }
    format!(
        "copy pg_temp.{} ({}, {WHAT}, {GIVEN}{}) from stdin (format {format})",
        stage_name(facts),
        columns.join(", "),
        from.concat()
    )
}

fn key(facts: &ApplyTable) -> impl Iterator<Item = &ApplyColumn> {
    facts.keying.columns.iter().map(|(at, _)| &facts.columns[*at])
}

fn from_names(facts: &ApplyTable) -> impl Iterator<Item = String> {
    (1..=facts.keying.columns.len()).map(|nth| format!("\"pgspate from {nth}\""))
}

impl<'a> ApplyStatements<'a> {
    pub(crate) fn new(
        facts: &'a ApplyTable,
        prepared: &EncodedTable,
        source: RowSource,
        frees: bool,
    ) -> ApplyStatements<'a> {
        // Rows that come from elsewhere, or begin anew, are made to give all.
        let cancels = !facts.has_key() && prepared.goes > 0;
        let fills = prepared.has_moves || prepared.has_fresh || frees || cancels;
        let widened = |given: &ColumnPresence| match given {
            ColumnPresence::Never if fills => ColumnPresence::Sometimes,
            other => *other,
        };
        let stage = format!("pg_temp.{}", stage_name(facts));
        let rows = prepared.goes + prepared.comes;
        let is_many = |some: u64| rows > MANY_ROWS && some >= rows / 4;
        ApplyStatements {
            facts,
            table: facts.itself(),
            source: match source {
                RowSource::Stage => format!("{stage} s"),
                RowSource::Parameters => parameters(facts),
            },
            is_direct: source == RowSource::Parameters,
            stage,
            goes_many: is_many(prepared.goes),
            comes_many: is_many(prepared.comes),
            given: prepared.given.iter().map(widened).collect(),
            truncates: prepared.truncates,
            frees,
        }
    }

    /// Whether rows go and come again.
    pub(crate) fn frees(&self) -> bool {
        self.frees
    }

    /// For each unique index: rows that are to have what another row has now go and come again,
    /// with all that they have.
    pub(crate) fn free(&self) -> Vec<String> {
        let unique = self.facts.unique.iter().filter(|_| self.frees);
        unique.map(|columns| self.free_of(columns)).collect()
    }

    fn free_of(&self, columns: &[usize]) -> String {
        let (mut differs, mut holds) = (Vec::new(), Vec::new());
        for at in columns {
            let column = &self.facts.columns[*at];
            let name = &column.sql;
            let new = format!("(case when {} then s.{name} else t.{name} end)", bit(*at));
            differs.push(column.differ(&format!("t.{name}"), &new));
            holds.push(column.equal(&format!("o.{name}"), &new));
        }
        format!(
            "update {} s set {}, {WHAT} = {} from {} t \
             where s.{WHAT} in ({}, {}) and {} and ({}) \
             and exists (select from {} o where {}){}",
            self.stage,
            self.filled_columns(|column| format!("t.{}", column.sql)),
            RowAction::Frees as i16,
            self.table,
            RowAction::Changes as i16,
            RowAction::Comes as i16,
            self.matches(),
            differs.join(" or "),
            self.table,
            holds.join(" and "),
            self.unreferenced()
        )
    }

    /// That nothing refers to the target's row.
    fn unreferenced(&self) -> String {
        self.facts.referrers.iter().map(|refers| format!(" and not {refers}")).collect()
    }

    /// Whether rows that go because they have another key now would take others with them. `None`
    /// where none could.
    pub(crate) fn takes_along(&self) -> Option<String> {
        let (first, _) = self.facts.keying.columns.first()?;
        (!self.facts.followers.is_empty()).then(|| {
            format!(
                "select exists (select from {} t join {} on {} where s.{WHAT} = {} and {} \
                 and ({}))",
                self.table,
                self.source,
                self.matches(),
                RowAction::Goes as i16,
                bit(*first),
                self.facts.followers.join(" or ")
            )
        })
    }

    /// Whether a row takes a key that another row of the target has.
    pub(crate) fn takes(&self) -> String {
        let from: Vec<_> = from_names(self.facts)
            .zip(key(self.facts))
            .map(|(name, column)| column.equal(&format!("o.{}", column.sql), &format!("s.{name}")))
            .collect();
        let is_known = from_names(self.facts).next().unwrap_or_default();
        format!(
            "select exists (select from {} join {} t on {} where s.{WHAT} = {} and \
             (s.{is_known} is null or exists (select from {} o where {})))",
            self.source,
            self.table,
            self.matches(),
            RowAction::Takes as i16,
            self.table,
            from.join(" and ")
        )
    }

    /// Takes the keys out of the stage that rows take.
    pub(crate) fn forget_takes(&self) -> String {
        format!("delete from {} where s.{WHAT} = {}", self.source, RowAction::Takes as i16)
    }

    /// Whether any key is staged twice. Of parameters it is an error instead, as their statements
    /// are sent without looking at answers.
    pub(crate) fn duplicates(&self) -> String {
        let key: Vec<_> = key(self.facts).map(|column| format!("s.{}", column.sql)).collect();
        let (from, key) = (&self.source, key.join(", "));
        let exist = format!("exists (select from {from} group by {key} having count(*) > 1)");
        match self.is_direct {
            true => format!("select 1 / (not {exist})::int4"),
            false => format!("select {exist}"),
        }
    }

    /// Completes rows that come from another key by what the target has under it.
    pub(crate) fn fill_moves(&self) -> String {
        let matches: Vec<_> = from_names(self.facts)
            .zip(key(self.facts))
            .map(|(name, column)| column.equal(&format!("t.{}", column.sql), &format!("s.{name}")))
            .collect();
        format!(
            "update {} s set {} from {} t where {}",
            self.stage,
            self.filled(|column| format!("t.{}", column.sql)),
            self.table,
            matches.join(" and ")
        )
    }

    /// Completes rows that begin anew by defaults.
    pub(crate) fn fill_fresh(&self) -> String {
        format!(
            "update {} s set {} where s.{WHAT} = {}",
            self.stage,
            self.filled(|column| column.default.clone()),
            RowAction::Fresh as i16
        )
    }

    /// Sets what is not given, and that the row comes with all.
    fn filled(&self, value: impl Fn(&ApplyColumn) -> String) -> String {
        format!("{}, {WHAT} = {}", self.filled_columns(value), RowAction::Comes as i16)
    }

    /// Sets what is not given, and that all is.
    fn filled_columns(&self, value: impl Fn(&ApplyColumn) -> String) -> String {
        let sets =
            self.columns().filter(|(at, _, given)| *given != ColumnPresence::Always && !self.is_key(*at));
        let sets: Vec<_> = sets
            .map(|(at, column, _)| {
                let (name, bit) = (&column.sql, bit(at));
                format!("{name} = case when {bit} then s.{name} else {} end, ", value(column))
            })
            .collect();
        let all = "ff".repeat(self.facts.columns.len().div_ceil(8));
        format!("{}{GIVEN} = '\\x{all}'", sets.concat())
    }

    /// How many updates find no row.
    pub(crate) fn missing(&self) -> String {
        format!(
            "select count(*) from {} where s.{WHAT} = {} and not exists ({})",
            self.source,
            RowAction::Changes as i16,
            self.found()
        )
    }

    /// Deletes rows that go: before all else those to which nothing refers, or in the end all.
    pub(crate) fn delete(&self, is_early: bool) -> String {
        let unreferenced = match is_early && self.facts.is_referenced {
            true => self.unreferenced(),
            false => String::new(),
        };
        let which = match () {
            () if is_early && self.frees => {
                format!("in ({}, {})", RowAction::Goes as i16, RowAction::Frees as i16)
            }
            // Without statistics the planner takes a third of the rows to be less than a value,
            // and one in two hundred to be equal to it.
            () if self.goes_many => format!("<= {}", RowAction::Goes as i16),
            () => format!("= {}", RowAction::Goes as i16),
        };
        format!(
            "delete from {} t using {} where s.{WHAT} {which} and {}{unreferenced}",
            self.table,
            self.source,
            self.matches()
        )
    }

    /// Of a table without a key: completes rows that come, to be compared with those that go.
    pub(crate) fn fill_whole(&self) -> Option<String> {
        let is_partial = self.columns().any(|(.., given)| given != ColumnPresence::Always);
        is_partial.then(|| {
            format!(
                "update {} set {} where s.{WHAT} = {}",
                self.source,
                self.filled_columns(|column| column.default.clone()),
                RowAction::Comes as i16
            )
        })
    }

    /// Of a table without a key: takes pairs out of the stage of a row that comes and one like it
    /// that goes later. What is left is as all events one by one, if rows that go, go first.
    pub(crate) fn cancel(&self) -> String {
        let (stage, whole, goes) = (&self.stage, self.whole("s"), RowAction::Goes as i16);
        format!(
            "delete from {stage} s using (\
             select at, what, row_number() over (partition by whole, what order by nth) as kth, \
                    sum(step) over (partition by whole) as total, \
                    greatest(0, -min(level) over (partition by whole)) as least \
             from (select *, sum(step) over (partition by whole order by nth) as level \
                   from (select s.ctid as at, s.{WHAT} as what, s.{NTH} as nth, {whole} as whole, \
                                case s.{WHAT} when {goes} then -1 else 1 end as step \
                         from {stage} s) s) s) c \
             where s.ctid = c.at \
               and c.kth > c.least + case c.what when {goes} then 0 else c.total end"
        )
    }

    /// All of a row, as text.
    fn whole(&self, of: &str) -> String {
        let all: Vec<_> =
            self.facts.columns.iter().map(|column| format!("{of}.{}", column.sql)).collect();
        format!("row({})::text", all.join(", "))
    }

    /// Of a table without a key: gives the row that goes what the one that comes has, where it is.
    fn update_whole(&self) -> String {
        let sets: Vec<_> = self
            .columns()
            .filter(|(_, column, given)| *given != ColumnPresence::Never && !column.is_fixed)
            .map(|(_, it, _)| format!("{0} = s.{0}", it.sql))
            .collect();
        format!(
            "update {table} t set {} from {stage} s, \
             (select t.ctid as at, t.tableoid as part from {table} t join {stage} s \
              on s.{WHAT} = {goes} and {} = {} limit 1) o \
             where s.{WHAT} <> {goes} and t.ctid = o.at and t.tableoid = o.part",
            sets.join(", "),
            self.whole("t"),
            self.whole("s"),
            table = self.table,
            stage = self.stage,
            goes = RowAction::Goes as i16
        )
    }

    /// Of a table without a key: as many rows as are staged, of those that look the same.
    pub(crate) fn delete_whole(&self) -> String {
        let (of_stage, of_table) = (self.whole("s"), self.whole("t"));
        let (table, stage, goes) = (&self.table, &self.stage, RowAction::Goes as i16);
        format!(
            "delete from {table} t using (\
             select t.ctid as at, t.tableoid as part, s.n, \
                    row_number() over (partition by s.whole) as nth \
             from {table} t join (select {of_stage} as whole, count(*) as n from {stage} s \
                                  where s.{WHAT} = {goes} group by 1) s \
             on {of_table} = s.whole) s \
             where s.nth <= s.n and t.ctid = s.at and t.tableoid = s.part"
        )
    }

    /// `None` where there is nothing that could be set.
    pub(crate) fn update(&self) -> Option<String> {
        let mut sets = Vec::new();
        let mut differs = Vec::new();
        for (at, column, given) in self.columns() {
            if self.is_key(at) || column.is_fixed {
                continue;
            }
            let name = &column.sql;
            let is_other = match column.is_exact {
                true => column.differ(&format!("t.{name}"), &format!("s.{name}")),
                // Such as 1.0 and 1.00, which are equal and yet not the same.
                false => format!(
                    "row({})::record operator(pg_catalog.*<>) row(s.{name})::record",
                    beneath("t.", column)
                ),
            };
            sets.extend(set_given(at, column, given));
            match given {
                ColumnPresence::Never => {}
                ColumnPresence::Always => differs.push(is_other),
                ColumnPresence::Sometimes => differs.push(format!("{} and {is_other}", bit(at))),
            }
        }
        let (first, last, frees) = (RowAction::Maybe as i16, RowAction::Fresh as i16, RowAction::Frees as i16);
        let which = match self.comes_many {
            // The planner takes these for a third of the rows, and a range for one in two hundred.
            true => format!(">= {first} and s.{WHAT} <> {frees}"),
            false => format!("between {first} and {last}"),
        };
        (!sets.is_empty()).then(|| {
            format!(
                "update {} t set {} from {} where s.{WHAT} {which} and {} and ({})",
                self.table,
                sets.join(", "),
                self.source,
                self.matches(),
                differs.join(" or ")
            )
        })
    }

    /// Gives the one row that goes the key of the one that comes, and all that this gives. `None`
    /// where the key cannot be set.
    pub(crate) fn move_row(&self) -> Option<String> {
        if !self.facts.has_key() {
            return Some(self.update_whole());
        }
        if key(self.facts).any(|column| column.is_fixed) {
            return None;
        }
        let set = |(at, column, given): (usize, &ApplyColumn, ColumnPresence)| match self.is_key(at) {
            true => set_given(at, column, ColumnPresence::Always),
            false if column.is_fixed => None,
            false => set_given(at, column, given),
        };
        let sets: Vec<_> = self.columns().filter_map(set).collect();
        let of_old = self.matches_stage("o");
        Some(format!(
            "update {} t set {} from {stage} o, {stage} s \
             where o.{WHAT} = {goes} and s.{WHAT} <> {goes} and {}",
            self.table,
            sets.join(", "),
            of_old,
            stage = self.stage,
            goes = RowAction::Goes as i16
        ))
    }

    pub(crate) fn insert(&self) -> String {
        let given = |(at, _, given): &(usize, &ApplyColumn, ColumnPresence)| {
            *given != ColumnPresence::Never || self.is_key(*at)
        };
        let (mut names, mut values) = (Vec::new(), Vec::new());
        for (at, column, given) in self.columns().filter(given) {
            let name = &column.sql;
            names.push(name.as_str());
            values.push(match given {
                ColumnPresence::Sometimes if !self.is_key(at) => {
                    format!("case when {} then s.{name} else {} end", bit(at), column.default)
                }
                _ => format!("s.{name}"),
            });
        }
        let is_overriding = self.facts.columns.iter().any(|column| column.is_fixed);
        let overriding = if is_overriding { " overriding system value" } else { "" };
        let absent = match self.facts.has_key() && !self.truncates {
            true => format!(" and not exists ({})", self.found()),
            false => String::new(),
        };
        format!(
            "insert into {} ({}){overriding} select {} from {} where s.{WHAT} >= {}{absent}",
            self.facts.table.sql_name,
            names.join(", "),
            values.join(", "),
            self.source,
            RowAction::Comes as i16
        )
    }

    fn found(&self) -> String {
        format!("select from {} t where {}", self.table, self.matches())
    }

    fn matches(&self) -> String {
        self.matches_stage("s")
    }

    /// That a row of the target has the key of a staged row, which is called `stage`.
    fn matches_stage(&self, stage: &str) -> String {
        let matches = |column: &ApplyColumn| {
            column.equal(&format!("t.{}", column.sql), &format!("{stage}.{}", column.sql))
        };
        key(self.facts).map(matches).collect::<Vec<_>>().join(" and ")
    }

    fn is_key(&self, at: usize) -> bool {
        self.facts.keying.columns.iter().any(|(of_key, _)| *of_key == at)
    }

    fn columns(&self) -> impl Iterator<Item = (usize, &ApplyColumn, ColumnPresence)> {
        let all = self.facts.columns.iter().zip(&self.given).enumerate();
        all.map(|(at, (column, given))| (at, column, *given))
    }
}

/// Rows as parameters. There are none outside of the transaction that they were sent with, whose
/// beginning may have been refused.
fn parameters(facts: &ApplyTable) -> String {
    let all: Vec<_> = facts.table.columns.iter().map(|column| quote_ident(&column.name)).collect();
    let begun = format!("case when current_setting('{TRANSACTION}', true) <> '' then");
    format!(
        "unnest({begun} $1::{}[] end, {begun} $2::int2[] end, {begun} $3::bytea[] end) \
         s ({}, {WHAT}, {GIVEN})",
        facts.table.sql_name,
        all.join(", ")
    )
}

/// Whether a staged row gives a column.
fn bit(at: usize) -> String {
    format!("pg_catalog.get_bit(s.{GIVEN}, {at}) = 1")
}

/// Sets a column of row `t` to what the staged row gives, and leaves it where that gives nothing.
fn set_given(at: usize, column: &ApplyColumn, given: ColumnPresence) -> Option<String> {
    let name = &column.sql;
    match given {
        ColumnPresence::Never => None,
        ColumnPresence::Always => Some(format!("{name} = s.{name}")),
        ColumnPresence::Sometimes => {
            Some(format!("{name} = case when {} then s.{name} else t.{name} end", bit(at)))
        }
    }
}
