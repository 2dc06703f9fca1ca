//! Flags of `pgspate doctor`.

use std::path::PathBuf;
use std::time::Duration;

use pgspate_doctor::doctor::Options;
use pgspate_doctor::doctor::storage::Volume;

use super::shared::{CommonArgs, json, server, stall_timeout};
use super::{Flag, Flagged, part, path, text, value};

/// What `pgspate doctor` is asked for.
#[derive(Default)]
pub(crate) struct DoctorArgs {
    pub(crate) common: CommonArgs,
    pub(crate) options: Options,
    pub(crate) stall: Duration,
    pub(crate) picture: Option<PathBuf>,
}

impl Flagged for DoctorArgs {
    fn flags() -> Vec<Vec<Flag<DoctorArgs>>> {
        let common = |flags| part(|it: &mut DoctorArgs| &mut it.common, flags);
        let json = json("Print everything that was looked at as JSON on stdout");
        let picture = value("picture", "FILE.svg", path(), |it: &mut DoctorArgs, file| {
            it.picture = Some(file)
        })
        .with(|arg| arg.requires("table"))
        .under("Output")
        .help("Draw the table's pages into this file: what is live, dead and free");
        vec![
            common(vec![server()]),
            part(|it: &mut DoctorArgs| &mut it.options, looks()),
            part(|it: &mut DoctorArgs| &mut it.stall, stall_timeout()),
            vec![picture],
            common(vec![json.under("Output")]),
        ]
    }
}

fn looks() -> Vec<Flag<Options>> {
    vec![
        value("table", "TABLE", text(), |it: &mut Options, table| it.table = Some(table))
            .with(|arg| arg.short('t'))
            .help("Look at this table only, and at what sessions wait for"),
        value("watch", "TIME", time, |it: &mut Options, time| it.sample = time).default("2s").help(
            "Sample what sessions wait for, and what is counted, for so long; run a load meanwhile",
        ),
        value("storage", "VOLUME", Volume::parse, |it: &mut Options, volume| {
            it.storage = Some(volume)
        })
        .help(
            "The server's volume: gp2:250GiB, gp3:500GiB,12000iops,500MiB/s, io1:400GiB,10000iops, \
             io2",
        ),
        value("large-table", "SIZE", size, |it: &mut Options, bytes| it.large_table_bytes = bytes)
            .default("100GiB")
            .help("From which size on a table should be partitioned"),
    ]
}

fn time(value: &str) -> Result<Duration, String> {
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

pub(super) fn size(value: &str) -> Result<u64, String> {
    let value = value.trim();
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let factor: u64 = match value[end..].trim() {
        "" | "B" => 1,
        "kB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err("expected a size such as 100GiB".to_owned()),
    };
    match value[..end].parse::<f64>() {
        Ok(number) => Ok((number * factor as f64) as u64),
        Err(_) => Err("expected a size such as 100GiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        assert_eq!(time("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(time("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("5min"), Ok(Duration::from_secs(300)));
        assert!(time("x").is_err() && time("-1s").is_err() && time("99h").is_err());
        assert_eq!(size("100GiB"), Ok(100 << 30));
        assert_eq!(size("1.5 kB"), Ok(1500));
        assert!(size("many").is_err());
    }
}
