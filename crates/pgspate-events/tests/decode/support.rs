//! A target's types, and what decoders make of records.

use std::sync::Arc;

use pgspate_events::decode::{Decode, Grouping, TargetTypes};
use pgspate_events::{ChangeEvent, SourceTable};

pub(crate) use crate::events::line;

/// A target whose tables all have these columns.
pub(crate) struct Columns(pub(crate) &'static [(&'static str, &'static str)]);

impl TargetTypes for Columns {
    fn of(&self, _: &SourceTable, column: &str) -> Option<Arc<str>> {
        let found = self.0.iter().find(|(name, _)| *name == column);
        found.map(|(_, ty)| Arc::from(*ty))
    }
}

/// The events of records, or the error of the first that is refused with its hint.
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
            assert_eq!(events.len(), before, "a refused record leaves no events");
            let hint = error.hint_text().map(|hint| format!(" | {hint}")).unwrap_or_default();
            return Err(format!("{error}{hint}"));
        }
        match decoder.grouping() {
            Grouping::Closes => events.iter_mut().last().unwrap().ends_transaction = true,
            // As whoever takes them does.
            Grouping::Pairs => drop(events.remove(before - 1)),
            Grouping::AsEvents | Grouping::Opens | Grouping::MayPair => {}
        }
    }
    Ok(events)
}

/// The events of records as lines.
pub(crate) fn decode(decoder: &mut dyn Decode, types: &dyn TargetTypes, records: &[&str]) -> Vec<String> {
    match try_decode(decoder, types, records) {
        Ok(events) => events.iter().map(line).collect(),
        Err(error) => vec![format!("error: {error}")],
    }
}
