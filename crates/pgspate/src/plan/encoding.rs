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

/// Code pages that PostgreSQL names `WIN1252` and the like.
const CODE_PAGES: [&str; 11] =
    ["866", "874", "1250", "1251", "1252", "1253", "1254", "1255", "1256", "1257", "1258"];

/// Returns the hint for a name that PostgreSQL does not have as an encoding: PostgreSQL's own name,
/// or how the input is converted.
pub(crate) fn encoding_name_hint(name: &str) -> String {
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let folded = letters.to_ascii_lowercase();
    let page = ["cp", "ibm", ""].iter().find_map(|prefix| {
        let page = folded.strip_prefix(prefix)?;
        CODE_PAGES.contains(&page).then(|| format!("WIN{page}"))
    });
    let known = page.or_else(|| {
        let name = match folded.as_str() {
            "ascii" | "usascii" | "utf8sig" | "utf8bom" | "utf8mb4" | "cp65001" => "UTF8",
            "l1" | "88591" | "cp819" | "ibm819" => "LATIN1",
            "l9" | "885915" => "LATIN9",
            "gb2312" => "EUC_CN",
            "ujis" => "EUC_JP",
            "cp20866" => "KOI8R",
            "cp21866" => "KOI8U",
            _ => return None,
        };
        Some(name.to_owned())
    });
    match known {
        Some(known) => format!("Did you mean `--encoding {known}`?"),
        None => format!(
            "PostgreSQL has no encoding of this name. If `iconv` has it, convert the input first: \
             `iconv -f {name} -t UTF-8 FILE | pgspate load - ...`."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_programs_lead_to_those_of_postgresql() {
        for (name, known) in [
            ("cp1252", "WIN1252"),
            ("CP-1250", "WIN1250"),
            ("cp866", "WIN866"),
            ("1251", "WIN1251"),
            ("utf-8-sig", "UTF8"),
            ("us-ascii", "UTF8"),
            ("8859-1", "LATIN1"),
        ] {
            assert_eq!(encoding_name_hint(name), format!("Did you mean `--encoding {known}`?"));
        }
        for name in ["cp437", "mac_roman", "utf-16"] {
            assert!(encoding_name_hint(name).contains(&format!("`iconv -f {name} -t UTF-8")));
        }
    }
}
