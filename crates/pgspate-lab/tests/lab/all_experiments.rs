//! Every experiment that is shipped, from its beginning to the page.

use pgspate_lab::{DataKind, LabRunSetup, experiments, read, report};

use crate::support::{options, run};

#[test]
fn every_experiment_says_what_it_is() {
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

/// Each trial of an experiment once, at a scale at which there is next to nothing to do.
#[track_caller]
fn runs_from_its_beginning_to_the_page(name: &str, data: &str, only: &[(&str, &str)]) {
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
fn bulk() {
    runs_from_its_beginning_to_the_page("bulk", "imdb", &[]);
}

#[test]
fn storage() {
    runs_from_its_beginning_to_the_page("storage", "imdb", &[]);
}

#[test]
fn storage_with_tpch() {
    runs_from_its_beginning_to_the_page("storage", "tpch", &[("volume", "no limit")]);
}
