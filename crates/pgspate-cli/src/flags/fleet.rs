//! Flags of a member of a fleet, and of `pgspate fleet`.

use std::time::Duration;

use clap::value_parser;
use pgspate::fleet::MemberOptions;

use super::shared::{CommonArgs, json, quiet, server, stall_timeout};
use super::{CommandFlags, Flag, part, switch, text, under, value};

/// The arguments of `pgspate fleet`.
#[derive(Default)]
pub(crate) struct FleetArgs {
    pub(crate) common: CommonArgs,
    pub(crate) fleet: String,
    pub(crate) generation: Option<String>,
    pub(crate) stall: Duration,
    pub(crate) forgets: bool,
}

impl CommandFlags for FleetArgs {
    fn flags() -> Vec<Vec<Flag<FleetArgs>>> {
        let common = |flags| part(|it: &mut FleetArgs| &mut it.common, flags);
        let fleet = value("name", "NAME", text(), |it: &mut FleetArgs, name| it.fleet = name)
            .with(|arg| arg.long(None).required(true))
            .help("The fleet");
        let generation =
            value("generation", "G", text(), |it: &mut FleetArgs, name| it.generation = Some(name))
                .help("Show this generation; by default the newest one");
        let forget = switch("forget", |it: &mut FleetArgs| it.forgets = true).help(
            "Forget the fleet, or one generation of it: its rows stay, and any generation may \
             write them again",
        );
        vec![
            vec![fleet, generation, forget],
            common(vec![server()]),
            part(|it: &mut FleetArgs| &mut it.stall, stall_timeout()),
            common(under(
                "Output",
                vec![
                    json("Print the report as JSON on stdout"),
                    quiet("Print errors and results only"),
                ],
            )),
        ]
    }
}

/// Returns the flags that make a load or a sync a member of a fleet.
pub(super) fn member() -> Vec<Flag<MemberOptions>> {
    let index = |value: &str| match value.parse() {
        _ if value == "auto" => Ok(None),
        Ok(index @ 0..) => Ok(Some(index)),
        _ => Err("expected auto, or a number from 0"),
    };
    let flags = vec![
        value("fleet", "NAME", text(), |it: &mut MemberOptions, name| it.fleet = Some(name))
            .help("Run as a member of this fleet: one write by an array of jobs"),
        value("generation", "G", text(), |it: &mut MemberOptions, name| it.generation = Some(name))
            .with(|arg| arg.requires("fleet"))
            .help("Name this run of the fleet, such as a date; older runs cannot undo newer ones"),
        value("members", "N", value_parser!(i32), |it: &mut MemberOptions, n| it.members = Some(n))
            .with(|arg| arg.requires("fleet"))
            .help("The number of members; by default the size of the array of jobs"),
        value("member", "I", index, |it: &mut MemberOptions, index| it.member = index)
            .default("auto")
            .help(
                "This member's number, from 0; auto: the index in the array of jobs, as AWS Batch, \
                 Kubernetes, Cloud Run or Slurm sets it; `{member}` in a source stands for it",
            ),
        value("connections", "N", value_parser!(u32), |it: &mut MemberOptions, n| {
            it.connections = Some(n)
        })
        .with(|arg| arg.requires("fleet"))
        .help("Open at most this many connections, over all members of the fleet"),
    ];
    under("Fleet", flags)
}
