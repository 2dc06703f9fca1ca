//! Classes of dates and times.

use super::infer::InferredClass;

/// Returns the class of a date, a time, or both.
pub(super) fn date_or_time(text: &[u8]) -> Option<InferredClass> {
    if let Some(rest) = date_end(text) {
        return match rest {
            [] => Some(InferredClass::Date),
            [b' ' | b'T' | b't', rest @ ..] => match time_end(rest)? {
                [] => Some(InferredClass::Timestamp),
                zone if is_zone(zone) => Some(InferredClass::Timestamptz),
                _ => None,
            },
            _ => None,
        };
    }
    time_end(text)?.is_empty().then_some(InferredClass::Time)
}

/// Returns the text after a valid `YYYY-MM-DD`.
fn date_end(text: &[u8]) -> Option<&[u8]> {
    let (date, rest) = text.split_at_checked(10)?;
    if date[4] != b'-' || date[7] != b'-' {
        return None;
    }
    let number = |part: &[u8]| {
        part.iter().try_fold(0u32, |n, b| b.is_ascii_digit().then(|| n * 10 + u32::from(b - b'0')))
    };
    let (year, month, day) = (number(&date[..4])?, number(&date[5..7])?, number(&date[8..])?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => 0,
    };
    (year > 0 && (1..=days).contains(&day)).then_some(rest)
}

/// Returns the text after a valid `HH:MM`, `HH:MM:SS` or `HH:MM:SS.ffffff`.
fn time_end(text: &[u8]) -> Option<&[u8]> {
    let is_two_digits_below = |part: &[u8], below: u8| match part {
        [a @ b'0'..=b'9', b @ b'0'..=b'9', ..] => (a - b'0') * 10 + (b - b'0') < below,
        _ => false,
    };
    if !is_two_digits_below(text, 24)
        || text.get(2) != Some(&b':')
        || !is_two_digits_below(&text[3..], 60)
    {
        return None;
    }
    let rest = &text[5..];
    let [b':', seconds @ ..] = rest else { return Some(rest) };
    if !is_two_digits_below(seconds, 60) {
        return None;
    }
    match &seconds[2..] {
        [b'.', fraction @ ..] => {
            let len = fraction.iter().take_while(|b| b.is_ascii_digit()).count();
            let is_rounded = fraction[..len].iter().skip(6).any(|digit| *digit != b'0');
            (len > 0 && !is_rounded).then(|| &fraction[len..])
        }
        rest => Some(rest),
    }
}

/// Returns whether a time zone follows the time in the text.
pub(super) fn has_time_zone(text: &[u8]) -> bool {
    let time = match date_end(text) {
        Some([b' ' | b'T' | b't', time @ ..]) => time,
        Some(_) => return false,
        None => text,
    };
    time_end(time).is_some_and(is_zone)
}

/// Returns whether the text is a time zone: `Z`, ` UTC`, `+02`, `+0200` or `+02:00`.
fn is_zone(text: &[u8]) -> bool {
    let text = text.strip_prefix(b" ").unwrap_or(text);
    if matches!(text, b"Z" | b"z" | b"UTC" | b"GMT") {
        return true;
    }
    let [b'+' | b'-', offset @ ..] = text else { return false };
    let parts = match offset {
        [a, b] => [*a, *b, b'0', b'0'],
        [a, b, c, d] | [a, b, b':', c, d] => [*a, *b, *c, *d],
        _ => return false,
    };
    parts.iter().all(u8::is_ascii_digit) && parts[..2] <= b"15"[..] && parts[2] < b'6'
}
