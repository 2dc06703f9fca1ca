//! Stored bytes that can be read at any offset: files and objects.

use std::fmt::Debug;

use bytes::Bytes;

/// Bytes of known length, readable in any order.
pub trait Ranges: Send + Sync + Debug {
    /// How many bytes there are.
    fn len(&self) -> u64;
    /// The `len` bytes from offset `start`; fewer is an error.
    fn read(&self, start: u64, len: usize) -> crate::Result<Bytes>;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
