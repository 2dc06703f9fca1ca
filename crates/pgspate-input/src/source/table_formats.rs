//! Recognises folders of Delta Lake, Hudi and Iceberg tables.
//!
//! The files of such a table must not be read without its metadata: they also contain deleted and
//! replaced rows. Only a pattern, or a file's own name, reads them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::source_error;
use crate::{Error, Result};

/// What a folder is by the metadata in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableFormat {
    DeltaLake,
    Hudi,
    HudiPartition,
    Iceberg,
}

/// The folder of Iceberg's data files, unless its writer was given another one.
const ICEBERG_DATA: &str = "data";
/// The folder of Iceberg's metadata, beside the folder of its data.
const ICEBERG_METADATA: &str = "metadata";

impl TableFormat {
    fn name(self) -> &'static str {
        match self {
            TableFormat::DeltaLake => "a Delta Lake table",
            TableFormat::Hudi => "a Hudi table",
            TableFormat::HudiPartition => "a partition of a Hudi table",
            TableFormat::Iceberg => "an Iceberg table",
        }
    }

    /// Returns what a folder with an entry of this name is.
    fn of_entry(name: &str) -> Option<TableFormat> {
        match name {
            "_delta_log" => Some(TableFormat::DeltaLake),
            ".hoodie" => Some(TableFormat::Hudi),
            ".hoodie_partition_metadata" => Some(TableFormat::HudiPartition),
            _ => None,
        }
    }

    /// Returns what `folder` is, which has entries of these names.
    pub(super) fn of_folder<'a>(
        folder: &Path,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Option<TableFormat> {
        let mut formats = names.clone().filter_map(TableFormat::of_entry);
        let has = |wanted: &str| names.clone().any(|name| name == wanted);
        let is_iceberg =
            || has(ICEBERG_DATA) && has(ICEBERG_METADATA) && has_iceberg_metadata(folder);
        formats.next().or_else(|| is_iceberg().then_some(TableFormat::Iceberg))
    }

    /// Returns the format of the table at `folder`, if `folder` is the root of a table to whose
    /// data its entry `below` belongs.
    fn of_parent(folder: &Path, below: &str) -> Option<TableFormat> {
        let markers = ["_delta_log", ".hoodie"];
        if markers.contains(&below) {
            return None;
        }
        let marker = markers.into_iter().find(|name| folder.join(name).is_dir());
        let is_iceberg = || below == ICEBERG_DATA && has_iceberg_metadata(folder);
        marker
            .and_then(TableFormat::of_entry)
            .or_else(|| is_iceberg().then_some(TableFormat::Iceberg))
    }

    /// Returns the error for the folder `name`.
    pub(super) fn error(self, name: &str) -> Error {
        with_hint(name, format!("\"{name}\" is {}", self.name()))
    }
}

fn with_hint(name: &str, message: String) -> Error {
    source_error(name, message).hint(
        "The files also contain deleted and replaced rows. Export the current rows to Parquet \
         first. To load all files anyway, name them by a pattern.",
    )
}

/// Checks that no folder above `folder` is the root of a table.
///
/// # Errors
/// [`ErrorKind::Source`](crate::ErrorKind::Source) if one is, and `folder` has the table's data.
pub(super) fn check_parents(folder: &Path) -> Result<()> {
    // The error of a folder that cannot be read appears when it is listed.
    let Ok(full_path) = folder.canonicalize() else { return Ok(()) };
    let mut below = full_path.as_path();
    while let (Some(parent), Some(entry)) = (below.parent(), below.file_name()) {
        if let Some(format) = TableFormat::of_parent(parent, &entry.to_string_lossy()) {
            let (name, root) = (folder.to_string_lossy(), parent.display());
            let message = format!("\"{name}\" is a folder of \"{root}\", {}", format.name());
            return Err(with_hint(&name, message));
        }
        below = parent;
    }
    Ok(())
}

fn has_iceberg_metadata(folder: &Path) -> bool {
    let entries = fs::read_dir(folder.join(ICEBERG_METADATA)).into_iter().flatten().flatten();
    entries.map(|it| it.file_name()).any(|name| is_iceberg_metadata(&name.to_string_lossy()))
}

/// Returns whether a file has the name of the metadata of an Iceberg table.
fn is_iceberg_metadata(name: &str) -> bool {
    name.ends_with(".metadata.json") || name.ends_with(".metadata.json.gz")
}

/// Returns a folder of a table that is among `keys`, and what the folder is. The folder has no
/// slash at its end.
pub(super) fn find_in_keys<'a>(
    keys: impl Iterator<Item = &'a str> + Clone,
) -> Option<(&'a str, TableFormat)> {
    let mut iceberg_roots = BTreeSet::new();
    for key in keys.clone() {
        let mut start = 0;
        for part in key.split('/') {
            if let Some(format) = TableFormat::of_entry(part) {
                return Some((key[..start].trim_end_matches('/'), format));
            }
            start += part.len() + 1;
        }
        let (folder, name) = key.rsplit_once('/').unwrap_or(("", key));
        let root = folder.strip_suffix(ICEBERG_METADATA);
        let root = root.filter(|root| root.is_empty() || root.ends_with('/'));
        iceberg_roots.extend(root.filter(|_| is_iceberg_metadata(name)));
    }
    let has_data = |root: &&str| {
        let is_data = |key: &str| {
            let below = key.strip_prefix(root).and_then(|it| it.strip_prefix(ICEBERG_DATA));
            below.is_some_and(|it| it.starts_with('/'))
        };
        keys.clone().any(is_data)
    };
    let root = iceberg_roots.into_iter().find(has_data)?;
    Some((root.trim_end_matches('/'), TableFormat::Iceberg))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_tables_are_found_in_keys() {
        for (keys, expected) in [
            (&["_delta_log/0.json", "a.parquet"][..], Some(("", TableFormat::DeltaLake))),
            (&["x/y/.hoodie/z", "x/y/a.parquet"], Some(("x/y", TableFormat::Hudi))),
            (
                &["d=1/.hoodie_partition_metadata", "d=1/a.parquet"],
                Some(("d=1", TableFormat::HudiPartition)),
            ),
            (&["data/a.parquet", "metadata/v1.metadata.json"], Some(("", TableFormat::Iceberg))),
            (
                &["x/data/d=1/a.parquet", "x/metadata/0-1.gz.metadata.json"],
                Some(("x", TableFormat::Iceberg)),
            ),
            (&["metadata/v1.metadata.json"], None),
            (&["x/data/a.parquet", "y/metadata/v1.metadata.json"], None),
            (&["data/a.csv", "metadata/a.json", "x_delta_log/b"], None),
            (&["data/a.csv", "xmetadata/v1.metadata.json"], None),
        ] {
            assert_eq!(find_in_keys(keys.iter().copied()), expected, "{keys:?}");
        }
    }
}
