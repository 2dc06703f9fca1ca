//! Numbers formatted for people: three significant digits, thousands separated.

use std::time::Duration;

/// Formats a count with a suffix: `12.4M` for 12,412,345. Counts below 1,000 are written in full.
pub fn short(value: u64) -> String {
    scaled(value as f64, &["", "k", "M", "G", "T"], "")
}

/// Formats a size in powers of ten, as disks and networks are sold: `1.93 GB`.
pub fn bytes(value: u64) -> String {
    scaled(value as f64, &["B", "kB", "MB", "GB", "TB"], " ")
}

/// Formats a rate: `412 MB/s`.
pub fn rate(bytes_per_second: f64) -> String {
    scaled(bytes_per_second, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"], " ")
}

fn scaled(mut value: f64, units: &[&str], space: &str) -> String {
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{space}{}", units[unit])
}

/// Formats a count with thousands separators: `2,399,740`.
pub fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count and its noun: `1 row`, `2 rows`.
pub fn counted(count: u64, noun: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{s}")
}

/// Formats dollars: `$0.20`, and two significant digits below a cent: `$0.0018`.
pub fn dollars(value: f64) -> String {
    match value {
        value if value >= 0.01 || value <= 0.0 => format!("${value:.2}"),
        value => {
            let decimals = (1.0 - value.log10().floor()) as usize;
            format!("${value:.decimals$}")
        }
    }
}

/// Formats seconds: `0.42 s`, `12.3 s`, `03:07`, `1:02:03`.
pub fn seconds(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2} s"),
        value if value < 59.95 => format!("{value:.1} s"),
        value => clock(Duration::from_secs_f64(value)),
    }
}

/// Formats a duration as a clock does: `00:38`, `1:02:03`.
pub fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes:02}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_sizes_and_rates_have_three_significant_digits() {
        assert_eq!(short(0), "0");
        assert_eq!(short(999), "999");
        assert_eq!(short(1_000), "1.00k");
        assert_eq!(short(12_412_345), "12.4M");
        assert_eq!(short(999_999), "1.00M");
        assert_eq!(bytes(1_934_000_000), "1.93 GB");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(rate(412.4e6), "412 MB/s");
    }

    #[test]
    fn amounts_below_a_cent_have_two_significant_digits() {
        assert_eq!(dollars(0.0), "$0.00");
        assert_eq!(dollars(12.345), "$12.35");
        assert_eq!(dollars(0.2), "$0.20");
        assert_eq!(dollars(0.0017824), "$0.0018");
        assert_eq!(dollars(0.0000002), "$0.00000020");
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(thousands(7), "7");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(2_399_740), "2,399,740");
    }

    #[test]
    fn seconds_and_clock_formats() {
        assert_eq!(seconds(0.418), "0.42 s");
        assert_eq!(seconds(12.34), "12.3 s");
        assert_eq!(seconds(187.0), "03:07");
        assert_eq!(clock(Duration::from_secs(3723)), "1:02:03");
    }
}
