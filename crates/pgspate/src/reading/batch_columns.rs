//! The columns of record batches: their encoders, and which schemas one reading may have.
//!
//! Files of a folder may differ in the types and the order of their columns: pandas writes integers
//! as floats when one of them is missing. The table's columns do not depend on the files. So each
//! file is encoded from its own types, and values go to their columns by name.

use std::sync::Arc;

use arrow_schema::{DataType, Schema, SchemaRef};

use crate::format::batches::BatchColumn;
use crate::plan::{ColumnRoute, PlannedColumn, RowPlan, batch_encoder};
use crate::{Error, ErrorKind, Result};
use pgspate_target::{PgType, SessionSettings};

/// Returns the columns of the first input, with their encoders.
pub(super) fn planned(plan: &RowPlan) -> Result<Vec<BatchColumn>> {
    let column = |column: &PlannedColumn| match &column.route {
        ColumnRoute::Batch(encoder) => Ok(BatchColumn {
            name: column.name.clone(),
            index: column.field,
            encoder: encoder.clone(),
        }),
        _ => Err(Error::new(ErrorKind::Bug, "a column of a batch was planned as a field")),
    };
    plan.field_columns().map(column).collect()
}

/// The schema of the first input, and what is needed to plan the columns of other schemas.
pub(super) struct BatchSchemas {
    first: SchemaRef,
    columns: Vec<WrittenColumn>,
    session: SessionSettings,
    /// Whether all inputs must have the types of the first one, as types of the table's columns
    /// were guessed from them.
    fixes_types: bool,
}

/// A column of the table that gets values of the inputs.
struct WrittenColumn {
    name: String,
    /// The index of its field in the first schema.
    index: usize,
    ty: PgType,
}

impl BatchSchemas {
    pub(super) fn new(plan: &RowPlan, first: &SchemaRef) -> BatchSchemas {
        let column = |column: &PlannedColumn| WrittenColumn {
            name: column.name.clone(),
            index: column.field,
            ty: column.ty.clone(),
        };
        BatchSchemas {
            first: Arc::clone(first),
            columns: plan.field_columns().map(column).collect(),
            session: plan.session.clone(),
            fixes_types: plan.has_guessed_types,
        }
    }

    /// Returns the columns for inputs of a schema. `None` if it is the first input's.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if the schema has other columns. [`ErrorKind::Type`] if values cannot
    /// be converted.
    pub(super) fn columns_of(&self, schema: &Schema) -> Result<Option<Vec<BatchColumn>>> {
        if fields(&self.first).eq(fields(schema)) {
            return Ok(None);
        }
        self.check(schema)?;
        let column = |column: &WrittenColumn| {
            let index = schema.index_of(self.first.field(column.index).name());
            let index = index.map_err(|error| differing_error(&error.to_string()))?;
            let WrittenColumn { name, ty, .. } = column;
            let encoder = batch_encoder(schema.field(index), name, ty, &self.session)?;
            Ok(BatchColumn { name: name.clone(), index, encoder })
        };
        self.columns.iter().map(column).collect::<Result<Vec<_>>>().map(Some)
    }

    /// Returns in words a written column that has another type than in the first input, if any.
    pub(super) fn other_type(&self, schema: &Schema) -> Option<String> {
        self.columns.iter().find_map(|column| {
            let first = self.first.field(column.index);
            let found = schema.field_with_name(first.name()).ok()?.data_type();
            let differs = found != first.data_type() && *found != DataType::Null;
            differs.then(|| {
                format!("column \"{}\" has type {found}, not {}", first.name(), first.data_type())
            })
        })
    }

    /// Checks that a schema has the columns of the first one, and each once.
    fn check(&self, schema: &Schema) -> Result<()> {
        for (name, ty) in fields(schema) {
            let Ok(first) = self.first.field_with_name(name) else {
                return Err(differing_error(&format!("column \"{name}\" is not among them")));
            };
            if self.fixes_types && first.data_type() != ty {
                let known = first.data_type();
                let detail = format!("column \"{name}\" has type {ty}, not {known}");
                return Err(differing_error(&detail));
            }
        }
        for (name, _) in fields(&self.first) {
            let count = fields(schema).filter(|(other, _)| *other == name).count();
            let known = fields(&self.first).filter(|(other, _)| *other == name).count();
            if count == 0 {
                return Err(differing_error(&format!("column \"{name}\" is missing")));
            }
            // Values go to their columns by name.
            if count > 1 || known > 1 {
                return Err(differing_error(&format!("several columns have the name \"{name}\"")));
            }
        }
        Ok(())
    }
}

fn fields(schema: &Schema) -> impl Iterator<Item = (&String, &DataType)> {
    schema.fields().iter().map(|field| (field.name(), field.data_type()))
}

fn differing_error(detail: &str) -> Error {
    let message = format!("the columns differ from the columns of the first input: {detail}");
    Error::new(ErrorKind::Format, message)
        .hint("Load inputs with different columns one after the other.")
}
