//! Runs of the lab: every trial begins from the same state, and a stopped run can be continued.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use pgspate::ErrorKind;
use pgspate_lab::{LabEvent, RESULTS, experiments, read};

use crate::support::{HOSTILE, ROWS_BEFORE, options, run, run_with_events};

#[test]
fn every_trial_begins_from_the_same_state_and_has_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let (summary, began) = run(&options(folder.path()), None);
    let summary = summary.unwrap();
    assert_eq!((summary.measured, summary.before, summary.skipped.len()), (6, 0, 0));
    assert_eq!(began.len(), 6);
    let lines = read(folder.path()).unwrap();
    assert_eq!(lines.len(), 6);
    for line in &lines {
        assert_eq!(line.value("rows"), Some(ROWS_BEFORE as f64 + 1000.0), "{line:?}");
        assert!(line.value("seconds").unwrap() > 0.0);
        assert_eq!(line.value("seconds"), line.value("phase: insert"));
        assert!(line.value("WAL").unwrap() > 1000.0);
        assert_eq!(line.conditions.target, "own");
        assert_eq!(line.agreed["the number of rows"], "1007");
        assert_eq!(line.facts.settings.get("fsync"), None, "{:?}", line.facts.settings);
        let is_set = line.facts.settings.contains_key("work_mem");
        assert_eq!(is_set, line.trial.is("work_mem", "8MB"));
        assert_eq!(line.measured["tables"]["counted"]["rows_inserted"], 1000, "{line:?}");
        if cfg!(target_os = "linux") {
            assert!(line.value("server CPU").is_some() && line.value("client CPU").is_some());
        }
    }
    let rest: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(rest.len(), 1, "{rest:?}");
    let again = run(&options(folder.path()), None);
    assert_eq!((again.0.unwrap().before, again.1.len()), (6, 0));
}

#[test]
fn a_stopped_run_continues_with_the_next_trial() {
    let folder = tempfile::tempdir().unwrap();
    let (stopped, began) = run(&options(folder.path()), Some(2));
    let error = stopped.unwrap_err();
    assert_eq!((error.kind(), began.len()), (ErrorKind::Cancelled, 3));
    assert_eq!(error.to_string(), "stopped; 2 trials are measured");
    assert!(error.hint_text().unwrap().contains("the same command again"));
    // The file now looks as if the run was killed while it wrote a line.
    let path = folder.path().join(RESULTS);
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str("{\"experiment\":\"to");
    fs::write(&path, text).unwrap();
    let (summary, rest) = run(&options(folder.path()), None);
    let summary = summary.unwrap();
    assert_eq!((summary.before, summary.measured), (2, 4));
    assert_eq!(rest[0], began[2]);
    let mut trials: Vec<_> =
        read(folder.path()).unwrap().into_iter().map(|it| (it.repeat, it.trial.label())).collect();
    trials.sort();
    trials.dedup();
    assert_eq!(trials.len(), 6);
}

#[test]
fn trials_that_are_skipped_again_prepare_no_data() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.ndjson");
    fs::write(&file, "{\"id\": 1}\n").unwrap();
    let mut options = options(&folder.path().join("results"));
    options.experiments = vec![experiments::find("bulk").unwrap()];
    options.data = vec![file.display().to_string()];
    (options.scale, options.repeats) = (None, 2);
    // COPY cannot read NDJSON, so every trial is skipped.
    options.only = vec![("strategy".to_owned(), "one session".to_owned())];
    let mut counts = Vec::new();
    for _ in 0..2 {
        let prepared = AtomicUsize::new(0);
        let (summary, began) = run_with_events(&options, None, &|event, _| {
            let is_it = matches!(event, LabEvent::Preparing { .. });
            prepared.fetch_add(usize::from(is_it), Ordering::Relaxed);
        });
        let summary = summary.unwrap();
        assert_eq!((summary.measured, summary.before), (0, 0));
        let lines = read(&options.folder).unwrap().len();
        counts.push((summary.skipped.len(), began.len(), lines, prepared.into_inner()));
    }
    let (skipped, began, lines, _) = counts[0];
    assert!(skipped >= 2 && skipped == began && skipped == lines, "{counts:?}");
    assert_eq!(counts, [(skipped, began, lines, 1), (skipped, began, lines, 0)]);
}

#[test]
fn results_of_other_conditions_are_refused_and_fresh_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.repeats = 1;
    run(&options, None).0.unwrap();
    options.scale = Some(0.25);
    let error = run(&options, None).0.unwrap_err();
    assert!(error.to_string().ends_with("of another scale: 0.5, not 0.25"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Usage);
    options.fresh = true;
    assert_eq!(run(&options, None).0.unwrap().measured, 3);
    let lines = read(folder.path()).unwrap();
    assert!(lines.len() == 3 && lines.iter().all(|line| line.conditions.scale == 0.25));
    assert!(lines.iter().any(|line| line.trial.is("way", HOSTILE)));
    options.repeats = 0;
    assert_eq!(run(&options, None).0.unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn an_impossible_run_drops_and_measures_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.repeats = 1;
    run(&options, None).0.unwrap();
    let before = read(folder.path()).unwrap();
    // The second experiment has no factor `way`. The lab must notice this before the first
    // experiment runs.
    options.experiments.push(experiments::find("records").unwrap());
    options.only = vec![("way".to_owned(), "one by one".to_owned())];
    (options.fresh, options.repeats) = (true, 2);
    let (ended, began) = run(&options, None);
    let error = ended.unwrap_err();
    assert_eq!(error.to_string(), "records has no factor \"way\"");
    assert_eq!(began, [""; 0]);
    assert_eq!(read(folder.path()).unwrap(), before);
}

#[test]
fn skipped_trials_are_run_later_and_compared_with_earlier_lines() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.repeats = 1;
    run(&options, None).0.unwrap();
    // The file now looks as if a run without enough rights skipped the first trial.
    let path = folder.path().join(RESULTS);
    let text = fs::read_to_string(&path).unwrap();
    let as_if = text.replacen("\"facts\":", "\"skipped\":\"no right\",\"facts\":", 1);
    fs::write(&path, as_if).unwrap();
    let summary = run(&options, None).0.unwrap();
    assert_eq!((summary.before, summary.measured), (2, 1));
    let lines = read(folder.path()).unwrap();
    assert!(lines.len() == 3 && lines.iter().all(|line| line.skipped.is_none()));
    // Later trials must leave the same rows as earlier trials.
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"1007\"", "\"1008\"")).unwrap();
    options.repeats = 2;
    let error = run(&options, None).0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Bug, "{error}");
    assert!(error.hint_text().unwrap().contains("--fresh"));
    // Results of another machine are refused.
    fs::write(&path, text.replace("\"place\":\"", "\"place\":\"other")).unwrap();
    let error = run(&options, None).0.unwrap_err();
    assert!(error.to_string().contains("of another machine"), "{error}");
    // Results of another kind of storage are refused. Older lines have the storage only among their
    // facts.
    let storage = &lines[0].conditions.storage;
    assert_eq!(*storage, lines[0].facts.machine.storage);
    let here = format!("\"storage\":\"{storage}\"");
    let older = text.replace(&format!(",{here}}},\"agreed\""), "},\"agreed\"");
    let is_known = !storage.is_empty();
    assert_eq!(older != text, is_known);
    for text in [&text, &older].into_iter().filter(|_| is_known) {
        fs::write(&path, text.replace(&here, "\"storage\":\"none such\"")).unwrap();
        let error = run(&options, None).0.unwrap_err().to_string();
        assert!(error.contains("of another file system or disk: none such"), "{error}");
    }
}
