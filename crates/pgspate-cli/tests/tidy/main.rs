//! The rules of the repository: file sizes, line widths, links, and documents that match the code.

mod room_order;
mod type_names;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE_LINES_MAX: usize = 600;
const LINE_COLUMNS_MAX: usize = 100;
const FILE_BYTES_MAX: u64 = 10 << 20;
const ARCHITECTURE_LINES_MAX: usize = 250;

/// Returns the root folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the paths of the repository's files, relative to its root. Hidden folders and the output
/// of tools are left out. This works without git, too.
fn files() -> Vec<PathBuf> {
    let skipped_folders = ["target", "node_modules", "__pycache__", "venv", "corpus", "artifacts"];
    let mut files = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let kind = entry.file_type().unwrap();
            let is_hidden = name.starts_with('.') && name != ".ci";
            // Below `src`, a module may have the name of a tool's output folder.
            let is_source = entry.path().components().any(|part| part.as_os_str() == "src");
            let is_skipped = !is_source && skipped_folders.contains(&name.as_str());
            if kind.is_dir() && !is_hidden && !is_skipped {
                folders.push(entry.path());
            } else if kind.is_file() && !is_hidden && !name.ends_with(".so") {
                files.push(entry.path().strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    files.sort();
    files
}

/// Returns the paths and texts of the files with these extensions.
fn read_with_extension(extensions: &[&str]) -> Vec<(PathBuf, String)> {
    let wanted = |path: &PathBuf| {
        path.extension().and_then(|it| it.to_str()).is_some_and(|it| extensions.contains(&it))
    };
    files().into_iter().filter(wanted).map(|path| (path.clone(), read_text(&path))).collect()
}

/// Returns the text of a file of the repository.
fn read_text(path: &Path) -> String {
    let read = fs::read_to_string(root().join(path));
    read.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs pgspate, which must succeed. Returns its stdout.
fn run_pgspate(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_pgspate")).args(args).output().unwrap();
    assert!(output.status.success(), "pgspate {args:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Fails with the rule and the list of faults, if there are any.
#[track_caller]
fn assert_none(faults: Vec<String>, rule: &str) {
    assert!(faults.is_empty(), "{rule}:\n{}", faults.join("\n"));
}

#[test]
fn source_files_are_short_and_narrow() {
    let mut faults = Vec::new();
    for (path, text) in read_with_extension(&["rs", "py", "sh"]) {
        let path = path.display();
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            faults.push(format!("{path}: {lines} lines"));
        }
        let wide = text.lines().enumerate().filter(|(_, it)| {
            // URLs and inline snapshots cannot be wrapped.
            it.chars().count() > LINE_COLUMNS_MAX && !it.contains("://") && !it.contains("@\"")
        });
        faults.extend(wide.map(|(nth, _)| format!("{path}:{}: too wide", nth + 1)));
    }
    assert_none(faults, "at most 600 lines a file and 100 columns a line");
}

#[test]
fn text_files_have_no_trailing_space_and_end_with_a_newline() {
    let mut faults = Vec::new();
    for (path, text) in read_with_extension(&["rs", "py", "sh", "md", "toml"]) {
        let trailing = text.lines().position(|line| line.ends_with([' ', '\t']));
        if let Some(nth) = trailing {
            faults.push(format!("{}:{}: space at its end", path.display(), nth + 1));
        }
        if !text.is_empty() && !text.ends_with('\n') {
            faults.push(format!("{}: no newline at its end", path.display()));
        }
    }
    assert_none(faults, "plain text is tidy");
}

#[test]
fn no_file_is_large() {
    let size = |path: &PathBuf| fs::metadata(root().join(path)).unwrap().len();
    let large = files().into_iter().filter(|path| size(path) > FILE_BYTES_MAX);
    assert_none(large.map(|path| path.display().to_string()).collect(), "at most 10 MB a file");
}

#[test]
fn architecture_md_has_at_most_250_lines() {
    let lines = read_text(Path::new("ARCHITECTURE.md")).lines().count();
    assert!(lines <= ARCHITECTURE_LINES_MAX, "ARCHITECTURE.md has {lines} lines");
}

#[test]
fn rust_modules_begin_with_a_module_comment() {
    let is_mute = |text: &String| !text.lines().next().is_some_and(|line| line.starts_with("//!"));
    let mute = read_with_extension(&["rs"]).into_iter().filter(|(path, text)| {
        // A fuzz target begins with the attribute `#![no_main]`.
        is_mute(text) && !text.starts_with("#!") && !path.ends_with("build.rs")
    });
    assert_none(
        mute.map(|(path, _)| path.display().to_string()).collect(),
        "these files lack a first line of `//!`",
    );
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest = read_text(Path::new("Cargo.toml"));
    let (_, rest) = manifest.split_once("[workspace.dependencies]").unwrap();
    let section = rest.split("\n[").next().unwrap();
    let architecture = read_text(Path::new("ARCHITECTURE.md"));
    let names = section.lines().filter_map(|line| Some(line.split_once(" = ")?.0.trim()));
    let mute = names.filter(|name| !architecture.contains(&format!("`{name}`")));
    assert_none(mute.map(str::to_owned).collect(), "ARCHITECTURE.md gives a reason for each");
}

#[test]
fn relative_links_lead_to_files() {
    let mut faults = Vec::new();
    for (path, text) in read_with_extension(&["md"]) {
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap();
            if target.contains("://") || file.is_empty() {
                continue;
            }
            let from = root().join(&path);
            if !from.parent().unwrap().join(file).exists() {
                faults.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert_none(faults, "relative links lead to files");
}

#[test]
fn documented_make_targets_exist() {
    let makefile = read_text(Path::new("Makefile"));
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', '#', '.']))
        .filter_map(|line| line.split_once(':').map(|(target, _)| target.trim()))
        .collect();
    let mut faults = Vec::new();
    for (path, text) in read_with_extension(&["md"]) {
        for code in code_lines(&text) {
            let mut words = code.split_whitespace().skip_while(|word| *word == "$");
            if words.next() == Some("make")
                && let Some(target) = words.find(|word| !word.contains('='))
                && !targets.contains(target)
            {
                faults.push(format!("{}: make {target}", path.display()));
            }
        }
    }
    assert_none(faults, "the Makefile has what documents tell to make");
}

#[test]
fn documented_options_exist() {
    let commands = ["load", "server", "completions", "man"];
    let help: Vec<String> =
        commands.iter().map(|command| run_pgspate(&[command, "--help"])).collect();
    let known: BTreeSet<String> = help.iter().flat_map(|text| options(text)).collect();
    let mut faults = Vec::new();
    for (path, text) in read_with_extension(&["md"]) {
        for line in code_lines(&text) {
            // Only options of pgspate are checked, not those of other programs.
            let Some((_, said)) = line.split_once("pgspate ") else { continue };
            let first = said.split_whitespace().next().unwrap_or_default();
            if !commands.contains(&first) {
                continue;
            }
            let said = said.split(" | ").next().unwrap_or(said);
            let unknown = options(said).into_iter().filter(|option| !known.contains(option));
            faults.extend(unknown.map(|option| format!("{}: {option}", path.display())));
        }
    }
    assert_none(faults, "pgspate has the options that documents use");
}

/// Returns the code between backticks, line by line: fenced blocks and inline code.
fn code_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for (nth, block) in text.split("```").enumerate() {
        if nth % 2 == 1 {
            // A backslash at the end of a line continues the line.
            lines.extend(block.replace("\\\n", " ").lines().map(str::to_owned));
        } else {
            lines.extend(block.split('`').skip(1).step_by(2).map(|it| it.replace('\n', " ")));
        }
    }
    lines
}

/// Returns the words that begin with two dashes, without their values.
fn options(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '-';
    let words = text.split(|c: char| c.is_whitespace() || "[](),.'\"`".contains(c));
    let names = words.filter_map(|word| word.strip_prefix("--"));
    let names = names.map(|name| name.split(|c| !is_part(c)).next().unwrap_or_default());
    names.filter(|name| name.len() > 1).map(|name| format!("--{name}")).collect()
}

#[test]
fn the_generated_reference_is_current() {
    let generated: [(&str, &[&str]); 5] = [
        ("pgspate.1", &["man"]),
        ("options.md", &["reference"]),
        ("completions/pgspate.bash", &["completions", "bash"]),
        ("completions/_pgspate", &["completions", "zsh"]),
        ("completions/pgspate.fish", &["completions", "fish"]),
    ];
    let folder = Path::new("docs/reference");
    let is_stale =
        |(file, args): &(&str, &[&str])| read_text(&folder.join(file)) != run_pgspate(args);
    let stale = generated.into_iter().filter(is_stale);
    let stale = stale.map(|(file, _)| file.to_owned()).collect();
    assert_none(stale, "`make reference` makes these files again");
}
