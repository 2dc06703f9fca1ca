//! Plans what happens to a table's indexes, autovacuum, statistics and sequences around a load.
//!
//! Without `--rebuild-indexes always`, pgspate drops indexes only if that is faster, and if no
//! other session holds a lock on the table. It keeps an index if rows that the index refuses could
//! not be removed after the load.

use std::fmt;

use super::{AtomicMethod, AtomicPlan, PlanOptions, PlanRequest, PlannedColumn};
use crate::copy::Commit;
use crate::{Error, ErrorKind, Result};
use pgspate_target::{IndexKind, MaintenanceFacts, Sequence, TableIndex, TargetTable};

/// A choice of the user about an optional step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AutoChoice {
    /// Do it if it pays.
    #[default]
    Auto,
    /// Do it wherever it is possible.
    Always,
    /// Do not do it.
    Never,
}

/// Below this many stored bytes, indexes are kept. Measured with three indexes: 4 MB take 0.3 s
/// with and without a rebuild. 10 MB take 1.1 s with the indexes kept, and 0.5 s with a rebuild.
const REBUILD_BYTES_MIN: u64 = 8 << 20;

/// The table's old bytes for each byte of the input, up to which indexes are rebuilt. A rebuild
/// reads all rows of the table, so the old rows may have at most as many bytes as the input.
///
/// Measured with two lanes and 2.4 M rows of TPC-H lineitem, with two indexes in random order: 16 s
/// with the indexes kept, 6 s with a rebuild. With twice as many old rows in the table: 20 s and
/// 8.5 s. A primary key in the input's order takes 3.1 s and 2.8 s, so more old rows are not
/// allowed.
const OLD_BYTES_PER_INPUT_BYTE_MAX: u64 = 1;

/// From this many stored bytes on, a load takes longer than a minute, the time between two rounds
/// of autovacuum. Autovacuum would then scan the half-loaded table.
const PAUSE_BYTES_MIN: u64 = 8 << 30;

/// The facts on which the maintenance of a table depends.
pub(crate) struct MaintenanceInputs<'a> {
    pub(crate) table: &'a TargetTable,
    pub(crate) maintenance_facts: &'a MaintenanceFacts,
    /// Stored bytes of the input, if known.
    pub(crate) input_bytes: Option<u64>,
    /// Whether the input can be read only once.
    pub(crate) is_stream: bool,
    /// Decompressed bytes of the input that earlier runs have loaded.
    pub(crate) bytes_done: u64,
    pub(crate) commit: Commit,
    pub(crate) has_ledger: bool,
    /// Whether all rows become visible at once.
    pub(crate) is_atomic: bool,
    /// Another running job that writes to the table, or a session that writes single records.
    pub(crate) writer: Option<&'a str>,
}

/// The decision about an index or a foreign key.
#[derive(Debug, Clone)]
pub struct IndexChoice {
    /// The kind of index or key.
    pub kind: IndexKind,
    /// The name of the index or key, unquoted.
    pub name: String,
    /// Why the index is kept; `None` if it is dropped and created again.
    pub kept_because: Option<String>,
}

/// What happens to the table around a load, and why.
#[derive(Debug, Clone, Default)]
pub struct MaintenancePlan {
    /// The decisions about the table's indexes and foreign keys.
    pub indexes: Vec<IndexChoice>,
    /// Whether indexes are dropped unless they have a reason to be kept.
    pub rebuilds: bool,
    /// Why indexes are dropped, or why all of them are kept.
    pub indexes_reason: String,
    /// Why autovacuum is switched off for the table during the load; `None` if it stays on.
    pub autovacuum_pause: Option<String>,
    /// Whether to run ANALYZE afterwards.
    pub analyze: AutoChoice,
    /// Whether to run VACUUM (FREEZE) afterwards.
    pub vacuum: bool,
    /// Pairs of a column and its sequence. After the load, pgspate moves the sequence past the
    /// values of the column.
    pub sequences: Vec<(String, String)>,
}

/// Returns the columns among `written` that have a sequence, each with its sequence.
pub(crate) fn written_sequences(
    sequences: &[Sequence],
    written: &[PlannedColumn],
) -> Vec<(String, String)> {
    let is_written = |it: &&Sequence| written.iter().any(|column| column.name == it.column);
    let written = sequences.iter().filter(is_written);
    written.map(|it| (it.column.clone(), it.name.clone())).collect()
}

impl MaintenancePlan {
    /// Plans the maintenance of a table.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`] if a step with the choice `always` is impossible.
    pub(crate) fn make(
        facts: &MaintenanceInputs<'_>,
        written: &[PlannedColumn],
        request: &PlanRequest,
    ) -> Result<MaintenancePlan> {
        let (drops, indexes_reason) = match choose_rebuild(facts, &request.options)? {
            Ok(reason) => (true, reason),
            Err(reason) => (false, reason),
        };
        let kept_because = |index: &TableIndex| match drops {
            true => index.obstacle.clone().or_else(|| reason_to_keep(index, facts, request)),
            false => Some(indexes_reason.clone()),
        };
        let choice = |it: &TableIndex| IndexChoice {
            kind: it.kind,
            name: it.name.clone(),
            kept_because: kept_because(it),
        };
        Ok(MaintenancePlan {
            indexes: facts.maintenance_facts.indexes.iter().map(choice).collect(),
            rebuilds: drops,
            indexes_reason,
            autovacuum_pause: pause_reason(facts, &request.options)?,
            analyze: request.options.analyze,
            vacuum: request.options.vacuum,
            sequences: written_sequences(&facts.maintenance_facts.sequences, written),
        })
    }

    /// Returns whether any index or foreign key is dropped.
    pub fn drops_indexes(&self) -> bool {
        self.indexes.iter().any(|it| it.kept_because.is_none())
    }

    /// Returns whether a key or foreign key is dropped, so that nothing refuses some wrong rows.
    pub(crate) fn drops_keys(&self) -> bool {
        let is_key = |it: &IndexChoice| it.kind != IndexKind::Plain;
        self.indexes.iter().any(|it| it.kept_because.is_none() && is_key(it))
    }

    /// Returns whether the load alters the table: drops indexes, or switches autovacuum off.
    pub fn alters_table(&self) -> bool {
        self.drops_indexes() || self.autovacuum_pause.is_some()
    }

    /// Plans to keep all indexes and autovacuum, for this `reason`.
    pub(crate) fn cancel_table_changes(&mut self, reason: &str) {
        for choice in &mut self.indexes {
            choice.kept_because.get_or_insert_with(|| reason.to_owned());
        }
        self.rebuilds = false;
        reason.clone_into(&mut self.indexes_reason);
        self.autovacuum_pause = None;
    }
}

/// Returns why indexes are dropped (`Ok`), or why none is dropped (`Err`).
fn choose_rebuild(
    facts: &MaintenanceInputs<'_>,
    request: &PlanOptions,
) -> Result<Result<String, String>> {
    if facts.maintenance_facts.indexes.is_empty() {
        return Ok(Err("the table has none".to_owned()));
    }
    match (request.rebuild_indexes, obstacle_to_alter(facts)) {
        (AutoChoice::Never, _) => Ok(Err("as asked".to_owned())),
        (AutoChoice::Always, Some(why)) => {
            let message = format!("indexes of {} cannot be dropped: {why}", facts.table.sql_name);
            Err(Error::new(ErrorKind::Plan, message).hint("Leave `--rebuild-indexes always` out."))
        }
        (AutoChoice::Always, None) => Ok(Ok("as asked".to_owned())),
        (AutoChoice::Auto, Some(why)) => Ok(Err(why)),
        (AutoChoice::Auto, None) => Ok(rebuild_is_faster(facts)),
    }
}

/// Returns the reason why the table must not be altered, even if the user asks for it.
fn obstacle_to_alter(facts: &MaintenanceInputs<'_>) -> Option<String> {
    let reason_if = |applies: bool, why: &str| applies.then(|| why.to_owned());
    let kind = facts.table.kind;
    reason_if(kind == 'p', "the table is partitioned")
        .or_else(|| reason_if(kind != 'r', "it is not a table of this server"))
        .or_else(|| reason_if(facts.is_atomic, "rows become visible at once, with their indexes"))
        .or_else(|| {
            reason_if(!facts.maintenance_facts.is_owner, "this role does not own the table")
        })
        .or_else(|| {
            reason_if(
                !facts.maintenance_facts.may_create_indexes,
                "this role may not create in its schema",
            )
        })
        .or_else(|| {
            let why = "the input cannot be read again, so no later run could restore the table";
            reason_if(facts.is_stream, why)
        })
        .or_else(|| {
            let why = "without a ledger nothing could restore the table after a crash";
            reason_if(!facts.has_ledger, why)
        })
        .or_else(|| facts.writer.map(|writer| format!("{writer} writes into the table")))
}

/// Returns why indexes are dropped and rebuilt (`Ok`), or why keeping them is better (`Err`).
fn rebuild_is_faster(facts: &MaintenanceInputs<'_>) -> Result<String, String> {
    let maintenance_facts = facts.maintenance_facts;
    if let Some(user) = maintenance_facts.locking_sessions.first() {
        return Err(format!("{user} uses the table"));
    }
    let left = facts.input_bytes.map(|bytes| bytes.saturating_sub(facts.bytes_done));
    match left {
        Some(bytes) if bytes < REBUILD_BYTES_MIN => Err("the input is small".to_owned()),
        Some(bytes) if !has_temp_space(facts, bytes) => {
            Err("temp_file_limit leaves too little room to rebuild them".to_owned())
        }
        _ if facts.maintenance_facts.is_empty => Ok("the table is empty".to_owned()),
        None => Err("the table has rows, and the input's size is unknown".to_owned()),
        Some(bytes)
            if maintenance_facts.table_bytes
                <= bytes.saturating_mul(OLD_BYTES_PER_INPUT_BYTE_MAX) =>
        {
            Ok("the table is small compared with the input".to_owned())
        }
        Some(_) => Err("the table has too many rows compared with the input".to_owned()),
    }
}

/// Returns whether `temp_file_limit` lets the server sort the keys of an index. The keys are
/// estimated at the size of the old rows plus twice the input, because an index entry has 16 bytes
/// in addition to its key.
fn has_temp_space(facts: &MaintenanceInputs<'_>, input_bytes: u64) -> bool {
    let needed = facts.maintenance_facts.table_bytes.saturating_add(input_bytes.saturating_mul(2));
    facts.maintenance_facts.temp_bytes_max.is_none_or(|most| needed <= most)
}

/// Returns the reason to keep an index although others are dropped.
fn reason_to_keep(
    index: &TableIndex,
    facts: &MaintenanceInputs<'_>,
    request: &PlanRequest,
) -> Option<String> {
    let reason = |text: &str| Some(text.to_owned());
    let is_auto = request.options.rebuild_indexes == AutoChoice::Auto;
    let is_key = !matches!(index.kind, IndexKind::Plain | IndexKind::ForeignKey);
    match index.kind {
        IndexKind::Plain => None,
        _ if request.rejects => reason("its checks decide which rows are rejected"),
        _ if is_key && facts.maintenance_facts.is_published => {
            reason("the table is published, so updates and deletes of its rows need a key")
        }
        // While the index is dropped, nothing would refuse duplicates that other sessions write.
        _ if is_key && is_auto && !facts.maintenance_facts.is_empty => reason("the table has rows"),
        IndexKind::Exclusion if is_auto => reason("it would be rebuilt under an exclusive lock"),
        // While the foreign key is dropped, other sessions may delete rows that old rows refer to.
        IndexKind::ForeignKey if is_auto && !facts.maintenance_facts.is_empty => {
            reason("the table has rows")
        }
        _ if is_auto && facts.commit == Commit::AtEnd && !can_delete_again(facts) => {
            reason("rows that violate it could not be deleted again after the load")
        }
        _ => None,
    }
}

/// Returns whether loaded rows can be deleted again without effects elsewhere. Triggers have acted
/// on their insertion, and subscribers would repeat the deletion on rows of their own.
fn can_delete_again(facts: &MaintenanceInputs<'_>) -> bool {
    let maintenance_facts = facts.maintenance_facts;
    facts.table.triggers.is_empty()
        && !maintenance_facts.is_published
        && !maintenance_facts.is_referenced
        && !maintenance_facts.has_delete_actions
}

/// Returns why autovacuum is switched off for the table; `None` if it stays as it is.
fn pause_reason(facts: &MaintenanceInputs<'_>, request: &PlanOptions) -> Result<Option<String>> {
    let is_off = |option: &Option<String>| {
        // All spellings that PostgreSQL accepts for a false value.
        let off = ["off", "false", "no", "0", "n", "f", "of", "fal", "fals", "fa"];
        option.as_deref().is_some_and(|it| off.contains(&it.to_ascii_lowercase().as_str()))
    };
    if request.pause_autovacuum == AutoChoice::Never
        || is_off(&facts.maintenance_facts.autovacuum[0])
    {
        return Ok(None);
    }
    match (request.pause_autovacuum, obstacle_to_alter(facts)) {
        (AutoChoice::Always, Some(why)) => {
            let message = format!("autovacuum of {} cannot be paused: {why}", facts.table.sql_name);
            Err(Error::new(ErrorKind::Plan, message).hint("Leave `--pause-autovacuum always` out."))
        }
        (AutoChoice::Always, None) => Ok(Some("as asked".to_owned())),
        (_, Some(_)) => Ok(None),
        (_, None) => {
            let left = facts.input_bytes.unwrap_or(0).saturating_sub(facts.bytes_done);
            let is_long = left >= PAUSE_BYTES_MIN;
            Ok(is_long.then(|| "it would scan the table while it is half loaded".to_owned()))
        }
    }
}

/// Returns why to run ANALYZE after writing `written` rows (`Ok`), or why not (`Err`). As in
/// autovacuum, ANALYZE is needed if a tenth of the rows is new.
pub(crate) fn why_analyze(
    request: AutoChoice,
    table: &TargetTable,
    maintenance_facts: &MaintenanceFacts,
    written: u64,
    lost_statistics: bool,
    atomic_plan: Option<&AtomicPlan>,
) -> Result<&'static str, &'static str> {
    let is_local = matches!(table.kind, 'r' | 'p');
    let is_swapped = atomic_plan.is_some_and(|it| it.method == AtomicMethod::Swap);
    let old_rows = match atomic_plan {
        Some(AtomicPlan { replaces: true, .. }) => 0.0,
        _ => maintenance_facts.rows.unwrap_or(0.0).max(0.0),
    };
    match request {
        AutoChoice::Never => Err("as asked"),
        AutoChoice::Always => Ok("as asked"),
        AutoChoice::Auto if is_swapped => {
            Err("the shadow table was analyzed before it took the table's place")
        }
        AutoChoice::Auto if !is_local => Err("it is not a table of this server"),
        AutoChoice::Auto if !maintenance_facts.is_owner => Err("this role does not own the table"),
        AutoChoice::Auto if lost_statistics => Ok("an index over an expression was built again"),
        AutoChoice::Auto if written == 0 => Err("nothing was written"),
        AutoChoice::Auto if (written as f64) < old_rows / 10.0 => {
            Err("less than a tenth of the rows is new: autovacuum analyzes the table when needed")
        }
        AutoChoice::Auto => Ok("a tenth of the rows or more is new"),
    }
}

impl fmt::Display for MaintenancePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.indexes.iter().map(|it| it.name.chars().count()).max().unwrap_or(0);
        let reason = &self.indexes_reason;
        if self.drops_indexes() {
            writeln!(f, "indexes  dropped for the load, and created again after it: {reason}")?;
        } else if self.rebuilds {
            writeln!(f, "indexes  none can be dropped")?;
        } else if !self.indexes.is_empty() {
            writeln!(f, "indexes  stay: {reason}")?;
        }
        for choice in self.indexes.iter().filter(|_| self.rebuilds) {
            let (name, kind) = (&choice.name, choice.kind.name());
            let decision = match &choice.kept_because {
                None => "dropped".to_owned(),
                Some(reason) => format!("stays: {reason}"),
            };
            writeln!(f, "{:8} {name:width$}  {kind}, {decision}", "")?;
        }
        if let Some(reason) = &self.autovacuum_pause {
            writeln!(f, "vacuum   autovacuum is off for the table during the load: {reason}")?;
        }
        match (self.vacuum, self.analyze) {
            (true, _) => writeln!(f, "after    vacuum (freeze, analyze)")?,
            (false, AutoChoice::Always) => writeln!(f, "after    analyze")?,
            (false, AutoChoice::Never) => writeln!(f, "after    no analyze")?,
            (false, AutoChoice::Auto) => {}
        }
        for (column, sequence) in &self.sequences {
            writeln!(f, "after    sequence {sequence} moves past the values of \"{column}\"")?;
        }
        Ok(())
    }
}
