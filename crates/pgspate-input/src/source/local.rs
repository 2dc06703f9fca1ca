//! Local files: folders and patterns expanded, in the order of their names.
//!
//! `*` stays within one folder and `**` crosses them; hidden entries and the marker files that
//! Spark and its kin leave beside their data are passed over, in folders and patterns alike.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use super::fault;
use crate::{Error, ErrorKind, Result};

/// Characters that make a name a pattern.
const GLOB_CHARS: [char; 4] = ['*', '?', '[', '{'];

/// Deeper than any sensible layout; a walk that gets there goes in circles.
const DEPTH_MAX: usize = 64;

/// A file that was found, by the path to open it with.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) metadata: Metadata,
}

/// The files that `spec` names: one, those of a folder, or those that match a pattern.
///
/// # Errors
/// When there are none, or one of them cannot be read.
pub(super) fn expand(spec: &str) -> Result<Vec<Found>> {
    let path = Path::new(spec);
    let files = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            let files = walk(path, None, usize::MAX)?;
            if files.is_empty() {
                return Err(fault(spec, format!("no files in folder \"{spec}\"")));
            }
            files
        }
        Ok(metadata) => vec![Found { path: path.to_owned(), metadata }],
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_pattern(spec) => matches(spec)?,
        Err(error) => return Err(unreadable(path, error)),
    };
    // Opening a pipe would wait for its writer; whoever reads it will see.
    for found in files.iter().filter(|found| found.metadata.is_file()) {
        File::open(&found.path).map_err(|error| unreadable(&found.path, error))?;
    }
    Ok(files)
}

/// Whether a path has the characters of a pattern. It is none all the same if a file has that name.
pub fn is_pattern(name: &str) -> bool {
    name.contains(GLOB_CHARS)
}

/// A matcher for whole names, `/` between their parts.
///
/// # Errors
/// When `pattern` is not a valid pattern.
pub(super) fn matcher(pattern: &str) -> Result<GlobMatcher> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    Ok(glob
        .map_err(|e| {
            Error::new(ErrorKind::Usage, format!("\"{pattern}\" is not a valid pattern"))
                .hint("Write [*], [?], [[] or [{] for a character that is meant as it stands.")
                .because(e.kind().to_string())
        })?
        .compile_matcher())
}

/// The error for a pattern or folder without files.
pub(super) fn no_match(spec: &str) -> Error {
    fault(spec, format!("no files match \"{spec}\"")).hint(
        "Patterns match files: `*` stays within one folder, `**` crosses folders, and hidden \
         files are passed over.",
    )
}

/// Whether an entry of a folder is passed over: hidden ones, and notes of the writer that are not
/// data.
pub(super) fn is_passed_over(name: &str) -> bool {
    name.starts_with('.')
        || name.starts_with("_committed_")
        || name.starts_with("_started_")
        || matches!(name, "_SUCCESS" | "_temporary" | "_metadata" | "_common_metadata")
}

/// The name of the folder that makes its parent a Delta Lake table.
pub(super) const DELTA_LOG: &str = "_delta_log";

/// The error for a folder whose files must not be read without its log.
pub(super) fn delta_table(name: &str) -> Error {
    fault(name, format!("\"{name}\" is a Delta Lake table")).hint(
        "Its files also hold rows that were deleted or replaced; export the current rows to \
         Parquet first. To read the files as they are, name them by a pattern.",
    )
}

fn matches(spec: &str) -> Result<Vec<Found>> {
    let (base, rest) = split_pattern(spec);
    let pattern = base.join(&rest);
    let matcher = matcher(&pattern.to_string_lossy())?;
    let depth = if rest.contains("**") || rest.contains('{') {
        usize::MAX
    } else {
        rest.split('/').filter(|part| !part.is_empty()).count()
    };
    let hidden = rest.split('/').any(|part| part.starts_with(['.', '_']));
    let filter = Filter { matcher, hidden };
    let folder = if base.as_os_str().is_empty() { Path::new("") } else { &base };
    match walk(folder, Some(&filter), depth) {
        Ok(files) if files.is_empty() => Err(no_match(spec)),
        Ok(files) => Ok(files),
        Err(_) if !base.as_os_str().is_empty() && !base.exists() => Err(no_match(spec)),
        Err(error) => Err(error),
    }
}

/// The leading parts without pattern characters, and the rest.
fn split_pattern(spec: &str) -> (PathBuf, String) {
    let start = spec.find(|c| c == '\\' || GLOB_CHARS.contains(&c)).unwrap_or(spec.len());
    let cut = spec[..start].rfind('/').map_or(0, |slash| slash + 1);
    let base: PathBuf = Path::new(&spec[..cut]).components().collect();
    (base, spec[cut..].to_owned())
}

struct Filter {
    matcher: GlobMatcher,
    hidden: bool,
}

/// Regular files below `folder`, at most `depth` levels down, by name.
fn walk(folder: &Path, filter: Option<&Filter>, depth: usize) -> Result<Vec<Found>> {
    let mut files = Vec::new();
    let mut seen = Vec::new();
    descend(folder, filter, depth, &mut seen, &mut files)?;
    files.sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    Ok(files)
}

/// `seen` holds device and inode of the folders above, so that a link in a circle is not followed.
fn descend(
    folder: &Path,
    filter: Option<&Filter>,
    depth: usize,
    seen: &mut Vec<(u64, u64)>,
    files: &mut Vec<Found>,
) -> Result<()> {
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let unreadable_folder = |error| {
        fault(&folder.to_string_lossy(), format!("could not list folder \"{}\"", here.display()))
            .because(error)
    };
    let metadata = fs::metadata(here).map_err(unreadable_folder)?;
    let id = (metadata.dev(), metadata.ino());
    if depth == 0 || seen.contains(&id) || seen.len() == DEPTH_MAX {
        return Ok(());
    }
    seen.push(id);
    for entry in fs::read_dir(here).map_err(unreadable_folder)? {
        let name = entry.map_err(unreadable_folder)?.file_name();
        let path = folder.join(&name);
        let name = name.to_string_lossy();
        if filter.is_none() && name == DELTA_LOG {
            return Err(delta_table(&folder.to_string_lossy()));
        }
        if is_passed_over(&name) && !filter.is_some_and(|filter| filter.hidden) {
            continue;
        }
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            // A link to nowhere matters only where it was asked for.
            Err(_) if filter.is_some_and(|filter| !filter.matcher.is_match(&path)) => continue,
            Err(error) => return Err(unreadable(&path, error)),
        };
        if metadata.is_dir() {
            descend(&path, filter, depth - 1, seen, files)?;
        } else if metadata.is_file() && filter.is_none_or(|filter| filter.matcher.is_match(&path)) {
            files.push(Found { path, metadata });
        }
    }
    seen.pop();
    Ok(())
}

/// The error for a file that cannot be opened.
pub(super) fn unreadable(path: &Path, error: io::Error) -> Error {
    let name = path.to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => fault(&name, format!("\"{name}\" does not exist"))
            .hint("Relative paths start from the current folder."),
        _ => fault(&name, format!("could not open \"{name}\"")).because(error),
    }
}
