//! A check of answers from incomplete results, for the tests of every experiment.
//!
//! A run may have only some of the trials. The answer must still be a whole and true sentence.

use std::path::Path;

use crate::{ResultLine, Results};

/// Checks the answer from all lines, from all but one, and from one line alone.
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
