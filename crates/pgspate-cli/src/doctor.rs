//! `pgspate doctor`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pgspate::doctor::picture::Picture;
use pgspate::doctor::storage::Volume;
use pgspate::doctor::{self, Examination, Finding, Options, Verdict};
use pgspate::file::write_whole;
use pgspate::target::connect::Connection;
use pgspate::{Error, Kind, Result};

use crate::Answer;
use crate::args::StallArgs;
use crate::errors::Style;
use crate::load::{print_json, runtime};
use crate::output::{data, say_line};
use crate::target;

/// Arguments of `pgspate doctor`.
#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
    /// The server: a URL or key=value; by default as for load
    #[arg(long, value_name = "DSN")]
    pub(crate) to: Option<String>,

    /// Look at this table only, and at what sessions wait for
    #[arg(long, short, value_name = "TABLE")]
    pub(crate) table: Option<String>,

    /// Sample what sessions wait for, and what is counted, for so long; run a load meanwhile
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = time)]
    pub(crate) watch: Duration,

    /// The server's volume: gp2:250GiB, gp3:500GiB,12000iops,500MiB/s, io1:400GiB,10000iops, io2
    #[arg(long, value_name = "VOLUME", value_parser = Volume::parse)]
    pub(crate) storage: Option<Volume>,

    /// From which size on a table should be partitioned
    #[arg(long, default_value = "100GiB", value_name = "SIZE", value_parser = size)]
    pub(crate) large_table: u64,

    /// When a connection is given up.
    #[command(flatten)]
    pub(crate) stall: StallArgs,

    /// Draw the table's pages into this file: what is live, dead and free
    #[arg(long, value_name = "FILE.svg", requires = "table", help_heading = "Output")]
    pub(crate) picture: Option<PathBuf>,

    /// Print everything that was looked at as JSON on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

pub(crate) fn run(args: DoctorArgs, style: Style) -> Result<Answer> {
    let target = target::resolve(args.to.as_deref(), args.json, style)?;
    let runtime = runtime()?;
    if args.watch > Duration::from_secs(5) && !args.json {
        say_line(style.dim(&format!("watching for {} s", args.watch.as_secs())));
    }
    let dsn = target.dsn.with_stall_timeout(args.stall.limit());
    let connection = runtime.block_on(dsn.connect("pgspate doctor"))?;
    let (found, drawn) = runtime.block_on(examine(&args, &connection))?;
    if let Some(drawn) = drawn {
        say_line(drawn);
    }
    match args.json {
        true => print_json(&found)?,
        false => data(render(&found, Style::of_stdout()))?,
    }
    Ok(if found.has_trouble() { Answer::No } else { Answer::Yes })
}

/// Looks at the server, and draws what is to be drawn; what was found, and what was drawn.
pub(crate) async fn examine(
    args: &DoctorArgs,
    connection: &Connection,
) -> Result<(Examination, Option<String>)> {
    let options = Options {
        table: args.table.clone(),
        sample: args.watch,
        storage: args.storage,
        large_table_bytes: args.large_table,
    };
    let found = doctor::examine(connection, &options).await?;
    let drawn = match (&args.picture, &args.table) {
        (Some(file), Some(table)) => Some(draw(connection, table, file).await?),
        _ => None,
    };
    Ok((found, drawn))
}

/// Draws the table's pages, and says what was drawn.
async fn draw(connection: &Connection, table: &str, file: &Path) -> Result<String> {
    let table = doctor::find(connection, table).await?;
    let picture = Picture::take(&connection.client, &table).await?;
    let name = file.display();
    write_whole(file, picture.svg().as_bytes()).map_err(|error| {
        Error::new(Kind::Usage, format!("could not write \"{name}\"")).because(error)
    })?;
    Ok(format!("{}, drawn in {name}", picture.sentence()))
}

/// The server in a line, then what was found, the worst first.
fn render(found: &Examination, style: Style) -> String {
    // Writing to a String cannot fail.
    let mut text = format!(
        "{} {}, database {}, role {}; looked for {:.0} s\n",
        found.flavour.name(),
        found.server_version,
        found.database,
        found.role,
        found.sampled_seconds
    );
    for line in found.peculiarities {
        let _ = writeln!(text, "{}", wrapped(line, "  "));
    }
    // What was advised just before need not be said again.
    let mut advised = None;
    for finding in &found.findings {
        if finding.verdict != Verdict::Ok || finding.is_told {
            text.push('\n');
            let advice = finding.advice.as_deref().filter(|it| advised != Some((finding.id, *it)));
            describe(finding, advice, style, &mut text);
            advised = finding.advice.as_deref().map(|it| (finding.id, it));
        }
    }
    let is_silent = |finding: &Finding| finding.verdict == Verdict::Ok && !finding.is_told;
    let said = |id: &str| found.findings.iter().any(|it| it.id == id && !is_silent(it));
    let silent = found.findings.iter().filter(|it| is_silent(it) && !said(it.id));
    let mut silent: Vec<&str> = silent.map(|finding| finding.id).collect();
    silent.dedup();
    if !silent.is_empty() {
        let line = format!("nothing found by {}: {}", silent.len(), silent.join(", "));
        let _ = writeln!(text, "\n{}", style.dim(&wrapped(&line, "")));
    }
    text
}

/// A finding: what, how bad, what was seen, what to do, what to run.
fn describe(finding: &Finding, advice: Option<&str>, style: Style, text: &mut String) {
    let verdict = format!("{:<10}", finding.verdict.name());
    let verdict = match finding.verdict {
        Verdict::Warning => style.error(&verdict),
        Verdict::Note => style.warning(&verdict),
        Verdict::CannotSee | Verdict::Ok => style.dim(&verdict),
    };
    let object = finding.object.as_deref().map(|it| format!("  {it}")).unwrap_or_default();
    let _ = writeln!(text, "{verdict} {}{}", style.strong(finding.id), object);
    let _ = writeln!(text, "{}", wrapped(&finding.evidence, INDENT));
    if let Some(advice) = advice {
        let _ = writeln!(text, "{}", style.dim(&wrapped(advice, INDENT)));
    }
    for line in &finding.remedy {
        let _ = writeln!(text, "{INDENT}  {line}");
    }
}

const INDENT: &str = "           ";
const WIDTH: usize = 88;

/// The words in lines, each behind the indent.
pub(crate) fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![indent.to_owned()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a line from the beginning");
        let is_first = line.len() == indent.len();
        if !is_first && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("{indent}{word}"));
        } else {
            line.push_str(if is_first { "" } else { " " });
            line.push_str(word);
        }
    }
    lines.join("\n")
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

pub(crate) fn size(value: &str) -> Result<u64, String> {
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

    #[test]
    fn long_lines_are_wrapped_behind_their_indent() {
        assert_eq!(wrapped("a b", "  "), "  a b");
        let long = wrapped(&"word ".repeat(40), "    ");
        assert!(long.lines().all(|line| line.len() <= WIDTH && line.starts_with("    word")));
        assert_eq!(long.lines().count(), 3);
    }
}
