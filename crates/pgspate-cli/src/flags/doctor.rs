//! Flags of `pgspate doctor`.

use std::path::PathBuf;
use std::time::Duration;

use pgspate_doctor::doctor::DoctorOptions;
use pgspate_doctor::doctor::storage::Volume;

use super::shared::{CommonArgs, json, quiet, server, stall_timeout};
use super::{CommandFlags, Flag, part, path, text, value};

/// The arguments of `pgspate doctor`.
#[derive(Default)]
pub(crate) struct DoctorArgs {
    pub(crate) common: CommonArgs,
    pub(crate) options: DoctorOptions,
    pub(crate) stall: Duration,
    pub(crate) picture: Option<PathBuf>,
}

impl CommandFlags for DoctorArgs {
    fn flags() -> Vec<Vec<Flag<DoctorArgs>>> {
        let common = |flags| part(|it: &mut DoctorArgs| &mut it.common, flags);
        let json = json("Print all findings as JSON on stdout");
        let quiet = quiet("Print errors only, and findings only if there is a problem");
        let picture = value("picture", "FILE.svg", path(), |it: &mut DoctorArgs, file| {
            it.picture = Some(file)
        })
        .with(|arg| arg.requires("table"))
        .under("Output")
        .help("Draw the table's pages into this file: live rows, dead rows and free space");
        vec![
            common(vec![server()]),
            part(|it: &mut DoctorArgs| &mut it.options, checks()),
            part(|it: &mut DoctorArgs| &mut it.stall, stall_timeout()),
            vec![picture],
            common(vec![json.under("Output"), quiet.under("Output")]),
        ]
    }
}

/// Returns the flags that choose what is checked.
fn checks() -> Vec<Flag<DoctorOptions>> {
    vec![
        value("table", "TABLE", text(), |it: &mut DoctorOptions, table| it.table = Some(table))
            .with(|arg| arg.short('t'))
            .help("Check only this table, and what sessions wait for"),
        value("watch", "TIME", parse_time, |it: &mut DoctorOptions, time| it.sample = time)
            .default("2s")
            .help("Sample wait events and counters for this long; start your load before"),
        value("storage", "VOLUME", Volume::parse, |it: &mut DoctorOptions, volume| {
            it.storage = Some(volume)
        })
        .help(
            "Compare the sampled I/O with the limits of this volume: gp2:250GiB, \
             gp3:500GiB,12000iops,500MiB/s, io1:400GiB,10000iops or io2:400GiB,10000iops",
        ),
        value("large-table", "SIZE", parse_size, |it: &mut DoctorOptions, bytes| {
            it.large_table_bytes = bytes
        })
        .default("100GiB")
        .help("Propose to partition tables of this size or more"),
    ]
}

/// Parses a duration such as `60s` or `5min`.
pub(super) fn parse_time(value: &str) -> Result<Duration, String> {
    let value = value.trim();
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let factor = match value[end..].trim() {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "min" | "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("expected a time such as 60s or 5min".to_owned()),
    };
    match value[..end].parse::<f64>() {
        Ok(number) if number * factor <= 86_400.0 => Ok(Duration::from_secs_f64(number * factor)),
        _ => Err("expected a time such as 60s or 5min, a day at most".to_owned()),
    }
}

/// Parses a size such as `100GiB`, `1.5kB` or `16G`. A letter alone means a power of 1024, as for
/// PostgreSQL and the tools of Linux.
pub(super) fn parse_size(value: &str) -> Result<u64, String> {
    let value = value.trim();
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let factor: u64 = match value[end..].trim().to_ascii_lowercase().as_str() {
        "" if end > 0 => {
            return Err(format!("a size has a unit: {value}GiB, {value}MiB or {value}B"));
        }
        "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return Err("expected a size such as 100GiB or 16G".to_owned()),
    };
    match value[..end].parse::<f64>() {
        Ok(number) => Ok((number * factor as f64) as u64),
        Err(_) => Err("expected a size such as 100GiB or 16G".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_parsed() {
        assert_eq!(parse_time("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_time("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_time("5min"), Ok(Duration::from_secs(300)));
        assert!(["x", "-1s", "99h"].iter().all(|wrong| parse_time(wrong).is_err()));
        assert_eq!(parse_size("100GiB"), Ok(100 << 30));
        assert_eq!(parse_size("1.5 kB"), Ok(1500));
        assert_eq!([parse_size("16G"), parse_size("16g")], [Ok(16 << 30), Ok(16 << 30)]);
        let bare = "a size has a unit: 16GiB, 16MiB or 16B";
        assert_eq!(parse_size("16"), Err(bare.to_owned()));
        assert!(parse_size("many").is_err());
    }
}
