//! What a request asks for: PostgREST's words of the header `Prefer`, and the query's parameters.

use axum::http::{HeaderMap, Uri};
use percent_encoding::percent_decode_str;
use pgspate::writer::OnConflict;

use crate::fault::RequestFault;

/// What the answer has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ReturnForm {
    /// No body.
    #[default]
    Minimal,
    /// No body, but the header `Location` for a single row.
    HeadersOnly,
    /// The written rows.
    Representation,
}

/// What happens if a row with the same key exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DuplicateRule {
    Ignore,
    Merge,
}

/// The preferences of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Preferences {
    pub(crate) returns: ReturnForm,
    pub(crate) duplicates: Option<DuplicateRule>,
    /// Whether a column that a record lacks gets its default. Otherwise it is NULL.
    pub(crate) missing_is_default: bool,
    /// Whether the records are written independently of each other.
    pub(crate) rows_each: bool,
    /// The preferences that are obeyed, for the header `Preference-Applied`.
    pub(crate) applied: Vec<String>,
}

/// The parameters of a request's query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QueryParameters {
    pub(crate) columns: Option<Vec<String>>,
    pub(crate) on_conflict: Option<Vec<String>>,
    pub(crate) select: Option<Vec<String>>,
}

impl Preferences {
    /// Reads the headers `Prefer`.
    ///
    /// # Errors
    /// With `handling=strict`, an unknown preference. `tx=rollback` always: it would be written.
    pub(crate) fn parse(headers: &HeaderMap) -> Result<Preferences, RequestFault> {
        let mut found = Preferences::default();
        let (mut is_strict, mut unknown) = (false, Vec::new());
        for value in headers.get_all("prefer") {
            let text = value.to_str().unwrap_or("?");
            for word in preference_words(text) {
                match found.apply(&word) {
                    Some(true) => found.applied.push(word),
                    Some(false) => is_strict = word == "handling=strict",
                    None => unknown.push(word),
                }
            }
        }
        if unknown.iter().any(|word| word == "tx=rollback") {
            let message = "tx=rollback is not supported";
            return Err(RequestFault::bad("invalid_prefer", message));
        }
        if is_strict && !unknown.is_empty() {
            let message = "the header Prefer has preferences that are not supported";
            let details = format!("not supported: {}", unknown.join(", "));
            return Err(RequestFault::bad("invalid_prefer", message).details(details));
        }
        if is_strict {
            found.applied.push("handling=strict".to_owned());
        }
        Ok(found)
    }

    /// Obeys one preference. Returns whether the answer mentions it, or `None` if it is unknown.
    fn apply(&mut self, word: &str) -> Option<bool> {
        match word {
            "return=minimal" => self.returns = ReturnForm::Minimal,
            "return=headers-only" => self.returns = ReturnForm::HeadersOnly,
            "return=representation" => self.returns = ReturnForm::Representation,
            "resolution=ignore-duplicates" => self.duplicates = Some(DuplicateRule::Ignore),
            "resolution=merge-duplicates" => self.duplicates = Some(DuplicateRule::Merge),
            "missing=default" => self.missing_is_default = true,
            "missing=null" => self.missing_is_default = false,
            "rows=each" => self.rows_each = true,
            "rows=all" => self.rows_each = false,
            "tx=commit" => {}
            "handling=strict" | "handling=lenient" => return Some(false),
            _ => return None,
        }
        Some(true)
    }
}

impl QueryParameters {
    /// Reads the query of a request's address.
    ///
    /// # Errors
    /// An unknown parameter, or a list that is not valid.
    pub(crate) fn parse(uri: &Uri) -> Result<QueryParameters, RequestFault> {
        let mut found = QueryParameters::default();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            let target = match name.as_str() {
                "columns" => &mut found.columns,
                "on_conflict" => &mut found.on_conflict,
                "select" => &mut found.select,
                _ => {
                    let message = format!("the parameter \"{name}\" is not known");
                    let hint = "The parameters are columns, on_conflict and select.";
                    return Err(RequestFault::bad("invalid_query", message).hint(hint));
                }
            };
            if target.replace(parse_names(&name, &value)?).is_some() {
                let message = format!("the parameter \"{name}\" is given twice");
                return Err(RequestFault::bad("invalid_query", message));
            }
        }
        Ok(found)
    }

    /// Returns what is done about rows whose key exists. `primary_key` is the table's.
    ///
    /// # Errors
    /// If the columns of the key are missing, or are given without a rule.
    pub(crate) fn conflict_rule(
        &self,
        rule: Option<DuplicateRule>,
        primary_key: &[String],
    ) -> Result<OnConflict, RequestFault> {
        let key = self.on_conflict.clone().unwrap_or_else(|| primary_key.to_vec());
        match rule {
            None if self.on_conflict.is_some() => {
                let message = "on_conflict needs a resolution";
                let hint = "Add the header Prefer: resolution=merge-duplicates, or \
                            resolution=ignore-duplicates.";
                Err(RequestFault::bad("invalid_query", message).hint(hint))
            }
            None => Ok(OnConflict::Refuse),
            Some(DuplicateRule::Ignore) => Ok(OnConflict::Ignore(key)),
            Some(DuplicateRule::Merge) if key.is_empty() => {
                let message = "the table has no primary key";
                let hint = "Name the columns of a unique index with on_conflict=.";
                Err(RequestFault::bad("invalid_query", message).hint(hint))
            }
            Some(DuplicateRule::Merge) => Ok(OnConflict::Update(key)),
        }
    }
}

/// Returns the preferences of a header in their plain spelling: `Tx = "rollback"` is `tx=rollback`.
/// Names are in lower case. So are values, as all known values are words.
fn preference_words(header: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let (mut is_quoted, mut letters) = (false, header.chars());
    while let Some(letter) = letters.next() {
        match letter {
            '"' => is_quoted = !is_quoted,
            '\\' if is_quoted => word.extend(letters.next()),
            ',' | ';' if !is_quoted => words.push(std::mem::take(&mut word)),
            letter => word.push(letter.to_ascii_lowercase()),
        }
    }
    words.push(word);
    // Spaces are allowed around a word and around its `=`.
    let plain = |word: &String| match word.split_once('=') {
        Some((name, value)) => format!("{}={}", name.trim(), value.trim()),
        None => word.trim().to_owned(),
    };
    words.iter().map(plain).filter(|word| !word.is_empty()).collect()
}

fn decode(text: &str) -> Result<String, RequestFault> {
    let text = text.replace('+', " ");
    let decoded = percent_decode_str(&text).decode_utf8().map(|text| text.into_owned());
    decoded.map_err(|_| RequestFault::bad("invalid_query", "the query is not valid UTF-8"))
}

/// Parses names with commas between them. A name in double quotes may have commas.
fn parse_names(parameter: &str, value: &str) -> Result<Vec<String>, RequestFault> {
    let invalid = || {
        let message = format!("the value of \"{parameter}\" is not a list of names");
        RequestFault::bad("invalid_query", message)
    };
    let (mut names, mut rest) = (Vec::new(), value.trim());
    loop {
        let name;
        (name, rest) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let (name, rest) = quoted.split_once('"').ok_or_else(invalid)?;
                (name.to_owned(), rest.trim_start())
            }
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].trim().to_owned(), &rest[end..])
            }
        };
        if name.is_empty() {
            return Err(invalid());
        }
        names.push(name);
        match rest.strip_prefix(',') {
            Some(after) => rest = after.trim_start(),
            None if rest.is_empty() => return Ok(names),
            None => return Err(invalid()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_be_quoted() {
        let names = |text| parse_names("columns", text).ok();
        assert_eq!(names("a, b,\"c,d\"").unwrap(), ["a", "b", "c,d"]);
        for invalid in ["", "a,", ",a", "\"a", "\"a\"b", "a,,b"] {
            assert_eq!(names(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn unknown_preferences_count_only_if_handling_is_strict() {
        let parse = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", text.parse().unwrap());
            Preferences::parse(&headers)
        };
        let found = parse("return=representation, count=exact, rows=each").unwrap();
        assert_eq!(found.applied, ["return=representation", "rows=each"]);
        assert_eq!(found.returns, ReturnForm::Representation);
        assert!(found.rows_each);
        assert!(parse("handling=lenient, count=exact").is_ok());
        assert!(parse("handling=strict, count=exact").is_err());
        assert!(parse("handling=strict, missing=default").unwrap().missing_is_default);
        assert!(parse("tx=rollback").is_err());
    }

    #[test]
    fn spellings_of_a_preference_are_equal() {
        for text in ["missing=\"default\"", "Missing = default", " MISSING=\"de\\fault\" ; x"] {
            assert_eq!(preference_words(text)[0], "missing=default", "{text}");
        }
        let several = "a=\"b, c; d\",, E ;f=\"\"";
        assert_eq!(preference_words(several), ["a=b, c; d", "e", "f="]);
    }
}
