//! The sample: the first bytes of an input, from which pgspate detects the format and the columns.

use crate::Result;
use crate::encode::date_format::DateFormats;
use crate::format::delimited::ParsedRecord;
use crate::format::infer;
use crate::source::Input;

/// The most decompressed bytes of a sample.
pub const SAMPLE_BYTES: usize = 1 << 20;
/// The most records of a sample from which types are inferred.
pub(super) const SAMPLE_ROWS_MAX: usize = 10_000;

/// Infers the columns of a table for these rows, and returns names and types. The names come from
/// `user_names`, otherwise from `header_names`.
pub(super) fn infer_columns(
    header_names: Option<&[String]>,
    rows: &[ParsedRecord],
    user_names: Option<&[String]>,
    dates: &DateFormats,
) -> Vec<(String, String)> {
    let fields = rows.first().map_or(0, Vec::len);
    let unnamed = || infer::column_names(vec![String::new(); fields]);
    let names = user_names.or(header_names).map(<[String]>::to_vec);
    let columns = infer::columns_of_rows(&names.unwrap_or_else(unnamed), rows, dates);
    columns.into_iter().map(|column| (column.name, column.ty.sql().to_owned())).collect()
}

/// Chooses the input from which the format is detected, and returns the input with its sample.
///
/// The first input that is not empty is chosen. If that input has only one line, the line may be a
/// header without rows. Then a later input is chosen if it begins with the same line and has more
/// lines.
pub(super) fn choose_sample(inputs: &[Input]) -> Result<Option<(&Input, Vec<u8>)>> {
    let mut one_line = None;
    for input in inputs {
        let sample = input.peek(SAMPLE_BYTES)?;
        let line = trim_line_end(&sample);
        match &one_line {
            _ if sample.is_empty() && inputs.len() > 1 => {}
            None if line.iter().any(|byte| matches!(byte, b'\n' | b'\r')) => {
                return Ok(Some((input, sample)));
            }
            None => one_line = Some((input, sample)),
            Some((_, first)) if line == trim_line_end(first) => {}
            Some((_, first)) => {
                let rest = sample.strip_prefix(trim_line_end(first));
                let has_more_lines =
                    rest.is_some_and(|rest| matches!(rest.first(), Some(b'\n' | b'\r')));
                return Ok(if has_more_lines { Some((input, sample)) } else { one_line });
            }
        }
    }
    Ok(one_line)
}

fn trim_line_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}
