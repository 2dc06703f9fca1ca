//! Renames the columns in errors about a program's rows to the names of the table's columns.

use std::sync::Arc;

use arrow_schema::Schema;

use crate::format::memory::BatchIter;
use crate::plan::RowPlan;

/// Pairs of a field's name and its column's name.
#[derive(Debug, Clone, Default)]
pub(crate) struct ColumnNames(Arc<[(String, String)]>);

impl ColumnNames {
    /// Pairs the fields of `schema` with the plan's columns.
    pub(crate) fn of(schema: &Schema, plan: &RowPlan) -> ColumnNames {
        let names = plan.columns.iter().filter_map(|column| {
            let field = schema.fields().get(column.field)?;
            Some((field.name().clone(), column.name.clone()))
        });
        ColumnNames(names.collect())
    }

    /// Returns the same batches. Their errors name table columns, as the server's errors do,
    /// because a field may have no name.
    pub(crate) fn rename_in_errors(&self, batches: BatchIter) -> BatchIter {
        let names = self.clone();
        Box::new(batches.map(move |batch| {
            batch.map_err(|error| {
                let Some(mut place) = error.place().cloned() else { return error };
                let mut known = names.0.iter();
                match known.find(|(field, _)| Some(field) == place.column.as_ref()) {
                    Some((_, column)) => {
                        place.column = Some(column.clone());
                        error.at(place)
                    }
                    None => error,
                }
            })
        }))
    }
}
