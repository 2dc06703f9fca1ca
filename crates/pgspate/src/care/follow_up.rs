//! After the last row: analyzes the table and advances its sequences.
//!
//! The rows are committed, so a failure here is only a warning with the SQL to run. The exception
//! is a vacuum that the user asked for. A job with a driver advances sequences before its commit,
//! so that no run of the driver finds the job complete and the sequences behind.

use std::collections::BTreeSet;

use serde::Serialize;
use tokio_postgres::Client;

use super::{TableCare, TableWork};
use crate::plan::maintenance;
use crate::{Error, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::RecordedChange;
use pgspate_target::session::{StopFlag, TimeoutScope};
use pgspate_target::{
    RestoreRecipe, Sequence, TypedQuery, pin_transaction_sql, quote_ident, read_current_names,
    server_error, under_users_path_sql,
};

/// Up to this many values, pgspate advances a sequence with `nextval`, which cannot interfere with
/// another session. For more values it uses `setval`: no other session takes that many values
/// between the query and the `setval`.
const STEPS_MAX: i64 = 1000;

/// The work done after the last row.
#[derive(Debug, Clone, Default)]
pub(crate) struct AfterLoad {
    /// `vacuum (freeze, analyze)` or `analyze`; `None` if neither was run.
    pub(crate) analyze_command: Option<&'static str>,
    /// The reason for running the command, or for running neither.
    pub(crate) analyze_reason: &'static str,
    pub(crate) seconds: f64,
    pub(crate) sequences: Vec<MovedSequence>,
    pub(crate) warnings: Vec<String>,
}

/// A sequence that was advanced past the loaded values.
#[derive(Debug, Clone, Serialize)]
pub struct MovedSequence {
    /// The sequence's name in SQL.
    pub name: String,
    /// The sequence's last value after the load.
    pub value: i64,
}

impl TableCare<'_> {
    /// Advances sequences, and vacuums or analyzes the table. `written` is the number of rows of
    /// the load, over all runs.
    ///
    /// # Errors
    /// If a vacuum that the user asked for fails, or the connection is lost.
    pub(super) async fn follow_up(&self, written: u64) -> Result<AfterLoad> {
        let TableCare { table, plan, progress, .. } = self;
        let (maintenance_facts, connection) =
            (&self.changes.maintenance_facts, self.job.connection());
        let maintenance_plan = &plan.maintenance;
        let client = &connection.client;
        let mut after = AfterLoad::default();
        if maintenance_plan.vacuum || !maintenance_plan.sequences.is_empty() {
            let failed = server_error("could not switch time limits off".to_owned());
            // The rows are written. So this is done, however long it waits for a lock.
            let unlimited = TimeoutScope::Session.disable_with_lock_timeout_sql(0);
            client.batch_execute(&unlimited).await.map_err(failed)?;
        }
        for (_, name) in &maintenance_plan.sequences {
            let Some(sequence) = maintenance_facts.sequences.iter().find(|it| it.name == *name)
            else {
                continue;
            };
            match advance(client, &table.sql_name, sequence).await {
                Ok(Advance { moved_to, warning }) => {
                    let moved = moved_to.map(|value| MovedSequence { name: name.clone(), value });
                    after.sequences.extend(moved);
                    after.warnings.extend(warning);
                }
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => {
                    after.warnings.push(sequence_warning(&error, sequence, &table.sql_name));
                }
            }
        }
        let started = std::time::Instant::now();
        if maintenance_plan.vacuum {
            progress.set_phase(Some("vacuum".to_owned()));
            let sql = format!("vacuum (freeze, analyze) {}", table.sql_name);
            let what = format!("could not vacuum {}", table.sql_name);
            connection.execute_until_stopped(&sql, &progress.stop, &what).await?;
            (after.analyze_command, after.analyze_reason) =
                (Some("vacuum (freeze, analyze)"), "as asked");
        } else {
            match maintenance::why_analyze(
                maintenance_plan.analyze,
                table,
                maintenance_facts,
                written,
                self.changes.lost_statistics,
                plan.atomic_plan.as_ref(),
            ) {
                Err(reason) => after.analyze_reason = reason,
                Ok(reason) => {
                    after.analyze_reason = reason;
                    progress.set_phase(Some("analyze".to_owned()));
                    let name = &table.sql_name;
                    match analyze(connection, name, &progress.stop).await {
                        Ok(()) => after.analyze_command = Some("analyze"),
                        Err(error) if error.is_retryable() => return Err(error),
                        Err(error) => after.warnings.push(message_with_cause(&error)),
                    }
                }
            }
        }
        progress.set_phase(None);
        after.seconds = started.elapsed().as_secs_f64();
        Ok(after)
    }
}

/// Analyzes a table, whose name is given in SQL. Waits only briefly for a lock: new statistics are
/// not worth more.
pub(super) async fn analyze(connection: &Connection, table: &str, stop: &StopFlag) -> Result<()> {
    let sql = under_users_path_sql(&format!(
        "set local lock_timeout = '10s'; set local statement_timeout = 0; analyze {table}"
    ));
    connection.execute_until_stopped(&sql, stop, &format!("could not analyze {table}")).await
}

/// Analyzes the tables of which these changes have put back indexes over expressions. The
/// statistics of an expression are dropped with its index. Returns warnings.
pub(super) async fn restore_statistics(
    connection: &Connection,
    changes: &[RecordedChange],
    work: &TableWork<'_>,
) -> Vec<String> {
    let changes = changes.iter().filter(|change| has_expression(change));
    let tables: BTreeSet<u32> = changes.map(|change| change.table_oid).collect();
    let mut warnings = Vec::new();
    for table in tables {
        let recipe = RestoreRecipe::default();
        let names = read_current_names(&connection.client, table, &recipe).await;
        // A table that was dropped needs no statistics.
        let Some(names) = names.ok().flatten() else { continue };
        work.progress.set_phase(Some("analyze".to_owned()));
        if let Err(error) = analyze(connection, &names.table, &work.stop).await {
            warnings.push(message_with_cause(&error));
        }
    }
    work.progress.set_phase(None);
    warnings
}

/// Returns whether a change has dropped an index over an expression.
pub(super) fn has_expression(change: &RecordedChange) -> bool {
    change.recipe().is_some_and(|recipe| recipe.expression)
}

/// Returns the error's message with its cause.
fn message_with_cause(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// How a sequence was advanced.
#[derive(Debug, Default)]
struct Advance {
    /// The sequence's new last value; `None` if the sequence stays as it was.
    moved_to: Option<i64>,
    /// Why the next insert may get no value from the sequence.
    warning: Option<String>,
}

/// Advances the sequence past the furthest value of its column within the sequence's bounds, but
/// never moves it back. The sequence stays on the values that its increment gives. Other sessions
/// do not wait for a lock meanwhile.
async fn advance(client: &Client, table: &str, sequence: &Sequence) -> Result<Advance> {
    let Sequence { name, increment, bounds: (min, max), .. } = sequence;
    let failed = || server_error(format!("could not advance sequence {name}"));
    let furthest = sequence.last_value_aggregate();
    let column = quote_ident(&sequence.column);
    let query = format!(
        "select (select {furthest}({column})::int8 from {table} \
                 where {column} between '{min}'::int8 and '{max}'::int8), \
                last_value, is_called from {name}"
    );
    let row = client.fetch_one(&query, &[]).await.map_err(failed())?;
    let (top, last, is_called): (Option<i64>, i64, bool) = (row.get(0), row.get(1), row.get(2));
    let Some(top) = top else { return Ok(Advance::default()) };
    let Some(steps) = count_nextval_calls(top, last, is_called, *increment) else {
        return Ok(Advance::default());
    };
    let value_after = |steps: i128| {
        let value = i128::from(last) + i128::from(*increment) * (steps - i128::from(!is_called));
        i64::try_from(value).ok().filter(|value| (min..=max).contains(&value))
    };
    let Some(reached) = value_after(i128::from(steps)) else {
        return Ok(Advance {
            moved_to: None,
            warning: Some(format!(
                "sequence {name} stays as it is: it has no value beyond {top} in column {column}"
            )),
        });
    };
    let advance_sql = match steps {
        ..=STEPS_MAX => {
            let taken = format!("nextval('{}')", escape_quotes(name));
            format!("select {furthest}({taken}) from generate_series(1, {steps})")
        }
        _ => {
            let beyond = if *increment > 0 { "<" } else { ">" };
            format!(
                "select setval('{}', '{reached}'::int8) from {name} \
                 where last_value {beyond} '{reached}'::int8",
                escape_quotes(name)
            )
        }
    };
    let row = client.fetch_opt(&advance_sql, &[]).await.map_err(failed())?;
    let moved_to = row.map(|row| row.get(0));
    let is_last = !sequence.cycles && value_after(i128::from(steps) + 1).is_none();
    let warning = moved_to.filter(|_| is_last).map(|last: i64| {
        format!("sequence {name} is at {last}, its last value: the next one will fail")
    });
    Ok(Advance { moved_to, warning })
}

/// Returns the warning of a sequence that could not be advanced: the error, and the SQL to run.
fn sequence_warning(error: &Error, sequence: &Sequence, table: &str) -> String {
    let (column, name) = (quote_ident(&sequence.column), escape_quotes(&sequence.name));
    let furthest = sequence.last_value_aggregate();
    format!("{error}; run `select setval('{name}', {furthest}({column})) from {table}`")
}

/// Advances the sequences of these columns past the values that the open transaction has written
/// to the table. The rows stay if a sequence cannot be advanced: returns warnings. The search path
/// is the same afterwards.
///
/// # Errors
/// If the table's sequences cannot be looked up, or the connection is lost.
pub(crate) async fn advance_sequences(
    client: &Client,
    table: &str,
    columns: &[String],
) -> Result<Vec<String>> {
    let failed = || server_error(format!("could not advance the sequences of {table}"));
    let path = "select pg_catalog.current_setting('search_path')";
    let path: String = client.fetch_one(path, &[]).await.map_err(failed())?.get(0);
    client.batch_execute(&pin_transaction_sql()).await.map_err(failed())?;
    let mut warnings = Vec::new();
    for sequence in Sequence::read_of(client, table).await? {
        if !columns.contains(&sequence.column) {
            continue;
        }
        client.batch_execute("savepoint pgspate_sequence").await.map_err(failed())?;
        let end = match advance(client, table, &sequence).await {
            Ok(Advance { warning, .. }) => {
                warnings.extend(warning);
                "release savepoint pgspate_sequence"
            }
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => {
                warnings.push(sequence_warning(&error, &sequence, table));
                "rollback to savepoint pgspate_sequence"
            }
        };
        client.batch_execute(end).await.map_err(failed())?;
    }
    let restore = "select pg_catalog.set_config('search_path', $1, true)";
    client.fetch_one(restore, &[&path]).await.map_err(failed())?;
    Ok(warnings)
}

fn escape_quotes(name: &str) -> String {
    name.replace('\'', "''")
}

/// Returns how many times `nextval` must be called to reach `top`; `None` if the sequence has
/// reached `top` already.
fn count_nextval_calls(top: i64, last: i64, is_called: bool, increment: i64) -> Option<i64> {
    let (top, last, increment) = (i128::from(top), i128::from(last), i128::from(increment));
    let distance = if increment > 0 { top - last } else { last - top };
    let rounded_up = (distance + increment.abs() - 1).div_euclid(increment.abs());
    let steps = rounded_up + i128::from(!is_called);
    (distance >= 0 && steps > 0).then(|| i64::try_from(steps).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::count_nextval_calls;

    #[test]
    fn counts_nextval_calls() {
        assert_eq!(count_nextval_calls(10, 1, false, 1), Some(10));
        assert_eq!(count_nextval_calls(1, 1, false, 1), Some(1));
        assert_eq!(count_nextval_calls(1, 1, true, 1), None);
        assert_eq!(count_nextval_calls(5, 9, true, 1), None);
        assert_eq!(count_nextval_calls(5, 9, false, 1), None);
        assert_eq!(count_nextval_calls(10, 1, true, 10), Some(1));
        assert_eq!(count_nextval_calls(12, 1, true, 10), Some(2));
        assert_eq!(count_nextval_calls(-10, -1, false, -1), Some(10));
        assert_eq!(count_nextval_calls(i64::MAX, i64::MIN, true, 1), Some(i64::MAX));
    }
}
