//! Creates new data folders quickly: `initdb` runs once per version and user, then its result is
//! copied.
//!
//! The templates are in a cache in the temporary folder. Other users can create files in that
//! folder, and the system may remove old files. So the cache is used only if pgspate's user owns
//! it, and a copy must have as many files as the template's record says. Copies hold a shared lock.
//! The creation of a template holds an exclusive lock.

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::account::ServerAccount;
use crate::clone::clone_data_folder;
use crate::error::{self, Result};
use crate::find::Installation;
use crate::{folder, initdb, sys};

/// Creates `parent/data`, a new data folder that `account` owns, and returns the password of its
/// superuser. `parent` must be new and belong to pgspate's user. `base` is the folder of the cache.
pub(crate) fn make_data_folder(
    installation: &Installation,
    base: &Path,
    parent: &Path,
    account: Option<&ServerAccount>,
) -> Result<String> {
    let Some(cache) = open_cache(base, account)? else {
        let password = folder::random_password()?;
        initdb::make_data_folder(installation, parent, &password, false, account)?;
        return Ok(password);
    };
    let lock_path = cache.join("lock");
    let lock = folder::lock_file(&lock_path)?;
    let lock_failed = |e| error::could_not("lock", &lock_path, e);
    let template = cache.join(template_name(installation, account));
    let mut is_last_try = false;
    loop {
        lock.lock_shared().map_err(lock_failed)?;
        let copied = copy_template(&template, parent);
        lock.unlock().map_err(lock_failed)?;
        if copied.is_ok() || is_last_try {
            return copied;
        }
        lock.lock().map_err(lock_failed)?;
        let made = if is_complete(&template) {
            Ok(())
        } else {
            make_template(installation, &template, account)
        };
        lock.unlock().map_err(lock_failed)?;
        made?;
        is_last_try = true;
    }
}

/// Opens the cache, and creates it if it is absent. Returns `None` if another user owns the folder
/// or can write to it.
fn open_cache(base: &Path, account: Option<&ServerAccount>) -> Result<Option<PathBuf>> {
    let own = sys::effective_uid();
    let cache = base.join(format!("pgspate-templates-{own}"));
    // As root, `initdb` runs as another user, who must be able to pass through the folder.
    let mode = if account.is_some() { 0o711 } else { 0o700 };
    // The next lines detect an error.
    let _ = DirBuilder::new().mode(mode).create(&cache);
    let metadata =
        fs::symlink_metadata(&cache).map_err(|e| error::could_not("create", &cache, e))?;
    let is_own = metadata.is_dir() && metadata.uid() == own && metadata.mode() & 0o022 == 0;
    Ok(is_own.then_some(cache))
}

/// Returns the name of a template. The program folder is a part of it: data folders of two builds
/// of a version may differ.
fn template_name(installation: &Installation, account: Option<&ServerAccount>) -> String {
    let mut hasher = DefaultHasher::new();
    installation.bin_dir.hash(&mut hasher);
    let uid = account.map_or_else(sys::effective_uid, |account| account.uid);
    // The `s` distinguishes templates of earlier pgspate versions, which trusted the socket.
    format!("{}-{uid}-{:016x}s", installation.version, hasher.finish())
}

/// Creates a template: a data folder, its password, and the number of its files.
fn make_template(
    installation: &Installation,
    template: &Path,
    account: Option<&ServerAccount>,
) -> Result<()> {
    folder::remove_tree(template)?;
    folder::make_own(template, account)?;
    let password = folder::random_password()?;
    initdb::make_data_folder(installation, template, &password, false, account)?;
    folder::write_private(&template.join("password"), password.as_bytes(), None)?;
    let files = count_files(&template.join("data"));
    folder::write_private(&template.join("files"), files.to_string().as_bytes(), None)
}

/// Copies a template to `parent/data` and returns its password.
fn copy_template(template: &Path, parent: &Path) -> Result<String> {
    let password = folder::read_secret(&template.join("password"))?;
    let to = parent.join("data");
    let files = clone_data_folder(&template.join("data"), &to)?;
    if recorded_files(template) != Some(files) {
        folder::remove_tree(&to)?;
        return Err(error::new(format!("\"{}\" is incomplete", template.display())));
    }
    Ok(password)
}

/// Returns whether a template has its password and all of its files.
fn is_complete(template: &Path) -> bool {
    template.join("password").is_file()
        && recorded_files(template) == Some(count_files(&template.join("data")))
}

/// Returns the recorded number of files. The number is written last, so an unfinished template has
/// no such record.
fn recorded_files(template: &Path) -> Option<u64> {
    fs::read_to_string(template.join("files")).ok()?.parse().ok()
}

fn count_files(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let count = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => count_files(&entry.path()),
        _ => 1,
    };
    entries.map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Makes a folder with a template `t` and an empty folder `to`.
    fn template() -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        let template = temp.path().join("t");
        fs::create_dir_all(template.join("data/base")).unwrap();
        fs::create_dir(temp.path().join("to")).unwrap();
        fs::write(template.join("data/PG_VERSION"), "15\n").unwrap();
        fs::write(template.join("data/base/1"), "").unwrap();
        folder::write_private(&template.join("password"), b"secret", None).unwrap();
        fs::write(template.join("files"), "2").unwrap();
        temp
    }

    #[test]
    fn a_complete_template_is_copied() {
        let temp = template();
        let (template, to) = (temp.path().join("t"), temp.path().join("to"));
        assert!(is_complete(&template));
        assert_eq!(copy_template(&template, &to).unwrap(), "secret");
        assert!(to.join("data/base/1").is_file());
    }

    #[test]
    fn a_template_that_lost_a_file_is_not_used() {
        let temp = template();
        let (template, to) = (temp.path().join("t"), temp.path().join("to"));
        fs::remove_file(template.join("data/base/1")).unwrap();
        assert!(!is_complete(&template));
        assert!(copy_template(&template, &to).is_err());
        assert!(!to.join("data").exists());
    }

    #[test]
    fn a_cache_that_others_can_write_to_is_not_used() {
        let temp = tempfile::tempdir().unwrap();
        let cache = open_cache(temp.path(), None).unwrap().unwrap();
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(open_cache(temp.path(), None).unwrap(), None);
        fs::remove_dir(&cache).unwrap();
        std::os::unix::fs::symlink("/", &cache).unwrap();
        assert_eq!(open_cache(temp.path(), None).unwrap(), None);
    }
}
