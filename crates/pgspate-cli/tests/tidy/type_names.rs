//! Each type name is defined once in the workspace. A name in an error, a review or a search then
//! leads to one definition.

use std::collections::BTreeMap;

use super::{assert_none, read_with_extension};

#[test]
fn type_names_are_unique() {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in read_with_extension(&["rs"]) {
        for line in text.lines() {
            if let Some(name) = defined_type(line) {
                files.entry(name.to_owned()).or_default().push(path.display().to_string());
            }
        }
    }
    let twice = files.into_iter().filter(|(_, files)| files.len() > 1);
    let twice = twice.map(|(name, files)| format!("{name}: {}", files.join(", ")));
    assert_none(twice.collect(), "each type has a name of its own");
}

/// Returns the name of the type that this line begins to define.
fn defined_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let (keyword, rest) = line.split_once(' ')?;
    let is_definition = ["struct", "enum", "trait", "union"].contains(&keyword);
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let name = &rest[..end];
    let is_type = name.starts_with(|c: char| c.is_ascii_uppercase());
    (is_definition && is_type && end < rest.len()).then_some(name)
}

#[test]
fn definitions_of_types_are_recognised() {
    assert_eq!(defined_type("    pub(crate) struct Chunk<'a> {"), Some("Chunk"));
    assert_eq!(defined_type("pub enum Kind {"), Some("Kind"));
    assert_eq!(defined_type("struct Rows(u64);"), Some("Rows"));
    assert_eq!(defined_type("//! struct Rows {"), None);
    assert_eq!(defined_type("enum of all kinds,"), None);
}
