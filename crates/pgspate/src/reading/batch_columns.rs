//! The columns of record batches: their encoders, and which schemas one reading may have.
//!
//! Files of a folder may differ in the types and the order of their columns: pandas writes integers
//! as floats when one of them is missing. The table's columns do not depend on the files. So each
//! file is encoded from its own types, and values go to their columns by name.

use std::sync::Arc;

use arrow_schema::{DataType, Schema, SchemaRef};

use crate::format::batches::{BatchColumn, PlanColumns};
use crate::plan::{ColumnRoute, PlannedColumn, RowPlan, batch_encoder};
use crate::{Error, ErrorKind, Result};

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

/// Returns a function that plans the columns of inputs whose schema differs from `first`, the
/// schema of the first input.
pub(super) fn for_other_schemas(plan: &RowPlan, first: &SchemaRef) -> PlanColumns {
    let columns: Vec<_> = plan
        .field_columns()
        .map(|column| (column.name.clone(), column.field, column.ty.clone()))
        .collect();
    let (session, first) = (plan.session.clone(), Arc::clone(first));
    Arc::new(move |schema: &Schema| {
        if fields(&first).eq(fields(schema)) {
            return Ok(None);
        }
        let column = |(name, index, ty): &(String, usize, _)| {
            let field = first.field(*index).name();
            let found = schema.column_with_name(field);
            let (index, field) = found.ok_or_else(|| differing_error(&is_missing(field)))?;
            let encoder = batch_encoder(field, name, ty, &session)?;
            Ok(BatchColumn { name: name.clone(), index, encoder })
        };
        columns.iter().map(column).collect::<Result<Vec<_>>>().map(Some)
    })
}

/// Checks that an input has the columns of the first input. With `fixes_types`, their types must be
/// equal, too: the types of the table's columns were guessed from them.
pub(super) fn check_schema(first: &Schema, other: &Schema, fixes_types: bool) -> Result<()> {
    for (name, ty) in fields(other) {
        match first.column_with_name(name).map(|(_, field)| field.data_type()) {
            None => {
                return Err(differing_error(&format!("column \"{name}\" is not among them")));
            }
            Some(known) if fixes_types && known != ty => {
                let detail = format!("column \"{name}\" has type {ty}, not {known}");
                return Err(differing_error(&detail));
            }
            Some(_) => {}
        }
    }
    if first.fields().len() != other.fields().len() {
        return Err(differing_error("their number is another one"));
    }
    match fields(first).find(|(name, _)| other.column_with_name(name).is_none()) {
        Some((name, _)) => Err(differing_error(&is_missing(name))),
        None => Ok(()),
    }
}

fn fields(schema: &Schema) -> impl Iterator<Item = (&String, &DataType)> {
    schema.fields().iter().map(|field| (field.name(), field.data_type()))
}

fn is_missing(field: &str) -> String {
    format!("column \"{field}\" is missing")
}

fn differing_error(detail: &str) -> Error {
    let message = format!("the columns differ from the columns of the first input: {detail}");
    Error::new(ErrorKind::Format, message)
        .hint("Load inputs with different columns one after the other.")
}
