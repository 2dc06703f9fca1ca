//! Checks whether inputs are unchanged, by reading them again if necessary.
//!
//! Some sources cannot prove that they are unchanged. Such a source is read again before a run
//! continues the work of an earlier run.

use std::sync::Arc;

use super::{LoadWatch, SniffedInputs};
use crate::format::{Chunk, ContentDigests, Cutter};
use crate::plan::RowPlan;
use crate::source::Input;
use crate::{Error, ErrorKind, InputPlace, Result};
use pgspate_target::ledger::WrittenChunks;

impl SniffedInputs {
    /// Reads all inputs and returns their digests. Blocks.
    ///
    /// # Errors
    /// When an input cannot be read.
    pub(crate) fn read_contents(&self, plan: &RowPlan) -> Result<ContentDigests> {
        self.digest_chunks(self.cutter(plan, &Arc::default()), |chunk| chunk.input)
    }

    /// Checks whether the inputs still hold the chunks that were written. Blocks.
    ///
    /// # Errors
    /// When an input cannot be read.
    pub(crate) fn holds(&self, plan: &RowPlan, done: &WrittenChunks) -> Result<bool> {
        let mut left = done.chunks();
        let mut cutter = self.cutter(plan, &Arc::default());
        while left > 0 {
            let Some(chunk) = cutter.next()? else { return Ok(false) };
            let Some(seal) = done.get(chunk.seq) else { continue };
            let is_placed = (seal.input, seal.position) == (chunk.input, chunk.position());
            if !is_placed || seal.digest.is_none() || seal.digest != chunk.content_digest()? {
                return Ok(false);
            }
            left -= 1;
        }
        Ok(true)
    }

    /// Checks that no input was changed while it was read. Reads an input again if its source
    /// cannot tell. `read` are the digests of what was read.
    ///
    /// # Errors
    /// When an input was changed.
    pub(crate) fn check_unchanged(&self, plan: &RowPlan, read: &ContentDigests) -> Result<()> {
        for (nth, input) in self.inputs.iter().enumerate() {
            if input.is_unchanged()? {
                continue;
            }
            let is_same = match read.of(nth) {
                Some(digest) => self.read_content(plan, nth)?.of(nth) == Some(digest),
                None => false,
            };
            if !is_same {
                return Err(changed_input_error(input));
            }
        }
        Ok(())
    }

    /// Reads one input and returns its digest.
    fn read_content(&self, plan: &RowPlan, nth: usize) -> Result<ContentDigests> {
        let cutter = self.open_cutter(
            nth,
            plan.chunk_bytes,
            &self.field_mapping(plan),
            &LoadWatch::default(),
        )?;
        self.digest_chunks(cutter, |_| nth)
    }

    /// Digests all chunks of a cutter. `input_of` tells the input of a chunk.
    fn digest_chunks(
        &self,
        mut cutter: Box<dyn Cutter>,
        input_of: impl Fn(&Chunk) -> usize,
    ) -> Result<ContentDigests> {
        let mut contents = ContentDigests::new(self.inputs.len());
        while let Some(chunk) = cutter.next()? {
            contents.add(input_of(&chunk), chunk.position(), chunk.content_digest()?);
        }
        Ok(contents)
    }
}

/// Returns the error for an input that was changed.
fn changed_input_error(input: &Input) -> Error {
    let name = input.name();
    let place = InputPlace { source: Some(name.to_owned()), ..InputPlace::default() };
    Error::new(ErrorKind::Source, format!("\"{name}\" was changed while it was being read"))
        .at(place)
        .hint("Load it when no other program writes to it, or load a copy of it.")
}
