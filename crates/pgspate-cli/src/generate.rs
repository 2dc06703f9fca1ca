//! Completions and the manual page, from the one definition of the arguments.

use clap::CommandFactory;
use pgspate::{Error, Kind, Result};

use crate::args::Args;
use crate::output::data;

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "pgspate", &mut out);
    data(&out)
}

pub(crate) fn man() -> Result<()> {
    data(man_page()?)
}

/// All commands on one page.
fn man_page() -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut command = Args::command();
    command.build();
    render(command.clone(), &mut out)?;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        render(sub.clone(), &mut out)?;
    }
    Ok(out)
}

fn render(command: clap::Command, out: &mut Vec<u8>) -> Result<()> {
    let failed = |error| Error::new(Kind::Bug, "could not make the manual page").because(error);
    clap_mangen::Man::new(command).render(out).map_err(failed)
}
