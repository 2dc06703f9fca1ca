//! Statements for columns that are `generated always as identity`. No update may set them.

use super::{ACTION_COLUMN, ApplyStatements, is_given_sql};
use crate::apply::batch::{ColumnPresence, RowAction};

impl ApplyStatements<'_> {
    /// Returns SQL that asks whether an update gives such a column another value. With parameters,
    /// such an update raises an error. `None` if no staged row gives such a column.
    pub(crate) fn identity_changes(&self) -> Option<String> {
        let differs = self.identity_differs();
        (!differs.is_empty()).then(|| {
            let exist = format!(
                "exists (select from {} t join {} on {} \
                 where s.{ACTION_COLUMN} between {} and {} and ({}))",
                self.table,
                self.rows_sql,
                self.key_matches(),
                RowAction::UpdateIfPresent as i16,
                RowAction::UpsertWithDefaults as i16,
                differs.join(" or ")
            );
            match self.is_direct {
                true => format!("select 1 / (not {exist})::int4"),
                false => format!("select {exist}"),
            }
        })
    }

    /// Returns the condition that no such column gets another value, for the end of a WHERE clause.
    pub(super) fn keeps_identity(&self) -> String {
        let differs = self.identity_differs();
        differs.iter().map(|differs| format!(" and not ({differs})")).collect()
    }

    /// Returns for each such column outside of the key the condition that it gets another value.
    fn identity_differs(&self) -> Vec<String> {
        let given = self.columns_with_presence().filter(|(at, column, presence)| {
            column.is_identity_always && !self.is_key(*at) && *presence != ColumnPresence::Never
        });
        given
            .map(|(at, column, _)| {
                let (old, new) = (format!("t.{}", column.sql), format!("s.{}", column.sql));
                format!("{} and {}", is_given_sql(at), column.differ_sql(&old, &new))
            })
            .collect()
    }
}
