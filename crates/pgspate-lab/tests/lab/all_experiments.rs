//! Every experiment, from the run to the report page.

use pgspate_lab::{DataKind, LabRunSetup, experiments, read, report};

use crate::support::{options, run};

#[test]
fn every_experiment_has_a_name_a_question_and_published_figures() {
    let mut names: Vec<&str> = Vec::new();
    for experiment in experiments::ALL {
        assert!(!names.contains(&experiment.name()), "{}", experiment.name());
        names.push(experiment.name());
        assert!(experiment.question().ends_with('?'), "{}", experiment.question());
        if let Some(published) = experiment.published() {
            assert!(published.source.url.starts_with("https://"));
            assert!(!published.source.title.is_empty() && !published.figures.is_empty());
        }
        let scale = experiment.scale_default();
        let setup = LabRunSetup { scale, is_own: true, data: DataKind::default() };
        for factor in experiment.factors(&setup) {
            assert!(!factor.levels.is_empty(), "{}", factor.name);
        }
    }
}

/// Runs each trial of an experiment once, at a tiny scale, and checks the report page.
#[track_caller]
fn run_and_check_page(name: &str, data: &str, only: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.experiments = vec![experiments::find(name).unwrap()];
    (options.scale, options.repeats) = (Some(0.000_02), 1);
    options.data = vec![data.to_owned()];
    let owned = |(factor, level): &(&str, &str)| ((*factor).to_owned(), (*level).to_owned());
    options.only = only.iter().map(owned).collect();
    let summary = run(&options, None).0.unwrap();
    assert!(summary.measured > 0);
    let digests = report::digests(&experiments::ALL, folder.path()).unwrap();
    let answer = &digests[0].answer;
    assert!(answer.contains(|c: char| c.is_ascii_digit()), "{answer}");
    assert!(answer.ends_with('.') && !answer.contains("NaN") && !answer.contains("inf "));
    let page = report::page(&experiments::ALL, &read(folder.path()).unwrap(), folder.path());
    let page = page.unwrap();
    assert!(page.contains("<svg") && !page.contains("NaN"), "{page}");
}

#[test]
fn bulk_runs_and_has_a_page() {
    run_and_check_page("bulk", "imdb", &[]);
}

#[test]
fn storage_runs_and_has_a_page() {
    run_and_check_page("storage", "imdb", &[]);
}

#[test]
fn storage_with_tpch_runs_and_has_a_page() {
    run_and_check_page("storage", "tpch", &[("volume", "no limit")]);
}
