//! Detects the delimiter: the one that occurs equally often in most lines.
//!
//! Two delimiters may. If neither names nor quotes nor values tell which of them it is, none is
//! guessed: a wrong delimiter would store parts of values in other columns.

use std::collections::HashMap;

use super::dialect::{DelimitedSample, SplitSample, known_names};
use super::{Format, SniffOverrides, SniffedFormat, split_name};
use crate::format::infer::{InferredClass, classify};

/// The usual delimiters.
const DELIMITERS: &[u8] = b",\t;|\x01\x1f";
/// Delimiters that also occur in ordinary text. They are tried only if no usual delimiter fits, and
/// the first line must have them, too: a header of one column may stand above times.
const RARE_DELIMITERS: &[u8] = b":^~";

/// How certain a delimiter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DelimiterEvidence {
    /// The delimiter is given, or occurs equally often in most lines.
    Certain,
    /// No delimiter was detected, so it is the default.
    Default,
    /// The default, although most lines have this other delimiter, in different numbers.
    Doubtful(u8),
    /// One of these two, which fit equally well.
    Tied(u8, u8),
}

/// A delimiter that occurs equally often in most records.
#[derive(Debug, Clone, Copy)]
struct FittingDelimiter {
    delimiter: u8,
    /// The percentage of these records, in steps of five, so that one unusual line does not decide.
    percent_step: u32,
    /// Whether the file's name says that this is the delimiter.
    is_named: bool,
    /// The number of fields in these records.
    fields: usize,
}

/// Chooses the delimiter that occurs equally often in most records.
pub(super) fn choose_delimiter(
    sample: &DelimitedSample<'_>,
    known: Option<&[String]>,
    given: &SniffOverrides,
    name: &str,
    sniffed: &mut SniffedFormat,
) -> DelimiterEvidence {
    let named_delimiter = match split_name(name).1.as_deref() {
        Some("tsv" | "tab") => Some(b'\t'),
        Some("psv" | "tbl") => Some(b'|'),
        _ => None,
    };
    let fixed = match (given.delimiter, sniffed.format) {
        (Some(delimiter), _) => Some((delimiter, "as given")),
        (None, Format::Tsv) => Some((b'\t', "the delimiter of tsv")),
        (None, Format::Text) => Some((b'\t', "the delimiter of COPY text")),
        _ => None,
    };
    if let Some((delimiter, why)) = fixed {
        sniffed.delimiter = delimiter;
        sniffed.evidence.push(format!("delimiter {}: {why}", display_delimiter(delimiter)));
        return DelimiterEvidence::Certain;
    }
    for (candidates, first_line_counts) in [(DELIMITERS, false), (RARE_DELIMITERS, true)] {
        let fitting = candidates.iter().filter_map(|candidate| {
            let share = field_count_share(sample, *candidate, given, first_line_counts);
            share.map(|(percent, fields)| FittingDelimiter {
                delimiter: *candidate,
                percent_step: percent / 5,
                is_named: Some(*candidate) == named_delimiter,
                fields,
            })
        });
        if let Some(evidence) = choose_fitting(fitting.collect(), sample, known, given, sniffed) {
            return evidence;
        }
    }
    // COPY text of one column has no delimiter.
    let default = if sample.may_be_dump { b'\t' } else { b',' };
    sniffed.delimiter = named_delimiter.unwrap_or(default);
    sniffed.evidence.push(format!(
        "delimiter {}: the default, as none was detected",
        display_delimiter(sniffed.delimiter)
    ));
    if field_counts(sample, sniffed.delimiter, given).first().is_some_and(|first| *first > 1) {
        return DelimiterEvidence::Default;
    }
    let mut others = DELIMITERS.iter().filter(|other| **other != sniffed.delimiter);
    let doubtful = others.find(|other| has_in_most_lines(sample, **other, given));
    doubtful.map_or(DelimiterEvidence::Default, |other| DelimiterEvidence::Doubtful(*other))
}

/// Chooses the delimiter that fits best. Among equal percentages, the file's name decides, and then
/// the number of fields. Returns `None` if no delimiter fits.
fn choose_fitting(
    fitting: Vec<FittingDelimiter>,
    sample: &DelimitedSample<'_>,
    known: Option<&[String]>,
    given: &SniffOverrides,
    sniffed: &mut SniffedFormat,
) -> Option<DelimiterEvidence> {
    let rank = |it: &FittingDelimiter| (it.percent_step, it.is_named, it.fields);
    let best = fitting.iter().copied().reduce(|a, b| if rank(&b) > rank(&a) { b } else { a })?;
    let rivals: Vec<SplitByDelimiter> = fitting
        .into_iter()
        .filter(|it| (it.percent_step, it.is_named) == (best.percent_step, best.is_named))
        .map(|it| SplitByDelimiter { fitting: it, split: split(sample, it.delimiter, given) })
        .filter(|it| it.fitting.fields == best.fields || it.may_replace_comma(best.delimiter))
        .collect();
    let (chosen, why) = match rivals.as_slice() {
        [] | [_] => (best, ""),
        rivals => match decide(rivals, sample, known) {
            Some(decided) => decided,
            None => {
                let mut others = rivals.iter().map(|it| it.fitting.delimiter);
                let other = others.find(|it| *it != best.delimiter)?;
                sniffed.delimiter = best.delimiter;
                return Some(DelimiterEvidence::Tied(best.delimiter, other));
            }
        },
    };
    sniffed.delimiter = chosen.delimiter;
    sniffed.evidence.push(format!(
        "delimiter {}: {} fields in each line{why}",
        display_delimiter(chosen.delimiter),
        chosen.fields
    ));
    Some(DelimiterEvidence::Certain)
}

/// The sample, split by a delimiter that fits.
struct SplitByDelimiter {
    fitting: FittingDelimiter,
    split: SplitSample,
}

impl SplitByDelimiter {
    /// Returns whether the commas may be decimal commas: `1,5;2,5`. Lines have more of them than
    /// delimiters, so the comma has more fields.
    fn may_replace_comma(&self, best: u8) -> bool {
        best == b',' && self.count_columns(is_decimal_comma) > 0
    }

    /// Returns the number of columns of whose values more than half are matches.
    fn count_columns(&self, is_match: fn(&[u8]) -> bool) -> usize {
        let is_mostly = |column: &usize| {
            let values = self.split.records.iter().filter_map(|record| record.get(*column));
            let values = values.filter(|field| !field.text.is_empty());
            let (matches, others): (Vec<_>, Vec<_>) = values.partition(|it| is_match(&it.text));
            matches.len() > others.len()
        };
        (0..self.fitting.fields).filter(is_mostly).count()
    }
}

/// Returns the delimiter of `rivals` for which the sample speaks, and why, in words.
fn decide(
    rivals: &[SplitByDelimiter],
    sample: &DelimitedSample<'_>,
    known: Option<&[String]>,
) -> Option<(FittingDelimiter, &'static str)> {
    // Only one of them may have what speaks for a delimiter.
    let only = |has: &dyn Fn(&SplitByDelimiter) -> bool| {
        let mut having = rivals.iter().filter(|it| has(it));
        having.next().filter(|_| having.next().is_none()).map(|it| it.fitting)
    };
    let first = |it: &SplitByDelimiter| it.split.records.first().cloned().unwrap_or_default();
    let is_value = |text: &[u8]| classify(text) != InferredClass::Text || is_decimal_comma(text);
    only(&|it| sample.may_be_dump && it.fitting.delimiter == b'\t')
        .map(|it| (it, ", and COPY's end marker"))
        .or_else(|| {
            let it = only(&|it| known_names(&first(it), known) > 0)?;
            Some((it, ", and names of the table's columns"))
        })
        .or_else(|| {
            Some((only(&|it| first(it).len() == it.fitting.fields)?, ", also in the first"))
        })
        .or_else(|| Some((only(&|it| it.split.quoted > 0)?, ", some of them in quotes")))
        .or_else(|| {
            let it = only(&|it| it.count_columns(is_value) > 0)?;
            Some((it, ", some of them numbers or dates"))
        })
}

/// Returns whether a text is a number with a decimal comma.
fn is_decimal_comma(text: &[u8]) -> bool {
    let text = text.trim_ascii();
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let Some(comma) = digits.iter().position(|byte| *byte == b',') else { return false };
    let (whole, fraction) = (&digits[..comma], &digits[comma + 1..]);
    let are_digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    are_digits(fraction) && whole.split(|byte| *byte == b'.').all(are_digits)
}

/// Returns whether the first record and most other records have the delimiter.
fn has_in_most_lines(sample: &DelimitedSample<'_>, delimiter: u8, given: &SniffOverrides) -> bool {
    let counts = field_counts(sample, delimiter, given);
    let several = counts.iter().filter(|fields| **fields > 1).count();
    counts.first().is_some_and(|first| *first > 1) && several * 2 > counts.len()
}

/// Returns the percentage of records that have the most frequent number of fields, and this number.
/// With `first_line_counts`, returns `None` if the first record has another number of fields.
fn field_count_share(
    sample: &DelimitedSample<'_>,
    delimiter: u8,
    given: &SniffOverrides,
    first_line_counts: bool,
) -> Option<(u32, usize)> {
    let all = field_counts(sample, delimiter, given);
    let mut counts: HashMap<usize, usize> = HashMap::new();
    for fields in &all {
        *counts.entry(*fields).or_default() += 1;
    }
    let (fields, times) = counts.into_iter().max_by_key(|(fields, times)| (*times, *fields))?;
    if first_line_counts && all.first() != Some(&fields) {
        return None;
    }
    let percent = (times * 100 / all.len()) as u32;
    (fields > 1 && percent >= 70).then_some((percent, fields))
}

/// Returns the number of fields of each record that is not empty.
fn field_counts(sample: &DelimitedSample<'_>, delimiter: u8, given: &SniffOverrides) -> Vec<usize> {
    split(sample, delimiter, given).records.iter().map(Vec::len).collect()
}

/// Splits the sample by a delimiter. Leaves out empty records. Quotes count if they are in place.
fn split(sample: &DelimitedSample<'_>, delimiter: u8, given: &SniffOverrides) -> SplitSample {
    let quote = given.quote.unwrap_or(Some(b'"'));
    let escape = given.escape.or(quote).unwrap_or(b'"');
    let mut split = sample.split(delimiter, quote, escape);
    if split.misplaced_quotes > 0 && given.quote.is_none() {
        split = sample.split(delimiter, None, escape);
    }
    split.records.retain(|record| record.len() > 1 || !record[0].text.is_empty());
    split
}

/// Returns a delimiter as messages show it.
pub(super) fn display_delimiter(delimiter: u8) -> String {
    match delimiter {
        b'\t' => "tab".to_string(),
        b if b.is_ascii_graphic() => format!("\"{}\"", char::from(b)),
        b => format!("0x{b:02x}"),
    }
}
