//! A member that is killed or disturbed at any moment, and run again, writes its rows exactly once.

use std::thread;
use std::time::{Duration, Instant};

use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::Proxy;
use crate::run::{finish, spawn};
use crate::scene::FleetScene;
use crate::test_random::{TestRandom, long_run};

/// Returns for how many milliseconds a member may run at most before it is killed: twice as long as
/// an undisturbed member takes on this machine.
fn life_millis_max() -> u64 {
    let scene = FleetScene::new(1, 2);
    let begin = Instant::now();
    scene.report("a", "1", 0);
    2 * begin.elapsed().as_millis() as u64
}

#[test]
fn members_killed_at_random_moments_leave_the_table_as_one_sync_does() {
    let count = long_run().map_or(5, |count| count as u32);
    let scene = FleetScene::new(count, 2 * count);
    let expected = scene.counts_of_one_sync("a");
    let dsn = scene.case.db.dsn();
    let more = "--connections 4 --retry-for 100";
    let life_millis_max = life_millis_max();
    let kills = thread::scope(|scope| {
        let mut random = TestRandom::for_test_run(2611);
        // Each worker stands for a node of a scheduler that runs job arrays.
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let (scene, dsn) = (&scene, &dsn);
                let mut random = TestRandom::new(random.number());
                scope.spawn(move || {
                    let mut kills = 0;
                    for member in (worker..count).step_by(4) {
                        for _ in 0..random.among(1..=2) {
                            let mut child =
                                spawn(&mut scene.command(dsn, "a", "2026-11-22", member, more));
                            thread::sleep(Duration::from_millis(random.among(0..=life_millis_max)));
                            kills += u32::from(child.try_wait().unwrap().is_none());
                            child.kill().unwrap();
                            child.wait().unwrap();
                        }
                        let done = spawn(&mut scene.command(dsn, "a", "2026-11-22", member, more));
                        assert_eq!(finish(done).status, Some(0), "member {member}");
                    }
                    kills
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u32>()
    });
    println!("{count} members, {kills} killed");
    scene.assert_complete(expected);
    println!("{:#}", scene.fleet().1);
    // Late retries of the day before change nothing.
    scene.write_files("old", 7);
    for member in 0..count.min(10) {
        let said = scene.sync("old", "2026-11-21", member).json_refusal();
        assert!(said.contains("generation 2026-11-21 is older"), "{said}");
    }
    scene.assert_complete(expected);
}

/// The answer to each commit of a member is lost in turn.
#[test]
fn a_lost_answer_to_a_commit_doubles_nothing() {
    let scene = FleetScene::new(1, 3);
    let expected = scene.counts_of_one_sync("a");
    scene.case.db.run("create table before as table reading");
    let mut nth = 1;
    loop {
        scene.case.db.run(
            "truncate reading; insert into reading table before; \
             drop schema if exists pgspate cascade",
        );
        let plan = FaultPlan::new(Fault::SwallowCommit, FaultPlace::Commit(nth));
        let proxy = Proxy::start(&scene.case.db.dsn(), Some(plan));
        let disturbed = finish(spawn(&mut scene.command(&proxy.dsn(), "a", "1", 0, "")));
        assert!(matches!(disturbed.status, Some(0 | 2)), "{}", disturbed.stderr);
        let fired = proxy.has_fired();
        drop(proxy);
        assert!(fired || disturbed.status == Some(0), "{}", disturbed.stderr);
        scene.report("a", "1", 0);
        scene.assert_complete(expected);
        if !fired {
            break;
        }
        nth += 1;
    }
    assert!(nth > 2, "the member commits its stage and its rows");
}

/// The connection is cut at random messages of a member.
#[test]
fn a_member_cut_off_at_random_messages_is_done_by_a_retry() {
    let scene = FleetScene::new(1, 3);
    let expected = scene.counts_of_one_sync("a");
    scene.case.db.run("create table before as table reading");
    let mut random = TestRandom::for_test_run(15);
    for _ in 0..long_run().unwrap_or(8) {
        scene.case.db.run(
            "truncate reading; insert into reading table before; \
             drop schema if exists pgspate cascade",
        );
        let fault = [Fault::Cut, Fault::CutInside, Fault::CutAfter][random.among(0..=2) as usize];
        let plan = FaultPlan::new(fault, FaultPlace::Message(random.among(1..=220)));
        let proxy = Proxy::start(&scene.case.db.dsn(), Some(plan));
        let run = finish(spawn(&mut scene.command(&proxy.dsn(), "a", "1", 0, "")));
        assert!(matches!(run.status, Some(0 | 2)), "{plan}: {}", run.stderr);
        drop(proxy);
        scene.report("a", "1", 0);
        println!("{plan}");
        scene.assert_complete(expected);
    }
}
