//! Looks at the inputs again: whether they are what they were, by reading them if need be.
//!
//! A source that cannot prove that it is the same is read before anything is written that builds
//! on what an earlier run has written of it.

use std::sync::Arc;

use super::{SniffedInputs, LoadWatch};
use crate::format::{Chunk, Contents, Cutter};
use crate::plan::RowPlan;
use crate::source::Input;
use crate::{Error, ErrorKind, InputPlace, Result};
use pgspate_target::ledger::Done;

impl SniffedInputs {
    /// The digests of all inputs, as they are now. Blocks.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(crate) fn read_contents(&self, plan: &RowPlan) -> Result<Contents> {
        self.digest(self.cutter(plan, &Arc::default()), |chunk| chunk.input)
    }

    /// Whether the chunks that are written are still what the inputs hold. Blocks.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(crate) fn holds(&self, plan: &RowPlan, done: &Done) -> Result<bool> {
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

    /// Looks at all inputs once more after they were read to their ends, and reads those once
    /// more of which it is in doubt whether they were changed. `read` is what was read.
    ///
    /// # Errors
    /// When one was changed meanwhile.
    pub(crate) fn check_unchanged(&self, plan: &RowPlan, read: &Contents) -> Result<()> {
        for (nth, input) in self.inputs.iter().enumerate() {
            if input.is_unchanged()? {
                continue;
            }
            let is_same = match read.of(nth) {
                Some(digest) => self.content_of(plan, nth)?.of(nth) == Some(digest),
                None => false,
            };
            if !is_same {
                return Err(changed(input));
            }
        }
        Ok(())
    }

    fn content_of(&self, plan: &RowPlan, nth: usize) -> Result<Contents> {
        let cutter = self.open(nth, plan.chunk_bytes, &self.mapping(plan), &LoadWatch::default())?;
        self.digest(cutter, |_| nth)
    }

    fn digest(
        &self,
        mut cutter: Box<dyn Cutter>,
        input_of: impl Fn(&Chunk) -> usize,
    ) -> Result<Contents> {
        let mut contents = Contents::new(self.inputs.len());
        while let Some(chunk) = cutter.next()? {
            contents.add(input_of(&chunk), chunk.position(), chunk.content_digest()?);
        }
        Ok(contents)
    }
}

fn changed(input: &Input) -> Error {
    let name = input.name();
    let place = InputPlace { source: Some(name.to_owned()), ..InputPlace::default() };
    Error::new(ErrorKind::Source, format!("\"{name}\" was changed while it was being read"))
        .at(place)
        .hint("Load it when nothing writes to it any more, or load a copy of it.")
}
