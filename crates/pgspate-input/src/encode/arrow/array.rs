//! Lists to PostgreSQL arrays, nested lists to arrays of several dimensions.
//!
//! A PostgreSQL array is a box: every row of a dimension has the same length, and no sub-array is
//! NULL. Lists of another shape are left to the server, which refuses their text.

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_schema::{DataType, Field};

use super::column::Column;
use super::text::Write;

/// The number of dimensions that an array may have.
const DIMENSIONS_MAX: usize = 6;

/// The rows of a list's child that belong to one row of the list.
pub(crate) type Rows<'a> = Box<dyn Fn(usize) -> std::ops::Range<usize> + 'a>;

/// The child field of a list type.
pub(crate) fn child(data_type: &DataType) -> Option<&Field> {
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _) => Some(field),
        _ => None,
    }
}

/// A list column's child column, and the child rows of each row.
pub(crate) fn open(array: &dyn Array) -> Option<(&dyn Array, Rows<'_>)> {
    Some(match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let offsets = list.value_offsets();
            let rows = move |row| offsets[row] as usize..offsets[row + 1] as usize;
            (list.values().as_ref(), Box::new(rows))
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            let offsets = list.value_offsets();
            let rows = move |row| offsets[row] as usize..offsets[row + 1] as usize;
            (list.values().as_ref(), Box::new(rows))
        }
        DataType::ListView(_) => {
            let list = array.as_list_view::<i32>();
            let (offsets, sizes) = (list.value_offsets(), list.value_sizes());
            let rows = move |row| offsets[row] as usize..(offsets[row] + sizes[row]) as usize;
            (list.values().as_ref(), Box::new(rows))
        }
        DataType::LargeListView(_) => {
            let list = array.as_list_view::<i64>();
            let (offsets, sizes) = (list.value_offsets(), list.value_sizes());
            let rows = move |row| offsets[row] as usize..(offsets[row] + sizes[row]) as usize;
            (list.values().as_ref(), Box::new(rows))
        }
        DataType::FixedSizeList(_, width) => {
            let list = array.as_fixed_size_list();
            let width = usize::try_from(*width).ok()?;
            (list.values().as_ref(), Box::new(move |row| row * width..(row + 1) * width))
        }
        _ => return None,
    })
}

/// A list column taken apart: its levels from the outermost, and the elements beneath them.
pub(crate) struct Lists<'a> {
    pub(crate) levels: Vec<(&'a dyn Array, Rows<'a>)>,
    pub(crate) leaf: &'a dyn Array,
}

/// Takes a list column apart.
pub(crate) fn unfold(array: &dyn Array) -> Lists<'_> {
    let mut lists = Lists { levels: Vec::new(), leaf: array };
    while let Some((child, rows)) = open(lists.leaf) {
        lists.levels.push((lists.leaf, rows));
        lists.leaf = child;
    }
    lists
}

impl Lists<'_> {
    /// Appends the array in `row`; false when it is no box or an element is left to the server.
    pub(crate) fn put(&self, row: usize, items: &Column<'_>, oid: u32, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        let sizes = self.sizes(row);
        let Some(sizes) = sizes else { return false };
        let empty = sizes[0] == 0;
        if sizes.len() > DIMENSIONS_MAX || (!empty && sizes.contains(&0)) {
            return false;
        }
        let sizes = if empty { &[] } else { sizes.as_slice() };
        out.extend_from_slice(&(sizes.len() as u32).to_be_bytes());
        let flag = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&oid.to_be_bytes());
        for size in sizes {
            let Ok(size) = i32::try_from(*size) else { return false };
            out.extend_from_slice(&size.to_be_bytes());
            out.extend_from_slice(&1i32.to_be_bytes());
        }
        if !empty {
            let mut nulls = false;
            if !self.put_level(0, row, sizes, items, &mut nulls, out) {
                return false;
            }
            out[flag + 3] = u8::from(nulls);
        }
        let Ok(len) = i32::try_from(out.len() - start - 4) else { return false };
        out[start..start + 4].copy_from_slice(&len.to_be_bytes());
        true
    }

    /// The size of each dimension, taken from the first row of each; `None` at a NULL.
    fn sizes(&self, row: usize) -> Option<Vec<usize>> {
        let mut sizes = Vec::with_capacity(self.levels.len());
        let mut row = row;
        for (depth, (array, rows)) in self.levels.iter().enumerate() {
            if depth > 0 && array.is_null(row) {
                return None;
            }
            let rows = rows(row);
            sizes.push(rows.len());
            if rows.is_empty() {
                break;
            }
            row = rows.start;
        }
        Some(sizes)
    }

    fn put_level(
        &self,
        depth: usize,
        row: usize,
        sizes: &[usize],
        items: &Column<'_>,
        nulls: &mut bool,
        out: &mut Vec<u8>,
    ) -> bool {
        let (array, rows) = &self.levels[depth];
        let rows = rows(row);
        if (depth > 0 && array.is_null(row)) || rows.len() != sizes[depth] {
            return false;
        }
        if depth + 1 < self.levels.len() {
            return rows
                .into_iter()
                .all(|row| self.put_level(depth + 1, row, sizes, items, nulls, out));
        }
        for row in rows {
            let start = out.len();
            if !items.put(row, out) {
                return false;
            }
            *nulls |= out[start..start + 4] == [0xFF; 4];
        }
        true
    }

    /// Appends the array in `row` as PostgreSQL spells it, every element quoted.
    pub(crate) fn spell(&self, depth: usize, row: usize, text: &Spelling<'_>, out: &mut Vec<u8>) {
        let (array, rows) = &self.levels[depth];
        if array.is_null(row) {
            return out.extend_from_slice(b"NULL");
        }
        out.push(b'{');
        for (ordinal, row) in rows(row).enumerate() {
            if ordinal > 0 {
                out.push(text.delimiter);
            }
            match depth + 1 < self.levels.len() {
                true => self.spell(depth + 1, row, text, out),
                false => text.spell(row, out),
            }
        }
        out.push(b'}');
    }
}

/// How the elements of an array are spelled.
pub(crate) struct Spelling<'a> {
    pub(crate) write: Write<'a>,
    pub(crate) delimiter: u8,
}

impl Spelling<'_> {
    fn spell(&self, row: usize, out: &mut Vec<u8>) {
        let mut item = Vec::new();
        if !(self.write)(row, &mut item) {
            return out.extend_from_slice(b"NULL");
        }
        out.push(b'"');
        for byte in item {
            if matches!(byte, b'"' | b'\\') {
                out.push(b'\\');
            }
            out.push(byte);
        }
        out.push(b'"');
    }
}
