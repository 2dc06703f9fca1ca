//! The figures and the summary sentence of the experiment `storage`.

use super::bulk;
use super::measured_io::{self, CounterSource};
use super::strategies::{EACH, ONE, PGSPATE};
use super::{TUNED, UNLIMITED, VOLUMES, compute_load_seconds, limits};
use crate::comparison::Comparison;
use crate::experiment::Unit;
use crate::report::figure::{Bar, BarGroup, Bars, Figure, Plot};
use crate::report::words;
use crate::results::{ResultLine, Results};
use crate::spread::Spread;

const STRATEGIES: [&str; 4] = [ONE, EACH, PGSPATE, TUNED];

pub(super) fn all(results: &Results) -> Vec<Figure> {
    let mut figures = vec![Figure::new(
        "Load and checkpoint under a limit",
        &how_measured(results),
        bars(|volume, strategy| {
            let spread =
                results.spread(&[("volume", volume), ("strategy", strategy)], "seconds")?;
            Some(Bar::measured(strategy, spread))
        }),
    )];
    figures.push(Figure::new(
        "Load and checkpoint under a limit, computed",
        &format!(
            "From {}: as long as it took there, or as many I/Os and bytes as the volume's limits \
             let through, whichever is more. A small load that fits into memory and is written \
             while it runs is not limited.",
            match measured_io::counter_source(results) {
                CounterSource::Disk => "the writes and bytes that the disk counted without a limit",
                CounterSource::Server => {
                    "what the server counted without a limit, as its disk is not seen from here: \
                     its WAL and the pages that it handed to its system, in I/Os of 256 KiB"
                }
            }
        ),
        bars(|volume, strategy| {
            Some(Bar::computed(strategy, expected(results, volume, strategy)?))
        }),
    ));
    let writes = STRATEGIES.iter().filter_map(|strategy| {
        let levels = [("volume", UNLIMITED), ("strategy", *strategy)];
        Some(Bar::measured(strategy, measured_io::trial_io(results, &levels)?.bytes))
    });
    let groups = vec![BarGroup { name: String::new(), bars: writes.collect() }];
    figures.push(Figure::new(
        "Bytes read and written by the disk",
        match measured_io::counter_source(results) {
            CounterSource::Disk => {
                "Read and written while the load and its checkpoint ran, without a limit: tables, \
                 WAL, and whatever else the machine wrote."
            }
            CounterSource::Server => {
                "By the server's own counters, without a limit: its WAL, and the pages that it \
                 handed to its system, some of them twice: once as room, once filled. \
                 PostgreSQL 16 and later count them in pg_stat_io, earlier ones in \
                 pg_stat_bgwriter."
            }
        },
        Plot::Bars(Bars { unit: Some(Unit::Bytes), groups }),
    ));
    figures
}

fn bars(bar: impl Fn(&str, &str) -> Option<Bar>) -> Plot {
    let volumes = [UNLIMITED].into_iter().chain(VOLUMES.iter().map(|(name, _)| *name));
    let groups = volumes.map(|volume| BarGroup {
        name: volume.to_owned(),
        bars: STRATEGIES.iter().filter_map(|strategy| bar(volume, strategy)).collect(),
    });
    let groups = groups.filter(|group| !group.bars.is_empty()).collect();
    Plot::Bars(Bars { unit: Some(Unit::Seconds), groups })
}

/// Returns the computed seconds on a volume, from the measured I/O of the load without a limit.
fn expected(results: &Results, volume: &str, strategy: &str) -> Option<f64> {
    let limits = limits(volume)?;
    let levels = [("volume", UNLIMITED), ("strategy", strategy)];
    let median = |number| results.median(&levels, number);
    let written = measured_io::trial_io(results, &levels)?;
    let operations = written.operations.unwrap_or_default();
    Some(compute_load_seconds(&limits, median("seconds")?, operations, written.bytes.median))
}

/// Explains how limits were set, or why nothing was measured under a limit.
fn how_measured(results: &Results) -> String {
    let is_limited = |line: &&ResultLine| !line.trial.is("volume", UNLIMITED);
    let how = "The operating system limits reads and writes, each in I/Os and in bytes. An I/O \
               may be larger than the 256 KiB that a volume counts as one, and background writes \
               of the system are not limited.";
    if results.measured().any(|line| is_limited(&line)) {
        return how.to_owned();
    }
    let left_out = results.lines().iter().filter(is_limited);
    match left_out.filter_map(|line| line.skipped.as_deref()).next() {
        Some(why) => format!("Nothing was measured under a limit, because {why}."),
        None => "Nothing was measured under a limit in this run.".to_owned(),
    }
}

/// Compares pgspate with the faster of the two others on each volume. Uses measured times, or
/// computed times where none were measured.
pub(super) fn comparisons(results: &Results) -> Vec<Comparison> {
    let measured = |volume: &str, strategy| {
        results.spread(&[("volume", volume), ("strategy", strategy)], "seconds")
    };
    let computed =
        |volume: &str, strategy| expected(results, volume, strategy).map(Spread::exactly);
    let compared = |case: &str, seconds: &dyn Fn(&'static str) -> Option<Spread>| {
        let others = [ONE, EACH].into_iter().filter_map(|it| Some((it, seconds(it)?)));
        Comparison::with_fastest(case, (PGSPATE, seconds(PGSPATE)?), others, Unit::Seconds)
    };
    let volumes = [UNLIMITED].into_iter().chain(VOLUMES.iter().map(|(name, _)| *name));
    let on = |volume: &'static str| {
        compared(volume, &|strategy| measured(volume, strategy)).or_else(|| {
            compared(&format!("{volume}, computed"), &|strategy| computed(volume, strategy))
        })
    };
    volumes.filter_map(on).collect()
}

pub(super) fn answer(results: &Results) -> String {
    let (smallest, _) = VOLUMES[0];
    let measured =
        |strategy| results.median(&[("volume", smallest), ("strategy", strategy)], "seconds");
    let free =
        |strategy| results.median(&[("volume", UNLIMITED), ("strategy", strategy)], "seconds");
    let by_arithmetic = |strategy| expected(results, smallest, strategy);
    let pair = measured(ONE).zip(measured(PGSPATE)).map(|pair| (pair, "measured"));
    let computed = || by_arithmetic(ONE).zip(by_arithmetic(PGSPATE)).map(|it| (it, "computed"));
    let (Some(((one, ours), how)), Some(free_one), Some(free_ours)) =
        (pair.or_else(computed), free(ONE), free(PGSPATE))
    else {
        let why = bulk::left_out(results, &[("volume", UNLIMITED)]);
        return match (why, free(PGSPATE)) {
            (Some(why), Some(ours)) => format!(
                "Without a limit pgspate takes {}; COPY was not measured, because {why}.",
                words::value(ours, Unit::Seconds)
            ),
            _ => "Too little is measured to compare.".to_owned(),
        };
    };
    let value = |seconds| words::value(seconds, Unit::Seconds);
    let lead = |ours: f64, one: f64| words::faster(ours, one);
    let mut text = format!(
        "At 750 IOPS ({how}), pgspate takes {} and is {} one session ({}); without a limit it \
         takes {} and is {} one session ({})",
        value(ours),
        lead(ours, one),
        value(one),
        value(free_ours),
        lead(free_ours, free_one),
        value(free_one)
    );
    let tuned = if how == "measured" { measured(TUNED) } else { by_arithmetic(TUNED) };
    if let Some(tuned) = tuned {
        text += &format!("; tuned settings make it {} at 750 IOPS", value(tuned));
    }
    text + "."
}
