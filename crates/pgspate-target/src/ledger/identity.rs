//! What makes two runs the same job: the table, the sources, and the options that change the rows.
//!
//! A job's key covers command, table and names of sources. The fingerprint also covers the state of
//! the sources, and the options. This module sends nothing to a server.

use std::time::{SystemTime, UNIX_EPOCH};

use ring::digest::{Context, SHA256};
use ring::hmac;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::job::JobRecord;
use super::member::FleetMember;
use crate::{Error, ErrorKind, Result, UnloggedExtent};
use pgspate_base::Secret;
use pgspate_input::encode::arrow::calendar::civil;
use pgspate_input::format::ContentDigests;
use pgspate_input::source::Input;

/// How many bytes at each end of a file are compared, to distinguish files of the same size and
/// modification time.
const SAMPLE_BYTES: usize = 64 << 10;

/// How many sources are described one by one. The fingerprint covers all of them.
const SOURCES_KEPT: usize = 1000;

/// The command, table, sources and options that identify a job.
#[derive(Debug, Clone)]
pub struct JobIdentity {
    /// The command, with the options that make it a different command: `load`, `load --replace`.
    pub command: &'static str,
    /// The table, quoted for SQL.
    pub table: String,
    /// The table's oid.
    pub table_oid: u32,
    /// Whether rows written to the table are stored in it. False for views, and for tables whose
    /// triggers store rows elsewhere.
    pub keeps_rows: bool,
    /// The inputs, in order.
    pub sources: Vec<SourceFingerprint>,
    /// Options that change the rows or the chunks, by name.
    pub options: Map<String, Value>,
    /// Whether the rows are in a shadow table until the job is done.
    pub in_shadow: bool,
    /// How much of the written rows a server crash removes.
    pub unlogged: UnloggedExtent,
    /// The member of a fleet that loads the sources. Each generation loads them again.
    pub fleet: Option<FleetMember>,
}

/// The state of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFingerprint {
    /// The name: an absolute path, or a URL without its possibly secret parts.
    pub name: String,
    /// The full URL, hashed with the ledger's key, if the name omits a part of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// The full URL before it is hashed.
    #[serde(skip)]
    pub(super) hidden: Option<Secret>,
    /// The size, with the ETag or the modification time.
    pub version: String,
    /// SHA-256 of the first and last 64 KiB as stored, in hexadecimal. Empty if the store names
    /// versions itself.
    pub sample: String,
    /// For a local file: its inode, and when the inode last changed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// Digests of the first lines.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub head: String,
    /// The digest of everything that was read, once it is loaded.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
}

/// How the current sources compare with those of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceMatch {
    /// All sources are proven to be the same, and so are the options.
    Same,
    /// Only reading the sources can decide.
    Unsure,
    /// A source or an option differs.
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
        let name = match input.local_path().map(std::path::absolute) {
            Some(Ok(path)) => path.to_string_lossy().into_owned(),
            _ => input.name().to_owned(),
        };
        let (sample, head) = match input.is_versioned() {
            true => (String::new(), String::new()),
            false => {
                let head = input.peek(SAMPLE_BYTES)?;
                (sample(input, &head)?, first_line_digests(&head))
            }
        };
        let file = input.file_version().unwrap_or_default();
        let hidden = input.identifying_url();
        Ok(Some(SourceFingerprint {
            name,
            hidden,
            version,
            sample,
            file,
            head,
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

/// Returns the digest of an input's first and last bytes. `head` are the first bytes.
fn sample(input: &Input, head: &[u8]) -> Result<String> {
    let mut digest = Context::new(&SHA256);
    match input.ranges() {
        Ok(ranges) => {
            let len = ranges.len();
            let sample_bytes = usize::try_from(len).unwrap_or(usize::MAX).min(SAMPLE_BYTES);
            digest.update(&ranges.read(0, sample_bytes)?);
            digest.update(&ranges.read(len - sample_bytes as u64, sample_bytes)?);
        }
        // Without range requests, the web server does not send the last bytes alone.
        Err(_) => digest.update(head),
    }
    Ok(hex(digest.finish().as_ref()))
}

impl JobIdentity {
    /// Returns the key, which does not depend on the state of the sources.
    pub fn key(&self) -> String {
        let mut digest = Context::new(&SHA256);
        for part in [self.command, &self.table] {
            add_part(&mut digest, part);
        }
        if let Some(FleetMember { fleet, generation, member, .. }) = &self.fleet {
            for part in ["fleet", fleet, generation, &member.to_string()] {
                add_part(&mut digest, part);
            }
        }
        for source in &self.sources {
            add_part(&mut digest, &source.name);
            if !source.url.is_empty() {
                add_part(&mut digest, &source.url);
            }
        }
        hex(digest.finish().as_ref())
    }

    /// Returns whether the key can be computed. If a source's name omits a part of its URL, the URL
    /// must be hashed first.
    pub fn has_complete_key(&self) -> bool {
        self.sources.iter().all(|source| source.hidden.is_none() || !source.url.is_empty())
    }

    /// Hashes hidden URLs with the ledger's own key. So a role that reads the job, but not the key,
    /// cannot guess secrets.
    pub fn hash_hidden_urls(&mut self, secret: &Secret) {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes());
        for source in &mut self.sources {
            if let Some(hidden) = &source.hidden {
                source.url = hex(hmac::sign(&key, hidden.expose().as_bytes()).as_ref());
            }
        }
    }

    /// Returns the key of the advisory lock that a run holds.
    pub fn lock_key(&self) -> i64 {
        lock_key(&self.key())
    }

    /// Returns whether the job replaces the old rows.
    pub fn is_replace(&self) -> bool {
        self.command == "load --replace"
    }

    /// Returns a digest of the key and of the state of sources and options.
    pub fn fingerprint(&self) -> String {
        let mut digest = Context::new(&SHA256);
        add_part(&mut digest, &self.key());
        for source in &self.sources {
            add_part(&mut digest, &source.version);
            add_part(&mut digest, &source.sample);
        }
        for (name, value) in &self.options {
            add_part(&mut digest, name);
            add_part(&mut digest, &value.to_string());
        }
        hex(digest.finish().as_ref())
    }

    /// Returns the first thousand sources as JSON.
    pub(super) fn sources_json(&self) -> String {
        let kept = &self.sources[..self.sources.len().min(SOURCES_KEPT)];
        serde_json::to_string(kept).expect("strings are JSON")
    }

    /// Returns the options as JSON.
    pub(super) fn options_json(&self) -> String {
        Value::Object(self.options.clone()).to_string()
    }

    /// Describes what has changed since a job was recorded. `sources` and `options` are the job's
    /// recorded JSON.
    pub(super) fn changes_since(&self, sources: &str, options: &str) -> Vec<String> {
        let before: Vec<SourceFingerprint> = serde_json::from_str(sources).unwrap_or_default();
        let mut changes = Vec::new();
        for (was, is) in before.iter().zip(&self.sources) {
            if (&was.version, &was.sample) != (&is.version, &is.sample) {
                let (name, was, is) = (&is.name, was.describe(), is.describe());
                changes.push(format!("{name} was {was} and is {is}"));
            }
        }
        let before: Map<String, Value> = serde_json::from_str(options).unwrap_or_default();
        let names =
            before.keys().chain(self.options.keys().filter(|name| !before.contains_key(*name)));
        for name in names {
            let (was, is) = (before.get(name), self.options.get(name));
            if was != is {
                let describe = |value: Option<&Value>| {
                    value.map_or("not set".to_owned(), |value| match value {
                        Value::String(text) => format!("\"{text}\""),
                        other => other.to_string(),
                    })
                };
                changes.push(format!("{name} was {} and is {}", describe(was), describe(is)));
            }
        }
        changes
    }
}

impl SourceFingerprint {
    /// Returns whether both sources certainly have the same content: the store's versions are
    /// equal, or all metadata of the file system are.
    fn is_certainly(&self, other: &SourceFingerprint) -> bool {
        let can_be_certain = self.sample.is_empty() || !self.file.is_empty();
        can_be_certain
            && self.version == other.version
            && self.sample == other.sample
            && self.file == other.file
    }

    /// Returns whether the contents of both sources certainly differ: the store's versions differ.
    fn is_certainly_not(&self, other: &SourceFingerprint) -> bool {
        let is_versioned = |source: &SourceFingerprint| source.sample.is_empty();
        is_versioned(self) && is_versioned(other) && self.version != other.version
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

/// Returns the number of the advisory lock for a key in hexadecimal: the key's first 64 bits.
pub(super) fn lock_key(key: &str) -> i64 {
    let first = key.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    first.unwrap_or_default().cast_signed()
}

/// Returns the SHA-256 of texts in order, in hexadecimal.
pub fn digest_texts<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut digest = Context::new(&SHA256);
    parts.into_iter().for_each(|part| add_part(&mut digest, part));
    hex(digest.finish().as_ref())
}

/// Adds a text with its length first, so that different lists of texts never give the same digest.
fn add_part(digest: &mut Context, part: &str) {
    digest.update(&(part.len() as u64).to_le_bytes());
    digest.update(part.as_bytes());
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns digests of a source's first 1, 2, 3 ... 8, 12, 18 ... lines, and of all lines in its
/// first bytes, each as `lines:digest`. Comparing the digests of two sources shows how many first
/// lines the sources share.
fn first_line_digests(bytes: &[u8]) -> String {
    let mut digest = Context::new(&SHA256);
    let mut prefixes = Vec::new();
    let (mut lines, mut next) = (0_u64, 1_u64);
    let prefix = |lines: u64, digest: &Context| {
        let digits = hex(digest.clone().finish().as_ref());
        format!("{lines}:{}", &digits[..8])
    };
    for line in bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
        digest.update(line);
        lines += 1;
        if lines == next {
            prefixes.push(prefix(lines, &digest));
            next += if next < 8 { 1 } else { next / 2 };
        }
    }
    prefixes.push(prefix(lines, &digest));
    prefixes.join(" ")
}

/// Returns whether two sources share most of their first rows, judged by their
/// [`first_line_digests`]. Each source has `header_lines` lines before the rows.
fn have_same_first_rows(one: &str, other: &str, header_lines: u64) -> bool {
    let prefixes = |head: &str| -> Vec<(u64, String)> {
        let parts = head.split(' ').filter_map(|prefix| prefix.split_once(':'));
        parts.filter_map(|(lines, digest)| Some((lines.parse().ok()?, digest.to_owned()))).collect()
    };
    let (one, other) = (prefixes(one), prefixes(other));
    let rows = |prefix: Option<&(u64, String)>| {
        prefix.map_or(0, |(lines, _)| lines.saturating_sub(header_lines))
    };
    let common = one.iter().filter(|prefix| other.contains(prefix)).max_by_key(|(lines, _)| *lines);
    2 * rows(common) > rows(one.last()).min(rows(other.last()))
}

impl JobIdentity {
    /// Compares this identity with a recorded job. `sources` and `options` are the job's recorded
    /// JSON.
    pub(super) fn compare_with(&self, sources: &str, options: &str) -> SourceMatch {
        let before: Vec<SourceFingerprint> = serde_json::from_str(sources).unwrap_or_default();
        let options: Map<String, Value> = serde_json::from_str(options).unwrap_or_default();
        if options != self.options {
            return SourceMatch::Different;
        }
        let pairs = || before.iter().zip(&self.sources);
        if pairs().all(|(was, is)| was.is_certainly(is)) {
            return SourceMatch::Same;
        }
        match pairs().any(|(was, is)| was.is_certainly_not(is)) {
            true => SourceMatch::Different,
            false => SourceMatch::Unsure,
        }
    }

    /// Returns whether everything that a job has read from its sources equals `contents`. `sources`
    /// is the job's recorded JSON.
    pub(super) fn has_contents(&self, sources: &str, contents: &ContentDigests) -> bool {
        let before: Vec<SourceFingerprint> = serde_json::from_str(sources).unwrap_or_default();
        before.len() == self.sources.len()
            && self.with_contents(contents).sources.iter().zip(&before).all(|(is, was)| {
                was.is_certainly(is) || (!is.content.is_empty() && is.content == was.content)
            })
    }

    /// Returns this identity with the digests of the content that was read.
    pub fn with_contents(&self, contents: &ContentDigests) -> JobIdentity {
        let mut identity = self.clone();
        for (index, source) in identity.sources.iter_mut().enumerate() {
            let digest = contents.of(index);
            source.content = digest.map_or(String::new(), |digest| format!("{digest:032x}"));
        }
        identity
    }

    /// Refuses to load again what a finished job has loaded.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if a source is a source of the finished job, or begins with mostly the
    /// same rows.
    pub fn check_not_loaded(&self, record: &JobRecord) -> Result<()> {
        if record.rows_written == 0 {
            return Ok(());
        }
        let before: Vec<SourceFingerprint> =
            serde_json::from_str(&record.sources).unwrap_or_default();
        let has_header = self.options.get("header") == Some(&Value::Bool(true));
        let is_loaded = |(was, is): &(&SourceFingerprint, &SourceFingerprint)| {
            let is_alike = have_same_first_rows(&was.head, &is.head, u64::from(has_header));
            is_alike || was.is_certainly(is) || (!was.sample.is_empty() && was.sample == is.sample)
        };
        let Some((_, loaded)) = before.iter().zip(&self.sources).find(is_loaded) else {
            return Ok(());
        };
        let JobRecord { job, rows_written: rows, .. } = record;
        let (name, finished) = (&loaded.name, record.finished.as_deref().unwrap_or_default());
        let mut message = format!(
            "{name} contains rows that job {job} has already loaded into {}, at {finished}",
            self.table
        );
        for change in self.changes_since(&record.sources, &record.options).iter().take(5) {
            message.push_str("\n  ");
            message.push_str(change);
        }
        let s = if *rows == 1 { "" } else { "s" };
        Err(Error::new(ErrorKind::Ledger, message).hint(format!(
            "The table has {rows} row{s} of job {job}. Load new rows from a separate file. Or load \
             everything again with `--restart`: then the table has these rows twice. `pgspate \
             sync` and `--replace` replace the old version of the rows."
        )))
    }

    /// Returns the error for continuing an unfinished job whose sources or options have changed.
    pub fn changed_error(&self, record: &JobRecord, rows: u64) -> Error {
        let mut changes = self.changes_since(&record.sources, &record.options);
        if changes.is_empty() {
            changes.push("the sources no longer contain what was read from them".to_owned());
        }
        let rows = i64::try_from(rows).unwrap_or(i64::MAX);
        self.changed_job_error(record.job, rows, &changes, &record.fingerprint)
    }

    /// Returns the error for continuing a job whose sources or options have these changes. `was` is
    /// the recorded fingerprint.
    fn changed_job_error(&self, job: i64, rows: i64, changes: &[String], was: &str) -> Error {
        let is = self.fingerprint();
        let (was, is) = (was.get(..16).unwrap_or(was), is.get(..16).unwrap_or(&is));
        let mut message = format!(
            "could not continue unfinished job {job}: its sources or options have changed \
             (fingerprint {was} then, {is} now)"
        );
        for change in changes.iter().take(5) {
            message.push_str("\n  ");
            message.push_str(change);
        }
        let s = if rows == 1 { "" } else { "s" };
        Error::new(ErrorKind::Ledger, message).hint(format!(
            "Undo these changes to continue the job, or load from the beginning with `--restart`. \
             The {rows} row{s} that job {job} has written stay in the table."
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> JobIdentity {
        let source = |name: &str| SourceFingerprint {
            name: name.to_owned(),
            version: "12:1700000000000000001".to_owned(),
            sample: "ab".repeat(32),
            ..SourceFingerprint::default()
        };
        JobIdentity {
            command: "load",
            table: "public.t".to_owned(),
            table_oid: 1,
            keeps_rows: true,
            sources: vec![source("/a.csv"), source("/b.csv")],
            options: Map::from_iter([("delimiter".to_owned(), Value::from(","))]),
            in_shadow: false,
            unlogged: UnloggedExtent::Nothing,
            fleet: None,
        }
    }

    #[test]
    fn the_key_covers_names_and_the_fingerprint_state() {
        let first = identity();
        let mut changed = identity();
        changed.sources[1].version = "13:1".to_owned();
        assert_eq!(first.key(), changed.key());
        assert_ne!(first.fingerprint(), changed.fingerprint());
        let mut option = identity();
        option.options.insert("delimiter".to_owned(), Value::from(";"));
        assert_eq!(first.key(), option.key());
        assert_ne!(first.fingerprint(), option.fingerprint());
        let mut joined = identity();
        joined.sources = vec![SourceFingerprint {
            name: "/a.csv/b.csv".to_owned(),
            ..joined.sources[0].clone()
        }];
        assert_ne!(first.key(), joined.key());
    }

    #[test]
    fn hidden_url_parts_are_hashed_with_the_ledgers_key() {
        let hash = |url: &str, secret: &str| {
            let mut identity = identity();
            identity.sources[0].hidden = Some(Secret::new(url));
            assert!(!identity.has_complete_key());
            identity.hash_hidden_urls(&Secret::new(secret));
            assert!(identity.has_complete_key());
            let shown = format!("{identity:?}{}", identity.sources_json());
            assert!(!shown.contains("mark") && !shown.contains("geheim"), "{shown}");
            identity.key()
        };
        let jan = hash("https://h/a?key=mark-jan", "geheim");
        assert_eq!(jan, hash("https://h/a?key=mark-jan", "geheim"));
        assert_ne!(jan, hash("https://h/a?key=mark-feb", "geheim"));
        assert_ne!(jan, hash("https://h/a?key=mark-jan", "geheim 2"));
        // A source whose name shows the full URL keeps its former key.
        let plain = identity();
        assert!(plain.has_complete_key());
        assert_ne!(jan, plain.key());
    }

    #[test]
    fn first_lines_show_whether_most_rows_are_the_same() {
        let text = |rows: std::ops::Range<u32>| -> String {
            rows.map(|row| format!("{row}\n")).collect::<String>()
        };
        let alike = |one: &str, other: &str| {
            let (one, other) = (format!("h\n{one}"), format!("h\n{other}"));
            have_same_first_rows(
                &first_line_digests(one.as_bytes()),
                &first_line_digests(other.as_bytes()),
                1,
            )
        };
        for rows in (1..40).chain([100, 1000]) {
            let rows_text = text(0..rows);
            assert!(alike(&rows_text, &rows_text), "{rows}");
            // Grown or cut off by any number of rows.
            for more in [1, 2, 3, 5, 8, 13, 21, 100, 2000] {
                let grown = text(0..rows + more);
                assert!(alike(&rows_text, &grown) && alike(&grown, &rows_text), "{rows} {more}");
            }
            let other = text(5000..5000 + rows);
            assert!(!alike(&rows_text, &other) && !alike(&rows_text, ""), "{rows}");
        }
        // A first row may be the same by coincidence.
        assert!(!alike("1\n2\n3\n", "1\n5\n"));
        assert!(!have_same_first_rows(
            &first_line_digests(b"no line"),
            &first_line_digests(b"no line"),
            0
        ));
        assert!(!have_same_first_rows("", &first_line_digests(b"1\n"), 0));
    }

    #[test]
    fn changes_show_the_old_and_the_new_state() {
        let first = identity();
        let mut changed = identity();
        changed.sources[1].version = "13:1700000000000000002".to_owned();
        changed.options.insert("delimiter".to_owned(), Value::from(";"));
        let changes = changed.changes_since(&first.sources_json(), &first.options_json());
        assert_eq!(
            changes,
            [
                "/b.csv was 12 bytes, changed at 2023-11-14 22:13:20.000000001 UTC, content \
                 abababab and is \
                 13 bytes, changed at 2023-11-14 22:13:20.000000002 UTC, content abababab",
                "delimiter was \",\" and is \";\"",
            ]
        );
    }
}
