//! Prints a load's plan.

use std::fmt;

use super::{ColumnRoute, LoadPlan, OmittedColumn, PlannedColumn};
use crate::copy::{Commit, Lanes};
use crate::encode::arrow;
use crate::format::EncodeMode;
use crate::format::constants::ConstantValue;
use pgspate_target::quote_literal;

impl fmt::Display for LoadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table    {}", self.table)?;
        if let Some(storage) = self.storage {
            writeln!(f, "rows     {storage}")?;
        }
        if let Some(routing) = &self.routing {
            writeln!(f, "routing  {routing}")?;
        }
        if let Some(atomic_plan) = &self.atomic_plan {
            let word = if atomic_plan.replaces { "replace" } else { "at once" };
            writeln!(f, "{word:8} {}: {}", atomic_plan.method_in_words(), atomic_plan.reason)?;
        }
        if self.one_statement {
            writeln!(f, "path     text COPY: one statement reads everything in order")?;
        } else {
            writeln!(f, "path     {} COPY: {}", self.rows.mode.name(), self.rows.mode_reason)?;
        }
        let lanes = match self.lanes {
            Lanes::Fixed(lanes) => lanes.to_string(),
            Lanes::Auto(first, most) if first == most => first.to_string(),
            Lanes::Auto(first, most) => format!("{first} to {most}"),
        };
        writeln!(f, "lanes    {lanes}: {}", self.lanes_reason)?;
        writeln!(f, "chunks   {} MiB of input, cut at record edges", self.rows.chunk_bytes >> 20)?;
        writeln!(f, "commit   {}", commit_in_words(self))?;
        writeln!(f, "others   {}", self.other_sessions())?;
        let written = self.rows.columns.iter().map(|column| &column.name);
        let names = written.chain(self.omitted.iter().map(|column| &column.name));
        let width = names.map(|name| name.chars().count()).max().unwrap_or(0);
        let types = self.rows.columns.iter().map(|column| column.ty.name.len()).max().unwrap_or(0);
        for (index, column) in self.rows.columns.iter().enumerate() {
            let label = if index == 0 { "columns" } else { "" };
            let route = describe_route(self, column);
            writeln!(f, "{label:8} {:width$}  {:types$}  {route}", column.name, column.ty.name)?;
        }
        for OmittedColumn { name, becomes: value } in &self.omitted {
            let uses_sequence = value.contains("nextval(") || value == "its identity sequence";
            let order = match self.lanes {
                Lanes::Fixed(1) => "",
                _ if uses_sequence => ", counted in the order in which rows arrive",
                _ => "",
            };
            writeln!(f, "{:8} {name:width$}  {:types$}  not in the input: {value}{order}", "", "")?;
        }
        write!(f, "{}", self.maintenance)?;
        for warning in &self.warnings {
            writeln!(f, "warning  {warning}")?;
        }
        Ok(())
    }
}

/// Returns in words how a column's values are written.
pub(crate) fn describe_route(plan: &LoadPlan, column: &PlannedColumn) -> String {
    let way = match &column.route {
        ColumnRoute::Constant(constant) => return describe_constant(constant.value()),
        _ if let Some(reason) = column.text_reason() => return format!("text: {reason}"),
        _ if plan.rows.mode == EncodeMode::Text => "text".to_owned(),
        ColumnRoute::Field(encoder) => format!("binary ({})", encoder.family_name()),
        ColumnRoute::Batch(encoder) if encoder.is_tagged() => "binary, value by value".to_owned(),
        ColumnRoute::Batch(encoder) if *encoder.route() == arrow::ValueRoute::Direct => {
            format!("binary, from {}", encoder.data_type())
        }
        ColumnRoute::Batch(encoder) => format!("binary, by the text of {}", encoder.data_type()),
        ColumnRoute::Text(reason) => reason.clone(),
    };
    match &column.date_format {
        Some(format) => format!("{way}, written as {format}"),
        None => way,
    }
}

/// Returns in words the value that is not in the records.
fn describe_constant(value: &ConstantValue) -> String {
    match value {
        ConstantValue::Null => "NULL in all rows".to_owned(),
        ConstantValue::Text(text) => format!("{} in all rows", quote_literal(text)),
        ConstantValue::InputName => "the name of the file".to_owned(),
    }
}

/// Returns in words when the load commits.
fn commit_in_words(plan: &LoadPlan) -> &'static str {
    match plan.lanes {
        _ if plan.commit == Commit::EachChunk => {
            "each chunk with its row in the ledger: a stopped load goes on when run again"
        }
        _ if plan.ledger => "all at the end: a load that fails leaves nothing behind",
        Lanes::Fixed(1) => "one transaction: a load that fails leaves nothing behind",
        _ => "all at the end, lane by lane: only a crash in between leaves a part",
    }
}
