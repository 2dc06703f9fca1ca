//! A table of readings, the files that the members of a fleet write into it, and the table that one
//! sync of all files would leave.

use std::process::Command;

use serde_json::Value;

use crate::run::{Run, finish, spawn};
use crate::support::LoadCase;

/// Rows of each meter.
const DAYS: u32 = 20;

/// The table `reading` has rows that differ from the files: some are equal, some changed, some
/// surplus, some missing.
pub(crate) struct FleetScene {
    pub(crate) case: LoadCase,
    pub(crate) members: u32,
    pub(crate) meters: u32,
}

impl FleetScene {
    /// Makes the table, the table `expected`, and a file for each member. Member I has the meters
    /// whose remainder is I.
    pub(crate) fn new(members: u32, meters: u32) -> FleetScene {
        let case = LoadCase::new(&format!(
            "create table reading (meter int, day int, use numeric(8, 2), \
                                   primary key (meter, day)); \
             insert into reading \
             select meter, day, meter + case day % 3 when 0 then 0.5 else day end \
             from generate_series(0, {meters}) meter, generate_series(5, {DAYS} + 2) day"
        ));
        let scene = FleetScene { case, members, meters };
        scene.write_files("a", 0);
        scene.case.db.run("create table expected (like reading including all)");
        scene.expect(0);
        scene
    }

    /// Writes the files `NAME/MEMBER.csv`, with values that depend on `shift`.
    pub(crate) fn write_files(&self, name: &str, shift: u32) {
        for member in 0..self.members {
            let mut text = String::from("meter,day,use\n");
            for meter in (0..self.meters).filter(|meter| meter % self.members == member) {
                for day in 0..DAYS {
                    text += &format!("{meter},{day},{}.00\n", meter + day + shift);
                }
            }
            self.case.put(&format!("{name}/{member}.csv"), text);
        }
    }

    /// Fills the table `expected` with what the files of that shift leave in the table.
    pub(crate) fn expect(&self, shift: u32) {
        let Self { meters, .. } = self;
        self.case.db.run(&format!(
            "truncate expected; insert into expected \
             select meter, day, meter + day + {shift} \
             from generate_series(0, {meters} - 1) meter, generate_series(0, {DAYS} - 1) day; \
             insert into expected select * from reading where meter >= {meters}"
        ));
    }

    /// Returns the number of rows that differ from what one sync of all files leaves.
    pub(crate) fn differences(&self) -> String {
        self.case.value(
            "select count(*) from ((table reading except table expected) union all \
             (table expected except table reading)) x",
        )
    }

    /// Returns the sync of a member of the fleet `nights` with the files `files/MEMBER.csv`.
    pub(crate) fn command(
        &self,
        dsn: &str,
        files: &str,
        generation: &str,
        member: u32,
        more: &str,
    ) -> Command {
        let source = format!("{files}/{{member}}.csv");
        let mut command = self.case.command(&["sync", "--to", dsn, &source]);
        let args = format!(
            "--table reading --scope-by meter --max-delete 100% --fleet nights --quiet --json \
             --generation {generation} --members {} --member {member} {more}",
            self.members
        );
        command.args(args.split_whitespace());
        command
    }

    /// Runs a member to its end.
    pub(crate) fn sync(&self, files: &str, generation: &str, member: u32) -> Run {
        let dsn = self.case.db.dsn();
        finish(spawn(&mut self.command(&dsn, files, generation, member, "")))
    }

    /// Runs a member, which must succeed, and returns its report.
    #[track_caller]
    pub(crate) fn report(&self, files: &str, generation: &str, member: u32) -> Value {
        parse(&self.sync(files, generation, member))
    }

    /// Runs `pgspate fleet nights --json`; returns its exit status and its report.
    pub(crate) fn fleet(&self) -> (Option<i32>, Value) {
        let dsn = self.case.db.dsn();
        let args = ["fleet", "nights", "--json", "--to", &dsn];
        let run = finish(spawn(&mut self.case.command(&args)));
        (run.status, serde_json::from_str(&run.stdout).expect(&run.stderr))
    }

    /// Checks that all members are done, that the table is as one sync leaves it, and that the
    /// fleet's report has the counts of one sync.
    #[track_caller]
    pub(crate) fn assert_complete(&self, expected_counts: [u64; 4]) {
        assert_eq!(self.differences(), "0");
        let (status, report) = self.fleet();
        assert_eq!(status, Some(0), "{report}");
        assert_eq!(report["done"], self.members, "{report}");
        assert_eq!(counts(&report), expected_counts, "{report}");
        let all = u64::from(self.meters * DAYS);
        assert_eq!(report["rows_in"], all, "{report}");
    }

    /// Returns the numbers of inserted, updated, deleted and unchanged rows of one sync of all
    /// files into the table as it is now. Changes nothing.
    pub(crate) fn counts_of_one_sync(&self, files: &str) -> [u64; 4] {
        let dsn = self.case.db.dsn();
        let args = ["sync", "--to", &dsn, &format!("{files}/*.csv"), "--table", "reading"];
        let mut command = self.case.command(&args);
        command.args(["--scope-by", "meter", "--check", "--json", "--quiet"]);
        let run = finish(spawn(&mut command));
        counts(&serde_json::from_str(&run.stdout).expect(&run.stderr))
    }
}

impl Run {
    /// Checks that the command failed with exit status 2, and that stdout has the error as JSON.
    /// Returns stderr.
    #[track_caller]
    pub(crate) fn json_refusal(&self) -> String {
        assert_eq!(self.status, Some(2), "{}{}", self.stdout, self.stderr);
        let printed: Value = serde_json::from_str(&self.stdout).expect(&self.stderr);
        assert_eq!(printed["error"]["exit_status"], 2, "{printed}");
        self.stderr.clone()
    }
}

/// Returns the report of a member that has succeeded.
#[track_caller]
pub(crate) fn parse(run: &Run) -> Value {
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

/// Returns the numbers of inserted, updated, deleted and unchanged rows of a report.
pub(crate) fn counts(report: &Value) -> [u64; 4] {
    ["inserted", "updated", "deleted", "unchanged"].map(|name| report[name].as_u64().unwrap())
}
