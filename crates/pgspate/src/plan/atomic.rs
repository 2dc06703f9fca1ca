//! Plans how all rows become visible at once, in place of the old rows or in addition to them.
//!
//! There are two methods. Both methods keep the old rows until the new rows are complete. One
//! transaction works for every table, over one lane. A shadow table is filled by all lanes and then
//! takes the table's name. The shadow method needs a table on which no other object depends.

use std::borrow::Cow;

use serde::Serialize;

use super::{InputFacts, LoadPlan, PlanOptions, PlanRequest};
use crate::copy::{Commit, Lanes};
use crate::{Error, ErrorKind, Result};
use pgspate_target::{IncomingForeignKey, TableDependencies, TableStorage, TargetTable};

/// Below this many stored bytes, one transaction ends before a shadow table could be created.
const ONE_TRANSACTION_BYTES_MAX: u64 = 1 << 20;

/// The most reasons to name in a message. Further reasons are only counted.
const REASONS_NAMED_MAX: usize = 3;

/// How `--replace` replaces the old rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplaceMode {
    /// The method that pgspate chooses: a shadow table, if the table allows one and the input is
    /// not small.
    Auto,
    /// One transaction that truncates the table and then copies the rows.
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
    /// Whether `--atomic` is given: readers must never see a part of the rows, even if they have to
    /// wait.
    #[serde(skip)]
    pub is_strict: bool,
    /// Whether COPY writes the rows frozen, so that a later vacuum need not freeze them.
    pub freeze: bool,
    /// Foreign keys of other tables that are dropped, added and checked again in the transaction
    /// of the load.
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

/// Chooses how all rows become visible at once. Returns `None` without `--replace` and `--atomic`.
///
/// # Errors
/// [`ErrorKind::Plan`] if the table's rows cannot be replaced, or not by the method that the user
/// asked for.
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
    let dependencies = request.dependencies.as_ref().unwrap_or(&none);
    if replace.is_some() {
        check_replaceable(table, dependencies)?;
    }
    let obstacle = shadow_obstacle(table, request, dependencies, has_ledger, input);
    // One transaction allows neither rejects nor commits of single chunks.
    let needs_shadow = request.rejects || request.options.commit == Some(Commit::EachChunk);
    let is_small = input.stored_bytes.is_some_and(|bytes| bytes < ONE_TRANSACTION_BYTES_MAX);
    let (method, reason) = match (replace, obstacle) {
        (Some(ReplaceMode::Swap), Some(why)) => {
            let message = format!("no other table can take the place of {}: {why}", table.sql_name);
            return Err(Error::new(ErrorKind::Plan, message)
                .hint("`--replace` alone replaces the rows in one transaction."));
        }
        (Some(ReplaceMode::Truncate), _) => (AtomicMethod::OneTransaction, "as asked".to_owned()),
        (Some(ReplaceMode::Swap), None) => (AtomicMethod::Swap, "as asked".to_owned()),
        (_, Some(why)) => (AtomicMethod::OneTransaction, why),
        (_, None) if is_small && !needs_shadow => {
            (AtomicMethod::OneTransaction, "the input is small".to_owned())
        }
        (_, None) => {
            let reason = "nothing is bound to the table itself; readers wait for the exchange only";
            (AtomicMethod::Swap, reason.to_owned())
        }
    };
    let replaces = replace.is_some();
    let truncates = matches!(method, AtomicMethod::OneTransaction) && replaces;
    Ok(Some(AtomicPlan {
        method,
        reason,
        replaces,
        is_strict: atomic,
        freeze: truncates && dependencies.is_heap && table.storage == TableStorage::Plain,
        references: if truncates { dependencies.references.clone() } else { Vec::new() },
    }))
}

/// Checks that the table's rows can be replaced without unwanted side effects.
pub(crate) fn check_replaceable(
    table: &TargetTable,
    dependencies: &TableDependencies,
) -> Result<()> {
    let name = &table.sql_name;
    if table.kind == 'v' {
        let message = format!("{name} is a view, whose rows cannot be replaced");
        return Err(
            Error::new(ErrorKind::Plan, message).hint("Replace the rows of the table behind it.")
        );
    }
    if dependencies.has_inheriting_tables && table.storage == TableStorage::Plain {
        let message = format!(
            "other tables inherit from {name}, so the rows of those tables are rows of {name}, too"
        );
        return Err(Error::new(ErrorKind::Plan, message).hint(format!(
            "First run `truncate {name}` for all of these tables, or `truncate only {name}`, and \
             load without `--replace`."
        )));
    }
    if let Some(key) = dependencies.references.iter().find(|key| !key.is_enforced) {
        let IncomingForeignKey { table: other, name: constraint, .. } = key;
        let message = format!(
            "foreign key {constraint} of {other} is not valid or not enforced, and could not be \
             added again in that state"
        );
        return Err(Error::new(ErrorKind::Plan, message).hint(format!(
            "Run `alter table {other} validate constraint {constraint}`, or `alter table \
                 {other} drop constraint {constraint}`."
        )));
    }
    for IncomingForeignKey { table: other, name: constraint, untrusted_owner, .. } in
        &dependencies.references
    {
        let Some(owner) = untrusted_owner else { continue };
        let message = format!(
            "foreign key {constraint} of {other} could not be added again: its owner, role \
             \"{owner}\", is not trusted"
        );
        return Err(Error::new(ErrorKind::Plan, message).hint(format!(
            "Adding the foreign key would run functions of that owner as your role. Give {other} \
             to another role: `alter table {other} owner to ROLE`. Or drop the foreign key: `alter \
             table {other} drop constraint {constraint}`. Or write with `pgspate sync --scope \
             all`, which leaves foreign keys as they are."
        )));
    }
    Ok(())
}

/// Returns the reason against a shadow table, if there is one.
fn shadow_obstacle(
    table: &TargetTable,
    request: &PlanRequest,
    dependencies: &TableDependencies,
    has_ledger: bool,
    input: &InputFacts,
) -> Option<String> {
    if request.dependencies.is_none() {
        return Some("this load creates the table".to_owned());
    }
    if let Some(extension) = table.storage.facts().extension {
        return Some(format!("{extension} stores the table's rows"));
    }
    if request.options.replace.is_none() && !dependencies.is_empty {
        return Some("the table keeps its old rows".to_owned());
    }
    if !has_ledger {
        let why = if input.is_for_this_run_only {
            "no later run can read the input, so there is no ledger"
        } else {
            "there is no ledger"
        };
        return Some(format!("{why} to record a shadow table that a crash leaves behind"));
    }
    let (named, unnamed) = dependencies
        .replace_obstacles
        .split_at(dependencies.replace_obstacles.len().min(REASONS_NAMED_MAX));
    match unnamed.len() {
        _ if named.is_empty() => None,
        0 => Some(named.join("; ")),
        more => Some(format!("{}; and {more} more", named.join("; "))),
    }
}

/// Returns the properties of the table that COPY writes to. A shadow table gets its indexes and
/// foreign keys only after its rows, if no rows are set aside.
pub(super) fn table_for_copy<'a>(
    table: &'a TargetTable,
    atomic_plan: Option<&AtomicPlan>,
    sets_rows_aside: bool,
) -> Cow<'a, TargetTable> {
    let is_shadow = atomic_plan.is_some_and(|plan| plan.method == AtomicMethod::Swap);
    if !is_shadow || sets_rows_aside {
        return Cow::Borrowed(table);
    }
    let (indexes, foreign_keys) = (Vec::new(), Vec::new());
    Cow::Owned(TargetTable { indexes, foreign_keys, ..table.clone() })
}

impl LoadPlan {
    /// Adapts the commit, the lanes and the warnings to the method of `atomic_plan`.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`] if the method does not allow `--rejects` or `--commit chunk`.
    pub(super) fn apply_atomic_plan(
        &mut self,
        request: &PlanRequest,
        atomic_plan: AtomicPlan,
    ) -> Result<()> {
        if atomic_plan.method == AtomicMethod::OneTransaction {
            if request.rejects {
                let message = format!(
                    "rows cannot be set aside: all rows are to become visible in one transaction \
                     ({})",
                    atomic_plan.reason
                );
                return Err(Error::new(ErrorKind::Plan, message).hint("Leave `--rejects` out."));
            }
            if request.options.commit == Some(Commit::EachChunk) {
                let message = format!(
                    "chunks cannot be committed one by one: all rows are to become visible in one \
                     transaction ({})",
                    atomic_plan.reason
                );
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
        let dependencies = request.dependencies.clone().unwrap_or_default();
        if atomic_plan.method == AtomicMethod::OneTransaction && atomic_plan.replaces {
            self.warnings.extend(warnings(&atomic_plan, &dependencies));
        }
        self.atomic_plan = Some(atomic_plan);
        Ok(())
    }
}

/// Returns the warnings about a transaction that truncates the table first.
fn warnings(atomic_plan: &AtomicPlan, dependencies: &TableDependencies) -> Vec<String> {
    let keys = atomic_plan.references.iter().map(|IncomingForeignKey { table, name, .. }| {
        format!("foreign key {name} of {table} is dropped, added and checked again")
    });
    let mut warnings: Vec<String> = keys.collect();
    for trigger in &dependencies.truncate_triggers {
        warnings.push(format!("trigger \"{trigger}\" runs for the TRUNCATE"));
    }
    if !atomic_plan.freeze {
        warnings.push(
            "a repeatable read transaction that began before the load ends sees an empty table, as \
             after any TRUNCATE"
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
            unique_keys: Vec::new(),
            rules: Vec::new(),
            partitions: 0,
            has_children: false,
            row_security: false,
            commits_across_nodes: false,
            storage: TableStorage::Plain,
            unlogged: pgspate_target::UnloggedExtent::Nothing,
            has_foreign_parts: false,
            is_written_by_triggers: false,
            fingerprint: String::new(),
        }
    }

    fn input() -> InputFacts {
        InputFacts { stored_bytes: Some(1 << 30), ..InputFacts::default() }
    }

    fn heap() -> TableDependencies {
        TableDependencies { is_heap: true, ..TableDependencies::default() }
    }

    fn choose_plan(
        dependencies: TableDependencies,
        replace: Option<ReplaceMode>,
    ) -> Result<AtomicPlan> {
        let request = request(replace, true, dependencies);
        choose_atomic_plan(&table('r'), &request, &input(), true)
            .map(|plan| plan.expect("the request asks for a plan"))
    }

    fn request(
        replace: Option<ReplaceMode>,
        atomic: bool,
        dependencies: TableDependencies,
    ) -> PlanRequest {
        let options = PlanOptions { replace, atomic, ..PlanOptions::default() };
        PlanRequest { options, dependencies: Some(dependencies), ..PlanRequest::default() }
    }

    #[test]
    fn no_atomic_plan_unless_asked() {
        let request = request(None, false, heap());
        assert!(choose_atomic_plan(&table('r'), &request, &input(), true).unwrap().is_none());
    }

    #[test]
    fn shadow_table_unless_something_prevents_it() {
        let atomic_plan = choose_plan(heap(), Some(ReplaceMode::Auto)).unwrap();
        assert_eq!((atomic_plan.method, atomic_plan.freeze), (AtomicMethod::Swap, false));
        let written = table_for_copy(&table('r'), Some(&atomic_plan), false).into_owned();
        assert!(!written.has_unique_index() && written.foreign_keys.is_empty());

        let with_obstacles = |obstacle: &str| TableDependencies {
            replace_obstacles: vec![obstacle.to_owned(); 5],
            ..heap()
        };
        let atomic_plan = choose_plan(with_obstacles("a view"), Some(ReplaceMode::Auto)).unwrap();
        assert_eq!((atomic_plan.method, atomic_plan.freeze), (AtomicMethod::OneTransaction, true));
        assert_eq!(atomic_plan.reason, "a view; a view; a view; and 2 more");
        let error = choose_plan(with_obstacles("a view"), Some(ReplaceMode::Swap)).unwrap_err();
        assert!(error.to_string().contains("public.t: a view"), "{error}");

        let request = request(Some(ReplaceMode::Auto), false, heap());
        let without_ledger =
            choose_atomic_plan(&table('r'), &request, &input(), false).unwrap().unwrap();
        assert_eq!(without_ledger.method, AtomicMethod::OneTransaction);
        let small = InputFacts { stored_bytes: Some(9), ..InputFacts::default() };
        let choose = |request: &PlanRequest| {
            choose_atomic_plan(&table('r'), request, &small, true).unwrap().unwrap()
        };
        let plan = choose(&request);
        assert_eq!(
            (plan.method, plan.reason.as_str()),
            (AtomicMethod::OneTransaction, "the input is small")
        );
        let rejecting = PlanRequest { rejects: true, ..request };
        assert_eq!(choose(&rejecting).method, AtomicMethod::Swap);
    }

    #[test]
    fn rows_are_frozen_only_in_heap_tables_without_extension() {
        let truncate =
            |dependencies| choose_plan(dependencies, Some(ReplaceMode::Truncate)).unwrap().freeze;
        assert!(truncate(heap()));
        assert!(!truncate(TableDependencies::default()));
        let shards = TargetTable { storage: TableStorage::Shards, ..table('r') };
        let request = request(Some(ReplaceMode::Truncate), true, heap());
        let plan = choose_atomic_plan(&shards, &request, &input(), true).unwrap().unwrap();
        assert!(!plan.freeze);
    }

    #[test]
    fn rows_are_added_in_one_transaction_unless_the_table_is_empty() {
        let added = choose_plan(heap(), None).unwrap();
        assert_eq!(
            (added.method, added.replaces, added.freeze),
            (AtomicMethod::OneTransaction, false, false)
        );
        let first = choose_plan(TableDependencies { is_empty: true, ..heap() }, None).unwrap();
        assert_eq!((first.method, first.replaces), (AtomicMethod::Swap, false));
    }

    #[test]
    fn views_parents_and_unenforced_keys_are_refused() {
        let request = request(Some(ReplaceMode::Auto), false, heap());
        assert!(choose_atomic_plan(&table('v'), &request, &input(), true).is_err());
        assert!(
            choose_plan(
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
        let error = choose_plan(
            TableDependencies { references: vec![key], ..heap() },
            Some(ReplaceMode::Auto),
        );
        assert!(error.unwrap_err().to_string().starts_with("foreign key o_t of public.o"));
    }
}
