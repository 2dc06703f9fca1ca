//! What a cloud volume lets through, and how long its credits last at the load that is running.
//!
//! Limits are those that Amazon publishes for RDS. From 400 GiB on a volume is striped over four,
//! each with credits of its own.

use serde::Serialize;

use super::finding::{Check, Finding};
use super::scene::{Found, Scene, attempt};
use pgspate_base::numbers::{bytes, rate, seconds, thousands};
use pgspate_target::server::Flavour;

const STORAGE: Check = Check {
    id: "storage-limits",
    question: "Does the volume limit this load?",
    rule: "Amazon RDS user guide, storage: limits of gp2, gp3, io1 and io2 by size",
};

/// From here on RDS stripes a volume over four.
const STRIPED_GIB: f64 = 400.0;
/// I/Os that a volume of gp2 may do above its baseline before it has to earn them.
const CREDITS: f64 = 5_400_000.0;
const MIB: f64 = (1 << 20) as f64;
const GIB: f64 = (1 << 30) as f64;
/// No volume is larger.
const GIB_MAX: f64 = 65_536.0;

/// Kinds of volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeKind {
    /// IOPS by size, and credits.
    Gp2,
    /// IOPS and throughput beside size.
    Gp3,
    /// Provisioned IOPS.
    Io1,
    /// Provisioned IOPS, Block Express.
    Io2,
}

/// A volume, as it was ordered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Volume {
    /// Its kind.
    pub kind: VolumeKind,
    /// Its size in GiB.
    pub gib: f64,
    /// IOPS that were ordered.
    pub iops: Option<f64>,
    /// MiB/s that were ordered.
    pub throughput: Option<f64>,
}

/// What a volume lets through.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limits {
    /// IOPS for ever.
    pub iops: f64,
    /// IOPS while there are credits.
    pub burst_iops: Option<f64>,
    /// Credits when they are full.
    pub credits: f64,
    /// MiB/s.
    pub throughput: f64,
}

/// What a load asks of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Demand {
    /// I/Os a second.
    pub iops: f64,
    /// MiB/s.
    pub throughput: f64,
}

impl Volume {
    /// Reads `gp2:250GiB`, `gp3:500GiB,12000iops,500MiB/s`, `io1:400GiB,10000iops`.
    ///
    /// # Errors
    /// In words, what was expected.
    pub fn parse(text: &str) -> Result<Volume, String> {
        let expected = "expected gp2:250GiB, gp3:500GiB,12000iops,500MiB/s, io1:400GiB,10000iops \
                        or io2 likewise";
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
            return Err("io1 and io2 need their IOPS: io1:400GiB,10000iops".to_owned());
        }
        Ok(Volume { kind, gib, iops, throughput })
    }

    /// What it lets through.
    pub fn limits(&self) -> Limits {
        let striped = self.gib >= STRIPED_GIB;
        let steady = |iops: f64, throughput: f64| Limits {
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

    /// What was ordered and is not what it gives, in words.
    pub fn differs(&self) -> Option<String> {
        let gives = self.limits();
        let iops = self.iops.filter(|iops| *iops != gives.iops);
        let throughput = self.throughput.filter(|it| *it != gives.throughput);
        let words = |iops: Option<f64>, throughput: Option<f64>| {
            let iops = iops.map(|it| format!("{} IOPS", thousands(it as u64)));
            let throughput = throughput.map(|it| format!("{it:.0} MiB/s"));
            iops.into_iter().chain(throughput).collect::<Vec<_>>().join(" and ")
        };
        let given = words(iops.map(|_| gives.iops), throughput.map(|_| gives.throughput));
        let ordered = words(iops, throughput);
        (!ordered.is_empty())
            .then(|| format!("{ordered} ordered, {given} given at {:.0} GiB", self.gib))
    }

    /// The smallest of its kind that would not limit this, and has at least so many GiB.
    pub fn smallest(kind: VolumeKind, demand: Demand, gib_min: f64) -> Option<String> {
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

fn gp2(gib: f64) -> Limits {
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
    Limits { iops, burst_iops: burst, credits, throughput }
}

impl Limits {
    /// Seconds that full credits last at so many IOPS; `None` if they do not run out.
    pub fn credits_last(&self, iops: f64) -> Option<f64> {
        let spent = iops.min(self.burst_iops?) - self.iops;
        (spent > 0.0).then(|| self.credits / spent)
    }

    /// Whether a load has to wait: at once, or when the credits are spent.
    pub fn limits(&self, demand: Demand) -> bool {
        demand.iops > self.iops || demand.throughput > self.throughput
    }
}

/// What was asked of the storage meanwhile, and who counted it.
async fn asked(scene: &Scene<'_>) -> Option<(Demand, String)> {
    if let Some(disk) = scene.traffic {
        let demand = Demand { iops: disk.iops, throughput: disk.bytes / MIB };
        let source = "by everybody on the server's disk (/proc/diskstats)".to_owned();
        return Some((demand, source));
    }
    let mut source = "as PostgreSQL counts, without temporary files; the system may merge some \
                      and keep others in its cache"
        .to_owned();
    let begun_before = format!(
        "select count(*) from pg_stat_activity where state = 'active' \
         and pid <> pg_backend_pid() and xact_start < to_timestamp({})",
        scene.now.taken - scene.sampled.seconds
    );
    let row = attempt(scene.client, &begun_before).await;
    match row.map_or(0, |row| row.get::<_, i64>(0)) {
        0 => {}
        1 => source.push_str("; a transaction that began before is counted when it ends"),
        more => source.push_str(&format!(
            "; {more} transactions that began before are counted when they end"
        )),
    }
    Some((demand(scene)?, source))
}

/// What the server asked of its storage meanwhile, as it counts I/Os.
fn demand(scene: &Scene<'_>) -> Option<Demand> {
    let it = &scene.sampled;
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
    Some(Demand {
        iops: per_second((operations + wal_operations) as f64),
        throughput: per_second((data + wal) as f64) / MIB,
    })
}

/// Bytes of all databases, if this role may know.
pub(super) async fn data_bytes(scene: &Scene<'_>) -> Option<u64> {
    let sql = format!(
        "select sum(pg_database_size(oid))::int8 from pg_database \
         having {} or bool_and(has_database_privilege(oid, 'connect'))",
        scene.rights.reads_stats
    );
    attempt(scene.client, &sql).await?.get::<_, Option<i64>>(0).map(i64::unsigned_abs)
}

/// The volume's limits beside what is asked of it.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let Some(volume) = &scene.options.storage else { return Ok(Vec::new()) };
    if scene.flavour == Flavour::Aurora {
        let text = "Aurora's storage grows by itself, and has no volume that could be the limit";
        return Ok(vec![STORAGE.ok(text).told()]);
    }
    let offer = offer(volume, scene.flavour);
    let Some((demand, source)) = asked(scene).await else {
        return Ok(vec![STORAGE.cannot_see(format!("{offer}; the load cannot be counted"))]);
    };
    let data = data_bytes(scene).await;
    Ok(vec![judge(volume, &offer, demand, &source, data)])
}

/// What a volume lets through, in words.
fn offer(volume: &Volume, flavour: Flavour) -> String {
    let limits = volume.limits();
    let burst = limits.burst_iops.map_or(String::new(), |burst| {
        let last = limits
            .credits_last(burst)
            .map_or(String::new(), |last| format!(" for {} from full credits", seconds(last)));
        format!(", {}{last}", thousands(burst as u64))
    });
    let whose = match flavour {
        Flavour::Rds => "",
        _ => " (limits of Amazon RDS; those of EC2 are others)",
    };
    let differs = volume.differs().map_or(String::new(), |it| format!("; {it}"));
    format!(
        "the volume does {} IOPS{burst}, and {:.0} MiB/s{differs}{whose}",
        thousands(limits.iops as u64),
        limits.throughput
    )
}

/// What is asked beside what is offered, how long credits last, and what would be enough.
fn judge(
    volume: &Volume,
    offer: &str,
    demand: Demand,
    source: &str,
    data_bytes: Option<u64>,
) -> Finding {
    let limits = volume.limits();
    let asked = format!(
        "{} IOPS and {} asked for meanwhile, {source}",
        thousands(demand.iops as u64),
        rate(demand.throughput * MIB)
    );
    let numbers = |finding: Finding| {
        finding.number("iops", demand.iops).number("throughput_mib", demand.throughput)
    };
    if !limits.limits(demand) {
        return numbers(STORAGE.ok(format!("{offer}; {asked}"))).told();
    }
    let last = limits.credits_last(demand.iops);
    let lasts =
        last.map_or(String::new(), |last| format!("; full credits last {} at that", seconds(last)));
    let is_over = demand.iops > limits.burst_iops.unwrap_or(limits.iops)
        || demand.throughput > limits.throughput;
    // Storage of RDS cannot be made smaller.
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
        Some(size) => format!("hold the databases' {}", bytes(size)),
        None => "are no smaller; what all databases take is not for this role to see".to_owned(),
    };
    let advice = match enough.is_empty() {
        true => "No volume of these kinds is enough for that.".to_owned(),
        false => {
            format!("The smallest that would not limit it, and {holds}: {}.", enough.join("; "))
        }
    };
    let finding = STORAGE
        .worse(is_over, format!("{offer}; {asked}{lasts}"))
        .number("iops_limit", limits.iops)
        .number("throughput_limit_mib", limits.throughput)
        .weighs(1e14)
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

    fn limits(text: &str) -> Limits {
        Volume::parse(text).unwrap().limits()
    }

    #[test]
    fn gp2_grows_with_its_size() {
        let small = limits("gp2:250GiB");
        assert_eq!((small.iops, small.burst_iops, small.throughput), (750.0, Some(3000.0), 250.0));
        assert_eq!(small.credits_last(3000.0), Some(2400.0));
        assert_eq!(small.credits_last(9000.0), Some(2400.0));
        assert_eq!(small.credits_last(700.0), None);
        let large = limits("gp2:1500GiB");
        assert_eq!((large.iops, large.burst_iops), (4500.0, Some(12_000.0)));
        assert_eq!(limits("gp2:8TiB").iops, 24_576.0);
        assert_eq!(limits("gp2:10").iops, 100.0);
        assert_eq!(limits("gp2:5000GiB").burst_iops, None);
    }

    #[test]
    fn the_others_are_ordered() {
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
    fn the_smallest_volume_does_not_limit() {
        let demands = [(100.0, 10.0), (2900.0, 120.0), (5000.0, 400.0), (30_000.0, 900.0)];
        for (iops, throughput) in demands {
            let demand = Demand { iops, throughput };
            let gib_min = 300.0;
            for kind in [VolumeKind::Gp2, VolumeKind::Gp3, VolumeKind::Io1, VolumeKind::Io2] {
                let smallest = Volume::smallest(kind, demand, gib_min).unwrap();
                let volume = Volume::parse(&smallest).unwrap();
                assert!(!volume.limits().limits(demand), "{smallest} for {demand:?}");
                assert!(volume.gib >= gib_min, "{smallest}");
                assert_eq!(volume.differs(), None);
            }
        }
        let too_much = Demand { iops: 300_000.0, throughput: 10.0 };
        assert_eq!(Volume::smallest(VolumeKind::Gp3, too_much, 0.0), None);
    }

    /// Seconds that credits last, and what would be enough, for a demand and databases.
    fn concluded(volume: &str, demand: (f64, f64), gib: u64) -> (Verdict, Option<f64>, String) {
        let volume = Volume::parse(volume).unwrap();
        let demand = Demand { iops: demand.0, throughput: demand.1 };
        let found = judge(&volume, "", demand, "", Some(gib << 30));
        let advice = found.advice.unwrap_or_default();
        let enough = advice.split_once(": ").map(|(_, enough)| enough.to_owned());
        let last = found.numbers.get("credits_last_seconds").copied();
        (found.verdict, last, enough.unwrap_or(advice))
    }

    #[test]
    fn what_is_concluded_from_a_demand() {
        // 5.4 million credits, less 2,000 - 750 a second.
        assert_eq!(
            concluded("gp2:250GiB", (2000.0, 60.0), 100),
            (
                Verdict::Note,
                Some(4320.0),
                "gp2:667GiB; gp3:250GiB; io2:250GiB,2000iops.".to_owned()
            )
        );
        // Four volumes' credits, at most 12,000 - 4,500 a second.
        let (verdict, last, enough) = concluded("gp2:1500GiB", (15_000.0, 300.0), 2000);
        assert_eq!((verdict, last), (Verdict::Warning, Some(2880.0)));
        let all = "gp2:5000GiB; gp3:2000GiB,15000iops,500MiB/s; io2:2000GiB,15000iops.";
        assert_eq!(enough, all);
        // Nothing runs out where nothing is lent, and each kind is named once.
        assert_eq!(
            concluded("gp3:100GiB", (2500.0, 200.0), 10),
            (
                Verdict::Warning,
                None,
                "gp3:400GiB,12000iops,500MiB/s; io2:100GiB,2500iops.".to_owned()
            )
        );
        let io1 = concluded("io1:200GiB,8000iops", (12_000.0, 100.0), 150);
        let all = "io1:240GiB,12000iops; gp3:400GiB,12000iops,500MiB/s; io2:200GiB,12000iops.";
        assert_eq!(io1, (Verdict::Warning, None, all.to_owned()));
        assert_eq!(concluded("io2:500GiB,8000iops", (9000.0, 9.0), 1).2.matches("io2").count(), 1);
        let (_, _, none) = concluded("gp3:500GiB", (300_000.0, 9.0), 1);
        assert_eq!(none, "No volume of these kinds is enough for that.");
        assert_eq!(concluded("gp2:250GiB", (700.0, 60.0), 9).0, Verdict::Ok);
    }

    #[test]
    fn what_was_ordered_is_not_dropped_without_a_word() {
        let differs = |text: &str| Volume::parse(text).unwrap().differs();
        assert_eq!(
            differs("gp3:100GiB,12000iops,500MiB/s").as_deref(),
            Some("12,000 IOPS and 500 MiB/s ordered, 3,000 IOPS and 125 MiB/s given at 100 GiB")
        );
        assert_eq!(
            differs("io1:100GiB,10000iops").as_deref(),
            Some("10,000 IOPS ordered, 5,000 IOPS given at 100 GiB")
        );
        assert_eq!(differs("gp3:500GiB,20000iops,2000MiB/s"), None);
        assert_eq!(differs("gp2:500GiB"), None);
    }
}
