//! What a program says of its own rows, in the words of the table.

use std::sync::Arc;

use arrow_schema::Schema;

use crate::format::memory::BatchIter;
use crate::plan::RowPlan;

/// What fields are called, and the columns that they go to.
#[derive(Debug, Clone, Default)]
pub(crate) struct ColumnNames(Arc<[(String, String)]>);

impl ColumnNames {
    /// Of rows of this schema.
    pub(crate) fn of(schema: &Schema, plan: &RowPlan) -> ColumnNames {
        let names = plan.columns.iter().filter_map(|column| {
            let field = schema.fields().get(column.field)?;
            Some((field.name().clone(), column.name.clone()))
        });
        ColumnNames(names.collect())
    }

    /// The same batches, whose errors name columns as the server's do: a field may have no name of
    /// its own.
    pub(crate) fn tell(&self, batches: BatchIter) -> BatchIter {
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
