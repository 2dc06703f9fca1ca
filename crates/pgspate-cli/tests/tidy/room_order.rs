//! Dependencies between folders and crates. No two folders use each other, directly or through
//! other folders.
//!
//! The map in ARCHITECTURE.md lists crates, and the rooms of some crates. A crate or room uses only
//! crates or rooms above it in the map.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::{assert_none, read_text, read_with_extension};

/// A module's path from the crate's root: `apply`, `write`, `sift`.
type ModulePath = Vec<String>;

/// A use of another module in a file.
struct ModuleUse {
    file: PathBuf,
    from: ModulePath,
    to: ModulePath,
}

/// Returns the names of the folders of all crates below `crates/`.
fn crates() -> BTreeSet<String> {
    let manifests = read_with_extension(&["toml"]).into_iter().filter_map(|(path, _)| {
        let folder = path.strip_prefix("crates").ok()?.parent()?.to_str()?.to_owned();
        (path.ends_with("Cargo.toml") && !folder.contains('/')).then_some(folder)
    });
    manifests.collect()
}

/// Returns the crates and rooms of the map in order: `pgspate`, then `pgspate/target`.
fn rooms_of_map() -> Vec<String> {
    let architecture = read_text(Path::new("ARCHITECTURE.md"));
    let (_, map) = architecture.split_once("## The map").unwrap();
    let (mut places, mut last) = (Vec::new(), "");
    for line in map.split("```").nth(1).unwrap().lines() {
        let Some(name) = line.split_whitespace().next().and_then(|it| it.strip_suffix('/')) else {
            continue;
        };
        match name.strip_prefix("crates/") {
            Some(name) => {
                last = name;
                places.push(name.to_owned());
            }
            None if line.starts_with("  ") => places.push(format!("{last}/{name}")),
            None => {}
        }
    }
    places
}

/// Returns the paths of a `use` with groups expanded: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand(tree: &str) -> Vec<String> {
    let Some((head, rest)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap().trim().to_owned()];
    };
    let body = &rest[..rest.rfind('}').unwrap_or(rest.len())];
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in body.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().unwrap().push(letter);
    }
    let of_part = |part: &String| expand(part).into_iter().map(|it| format!("{}{it}", head.trim()));
    parts.iter().filter(|part| !part.trim().is_empty()).flat_map(of_part).collect()
}

/// Returns the paths in a file that begin with `crate` or `super`.
fn crate_paths(source: &str) -> Vec<String> {
    let code: String = source
        .lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
        .collect::<Vec<_>>()
        .join("\n");
    let mut paths = Vec::new();
    let mut rest = code.as_str();
    while let Some(at) = [rest.find("crate::"), rest.find("super::")].into_iter().flatten().min() {
        let is_a_word = !rest[..at].ends_with(|it: char| it.is_alphanumeric() || it == '_');
        let is_a_use = rest[..at].trim_end().ends_with("use");
        let end = match is_a_use {
            true => rest[at..].find(';'),
            false => rest[at..].find(|it: char| !(it.is_alphanumeric() || it == '_' || it == ':')),
        };
        let end = at + end.unwrap_or(rest.len() - at);
        // `$crate` and `pgspate_crate::` do not begin with the word `crate`.
        if is_a_word && !rest[..at].ends_with('$') {
            paths.extend(expand(&rest[at..end].replace('\n', " ")));
        }
        rest = &rest[end.max(at + "crate::".len())..];
    }
    paths
}

/// Returns the uses of a crate's modules within the crate.
fn module_uses(name: &str) -> Vec<ModuleUse> {
    let source = Path::new("crates").join(name).join("src");
    let mut uses = Vec::new();
    for (file, text) in read_with_extension(&["rs"]) {
        let Ok(path) = file.strip_prefix(&source) else { continue };
        let mut from: ModulePath =
            path.with_extension("").iter().map(|it| it.to_str().unwrap().to_owned()).collect();
        if matches!(from.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            from.pop();
        }
        for path in crate_paths(&text) {
            let mut names = path.split("::").map(str::trim).peekable();
            let mut to = from.clone();
            while names.next_if_eq(&"super").is_some() {
                to.pop();
            }
            if names.next_if_eq(&"crate").is_some() {
                to.clear();
            }
            to.extend(names.map(str::to_owned));
            uses.push(ModuleUse { file: file.clone(), from: from.clone(), to });
        }
    }
    uses
}

/// Returns for each folder the sibling folders that its files use, each with one such file.
fn folder_uses(name: &str) -> BTreeMap<PathBuf, BTreeMap<PathBuf, PathBuf>> {
    let source = crate::root().join("crates").join(name).join("src");
    let mut edges: BTreeMap<PathBuf, BTreeMap<PathBuf, PathBuf>> = BTreeMap::new();
    for ModuleUse { file, from, to } in module_uses(name) {
        let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
        if shared == from.len() || shared == to.len() {
            continue;
        }
        let folder = |module: &ModulePath| module[..=shared].iter().collect::<PathBuf>();
        let (one, other) = (folder(&from), folder(&to));
        if source.join(&one).is_dir() && source.join(&other).is_dir() {
            edges.entry(one).or_default().insert(other, file);
        }
    }
    edges
}

#[test]
fn no_folders_use_each_other_in_a_cycle() {
    let mut cycles = Vec::new();
    for name in crates() {
        let edges = folder_uses(&name);
        for (one, others) in &edges {
            for (other, file) in others {
                let (mut reached, mut next) = (BTreeSet::from([other]), vec![other]);
                while let Some(folder) = next.pop() {
                    let further = edges.get(folder).into_iter().flat_map(BTreeMap::keys);
                    next.extend(further.filter(|it| reached.insert(it)));
                }
                if reached.contains(one) {
                    let (file, other) = (file.display(), other.display());
                    cycles.push(format!("{file}: uses {other}, which uses {}", one.display()));
                }
            }
        }
    }
    assert_none(cycles, "no cycles between folders");
}

#[test]
fn rooms_use_only_those_above_them_in_the_map() {
    let mut faults = Vec::new();
    let map = rooms_of_map();
    let place = |name: &str| map.iter().position(|it| it == name);
    for name in crates() {
        let Some(own) = place(&name) else {
            faults.push(format!("crates/{name} is not in the map of ARCHITECTURE.md"));
            continue;
        };
        let manifest = read_text(&Path::new("crates").join(&name).join("Cargo.toml"));
        let (_, rest) = manifest.split_once("\n[dependencies]").unwrap();
        let dependencies = rest.split("\n[").next().unwrap().lines();
        let used = dependencies.filter_map(|line| line.split(['.', ' ']).next());
        let below = used.filter(|other| place(other).is_some_and(|at| at >= own));
        faults.extend(below.map(|other| format!("crates/{name} uses {other}, which is below it")));
        let has_rooms = map.iter().any(|it| it.starts_with(&format!("{name}/")));
        let is_room = |path: &Path| path.components().count() == 1;
        let edges = folder_uses(&name).into_iter().filter(|(one, _)| has_rooms && is_room(one));
        for (one, others) in edges {
            for (other, file) in others {
                let [own, at] = [&one, &other].map(|it| place(&format!("{name}/{}", it.display())));
                if at.is_none() || at >= own {
                    let (file, other) = (file.display(), other.display());
                    faults.push(format!(
                        "{file}: uses {other}, which is not above {}",
                        one.display()
                    ));
                }
            }
        }
    }
    assert_none(faults, "the order of the map in ARCHITECTURE.md");
}
