//! AfterLoad the last row: values are counted, and sequences moved past what was loaded.
//!
//! None of it can make a load that is in fail, but for a vacuum that was asked for: what could not
//! be done is a warning, with the SQL that does it.

use serde::Serialize;
use tokio_postgres::Client;

use super::TableCare;
use crate::Result;
use crate::plan::care;
use pgspate_target::{Ask, Sequence, Table, quote_ident, server_error, under_users_path};

/// Below so many values a sequence is moved by taking them, which no other session can be
/// overtaken by; above, nobody takes as many between one look and the next.
const STEPS_MAX: i64 = 1000;

/// What was done after the last row.
#[derive(Debug, Clone, Default)]
pub(crate) struct AfterLoad {
    /// `vacuum (freeze, analyze)` or `analyze`; nothing where that was not done.
    pub(crate) counted: Option<&'static str>,
    /// Why it was done, or not.
    pub(crate) counted_reason: &'static str,
    pub(crate) seconds: f64,
    pub(crate) sequences: Vec<MovedSequence>,
    pub(crate) warnings: Vec<String>,
}

/// A sequence that was moved past what was loaded.
#[derive(Debug, Clone, Serialize)]
pub struct MovedSequence {
    /// Its name, as SQL writes it.
    pub name: String,
    /// Its last value now.
    pub value: i64,
}

impl TableCare<'_> {
    /// Counts, vacuums and moves sequences. `written` are all rows of the load.
    ///
    /// # Errors
    /// When a vacuum that was asked for was refused, or the connection was lost.
    pub(super) async fn follow_up(&self, written: u64) -> Result<AfterLoad> {
        let TableCare { table, plan, progress, .. } = self;
        let (upkeep, connection) = (&self.standing.upkeep, self.job.connection());
        let care = &plan.care;
        let client = &connection.client;
        let mut after = AfterLoad::default();
        for (column, name) in &care.sequences {
            let Some(sequence) = upkeep.sequences.iter().find(|it| it.name == *name) else {
                continue;
            };
            match advance(client, table, sequence).await {
                Ok(None) => {}
                Ok(Some(value)) => {
                    after.sequences.push(MovedSequence { name: name.clone(), value })
                }
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => {
                    let what = error.to_string();
                    let column = quote_ident(column);
                    let (name, table) = (literal(name), &table.sql_name);
                    let furthest = sequence.furthest();
                    after.warnings.push(format!(
                        "{what}; run `select setval('{name}', {furthest}({column})) from {table}`"
                    ));
                }
            }
        }
        let started = std::time::Instant::now();
        if care.vacuum {
            progress.set_phase(Some("vacuum".to_owned()));
            let sql = format!("vacuum (freeze, analyze) {}", table.sql_name);
            let what = format!("could not vacuum {}", table.sql_name);
            progress.stop.run(connection, &sql, &what).await?;
            (after.counted, after.counted_reason) = (Some("vacuum (freeze, analyze)"), "as asked");
        } else {
            match care::analyze(
                care.analyze,
                table,
                upkeep,
                written,
                self.standing.lost_statistics,
                plan.at_once.as_ref(),
            ) {
                Err(reason) => after.counted_reason = reason,
                Ok(reason) => {
                    after.counted_reason = reason;
                    progress.set_phase(Some("analyze".to_owned()));
                    let name = &table.sql_name;
                    // Nothing is worth a long wait for a lock here.
                    let sql = under_users_path(&format!(
                        "set local lock_timeout = '10s'; set local statement_timeout = 0; \
                         analyze {name}"
                    ));
                    let what = format!("could not analyze {name}");
                    match progress.stop.run(connection, &sql, &what).await {
                        Ok(()) => after.counted = Some("analyze"),
                        Err(error) if error.is_retryable() => return Err(error),
                        Err(error) => after.warnings.push(told(&error)),
                    }
                }
            }
        }
        progress.set_phase(None);
        after.seconds = started.elapsed().as_secs_f64();
        Ok(after)
    }
}

/// The message and its cause.
fn told(error: &crate::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Moves the sequence past the furthest value of its column; never back. Its last value then, if
/// it was moved. Nothing is locked that others wait for.
async fn advance(client: &Client, table: &Table, sequence: &Sequence) -> Result<Option<i64>> {
    let Sequence { name, increment, bounds, .. } = sequence;
    let failed = || server_error(format!("could not move sequence {name}"));
    let furthest = sequence.furthest();
    let beyond = if *increment > 0 { "<" } else { ">" };
    let (column, table) = (quote_ident(&sequence.column), &table.sql_name);
    let look = format!(
        "select (select {furthest}({column})::int8 from {table}), last_value, is_called from {name}"
    );
    let row = client.ask_one(&look, &[]).await.map_err(failed())?;
    let (top, last, is_called): (Option<i64>, i64, bool) = (row.get(0), row.get(1), row.get(2));
    let Some(top) = top else { return Ok(None) };
    let top = top.clamp(bounds.0, bounds.1);
    let Some(steps) = steps(top, last, is_called, *increment) else { return Ok(None) };
    let move_on = match steps {
        ..=STEPS_MAX => {
            let taken = format!("nextval('{}')", literal(name));
            format!("select {furthest}({taken}) from generate_series(1, {steps})")
        }
        _ => format!(
            "select setval('{}', {top}) from {name} where last_value {beyond} {top}",
            literal(name)
        ),
    };
    let row = client.ask_opt(&move_on, &[]).await.map_err(failed())?;
    Ok(row.map(|row| row.get(0)))
}

fn literal(name: &str) -> String {
    name.replace('\'', "''")
}

/// How many values are to be taken until `top` is; `None` if it is already.
fn steps(top: i64, last: i64, is_called: bool, increment: i64) -> Option<i64> {
    let (top, last, increment) = (i128::from(top), i128::from(last), i128::from(increment));
    let distance = if increment > 0 { top - last } else { last - top };
    let whole = (distance + increment.abs() - 1).div_euclid(increment.abs());
    let steps = whole + i128::from(!is_called);
    (distance >= 0 && steps > 0).then(|| i64::try_from(steps).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::steps;

    #[test]
    fn values_to_take() {
        assert_eq!(steps(10, 1, false, 1), Some(10));
        assert_eq!(steps(1, 1, false, 1), Some(1));
        assert_eq!(steps(1, 1, true, 1), None);
        assert_eq!(steps(5, 9, true, 1), None);
        assert_eq!(steps(5, 9, false, 1), None);
        assert_eq!(steps(10, 1, true, 10), Some(1));
        assert_eq!(steps(12, 1, true, 10), Some(2));
        assert_eq!(steps(-10, -1, false, -1), Some(10));
        assert_eq!(steps(i64::MAX, i64::MIN, true, 1), Some(i64::MAX));
    }
}
