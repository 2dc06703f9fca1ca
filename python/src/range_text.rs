//! Writes ranges and multiranges of psycopg, psycopg2, asyncpg and SQLAlchemy as text.
//!
//! Their classes differ, but all have the same properties.

use pyo3::intern;
use pyo3::prelude::*;

use crate::classes::ValueClass;
use crate::rows::RowFault;
use crate::value_text::{TextTarget, ValueTextWriter, write_array_element, wrong_column_fault};

impl ValueTextWriter {
    /// Writes a range. A bound that is None is no bound.
    pub(crate) fn write_range(
        &mut self,
        value: &Bound<'_, PyAny>,
        to: &TextTarget,
        out: &mut String,
    ) -> Result<(), RowFault> {
        let py = value.py();
        if value.getattr(intern!(py, "isempty"))?.is_truthy()? {
            out.push_str("empty");
            return Ok(());
        }
        let bound_target = match to {
            TextTarget::Range(bound) => bound.as_ref(),
            _ => &TextTarget::Other,
        };
        let has_lower = value.getattr(intern!(py, "lower_inc"))?.is_truthy()?;
        let has_upper = value.getattr(intern!(py, "upper_inc"))?.is_truthy()?;
        out.push(if has_lower { '[' } else { '(' });
        self.write_bound(&value.getattr(intern!(py, "lower"))?, bound_target, out)?;
        out.push(',');
        self.write_bound(&value.getattr(intern!(py, "upper"))?, bound_target, out)?;
        out.push(if has_upper { ']' } else { ')' });
        Ok(())
    }

    fn write_bound(
        &mut self,
        bound: &Bound<'_, PyAny>,
        to: &TextTarget,
        out: &mut String,
    ) -> Result<(), RowFault> {
        let mut text = String::new();
        if self.write_text(bound, to, &mut text)? {
            write_array_element(&text, out);
        }
        Ok(())
    }

    /// Writes the ranges of a sequence as a multirange.
    pub(crate) fn write_multirange(
        &mut self,
        value: &Bound<'_, PyAny>,
        to: &TextTarget,
        out: &mut String,
    ) -> Result<(), RowFault> {
        out.push('{');
        for (nth, range) in value.try_iter()?.enumerate() {
            if nth > 0 {
                out.push(',');
            }
            let range = range?;
            if matches!(self.classes.class_of(&range)?, ValueClass::List | ValueClass::Multirange) {
                return Err(wrong_column_fault("a list of lists", "array, json or jsonb"));
            }
            // The server refuses NULL in a multirange.
            if !self.write_text(&range, to, out)? {
                out.push_str("NULL");
            }
        }
        out.push('}');
        Ok(())
    }

    /// Returns whether a list begins with a range.
    pub(crate) fn has_ranges(&mut self, list: &Bound<'_, PyAny>) -> PyResult<bool> {
        match list.try_iter()?.next() {
            Some(first) => Ok(self.classes.class_of(&first?)? == ValueClass::Range),
            None => Ok(false),
        }
    }
}
