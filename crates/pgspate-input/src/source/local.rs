//! Finds local files: expands folders and patterns, in the order of the files' paths.
//!
//! `*` matches within one folder, `**` across folders. Hidden entries and the marker files that
//! Spark and similar writers leave beside their data are ignored, in folders and patterns alike.

use std::collections::HashSet;
use std::fs::{self, DirEntry, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use super::source_error;
use super::table_formats::{TableFormat, check_parents};
use crate::{Error, ErrorKind, Result};

/// Characters that make a name a pattern.
pub(super) const GLOB_CHARS: [char; 4] = ['*', '?', '[', '{'];

/// The deepest level of folders that is visited. A deeper level means that symbolic links form a
/// circle.
const DEPTH_MAX: usize = 64;

/// A local file that was found, with the path to open it.
#[derive(Debug)]
pub(super) struct LocalFile {
    pub(super) path: PathBuf,
    pub(super) metadata: Metadata,
    /// Whether a symbolic link below the folder that the user named leads to the file.
    is_linked: bool,
}

/// Returns the files that `spec` names: one file, all files of a folder, or all matches of a
/// pattern.
///
/// # Errors
/// [`ErrorKind::Source`] if there are no files, or a file cannot be opened. [`ErrorKind::Usage`] if
/// `spec` is not a valid pattern.
pub(super) fn expand(spec: &str) -> Result<Vec<LocalFile>> {
    let path = Path::new(spec);
    let files = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            check_parents(path)?;
            let files = files_below(path, None, usize::MAX)?;
            if files.is_empty() {
                return Err(source_error(spec, format!("no files in folder \"{spec}\"")));
            }
            files
        }
        Ok(metadata) => vec![LocalFile { path: path.to_owned(), metadata, is_linked: false }],
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_pattern(spec) => {
            matching_files(spec)?
        }
        Err(error) => return Err(open_error(path, error)),
    };
    // Opening a pipe would wait for its writer. An error of a pipe appears when the pipe is read.
    for found in files.iter().filter(|found| found.metadata.is_file()) {
        File::open(&found.path).map_err(|error| open_error(&found.path, error))?;
    }
    Ok(files)
}

/// Returns whether a path has pattern characters. A path with such characters names a file if a
/// file with exactly this name exists.
pub fn is_pattern(name: &str) -> bool {
    name.contains(GLOB_CHARS)
}

/// Returns a matcher for whole paths, whose parts are separated by `/`.
///
/// # Errors
/// [`ErrorKind::Usage`] if `pattern` is not a valid pattern.
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

/// Returns the error for a pattern without files.
pub(super) fn no_files_match_error(spec: &str) -> Error {
    source_error(spec, format!("no files match \"{spec}\"")).hint(
        "Patterns match files: `*` stays within one folder, `**` crosses folders, and hidden \
         files are ignored.",
    )
}

/// Returns whether an entry of a folder is ignored: a hidden entry, or a marker file of the data's
/// writer.
pub(super) fn is_ignored(name: &str) -> bool {
    name.starts_with('.')
        || name.starts_with("_committed_")
        || name.starts_with("_started_")
        || matches!(name, "_SUCCESS" | "_temporary" | "_metadata" | "_common_metadata")
}

/// Returns the files that match the pattern `spec`.
fn matching_files(spec: &str) -> Result<Vec<LocalFile>> {
    let (base, rest) = split_pattern(spec);
    let pattern = base.join(&rest);
    let matcher = matcher(&pattern.to_string_lossy())?;
    let depth = if rest.contains("**") || rest.contains('{') {
        usize::MAX
    } else {
        rest.split('/').filter(|part| !part.is_empty()).count()
    };
    let includes_hidden = rest.split('/').any(|part| part.starts_with(['.', '_']));
    let filter = PatternFilter { matcher, includes_hidden };
    let folder = if base.as_os_str().is_empty() { Path::new("") } else { &base };
    match files_below(folder, Some(&filter), depth) {
        Ok(files) if files.is_empty() => Err(no_files_match_error(spec)),
        Ok(files) => Ok(files),
        Err(_) if !base.as_os_str().is_empty() && !base.exists() => Err(no_files_match_error(spec)),
        Err(error) => Err(error),
    }
}

/// Splits a pattern into its leading folders without pattern characters, and the rest.
fn split_pattern(spec: &str) -> (PathBuf, String) {
    let start = spec.find(|c| c == '\\' || GLOB_CHARS.contains(&c)).unwrap_or(spec.len());
    let cut = spec[..start].rfind('/').map_or(0, |slash| slash + 1);
    let base: PathBuf = Path::new(&spec[..cut]).components().collect();
    (base, spec[cut..].to_owned())
}

/// Selects the files of a pattern.
struct PatternFilter {
    matcher: GlobMatcher,
    /// Whether the pattern itself names hidden entries. If so, hidden entries are not ignored.
    includes_hidden: bool,
}

/// Returns the regular files at most `depth` levels below `folder`, sorted by path. A file that
/// several paths lead to is returned once, so that its rows are not read twice. A path without
/// links is preferred.
fn files_below(
    folder: &Path,
    filter: Option<&PatternFilter>,
    depth: usize,
) -> Result<Vec<LocalFile>> {
    let mut walk = Walk { filter, open_folders: Vec::new(), files: Vec::new() };
    walk.collect_files(folder, depth, false)?;
    let mut files = walk.files;
    if files.iter().any(|file| file.is_linked) {
        files.sort_by(|a, b| {
            (a.is_linked, a.path.as_os_str()).cmp(&(b.is_linked, b.path.as_os_str()))
        });
        let mut real_paths = HashSet::new();
        files.retain(|file| file.path.canonicalize().map_or(true, |real| real_paths.insert(real)));
    }
    files.sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    Ok(files)
}

/// A walk through folders that collects files.
struct Walk<'a> {
    filter: Option<&'a PatternFilter>,
    /// The device and inode of each parent folder, so that a circle of links is not followed.
    open_folders: Vec<(u64, u64)>,
    files: Vec<LocalFile>,
}

impl Walk<'_> {
    /// Adds the files below `folder`. `is_linked` tells whether a link led to `folder`.
    fn collect_files(&mut self, folder: &Path, depth: usize, is_linked: bool) -> Result<()> {
        let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let list_error = |error| {
            let message = format!("could not list folder \"{}\"", here.display());
            source_error(&folder.to_string_lossy(), message).because(error)
        };
        let metadata = fs::metadata(here).map_err(list_error)?;
        let id = (metadata.dev(), metadata.ino());
        if depth == 0 || self.open_folders.contains(&id) || self.open_folders.len() == DEPTH_MAX {
            return Ok(());
        }
        self.open_folders.push(id);
        let entries: io::Result<Vec<_>> = fs::read_dir(here).map_err(list_error)?.collect();
        let entries = entries.map_err(list_error)?;
        let names: Vec<_> = entries.iter().map(DirEntry::file_name).collect();
        let texts = names.iter().filter_map(|name| name.to_str());
        if let Some(format) = TableFormat::of_folder(here, texts).filter(|_| self.filter.is_none())
        {
            return Err(format.error(&folder.to_string_lossy()));
        }
        for (entry, name) in entries.iter().zip(names) {
            let name = name.to_string_lossy();
            if is_ignored(&name) && !self.filter.is_some_and(|filter| filter.includes_hidden) {
                continue;
            }
            let path = folder.join(entry.file_name());
            let is_linked = is_linked || entry.file_type().is_ok_and(|kind| kind.is_symlink());
            self.collect_entry(path, depth, is_linked)?;
        }
        self.open_folders.pop();
        Ok(())
    }

    /// Adds one entry of a folder, or the files below it.
    fn collect_entry(&mut self, path: PathBuf, depth: usize, is_linked: bool) -> Result<()> {
        let is_chosen = self.filter.is_none_or(|filter| filter.matcher.is_match(&path));
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            // A broken link is ignored if the pattern does not match it.
            Err(_) if !is_chosen => return Ok(()),
            Err(error) => return Err(open_error(&path, error)),
        };
        if metadata.is_dir() {
            return self.collect_files(&path, depth - 1, is_linked);
        }
        if metadata.is_file() && is_chosen {
            self.files.push(LocalFile { path, metadata, is_linked });
        }
        Ok(())
    }
}

/// Returns the error for a file that cannot be opened.
pub(super) fn open_error(path: &Path, error: io::Error) -> Error {
    let name = path.to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => source_error(&name, format!("\"{name}\" does not exist"))
            .hint("Relative paths start from the current folder."),
        _ => source_error(&name, format!("could not open \"{name}\"")).because(error),
    }
}

/// Checks that the path of a file is UTF-8. The ledger has paths as text, in which two others could
/// be the same.
pub(super) fn check_name(path: &Path) -> Result<()> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if absolute.to_str().is_some() {
        return Ok(());
    }
    let message = "the name of the file or of its folder is not UTF-8";
    Err(source_error(&path.to_string_lossy(), message)
        .hint("Rename it. Or read the file from standard input: `pgspate load - < FILE`."))
}
