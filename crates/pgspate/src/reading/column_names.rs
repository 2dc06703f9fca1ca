//! Puts the names of the table's columns into errors about a program's record batches.

use std::sync::Arc;

use arrow_schema::Schema;

use crate::format::memory::BatchIter;
use crate::plan::RowPlan;

/// Pairs of a batch column's name and its table column's name.
#[derive(Debug, Clone, Default)]
pub(crate) struct ColumnNames(Arc<[(String, String)]>);

impl ColumnNames {
    /// Pairs the columns of `schema` with the plan's table columns.
    pub(crate) fn of(schema: &Schema, plan: &RowPlan) -> ColumnNames {
        let names = plan.field_columns().filter_map(|column| {
            let field = schema.fields().get(column.field)?;
            Some((field.name().clone(), column.name.clone()))
        });
        ColumnNames(names.collect())
    }

    /// Returns `batches` with errors that name the table's columns, as the server's errors do.
    /// Errors of `batches` name the batch's columns, whose names may be empty.
    pub(crate) fn rename_in_errors(&self, batches: BatchIter) -> BatchIter {
        let names = self.clone();
        Box::new(batches.map(move |batch| {
            batch.map_err(|error| {
                let Some(mut place) = error.place().cloned() else { return error };
                let mut pairs = names.0.iter();
                match pairs.find(|(field, _)| Some(field) == place.column.as_ref()) {
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
