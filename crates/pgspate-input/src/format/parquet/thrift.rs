//! The sizes that Parquet's own structures state, read from Thrift's compact protocol.
//!
//! Nothing is built of what is read, so no size costs memory. Whatever is not looked at is skipped.

/// Why a structure could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// It goes on behind the bytes.
    Short,
    /// It is not Thrift.
    Bad,
}

type Read<T> = Result<T, Unread>;

/// Structures within structures, at most: as deep as the decoder goes.
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

/// A place in the bytes of a structure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The header of a field or of a list.
struct Field {
    id: i64,
    kind: u8,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    pub(super) fn offset(&self) -> usize {
        self.at
    }

    pub(super) fn byte(&mut self) -> Read<u8> {
        let byte = *self.bytes.get(self.at).ok_or(Unread::Short)?;
        self.at += 1;
        Ok(byte)
    }

    pub(super) fn skip(&mut self, len: u64) -> Read<()> {
        let left = (self.bytes.len() - self.at) as u64;
        if len > left {
            return Err(Unread::Short);
        }
        self.at += len as usize;
        Ok(())
    }

    /// An unsigned number of at most 64 bits.
    pub(super) fn number(&mut self) -> Read<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Unread::Bad)
    }

    pub(super) fn signed(&mut self) -> Read<i64> {
        let number = self.number()?;
        Ok((number >> 1).cast_signed() ^ -((number & 1).cast_signed()))
    }

    fn field(&mut self, before: i64) -> Read<Field> {
        let head = self.byte()?;
        let (step, kind) = (i64::from(head >> 4), head & 0x0F);
        let id = match (kind, step) {
            (STOP, _) => 0,
            (_, 0) => self.signed()?,
            _ => before.saturating_add(step),
        };
        Ok(Field { id, kind })
    }

    /// How many elements a list has, and of which kind.
    pub(super) fn list(&mut self) -> Read<(u64, u8)> {
        let head = self.byte()?;
        let len = match head >> 4 {
            15 => self.number()?,
            few => u64::from(few),
        };
        Ok((len, head & 0x0F))
    }

    /// Calls `each` with every field of a structure; `each` says whether it has read the field.
    pub(super) fn structure(
        &mut self,
        depth: u32,
        mut each: impl FnMut(&mut Cursor<'a>, i64, u8) -> Read<bool>,
    ) -> Read<()> {
        if depth > DEPTH_MAX {
            return Err(Unread::Bad);
        }
        let mut before = 0;
        loop {
            let field = self.field(before)?;
            if field.kind == STOP {
                return Ok(());
            }
            if !each(self, field.id, field.kind)? {
                self.value(field.kind, depth + 1)?;
            }
            before = field.id;
        }
    }

    /// Skips a value.
    fn value(&mut self, kind: u8, depth: u32) -> Read<()> {
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
                (0..len).try_for_each(|_| self.element(kind, depth + 1))
            }
            MAP => {
                let len = self.number()?;
                let kinds = if len > 0 { self.byte()? } else { 0 };
                (0..len).try_for_each(|_| {
                    self.element(kinds >> 4, depth + 1)?;
                    self.element(kinds & 0x0F, depth + 1)
                })
            }
            STRUCT => self.structure(depth, |_, _, _| Ok(false)),
            _ => Err(Unread::Bad),
        }
    }

    /// Skips an element, of which each takes a byte at least.
    fn element(&mut self, kind: u8, depth: u32) -> Read<()> {
        match kind {
            _ if depth > DEPTH_MAX => Err(Unread::Bad),
            TRUE | FALSE => self.skip(1),
            _ => self.value(kind, depth),
        }
    }
}

/// What the header of a page states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub(super) kind: PageKind,
    /// Bytes of the page when it is decompressed, and as it is stored.
    pub(super) decompressed: i64,
    pub(super) stored: i64,
    pub(super) values: i64,
    /// It is stored as it is, whatever the column's compression.
    pub(super) is_plain: bool,
    /// Bytes of the header itself.
    pub(super) len: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum PageKind {
    Data,
    Dictionary,
    /// An index, or what a later version has.
    #[default]
    Other,
}

/// Reads a page's header from its first byte on.
pub(super) fn page_header(bytes: &[u8]) -> Read<PageHeader> {
    let mut header = PageHeader::default();
    let mut cursor = Cursor::new(bytes);
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
            // Of a data page, of a dictionary, of a data page in version 2.
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
    Ok(PageHeader { is_plain: !is_compressed, len: cursor.offset(), ..header })
}

/// Checks the tree of columns in a file's metadata, which the decoder follows by recursion and
/// makes room for by the number of children that a node states.
///
/// # Errors
/// What is wrong.
pub(super) fn check_schema(metadata: &[u8], depth_max: usize) -> Result<(), String> {
    let mut wrong = None;
    let read = Cursor::new(metadata).structure(0, |cursor, id, kind| {
        if (id, kind) != (2, LIST) {
            return Ok(false);
        }
        let children = children(cursor)?;
        match check_tree(&children, depth_max) {
            Ok(()) => Ok(true),
            Err(why) => {
                wrong = Some(why);
                Err(Unread::Bad)
            }
        }
    });
    match (wrong, read) {
        (Some(why), _) => Err(why),
        (None, Err(_)) => Err("its metadata end early, or are not Thrift".to_owned()),
        (None, Ok(())) => Ok(()),
    }
}

/// How many children each node of the schema states, in the order of the file.
fn children(cursor: &mut Cursor<'_>) -> Read<Vec<i64>> {
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

fn check_tree(children: &[i64], depth_max: usize) -> Result<(), String> {
    // How many children are still to come, of each group that is open.
    let mut open: Vec<i64> = Vec::new();
    for (nth, count) in children.iter().copied().enumerate() {
        let left = (children.len() - nth - 1) as i64;
        if count > left {
            return Err(format!("a group states {count} columns, but {left} follow"));
        }
        if let Some(last) = open.last_mut() {
            *last -= 1;
        }
        if count > 0 {
            open.push(count);
        }
        if open.len() > depth_max {
            return Err(format!("columns are nested more than {depth_max} deep"));
        }
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    Ok(())
}

/// How many pages an index of pages states, whose first field is their list.
pub(super) fn index_pages(bytes: &[u8]) -> Read<u64> {
    let mut cursor = Cursor::new(bytes);
    match cursor.field(0)? {
        Field { id: 1, kind: LIST } => Ok(cursor.list()?.0),
        _ => Err(Unread::Bad),
    }
}
