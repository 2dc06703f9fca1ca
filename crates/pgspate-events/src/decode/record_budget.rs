//! A limit on the memory that the events of one record take.
//!
//! A few bytes of a record may become an event of many columns, or a number of many digits.

use super::json::malformed;
use crate::{ChangeEvent, Error, EventValue, Result};

/// The most memory that the events of one record may take, in bytes. The size of the record itself
/// has the same limit. Tests use a small limit, to reach it soon.
const DECODED_BYTES_MAX: usize = if cfg!(test) { 4 << 20 } else { 1 << 30 };

/// The memory that the events of a record may still take, in bytes.
#[derive(Debug)]
pub(super) struct RecordBudget(usize);

impl Default for RecordBudget {
    fn default() -> RecordBudget {
        RecordBudget(DECODED_BYTES_MAX)
    }
}

impl RecordBudget {
    /// Subtracts the memory of an event.
    ///
    /// # Errors
    /// When the events of the record take too much memory.
    pub(super) fn take_event(&mut self, event: &ChangeEvent) -> Result<()> {
        self.take(event.held_bytes())
    }

    /// Subtracts the memory of a value.
    ///
    /// # Errors
    /// When the events of the record take too much memory.
    pub(super) fn take_value(&mut self, value: &EventValue) -> Result<()> {
        self.take(value.held_bytes())
    }

    fn take(&mut self, bytes: usize) -> Result<()> {
        match self.0.checked_sub(bytes) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => Err(too_large_error()),
        }
    }
}

/// Checks the length of a value that is being built.
///
/// # Errors
/// When the value takes too much memory.
pub(super) fn check_len(len: usize) -> Result<()> {
    if len > DECODED_BYTES_MAX { Err(too_large_error()) } else { Ok(()) }
}

fn too_large_error() -> Error {
    let most = DECODED_BYTES_MAX >> 20;
    malformed(format!("the record's events take more than {most} MiB of memory"))
}

#[cfg(test)]
mod tests {
    use super::super::{Canal, Debezium, Decode, TargetTypes, Wal2json};
    use super::*;
    use crate::SourceTable;

    struct ArrayColumnTypes;

    impl TargetTypes for ArrayColumnTypes {
        fn type_of(&self, _: &SourceTable, _: &str) -> Option<std::sync::Arc<str>> {
            Some("_numeric".into())
        }
    }

    fn decode(decoder: &mut dyn Decode, record: &str) -> Result<usize> {
        // The events reach the limit; the record alone is far below it.
        assert!(record.len() < DECODED_BYTES_MAX / 2);
        let mut events = Vec::new();
        let decoded = decoder.decode(record.as_bytes(), &ArrayColumnTypes, &mut events);
        decoded.inspect_err(|_| assert!(events.is_empty())).map(|()| events.len())
    }

    fn check(decoder: &mut dyn Decode, of: impl Fn(usize) -> String, many: usize) {
        assert!(decode(decoder, &of(10)).unwrap() > 0);
        let error = decode(decoder, &of(many)).unwrap_err().to_string();
        assert!(error.contains("take more than 4 MiB of memory"), "{error}");
    }

    #[test]
    fn events_of_a_record_have_a_limit() {
        let canal = |rows: usize| {
            let rows = vec!["{}"; rows].join(",");
            format!(r#"{{"database":"d","table":"t","type":"INSERT","data":[{rows}]}}"#)
        };
        check(&mut Canal::new(), canal, DECODED_BYTES_MAX / 40);
        let wal2json = |rows: usize| {
            let row = r#"{"kind":"truncate","schema":"s","table":"t"}"#;
            format!(r#"{{"change":[{}]}}"#, vec![row; rows].join(","))
        };
        check(&mut Wal2json::new(), wal2json, DECODED_BYTES_MAX / 100);
    }

    #[test]
    fn values_of_a_row_have_a_limit() {
        let row = |of: &dyn Fn(usize) -> String, many: usize| {
            let values: Vec<String> =
                (0..many).map(|nth| format!("\"c{nth}\":{}", of(nth))).collect();
            let after = values.join(",");
            format!(r#"{{"op":"c","after":{{{after}}},"source":{{"table":"t"}}}}"#)
        };
        // Arrays that become three times as long.
        let item = r#"{"scale":-130,"value":"AQ=="}"#;
        let list = format!("[{}]", vec![item; 100].join(","));
        let many = DECODED_BYTES_MAX / list.len() / 3;
        check(&mut Debezium::default(), |many| row(&|_| list.clone(), many), many);
        // A single array.
        let list = |many: usize| format!("[{}]", vec![item; many].join(","));
        check(&mut Debezium::default(), |many| row(&|_| list(many), 1), DECODED_BYTES_MAX / 100);
    }
}
