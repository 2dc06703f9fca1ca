//! Temporary files: how much, where, whether that is as it was meant, and how long the space lasts.
//!
//! A rate is believed for ten times as long as it was watched, and no longer.

use super::finding::{Check, Finding};
use super::scene::{Found, Scene, attempt};
use super::storage::data_bytes;
use super::tempfiles::{Closed, names};
use pgspate_base::numbers::{bytes, rate, seconds, thousands};
use pgspate_target::quote_ident;
use pgspate_target::server::{Flavour, words};

const TEMP: Check = Check {
    id: "temporary-files",
    question: "Do sorts and hashes go to the disk, and is there room for them?",
    rule: "pg_stat_database.temp_bytes: what did not fit in work_mem, when it is closed; \
           pg_ls_tmpdir: what is there; PostgreSQL manual, temp_file_limit and temp_tablespaces",
};
const OPTIMIZED: Check = Check {
    id: "optimized-reads",
    question: "Are temporary files on the instance's own disk?",
    rule: "Amazon user guides of Aurora and RDS, Optimized Reads: temp_tablespaces, and \
           aurora_stat_optimized_reads_cache()",
};

/// Bytes that are closed while it is looked, and of them a second, from which on they are worth a
/// word.
const MEANWHILE_MIN: (u64, f64) = (100 << 20, 1e7);
/// Bytes an hour since statistics began that are.
const HOURLY_MIN: f64 = 1e10;
/// For so many times as long as it was watched a rate is believed.
const BELIEVED: f64 = 10.0;

/// Temporary files of the server.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let temp = &scene.temp;
    if temp.closed.is_empty() {
        return Ok(vec![TEMP.cannot_see("pg_stat_database cannot be read")]);
    }
    let room = room(scene).await;
    let memory = scene.setting_bytes("work_mem").unwrap_or(4 << 20);
    let spilled = temp.closed.iter().filter_map(|closed| spilled(closed, temp.seconds, memory));
    let mut found: Vec<Finding> = spilled.collect();
    found.extend(exhaustion(scene, room));
    found.extend(limit(scene, room));
    found.extend(places(scene).await?);
    if found.is_empty() {
        found.push(TEMP.ok(state(scene, room)));
    }
    if matches!(scene.flavour, Flavour::Aurora | Flavour::Rds) {
        found.push(optimized(scene).await);
    }
    Ok(found)
}

/// A database whose statements write many: while it was looked for so many seconds, or on average.
fn spilled(closed: &Closed, watched: f64, memory: u64) -> Option<Finding> {
    let name = &closed.name;
    let speed = closed.bytes_meanwhile as f64 / watched;
    let hourly = closed.hours.map(|hours| closed.bytes as f64 / hours.max(1.0));
    let is_now = closed.bytes_meanwhile >= MEANWHILE_MIN.0 && speed >= MEANWHILE_MIN.1;
    if !is_now && hourly.is_none_or(|hourly| hourly < HOURLY_MIN) {
        return None;
    }
    let (files, size) = match is_now {
        true => (closed.files_meanwhile, closed.bytes_meanwhile),
        false => (closed.files, closed.bytes),
    };
    let average = size / files.max(1);
    let when = match is_now {
        true => format!("closed in {}, {} ", seconds(watched), rate(speed)),
        false => {
            format!("since statistics began, {} an hour ", bytes(hourly.unwrap_or_default() as u64))
        }
    };
    let text = format!(
        "{} files of {} on average {when}in database {name}; work_mem {}",
        thousands(files),
        bytes(average),
        words(memory)
    );
    let finding = TEMP
        .note(text)
        .count("files", files)
        .count("bytes", size)
        .number("bytes_per_second", speed)
        .weighs(size as f64)
        .advice(
            "work_mem counts for each sort or hash of each session: raise it where it is needed \
             rather than for all, and log_temp_files names the statements.",
        );
    // A sort in memory takes about twice what its file has.
    let wanted = (2 * average / (1 << 20)).next_power_of_two().clamp(16, 1024);
    Some(match wanted << 20 > memory {
        true => finding.run(format!("set work_mem = '{wanted}MB'; -- in the sessions that sort")),
        false => finding,
    })
}

/// What is free for temporary files, and how that is known.
#[derive(Debug, Clone, Copy)]
struct Room {
    bytes: u64,
    from: &'static str,
}

/// The smaller of what the disk has, where the server is here, and of what `--storage` leaves
/// beside everything that is known to be on it.
async fn room(scene: &Scene<'_>) -> Option<Room> {
    let temp = &scene.temp;
    let place = temp.place.as_ref()?;
    let here = temp.free.map(|bytes| Room { bytes, from: "free on the disk they are on" });
    let volume = scene.options.storage.as_ref();
    let volume = volume.filter(|_| place.is_default() && scene.flavour != Flavour::Aurora);
    let Some(volume) = volume else { return here };
    let Some(data) = data_bytes(scene).await else { return here };
    let sql = "select coalesce(sum(size), 0)::int8 from pg_ls_waldir()";
    let wal = attempt(scene.client, sql).await.map_or(0, |row| row.get::<_, i64>(0));
    let taken = data + wal.unsigned_abs() + temp.held.unwrap_or_default();
    let bytes = ((volume.gib * (1u64 << 30) as f64) as u64).saturating_sub(taken);
    let left = Room { bytes, from: "left at most on the volume beside databases and WAL" };
    Some(here.filter(|here| here.bytes < bytes).unwrap_or(left))
}

/// That the room will not last.
fn exhaustion(scene: &Scene<'_>, room: Option<Room>) -> Option<Finding> {
    let temp = &scene.temp;
    let room = room?;
    let lasts = lasts(room.bytes, temp.growth, temp.seconds)?;
    let text = format!(
        "temporary files hold {} and grow by {}; {} are {}: full in {} at that",
        bytes(temp.held.unwrap_or_default()),
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
        .weighs(1e15);
    let owners = temp.place.as_ref().map(|place| place.owners());
    let finding = owners.into_iter().fold(finding, Finding::run);
    if scene.setting("temp_file_limit") != Some("-1") {
        return Some(finding.advice("A full disk ends statements, and beside WAL the server."));
    }
    let half = words((room.bytes / 2).max(64 << 20) >> 20 << 20);
    let finding = finding.advice(
        "A full disk ends statements, and beside WAL the server. With a limit the statement that \
         takes too much ends alone.",
    );
    Some(scene.set("temp_file_limit", &half).into_iter().fold(finding, Finding::run))
}

/// Seconds until the room is full, if that is soon enough to say so.
fn lasts(free: u64, growth: f64, watched: f64) -> Option<f64> {
    let lasts = free as f64 / growth.max(f64::MIN_POSITIVE);
    (growth >= 1.0 && lasts <= BELIEVED * watched).then_some(lasts)
}

/// A limit that is more than there is.
fn limit(scene: &Scene<'_>, room: Option<Room>) -> Option<Finding> {
    let limit = scene.setting("temp_file_limit").filter(|it| *it != "-1")?;
    let limit = limit.parse::<u64>().ok()? << 10;
    let room = room?;
    let all = room.bytes + scene.temp.held.unwrap_or_default();
    if limit <= all {
        return None;
    }
    let text = format!(
        "temp_file_limit lets one session have {}, and {} are {}",
        words(limit),
        bytes(room.bytes),
        room.from
    );
    let finding = TEMP.note(text).on("temp_file_limit").weighs(limit as f64);
    let finding = finding.advice("A session can fill the disk before it is stopped.");
    let half = words((all / 2).max(64 << 20) >> 20 << 20);
    Some(scene.set("temp_file_limit", &half).into_iter().fold(finding, Finding::run))
}

/// Tablespaces for temporary files that are not there, or not for this role: PostgreSQL passes
/// over them without a word.
async fn places(scene: &Scene<'_>) -> Result<Vec<Finding>, tokio_postgres::Error> {
    let sql = "select quote_ident($1), \
                      (select has_tablespace_privilege(oid, 'create') from pg_tablespace \
                       where spcname = $1), \
                      (select quote_ident(spcname) from pg_tablespace t join pg_database d \
                       on t.oid = d.dattablespace where datname = current_database()), \
                      quote_ident(current_database())";
    let mut named: Vec<(String, Option<bool>)> = Vec::new();
    let (mut default, mut database) = (String::new(), String::new());
    for name in names(scene.setting("temp_tablespaces").unwrap_or_default()) {
        let row = scene.client.query_one(sql, &[&name]).await?;
        named.push((row.get(0), row.get(1)));
        (default, database) = (row.get(2), row.get(3));
    }
    // Each finding leaves what is there, so that one remedy does not undo another.
    let is_there = |(name, may): &(String, Option<bool>)| may.map(|_| name.clone());
    let there: Vec<String> = named.iter().filter_map(is_there).collect();
    let mut found = Vec::new();
    // The database's own is everybody's.
    for (object, may) in named.into_iter().filter(|(it, may)| *may != Some(true) && *it != default)
    {
        let mut advice =
            "Temporary files go to the next one that is named, or beside the data.".to_owned();
        let finding = match may {
            None => {
                let text = "temp_tablespaces names it, and there is no such tablespace";
                match name_alone(scene, &there, &database) {
                    Ok(set) => set.into_iter().fold(TEMP.note(text), Finding::run),
                    Err(where_else) => {
                        advice.push_str(where_else);
                        TEMP.note(text)
                    }
                }
            }
            Some(_) => {
                let role = &scene.rights.role;
                let text = format!("temp_tablespaces names it, and role {role} may not use it");
                TEMP.note(text).run(scene.grant(&format!("create on tablespace {object}")))
            }
        };
        found.push(finding.on(object).advice(advice));
    }
    Ok(found)
}

/// What has `temp_tablespaces` name these alone, changed where it is set; or where else that is.
fn name_alone(
    scene: &Scene<'_>,
    names: &[String],
    database: &str,
) -> Result<Vec<String>, &'static str> {
    // A list in quotes would be one name.
    let list = if names.is_empty() { "''".to_owned() } else { names.join(", ") };
    let role = quote_ident(&scene.rights.role);
    let source = scene.settings.get("temp_tablespaces").map(|it| it.source.as_str());
    let whose = match source.unwrap_or_default() {
        "client" | "session" => return Err(" The options of this session name it."),
        "command line" => return Err(" The command line that started the server names it."),
        "global" => "role all".to_owned(),
        "database" => format!("database {database}"),
        "user" => format!("role {role}"),
        "database user" => format!("role {role} in database {database}"),
        _ if !scene.flavour.has_alter_system() => return Ok(scene.set("temp_tablespaces", &list)),
        _ => "system".to_owned(),
    };
    let mut set = vec![format!("alter {whose} set temp_tablespaces = {list};")];
    if whose == "system" {
        set.push("select pg_reload_conf();".to_owned());
    }
    Ok(set)
}

/// What there is, where nothing is wrong.
fn state(scene: &Scene<'_>, room: Option<Room>) -> String {
    let temp = &scene.temp;
    let place = match &temp.place {
        Some(place) if place.is_default() => "beside the data".to_owned(),
        Some(place) => format!("in tablespace {}", place.name),
        None => "in more than one place".to_owned(),
    };
    let limit = match scene.setting("temp_file_limit") {
        Some("-1") | None => "none".to_owned(),
        Some(_) => words(scene.setting_bytes("temp_file_limit").unwrap_or_default()),
    };
    let misses_shared = temp.place.as_ref().is_some_and(|place| place.misses_shared());
    let held = match temp.held {
        Some(held) if misses_shared => {
            format!("{} now without those of parallel queries", bytes(held))
        }
        Some(held) => format!("{} now", bytes(held)),
        None => "what there is now is for pg_monitor to see".to_owned(),
    };
    let room = match room {
        Some(room) => format!("{} {}", bytes(room.bytes), room.from),
        None => "how much is free there cannot be seen from here".to_owned(),
    };
    let mut closed: Vec<&Closed> = temp.closed.iter().filter(|it| it.bytes > 0).collect();
    closed.sort_by_key(|it| std::cmp::Reverse(it.bytes));
    let databases: Vec<String> = closed
        .iter()
        .take(3)
        .map(|it| format!("{} in {} of database {}", bytes(it.bytes), thousands(it.files), it.name))
        .collect();
    let databases = match databases.is_empty() {
        true => "none since statistics began".to_owned(),
        false => format!("{} since statistics began", databases.join(", ")),
    };
    format!("{databases}; {place}, {held}, {room}; temp_file_limit {limit}")
}

/// The instance's own disk for temporary objects, and Aurora's cache in front of the storage.
async fn optimized(scene: &Scene<'_>) -> Finding {
    let setting = scene.setting("temp_tablespaces").unwrap_or_default();
    let own = ["aurora_temp_tablespace", "rds_temp_tablespace"];
    let is_own = names(setting).iter().any(|name| own.contains(&name.as_str()));
    let objects = match (is_own, setting) {
        (true, _) => format!("temporary objects on the instance's own disk ({setting})"),
        (false, "") => "temporary objects not there: temp_tablespaces is empty".to_owned(),
        (false, _) => format!("temporary objects not there: temp_tablespaces is {setting}"),
    };
    let mut text = objects;
    if scene.flavour == Flavour::Aurora {
        // The function is there from 14.9 and 15.4 on; it refuses where there is no such cache.
        let sql = "select total_size::int8, used_size::int8 \
                   from aurora_stat_optimized_reads_cache()";
        let size = attempt(scene.client, sql).await.map(|row| {
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
    let libraries = scene.setting("shared_preload_libraries");
    if let Some(libraries) = libraries.filter(|it| !it.is_empty()) {
        text.push_str(&format!("; shared_preload_libraries {libraries}"));
    }
    OPTIMIZED.ok(text).told()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_believed_for_ten_times_as_long_as_it_was_watched() {
        assert_eq!(lasts(1_000_000_000, 1e8, 2.0), Some(10.0));
        assert_eq!(lasts(1_000_000_000, 1e7, 2.0), None);
        assert_eq!(lasts(1_000_000_000, 1e7, 60.0), Some(100.0));
        assert_eq!(lasts(0, 1e7, 2.0), Some(0.0));
        assert_eq!(lasts(0, 0.0, 2.0), None);
        assert_eq!(lasts(1_000_000_000, 0.0, 2.0), None);
    }

    #[test]
    fn what_was_spilled_is_judged_by_its_rate() {
        let closed = |bytes, hours, bytes_meanwhile| Closed {
            name: "shop".to_owned(),
            files: bytes >> 25,
            bytes,
            hours: Some(hours),
            files_meanwhile: bytes_meanwhile >> 25,
            bytes_meanwhile,
        };
        let found = |closed: &Closed| {
            let found = spilled(closed, 2.0, 4 << 20)?;
            Some((found.evidence, found.remedy.join(" ")))
        };
        // Much in all, and little in an hour; and the first hour is not made more of than it was.
        assert_eq!(found(&closed(1 << 40, 1000.0, 0)), None);
        assert_eq!(found(&closed(1 << 33, 0.01, 0)), None);
        // A sort or two.
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
        assert_eq!(spilled(&closed(0, 1.0, 1 << 30), 2.0, 64 << 20).unwrap().remedy.len(), 0);
    }
}
