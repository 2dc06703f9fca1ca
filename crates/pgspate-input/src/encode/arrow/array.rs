//! Encodes Arrow lists as PostgreSQL arrays; nested lists become arrays of several dimensions.
//!
//! A PostgreSQL array is rectangular: all subarrays of a dimension have the same length, and no
//! subarray is NULL. Other lists are left to the server, which rejects their text.

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_schema::{DataType, Field};

use super::column::BoundColumn;
use super::text::AppendText;

/// The most dimensions of an array.
const DIMENSIONS_MAX: usize = 6;

/// A function that returns, for a row of a list column, the range of rows in the child column.
pub(crate) type ChildRows<'a> = Box<dyn Fn(usize) -> std::ops::Range<usize> + 'a>;

/// Returns the child field of a list type.
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

/// Returns a list column's child column, and the child rows of each row.
pub(crate) fn child_column(array: &dyn Array) -> Option<(&dyn Array, ChildRows<'_>)> {
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

/// A list column, split into its levels and the column of its elements.
pub(crate) struct ListLevels<'a> {
    /// The list column of each level and its child rows, the outermost level first.
    pub(crate) levels: Vec<(&'a dyn Array, ChildRows<'a>)>,
    /// The column of the elements.
    pub(crate) leaf: &'a dyn Array,
}

/// Splits a list column into its levels and its elements.
pub(crate) fn split_levels(array: &dyn Array) -> ListLevels<'_> {
    let mut lists = ListLevels { levels: Vec::new(), leaf: array };
    while let Some((child, rows)) = child_column(lists.leaf) {
        lists.levels.push((lists.leaf, rows));
        lists.leaf = child;
    }
    lists
}

impl ListLevels<'_> {
    /// Appends the array in `row`. Returns false if the array is not rectangular, or an element is
    /// left to the server.
    pub(crate) fn append(
        &self,
        row: usize,
        items: &BoundColumn<'_>,
        oid: u32,
        out: &mut Vec<u8>,
    ) -> bool {
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
        let has_null_at = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&oid.to_be_bytes());
        for size in sizes {
            let Ok(size) = i32::try_from(*size) else { return false };
            out.extend_from_slice(&size.to_be_bytes());
            out.extend_from_slice(&1i32.to_be_bytes());
        }
        if !empty {
            let mut has_null = false;
            if !self.append_level(0, row, sizes, items, &mut has_null, out) {
                return false;
            }
            out[has_null_at + 3] = u8::from(has_null);
        }
        let Ok(len) = i32::try_from(out.len() - start - 4) else { return false };
        out[start..start + 4].copy_from_slice(&len.to_be_bytes());
        true
    }

    /// Returns the size of each dimension: the size of the dimension's first subarray. Returns
    /// `None` if such a subarray is NULL.
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

    /// Appends the elements of a level, and sets `has_null` if an element is NULL. Returns false if
    /// sizes differ or an element is left to the server.
    fn append_level(
        &self,
        depth: usize,
        row: usize,
        sizes: &[usize],
        items: &BoundColumn<'_>,
        has_null: &mut bool,
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
                .all(|row| self.append_level(depth + 1, row, sizes, items, has_null, out));
        }
        for row in rows {
            let start = out.len();
            if !items.append(row, out) {
                return false;
            }
            *has_null |= out[start..start + 4] == [0xFF; 4];
        }
        true
    }

    /// Appends the array in `row` as an array literal with quoted elements.
    pub(crate) fn write_literal(
        &self,
        depth: usize,
        row: usize,
        elements: &ElementWriter<'_>,
        out: &mut Vec<u8>,
    ) {
        let (array, rows) = &self.levels[depth];
        if array.is_null(row) {
            return out.extend_from_slice(b"NULL");
        }
        out.push(b'{');
        for (ordinal, row) in rows(row).enumerate() {
            if ordinal > 0 {
                out.push(elements.delimiter);
            }
            match depth + 1 < self.levels.len() {
                true => self.write_literal(depth + 1, row, elements, out),
                false => elements.write_element(row, out),
            }
        }
        out.push(b'}');
    }
}

/// Writes the elements of an array literal.
pub(crate) struct ElementWriter<'a> {
    pub(crate) write: AppendText<'a>,
    pub(crate) delimiter: u8,
}

impl ElementWriter<'_> {
    fn write_element(&self, row: usize, out: &mut Vec<u8>) {
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
