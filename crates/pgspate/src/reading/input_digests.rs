//! Checks whether inputs are unchanged, by reading them again if necessary.
//!
//! Some sources cannot prove that they are unchanged. Such a source is read again before a run
//! continues the work of an earlier run.

use std::sync::Arc;

use super::{LoadWatch, SniffedInputs};
use crate::format::ContentDigests;
use crate::plan::RowPlan;
use crate::source::Input;
use crate::{Error, ErrorKind, InputPlace, Result};
use pgspate_target::ledger::WrittenChunks;

impl SniffedInputs {
    /// Reads the inputs, and returns whether they still have the chunks that an earlier run wrote.
    /// Blocks the calling thread.
    ///
    /// # Errors
    /// The errors of [`SniffedInputs::read_content`].
    pub(crate) fn have_chunks(&self, plan: &RowPlan, written: &WrittenChunks) -> Result<bool> {
        let mut left = written.chunks();
        let mut cutter = self.cutter(plan, &Arc::default(), 1);
        while left > 0 {
            let Some(chunk) = cutter.next()? else { return Ok(false) };
            let Some(record) = written.get(chunk.seq) else { continue };
            let is_in_place = (record.input, record.position) == (chunk.input, chunk.position());
            if !is_in_place || record.digest.is_none() || record.digest != chunk.content_digest()? {
                return Ok(false);
            }
            left -= 1;
        }
        Ok(true)
    }

    /// Checks that no input was changed while it was read. Reads an input again if its source
    /// cannot prove that the input is unchanged. `digests` are the digests of the first reading.
    ///
    /// # Errors
    /// [`ErrorKind::Source`] if an input was changed. The errors of
    /// [`SniffedInputs::read_content`] if an input cannot be read again.
    pub(crate) fn check_unchanged(&self, plan: &RowPlan, digests: &ContentDigests) -> Result<()> {
        for (index, input) in self.inputs.iter().enumerate() {
            if input.is_unchanged()? {
                continue;
            }
            let is_same = match digests.of(index) {
                Some(digest) => self.read_content(plan, index)? == Some(digest),
                None => false,
            };
            if !is_same {
                return Err(changed_input_error(input));
            }
        }
        Ok(())
    }

    /// Reads the input at position `index` and returns its digest. Blocks the calling thread.
    ///
    /// # Errors
    /// [`ErrorKind::Source`] if the input cannot be read. [`ErrorKind::Format`] if the input is
    /// damaged, or differs from the first input in its format or its columns.
    pub(crate) fn read_content(&self, plan: &RowPlan, index: usize) -> Result<Option<u128>> {
        let mut cutter = self.open_cutter(
            index,
            plan.chunk_bytes,
            &self.field_mapping(plan),
            &LoadWatch::default(),
        )?;
        let mut contents = ContentDigests::new(self.inputs.len());
        while let Some(chunk) = cutter.next()? {
            contents.add(index, chunk.position(), chunk.content_digest()?);
        }
        Ok(contents.of(index))
    }
}

/// Returns the error for an input that was changed.
fn changed_input_error(input: &Input) -> Error {
    let name = input.name();
    let place = InputPlace { source: Some(name.to_owned()), ..InputPlace::default() };
    Error::new(ErrorKind::Source, format!("\"{name}\" was changed while it was being read"))
        .at(place)
        .hint("Load the input when no other program writes to it, or load a copy.")
}
