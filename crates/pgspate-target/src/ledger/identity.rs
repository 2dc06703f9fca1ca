//! What makes two runs the same job: the table, the sources, and the options that change meaning.
//!
//! The key says what a job is about, the fingerprint also in which state it was found. Nothing
//! here talks to a server.

use std::time::{SystemTime, UNIX_EPOCH};

use ring::digest::{Context, SHA256};
use ring::hmac;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::job::JobRecord;
use crate::{Error, ErrorKind, Result, Unlogged};
use pgspate_base::Secret;
use pgspate_input::encode::arrow::calendar::civil;
use pgspate_input::format::Contents;
use pgspate_input::source::Input;

/// Bytes at either end of a file that tell it from another of the same size and time.
const SAMPLE_BYTES: usize = 64 << 10;

/// Sources whose descriptions are kept one by one; the fingerprint is of all of them.
const SOURCES_KEPT: usize = 1000;

/// What a job is about.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The command: `load`, and what makes it another one: `load --replace`.
    pub command: &'static str,
    /// The table, as SQL writes it.
    pub table: String,
    /// The table's oid.
    pub table_oid: u32,
    /// Whether rows that are written to the table are found in it: so it is not for a view, nor
    /// where triggers put rows elsewhere.
    pub keeps_rows: bool,
    /// The inputs, in order.
    pub sources: Vec<SourcePrint>,
    /// Options that change what the rows are, or how chunks are cut, by name.
    pub options: Map<String, Value>,
    /// Its rows are in a shadow table until the last one is in.
    pub in_shadow: bool,
    /// How much of what it writes a crash of the server takes.
    pub unlogged: Unlogged,
}

/// One source as it was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcePrint {
    /// Its name: an absolute path or a URL, without what may be secret.
    pub name: String,
    /// The whole URL, hashed with the ledger's key, where the name leaves a part of it out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// The same, before it is hashed.
    #[serde(skip)]
    pub(super) hidden: Option<Secret>,
    /// Its size with its etag or the time of its last change.
    pub version: String,
    /// SHA-256 of its first and last 64 KiB as stored, in hexadecimal; empty where the store
    /// gives versions names of its own.
    pub sample: String,
    /// Of a local file: its inode, and when that was last changed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// How it begins: digests of its first lines.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub head: String,
    /// The digest of all that was read of it, once it is loaded.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
}

/// How what is to be loaded compares with what a job has loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Likeness {
    /// All sources prove that they are the same, and the options are.
    Same,
    /// Only reading the sources tells.
    Unsure,
    /// A source or an option is another.
    Another,
}

impl SourcePrint {
    /// Looks at an input; `None` if it is a stream, which cannot be recognised. Blocks.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(input: &Input) -> Result<Option<SourcePrint>> {
        let Some(version) = input.fingerprint() else { return Ok(None) };
        let name = match input.local_path().map(std::path::absolute) {
            Some(Ok(path)) => path.to_string_lossy().into_owned(),
            _ => input.name().to_owned(),
        };
        let (sample, head) = match input.is_versioned() {
            true => (String::new(), String::new()),
            false => {
                let head = input.peek(SAMPLE_BYTES)?;
                (sample(input, &head)?, beginning(&head))
            }
        };
        let file = input.file_version().unwrap_or_default();
        let hidden = input.hidden();
        Ok(Some(SourcePrint {
            name,
            hidden,
            version,
            sample,
            file,
            head,
            ..SourcePrint::default()
        }))
    }
}

impl SourcePrint {
    /// A stream: like no other, so that no later run can go on with it.
    pub fn of_stream(input: &Input) -> SourcePrint {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("{} of process {} at {}", input.name(), std::process::id(), {
            moment(u64::try_from(now.as_nanos()).unwrap_or_default())
        });
        SourcePrint { name, version: "-".to_owned(), ..SourcePrint::default() }
    }
}

fn sample(input: &Input, head: &[u8]) -> Result<String> {
    let mut digest = Context::new(&SHA256);
    match input.ranges() {
        Ok(ranges) => {
            let len = ranges.len();
            let sample_bytes = usize::try_from(len).unwrap_or(usize::MAX).min(SAMPLE_BYTES);
            digest.update(&ranges.read(0, sample_bytes)?);
            digest.update(&ranges.read(len - sample_bytes as u64, sample_bytes)?);
        }
        // A server that gives no parts.
        Err(_) => digest.update(head),
    }
    Ok(hex(digest.finish().as_ref()))
}

impl Identity {
    /// What the job is about, whatever state its sources are in.
    pub fn key(&self) -> String {
        let mut digest = Context::new(&SHA256);
        for part in [self.command, &self.table] {
            add(&mut digest, part);
        }
        for source in &self.sources {
            add(&mut digest, &source.name);
            if !source.url.is_empty() {
                add(&mut digest, &source.url);
            }
        }
        hex(digest.finish().as_ref())
    }

    /// Whether the key is known: without the ledger's own key it is not, where a source's name
    /// leaves a part of its URL out.
    pub fn is_settled(&self) -> bool {
        self.sources.iter().all(|source| source.hidden.is_none() || !source.url.is_empty())
    }

    /// Takes in what names leave out, hashed with the ledger's own key: nobody who reads the job
    /// without that can try out secrets.
    pub fn settle(&mut self, secret: &Secret) {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes());
        for source in &mut self.sources {
            if let Some(hidden) = &source.hidden {
                source.url = hex(hmac::sign(&key, hidden.expose().as_bytes()).as_ref());
            }
        }
    }

    /// The number for the lock that a run holds.
    pub fn lock_key(&self) -> i64 {
        lock_key(&self.key())
    }

    /// Whether the old rows go.
    pub fn replaces(&self) -> bool {
        self.command == "load --replace"
    }

    /// The key, and the state in which sources and options are.
    pub fn fingerprint(&self) -> String {
        let mut digest = Context::new(&SHA256);
        add(&mut digest, &self.key());
        for source in &self.sources {
            add(&mut digest, &source.version);
            add(&mut digest, &source.sample);
        }
        for (name, value) in &self.options {
            add(&mut digest, name);
            add(&mut digest, &value.to_string());
        }
        hex(digest.finish().as_ref())
    }

    /// The sources as JSON, the first thousand of them.
    pub(super) fn sources_json(&self) -> String {
        let kept = &self.sources[..self.sources.len().min(SOURCES_KEPT)];
        serde_json::to_string(kept).expect("strings are JSON")
    }

    /// The options as JSON.
    pub(super) fn options_json(&self) -> String {
        Value::Object(self.options.clone()).to_string()
    }

    /// What has changed since a job was recorded with these sources and options, in words.
    pub(super) fn changes_since(&self, sources: &str, options: &str) -> Vec<String> {
        let before: Vec<SourcePrint> = serde_json::from_str(sources).unwrap_or_default();
        let mut changes = Vec::new();
        for (was, is) in before.iter().zip(&self.sources) {
            if (&was.version, &was.sample) != (&is.version, &is.sample) {
                let (name, was, is) = (&is.name, was.describe(), is.describe());
                changes.push(format!("{name} was {was} and is {is}"));
            }
        }
        let before: Map<String, Value> = serde_json::from_str(options).unwrap_or_default();
        let names = before.keys().chain(self.options.keys().filter(|it| !before.contains_key(*it)));
        for name in names {
            let (was, is) = (before.get(name), self.options.get(name));
            if was != is {
                let word = |value: Option<&Value>| {
                    value.map_or("not set".to_owned(), |value| match value {
                        Value::String(text) => format!("\"{text}\""),
                        other => other.to_string(),
                    })
                };
                changes.push(format!("{name} was {} and is {}", word(was), word(is)));
            }
        }
        changes
    }
}

impl SourcePrint {
    /// Whether both are the same for certain: by the name that a store gives the version, or by
    /// all that a file system says of a file.
    fn is_surely(&self, other: &SourcePrint) -> bool {
        let is_known = self.sample.is_empty() || !self.file.is_empty();
        let is_equal = |of: fn(&SourcePrint) -> &String| of(self) == of(other);
        is_known
            && is_equal(|it| &it.version)
            && is_equal(|it| &it.sample)
            && is_equal(|it| &it.file)
    }

    /// Whether one cannot be the other: another version by a store's name for it.
    fn is_surely_not(&self, other: &SourcePrint) -> bool {
        let is_versioned = |it: &SourcePrint| it.sample.is_empty();
        is_versioned(self) && is_versioned(other) && self.version != other.version
    }

    /// `304000000 bytes, version 9f2c.., content 1ab4..`.
    fn describe(&self) -> String {
        let (size, version) = self.version.split_once(':').unwrap_or(("-", &self.version));
        let short = |text: &str| text.get(..8).unwrap_or(text).to_owned();
        let content = match self.sample.as_str() {
            "" => String::new(),
            sample => format!(", content {}", short(sample)),
        };
        let version = match version.parse::<u64>() {
            Ok(nanos) if self.sample.len() == 64 => format!("changed at {}", moment(nanos)),
            _ => format!("version {version}"),
        };
        format!("{size} bytes, {version}{content}")
    }
}

/// Nanoseconds since 1970 as `2026-11-21 10:05:09.123456789 UTC`.
fn moment(nanos: u64) -> String {
    let (seconds, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let (year, month, day) = civil((seconds / 86_400).cast_signed());
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{nanos:09} UTC")
}

pub(super) fn lock_key(key: &str) -> i64 {
    let first = key.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    first.unwrap_or_default().cast_signed()
}

/// SHA-256 of texts in order, in hexadecimal.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut digest = Context::new(&SHA256);
    parts.into_iter().for_each(|part| add(&mut digest, part));
    hex(digest.finish().as_ref())
}

/// Length first, so that no two lists of parts are alike.
fn add(digest: &mut Context, part: &str) {
    digest.update(&(part.len() as u64).to_le_bytes());
    digest.update(part.as_bytes());
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How a source begins: the digests of its first 1, 2, 3 ... 8, 12, 18 ... lines and of all lines
/// that its first bytes hold, each as `lines:digest`. Of two versions they tell how many of the
/// lines that both have are the same.
fn beginning(bytes: &[u8]) -> String {
    let mut digest = Context::new(&SHA256);
    let mut rungs = Vec::new();
    let (mut lines, mut next) = (0_u64, 1_u64);
    let rung = |lines: u64, digest: &Context| {
        let digits = hex(digest.clone().finish().as_ref());
        format!("{lines}:{}", &digits[..8])
    };
    for line in bytes.split_inclusive(|byte| *byte == b'\n').filter(|it| it.ends_with(b"\n")) {
        digest.update(line);
        lines += 1;
        if lines == next {
            rungs.push(rung(lines, &digest));
            next += if next < 8 { 1 } else { next / 2 };
        }
    }
    rungs.push(rung(lines, &digest));
    rungs.join(" ")
}

/// Whether most of the rows at the beginning of one source, which has `header` lines before them,
/// are those at the beginning of the other.
fn begins_alike(one: &str, other: &str, header: u64) -> bool {
    let rungs = |head: &str| -> Vec<(u64, String)> {
        let parts = head.split(' ').filter_map(|rung| rung.split_once(':'));
        parts.filter_map(|(lines, it)| Some((lines.parse().ok()?, it.to_owned()))).collect()
    };
    let (one, other) = (rungs(one), rungs(other));
    let rows =
        |rung: Option<&(u64, String)>| rung.map_or(0, |(lines, _)| lines.saturating_sub(header));
    let common = one.iter().filter(|rung| other.contains(rung)).max_by_key(|(lines, _)| *lines);
    2 * rows(common) > rows(one.last()).min(rows(other.last()))
}

impl Identity {
    /// How it compares with what a job was recorded with.
    pub(super) fn likeness(&self, sources: &str, options: &str) -> Likeness {
        let before: Vec<SourcePrint> = serde_json::from_str(sources).unwrap_or_default();
        let options: Map<String, Value> = serde_json::from_str(options).unwrap_or_default();
        if options != self.options {
            return Likeness::Another;
        }
        let pairs = || before.iter().zip(&self.sources);
        if pairs().all(|(was, is)| was.is_surely(is)) {
            return Likeness::Same;
        }
        match pairs().any(|(was, is)| was.is_surely_not(is)) {
            true => Likeness::Another,
            false => Likeness::Unsure,
        }
    }

    /// Whether everything that a job has read of its sources is what `contents` say.
    pub(super) fn has_contents(&self, sources: &str, contents: &Contents) -> bool {
        let before: Vec<SourcePrint> = serde_json::from_str(sources).unwrap_or_default();
        before.len() == self.sources.len()
            && self.with_contents(contents).sources.iter().zip(&before).all(|(is, was)| {
                was.is_surely(is) || (!is.content.is_empty() && is.content == was.content)
            })
    }

    /// The same, with the digests of what was read.
    pub fn with_contents(&self, contents: &Contents) -> Identity {
        let mut identity = self.clone();
        for (nth, source) in identity.sources.iter_mut().enumerate() {
            source.content = contents.of(nth).map_or(String::new(), |it| format!("{it:032x}"));
        }
        identity
    }

    /// Refuses to load once more what a job that is finished has loaded.
    ///
    /// # Errors
    /// Of [`ErrorKind::Ledger`] when a source is the same, or begins with the same rows.
    pub fn check_new(&self, record: &JobRecord) -> Result<()> {
        if record.rows_written == 0 {
            return Ok(());
        }
        let before: Vec<SourcePrint> = serde_json::from_str(&record.sources).unwrap_or_default();
        let has_header = self.options.get("header") == Some(&Value::Bool(true));
        let is_there = |(was, is): &(&SourcePrint, &SourcePrint)| {
            let is_alike = begins_alike(&was.head, &is.head, u64::from(has_header));
            is_alike || was.is_surely(is) || (!was.sample.is_empty() && was.sample == is.sample)
        };
        let Some((_, again)) = before.iter().zip(&self.sources).find(is_there) else {
            return Ok(());
        };
        let JobRecord { job, rows_written: rows, .. } = record;
        let (name, finished) = (&again.name, record.finished.as_deref().unwrap_or_default());
        let mut message = format!(
            "{name} holds rows that job {job} has loaded into {} already, at {finished}",
            self.table
        );
        for change in self.changes_since(&record.sources, &record.options).iter().take(5) {
            message.push_str("\n  ");
            message.push_str(change);
        }
        let s = if *rows == 1 { "" } else { "s" };
        Err(Error::new(ErrorKind::Ledger, message).hint(format!(
            "The table has {rows} row{s} of job {job}. Load new rows from a file of their own, or \
             load all of it again with `--restart`: then these rows are in the table twice. \
             `pgspate sync` and `--replace` put another version in the place of the old one."
        )))
    }

    /// The error for going on with an unfinished job whose sources or options have changed.
    pub fn refuse_changed(&self, record: &JobRecord, rows: u64) -> Error {
        let mut changes = self.changes_since(&record.sources, &record.options);
        if changes.is_empty() {
            changes.push("the sources do not hold what was read of them".to_owned());
        }
        let rows = i64::try_from(rows).unwrap_or(i64::MAX);
        self.refuse(record.job, rows, &changes, &record.fingerprint)
    }

    /// The error for going on with a job whose sources or options have changed.
    fn refuse(&self, job: i64, rows: i64, changes: &[String], was: &str) -> Error {
        let is = self.fingerprint();
        let (was, is) = (was.get(..16).unwrap_or(was), is.get(..16).unwrap_or(&is));
        let mut message = format!(
            "job {job} is unfinished, and what it loads has changed since (fingerprint {was} \
             then, {is} now)"
        );
        for change in changes.iter().take(5) {
            message.push_str("\n  ");
            message.push_str(change);
        }
        let s = if rows == 1 { "" } else { "s" };
        Error::new(ErrorKind::Ledger, message).hint(format!(
            "Put things back as they were to go on with it, or begin anew with `--restart`; the \
             {rows} row{s} that job {job} has written stay in the table."
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        let source = |name: &str| SourcePrint {
            name: name.to_owned(),
            version: "12:1700000000000000001".to_owned(),
            sample: "ab".repeat(32),
            ..SourcePrint::default()
        };
        Identity {
            command: "load",
            table: "public.t".to_owned(),
            table_oid: 1,
            keeps_rows: true,
            sources: vec![source("/a.csv"), source("/b.csv")],
            options: Map::from_iter([("delimiter".to_owned(), Value::from(","))]),
            in_shadow: false,
            unlogged: Unlogged::No,
        }
    }

    #[test]
    fn the_key_is_of_names_and_the_fingerprint_of_state() {
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
        joined.sources =
            vec![SourcePrint { name: "/a.csv/b.csv".to_owned(), ..joined.sources[0].clone() }];
        assert_ne!(first.key(), joined.key());
    }

    #[test]
    fn what_a_name_leaves_out_is_hashed_with_the_ledgers_key() {
        let of = |url: &str, secret: &str| {
            let mut identity = identity();
            identity.sources[0].hidden = Some(Secret::new(url));
            assert!(!identity.is_settled());
            identity.settle(&Secret::new(secret));
            assert!(identity.is_settled());
            let told = format!("{identity:?}{}", identity.sources_json());
            assert!(!told.contains("mark") && !told.contains("geheim"), "{told}");
            identity.key()
        };
        let jan = of("https://h/a?key=mark-jan", "geheim");
        assert_eq!(jan, of("https://h/a?key=mark-jan", "geheim"));
        assert_ne!(jan, of("https://h/a?key=mark-feb", "geheim"));
        assert_ne!(jan, of("https://h/a?key=mark-jan", "geheim 2"));
        // One that shows all of it is known by what it always was.
        let plain = identity();
        assert!(plain.is_settled());
        assert_ne!(jan, plain.key());
    }

    #[test]
    fn beginnings_tell_whether_most_rows_are_the_same() {
        let text = |rows: std::ops::Range<u32>| -> String {
            rows.map(|row| format!("{row}\n")).collect::<String>()
        };
        let alike = |one: &str, other: &str| {
            let (one, other) = (format!("h\n{one}"), format!("h\n{other}"));
            begins_alike(&beginning(one.as_bytes()), &beginning(other.as_bytes()), 1)
        };
        for rows in (1..40).chain([100, 1000]) {
            let whole = text(0..rows);
            assert!(alike(&whole, &whole), "{rows}");
            // Grown or cut off by any number of rows.
            for more in [1, 2, 3, 5, 8, 13, 21, 100, 2000] {
                let grown = text(0..rows + more);
                assert!(alike(&whole, &grown) && alike(&grown, &whole), "{rows} {more}");
            }
            let other = text(5000..5000 + rows);
            assert!(!alike(&whole, &other) && !alike(&whole, ""), "{rows}");
        }
        // A first row may be the same by chance.
        assert!(!alike("1\n2\n3\n", "1\n5\n"));
        assert!(!begins_alike(&beginning(b"no line"), &beginning(b"no line"), 0));
        assert!(!begins_alike("", &beginning(b"1\n"), 0));
    }

    #[test]
    fn changes_name_what_was_and_what_is() {
        let first = identity();
        let mut now = identity();
        now.sources[1].version = "13:1700000000000000002".to_owned();
        now.options.insert("delimiter".to_owned(), Value::from(";"));
        let changes = now.changes_since(&first.sources_json(), &first.options_json());
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
