//! Types of a target, and the events of records as lines.

use std::sync::Arc;

use pgspate_events::decode::{Decode, RecordGrouping, TargetTypes};
use pgspate_events::{ChangeEvent, SourceTable};

pub(crate) use crate::events::line;

/// A target whose tables all have these columns: names and types.
pub(crate) struct TypedColumns(pub(crate) &'static [(&'static str, &'static str)]);

impl TargetTypes for TypedColumns {
    fn type_of(&self, _: &SourceTable, column: &str) -> Option<Arc<str>> {
        let found = self.0.iter().find(|(name, _)| *name == column);
        found.map(|(_, ty)| Arc::from(*ty))
    }
}

/// Decodes records. Returns the events, or the error of the first refused record and the hint.
pub(crate) fn try_decode(
    decoder: &mut dyn Decode,
    types: &dyn TargetTypes,
    records: &[&str],
) -> Result<Vec<ChangeEvent>, String> {
    let mut events = Vec::new();
    for record in records {
        let before = events.len();
        if let Err(error) = decoder.decode(record.as_bytes(), types, &mut events) {
            assert_eq!(error.kind(), pgspate_base::ErrorKind::Format);
            assert_eq!(events.len(), before, "a refused record must leave no events");
            let hint = error.hint_text().map(|hint| format!(" | {hint}")).unwrap_or_default();
            return Err(format!("{error}{hint}"));
        }
        match decoder.grouping() {
            RecordGrouping::ClosesTransaction => {
                events.iter_mut().last().unwrap().ends_transaction = true
            }
            // Every caller of a decoder must remove this delete.
            RecordGrouping::SecondHalf => drop(events.remove(before - 1)),
            RecordGrouping::ByEvents
            | RecordGrouping::OpensTransaction
            | RecordGrouping::MayBeFirstHalf => {}
        }
    }
    Ok(events)
}

/// Decodes records. Returns the events as lines.
pub(crate) fn decode(
    decoder: &mut dyn Decode,
    types: &dyn TargetTypes,
    records: &[&str],
) -> Vec<String> {
    match try_decode(decoder, types, records) {
        Ok(events) => events.iter().map(line).collect(),
        Err(error) => vec![format!("error: {error}")],
    }
}
