//! Chooses the input's encoding, and refuses encodings that cannot be split into fields byte by
//! byte.

use super::{InputFacts, RowRequest};
use crate::{Error, ErrorKind, Result};

/// Encodings in which the second byte of a character may equal a delimiter or a backslash. Text in
/// these encodings cannot be split into fields byte by byte.
const NOT_ASCII_SAFE: [&str; 7] =
    ["sjis", "shiftjis2004", "big5", "gbk", "uhc", "johab", "gb18030"];

/// Other names of the encodings in [`NOT_ASCII_SAFE`] (`src/common/encnames.c` of PostgreSQL).
const ALIASES: [&str; 8] =
    ["mskanji", "shiftjis", "shiftjis2004", "win932", "windows932", "win936", "win949", "win950"];

/// Returns the encoding that COPY must name; `None` for UTF-8.
///
/// # Errors
/// [`ErrorKind::Usage`] if the input's format is always UTF-8, or if the encoding is unsupported.
pub(super) fn choose_encoding(input: &InputFacts, request: &RowRequest) -> Result<Option<String>> {
    let Some(name) = &request.encoding else { return Ok(None) };
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let folded = letters.to_ascii_lowercase();
    if matches!(folded.as_str(), "utf8" | "unicode") {
        return Ok(None);
    }
    if !input.is_delimited {
        let message = format!("encoding \"{name}\" does not apply to this format, which is UTF-8");
        return Err(Error::new(ErrorKind::Usage, message).hint("Leave `--encoding` out."));
    }
    let codes = folded.strip_prefix("windows").map(|page| format!("win{page}"));
    let folded = codes.as_deref().unwrap_or(&folded);
    if NOT_ASCII_SAFE.contains(&folded) || ALIASES.contains(&folded) {
        let message = format!("encoding \"{name}\" is not supported");
        let hint = format!(
            "In this encoding, bytes within characters look like delimiters. Convert the input \
             first: \
             `iconv -f {name} -t UTF-8 FILE | pgspate load - ...`."
        );
        return Err(Error::new(ErrorKind::Usage, message).hint(hint));
    }
    Ok(Some(name.clone()))
}
