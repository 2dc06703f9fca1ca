//! Answers of results that have gaps, for the tests of every experiment.
//!
//! A run may be of some trials only, and some may be left out: what is said has to be a sentence,
//! and true, all the same.

use std::path::Path;

use crate::{ResultLine, Results};

/// Asks for the answer of all lines, of all but each one in turn, and of each one alone.
#[track_caller]
pub(crate) fn check_answers_of_incomplete_results(
    lines: &[ResultLine],
    answer: impl Fn(&Results) -> String,
) {
    let said = |lines: Vec<ResultLine>| {
        let answer = answer(&Results::new(lines, Path::new(".")));
        for odd in ["–", ": ;", ": .", ", ,", ",,", " ;", " ,", "  ", ";.", "NaN", "inf ", "()"] {
            assert!(!answer.contains(odd), "\"{odd}\": {answer}");
        }
        assert!(answer.ends_with('.') && !answer.ends_with(".."), "{answer}");
        assert!(!answer.ends_with(" ."), "{answer}");
    };
    said(lines.to_vec());
    for nth in 0..lines.len() {
        let mut rest = lines.to_vec();
        let one = rest.remove(nth);
        said(rest);
        said(vec![one]);
    }
    said(Vec::new());
}
