//! Dependencies: `audit/audit.py` fails at a finding, but not without a network. All Python
//! packages are pinned by version and hash.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A shell script in the place of cargo-deny or pip-audit, which prints its arguments.
const ECHO_ARGUMENTS: &str = "echo \"$@\"";
const NO_PACKAGES: &str = "echo '{\"dependencies\": []}'";
const FETCH_FAILS: &str = "case $1 in fetch) echo 'Cloning' >&2; echo 'no such host' >&2; exit 1;; \
    *) echo \"$@\";; esac";

/// Runs the audit with these scripts in the place of cargo-deny and pip-audit.
fn audit(deny: &str, pip_audit: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    for (name, script) in [("cargo-deny", deny), ("pip-audit", pip_audit)] {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new("python3");
    command.arg(root().join("audit/audit.py")).arg(folder.path()).output().unwrap()
}

/// Returns exit status, stdout and stderr.
fn status_and_output(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn everything_is_checked_if_the_databases_can_be_reached() {
    let (status, asked, warnings) = status_and_output(&audit(ECHO_ARGUMENTS, NO_PACKAGES));
    assert_eq!((status, warnings.as_str()), (Some(0), ""));
    let expected = "--disable-fetch bans licenses sources advisories\n";
    assert!(asked.ends_with(expected), "{asked}");
}

#[test]
fn an_unreachable_database_is_one_line_of_warning() {
    let (status, asked, warnings) = status_and_output(&audit(FETCH_FAILS, NO_PACKAGES));
    let expected = "warning: crates were not checked for advisories: no such host\n";
    assert_eq!((status, warnings.as_str()), (Some(0), expected));
    assert!(asked.ends_with(" bans licenses sources\n"), "{asked}");

    let no_network = "echo 'Traceback' >&2; echo 'ConnectionError: no such host' >&2; exit 1";
    let (status, _, warnings) = status_and_output(&audit(ECHO_ARGUMENTS, no_network));
    let expected =
        "warning: packages were not checked for advisories: ConnectionError: no such host\n";
    assert_eq!((status, warnings.as_str()), (Some(0), expected));

    let skipped = "echo '{\"dependencies\": [{\"name\": \"a\", \"skip_reason\": \"not found\"}]}'";
    let (status, _, warnings) = status_and_output(&audit(ECHO_ARGUMENTS, skipped));
    let expected = "warning: 1 of 1 packages were not checked for advisories: not found\n";
    assert_eq!((status, warnings.as_str()), (Some(0), expected));
}

#[test]
fn a_finding_fails() {
    let (status, ..) = status_and_output(&audit("[ $1 = fetch ]", NO_PACKAGES));
    assert_eq!(status, Some(1));
    // A finding fails also if the advisories could not be fetched.
    let (status, ..) = status_and_output(&audit("exit 1", NO_PACKAGES));
    assert_eq!(status, Some(1));

    let hole = "echo '{\"dependencies\": [{\"name\": \"a\", \"version\": \"1\", \"vulns\": \
        [{\"id\": \"PYSEC-1\", \"fix_versions\": [\"2\"]}]}]}'; exit 1";
    let (status, _, errors) = status_and_output(&audit(ECHO_ARGUMENTS, hole));
    assert_eq!((status, errors.as_str()), (Some(1), "error: a 1 has PYSEC-1; fixed in: 2\n"));

    let (status, _, errors) =
        status_and_output(&audit(ECHO_ARGUMENTS, "echo 'hash mismatch' >&2; exit 1"));
    assert_eq!((status, errors.as_str()), (Some(1), "error: pip-audit failed: hash mismatch\n"));
}

#[test]
fn packages_are_named_by_version_and_hash() {
    let mut files = 0;
    for folder in ["audit", "python/tests"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if !name.starts_with("requirements") || !name.ends_with(".in") {
                continue;
            }
            files += 1;
            let pinned = fs::read_to_string(path.with_extension("txt")).unwrap();
            let packages = pinned.replace("\\\n", " ");
            for line in packages.lines() {
                assert!(line.contains("==") && line.contains("--hash=sha256:"), "{name}: {line}");
            }
            // Every requested package must be pinned. `-r` includes another of these files.
            let wanted = fs::read_to_string(&path).unwrap();
            for line in wanted.lines().filter(|line| !line.starts_with("-r ")) {
                // The condition of a package, such as its platform, follows a semicolon.
                let line = line.split(';').next().unwrap();
                // A few packages are wanted below a version: `pandas<3`.
                let (package, version) = line.split_once(['=', '<']).unwrap();
                let package = package.split('[').next().unwrap();
                let version = version.strip_prefix('=');
                let start =
                    version.map_or(format!("{package}=="), |it| format!("{package}=={it} "));
                let is_there = packages.lines().any(|line| line.starts_with(&start));
                assert!(is_there, "{name}: {line} is not pinned: run `make requirements`");
            }
        }
    }
    assert_eq!(files, 7);
}
