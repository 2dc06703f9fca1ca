//! Finds the columns of the keys of JSON records.

use crate::format::keyed::{KeyTarget, KeyedOptions};
use crate::json::unescape;

/// Finds columns by key. Most records have the same keys in the same order. So a key is first
/// compared with the key at the same position of an earlier record. Only if the keys differ, the
/// key is looked up in [`KeyedOptions`].
#[derive(Debug, Default)]
pub(super) struct KeyLookup {
    seen: Vec<(Vec<u8>, KeyTarget)>,
    scratch: Vec<u8>,
}

impl KeyLookup {
    /// Returns what a key names. `position` is the key's number within the record, and `key` the
    /// bytes between the key's quotes.
    #[inline]
    pub(super) fn column_of(
        &mut self,
        position: usize,
        key: &[u8],
        escaped: bool,
        options: &KeyedOptions,
    ) -> KeyTarget {
        if let Some((last, column)) = self.seen.get(position)
            && last == key
        {
            return *column;
        }
        let column = self.look_up(key, escaped, options);
        // Memory stays bounded even if a record has thousands of keys.
        if position < 4096 {
            self.seen.resize_with(self.seen.len().max(position + 1), Default::default);
            self.seen[position].0.clear();
            self.seen[position].0.extend_from_slice(key);
            self.seen[position].1 = column;
        }
        column
    }

    fn look_up(&mut self, key: &[u8], escaped: bool, options: &KeyedOptions) -> KeyTarget {
        let name = if escaped {
            self.scratch.clear();
            if unescape(key, &mut self.scratch).is_err() {
                return KeyTarget::NoColumn;
            }
            &self.scratch
        } else {
            key
        };
        std::str::from_utf8(name).map_or(KeyTarget::NoColumn, |name| options.target_of(name))
    }
}
