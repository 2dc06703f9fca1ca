//! A primary dies and its standby takes over. The standby has all changes of the primary, or lacks
//! some changes.

use pgspate::copy::Commit;
use pgspate_embedded::{ThrowawayServer, testing};

use crate::input::RowKinds;
use crate::load_checks::{
    LOAD_TIME_MAX, LoadOutcome, check_nothing_is_left_over, run_again_until_done,
};
use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::protocol::MessageSide;
use crate::proxy::{Proxy, StallRelease};
use crate::run::{ask, finish_within, wait_until};
use crate::scene::LoadFaultScene;
use crate::tally::TrialTally;
use crate::trial::LoadSettings;

/// Access rules that let every client connect, also for replication.
const HBA: &str =
    "local all all trust\nlocal replication all trust\nhost all all 127.0.0.1/32 trust\n";

/// Which changes the standby lacks when its primary dies.
#[derive(Debug, Clone, Copy)]
enum StandbyLag {
    /// The standby lacks the changes that the network has not transferred yet.
    Natural,
    /// The standby lacks all changes of the load.
    All,
}

#[test]
fn load_is_exact_when_a_standby_takes_over() {
    let (end, each) =
        (LoadSettings::new(3, Commit::AtEnd), LoadSettings::new(2, Commit::EachChunk));
    let data = |nth| FaultPlace::Kind(MessageSide::Client, b'd', nth);
    let mut tally = TrialTally::default();
    for (at, lag, settings) in [
        (data(12), StandbyLag::Natural, each),
        (FaultPlace::Commit(5), StandbyLag::Natural, each),
        (FaultPlace::Commit(5), StandbyLag::All, each),
        (data(20), StandbyLag::All, end),
        (FaultPlace::Commit(4), StandbyLag::Natural, end),
        (FaultPlace::Commit(6), StandbyLag::Natural, LoadSettings::mixed(2)),
    ] {
        let what = format!("standby takes over, lag {lag:?}, commit {:?}", settings.commit);
        tally.add(&what, fail_over(at, lag, &settings));
    }
    tally.close();
}

/// Runs a load and kills the primary at a message. The error says which rule was broken.
fn fail_over(
    at: FaultPlace,
    lag: StandbyLag,
    settings: &LoadSettings,
) -> Result<LoadOutcome, String> {
    let primary = testing::builder().hba(HBA).start(&|_| {}).unwrap();
    let mut scene = LoadFaultScene::on(settings.rows, primary.dsn());
    let standby = standby_of(&primary, lag);
    let proxy = Proxy::start(&primary.dsn(), Some(FaultPlan::new(Fault::Stall, at)));
    let dsn = format!(
        "host=127.0.0.1,{} port={},{} user=postgres dbname=postgres \
         target_session_attrs=read-write",
        standby.socket_folder().display(),
        proxy.address().port(),
        standby.port()
    );
    let load = scene.load(&dsn, settings);
    wait_until("the load is under way", || proxy.has_fired());
    primary.kill().unwrap();
    ask(&standby.dsn(), "select pg_promote()");
    proxy.release(StallRelease::Cut);
    standby.dsn().clone_into(&mut scene.dsn);
    let run =
        finish_within(load, LOAD_TIME_MAX).map_err(|run| format!("it hangs: {}", run.stderr))?;
    check_nothing_is_left_over(&scene)?;
    let expected = i32::from(settings.rows == RowKinds::Mixed);
    match run.status {
        Some(status) if status == expected => scene.difference().map_or(Ok(LoadOutcome::Done), Err),
        Some(2) => run_again_until_done(&scene, &dsn, settings).map(LoadOutcome::RunAgain),
        status => Err(format!("{status:?}: {}", run.stderr)),
    }
}

/// Starts a standby with a copy of the primary's data. The standby follows the primary unless `lag`
/// is `All`.
fn standby_of(primary: &ThrowawayServer, lag: StandbyLag) -> ThrowawayServer {
    // Copy the data folder while the primary is stopped.
    primary.stop().unwrap();
    let folder = primary.socket_folder();
    let folder = folder.display();
    let follow =
        format!("primary_conninfo = 'host={folder} port={} user=postgres'", primary.port());
    let builder = testing::builder().hba(HBA).data_from(&primary.data_folder());
    let builder = builder.file("standby.signal", "");
    let builder = match lag {
        StandbyLag::Natural => builder.conf(&follow),
        StandbyLag::All => builder,
    };
    let standby = builder.start(&|_| {}).unwrap();
    primary.restart().unwrap();
    if let StandbyLag::Natural = lag {
        let follows = "select count(*) from pg_stat_wal_receiver where status = 'streaming'";
        wait_until("the standby follows", || ask(&standby.dsn(), follows) == "1");
    }
    standby
}
