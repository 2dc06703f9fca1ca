//! Fresh data folders quickly: `initdb` runs once per version and user, then its result is copied.
//!
//! The cache lies in the temporary folder, where anybody may put things and cleaners may take
//! some away. So it is used only when it is ours, and a copy counts only when it has as many
//! files as were recorded. Copies share a lock; making a template excludes them.

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::account::Account;
use crate::clone::clone_data_folder;
use crate::error::{self, Result};
use crate::find::Installation;
use crate::{folder, initdb, sys};

/// Makes `parent/data`, a fresh data folder of `account`, and returns the password of its
/// superuser. `parent` must be ours and new; `base` is the temporary folder with the cache.
pub(crate) fn make_data_folder(
    found: &Installation,
    base: &Path,
    parent: &Path,
    account: Option<&Account>,
) -> Result<String> {
    let Some(cache) = open_cache(base, account)? else {
        let password = folder::random_password()?;
        initdb::make_data_folder(found, parent, &password, false, account)?;
        return Ok(password);
    };
    let lock_path = cache.join("lock");
    let lock = folder::lock_file(&lock_path)?;
    let lock_failed = |e| error::file("lock", &lock_path, e);
    let template = cache.join(key(found, account));
    let mut is_last_try = false;
    loop {
        lock.lock_shared().map_err(lock_failed)?;
        let copied = copy(&template, parent);
        lock.unlock().map_err(lock_failed)?;
        if copied.is_ok() || is_last_try {
            return copied;
        }
        lock.lock().map_err(lock_failed)?;
        let made = if is_whole(&template) { Ok(()) } else { make(found, &template, account) };
        lock.unlock().map_err(lock_failed)?;
        made?;
        is_last_try = true;
    }
}

/// The cache, if the folder of that name is ours and nobody else can write to it.
fn open_cache(base: &Path, account: Option<&Account>) -> Result<Option<PathBuf>> {
    let own = sys::effective_uid();
    let cache = base.join(format!("pgspate-templates-{own}"));
    // Under root, `initdb` runs as another user and must be able to pass.
    let mode = if account.is_some() { 0o711 } else { 0o700 };
    // An error shows itself in the next lines.
    let _ = DirBuilder::new().mode(mode).create(&cache);
    let facts = fs::symlink_metadata(&cache).map_err(|e| error::file("create", &cache, e))?;
    let is_ours = facts.is_dir() && facts.uid() == own && facts.mode() & 0o022 == 0;
    Ok(is_ours.then_some(cache))
}

/// Two builds of one version may differ in what their data folders name, so the place counts too.
fn key(found: &Installation, account: Option<&Account>) -> String {
    let mut hasher = DefaultHasher::new();
    found.bin_dir.hash(&mut hasher);
    let uid = account.map_or_else(sys::effective_uid, |account| account.uid);
    // Folders without the `s` are those of earlier versions, whose servers trusted the socket.
    format!("{}-{uid}-{:016x}s", found.version, hasher.finish())
}

fn make(found: &Installation, template: &Path, account: Option<&Account>) -> Result<()> {
    folder::remove_tree(template)?;
    folder::make_own(template, account)?;
    let password = folder::random_password()?;
    initdb::make_data_folder(found, template, &password, false, account)?;
    folder::write_private(&template.join("password"), password.as_bytes(), None)?;
    let files = count_files(&template.join("data"));
    folder::write_private(&template.join("files"), files.to_string().as_bytes(), None)
}

fn copy(template: &Path, parent: &Path) -> Result<String> {
    let password = folder::read_secret(&template.join("password"))?;
    let to = parent.join("data");
    let files = clone_data_folder(&template.join("data"), &to)?;
    if recorded_files(template) != Some(files) {
        folder::remove_tree(&to)?;
        return Err(error::new(format!("\"{}\" is not whole", template.display())));
    }
    Ok(password)
}

fn is_whole(template: &Path) -> bool {
    template.join("password").is_file()
        && recorded_files(template) == Some(count_files(&template.join("data")))
}

/// Written last, so a template without the number was never finished.
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
    fn a_whole_template_is_copied() {
        let temp = template();
        let (template, to) = (temp.path().join("t"), temp.path().join("to"));
        assert!(is_whole(&template));
        assert_eq!(copy(&template, &to).unwrap(), "secret");
        assert!(to.join("data/base/1").is_file());
    }

    #[test]
    fn a_template_that_lost_a_file_is_not_used() {
        let temp = template();
        let (template, to) = (temp.path().join("t"), temp.path().join("to"));
        fs::remove_file(template.join("data/base/1")).unwrap();
        assert!(!is_whole(&template));
        assert!(copy(&template, &to).is_err());
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
