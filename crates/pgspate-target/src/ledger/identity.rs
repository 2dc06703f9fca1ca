//! What makes two runs the same job: the table, the sources, and the options that change the rows.
//!
//! A job's key covers command, table and names of sources. The fingerprint also covers the state of
//! the sources, and the options. This module sends nothing to a server.

use ring::digest::{Context, SHA256};
use ring::hmac;
use serde_json::{Map, Value, json};

use super::job::JobRecord;
use super::late_keys::take_late_keys;
use super::member::FleetMember;
use super::source_file::{SourceFingerprint, SourceMatch};
use crate::{Error, ErrorKind, Result, UnloggedExtent};
use pgspate_base::Secret;
use pgspate_input::format::ContentDigests;

/// The command of a job that replaces the rows of its table.
pub(super) const REPLACE: &str = "load --replace";

/// The command, table, sources and options that identify a job.
#[derive(Debug, Clone)]
pub struct JobIdentity {
    /// The command, with the options that make it a different command: `load`, `load --replace`.
    pub command: &'static str,
    /// The table, quoted for SQL.
    pub table: String,
    /// The table's oid.
    pub table_oid: u32,
    /// Where the table's rows are.
    pub rows_in: RowsIn,
    /// What it means that the table is empty.
    pub on_empty: EmptyTable,
    /// How long to wait for a lock of the table.
    pub lock_timeout_millis: i32,
    /// The inputs, in order.
    pub sources: Vec<SourceFingerprint>,
    /// Options that change the rows or the chunks, by name.
    pub options: Map<String, Value>,
    /// Options that pgspate has guessed from the first input. Other inputs may have other values.
    pub guessed: Vec<&'static str>,
    /// The key of the unfinished job that the load continues; `None` for a job of its own.
    pub continued_key: Option<String>,
    /// Whether the rows are in a shadow table until the job is done.
    pub in_shadow: bool,
    /// How much of the written rows a server crash removes.
    pub unlogged: UnloggedExtent,
    /// The member of a fleet that loads the sources. Each generation loads them again.
    pub fleet: Option<FleetMember>,
}

/// Where the rows of a table are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsIn {
    /// In the table itself. Rows of tables that inherit from it are not its own.
    Table,
    /// In its partitions.
    Partitions,
    /// In shards, in chunks, on another server, or beneath a view.
    OtherTables,
}

/// What it means for earlier jobs that their table is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyTable {
    /// Their rows no longer exist.
    LostRows,
    /// Their rows no longer exist, or a trigger or another server has moved them.
    Unsure,
    /// Nothing: it is a view.
    SaysNothing,
}

/// Options that decide values of rows. Without such an option, rows have other values.
const VALUE_OPTIONS: [&str; 3] = ["set", "file-name-column", "date-format"];

/// Returns the value of an option in words.
fn describe_option(value: &Value) -> String {
    match value {
        Value::Null => "not given".to_owned(),
        Value::String(text) => format!("\"{text}\""),
        // Pairs of a column, or null for all columns, and what it gets.
        Value::Array(pairs) => {
            let describe = |pair: &Value| match (&pair[0], &pair[1]) {
                (Value::String(column), Value::String(text)) => format!("\"{column}={text}\""),
                (Value::String(column), Value::Null) => format!("\"{column}\" NULL"),
                (Value::Null, Value::String(text)) => format!("\"{text}\""),
                _ => pair.to_string(),
            };
            pairs.iter().map(describe).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

impl JobIdentity {
    /// Returns the key, which does not depend on the state of the sources.
    pub fn key(&self) -> String {
        if let Some(key) = &self.continued_key {
            return key.clone();
        }
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
        self.command == REPLACE
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

    /// Returns the sources as JSON: an array of the sources' keys and states.
    pub(super) fn files_json(&self) -> String {
        let files = self.sources.iter().map(|it| json!({"key": it.key(), "source": it}));
        Value::from_iter(files).to_string()
    }

    /// Returns all keys under which the ledger may have recorded the sources.
    pub(super) fn file_keys(&self) -> Vec<String> {
        self.sources.iter().flat_map(SourceFingerprint::keys).collect()
    }

    /// Returns the options as JSON.
    pub(super) fn options_json(&self) -> String {
        Value::Object(self.options.clone()).to_string()
    }

    /// Describes the options that differ from a job's recorded options, given as JSON. Leaves out
    /// guessed options, unless `with_guessed`. A missing option of [`VALUE_OPTIONS`] counts as
    /// null. Any other option is compared only if both the job and this load have it.
    fn option_changes(&self, recorded: &str, with_guessed: bool) -> Vec<String> {
        let before: Map<String, Value> = serde_json::from_str(recorded).unwrap_or_default();
        let none = Value::Null;
        let values = VALUE_OPTIONS.map(|name| {
            let was = before.get(name).unwrap_or(&none);
            (name, was, self.options.get(name).unwrap_or(&none))
        });
        let is_compared = |name: &str| with_guessed || !self.guessed.contains(&name);
        let common = before.iter().filter(|(name, _)| is_compared(name));
        let common = common.filter(|(name, _)| !VALUE_OPTIONS.contains(&name.as_str()));
        let pairs =
            common.filter_map(|(name, was)| Some((name.as_str(), was, self.options.get(name)?)));
        let changed = pairs.chain(values).filter(|(_, was, is)| was != is);
        changed
            .map(|(name, was, is)| {
                format!("{name} was {} and is {}", describe_option(was), describe_option(is))
            })
            .collect()
    }

    /// Checks that the job in `record`, which loaded the source `name`, had the options of this
    /// load. `key` is this load's key. Guessed options are compared only if the job has this key,
    /// because then pgspate guessed from the same first source.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if an option differs.
    pub fn check_options(&self, key: &str, record: &JobRecord, name: &str) -> Result<()> {
        let is_same_list = record.key == key;
        let changes = self.option_changes(&record.options, is_same_list);
        if changes.is_empty() {
            return Ok(());
        }
        let JobRecord { job, rows_written: rows, .. } = record;
        let message = format!(
            "{name} is in {} already: job {job} has loaded it with other options{}",
            self.table,
            lines(&changes)
        );
        let s = if *rows == 1 { "" } else { "s" };
        Err(Error::new(ErrorKind::Ledger, message).hint(format!(
            "The table has {rows} row{s} of job {job}. Use the same options. Or leave such files \
             out with `--changed skip`. Or load everything again with `--restart`: then the table \
             has these rows twice. `pgspate sync` and `--replace` replace the old version of the \
             rows."
        )))
    }
}

/// Returns the first five texts, each on a line of its own.
pub(super) fn lines(texts: &[String]) -> String {
    texts.iter().take(5).map(|text| format!("\n  {text}")).collect()
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

impl JobIdentity {
    /// Compares the sources with their recorded states `before`, and the options with the recorded
    /// `options`. Sources after those in `before` are new, and are not compared.
    pub(super) fn compare_with(&self, before: &[SourceFingerprint], options: &str) -> SourceMatch {
        let mut options: Map<String, Value> = serde_json::from_str(options).unwrap_or_default();
        take_late_keys(&mut options);
        let mut pairs = self.sources.iter().zip(before);
        if options != self.options
            || before.len() > self.sources.len()
            || pairs.any(|(is, was)| is.has_other_file_name(was))
        {
            return SourceMatch::Different;
        }
        let matches = self.sources.iter().zip(before).map(|(is, was)| is.compare_with(was));
        matches.fold(SourceMatch::Same, |worst, found| match (worst, found) {
            (SourceMatch::Different, _) | (_, SourceMatch::Different) => SourceMatch::Different,
            (SourceMatch::Unsure, _) | (_, SourceMatch::Unsure) => SourceMatch::Unsure,
            (SourceMatch::Same, SourceMatch::Same) => SourceMatch::Same,
        })
    }

    /// Returns this identity with the digests of the content that was read.
    pub fn with_contents(&self, contents: &ContentDigests) -> JobIdentity {
        let mut identity = self.clone();
        for (index, source) in identity.sources.iter_mut().enumerate() {
            source.content = content_text(contents.of(index));
        }
        identity
    }

    /// Returns the error for continuing an unfinished job whose sources or options have changed.
    /// `before` are the recorded states of the job's sources.
    pub(super) fn changed_error(
        &self,
        record: &JobRecord,
        before: &[SourceFingerprint],
        rows: u64,
    ) -> Error {
        let pairs = before.iter().zip(&self.sources);
        let changed =
            pairs.filter(|(was, is)| (&was.version, &was.sample) != (&is.version, &is.sample));
        let mut changes: Vec<_> = changed.map(|(was, is)| is.change_since(was)).collect();
        if record.command != self.command {
            let (was, is) = (&record.command, self.command);
            changes.push(format!("the command was `{was}` and is `{is}`"));
        }
        let renamed = before.iter().zip(&self.sources);
        let renamed = renamed.filter(|(was, is)| is.has_other_file_name(was));
        changes.extend(renamed.map(|(was, is)| {
            format!("the name in the rows was \"{}\" and is \"{}\"", was.file_name, is.file_name)
        }));
        changes.append(&mut self.option_changes(&record.options, true));
        if changes.is_empty() {
            changes.push("the sources no longer contain what was read from them".to_owned());
        }
        let (job, is) = (record.job, self.fingerprint());
        let short = |text: &str| text.get(..16).unwrap_or(text).to_owned();
        let message = format!(
            "could not continue unfinished job {job}: its sources or options have changed \
             (fingerprint {} then, {} now){}",
            short(&record.fingerprint),
            short(&is),
            lines(&changes)
        );
        let s = if rows == 1 { "" } else { "s" };
        Error::new(ErrorKind::Ledger, message).hint(format!(
            "Undo these changes to continue the job, or load from the beginning with `--restart`. \
             The {rows} row{s} that job {job} has written stay in the table."
        ))
    }
}

/// Returns the digest of a source's content as the ledger has it. Empty without a digest.
pub(super) fn content_text(digest: Option<u128>) -> String {
    digest.map_or(String::new(), |digest| format!("{digest:032x}"))
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
            rows_in: RowsIn::Table,
            on_empty: EmptyTable::LostRows,
            lock_timeout_millis: 0,
            sources: vec![source("/a.csv"), source("/b.csv")],
            options: Map::from_iter([("delimiter".to_owned(), Value::from(","))]),
            guessed: Vec::new(),
            continued_key: None,
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
            let shown = format!("{identity:?}{}", identity.files_json());
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
    fn changes_show_the_old_and_the_new_state() {
        let first = identity();
        let mut changed = identity();
        changed.sources[1].version = "13:1700000000000000002".to_owned();
        let change = changed.sources[1].change_since(&first.sources[1]);
        assert_eq!(
            change,
            "/b.csv was 12 bytes, changed at 2023-11-14 22:13:20.000000001 UTC, content abababab \
             and is 13 bytes, changed at 2023-11-14 22:13:20.000000002 UTC, content abababab",
        );
    }

    #[test]
    fn guessed_options_count_only_for_the_same_list_of_sources() {
        let first = identity();
        let mut changed = identity();
        changed.options.insert("delimiter".to_owned(), Value::from(";"));
        let was = first.options_json();
        assert_eq!(changed.option_changes(&was, false), ["delimiter was \",\" and is \";\""]);
        changed.guessed = vec!["delimiter"];
        assert!(changed.option_changes(&was, false).is_empty());
        assert_eq!(changed.option_changes(&was, true).len(), 1);
    }
}
