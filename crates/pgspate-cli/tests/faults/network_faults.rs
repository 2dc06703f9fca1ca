//! Faults of the network: at chosen messages, at random messages, and at all messages.

use std::time::Duration;

use pgspate::copy::Commit;

use crate::input::{CHUNKS, RowKinds};
use crate::plan::{Fault, FaultPlace};
use crate::protocol::MessageSide;
use crate::proxy::Proxy;
use crate::run::finish;
use crate::scene::LoadFaultScene;
use crate::stall_action::StallAction;
use crate::tally::run_all;
use crate::test_random::{TestRandom, long_run};
use crate::trial::{COMMITS_BEFORE_ROWS, LoadSettings, LoadTrial};

const CUTS: [Fault; 3] = [Fault::Cut, Fault::CutInside, Fault::CutAfter];

/// Settings for both values of `--commit`, with several lanes. Some lanes load more than one chunk.
const SETTINGS: [fn() -> LoadSettings; 2] =
    [|| LoadSettings::new(3, Commit::AtEnd), || LoadSettings::new(2, Commit::EachChunk)];

/// The approximate number of messages of a load.
pub(crate) const MESSAGES: u64 = 500;

/// Returns how many messages a load without faults has, and how many of them commit.
fn count_messages(settings: LoadSettings) -> (u64, u64) {
    let scene = LoadFaultScene::new(settings.rows);
    let proxy = Proxy::start(&scene.dsn, None);
    let run = finish(scene.load(&proxy.dsn(), &settings));
    let done = i32::from(settings.rows == RowKinds::Mixed);
    assert_eq!((run.status, run.stderr.as_str()), (Some(done), ""), "{}", proxy.log());
    assert_eq!(scene.difference(), None);
    proxy.counts()
}

/// Returns a trial with a random fault.
fn random_trial(random: &mut TestRandom) -> LoadTrial {
    let at = FaultPlace::Message(random.among(1..=MESSAGES));
    let lanes = random.pick(&[1, 2, 3, 3]);
    let settings = match random.among(0..=3) {
        0 => LoadSettings::mixed(lanes),
        _ => LoadSettings::new(lanes, random.pick(&[Commit::AtEnd, Commit::EachChunk])),
    };
    let trial = match random.among(0..=4) {
        0 => LoadTrial::stall(at, StallAction::Resume, settings),
        1 => LoadTrial::stall(at, StallAction::Cut, settings),
        // A lost session keeps locks on its unique keys, so this fault needs a table without a key.
        2 if settings.rows == RowKinds::Good => LoadTrial::new(Fault::Lose, at, settings),
        _ => LoadTrial::new(random.pick(&CUTS), at, settings),
    };
    let away = Duration::from_millis(random.among(0..=900));
    let is_cut = CUTS.contains(&trial.plan.fault) || trial.then == StallAction::Cut;
    if is_cut && random.among(0..=3) == 0 { trial.away(away) } else { trial }
}

#[test]
fn a_proxy_without_faults_changes_nothing() {
    // The expected numbers of commits of the lanes. At the end, a lane without a chunk commits
    // nothing: the other lanes may have been faster.
    for (settings, commits) in SETTINGS.into_iter().zip([1..=3, *CHUNKS..=*CHUNKS]) {
        let (messages, committed) = count_messages(settings());
        assert!(messages > 300, "the load has only {messages} messages");
        let of_lanes = committed - COMMITS_BEFORE_ROWS;
        assert!(commits.contains(&of_lanes), "{of_lanes} commits, expected {commits:?}");
    }
}

#[test]
fn load_is_exact_after_faults_at_commits() {
    let mut trials = Vec::new();
    for (settings, commits) in SETTINGS.into_iter().zip([3, *CHUNKS]) {
        let settings = settings();
        for nth in 1..=COMMITS_BEFORE_ROWS + commits {
            let at = FaultPlace::Commit(nth);
            trials.push(LoadTrial::new(Fault::SwallowCommit, at, settings));
            if nth % 2 == 1 {
                trials.push(LoadTrial::new(CUTS[nth as usize / 2], at, settings));
            }
        }
        let swallow = LoadTrial::new(Fault::SwallowCommit, FaultPlace::Commit(4), settings);
        trials.push(swallow.away(Duration::from_millis(300)));
    }
    let alone = LoadSettings::new(1, Commit::AtEnd);
    trials.push(LoadTrial::new(Fault::SwallowCommit, FaultPlace::Commit(3), alone));
    run_all(trials);
}

#[test]
fn load_is_exact_after_faults_in_each_phase() {
    let kinds = [
        // Connections: of the load itself, and of its lanes.
        (MessageSide::Client, b'!', 1),
        (MessageSide::Server, b'!', 2),
        // COPY: its start, data, end and reply.
        (MessageSide::Server, b'G', 2),
        (MessageSide::Client, b'd', 17),
        (MessageSide::Client, b'c', 2),
        (MessageSide::Server, b'C', 24),
    ];
    let settings = SETTINGS.map(|settings| settings());
    let mut trials = Vec::new();
    for (nth, (side, kind, count)) in kinds.into_iter().enumerate() {
        let at = FaultPlace::Kind(side, kind, count);
        trials.push(LoadTrial::new(CUTS[nth % CUTS.len()], at, settings[nth % 2]));
    }
    let stalls = [(MessageSide::Client, b'd', 9), (MessageSide::Server, b'G', 3)];
    for ((side, kind, count), settings) in stalls.into_iter().zip(settings) {
        let at = FaultPlace::Kind(side, kind, count);
        trials.push(LoadTrial::stall(at, StallAction::Resume, settings));
        trials.push(LoadTrial::stall(at, StallAction::Cut, settings));
        trials.push(LoadTrial::new(Fault::Cut, at, settings).away(Duration::from_millis(300)));
    }
    run_all(trials);
}

#[test]
fn load_with_rejects_is_exact_after_faults() {
    let settings = LoadSettings::mixed(2);
    let at = |side, kind, count| FaultPlace::Kind(side, kind, count);
    run_all([
        LoadTrial::new(Fault::Cut, at(MessageSide::Client, b'd', 20), settings),
        // Server errors: of a COPY, and while bad rows are separated.
        LoadTrial::new(Fault::Cut, at(MessageSide::Server, b'E', 1), settings),
        LoadTrial::new(Fault::CutAfter, at(MessageSide::Server, b'E', 12), settings),
        LoadTrial::new(Fault::SwallowCommit, FaultPlace::Commit(3), settings),
        LoadTrial::new(Fault::SwallowCommit, FaultPlace::Commit(5), settings),
        LoadTrial::new(Fault::Cut, FaultPlace::Commit(4), settings),
        LoadTrial::new(Fault::Cut, FaultPlace::Commit(6), settings),
        LoadTrial::stall(FaultPlace::Commit(4), StallAction::Kill, settings),
        LoadTrial::stall(at(MessageSide::Server, b'E', 20), StallAction::Terminate(2), settings),
    ]);
}

#[test]
fn load_is_exact_after_random_faults() {
    let mut random = TestRandom::for_test_run(1);
    run_all((0..long_run().unwrap_or(6)).map(|_| random_trial(&mut random)));
}

/// With `PGSPATE_TEST_FAULTS=N`, every message of a load gets a fault. The kinds of faults
/// alternate, beginning with a random one. Then every commit loses its reply.
/// With `PGSPATE_TEST_FAULTS_REPLAY='cut@137 lanes=3 commit=end'`, that trial runs ten times.
#[test]
fn faults_at_every_message() {
    if let Ok(trial) = std::env::var("PGSPATE_TEST_FAULTS_REPLAY") {
        let trial: LoadTrial = trial.parse().unwrap();
        return run_all([trial; 10]);
    }
    if long_run().is_none() {
        println!("not tested: set PGSPATE_TEST_FAULTS=N to run this test");
        return;
    }
    let mut trials = Vec::new();
    let turn = TestRandom::for_test_run(9).number() % 1000;
    for settings in SETTINGS.map(|settings| settings()) {
        let (messages, commits) = count_messages(settings);
        println!("a load has {messages} messages, of which {commits} commit");
        for nth in 1..=messages {
            let at = FaultPlace::Message(nth);
            let cut = CUTS.get((nth + turn) as usize % (CUTS.len() + 1));
            trials.push(match cut {
                Some(cut) => LoadTrial::new(*cut, at, settings),
                None => LoadTrial::stall(at, StallAction::Cut, settings),
            });
        }
        let swallow = |nth| LoadTrial::new(Fault::SwallowCommit, FaultPlace::Commit(nth), settings);
        trials.extend((1..=commits).map(swallow));
    }
    run_all(trials);
}
