//! Flags of `pgspate tune`.

use std::time::Duration;

use clap::value_parser;
use pgspate_doctor::tune::Form;

use super::doctor::size;
use super::shared::{CommonArgs, json, server, stall_timeout};
use super::{Flag, Flagged, choice, part, switch, text, value};

/// What `pgspate tune` is asked for.
#[derive(Default)]
pub(crate) struct TuneArgs {
    pub(crate) common: CommonArgs,
    pub(crate) memory: Option<u64>,
    pub(crate) cpus: Option<u32>,
    pub(crate) emit: Option<Form>,
    pub(crate) parameter_group: String,
    pub(crate) apply: bool,
    pub(crate) revert: bool,
    pub(crate) stall: Duration,
}

impl Flagged for TuneArgs {
    fn flags() -> Vec<Vec<Flag<TuneArgs>>> {
        let common = |flag| part(|it: &mut TuneArgs| &mut it.common, vec![flag]);
        let json = json("Print it as JSON on stdout").with(|arg| arg.conflicts_with("emit"));
        vec![
            common(server()),
            settings(),
            part(|it: &mut TuneArgs| &mut it.stall, stall_timeout()),
            common(json),
        ]
    }
}

fn settings() -> Vec<Flag<TuneArgs>> {
    let form = choice([
        ("sql", "ALTER SYSTEM", Form::Sql),
        (
            "rds",
            "JSON for aws rds modify-db-parameter-group --cli-input-json; for Aurora \
             modify-db-cluster-parameter-group",
            Form::Rds,
        ),
        ("terraform", "Resources for Terraform", Form::Terraform),
    ]);
    vec![
        value("memory", "SIZE", size, |it: &mut TuneArgs, bytes| it.memory = Some(bytes))
            .help("Memory of the server's machine; found out where it is this one"),
        value("cpus", "N", value_parser!(u32).range(1..), |it: &mut TuneArgs, n| it.cpus = Some(n))
            .help("Processors of the server's machine; found out where it is this one"),
        value("emit", "FORM", form, |it: &mut TuneArgs, form| it.emit = Some(form))
            .with(|arg| arg.conflicts_with_all(["apply", "revert"]))
            .help("Print the settings for whoever applies them"),
        value("parameter-group", "NAME", text(), |it: &mut TuneArgs, name| {
            it.parameter_group = name
        })
        .with(|arg| arg.requires("emit"))
        .default("bulk-load")
        .help("The parameter group that --emit is for"),
        switch("apply", |it: &mut TuneArgs| it.apply = true)
            .with(|arg| arg.conflicts_with("revert"))
            .help("Apply them by ALTER SYSTEM; the way back is in the ledger first"),
        switch("revert", |it: &mut TuneArgs| it.revert = true)
            .help("Put back what --apply has changed"),
    ]
}
