//! Samples what active sessions wait for, from `pg_stat_activity`, and explains it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::context::{CheckContext, CheckResult};
use super::finding::{Check, Finding};
use pgspate_base::numbers::counted;

const WAITS: Check = Check {
    id: "storage-waits",
    question: "What do active sessions wait for?",
    rule: "PostgreSQL manual, monitoring: wait events; a wait in a quarter of the samples is a \
           note, in half of them a warning",
};

/// With fewer samples of active sessions, nothing is judged.
const SAMPLES_MIN: u64 = 5;
/// The least share of samples at which a wait is a note.
const NOTE_SHARE: f64 = 0.25;
/// The least share of samples at which a wait is a warning.
const WARNING_SHARE: f64 = 0.5;

/// Samples of active sessions.
#[derive(Debug, Clone, Default)]
pub(super) struct WaitSamples {
    /// Samples for each wait event; `CPU` if the session did not wait.
    events: BTreeMap<String, u64>,
    /// Sessions in the last sample whose state this role may not see.
    hidden: u64,
    /// Whether a query of `pg_stat_activity` failed.
    failed: bool,
}

const SAMPLE: &str = "\
select coalesce(wait_event_type || ':' || wait_event, 'CPU'), count(*),
       coalesce(query = '<insufficient privilege>', false)
from pg_stat_activity
where pid <> pg_backend_pid() and usesysid is not null and backend_type is distinct from 'walsender'
  and (state = 'active' or query = '<insufficient privilege>')
group by 1, 3";

impl WaitSamples {
    /// Samples for the given time: ten times a second for two seconds, then four times a second.
    pub(super) async fn sample(client: &Client, duration: Duration) -> WaitSamples {
        let mut waits = WaitSamples::default();
        let begun = Instant::now();
        while begun.elapsed() < duration && !waits.failed {
            waits.sample_once(client).await;
            let pause = if begun.elapsed() < Duration::from_secs(2) { 100 } else { 250 };
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        waits
    }

    async fn sample_once(&mut self, client: &Client) {
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

    fn total(&self) -> u64 {
        self.events.values().sum()
    }
}

/// What a group of wait events means, and what helps.
struct WaitMeaning {
    /// Prefixes of the events' names.
    events: &'static [&'static str],
    means: &'static str,
    helps: &'static str,
    sql: &'static [&'static str],
}

impl WaitMeaning {
    /// Returns whether an event belongs to the group. `Lock:extend` is not in the group `Lock:`,
    /// because it has a meaning of its own.
    fn includes(&self, event: &str) -> bool {
        let has_prefix = self.events.iter().any(|it| event.starts_with(it));
        has_prefix && (event != "Lock:extend" || self.events.contains(&event))
    }
}

const MEANINGS: &[WaitMeaning] = &[
    WaitMeaning {
        events: &["IO:WALWrite", "IO:WALSync", "IO:WalWrite", "IO:WalSync", "LWLock:WALWrite"],
        means: "WAL is written to disk too slowly, or each commit waits for the disk",
        helps: "Commit less often. Switch synchronous_commit off in the sessions that load, and \
                only there. Put pg_wal on its own disk.",
        sql: &["set synchronous_commit = off; -- in loading sessions; on for the last commit"],
    },
    WaitMeaning {
        events: &["IO:XactSync"],
        means: "each commit waits until Aurora's storage has stored its copies",
        helps: "Make commits fewer and larger.",
        sql: &["set synchronous_commit = off; -- in loading sessions; on for the last commit"],
    },
    WaitMeaning {
        events: &["IPC:SyncRep"],
        means: "each commit waits for a synchronous replica",
        helps: "Commit less often. Let the sessions that load wait only for the primary's disk.",
        sql: &["set synchronous_commit = local; -- in loading sessions; on for the last commit"],
    },
    WaitMeaning {
        events: &["LWLock:WALInsert"],
        means: "more sessions insert WAL than the eight WAL insertion locks allow",
        helps: "Use fewer sessions (`pgspate load --lanes 4`), and create indexes after the load.",
        sql: &[],
    },
    WaitMeaning {
        events: &["IO:DataFileExtend", "Lock:extend"],
        means: "sessions wait while the table's file is extended",
        helps: "Use fewer sessions for each table, or spread them over partitions. PostgreSQL 16 \
                and later extend a file by many pages at once.",
        sql: &[],
    },
    WaitMeaning {
        events: &["IO:DataFileWrite", "IO:DataFileSync"],
        means: "sessions write changed pages themselves to make room in shared_buffers",
        helps: "Raise shared_buffers, or let the background writer do more \
                (bgwriter_lru_maxpages).",
        sql: &[],
    },
    WaitMeaning {
        // PostgreSQL 13 has the LWLock event, 14 and later the IPC event, 18 the Aio events.
        events: &[
            "IO:DataFileRead",
            "IPC:BufferIO",
            "IPC:BufferIo",
            "LWLock:BufferIO",
            "IO:AioIoCompletion",
            "IO:AioIoUring",
            "LWLock:AioUringCompletion",
        ],
        means: "pages must be read before they are changed: indexes do not fit in shared_buffers",
        helps: "Load without secondary indexes and create them afterwards (`pgspate load \
                --rebuild-indexes always`), or raise shared_buffers.",
        sql: &[],
    },
    WaitMeaning {
        events: &["LWLock:BufferContent", "BufferPin:", "LWLock:buffer_content"],
        means: "many sessions change the same pages, such as the last page of an index on a serial \
                column",
        helps: "Use fewer sessions, or create that index after the load.",
        sql: &[],
    },
    WaitMeaning {
        events: &["Lock:"],
        means: "sessions wait for locks of other sessions",
        helps: "The query below shows who waits for whom.",
        sql: &["select pid, pg_blocking_pids(pid), state, left(query, 60) from pg_stat_activity \
                where cardinality(pg_blocking_pids(pid)) > 0;"],
    },
    WaitMeaning {
        events: &["IO:BufFileWrite", "IO:BufFileRead", "IO:BuffileWrite", "IO:BuffileRead"],
        means: "sorts and hashes do not fit in work_mem",
        helps: "Raise work_mem in the sessions that need it; the check `temporary-files` says how \
                far.",
        sql: &[],
    },
    WaitMeaning {
        events: &["Client:"],
        means: "the server waits for its clients",
        helps: "The server is not the limit. Look at the network and at the clients.",
        sql: &[],
    },
];

/// Checks what sessions waited for in the sample.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let waits = &context.waits;
    let all = waits.total();
    let seconds = context.options.sample.as_secs_f64();
    if waits.failed {
        return Ok(vec![WAITS.cannot_see("pg_stat_activity cannot be read")]);
    }
    if waits.hidden > 0 && !context.rights.reads_stats {
        let hidden = counted(waits.hidden, "session");
        let why = format!("this role cannot see the wait events of {hidden} of other roles");
        let hidden = WAITS.cannot_see(why).remedy(context.grant_statement("pg_read_all_stats"));
        if all < SAMPLES_MIN {
            return Ok(vec![hidden]);
        }
        return Ok([vec![hidden], judge(waits)].concat());
    }
    if all < SAMPLES_MIN {
        let text = match all {
            0 => format!("no session was active within {seconds:.0} s"),
            _ => format!(
                "sessions were hardly active within {seconds:.0} s: {}",
                counted(all, "sample")
            ),
        };
        let advice = "Run `pgspate doctor --watch 60s` during a load.";
        return Ok(vec![WAITS.ok(text).advice(advice)]);
    }
    Ok(judge(waits))
}

/// Explains each group of wait events with a large share of the samples.
fn judge(waits: &WaitSamples) -> Vec<Finding> {
    let all = waits.total() as f64;
    let share = |meaning: &WaitMeaning| {
        let found = waits.events.iter().filter(|(event, _)| meaning.includes(event));
        found.map(|(_, count)| *count).sum::<u64>() as f64 / all
    };
    let mut found = Vec::new();
    for meaning in MEANINGS {
        let share = share(meaning);
        if share >= NOTE_SHARE {
            let names = event_names(waits, meaning);
            let text =
                format!("{:.0} % of {all} samples: {names}; {}", share * 100.0, meaning.means);
            let finding =
                WAITS.note_or_warning(share >= WARNING_SHARE, text).number("share", share);
            let finding = finding.number("samples", all).advice(meaning.helps).weight(share * 1e12);
            found.push(meaning.sql.iter().fold(finding, |finding, sql| finding.remedy(*sql)));
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

/// Returns the sampled events that belong to a group.
fn event_names(waits: &WaitSamples, meaning: &WaitMeaning) -> String {
    let matches = |event: &&String| meaning.includes(event);
    let names: Vec<&str> = waits.events.keys().filter(matches).map(String::as_str).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn waits_are_judged_by_their_share() {
        let waits = |events: &[(&str, u64)]| WaitSamples {
            events: events.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            ..WaitSamples::default()
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
            "90 % of 10 samples: Lock:transactionid; sessions wait for locks of other sessions"
        );
    }

    #[test]
    fn event_names_of_all_versions_are_known() {
        let means = |event: &str| {
            let events = BTreeMap::from([(event.to_owned(), 9)]);
            let found = judge(&WaitSamples { events, ..WaitSamples::default() });
            found[0].evidence.split_once("; ").map(|(_, means)| means.to_owned())
        };
        // A page read in versions 13, 14 and 17, and with each I/O method of 18.
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
        // Lock:extend is neither counted nor named among the other locks.
        let events = [("Lock:extend", 5), ("Lock:relation", 5)];
        let events = events.map(|(name, count)| (name.to_owned(), count)).into();
        let found = judge(&WaitSamples { events, ..WaitSamples::default() });
        assert_eq!(found.len(), 2);
        assert!(found[0].evidence.starts_with("50 % of 10 samples: Lock:extend; "));
        assert!(found[1].evidence.starts_with("50 % of 10 samples: Lock:relation; "));
    }
}
