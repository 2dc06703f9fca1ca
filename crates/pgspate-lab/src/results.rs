//! The lines of `results.jsonl`, one for each trial, and queries on them.
//!
//! A line is on the disk before the next trial begins. An incomplete last line, left by a killed
//! run, is ignored and overwritten.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pgspate::{Error, ErrorKind, InputPlace, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::dataset::DataFacts;
use crate::experiment::{LabTrial, TrialOutcome, TrialPicture, Unit};
use crate::facts::TrialFacts;
use crate::run_lock::lock_soon;
use crate::spread::Spread;

/// The file's name in the results' folder.
pub const RESULTS: &str = "results.jsonl";
/// The folder of the drawings, beside that file.
pub const PICTURES: &str = "pictures";

/// The conditions that all lines of an experiment share, so that they can be compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunConditions {
    /// 1 is the published size.
    pub scale: f64,
    /// The seed of the data and of the trials' order.
    pub seed: u64,
    /// `own` for the lab's server, else the server's address without user and password.
    pub target: String,
    /// PostgreSQL's version.
    pub postgres: String,
    /// pgspate's version.
    pub pgspate: String,
    /// The commit that pgspate was built from, if the build recorded it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build: String,
    /// A hash of the machine, and of the settings of the user's server.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub place: String,
    /// File system and device of the lab's servers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub storage: String,
    /// The data, if not the default.
    #[serde(default, skip_serializing_if = "DataFacts::is_default")]
    pub data: DataFacts,
}

impl RunConditions {
    /// Returns whether results under these and the other conditions can be compared. A condition
    /// that one of the two lacks, as in old lines, is ignored.
    pub(crate) fn agrees(&self, other: &RunConditions) -> bool {
        let rest = |it: &RunConditions| RunConditions {
            build: String::new(),
            place: String::new(),
            storage: String::new(),
            ..it.clone()
        };
        RunConditions::is_same(&self.build, &other.build)
            && RunConditions::is_same(&self.place, &other.place)
            && RunConditions::is_same(&self.storage, &other.storage)
            && rest(self) == rest(other)
    }

    pub(crate) fn is_same(one: &str, other: &str) -> bool {
        one == other || one.is_empty() || other.is_empty()
    }
}

/// A trial's line in the results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultLine {
    /// The experiment's name.
    pub experiment: String,
    /// The trial's levels.
    pub trial: LabTrial,
    /// The repeat, from 0.
    pub repeat: u32,
    /// When it ended: `2026-11-21T21:40:00Z`.
    pub time: String,
    /// The conditions that all lines share.
    pub conditions: RunConditions,
    /// The reason, if the trial was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Values that must be equal for all contenders, such as checksums.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub agreed: BTreeMap<String, String>,
    /// The trial's result.
    #[serde(flatten)]
    pub outcome: TrialOutcome,
    /// The server's counters during the trial, as in `pgspate::measure`.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub measured: Value,
    /// The names of the trial's drawings; missing in old lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pictures: Option<Vec<String>>,
    /// Where it ran.
    pub facts: TrialFacts,
}

impl ResultLine {
    /// Fills in the storage from the facts: in old lines it was not yet a condition.
    fn completed(mut self) -> ResultLine {
        if self.conditions.target == "own" && self.conditions.storage.is_empty() {
            self.conditions.storage.clone_from(&self.facts.machine.storage);
        }
        self
    }

    /// Returns a number, or a phase by the name `phase: NAME`.
    pub fn value(&self, name: &str) -> Option<f64> {
        if let Some(phase) = name.strip_prefix("phase: ") {
            let found = self.outcome.phases.iter().find(|it| it.name == phase);
            return found.map(|it| it.seconds);
        }
        let found = self.outcome.numbers.iter().find(|it| it.name == name);
        found.map(|it| it.value)
    }
}

/// Reads the lines of a folder; returns none if there is no file.
///
/// # Errors
/// When the file cannot be read, or a line cannot be parsed.
pub fn read(folder: &Path) -> Result<Vec<ResultLine>> {
    let path = folder.join(RESULTS);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|error| file_error("read", &path, error))?,
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let line = |(nth, line): (usize, &str)| {
        serde_json::from_str(line).map(ResultLine::completed).map_err(|error| {
            let place = InputPlace {
                source: Some(path.display().to_string()),
                line: Some(nth as u64 + 1),
                ..InputPlace::default()
            };
            let message = "could not understand a line of results".to_owned();
            Error::new(ErrorKind::Format, message).at(place).because(error).hint(
                "Another version of pgspate may have written it. Give another folder with \
                 `--results`, or remove the line.",
            )
        })
    };
    lines.map(line).collect()
}

pub(crate) fn file_error(what: &str, path: &Path, error: std::io::Error) -> Error {
    let message = format!("could not {what} \"{}\"", path.display());
    Error::new(ErrorKind::Usage, message).because(error)
}

/// The file of results, open for one run alone.
pub(crate) struct ResultsWriter {
    folder: PathBuf,
    path: PathBuf,
    file: File,
}

impl ResultsWriter {
    /// Opens or creates the file, and cuts off an incomplete last line.
    pub(crate) fn open(folder: &Path) -> Result<ResultsWriter> {
        fs::create_dir_all(folder).map_err(|error| file_error("create", folder, error))?;
        let path = folder.join(RESULTS);
        let failed = |error| file_error("write", &path, error);
        let mut file = opened(&path).map_err(failed)?;
        if !lock_soon(&file) || !is_at(&file, &path) {
            let message = format!("another run writes \"{}\"", path.display());
            return Err(Error::new(ErrorKind::Usage, message)
                .hint("Wait for its end, or give another folder with `--results`."));
        }
        // If the file is a symbolic link, write to its target, so that the link stays.
        let path = fs::canonicalize(&path).map_err(failed)?;
        let failed = |error| file_error("write", &path, error);
        // Left by a killed run.
        let _ = fs::remove_file(partial(&path));
        let bytes = fs::read(&path).map_err(failed)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(ResultsWriter { folder: folder.to_owned(), path, file })
    }

    /// Writes a line after its drawings; both are on the disk when this returns.
    pub(crate) fn add(&mut self, line: &ResultLine) -> Result<()> {
        self.draw(line)?;
        let failed = |error| file_error("write", &self.path, error);
        let mut text = serde_json::to_string(line).map_err(|error| {
            Error::new(ErrorKind::Bug, "could not write a result").because(error)
        })?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(failed)?;
        self.file.sync_data().map_err(failed)
    }

    /// Removes the file and the folder if they are empty, as after a run without a result.
    pub(crate) fn remove_if_empty(&self) {
        let is_empty = self.file.metadata().is_ok_and(|found| found.len() == 0);
        if is_empty && fs::remove_file(&self.path).is_ok() {
            // This fails if the folder has other files.
            let _ = fs::remove_dir(&self.folder);
        }
    }

    /// Replaces the line of a skipped trial.
    pub(crate) fn replace(&mut self, line: &ResultLine) -> Result<()> {
        let mut lines = read(&self.folder)?;
        lines.retain(|old| {
            old.skipped.is_none()
                || old.experiment != line.experiment
                || old.trial != line.trial
                || old.repeat != line.repeat
        });
        self.rewrite(&lines)?;
        self.add(line)
    }

    /// Replaces all lines. It writes a new file and renames it, so that neither a full disk nor a
    /// kill loses a line.
    pub(crate) fn rewrite(&mut self, lines: &[ResultLine]) -> Result<()> {
        let partial = partial(&self.path);
        let failed = |error| file_error("write", &partial, error);
        let mut text = String::new();
        for line in lines {
            let line = serde_json::to_string(line);
            let line =
                line.map_err(|e| Error::new(ErrorKind::Bug, "could not write").because(e))?;
            text += &line;
            text.push('\n');
        }
        let written = (|| {
            let mut file = opened(&partial)?;
            // Lock the file before the rename, so that no other run can lock it first.
            file.lock()?;
            file.set_len(0)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&partial, &self.path)?;
            File::open(self.path.parent().unwrap_or(&self.folder))?.sync_all()?;
            Ok(file)
        })();
        self.file = written.map_err(|error| {
            let _ = fs::remove_file(&partial);
            failed(error)
        })?;
        Ok(())
    }

    fn draw(&self, line: &ResultLine) -> Result<()> {
        let folder = self.folder.join(PICTURES);
        for picture in &line.outcome.pictures {
            fs::create_dir_all(&folder).map_err(|error| file_error("create", &folder, error))?;
            let path = folder.join(picture_file(&line.experiment, &line.trial, &picture.name));
            fs::write(&path, &picture.svg).map_err(|error| file_error("write", &path, error))?;
        }
        Ok(())
    }
}

impl Drop for ResultsWriter {
    /// Unlocks the file. Closing it would not do: a process that another thread starts has a copy
    /// of the open file, with its lock, for a moment.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// Returns the path of the new file during a replacement.
fn partial(path: &Path) -> PathBuf {
    path.with_extension("jsonl.part")
}

fn opened(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Returns whether the path still names this file: another run may have replaced it meanwhile.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), fs::metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// Returns a file name of letters, digits and hyphens, whatever the levels are.
fn picture_file(experiment: &str, trial: &LabTrial, name: &str) -> String {
    let all = format!("{experiment} {} {name}", trial.label());
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = all.chars().map(plain).collect();
    let parts: Vec<&str> = name.split('-').filter(|part| !part.is_empty()).collect();
    format!("{}.svg", parts.join("-"))
}

/// The results of an experiment.
pub struct Results {
    lines: Vec<ResultLine>,
    folder: PathBuf,
}

impl Results {
    /// Creates results from lines in the order of the trials; `folder` has the drawings.
    pub fn new(lines: Vec<ResultLine>, folder: &Path) -> Results {
        Results { lines, folder: folder.to_owned() }
    }

    /// Returns results with only the wanted lines.
    pub(crate) fn only(&self, is_wanted: impl Fn(&ResultLine) -> bool) -> Results {
        let lines = self.lines.iter().filter(|line| is_wanted(line)).cloned().collect();
        Results { lines, folder: self.folder.clone() }
    }

    /// Returns all lines, also of skipped trials.
    pub fn lines(&self) -> &[ResultLine] {
        &self.lines
    }

    /// Returns the data that was loaded.
    pub fn data(&self) -> DataFacts {
        self.lines.first().map_or_else(DataFacts::default, |line| line.conditions.data.clone())
    }

    /// Returns whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.measured().next().is_none()
    }

    /// Returns the lines of measured trials.
    pub fn measured(&self) -> impl Iterator<Item = &ResultLine> {
        self.lines.iter().filter(|line| line.skipped.is_none())
    }

    /// Returns the measured trials, each once.
    pub fn trials(&self) -> Vec<&LabTrial> {
        let mut trials: Vec<&LabTrial> = Vec::new();
        for line in self.measured() {
            if !trials.contains(&&line.trial) {
                trials.push(&line.trial);
            }
        }
        trials
    }

    /// Returns the measured levels of a factor.
    pub fn levels(&self, factor: &str) -> Vec<String> {
        let mut levels: Vec<String> = Vec::new();
        for line in self.measured() {
            let level = line.trial.level(factor);
            if !level.is_empty() && !levels.iter().any(|known| known == level) {
                levels.push(level.to_owned());
            }
        }
        levels
    }

    /// Returns the spread of a number (or `phase: NAME`) over the trials with these levels.
    pub fn spread(&self, levels: &[(&str, &str)], number: &str) -> Option<Spread> {
        Spread::of(self.with(levels).filter_map(|line| line.value(number)))
    }

    /// Returns the median of a number.
    pub fn median(&self, levels: &[(&str, &str)], number: &str) -> Option<f64> {
        self.spread(levels, number).map(|spread| spread.median)
    }

    /// Returns the unit of a number.
    pub fn unit(&self, number: &str) -> Unit {
        if number.starts_with("phase: ") {
            return Unit::Seconds;
        }
        let numbers = self.measured().flat_map(|line| &line.outcome.numbers);
        numbers.into_iter().find(|it| it.name == number).map_or(Unit::Plain, |it| it.unit)
    }

    /// Returns a series of the trials with these levels: x and the spread of the values.
    pub fn series(&self, levels: &[(&str, &str)], name: &str) -> Vec<(f64, Spread)> {
        let all = self.with(levels).flat_map(|line| &line.outcome.series);
        let all: Vec<(f64, f64)> =
            all.filter(|it| it.name == name).flat_map(|it| it.points.iter().copied()).collect();
        let mut places: Vec<f64> = all.iter().map(|(at, _)| *at).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let values = |at: f64| all.iter().filter(move |it| it.0 == at).map(|it| it.1);
        places.into_iter().filter_map(|at| Some((at, Spread::of(values(at))?))).collect()
    }

    /// Returns a trial's last drawing of this name. Drawings of deleted lines are ignored.
    pub fn picture(&self, trial: &LabTrial, name: &str) -> Option<TrialPicture> {
        let may_be_its = |line: &ResultLine| {
            let names = line.pictures.as_ref();
            line.trial == *trial && names.is_none_or(|names| names.iter().any(|it| it == name))
        };
        if !self.measured().any(may_be_its) {
            return None;
        }
        let experiment = &self.lines.first()?.experiment;
        let file = picture_file(experiment, trial, name);
        let svg = fs::read_to_string(self.folder.join(PICTURES).join(file)).ok()?;
        Some(TrialPicture { name: name.to_owned(), svg })
    }

    fn with(&self, levels: &[(&str, &str)]) -> impl Iterator<Item = &ResultLine> {
        let has = move |line: &&ResultLine| {
            levels.iter().all(|(factor, level)| line.trial.is(factor, level))
        };
        self.measured().filter(has)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A line with numbers of seconds and rows.
    pub(crate) fn line(trial: &[(&str, &str)], repeat: u32, seconds: f64) -> ResultLine {
        let mut outcome = TrialOutcome::default();
        outcome.number("seconds", seconds, Unit::Seconds);
        ResultLine {
            experiment: "bulk".to_owned(),
            trial: LabTrial::of(trial),
            repeat,
            time: "2026-11-21T21:40:00Z".to_owned(),
            conditions: RunConditions {
                scale: 0.5,
                seed: 1,
                target: "own".to_owned(),
                postgres: "15.1".to_owned(),
                pgspate: "0.1.0".to_owned(),
                build: String::new(),
                place: String::new(),
                storage: String::new(),
                data: DataFacts::default(),
            },
            skipped: None,
            agreed: BTreeMap::new(),
            outcome,
            measured: Value::Null,
            pictures: None,
            facts: TrialFacts::default(),
        }
    }

    #[test]
    fn only_drawings_that_a_line_names_are_returned() {
        let folder = tempfile::tempdir().unwrap();
        let picture =
            |name: &str| TrialPicture { name: name.to_owned(), svg: format!("<{name}/>") };
        let mut made = line(&[("way", "a")], 0, 1.0);
        made.outcome.pictures = vec![picture("heap"), picture("heap-01")];
        let mut writer = ResultsWriter::open(folder.path()).unwrap();
        writer.add(&made).unwrap();
        let shown = |names: Option<&[&str]>| {
            let names = names.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
            let lines = vec![ResultLine { pictures: names, ..made.clone() }];
            let results = Results::new(lines, folder.path());
            ["heap", "heap-01"].map(|name| results.picture(&made.trial, name))
        };
        let [heap, first] = ["heap", "heap-01"].map(picture);
        // A later run with `--fresh` did not draw the nights.
        assert_eq!(shown(Some(&["heap"])), [Some(heap.clone()), None]);
        assert_eq!(shown(Some(&[])), [None, None]);
        assert_eq!(shown(None), [Some(heap), Some(first)]);
    }

    #[test]
    fn a_line_that_was_cut_off_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = ResultsWriter::open(folder.path()).unwrap();
        let first = line(&[("way", "\n\"")], 0, 1.5);
        writer.add(&first).unwrap();
        drop(writer);
        let path = folder.path().join(RESULTS);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"experiment\": \"bu").unwrap();
        drop(file);
        assert_eq!(read(folder.path()).unwrap(), std::slice::from_ref(&first));
        let mut writer = ResultsWriter::open(folder.path()).unwrap();
        let second = line(&[("way", "b")], 1, 2.5);
        writer.add(&second).unwrap();
        assert_eq!(read(folder.path()).unwrap(), [first, second.clone()]);
        writer.rewrite(std::slice::from_ref(&second)).unwrap();
        writer.add(&second).unwrap();
        assert_eq!(read(folder.path()).unwrap().len(), 2);
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(files.len(), 1, "{files:?}");
        // The new file is locked by this run, as the old file was.
        let error = ResultsWriter::open(folder.path()).err().unwrap();
        assert!(error.to_string().starts_with("another run writes"));
    }

    #[test]
    fn a_link_stays_and_files_of_a_killed_run_are_removed() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (link, file) = (folder.path().join(RESULTS), elsewhere.path().join("kept.jsonl"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        fs::write(partial(&file), "{").unwrap();
        let mut writer = ResultsWriter::open(folder.path()).unwrap();
        assert!(!partial(&file).exists());
        let one = line(&[("way", "a")], 0, 1.0);
        writer.add(&one).unwrap();
        writer.rewrite(std::slice::from_ref(&one)).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(!fs::symlink_metadata(&file).unwrap().is_symlink());
        assert_eq!(read(folder.path()).unwrap(), [one]);
    }

    #[test]
    fn a_trial_that_was_left_out_gets_a_line_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = ResultsWriter::open(folder.path()).unwrap();
        let other = line(&[("way", "a")], 1, 1.0);
        let made = line(&[("way", "a")], 0, 2.0);
        let skipped = ResultLine { skipped: Some("no root".to_owned()), ..made.clone() };
        writer.add(&skipped).unwrap();
        writer.add(&other).unwrap();
        writer.replace(&made).unwrap();
        assert_eq!(read(folder.path()).unwrap(), [other, made]);
    }

    #[test]
    fn old_lines_without_a_condition_agree_with_every_value_of_it() {
        let old = line(&[("way", "a")], 0, 1.0);
        let text = serde_json::to_string(&old).unwrap();
        assert!(!text.contains("build") && !text.contains("agreed"), "{text}");
        let with =
            |build: &str| RunConditions { build: build.to_owned(), ..old.conditions.clone() };
        assert!(old.conditions.agrees(&with("abc")) && with("abc").agrees(&with("abc")));
        assert!(!with("abc").agrees(&with("abd")));
        assert!(!with("abc").agrees(&RunConditions { seed: 9, ..with("abc") }));
        let folder = tempfile::tempdir().unwrap();
        let mut known = old.clone();
        known.facts.machine.storage = "tmpfs".to_owned();
        ResultsWriter::open(folder.path()).unwrap().add(&known).unwrap();
        let known = read(folder.path()).unwrap().remove(0).conditions;
        let on = |storage: &str| RunConditions { storage: storage.to_owned(), ..known.clone() };
        assert!(known.agrees(&on("tmpfs")) && known.agrees(&on("")));
        assert!(!known.agrees(&on("ext4 on vda")));
    }

    #[test]
    fn two_runs_do_not_write_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let _writer = ResultsWriter::open(folder.path()).unwrap();
        let error = ResultsWriter::open(folder.path()).err().unwrap();
        assert!(error.to_string().starts_with("another run writes"));
    }

    #[test]
    fn the_file_is_unlocked_although_a_started_process_has_a_copy_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let writer = ResultsWriter::open(folder.path()).unwrap();
        let _copy = writer.file.try_clone().unwrap();
        drop(writer);
        ResultsWriter::open(folder.path()).unwrap();
    }

    #[test]
    fn an_unreadable_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(RESULTS), "\n{}\n").unwrap();
        let error = read(folder.path()).unwrap_err();
        assert_eq!(error.place().unwrap().line, Some(2));
    }

    #[test]
    fn numbers_are_found_by_levels() {
        let mut lines = vec![
            line(&[("way", "a"), ("with", "x")], 0, 1.0),
            line(&[("way", "a"), ("with", "x")], 1, 3.0),
            line(&[("way", "b"), ("with", "x")], 0, 7.0),
        ];
        lines[2].outcome.point("dead", Unit::Count, 1.0, 5.0);
        lines.push(ResultLine { skipped: Some("no".to_owned()), ..line(&[("way", "c")], 0, 9.0) });
        let results = Results::new(lines, Path::new("/nowhere"));
        let a = results.spread(&[("way", "a")], "seconds").unwrap();
        assert_eq!((a.median, a.min, a.max), (2.0, 1.0, 3.0));
        assert_eq!(results.median(&[("way", "c")], "seconds"), None);
        assert_eq!(results.levels("way"), ["a", "b"]);
        assert_eq!(results.trials().len(), 2);
        assert_eq!(results.unit("seconds"), Unit::Seconds);
        assert_eq!(results.series(&[("way", "b")], "dead"), [(1.0, Spread::exactly(5.0))]);
    }

    #[test]
    fn a_picture_has_a_plain_name() {
        let name = picture_file("rewrite", &LabTrial::of(&[("a", "../x y/"), ("b", "é")]), "heap");
        assert_eq!(name, "rewrite-x-y-heap.svg");
    }
}
