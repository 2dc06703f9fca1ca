//! Recognises folders that hold a column's value, as Hive and Spark name partitions: `year=2024`.

use std::collections::HashSet;

use super::Input;
use super::local::GLOB_CHARS;
use super::name::SourceSpec;
use super::resolve::file_path;

/// A column and its value for all files below a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionFolder {
    /// The name of the column.
    pub column: String,
    /// The value as the folder's name has it.
    pub value: String,
}

/// Returns the partition folders of each input that has some. Folders that the user named are left
/// out: only those below the folders and patterns of `specs` count.
pub fn partition_folders(
    specs: &[String],
    inputs: &[Input],
) -> impl Iterator<Item = Vec<PartitionFolder>> {
    let bases: HashSet<String> = specs.iter().filter_map(|spec| literal_start(spec)).collect();
    let names = inputs.iter().map(Input::name).filter(|name| name.contains('='));
    names.map(move |name| folders_below(&bases, name)).filter(|folders| !folders.is_empty())
}

/// Returns the partition folders of a file's name below the longest of `bases`.
fn folders_below(bases: &HashSet<String>, name: &str) -> Vec<PartitionFolder> {
    let path = normalized(name);
    let ends = path.rmatch_indices('/').map(|(at, _)| at);
    let base_len = std::iter::once(path.len())
        .chain(ends)
        .find(|end| bases.contains(&path[..*end]))
        .or_else(|| bases.contains("").then_some(0));
    let below = base_len.and_then(|len| path[len..].rsplit_once('/'));
    let folders = below.map_or("", |(folders, _)| folders).split('/');
    let pairs = folders.filter_map(|folder| folder.split_once('='));
    pairs
        .filter(|(column, _)| !column.is_empty())
        .map(|(column, value)| PartitionFolder { column: column.into(), value: value.into() })
        .collect()
}

/// Returns what a spec names literally: a file, a folder, or the folders before a pattern.
fn literal_start(spec: &str) -> Option<String> {
    let path = match SourceSpec::parse(spec) {
        SourceSpec::Stdin | SourceSpec::Url("http" | "https", _) => return None,
        SourceSpec::Url("file", _) => file_path(spec).ok()?,
        SourceSpec::Local(_) | SourceSpec::Url(..) => spec.to_owned(),
    };
    let is_literal = |part: &&str| !part.contains(GLOB_CHARS) && !part.contains('\\');
    let literal: Vec<&str> = path.split('/').take_while(is_literal).collect();
    Some(normalized(&literal.join("/")))
}

/// Returns a path without empty parts and `.`, so that two spellings of a folder are equal.
fn normalized(path: &str) -> String {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_below_a_spec_count() {
        for (spec, name, expected) in [
            ("hive", "hive/year=2024/month=01/x.parquet", "year=2024 month=01"),
            ("hive/", "hive/year=2024/x.parquet", "year=2024"),
            ("./hive", "./hive/year=2024/x.parquet", "year=2024"),
            (".", "./year=2024/x.csv", "year=2024"),
            ("*/*.csv", "year=2024/x.csv", "year=2024"),
            ("hive/year=2024", "hive/year=2024/x.csv", ""),
            ("hive/year=2024", "hive/year=2024/m=1/x.csv", "m=1"),
            ("hive/year=2024/x.csv", "hive/year=2024/x.csv", ""),
            ("hive/year=*/m=1/*.csv", "hive/year=2024/m=1/x.csv", "year=2024 m=1"),
            ("hive/year=2024/*.csv", "hive/year=2024/x.csv", ""),
            ("file:///h/hive", "/h/hive/year=2024/x.csv", "year=2024"),
            ("s3://b/hive/", "s3://b/hive/year=2024/x.csv", "year=2024"),
            ("s3://b", "s3://b/city=New York/x.csv", "city=New York"),
            ("hive", "hive/=/a=b.csv", ""),
            ("https://h/a=b/c.csv", "https://h/a=b/c.csv", ""),
        ] {
            let bases = literal_start(spec).into_iter().collect();
            let found = folders_below(&bases, name);
            let found: Vec<_> =
                found.iter().map(|it| format!("{}={}", it.column, it.value)).collect();
            assert_eq!(found.join(" "), expected, "{spec} {name}");
        }
    }
}
