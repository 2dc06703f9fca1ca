//! Warns of columns whose values are in the names of folders, which are not read: `year=2024`.

use super::{InputOrigin, ReadingOptions, RecordShape};
use crate::format::infer;
use crate::plan::constant_names;
use crate::source::{Input, PartitionFolder, partition_folders};
use pgspate_base::is_alike;

/// The value of Hive's folders for rows with NULL.
const HIVE_NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Returns the warning that folders hold values of columns that the rows do not have. With
/// `--file-name-column` the rows have the values: they are in the file's path.
pub(super) fn warn_of_partition_folders(
    inputs: &[Input],
    shape: &RecordShape,
    table_columns: Option<&[String]>,
    options: &ReadingOptions,
) -> Option<String> {
    let (InputOrigin::Sources(specs), rows) = (&options.origin, &options.rows) else { return None };
    if rows.file_name_column.is_some() {
        return None;
    }
    let mut names = match (&rows.columns, shape.names()) {
        (Some(columns), _) => columns.clone(),
        (None, Some(names)) if rows.snake_case => {
            names.iter().map(|name| infer::snake_case(name)).collect()
        }
        (None, Some(names)) => names,
        // Fields without names are the table's columns.
        (None, None) => table_columns.unwrap_or_default().to_vec(),
    };
    names.extend(constant_names(rows).map(str::to_owned));
    let is_missing = |it: &PartitionFolder| !names.iter().any(|name| is_alike(name, &it.column));
    let missing = partition_folders(specs, inputs).find_map(|mut folders| {
        folders.retain(is_missing);
        (!folders.is_empty()).then_some(folders)
    })?;
    Some(warning(&missing))
}

fn warning(missing: &[PartitionFolder]) -> String {
    let joined = |part: &dyn Fn(&PartitionFolder) -> String, separator: &str| {
        missing.iter().map(part).collect::<Vec<_>>().join(separator)
    };
    let folders = joined(&|it| format!("{}={}", it.column, it.value), "/");
    let columns = joined(&|it| format!("\"{}\"", it.column), " and ");
    let s = if missing.len() == 1 { "" } else { "s" };
    let options = joined(&set_option, " ");
    format!(
        "folders such as \"{folders}\" hold values of column{s} {columns}, which the rows do not \
         have; load each folder by itself with `{options}`"
    )
}

/// Returns the option that gives all rows of a folder its value.
fn set_option(folder: &PartitionFolder) -> String {
    let value = if folder.value == HIVE_NULL { "\\N" } else { &folder.value };
    let pair = format!("{}={value}", folder.column);
    let is_plain = |c: char| c.is_alphanumeric() || "=_-.".contains(c);
    match pair.chars().all(is_plain) {
        true => format!("--set {pair}"),
        false => format!("--set '{}'", pair.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_names_columns_and_options() {
        let folder = |column: &str, value: &str| PartitionFolder {
            column: column.to_owned(),
            value: value.to_owned(),
        };
        assert_eq!(
            warning(&[folder("year", "2024")]),
            "folders such as \"year=2024\" hold values of column \"year\", which the rows do not \
             have; load each folder by itself with `--set year=2024`"
        );
        assert_eq!(
            warning(&[folder("city", "New York"), folder("day", HIVE_NULL)]),
            "folders such as \"city=New York/day=__HIVE_DEFAULT_PARTITION__\" hold values of \
             columns \"city\" and \"day\", which the rows do not have; load each folder by itself \
             with `--set 'city=New York' --set 'day=\\N'`"
        );
    }
}
