//! Reruns of jobs whose tasks have committed parts.

use pgspate::driven::{self, AbortOutcome, FleetTicket};
use pgspate::session::WaitLimits;
use pgspate::target::connect::{Dsn, Environment};
use pgspate::{ErrorKind, ledger};

use crate::driven::DriverScene;
use crate::driven_modes::{begin, by_task, replacing};
use crate::run::{Run, finish, session, spawn, wait_until};

/// An engine aborts the job when a task fails. The parts that are visible stay known.
#[test]
fn an_aborted_job_knows_the_parts_that_tasks_have_committed() {
    let scene = DriverScene::new();
    let failed = begin(&scene, by_task(true));
    let kept = scene.write(&failed, 0, 1, 2);
    assert_eq!(scene.abort(&failed), AbortOutcome::Aborted);
    assert!(scene.write_csv(&failed, 1, "id\n9\n").is_err());
    let again = begin(&scene, by_task(true));
    assert_eq!(scene.write(&again, 0, 1, 2), kept);
    let more = scene.write(&again, 1, 3, 3);
    assert_eq!(scene.complete(&again, &[kept, more]).unwrap().rows_in, 3);
    assert_eq!(scene.ids(), "-1 1 2 3");

    let failed = scene.begin_with(Some("unstable"), by_task(false), None).unwrap();
    scene.write(&failed, 0, 4, 4);
    scene.abort(&failed);
    let error = scene.begin_with(Some("unstable"), by_task(false), None).unwrap_err();
    assert!(error.to_string().contains("has written 1 part to the table"), "{error}");
    let without_parts = scene.begin_with(Some("other"), by_task(false), None).unwrap();
    scene.abort(&without_parts);
    let names = "select string_agg(name, ' ' order by job) from pgspate.fleet_job";
    assert_eq!(scene.case.value(names), "job unstable");
}

/// Parts whose rows were removed are written again, and then once.
#[test]
fn a_rerun_writes_parts_again_if_the_table_was_emptied() {
    let scene = DriverScene::new();
    scene.case.put("one.csv", "id\n-2\n");
    let replace = |method: &str| {
        let dsn = scene.case.db.dsn();
        let args = ["load", "one.csv", "--table", "t", method, "--to", &dsn];
        let run = finish(spawn(&mut scene.case.command(&args)));
        assert_eq!(run.status, Some(0), "{}", run.stderr);
    };
    let exchange = || {
        let ticket = scene.begin_with(None, replacing(), None).unwrap();
        scene.complete(&ticket, &[scene.write(&ticket, 0, -2, -2)]).unwrap();
    };
    let ways: [(&str, &dyn Fn()); 4] = [
        ("", &|| scene.case.db.run("truncate t")),
        ("-2 ", &exchange),
        ("-2 ", &|| replace("--replace=swap")),
        ("-2 ", &|| replace("--replace=truncate")),
    ];
    for (nth, (other, empty)) in ways.into_iter().enumerate() {
        for stable in [true, false] {
            let name = format!("{nth} {stable}");
            let begin = || scene.begin_with(Some(&name), by_task(stable), None).unwrap();
            scene.write(&begin(), 0, 1, 2);
            empty();
            let again = begin();
            let first = scene.write(&again, 0, 1, 2);
            // The driver ends once more. The table has rows of the part now.
            let again = match stable {
                true => begin(),
                false => again,
            };
            assert_eq!(scene.write(&again, 0, 1, 2), first);
            let second = scene.write(&again, 1, 3, 3);
            assert_eq!(scene.complete(&again, &[first, second]).unwrap().rows_in, 3);
            assert_eq!(scene.ids(), format!("{other}1 2 3"));
            scene.case.db.run("delete from t where id > 0");
        }
    }
}

/// Parts that had no rows are not lost if the table is empty. Nor are rows that a trigger has put
/// into another table.
#[test]
fn an_empty_table_has_not_always_lost_its_parts() {
    let scene = DriverScene::new();
    scene.case.db.run("delete from t");
    let empty = scene.write_csv(&begin(&scene, by_task(true)), 0, "id\n").unwrap();
    let again = begin(&scene, by_task(true));
    assert_eq!(scene.write_csv(&again, 0, "id\n").unwrap(), empty);
    assert_eq!(again.warnings, Vec::<String>::new());
    scene.case.db.run(
        "create table archive (id int); \
         create function archive() returns trigger language plpgsql as \
             'begin insert into archive values (new.id); delete from t where id = new.id; \
              return null; end'; \
         create trigger archive after insert on t for each row execute function archive()",
    );
    let kept = scene.write(&again, 1, 1, 2);
    let again = begin(&scene, by_task(true));
    assert_eq!(scene.write(&again, 1, 1, 2), kept);
    assert_eq!(scene.complete(&again, &[empty, kept]).unwrap().rows_in, 2);
    assert_eq!(scene.case.value("select string_agg(id::text, ' ') from archive"), "1 2");
}

#[test]
fn a_rerun_says_that_it_writes_lost_parts_again() {
    let scene = DriverScene::new();
    let ticket = begin(&scene, by_task(true));
    scene.write(&ticket, 0, 1, 2);
    scene.write(&ticket, 1, 3, 3);
    scene.case.db.run("truncate t");
    assert_eq!(
        begin(&scene, by_task(true)).warnings,
        ["2 parts of job \"job\" were written by an earlier run, but the table is empty; \
          they are written again"]
    );
}

/// A role that may use the ledger of the scene's role and write its table. The role is dropped with
/// the value.
pub(crate) struct OtherRole<'a> {
    scene: &'a DriverScene,
    name: String,
}

impl<'a> OtherRole<'a> {
    pub(crate) fn new(scene: &'a DriverScene) -> OtherRole<'a> {
        let name = format!("{}_other", scene.case.db.name());
        scene.case.db.run(&format!(
            "create role \"{name}\" login; grant all on t to \"{name}\"; \
             grant usage on schema pgspate to \"{name}\"; \
             grant select, insert, update, delete on all tables in schema pgspate to \"{name}\""
        ));
        OtherRole { scene, name }
    }

    pub(crate) fn dsn(&self) -> String {
        format!("{} user='{}'", self.scene.case.db.dsn(), self.name)
    }

    fn run(&self, args: &str) -> Run {
        let dsn = self.dsn();
        let mut command = self.scene.case.command(&args.split_whitespace().collect::<Vec<_>>());
        finish(spawn(command.args(["--to", &dsn])))
    }

    pub(crate) fn begin_by_task(&self) -> FleetTicket {
        let dsn = Dsn::resolve(Some(&self.dsn()), &Environment::default()).unwrap().unwrap();
        let (limits, runtime) = (WaitLimits::default(), self.scene.runtime.handle());
        driven::begin("t", None, by_task(true), None, &dsn, limits, runtime).unwrap()
    }
}

impl Drop for OtherRole<'_> {
    fn drop(&mut self) {
        let name = &self.name;
        self.scene.case.db.run(&format!("drop owned by \"{name}\" cascade; drop role \"{name}\""));
    }
}

/// Another role does not see the parts, so its replace leaves them in the ledger.
#[test]
fn parts_whose_rows_a_replace_has_removed_do_not_count() {
    for same_role in [false, true] {
        let scene = DriverScene::new();
        let ticket = begin(&scene, by_task(true));
        let receipt = scene.write(&ticket, 0, 1, 2);
        let other = OtherRole::new(&scene);
        scene.case.put("one.csv", "id\n-2\n");
        let replace = "load one.csv --table t --replace=truncate --quiet";
        let run = match same_role {
            false => other.run(replace),
            true => {
                let dsn = scene.case.db.dsn();
                let args: Vec<_> = replace.split(' ').chain(["--to", &dsn]).collect();
                finish(spawn(&mut scene.case.command(&args)))
            }
        };
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        let refused = [
            scene.complete(&ticket, &[receipt]).unwrap_err(),
            scene.write_csv(&ticket, 1, "id\n3\n").unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::Ledger);
            let words = "another load has replaced all rows of the table";
            assert!(error.chain().contains(words), "{error:?}");
        }
        assert_eq!(scene.ids(), "-2");
        // A job with a stage has its rows still.
        let staged = scene.begin_with(None, Default::default(), None).unwrap();
        let receipt = scene.write(&staged, 0, 5, 5);
        scene.case.put("two.csv", "id\n-3\n");
        let run = other.run("load two.csv --table t --replace=truncate --quiet");
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        scene.complete(&staged, &[receipt]).unwrap();
        assert_eq!(scene.ids(), "-3 5");
    }
}

/// Without these privileges, the load does not record that the table is empty now.
#[test]
fn a_role_with_few_privileges_on_the_ledger_replaces_rows() {
    let scene = DriverScene::new();
    begin(&scene, by_task(true));
    let other = OtherRole::new(&scene);
    let ledger = [
        "select on pgspate.part",
        "delete on pgspate.part",
        "delete on pgspate.emptied",
        "select on pgspate.emptied",
    ];
    for (nth, right) in ledger.iter().enumerate() {
        scene.case.db.run(&format!("revoke {right} from \"{}\"", other.name));
        scene.case.put(&format!("{nth}.csv"), format!("id\n{nth}\n"));
        let run = other.run(&format!("load {nth}.csv --table t --replace=truncate --no-ledger"));
        assert_eq!(run.status, Some(0), "{right}: {}", run.stderr);
        assert_eq!(scene.ids(), nth.to_string());
        if nth < 2 {
            let emptied = "select count(*) from pgspate.emptied where upto > 0";
            assert_eq!(scene.case.value(emptied), "1", "{right}");
        }
    }
}

#[test]
fn a_role_does_not_forget_the_job_of_another() {
    let scene = DriverScene::new();
    let ticket = begin(&scene, by_task(true));
    scene.write(&ticket, 0, 1, 2);
    let other = OtherRole::new(&scene);
    let run = other.run(&format!("status {} --forget", ticket.job));
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    let words = format!("job {} belongs to role \"", ticket.job);
    assert!(run.stderr.contains(&words), "{}", run.stderr);
    assert_eq!(scene.case.value("select count(*) from pgspate.part"), "1");
    // Nor does the role claim to know the parts.
    let warnings = other.begin_by_task().warnings;
    let advice = format!(
        "if no driver works on it, have that role delete the rows that its tasks have committed, \
         and run `pgspate status --forget {}`",
        ticket.job
    );
    assert!(warnings[0].contains("\"job\" of this table was begun by role \""), "{warnings:?}");
    assert!(warnings[0].ends_with(&advice), "{warnings:?}");
    let own = scene.begin_with(None, by_task(true), None).unwrap().warnings;
    assert!(own[0].contains("run its driver again, or delete the rows of the 1 part"), "{own:?}");
}

/// A refused signal would fail the transaction in which a driver completes its job.
#[test]
fn only_writers_that_the_role_may_signal_are_ended() {
    let scene = DriverScene::new();
    begin(&scene, by_task(true));
    let other = OtherRole::new(&scene);
    let writer = |dsn: &str, id: i32| {
        let (runtime, client) = session(dsn);
        let write = format!("begin; insert into t (id) values ({id})");
        runtime.block_on(client.batch_execute(&write)).unwrap();
        (runtime, client)
    };
    let (superuser, own) = (writer(&scene.case.db.dsn(), 1), writer(&other.dsn(), 2));
    let (runtime, client) = session(&other.dsn());
    runtime.block_on(async {
        client.batch_execute("begin").await.unwrap();
        ledger::end_writers(&client, "t").await;
        client.batch_execute("commit").await.unwrap();
    });
    wait_until("the role's own session has ended", || own.1.is_closed());
    superuser.0.block_on(superuser.1.batch_execute("commit")).unwrap();
    assert_eq!(scene.ids(), "-1 1");
}

/// The ledger does not let a role move the jobs of other roles to the table that takes the place.
#[test]
fn a_table_with_a_job_of_another_role_is_not_exchanged() {
    let scene = DriverScene::new();
    let ticket = scene.begin_with(None, Default::default(), None).unwrap();
    let receipt = scene.write(&ticket, 0, 1, 2);
    let other = OtherRole::new(&scene);
    let (database, name) = (scene.case.db.name(), &other.name);
    scene.case.db.run(&format!(
        "grant create on database \"{database}\" to \"{name}\"; \
         grant create on schema public to \"{name}\"; alter table t owner to \"{name}\""
    ));
    scene.case.put("one.csv", "id\n-2\n");
    let run = other.run("load one.csv --table t --replace=swap --quiet");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    let words = format!("job {} of role \"", ticket.job);
    assert!(run.stderr.contains(&words), "{}", run.stderr);
    let run = other.run("load one.csv --table t --replace --quiet");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    scene.complete(&ticket, &[receipt]).unwrap();
    assert_eq!(scene.ids(), "-2 1 2");
    let run = other.run("load one.csv --table t --replace=swap --restart --quiet");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(scene.ids(), "-2");
    scene.case.db.run("alter table t owner to current_user");
}
