//! The state of one source, and how the ledger finds a source again.
//!
//! A source is found by its name, whatever other sources a load has. Its size, its versions and
//! samples of its content then show whether the source is unchanged. This module sends nothing to a
//! server.

use std::time::{SystemTime, UNIX_EPOCH};

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use super::identity::{digest_texts, hex};
use super::member::FleetMember;
use crate::Result;
use pgspate_base::Secret;
use pgspate_input::encode::arrow::calendar::civil;
use pgspate_input::source::Input;

/// How many bytes at each end of a file are compared, to distinguish files of the same size and
/// modification time.
const SAMPLE_BYTES: usize = 64 << 10;

/// The state of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFingerprint {
    /// The name: a path without symbolic links, or a URL without its possibly secret parts.
    pub name: String,
    /// The path as the user spelled it, if it has symbolic links. Earlier versions of the ledger
    /// have this path as the name.
    #[serde(skip)]
    pub(super) spelled: String,
    /// The full URL, hashed with the ledger's key, if the name omits a part of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// The full URL before it is hashed.
    #[serde(skip)]
    pub(super) hidden: Option<Secret>,
    /// The member of a fleet and the generation that load the source, as a digest. Each generation
    /// loads a source again. Empty without a fleet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) member: String,
    /// The size, with the ETag or the modification time.
    pub version: String,
    /// SHA-256 of the first and last 64 KiB as stored, in hexadecimal. Empty if the store names
    /// versions itself.
    pub sample: String,
    /// For a local file: its inode, and when the inode last changed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// The name that the rows have, if a column has the name of each row's file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file_name: String,
    /// The digest of everything that was read, once it is loaded.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
}

/// How a source compares with its recorded state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceMatch {
    /// The content is proven to be the same: the store's versions are equal, or all metadata of the
    /// file system are.
    Same,
    /// Only reading the source can decide.
    Unsure,
    /// The store's versions differ.
    Different,
}

impl SourceFingerprint {
    /// Reads the state of an input. Returns `None` for a stream, which cannot be recognised again.
    /// Blocks.
    ///
    /// # Errors
    /// The error of the input, if it cannot be read.
    pub fn of(input: &Input) -> Result<Option<SourceFingerprint>> {
        let Some(version) = input.fingerprint() else { return Ok(None) };
        let (name, spelled) = names(input);
        let sample = match input.is_versioned() {
            true => String::new(),
            false => sample(input)?,
        };
        let file = input.file_version().unwrap_or_default();
        let hidden = input.identifying_url();
        Ok(Some(SourceFingerprint {
            name,
            spelled,
            hidden,
            version,
            sample,
            file,
            ..SourceFingerprint::default()
        }))
    }
}

impl SourceFingerprint {
    /// Returns a state for a stream. The state equals no other state, so no later run can continue
    /// the job.
    pub fn of_stream(input: &Input) -> SourceFingerprint {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("{} of process {} at {}", input.name(), std::process::id(), {
            format_time(u64::try_from(now.as_nanos()).unwrap_or_default())
        });
        SourceFingerprint { name, version: "-".to_owned(), ..SourceFingerprint::default() }
    }
}

/// Returns the name of an input, and the spelled path if it differs from the name.
fn names(input: &Input) -> (String, String) {
    let Some(path) = input.local_path() else { return (input.name().to_owned(), String::new()) };
    let spelled = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let spelled = spelled.to_string_lossy().into_owned();
    let name = input.full_name();
    match name == spelled {
        true => (name, String::new()),
        false => (name, spelled),
    }
}

/// Returns the digest of an input's first and last bytes.
fn sample(input: &Input) -> Result<String> {
    let mut digest = Context::new(&SHA256);
    match input.ranges() {
        Ok(ranges) => {
            let len = ranges.len();
            let sample_bytes = usize::try_from(len).unwrap_or(usize::MAX).min(SAMPLE_BYTES);
            digest.update(&ranges.read(0, sample_bytes)?);
            digest.update(&ranges.read(len - sample_bytes as u64, sample_bytes)?);
        }
        // Without range requests, the web server does not send the last bytes alone.
        Err(_) => digest.update(&input.peek(SAMPLE_BYTES)?),
    }
    Ok(hex(digest.finish().as_ref()))
}

impl SourceFingerprint {
    /// Returns the key by which the ledger finds the source.
    pub(super) fn key(&self) -> String {
        self.key_of(&self.name)
    }

    /// Returns all keys under which the ledger may have recorded the source.
    pub(super) fn keys(&self) -> impl Iterator<Item = String> {
        let spelled = (!self.spelled.is_empty()).then(|| self.key_of(&self.spelled));
        std::iter::once(self.key()).chain(spelled)
    }

    /// Returns a digest of a name of the source, of the hashed URL if the name omits a part of it,
    /// and of the member of a fleet.
    fn key_of(&self, name: &str) -> String {
        let mut digest = Context::new(&SHA256);
        digest.update(name.as_bytes());
        for (mark, part) in [("\n", &self.url), ("\nmember ", &self.member)] {
            if !part.is_empty() {
                digest.update(mark.as_bytes());
                digest.update(part.as_bytes());
            }
        }
        hex(digest.finish().as_ref())
    }

    /// Makes the source one of a member of a fleet, in the member's generation.
    pub fn set_member(&mut self, member: &FleetMember) {
        let FleetMember { fleet, generation, member, .. } = member;
        self.member = digest_texts(["fleet", fleet, generation, &member.to_string()]);
    }

    /// Compares this state with a recorded state.
    pub(super) fn compare_with(&self, was: &SourceFingerprint) -> SourceMatch {
        let can_be_certain = self.sample.is_empty() || !self.file.is_empty();
        if can_be_certain
            && self.version == was.version
            && self.sample == was.sample
            && self.file == was.file
        {
            return SourceMatch::Same;
        }
        let are_versioned = self.sample.is_empty() && was.sample.is_empty();
        match are_versioned && self.version != was.version {
            true => SourceMatch::Different,
            false => SourceMatch::Unsure,
        }
    }

    /// Returns whether rows of the recorded state `was` have another name of the file.
    pub(super) fn has_other_file_name(&self, was: &SourceFingerprint) -> bool {
        !was.file_name.is_empty() && self.file_name != was.file_name
    }

    /// Describes what has changed since the recorded state `was`.
    pub(super) fn change_since(&self, was: &SourceFingerprint) -> String {
        let (name, was, is) = (&self.name, was.describe(), self.describe());
        match was == is {
            true => format!("{name} has other content than before"),
            false => format!("{name} was {was} and is {is}"),
        }
    }

    /// Describes the state: `304000000 bytes, version 9f2c.., content 1ab4..`.
    fn describe(&self) -> String {
        let (size, version) = self.version.split_once(':').unwrap_or(("-", &self.version));
        let short = |text: &str| text.get(..8).unwrap_or(text).to_owned();
        let content = match self.sample.as_str() {
            "" => String::new(),
            sample => format!(", content {}", short(sample)),
        };
        let version = match version.parse::<u64>() {
            Ok(nanos) if self.sample.len() == 64 => format!("changed at {}", format_time(nanos)),
            _ => format!("version {version}"),
        };
        format!("{size} bytes, {version}{content}")
    }
}

/// Formats nanoseconds since 1970 as `2026-11-21 10:05:09.123456789 UTC`.
fn format_time(nanos: u64) -> String {
    let (seconds, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let (year, month, day) = civil((seconds / 86_400).cast_signed());
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{nanos:09} UTC")
}
