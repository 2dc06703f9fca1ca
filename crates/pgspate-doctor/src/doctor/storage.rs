//! Computes the limits of a cloud volume, and how long its burst credits last at the current load.
//!
//! The limits are those that Amazon publishes for RDS. From 400 GiB on, RDS stripes a volume over
//! four, each with its own credits.

use serde::Serialize;

use super::context::{CheckContext, CheckResult, query_in_savepoint};
use super::finding::{Check, Finding};
use pgspate_base::numbers::{bytes, rate, seconds, thousands};
use pgspate_target::server::Flavour;

const STORAGE: Check = Check {
    id: "storage-limits",
    question: "Does the volume limit this load?",
    rule: "Amazon RDS user guide, storage: limits of gp2, gp3, io1 and io2 by size",
};

/// The least size in GiB at which RDS stripes a volume over four.
const STRIPED_GIB: f64 = 400.0;
/// The burst credits of a gp2 volume: I/Os that it can do above its baseline rate.
const CREDITS: f64 = 5_400_000.0;
const MIB: f64 = (1 << 20) as f64;
const GIB: f64 = (1 << 30) as f64;
/// The largest size of a volume, in GiB.
const GIB_MAX: f64 = 65_536.0;

/// The kind of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeKind {
    /// IOPS follow from the size, with burst credits.
    Gp2,
    /// IOPS and throughput are ordered apart from the size.
    Gp3,
    /// Provisioned IOPS.
    Io1,
    /// Provisioned IOPS, Block Express.
    Io2,
}

/// A volume as it was ordered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Volume {
    /// The kind of the volume.
    pub kind: VolumeKind,
    /// The size in GiB.
    pub gib: f64,
    /// IOPS that were ordered.
    pub iops: Option<f64>,
    /// MiB/s that were ordered.
    pub throughput: Option<f64>,
}

/// The limits of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct VolumeLimits {
    /// IOPS that the volume sustains.
    pub iops: f64,
    /// IOPS while the volume has burst credits.
    pub burst_iops: Option<f64>,
    /// The number of burst credits when full.
    pub credits: f64,
    /// Throughput in MiB/s.
    pub throughput: f64,
}

/// The I/O that a load needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct StorageDemand {
    /// I/Os a second.
    pub iops: f64,
    /// Throughput in MiB/s.
    pub throughput: f64,
}

impl Volume {
    /// Parses `gp2:250GiB`, `gp3:500GiB,12000iops,500MiB/s`, `io1:400GiB,10000iops`.
    ///
    /// # Errors
    /// A sentence that says what was expected, if the text describes no volume.
    pub fn parse(text: &str) -> Result<Volume, String> {
        let expected = "expected a volume such as gp2:250GiB, gp3:500GiB,12000iops,500MiB/s, \
                        io1:400GiB,10000iops or io2:400GiB,10000iops";
        let (kind, rest) = text.split_once(':').ok_or(expected)?;
        let kind = match kind.trim() {
            "gp2" => VolumeKind::Gp2,
            "gp3" => VolumeKind::Gp3,
            "io1" => VolumeKind::Io1,
            "io2" => VolumeKind::Io2,
            _ => return Err(expected.to_owned()),
        };
        let (mut gib, mut iops, mut throughput) = (None, None, None);
        for part in rest.split(',').map(|part| part.trim().to_ascii_lowercase()) {
            let end = part.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(part.len());
            let value: f64 = part[..end].parse().map_err(|_| expected)?;
            match part[end..].trim() {
                "" | "gib" | "g" => gib = Some(value),
                "gb" => gib = Some(value * 1e9 / (1u64 << 30) as f64),
                "tib" | "t" => gib = Some(value * 1024.0),
                "iops" => iops = Some(value),
                "mib/s" | "mb/s" | "mibps" => throughput = Some(value),
                _ => return Err(expected.to_owned()),
            }
        }
        let gib = gib.filter(|gib| *gib > 0.0).ok_or(expected)?;
        if matches!(kind, VolumeKind::Io1 | VolumeKind::Io2) && iops.is_none() {
            return Err("expected the IOPS of an io1 or io2 volume, such as io1:400GiB,10000iops"
                .to_owned());
        }
        Ok(Volume { kind, gib, iops, throughput })
    }

    /// Returns the limits of the volume.
    pub fn limits(&self) -> VolumeLimits {
        let striped = self.gib >= STRIPED_GIB;
        let steady = |iops: f64, throughput: f64| VolumeLimits {
            iops,
            burst_iops: None,
            credits: 0.0,
            throughput,
        };
        match self.kind {
            VolumeKind::Gp2 => gp2(self.gib),
            VolumeKind::Gp3 if !striped => steady(3000.0, 125.0),
            VolumeKind::Gp3 => {
                let iops = self.iops.unwrap_or(12_000.0).clamp(12_000.0, 64_000.0);
                let asked = self.throughput.unwrap_or(500.0).clamp(500.0, 4000.0);
                steady(iops, asked.min(0.25 * iops))
            }
            VolumeKind::Io1 => {
                let most = if striped { (256_000.0, 4000.0) } else { (19_950.0, 500.0) };
                let iops = self.iops.unwrap_or(1000.0).min(most.0).min(50.0 * self.gib);
                steady(iops, (0.256 * iops).min(most.1))
            }
            VolumeKind::Io2 => {
                let iops = self.iops.unwrap_or(1000.0).min(256_000.0).min(1000.0 * self.gib);
                steady(iops, (0.256 * iops).min(4000.0))
            }
        }
    }

    /// Describes how the volume's limits differ from what was ordered, if they do.
    pub fn difference_from_order(&self) -> Option<String> {
        let gives = self.limits();
        let iops = self.iops.filter(|iops| *iops != gives.iops);
        let throughput = self.throughput.filter(|it| *it != gives.throughput);
        let words = |iops: Option<f64>, throughput: Option<f64>| {
            let iops = iops.map(|it| format!("{} IOPS", thousands(it as u64)));
            let throughput = throughput.map(|it| format!("{it:.0} MiB/s"));
            iops.into_iter().chain(throughput).collect::<Vec<_>>().join(" and ")
        };
        let allowed = words(iops.map(|_| gives.iops), throughput.map(|_| gives.throughput));
        let ordered = words(iops, throughput);
        (!ordered.is_empty())
            .then(|| format!("{ordered} ordered, but {:.0} GiB allow {allowed}", self.gib))
    }

    /// Returns the smallest volume of a kind that meets the demand and has at least `gib_min`.
    pub fn smallest(kind: VolumeKind, demand: StorageDemand, gib_min: f64) -> Option<String> {
        let iops = demand.iops.ceil();
        let least = gib_min.ceil();
        if least > GIB_MAX {
            return None;
        }
        match kind {
            VolumeKind::Gp2 => {
                let by_throughput = match demand.throughput {
                    ..=128.0 => 5.0,
                    ..=250.0 => 170.0,
                    ..=512.0 => 400.0,
                    ..=1000.0 => 680.0,
                    _ => return None,
                };
                let gib = (iops / 3.0).ceil().max(by_throughput).max(least);
                (iops <= 64_000.0).then(|| format!("gp2:{gib:.0}GiB"))
            }
            VolumeKind::Gp3
                if least < STRIPED_GIB && iops <= 3000.0 && demand.throughput <= 125.0 =>
            {
                Some(format!("gp3:{:.0}GiB", least.max(20.0)))
            }
            VolumeKind::Gp3 => {
                let gib = least.max(STRIPED_GIB);
                let throughput = demand.throughput.ceil().max(500.0);
                let iops = iops.max(12_000.0).max((throughput / 0.25).ceil());
                (iops <= 64_000.0 && throughput <= 4000.0)
                    .then(|| format!("gp3:{gib:.0}GiB,{iops:.0}iops,{throughput:.0}MiB/s"))
            }
            VolumeKind::Io1 | VolumeKind::Io2 => {
                let iops = iops.max(1000.0).max((demand.throughput / 0.256).ceil());
                let (name, ratio) = match kind {
                    VolumeKind::Io1 => ("io1", 50.0),
                    _ => ("io2", 1000.0),
                };
                let is_large = demand.throughput > 500.0 || iops > 19_950.0;
                let stripes = is_large && kind == VolumeKind::Io1;
                let floor = if stripes { STRIPED_GIB } else { 100.0 };
                let gib = (iops / ratio).ceil().max(floor).max(least);
                (iops <= 256_000.0 && demand.throughput <= 4000.0)
                    .then(|| format!("{name}:{gib:.0}GiB,{iops:.0}iops"))
            }
        }
    }
}

fn gp2(gib: f64) -> VolumeLimits {
    let iops = (3.0 * gib).clamp(100.0, 64_000.0);
    let (burst, credits) = match gib {
        ..400.0 => (Some(3000.0), CREDITS),
        ..4000.0 => (Some(12_000.0), 4.0 * CREDITS),
        _ => (None, 0.0),
    };
    let throughput = match gib {
        ..170.0 => 128.0,
        ..400.0 => 250.0,
        ..680.0 => 512.0,
        _ => 1000.0,
    };
    VolumeLimits { iops, burst_iops: burst, credits, throughput }
}

impl VolumeLimits {
    /// Returns how many seconds full credits last at `iops`; `None` if they do not run out.
    pub fn credit_seconds(&self, iops: f64) -> Option<f64> {
        let spent = iops.min(self.burst_iops?) - self.iops;
        (spent > 0.0).then(|| self.credits / spent)
    }

    /// Returns whether the load must wait for the volume, at once or when the credits are spent.
    pub fn slows_down(&self, demand: StorageDemand) -> bool {
        demand.iops > self.iops || demand.throughput > self.throughput
    }
}

/// Returns the I/O of the sample, and how it was counted.
async fn sampled_demand(context: &CheckContext<'_>) -> Option<(StorageDemand, String)> {
    if let Some(disk) = context.traffic {
        let demand = StorageDemand { iops: disk.iops, throughput: disk.bytes / MIB };
        let source = "all I/O of the server's disk, from /proc/diskstats".to_owned();
        return Some((demand, source));
    }
    let mut source = "as PostgreSQL counts, without temporary files; the operating system may \
                      merge I/Os or serve them from its cache"
        .to_owned();
    let begun_before = format!(
        "select count(*) from pg_stat_activity where state = 'active' \
         and pid <> pg_backend_pid() and xact_start < to_timestamp({})",
        context.now.taken - context.sampled.seconds
    );
    let row = query_in_savepoint(context.client, &begun_before).await;
    match row.map_or(0, |row| row.get::<_, i64>(0)) {
        0 => {}
        1 => source
            .push_str("; a transaction that began before the sample is counted only when it ends"),
        more => source.push_str(&format!(
            "; {more} transactions that began before the sample are counted only when they end"
        )),
    }
    Some((counted_demand(context)?, source))
}

/// Returns the I/O of the sample as the server counts it.
fn counted_demand(context: &CheckContext<'_>) -> Option<StorageDemand> {
    let it = &context.sampled;
    let per_second = |value: f64| value / it.seconds.max(0.1);
    let (operations, data) = match (it.io.reads, it.io.writes, it.io.extends) {
        (Some(reads), Some(writes), Some(extends)) => {
            let bytes = [it.io.read_bytes, it.io.write_bytes, it.io.extend_bytes];
            let bytes: u64 = bytes.into_iter().flatten().sum();
            (reads + writes + extends, bytes)
        }
        _ => {
            let points = &it.checkpoints;
            let pages = it.database.blocks_read?
                + points.buffers_written?
                + points.buffers_cleaned.unwrap_or_default()
                + points.buffers_by_sessions.unwrap_or_default();
            (pages, pages * 8192)
        }
    };
    let wal = it.wal_bytes.unwrap_or_default();
    let wal_operations =
        it.wal.writes.unwrap_or(wal.div_ceil(8192)) + it.wal.syncs.unwrap_or_default();
    Some(StorageDemand {
        iops: per_second((operations + wal_operations) as f64),
        throughput: per_second((data + wal) as f64) / MIB,
    })
}

/// Returns the size of all databases, if the role may see it.
pub(super) async fn data_bytes(context: &CheckContext<'_>) -> Option<u64> {
    let sql = format!(
        "select sum(pg_database_size(oid))::int8 from pg_database \
         having {} or bool_and(has_database_privilege(oid, 'connect'))",
        context.rights.reads_stats
    );
    query_in_savepoint(context.client, &sql).await?.get::<_, Option<i64>>(0).map(i64::unsigned_abs)
}

/// Compares the volume's limits with the I/O of the sample.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let Some(volume) = &context.options.storage else { return Ok(Vec::new()) };
    if context.flavour == Flavour::Aurora {
        let text = "Aurora's storage grows by itself and has no volume that could be the limit";
        return Ok(vec![STORAGE.ok(text).always_shown()]);
    }
    let limits = describe_limits(volume, context.flavour);
    let Some((demand, source)) = sampled_demand(context).await else {
        let text = format!("{limits}; the server's I/O counters cannot be read");
        return Ok(vec![STORAGE.cannot_see(text)]);
    };
    let data = data_bytes(context).await;
    Ok(vec![judge(volume, &limits, demand, &source, data)])
}

/// Describes the limits of a volume.
fn describe_limits(volume: &Volume, flavour: Flavour) -> String {
    let limits = volume.limits();
    let burst = limits.burst_iops.map_or(String::new(), |burst| {
        let last = limits
            .credit_seconds(burst)
            .map_or(String::new(), |last| format!(" for {} with full credits", seconds(last)));
        format!(", {}{last}", thousands(burst as u64))
    });
    let whose = match flavour {
        Flavour::Rds => "",
        _ => " (limits of Amazon RDS; volumes of EC2 have others)",
    };
    let differs = volume.difference_from_order().map_or(String::new(), |it| format!("; {it}"));
    format!(
        "the volume allows {} IOPS{burst}, and {:.0} MiB/s{differs}{whose}",
        thousands(limits.iops as u64),
        limits.throughput
    )
}

/// Compares demand and limits: how long credits last, and which volumes would be enough.
fn judge(
    volume: &Volume,
    limits_text: &str,
    demand: StorageDemand,
    source: &str,
    data_bytes: Option<u64>,
) -> Finding {
    let limits = volume.limits();
    let asked = format!(
        "in the sample {} IOPS and {} ({source})",
        thousands(demand.iops as u64),
        rate(demand.throughput * MIB)
    );
    let numbers = |finding: Finding| {
        finding.number("iops", demand.iops).number("throughput_mib", demand.throughput)
    };
    if !limits.slows_down(demand) {
        return numbers(STORAGE.ok(format!("{limits_text}; {asked}"))).always_shown();
    }
    let last = limits.credit_seconds(demand.iops);
    let lasts = last.map_or(String::new(), |last| {
        format!("; full credits last {} at this rate", seconds(last))
    });
    let is_over = demand.iops > limits.burst_iops.unwrap_or(limits.iops)
        || demand.throughput > limits.throughput;
    // RDS cannot shrink a volume.
    let data_gib = data_bytes.unwrap_or_default() as f64 / GIB;
    let gib_min = volume.gib.max(data_gib);
    let mut kinds = vec![volume.kind];
    for kind in [VolumeKind::Gp3, VolumeKind::Io2] {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let enough: Vec<String> =
        kinds.iter().filter_map(|kind| Volume::smallest(*kind, demand, gib_min)).collect();
    let holds = match data_bytes {
        Some(size) => format!("hold all databases ({})", bytes(size)),
        None => "are no smaller (this role cannot see the size of all databases)".to_owned(),
    };
    let advice = match enough.is_empty() {
        true => "No volume is fast enough for this load.".to_owned(),
        false => format!(
            "The smallest volumes that are fast enough for this load and {holds}: {}.",
            enough.join("; ")
        ),
    };
    let finding = STORAGE
        .note_or_warning(is_over, format!("{limits_text}; {asked}{lasts}"))
        .number("iops_limit", limits.iops)
        .number("throughput_limit_mib", limits.throughput)
        .weight(1e14)
        .advice(advice);
    let finding = numbers(finding);
    match last {
        Some(last) => finding.number("credits_last_seconds", last),
        None => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn limits(text: &str) -> VolumeLimits {
        Volume::parse(text).unwrap().limits()
    }

    #[test]
    fn gp2_grows_with_its_size() {
        let small = limits("gp2:250GiB");
        assert_eq!((small.iops, small.burst_iops, small.throughput), (750.0, Some(3000.0), 250.0));
        assert_eq!(small.credit_seconds(3000.0), Some(2400.0));
        assert_eq!(small.credit_seconds(9000.0), Some(2400.0));
        assert_eq!(small.credit_seconds(700.0), None);
        let large = limits("gp2:1500GiB");
        assert_eq!((large.iops, large.burst_iops), (4500.0, Some(12_000.0)));
        assert_eq!(limits("gp2:8TiB").iops, 24_576.0);
        assert_eq!(limits("gp2:10").iops, 100.0);
        assert_eq!(limits("gp2:5000GiB").burst_iops, None);
    }

    #[test]
    fn limits_of_the_other_kinds_follow_from_the_order() {
        assert_eq!((limits("gp3:100GiB").iops, limits("gp3:100GiB").throughput), (3000.0, 125.0));
        let gp3 = limits("gp3:500GiB,20000iops,2000MiB/s");
        assert_eq!((gp3.iops, gp3.throughput), (20_000.0, 2000.0));
        assert_eq!(limits("gp3:500GiB,12000iops,4000MiB/s").throughput, 3000.0);
        assert_eq!(limits("io1:100GiB,10000iops").iops, 5000.0);
        assert_eq!(limits("io1:400GiB,10000iops").throughput, 2560.0);
        assert_eq!(limits("io2:100GiB,10000iops").iops, 10_000.0);
        for wrong in ["gp2", "gp9:1GiB", "gp2:0", "io1:100GiB", "gp3:1GiB,2x", "gp2:GiB"] {
            assert!(Volume::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_smallest_volume_meets_the_demand() {
        let demands = [(100.0, 10.0), (2900.0, 120.0), (5000.0, 400.0), (30_000.0, 900.0)];
        for (iops, throughput) in demands {
            let demand = StorageDemand { iops, throughput };
            let gib_min = 300.0;
            for kind in [VolumeKind::Gp2, VolumeKind::Gp3, VolumeKind::Io1, VolumeKind::Io2] {
                let smallest = Volume::smallest(kind, demand, gib_min).unwrap();
                let volume = Volume::parse(&smallest).unwrap();
                assert!(!volume.limits().slows_down(demand), "{smallest} for {demand:?}");
                assert!(volume.gib >= gib_min, "{smallest}");
                assert_eq!(volume.difference_from_order(), None);
            }
        }
        let too_much = StorageDemand { iops: 300_000.0, throughput: 10.0 };
        assert_eq!(Volume::smallest(VolumeKind::Gp3, too_much, 0.0), None);
    }

    /// Judges a demand (IOPS, MiB/s) with databases of that size. Returns the verdict, the seconds
    /// that credits last, and the volumes that would be enough.
    fn judged(volume: &str, demand: (f64, f64), gib: u64) -> (Verdict, Option<f64>, String) {
        let volume = Volume::parse(volume).unwrap();
        let demand = StorageDemand { iops: demand.0, throughput: demand.1 };
        let found = judge(&volume, "", demand, "", Some(gib << 30));
        let advice = found.advice.unwrap_or_default();
        let enough = advice.split_once(": ").map(|(_, enough)| enough.to_owned());
        let last = found.numbers.get("credits_last_seconds").copied();
        (found.verdict, last, enough.unwrap_or(advice))
    }

    #[test]
    fn a_demand_is_judged_by_the_limits_of_the_volume() {
        // 5.4 million credits, less 2,000 - 750 a second.
        assert_eq!(
            judged("gp2:250GiB", (2000.0, 60.0), 100),
            (
                Verdict::Note,
                Some(4320.0),
                "gp2:667GiB; gp3:250GiB; io2:250GiB,2000iops.".to_owned()
            )
        );
        // Four volumes' credits, at most 12,000 - 4,500 a second.
        let (verdict, last, enough) = judged("gp2:1500GiB", (15_000.0, 300.0), 2000);
        assert_eq!((verdict, last), (Verdict::Warning, Some(2880.0)));
        let all = "gp2:5000GiB; gp3:2000GiB,15000iops,500MiB/s; io2:2000GiB,15000iops.";
        assert_eq!(enough, all);
        // gp3 has no credits that could run out. Each kind is named once.
        assert_eq!(
            judged("gp3:100GiB", (2500.0, 200.0), 10),
            (
                Verdict::Warning,
                None,
                "gp3:400GiB,12000iops,500MiB/s; io2:100GiB,2500iops.".to_owned()
            )
        );
        let io1 = judged("io1:200GiB,8000iops", (12_000.0, 100.0), 150);
        let all = "io1:240GiB,12000iops; gp3:400GiB,12000iops,500MiB/s; io2:200GiB,12000iops.";
        assert_eq!(io1, (Verdict::Warning, None, all.to_owned()));
        assert_eq!(judged("io2:500GiB,8000iops", (9000.0, 9.0), 1).2.matches("io2").count(), 1);
        let (_, _, none) = judged("gp3:500GiB", (300_000.0, 9.0), 1);
        assert_eq!(none, "No volume is fast enough for this load.");
        assert_eq!(judged("gp2:250GiB", (700.0, 60.0), 9).0, Verdict::Ok);
    }

    #[test]
    fn limits_below_the_order_are_reported() {
        let differs = |text: &str| Volume::parse(text).unwrap().difference_from_order();
        assert_eq!(
            differs("gp3:100GiB,12000iops,500MiB/s").as_deref(),
            Some("12,000 IOPS and 500 MiB/s ordered, but 100 GiB allow 3,000 IOPS and 125 MiB/s")
        );
        assert_eq!(
            differs("io1:100GiB,10000iops").as_deref(),
            Some("10,000 IOPS ordered, but 100 GiB allow 5,000 IOPS")
        );
        assert_eq!(differs("gp3:500GiB,20000iops,2000MiB/s"), None);
        assert_eq!(differs("gp2:500GiB"), None);
    }
}
