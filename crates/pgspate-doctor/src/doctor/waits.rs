//! What writers wait for, sampled from `pg_stat_activity`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::finding::{Check, Finding};
use super::scene::{Found, Scene};

const WAITS: Check = Check {
    id: "storage-waits",
    question: "What do working sessions wait for?",
    rule: "PostgreSQL manual, monitoring: wait events; a quarter of the samples is worth a look",
};

/// Fewer samples of working sessions than this say nothing.
const SAMPLES_MIN: u64 = 5;
/// A wait in that share of the samples is worth a note, in that one a warning.
const SHARES: (f64, f64) = (0.25, 0.5);

/// Samples by what was waited for; `CPU` for not waiting.
#[derive(Debug, Clone, Default)]
pub(super) struct Waits {
    events: BTreeMap<String, u64>,
    /// Sessions whose state this role may not see, in the last sample.
    hidden: u64,
    failed: bool,
}

const SAMPLE: &str = "\
select coalesce(wait_event_type || ':' || wait_event, 'CPU'), count(*),
       coalesce(query = '<insufficient privilege>', false)
from pg_stat_activity
where pid <> pg_backend_pid() and usesysid is not null and backend_type is distinct from 'walsender'
  and (state = 'active' or query = '<insufficient privilege>')
group by 1, 3";

impl Waits {
    /// Samples for so long, ten times a second for the first two seconds and four times then.
    pub(super) async fn sample(client: &Client, duration: Duration) -> Waits {
        let mut waits = Waits::default();
        let begun = Instant::now();
        while begun.elapsed() < duration && !waits.failed {
            waits.look(client).await;
            let pause = if begun.elapsed() < Duration::from_secs(2) { 100 } else { 250 };
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        waits
    }

    async fn look(&mut self, client: &Client) {
        let Ok(rows) = client.query(SAMPLE, &[]).await else {
            self.failed = true;
            return;
        };
        self.hidden = 0;
        for row in rows {
            let count = row.get::<_, i64>(1).unsigned_abs();
            match row.get(2) {
                true => self.hidden += count,
                false => *self.events.entry(row.get(0)).or_default() += count,
            }
        }
    }

    fn all(&self) -> u64 {
        self.events.values().sum()
    }
}

/// What a wait means, and what helps.
struct Meaning {
    /// How the event's name begins.
    events: &'static [&'static str],
    means: &'static str,
    helps: &'static str,
    sql: &'static [&'static str],
}

impl Meaning {
    /// Whether an event means that. Waiting to make a file longer is waiting for a lock, too, but
    /// has a meaning of its own.
    fn is_of(&self, event: &str) -> bool {
        let begins = self.events.iter().any(|it| event.starts_with(it));
        begins && (event != "Lock:extend" || self.events.contains(&event))
    }
}

const MEANINGS: &[Meaning] = &[
    Meaning {
        events: &["IO:WALWrite", "IO:WALSync", "IO:WalWrite", "IO:WalSync", "LWLock:WALWrite"],
        means: "the WAL reaches the disk too slowly, or each commit waits for it",
        helps: "Commit less often; let the sessions that load, and only those, not wait for each \
                commit; put pg_wal on a disk of its own.",
        sql: &["set synchronous_commit = off; -- in the loading session, its last commit with on"],
    },
    Meaning {
        events: &["IO:XactSync"],
        means: "each commit waits for the storage's copies",
        helps: "Make commits fewer and larger.",
        sql: &["set synchronous_commit = off; -- in the loading session, its last commit with on"],
    },
    Meaning {
        events: &["IPC:SyncRep"],
        means: "each commit waits for a synchronous replica",
        helps: "Commit less often; let the sessions that load wait for the server's own disk only.",
        sql: &[
            "set synchronous_commit = local; -- in the loading session, its last commit with on",
        ],
    },
    Meaning {
        events: &["LWLock:WALInsert"],
        means: "more sessions write WAL than its eight insertion locks let through",
        helps: "Use fewer sessions (`pgspate load --lanes 4`), and load before making indexes.",
        sql: &[],
    },
    Meaning {
        events: &["IO:DataFileExtend", "Lock:extend"],
        means: "sessions wait for the table's file to become longer",
        helps: "Use fewer sessions for each table, or spread them over partitions; from \
                PostgreSQL 16 on files grow by many pages at once.",
        sql: &[],
    },
    Meaning {
        events: &["IO:DataFileWrite", "IO:DataFileSync"],
        means: "sessions write changed pages themselves to make room in the cache",
        helps: "Raise shared_buffers, or let the background writer do more \
                (bgwriter_lru_maxpages).",
        sql: &[],
    },
    Meaning {
        // What 13 calls a lock is a condition from 14 on; 18 reads through others.
        events: &[
            "IO:DataFileRead",
            "IPC:BufferIO",
            "IPC:BufferIo",
            "LWLock:BufferIO",
            "IO:AioIoCompletion",
            "IO:AioIoUring",
            "LWLock:AioUringCompletion",
        ],
        means: "pages have to be read before they can be changed: indexes do not fit in the cache",
        helps: "Load without secondary indexes and make them afterwards (`pgspate load \
                --rebuild-indexes always`), or raise shared_buffers.",
        sql: &[],
    },
    Meaning {
        events: &["LWLock:BufferContent", "BufferPin:", "LWLock:buffer_content"],
        means: "many sessions change the same pages, as the last page of an index on a sequence",
        helps: "Use fewer sessions, or load before making that index.",
        sql: &[],
    },
    Meaning {
        events: &["Lock:"],
        means: "sessions wait for others' locks",
        helps: "See who holds them.",
        sql: &["select pid, pg_blocking_pids(pid), state, left(query, 60) from pg_stat_activity \
                where cardinality(pg_blocking_pids(pid)) > 0;"],
    },
    Meaning {
        events: &["IO:BufFileWrite", "IO:BufFileRead", "IO:BuffileWrite", "IO:BuffileRead"],
        means: "sorts and hashes do not fit in work_mem",
        helps: "Raise it for the sessions that need it; `temporary-files` says how far.",
        sql: &[],
    },
    Meaning {
        events: &["Client:"],
        means: "the server waits for its clients",
        helps: "The server is not the limit: look at the network and at what sends the rows.",
        sql: &[],
    },
];

/// What sessions waited for meanwhile.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let waits = &scene.waits;
    let all = waits.all();
    let seconds = scene.options.sample.as_secs_f64();
    if waits.failed {
        return Ok(vec![WAITS.cannot_see("pg_stat_activity cannot be read")]);
    }
    if waits.hidden > 0 && !scene.rights.reads_stats {
        let why = format!("{} sessions of other roles hide what they wait for", waits.hidden);
        let hidden = WAITS.cannot_see(why).run(scene.grant("pg_read_all_stats"));
        if all < SAMPLES_MIN {
            return Ok(vec![hidden]);
        }
        return Ok([vec![hidden], judge(waits)].concat());
    }
    if all < SAMPLES_MIN {
        let text = format!("no session was at work in {seconds:.0} s; look during a load");
        return Ok(vec![WAITS.ok(text).advice("Run it with `--watch 60s` while a load runs.")]);
    }
    Ok(judge(waits))
}

fn judge(waits: &Waits) -> Vec<Finding> {
    let all = waits.all() as f64;
    let share = |meaning: &Meaning| {
        let found = waits.events.iter().filter(|(event, _)| meaning.is_of(event));
        found.map(|(_, count)| *count).sum::<u64>() as f64 / all
    };
    let mut found = Vec::new();
    for meaning in MEANINGS {
        let share = share(meaning);
        if share >= SHARES.0 {
            let names = names(waits, meaning);
            let text =
                format!("{:.0} % of {all} samples: {names}; {}", share * 100.0, meaning.means);
            let finding = WAITS.worse(share >= SHARES.1, text).number("share", share);
            let finding = finding.number("samples", all).advice(meaning.helps).weighs(share * 1e12);
            found.push(meaning.sql.iter().fold(finding, |finding, sql| finding.run(*sql)));
        }
    }
    if found.is_empty() {
        let mut events: Vec<_> = waits.events.iter().collect();
        events.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let first: Vec<String> = events
            .iter()
            .take(3)
            .map(|(event, count)| format!("{event} {:.0} %", **count as f64 / all * 100.0))
            .collect();
        found.push(WAITS.ok(format!("{all} samples: {}", first.join(", "))).number("samples", all));
    }
    found
}

fn names(waits: &Waits, meaning: &Meaning) -> String {
    let matches = |event: &&String| meaning.is_of(event);
    let names: Vec<&str> = waits.events.keys().filter(matches).map(String::as_str).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn waits_are_judged_by_their_share() {
        let waits = |events: &[(&str, u64)]| Waits {
            events: events.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            ..Waits::default()
        };
        let verdicts = |events: &[(&str, u64)]| -> Vec<Verdict> {
            judge(&waits(events)).iter().map(|finding| finding.verdict).collect()
        };
        assert_eq!(verdicts(&[("CPU", 90), ("IO:WALSync", 10)]), [Verdict::Ok]);
        assert_eq!(verdicts(&[("CPU", 70), ("IO:WALSync", 30)]), [Verdict::Note]);
        assert_eq!(verdicts(&[("IO:WALWrite", 30), ("IO:WALSync", 30)]), [Verdict::Warning]);
        assert_eq!(verdicts(&[("Lock:extend", 9)]), [Verdict::Warning]);
        let found = judge(&waits(&[("Lock:transactionid", 9), ("CPU", 1)]));
        assert_eq!(
            found[0].evidence,
            "90 % of 10 samples: Lock:transactionid; sessions wait for \
                                       others' locks"
        );
    }

    #[test]
    fn each_version_has_its_own_names() {
        let means = |event: &str| {
            let events = BTreeMap::from([(event.to_owned(), 9)]);
            let found = judge(&Waits { events, ..Waits::default() });
            found[0].evidence.split_once("; ").map(|(_, means)| means.to_owned())
        };
        // A page that is read: 13, 14, 17, and 18 with each of its ways.
        let read = means("IO:DataFileRead").unwrap();
        for event in [
            "LWLock:BufferIO",
            "IPC:BufferIO",
            "IPC:BufferIo",
            "IO:AioIoCompletion",
            "IO:AioIoUringExecution",
        ] {
            assert_eq!(means(event), Some(read.clone()), "{event}");
        }
        assert_eq!(means("IO:WalSync"), means("IO:WALSync"));
        assert_eq!(means("IO:BuffileWrite"), means("IO:BufFileWrite"));
        // Who waits to make a file longer is not counted twice, nor named where not counted.
        let events = [("Lock:extend", 5), ("Lock:relation", 5)];
        let events = events.map(|(name, count)| (name.to_owned(), count)).into();
        let found = judge(&Waits { events, ..Waits::default() });
        assert_eq!(found.len(), 2);
        assert!(found[0].evidence.starts_with("50 % of 10 samples: Lock:extend; "));
        assert!(found[1].evidence.starts_with("50 % of 10 samples: Lock:relation; "));
    }
}
