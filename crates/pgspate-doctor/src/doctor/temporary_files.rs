//! Checks temporary files: their amount and tablespace, their settings, and how long free space
//! lasts.
//!
//! A growth rate is extrapolated to ten times the time of the sample, and no further.

use super::context::{CheckContext, CheckResult, query_in_savepoint};
use super::finding::{Check, Finding};
use super::storage::data_bytes;
use super::temp_file_usage::{DatabaseTempFiles, parse_names};
use pgspate_base::numbers::{bytes, rate, seconds, thousands};
use pgspate_target::quote_ident;
use pgspate_target::server::{Flavour, format_size_setting};

const TEMP: Check = Check {
    id: "temporary-files",
    question: "Do sorts and hashes write to disk, and is there room for them?",
    rule: "pg_stat_database.temp_bytes counts files that exceeded work_mem, once they are closed; \
           pg_ls_tmpdir lists existing files; PostgreSQL manual, temp_file_limit and \
           temp_tablespaces",
};
const OPTIMIZED: Check = Check {
    id: "optimized-reads",
    question: "Are temporary files on the instance's own disk?",
    rule: "Amazon user guides of Aurora and RDS, Optimized Reads: temp_tablespaces, and \
           aurora_stat_optimized_reads_cache()",
};

/// Fewer bytes of files closed during the sample are not reported.
const SAMPLED_BYTES_MIN: u64 = 100 << 20;
/// Fewer bytes a second of files closed during the sample are not reported.
const SAMPLED_BYTES_PER_SECOND_MIN: f64 = 1e7;
/// Fewer bytes an hour since statistics began are not reported.
const HOURLY_BYTES_MIN: f64 = 1e10;
/// A growth rate is extrapolated to this many times the time of the sample.
const EXTRAPOLATION_FACTOR: f64 = 10.0;

/// Checks the temporary files of the server.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let temp = &context.temp;
    if temp.closed.is_empty() {
        return Ok(vec![TEMP.cannot_see("pg_stat_database cannot be read")]);
    }
    let room = find_free_space(context).await;
    let memory = context.setting_bytes("work_mem").unwrap_or(4 << 20);
    let spilled =
        temp.closed.iter().filter_map(|closed| judge_spilled(closed, temp.seconds, memory));
    let mut found: Vec<Finding> = spilled.collect();
    found.extend(judge_growth(context, room));
    found.extend(judge_limit(context, room));
    found.extend(check_tablespaces(context).await?);
    if found.is_empty() {
        found.push(TEMP.ok(describe_state(context, room)));
    }
    if matches!(context.flavour, Flavour::Aurora | Flavour::Rds) {
        found.push(check_optimized_reads(context).await);
    }
    Ok(found)
}

/// Reports a database whose statements write many temporary files: during the sample of so many
/// seconds, or on average since statistics began.
fn judge_spilled(closed: &DatabaseTempFiles, sample_seconds: f64, memory: u64) -> Option<Finding> {
    let name = &closed.name;
    let speed = closed.sampled_bytes as f64 / sample_seconds;
    let hourly = closed.hours.map(|hours| closed.bytes as f64 / hours.max(1.0));
    let is_now = closed.sampled_bytes >= SAMPLED_BYTES_MIN && speed >= SAMPLED_BYTES_PER_SECOND_MIN;
    if !is_now && hourly.is_none_or(|hourly| hourly < HOURLY_BYTES_MIN) {
        return None;
    }
    let (file_count, size) = match is_now {
        true => (closed.sampled_files, closed.sampled_bytes),
        false => (closed.files, closed.bytes),
    };
    let average = size / file_count.max(1);
    let when = match is_now {
        true => format!("closed in {}, {} ", seconds(sample_seconds), rate(speed)),
        false => {
            format!("since statistics began, {} an hour ", bytes(hourly.unwrap_or_default() as u64))
        }
    };
    let text = format!(
        "{} of {} on average {when}in database {name}; work_mem {}",
        files(file_count),
        bytes(average),
        format_size_setting(memory)
    );
    let finding = TEMP
        .note(text)
        .count("files", file_count)
        .count("bytes", size)
        .number("bytes_per_second", speed)
        .weight(size as f64)
        .advice(
            "work_mem applies to each sort or hash of each session, so raise it only in the \
             sessions that need it. log_temp_files logs the statements.",
        );
    // A sort in memory takes about twice the size of its file.
    let wanted = (2 * average / (1 << 20)).next_power_of_two().clamp(16, 1024);
    Some(match wanted << 20 > memory {
        true => {
            finding.remedy(format!("set work_mem = '{wanted}MB'; -- in the sessions that sort"))
        }
        false => finding,
    })
}

/// The free space for temporary files, and how it is known.
#[derive(Debug, Clone, Copy)]
struct FreeSpace {
    bytes: u64,
    from: &'static str,
}

/// Returns the free space for temporary files. It is the smaller one of two: the free space of the
/// disk, if the server is on this machine; and the size of `--storage` less all known data. The
/// second applies only to the default tablespace, and not to Aurora.
async fn find_free_space(context: &CheckContext<'_>) -> Option<FreeSpace> {
    let temp = &context.temp;
    let location = temp.location.as_ref()?;
    let here = temp.free_bytes.map(|bytes| FreeSpace { bytes, from: "free on their disk" });
    let volume = context.options.storage.as_ref();
    let volume = volume.filter(|_| location.is_default() && context.flavour != Flavour::Aurora);
    let Some(volume) = volume else { return here };
    let Some(data) = data_bytes(context).await else { return here };
    let sql = "select coalesce(sum(size), 0)::int8 from pg_ls_waldir()";
    let wal = query_in_savepoint(context.client, sql).await.map_or(0, |row| row.get::<_, i64>(0));
    let taken = data + wal.unsigned_abs() + temp.existing_bytes.unwrap_or_default();
    let bytes = ((volume.gib * (1u64 << 30) as f64) as u64).saturating_sub(taken);
    let left = FreeSpace { bytes, from: "free on the volume as far as databases and WAL show" };
    Some(here.filter(|here| here.bytes < bytes).unwrap_or(left))
}

/// Warns if temporary files fill the free space soon.
fn judge_growth(context: &CheckContext<'_>, room: Option<FreeSpace>) -> Option<Finding> {
    let temp = &context.temp;
    let room = room?;
    let lasts = seconds_until_full(room.bytes, temp.growth, temp.seconds)?;
    let text = format!(
        "temporary files take {} and grow by {}; {} are {}, full in {} at this rate",
        bytes(temp.existing_bytes.unwrap_or_default()),
        rate(temp.growth),
        bytes(room.bytes),
        room.from,
        seconds(lasts)
    );
    let finding = TEMP
        .warning(text)
        .number("growth_per_second", temp.growth)
        .count("free_bytes", room.bytes)
        .number("lasts_seconds", lasts)
        .weight(1e15);
    let owners = temp.location.as_ref().map(|location| location.owners_query());
    let finding = owners.into_iter().fold(finding, Finding::remedy);
    if context.setting("temp_file_limit") != Some("-1") {
        return Some(finding.advice(FULL_DISK));
    }
    let half = format_size_setting((room.bytes / 2).max(64 << 20) >> 20 << 20);
    let finding = finding
        .advice(format!("{FULL_DISK} With a limit, only the statement that takes too much fails."));
    Some(
        context
            .statements_to_set("temp_file_limit", &half)
            .into_iter()
            .fold(finding, Finding::remedy),
    )
}

const FULL_DISK: &str =
    "On a full disk statements fail; if WAL is on the same disk, the server stops.";

/// Returns the seconds until the free space is used up, if the sample was long enough to tell.
fn seconds_until_full(free: u64, growth: f64, sample_seconds: f64) -> Option<f64> {
    let lasts = free as f64 / growth.max(f64::MIN_POSITIVE);
    (growth >= 1.0 && lasts <= EXTRAPOLATION_FACTOR * sample_seconds).then_some(lasts)
}

/// Reports a `temp_file_limit` that is larger than the space for temporary files.
fn judge_limit(context: &CheckContext<'_>, room: Option<FreeSpace>) -> Option<Finding> {
    let limit = context.setting("temp_file_limit").filter(|it| *it != "-1")?;
    let limit = limit.parse::<u64>().ok()? << 10;
    let room = room?;
    let all = room.bytes + context.temp.existing_bytes.unwrap_or_default();
    if limit <= all {
        return None;
    }
    let text = format!(
        "temp_file_limit allows one session {}, but only {} are {}",
        format_size_setting(limit),
        bytes(room.bytes),
        room.from
    );
    let finding = TEMP.note(text).about("temp_file_limit").weight(limit as f64);
    let finding = finding.advice("One session can fill the disk before the limit stops it.");
    let half = format_size_setting((all / 2).max(64 << 20) >> 20 << 20);
    Some(
        context
            .statements_to_set("temp_file_limit", &half)
            .into_iter()
            .fold(finding, Finding::remedy),
    )
}

/// Reports tablespaces of `temp_tablespaces` that do not exist, or that the role may not use.
/// PostgreSQL skips them silently.
async fn check_tablespaces(
    context: &CheckContext<'_>,
) -> Result<Vec<Finding>, tokio_postgres::Error> {
    let sql = "select quote_ident($1), \
                      (select has_tablespace_privilege(oid, 'create') from pg_tablespace \
                       where spcname = $1), \
                      (select quote_ident(spcname) from pg_tablespace t join pg_database d \
                       on t.oid = d.dattablespace where datname = current_database()), \
                      quote_ident(current_database())";
    let mut named: Vec<(String, Option<bool>)> = Vec::new();
    let (mut default, mut database) = (String::new(), String::new());
    for name in parse_names(context.setting("temp_tablespaces").unwrap_or_default()) {
        let row = context.client.query_one(sql, &[&name]).await?;
        named.push((row.get(0), row.get(1)));
        (default, database) = (row.get(2), row.get(3));
    }
    // Each remedy keeps all existing tablespaces, so one remedy does not undo another.
    let if_exists = |(name, may): &(String, Option<bool>)| may.map(|_| name.clone());
    let existing: Vec<String> = named.iter().filter_map(if_exists).collect();
    let mut found = Vec::new();
    // Every role may use the database's default tablespace.
    for (object, may) in named.into_iter().filter(|(it, may)| *may != Some(true) && *it != default)
    {
        let mut advice =
            "Temporary files go to the next tablespace of the list, or to the default tablespace."
                .to_owned();
        let finding = match may {
            None => {
                let text = "temp_tablespaces names this tablespace, but it does not exist";
                match statements_to_keep(context, &existing, &database) {
                    Ok(set) => set.into_iter().fold(TEMP.note(text), Finding::remedy),
                    Err(where_else) => {
                        advice.push_str(where_else);
                        TEMP.note(text)
                    }
                }
            }
            Some(_) => {
                let role = &context.rights.role;
                let text = format!(
                    "temp_tablespaces names this tablespace, but role {role} may not use it"
                );
                TEMP.note(text)
                    .remedy(context.grant_statement(&format!("create on tablespace {object}")))
            }
        };
        found.push(finding.about(object).advice(advice));
    }
    Ok(found)
}

/// Returns statements that set `temp_tablespaces` to these names, at the level where it is set.
///
/// # Errors
/// A sentence that says where the setting is set, if no statement can change it there.
fn statements_to_keep(
    context: &CheckContext<'_>,
    names: &[String],
    database: &str,
) -> Result<Vec<String>, &'static str> {
    // The list is not quoted as a whole, because it would then be one name.
    let list = if names.is_empty() { "''".to_owned() } else { names.join(", ") };
    let role = quote_ident(&context.rights.role);
    let source = context.settings.get("temp_tablespaces").map(|it| it.source.as_str());
    let whose = match source.unwrap_or_default() {
        "client" | "session" => return Err(" It is set in the options of this session."),
        "command line" => return Err(" It is set on the command line that started the server."),
        "global" => "role all".to_owned(),
        "database" => format!("database {database}"),
        "user" => format!("role {role}"),
        "database user" => format!("role {role} in database {database}"),
        _ if !context.flavour.has_alter_system() => {
            return Ok(context.statements_to_set("temp_tablespaces", &list));
        }
        _ => "system".to_owned(),
    };
    let mut set = vec![format!("alter {whose} set temp_tablespaces = {list};")];
    if whose == "system" {
        set.push("select pg_reload_conf();".to_owned());
    }
    Ok(set)
}

/// Describes the temporary files if there is no problem.
fn describe_state(context: &CheckContext<'_>, room: Option<FreeSpace>) -> String {
    let temp = &context.temp;
    let place = match &temp.location {
        Some(location) if location.is_default() => "in the default tablespace".to_owned(),
        Some(location) => format!("in tablespace {}", location.name),
        None => "in more than one tablespace".to_owned(),
    };
    let limit = match context.setting("temp_file_limit") {
        Some("-1") | None => "none".to_owned(),
        Some(_) => {
            format_size_setting(context.setting_bytes("temp_file_limit").unwrap_or_default())
        }
    };
    let misses_shared = temp.location.as_ref().is_some_and(|location| location.misses_shared());
    let existing = match temp.existing_bytes {
        Some(existing) if misses_shared => {
            format!("{} now without those of parallel queries", bytes(existing))
        }
        Some(existing) => format!("{} now", bytes(existing)),
        None => "their size now is visible only to pg_monitor".to_owned(),
    };
    let room = match room {
        Some(room) => format!("{} {}", bytes(room.bytes), room.from),
        None => "free space unknown".to_owned(),
    };
    let mut closed: Vec<&DatabaseTempFiles> =
        temp.closed.iter().filter(|it| it.bytes > 0).collect();
    closed.sort_by_key(|it| std::cmp::Reverse(it.bytes));
    let databases: Vec<String> = closed
        .iter()
        .take(3)
        .map(|it| format!("{} in {} of database {}", bytes(it.bytes), files(it.files), it.name))
        .collect();
    let databases = match databases.is_empty() {
        true => "none since statistics began".to_owned(),
        false => format!("{} since statistics began", databases.join(", ")),
    };
    format!("{databases}; {place}, {existing}, {room}; temp_file_limit {limit}")
}

/// Counts files in words: `1 file`, `1,234 files`.
fn files(count: u64) -> String {
    format!("{} file{}", thousands(count), if count == 1 { "" } else { "s" })
}

/// Shows whether temporary objects are on the instance's own disk, and how full Aurora's tiered
/// cache is.
async fn check_optimized_reads(context: &CheckContext<'_>) -> Finding {
    let setting = context.setting("temp_tablespaces").unwrap_or_default();
    let own = ["aurora_temp_tablespace", "rds_temp_tablespace"];
    let is_own = parse_names(setting).iter().any(|name| own.contains(&name.as_str()));
    let objects = match (is_own, setting) {
        (true, _) => format!("temporary objects on the instance's own disk ({setting})"),
        (false, "") => {
            "temporary objects not on the instance's own disk: temp_tablespaces is empty".to_owned()
        }
        (false, _) => format!(
            "temporary objects not on the instance's own disk: temp_tablespaces is {setting}"
        ),
    };
    let mut text = objects;
    if context.flavour == Flavour::Aurora {
        // The function exists from 14.9 and 15.4 on. It fails on instances without such a cache.
        let sql = "select total_size::int8, used_size::int8 \
                   from aurora_stat_optimized_reads_cache()";
        let size = query_in_savepoint(context.client, sql).await.map(|row| {
            let number = |nth| row.get::<_, Option<i64>>(nth).unwrap_or_default().unsigned_abs();
            (number(0), number(1))
        });
        text.push_str(&match size {
            Some((total, used)) if total > 0 => {
                format!("; tiered cache on, {} of {} used", bytes(used), bytes(total))
            }
            _ => "; tiered cache off".to_owned(),
        });
    }
    let libraries = context.setting("shared_preload_libraries");
    if let Some(libraries) = libraries.filter(|it| !it.is_empty()) {
        text.push_str(&format!("; shared_preload_libraries {libraries}"));
    }
    OPTIMIZED.ok(text).always_shown()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growth_rate_is_extrapolated_to_ten_times_the_sample() {
        assert_eq!(seconds_until_full(1_000_000_000, 1e8, 2.0), Some(10.0));
        assert_eq!(seconds_until_full(1_000_000_000, 1e7, 2.0), None);
        assert_eq!(seconds_until_full(1_000_000_000, 1e7, 60.0), Some(100.0));
        assert_eq!(seconds_until_full(0, 1e7, 2.0), Some(0.0));
        assert_eq!(seconds_until_full(0, 0.0, 2.0), None);
        assert_eq!(seconds_until_full(1_000_000_000, 0.0, 2.0), None);
    }

    #[test]
    fn closed_files_are_judged_by_their_rate() {
        let closed = |bytes, hours, sampled_bytes| DatabaseTempFiles {
            name: "shop".to_owned(),
            files: bytes >> 25,
            bytes,
            hours: Some(hours),
            sampled_files: sampled_bytes >> 25,
            sampled_bytes,
        };
        let found = |closed: &DatabaseTempFiles| {
            let found = judge_spilled(closed, 2.0, 4 << 20)?;
            Some((found.evidence, found.remedy.join(" ")))
        };
        // Many bytes in all, but few an hour. Less than an hour counts as a full hour.
        assert_eq!(found(&closed(1 << 40, 1000.0, 0)), None);
        assert_eq!(found(&closed(1 << 33, 0.01, 0)), None);
        // Only a sort or two.
        assert_eq!(found(&closed(1 << 30, 1.0, 64 << 20)), None);
        let (evidence, remedy) = found(&closed(1 << 40, 100.0, 0)).unwrap();
        assert_eq!(
            evidence,
            "32,768 files of 33.6 MB on average since statistics began, 11.0 GB an hour in \
             database shop; work_mem 4MB"
        );
        assert_eq!(remedy, "set work_mem = '64MB'; -- in the sessions that sort");
        let (evidence, _) = found(&closed(1 << 30, 100.0, 1 << 30)).unwrap();
        assert!(evidence.starts_with("32 files of 33.6 MB on average closed in 2.00 s, 537 MB/s"));
        assert_eq!(judge_spilled(&closed(0, 1.0, 1 << 30), 2.0, 64 << 20).unwrap().remedy.len(), 0);
    }
}
