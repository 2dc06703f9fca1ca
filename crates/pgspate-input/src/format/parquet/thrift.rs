//! Reads the sizes that Parquet's structures state, from Thrift's compact protocol.
//!
//! Values are read without building structures, so a stated size costs no memory. Fields without a
//! size are skipped.

/// Why a Thrift structure could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThriftError {
    /// The structure does not end within the bytes.
    Truncated,
    /// The bytes are not Thrift.
    Invalid,
}

type ThriftResult<T> = Result<T, ThriftError>;

/// The deepest nesting of structures, which is the limit of the decoder too.
const DEPTH_MAX: u32 = 64;

const STOP: u8 = 0;
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

/// A position in the bytes of a structure.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThriftCursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The header of a field.
struct ThriftField {
    id: i64,
    kind: u8,
}

impl<'a> ThriftCursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> ThriftCursor<'a> {
        ThriftCursor { bytes, at: 0 }
    }

    pub(super) fn offset(&self) -> usize {
        self.at
    }

    pub(super) fn byte(&mut self) -> ThriftResult<u8> {
        let byte = *self.bytes.get(self.at).ok_or(ThriftError::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    pub(super) fn skip(&mut self, len: u64) -> ThriftResult<()> {
        let left = (self.bytes.len() - self.at) as u64;
        if len > left {
            return Err(ThriftError::Truncated);
        }
        self.at += len as usize;
        Ok(())
    }

    /// Reads an unsigned number of at most 64 bits.
    pub(super) fn number(&mut self) -> ThriftResult<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(ThriftError::Invalid)
    }

    pub(super) fn signed(&mut self) -> ThriftResult<i64> {
        let number = self.number()?;
        Ok((number >> 1).cast_signed() ^ -((number & 1).cast_signed()))
    }

    fn field(&mut self, before: i64) -> ThriftResult<ThriftField> {
        let head = self.byte()?;
        let (step, kind) = (i64::from(head >> 4), head & 0x0F);
        let id = match (kind, step) {
            (STOP, _) => 0,
            (_, 0) => self.signed()?,
            _ => before.saturating_add(step),
        };
        Ok(ThriftField { id, kind })
    }

    /// Reads the header of a list: the number and the kind of its elements.
    pub(super) fn list(&mut self) -> ThriftResult<(u64, u8)> {
        let head = self.byte()?;
        let len = match head >> 4 {
            15 => self.number()?,
            few => u64::from(few),
        };
        Ok((len, head & 0x0F))
    }

    /// Calls `each` with every field of a structure. If `each` returns false, it has not read the
    /// field, and the field is skipped.
    pub(super) fn structure(
        &mut self,
        depth: u32,
        mut each: impl FnMut(&mut ThriftCursor<'a>, i64, u8) -> ThriftResult<bool>,
    ) -> ThriftResult<()> {
        if depth > DEPTH_MAX {
            return Err(ThriftError::Invalid);
        }
        let mut before = 0;
        loop {
            let field = self.field(before)?;
            if field.kind == STOP {
                return Ok(());
            }
            if !each(self, field.id, field.kind)? {
                self.skip_value(field.kind, depth + 1)?;
            }
            before = field.id;
        }
    }

    /// Skips a value.
    fn skip_value(&mut self, kind: u8, depth: u32) -> ThriftResult<()> {
        match kind {
            TRUE | FALSE => Ok(()),
            BYTE => self.skip(1),
            4..=6 => self.number().map(drop),
            DOUBLE => self.skip(8),
            BINARY => {
                let len = self.number()?;
                self.skip(len)
            }
            LIST | SET => {
                let (len, kind) = self.list()?;
                (0..len).try_for_each(|_| self.skip_element(kind, depth + 1))
            }
            MAP => {
                let len = self.number()?;
                let kinds = if len > 0 { self.byte()? } else { 0 };
                (0..len).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth + 1)?;
                    self.skip_element(kinds & 0x0F, depth + 1)
                })
            }
            STRUCT => self.structure(depth, |_, _, _| Ok(false)),
            _ => Err(ThriftError::Invalid),
        }
    }

    /// Skips an element of a list or map, which has at least one byte.
    fn skip_element(&mut self, kind: u8, depth: u32) -> ThriftResult<()> {
        match kind {
            _ if depth > DEPTH_MAX => Err(ThriftError::Invalid),
            TRUE | FALSE => self.skip(1),
            _ => self.skip_value(kind, depth),
        }
    }
}

/// The header of a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub(super) kind: PageKind,
    /// The size of the page in bytes, decompressed and stored.
    pub(super) decompressed: i64,
    pub(super) stored: i64,
    pub(super) values: i64,
    /// Whether this page is not compressed, although the column has a codec.
    pub(super) is_uncompressed: bool,
    /// The length of the header itself.
    pub(super) len: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum PageKind {
    Data,
    Dictionary,
    /// An index, or a kind of a later version.
    #[default]
    Other,
}

/// Reads a page's header, which begins at the first byte.
pub(super) fn page_header(bytes: &[u8]) -> ThriftResult<PageHeader> {
    let mut header = PageHeader::default();
    let mut cursor = ThriftCursor::new(bytes);
    let mut is_compressed = true;
    cursor.structure(0, |cursor, id, kind| {
        match (id, kind) {
            (1, 5) => {
                header.kind = match cursor.signed()? {
                    0 | 3 => PageKind::Data,
                    2 => PageKind::Dictionary,
                    _ => PageKind::Other,
                }
            }
            (2, 5) => header.decompressed = cursor.signed()?,
            (3, 5) => header.stored = cursor.signed()?,
            // The headers of a data page, a dictionary page, and a data page of version 2.
            (5 | 7 | 8, STRUCT) => {
                cursor.structure(1, |cursor, inner, kind| match (inner, kind) {
                    (1, 5) => {
                        header.values = cursor.signed()?;
                        Ok(true)
                    }
                    (7, TRUE | FALSE) if id == 8 => {
                        is_compressed = kind == TRUE;
                        Ok(true)
                    }
                    _ => Ok(false),
                })?
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(PageHeader { is_uncompressed: !is_compressed, len: cursor.offset(), ..header })
}

/// Checks the tree of columns in a file's metadata. The decoder follows the tree recursively, and
/// allocates memory for the number of children that a node states.
///
/// # Errors
/// A message that says what is wrong with the tree.
pub(super) fn check_schema(metadata: &[u8], depth_max: usize) -> Result<(), String> {
    let mut tree_fault = None;
    let read = ThriftCursor::new(metadata).structure(0, |cursor, id, kind| {
        if (id, kind) != (2, LIST) {
            return Ok(false);
        }
        let children = read_child_counts(cursor)?;
        match check_tree(&children, depth_max) {
            Ok(()) => Ok(true),
            Err(why) => {
                tree_fault = Some(why);
                Err(ThriftError::Invalid)
            }
        }
    });
    match (tree_fault, read) {
        (Some(why), _) => Err(why),
        (None, Err(_)) => Err("the metadata ends early or is not Thrift".to_owned()),
        (None, Ok(())) => Ok(()),
    }
}

/// Returns the number of children of each node of the schema, in the order of the file.
fn read_child_counts(cursor: &mut ThriftCursor<'_>) -> ThriftResult<Vec<i64>> {
    let (len, _) = cursor.list()?;
    let mut children = Vec::new();
    for _ in 0..len {
        let mut count = 0;
        cursor.structure(1, |cursor, id, kind| {
            let is_count = (id, kind) == (5, 5);
            if is_count {
                count = cursor.signed()?;
            }
            Ok(is_count)
        })?;
        children.push(count);
    }
    Ok(children)
}

/// Checks that the children of each node exist and the tree is not too deep.
fn check_tree(children: &[i64], depth_max: usize) -> Result<(), String> {
    // The number of remaining children of each open group.
    let mut open_groups: Vec<i64> = Vec::new();
    for (index, count) in children.iter().copied().enumerate() {
        let left = (children.len() - index - 1) as i64;
        if count > left {
            return Err(format!("a schema group declares {count} columns, found {left}"));
        }
        if let Some(last) = open_groups.last_mut() {
            *last -= 1;
        }
        if count > 0 {
            open_groups.push(count);
        }
        if open_groups.len() > depth_max {
            return Err(format!("columns are nested more than {depth_max} deep"));
        }
        while open_groups.last() == Some(&0) {
            open_groups.pop();
        }
    }
    Ok(())
}

/// Returns the number of pages that a page index states. The list of pages is its first field.
pub(super) fn index_pages(bytes: &[u8]) -> ThriftResult<u64> {
    let mut cursor = ThriftCursor::new(bytes);
    match cursor.field(0)? {
        ThriftField { id: 1, kind: LIST } => Ok(cursor.list()?.0),
        _ => Err(ThriftError::Invalid),
    }
}
