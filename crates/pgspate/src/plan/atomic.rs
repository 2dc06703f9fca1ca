//! Plans how all rows become visible at once, in place of the old rows or in addition to them.
//!
//! There are two methods. Both keep the old rows until the new rows are complete. One transaction
//! works for every table, over one lane. A shadow table is filled by all lanes and then takes the
//! table's name. It needs a table on which nothing else depends.

use std::borrow::Cow;

use serde::Serialize;

use super::{InputFacts, LoadPlan, PlanOptions, PlanRequest};
use crate::copy::{Commit, Lanes};
use crate::{Error, ErrorKind, Result};
use pgspate_target::{IncomingForeignKey, TableDependencies, TargetTable};

/// Below this many stored bytes, one transaction ends before a shadow table could be created.
const ONE_TRANSACTION_BYTES: u64 = 1 << 20;

/// The most reasons to name. Further reasons are counted.
const REASONS_NAMED_MAX: usize = 3;

/// How `--replace` replaces the old rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplaceMode {
    /// The best method that the table allows.
    Auto,
    /// One transaction that truncates the table first.
    Truncate,
    /// A shadow table that takes the table's place.
    Swap,
}

/// How all rows become visible at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AtomicMethod {
    /// One transaction, over one lane.
    #[serde(rename = "transaction")]
    OneTransaction,
    /// A shadow table that takes the table's place.
    Swap,
}

/// The plan for rows that become visible at once.
#[derive(Debug, Clone, Serialize)]
pub struct AtomicPlan {
    /// The method.
    pub method: AtomicMethod,
    /// The reason for the method.
    pub reason: String,
    /// Whether the old rows are replaced.
    pub replaces: bool,
    /// Whether readers must never see a state in between, even if they have to wait.
    #[serde(skip)]
    pub is_strict: bool,
    /// Whether rows are written frozen, which saves a later vacuum.
    pub freeze: bool,
    /// Foreign keys that are dropped, added and checked again in the same transaction.
    #[serde(skip)]
    pub references: Vec<IncomingForeignKey>,
}

impl AtomicPlan {
    /// Returns the method in words.
    pub fn method_in_words(&self) -> &'static str {
        match (self.method, self.replaces, self.freeze) {
            (AtomicMethod::OneTransaction, false, _) => "one transaction",
            (AtomicMethod::OneTransaction, true, false) => "one transaction, truncate and COPY",
            (AtomicMethod::OneTransaction, true, true) => {
                "one transaction, truncate and COPY FREEZE"
            }
            (AtomicMethod::Swap, ..) => "shadow table, which takes the table's place",
        }
    }
}

/// Chooses the method, if all rows are to become visible at once.
pub(super) fn choose_atomic_plan(
    table: &TargetTable,
    request: &PlanRequest,
    input: &InputFacts,
    has_ledger: bool,
) -> Result<Option<AtomicPlan>> {
    let PlanOptions { replace, atomic, .. } = request.options;
    if replace.is_none() && !atomic {
        return Ok(None);
    }
    let none = TableDependencies::default();
    let bonds = request.bonds.as_ref().unwrap_or(&none);
    if replace.is_some() {
        check_replaceable(table, bonds)?;
    }
    let obstacle = shadow_obstacle(request, bonds, has_ledger, input);
    let is_small = input.stored_bytes.is_some_and(|bytes| bytes < ONE_TRANSACTION_BYTES);
    let (method, reason) = match (replace, obstacle) {
        (Some(ReplaceMode::Swap), Some(why)) => {
            let message = format!("no other table can take the place of {}: {why}", table.sql_name);
            return Err(Error::new(ErrorKind::Plan, message)
                .hint("`--replace` alone replaces the rows in one transaction."));
        }
        (Some(ReplaceMode::Truncate), _) => (AtomicMethod::OneTransaction, "as asked".to_owned()),
        (Some(ReplaceMode::Swap), None) => (AtomicMethod::Swap, "as asked".to_owned()),
        (_, Some(why)) => (AtomicMethod::OneTransaction, why),
        (_, None) if is_small => (AtomicMethod::OneTransaction, "the input is small".to_owned()),
        (_, None) => {
            let reason = "nothing is bound to the table itself; readers wait for the exchange only";
            (AtomicMethod::Swap, reason.to_owned())
        }
    };
    let replaces = replace.is_some();
    let is_whole = matches!(method, AtomicMethod::OneTransaction) && replaces;
    Ok(Some(AtomicPlan {
        method,
        reason,
        replaces,
        is_strict: atomic,
        freeze: is_whole && bonds.is_heap && bonds.storage_extension.is_none(),
        references: if is_whole { bonds.references.clone() } else { Vec::new() },
    }))
}

/// Checks that the table's rows can be replaced without unwanted side effects.
fn check_replaceable(table: &TargetTable, bonds: &TableDependencies) -> Result<()> {
    let name = &table.sql_name;
    if table.kind == 'v' {
        let message = format!("{name} is a view, whose rows cannot be replaced");
        return Err(
            Error::new(ErrorKind::Plan, message).hint("Replace the rows of the table behind it.")
        );
    }
    if bonds.has_inheriting_tables && bonds.storage_extension.is_none() {
        let message = format!("other tables inherit from {name}, and their rows are rows of it");
        return Err(Error::new(ErrorKind::Plan, message).hint(format!(
            "First run `truncate {name}` for all of these tables, or `truncate only {name}`, and \
             load without `--replace`."
        )));
    }
    if let Some(key) = bonds.references.iter().find(|key| !key.is_enforced) {
        let IncomingForeignKey { table: other, name: constraint, .. } = key;
        let message = format!(
            "foreign key {constraint} of {other} is not valid or not enforced, and could not be \
             made so again"
        );
        return Err(Error::new(ErrorKind::Plan, message)
            .hint(format!("`alter table {other} validate constraint {constraint}`, or drop it.")));
    }
    for IncomingForeignKey { table: other, name: constraint, untrusted_owner, .. } in
        &bonds.references
    {
        let Some(owner) = untrusted_owner else { continue };
        let message = format!(
            "foreign key {constraint} of {other} could not be added again: its owner, role \
             \"{owner}\", is not trusted"
        );
        return Err(Error::new(ErrorKind::Plan, message).hint(format!(
            "Adding it would run functions of that owner as your role. Give {other} to another \
             role: `alter table {other} owner to ROLE`. Or drop the foreign key: `alter table \
             {other} drop constraint {constraint}`. Or write with `pgspate sync --scope all`, \
             which leaves foreign keys as they are."
        )));
    }
    Ok(())
}

/// Returns the reason against a shadow table, if there is one.
fn shadow_obstacle(
    request: &PlanRequest,
    bonds: &TableDependencies,
    has_ledger: bool,
    input: &InputFacts,
) -> Option<String> {
    if request.bonds.is_none() {
        return Some("the table is made for this load".to_owned());
    }
    if let Some(manager) = &bonds.storage_extension {
        return Some(format!("{manager} manages the table"));
    }
    if request.options.replace.is_none() && !bonds.is_empty {
        return Some("rows are added to those that the table has".to_owned());
    }
    if !has_ledger {
        let why = if input.is_one_time {
            "an input that no later run can read has no"
        } else {
            "without a"
        };
        return Some(format!(
            "{why} ledger, and nothing else would know of a shadow table that a crash leaves"
        ));
    }
    let (named, rest) =
        bonds.replace_obstacles.split_at(bonds.replace_obstacles.len().min(REASONS_NAMED_MAX));
    match rest.len() {
        _ if named.is_empty() => None,
        0 => Some(named.join("; ")),
        more => Some(format!("{}; and {more} more", named.join("; "))),
    }
}

/// Returns the table that COPY writes to. A shadow table gets its indexes and foreign keys after
/// its rows.
pub(super) fn table_for_copy<'a>(
    table: &'a TargetTable,
    at_once: Option<&AtomicPlan>,
) -> Cow<'a, TargetTable> {
    if at_once.is_none_or(|at_once| at_once.method == AtomicMethod::OneTransaction) {
        return Cow::Borrowed(table);
    }
    let (indexes, foreign_keys) = (Vec::new(), Vec::new());
    Cow::Owned(TargetTable { indexes, foreign_keys, ..table.clone() })
}

impl LoadPlan {
    /// Fits the plan to the method.
    pub(super) fn apply_atomic_plan(
        &mut self,
        request: &PlanRequest,
        at_once: AtomicPlan,
    ) -> Result<()> {
        if at_once.method == AtomicMethod::OneTransaction {
            if request.rejects {
                let message = "rows cannot be set aside: all rows are to be visible at once, and \
                               the table takes that in one transaction only";
                return Err(Error::new(ErrorKind::Plan, message).hint("Leave `--rejects` out."));
            }
            if request.options.commit == Some(Commit::EachChunk) {
                let message = "chunks cannot be committed one by one: all rows are to be visible \
                               at once, and the table takes that in one transaction only";
                return Err(
                    Error::new(ErrorKind::Plan, message).hint("Leave `--commit chunk` out.")
                );
            }
            self.commit = Commit::AtEnd;
            if self.lanes != Lanes::Fixed(1) {
                self.lanes = Lanes::Fixed(1);
                "everything is one transaction".clone_into(&mut self.lanes_reason);
            }
        }
        let bonds = request.bonds.clone().unwrap_or_default();
        if at_once.method == AtomicMethod::OneTransaction && at_once.replaces {
            self.warnings.extend(warnings(&at_once, &bonds));
        }
        self.at_once = Some(at_once);
        Ok(())
    }
}

/// Returns the warnings about a transaction that truncates the table first.
fn warnings(at_once: &AtomicPlan, bonds: &TableDependencies) -> Vec<String> {
    let keys = at_once.references.iter().map(|IncomingForeignKey { table, name, .. }| {
        format!("foreign key {name} of {table} is dropped, added and checked again")
    });
    let mut warnings: Vec<String> = keys.collect();
    for trigger in &bonds.truncate_triggers {
        warnings.push(format!("trigger \"{trigger}\" runs for the TRUNCATE"));
    }
    if !at_once.freeze {
        warnings.push(
            "a transaction in repeatable read that began before the load ends finds the table \
             empty, as after any TRUNCATE"
                .to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(kind: char) -> TargetTable {
        TargetTable {
            oid: 1,
            schema: "public".to_owned(),
            name: "t".to_owned(),
            sql_name: "public.t".to_owned(),
            kind,
            columns: Vec::new(),
            triggers: Vec::new(),
            foreign_keys: vec!["f".to_owned()],
            self_references: Vec::new(),
            indexes: vec![("t_pkey".to_owned(), true)],
            partitions: 0,
            row_security: false,
            unlogged: pgspate_target::UnloggedExtent::Nothing,
        }
    }

    fn input() -> InputFacts {
        InputFacts { stored_bytes: Some(1 << 30), ..InputFacts::default() }
    }

    fn heap() -> TableDependencies {
        TableDependencies { is_heap: true, ..TableDependencies::default() }
    }

    fn chosen(bonds: TableDependencies, replace: Option<ReplaceMode>) -> Result<AtomicPlan> {
        let request = request(replace, true, bonds);
        choose_atomic_plan(&table('r'), &request, &input(), true)
            .map(|it| it.expect("it was asked for"))
    }

    fn request(
        replace: Option<ReplaceMode>,
        atomic: bool,
        bonds: TableDependencies,
    ) -> PlanRequest {
        let options = PlanOptions { replace, atomic, ..PlanOptions::default() };
        PlanRequest { options, bonds: Some(bonds), ..PlanRequest::default() }
    }

    #[test]
    fn no_atomic_plan_unless_asked() {
        let request = request(None, false, heap());
        assert!(choose_atomic_plan(&table('r'), &request, &input(), true).unwrap().is_none());
    }

    #[test]
    fn shadow_table_unless_something_prevents_it() {
        let at_once = chosen(heap(), Some(ReplaceMode::Auto)).unwrap();
        assert_eq!((at_once.method, at_once.freeze), (AtomicMethod::Swap, false));
        let written = table_for_copy(&table('r'), Some(&at_once)).into_owned();
        assert!(!written.has_unique_index() && written.foreign_keys.is_empty());

        let bound = |what: &str| TableDependencies {
            replace_obstacles: vec![what.to_owned(); 5],
            ..heap()
        };
        let at_once = chosen(bound("a view"), Some(ReplaceMode::Auto)).unwrap();
        assert_eq!((at_once.method, at_once.freeze), (AtomicMethod::OneTransaction, true));
        assert_eq!(at_once.reason, "a view; a view; a view; and 2 more");
        let error = chosen(bound("a view"), Some(ReplaceMode::Swap)).unwrap_err();
        assert!(error.to_string().contains("public.t: a view"), "{error}");

        let request = request(Some(ReplaceMode::Auto), false, heap());
        let without_ledger =
            choose_atomic_plan(&table('r'), &request, &input(), false).unwrap().unwrap();
        assert_eq!(without_ledger.method, AtomicMethod::OneTransaction);
        let small = InputFacts { stored_bytes: Some(9), ..InputFacts::default() };
        let small = choose_atomic_plan(&table('r'), &request, &small, true).unwrap().unwrap();
        assert_eq!(
            (small.method, small.reason.as_str()),
            (AtomicMethod::OneTransaction, "the input is small")
        );
    }

    #[test]
    fn rows_are_frozen_only_in_heap_tables_without_extension() {
        let truncate = |bonds| chosen(bonds, Some(ReplaceMode::Truncate)).unwrap().freeze;
        assert!(truncate(heap()));
        assert!(!truncate(TableDependencies::default()));
        assert!(!truncate(TableDependencies {
            storage_extension: Some("Citus".to_owned()),
            ..heap()
        }));
    }

    #[test]
    fn rows_are_added_in_one_transaction_unless_the_table_is_empty() {
        let added = chosen(heap(), None).unwrap();
        assert_eq!(
            (added.method, added.replaces, added.freeze),
            (AtomicMethod::OneTransaction, false, false)
        );
        let first = chosen(TableDependencies { is_empty: true, ..heap() }, None).unwrap();
        assert_eq!((first.method, first.replaces), (AtomicMethod::Swap, false));
    }

    #[test]
    fn views_parents_and_unenforced_keys_are_refused() {
        let request = request(Some(ReplaceMode::Auto), false, heap());
        assert!(choose_atomic_plan(&table('v'), &request, &input(), true).is_err());
        assert!(
            chosen(
                TableDependencies { has_inheriting_tables: true, ..heap() },
                Some(ReplaceMode::Auto)
            )
            .is_err()
        );
        let key = IncomingForeignKey {
            table: "public.o".to_owned(),
            name: "o_t".to_owned(),
            definition: String::new(),
            comment: None,
            is_enforced: false,
            untrusted_owner: None,
        };
        let error =
            chosen(TableDependencies { references: vec![key], ..heap() }, Some(ReplaceMode::Auto));
        assert!(error.unwrap_err().to_string().starts_with("foreign key o_t of public.o"));
    }
}
