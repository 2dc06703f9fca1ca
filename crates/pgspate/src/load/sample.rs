//! The first bytes of the input, from which formats and columns are guessed.

use crate::format::delimited::ParsedRecord;
use crate::format::infer;

/// Decompressed bytes of an input that are looked at.
pub const BYTES: usize = 1 << 20;
/// Records of them that are looked at.
pub(super) const ROWS: usize = 10_000;

/// The columns that a table for these rows would have: name and type.
pub(super) fn columns(
    names: Option<&[String]>,
    rows: &[ParsedRecord],
    given: Option<&[String]>,
) -> Vec<(String, String)> {
    let fields = rows.first().map_or(0, Vec::len);
    let unnamed = || infer::column_names(vec![String::new(); fields]);
    let names = given.map(<[String]>::to_vec).or(names.map(<[String]>::to_vec));
    let columns = infer::columns_of_rows(&names.unwrap_or_else(unnamed), rows);
    columns.into_iter().map(|column| (column.name, column.ty.sql().to_owned())).collect()
}
