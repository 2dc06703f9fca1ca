//! Flags of `pgspate tune`.

use std::time::Duration;

use clap::value_parser;
use pgspate_doctor::tune::EmitFormat;

use super::doctor::parse_size;
use super::shared::{CommonArgs, json, quiet, server, stall_timeout};
use super::{CommandFlags, Flag, choice, part, switch, text, value};

/// The arguments of `pgspate tune`.
#[derive(Default)]
pub(crate) struct TuneArgs {
    pub(crate) common: CommonArgs,
    pub(crate) memory: Option<u64>,
    pub(crate) cpus: Option<u32>,
    pub(crate) emit: Option<EmitFormat>,
    pub(crate) parameter_group: String,
    pub(crate) apply: bool,
    pub(crate) revert: bool,
    pub(crate) stall: Duration,
}

impl CommandFlags for TuneArgs {
    fn flags() -> Vec<Vec<Flag<TuneArgs>>> {
        let common = |flag| part(|it: &mut TuneArgs| &mut it.common, vec![flag]);
        let json =
            json("Print the settings as JSON on stdout").with(|arg| arg.conflicts_with("emit"));
        vec![
            common(server()),
            settings(),
            part(|it: &mut TuneArgs| &mut it.stall, stall_timeout()),
            common(json),
            common(quiet("Print errors, warnings and proposed settings only")),
        ]
    }
}

fn settings() -> Vec<Flag<TuneArgs>> {
    let form = choice([
        ("sql", "ALTER SYSTEM statements", EmitFormat::Sql),
        (
            "rds",
            "JSON for aws rds modify-db-parameter-group --cli-input-json; for Aurora \
             modify-db-cluster-parameter-group",
            EmitFormat::Rds,
        ),
        ("terraform", "Resources for Terraform", EmitFormat::Terraform),
    ]);
    vec![
        value("memory", "SIZE", parse_size, |it: &mut TuneArgs, bytes| it.memory = Some(bytes))
            .help("Assume this memory of the server's machine [default: detected, or estimated]"),
        value("cpus", "N", value_parser!(u32).range(1..), |it: &mut TuneArgs, n| it.cpus = Some(n))
            .help("Assume this many CPUs of the server's machine [default: detected, or 2]"),
        value("emit", "FORM", form, |it: &mut TuneArgs, form| it.emit = Some(form))
            .with(|arg| arg.conflicts_with_all(["apply", "revert"]))
            .help("Print the settings for another tool to apply"),
        value("parameter-group", "NAME", text(), |it: &mut TuneArgs, name| {
            it.parameter_group = name
        })
        .with(|arg| arg.requires("emit"))
        .default("bulk-load")
        .help("Name the parameter group for --emit"),
        switch("apply", |it: &mut TuneArgs| it.apply = true)
            .with(|arg| arg.conflicts_with("revert"))
            .help("Record the old values in the ledger, then apply the settings with ALTER SYSTEM"),
        switch("revert", |it: &mut TuneArgs| it.revert = true)
            .help("Put back the old values of the settings that --apply has changed"),
    ]
}
