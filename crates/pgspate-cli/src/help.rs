//! The ends of the help texts: examples, exit status and environment variables of each command.
//!
//! `-h` prints the examples. `--help` and the manual page also have the rest.

use std::fmt::Write as _;

use clap::Command;

/// The examples, exit statuses and variables of a command.
pub(crate) struct CommandHelp {
    /// The command's words after `pgspate`, such as `lab run`.
    command: &'static str,
    examples: &'static [&'static str],
    /// What exit status 1 means, if the command has this status.
    answer_no: Option<&'static str>,
    /// Whether an interruption ends the command with status 130.
    is_interruptible: bool,
    variables: &'static [&'static [Variable]],
}

/// An environment variable, or several, and what they mean.
type Variable = (&'static str, &'static str);

const CONNECTION: &[Variable] = &[
    ("PGHOST, PGPORT, PGDATABASE, PGUSER", "The server to connect to, without --to"),
    ("PGPASSWORD, PGPASSFILE", "The password, or the file with passwords"),
    ("PGSERVICE, PGSERVICEFILE", "A service with these settings, and the file that defines it"),
    ("PGSSLMODE and libpq's others", "Other settings of the connection"),
];
const PASSWORD: &[Variable] =
    &[("PGPASSWORD, PGPASSFILE", "The password for --to, or the file with passwords")];
const EMBEDDED: &[Variable] = &[
    ("PGSPATE_DATA_DIR", "The folder of the embedded server's data"),
    ("PGSPATE_PG_BIN", "The folder with the PostgreSQL programs of the embedded server"),
    ("PGSPATE_PG_VERSION", "The major version of the embedded server"),
];
const SOURCES: &[Variable] = &[
    ("AWS_*, GOOGLE_*, AZURE_*", "Credentials and settings of object stores"),
    ("HTTPS_PROXY, HTTP_PROXY, NO_PROXY", "Proxies for web servers and object stores"),
];
const KAFKA: &[Variable] =
    &[("PGSPATE_KAFKA_*", "Settings of Kafka's client: PGSPATE_KAFKA_SASL_PASSWORD and so on")];
const TERMINAL: &[Variable] = &[("NO_COLOR", "If set, output has no colour")];

/// The help of every command. A command that is missing here fails a test.
pub(crate) const COMMANDS: [CommandHelp; 17] = [
    CommandHelp {
        command: "load",
        examples: &[
            "pgspate load orders.csv --table orders",
            "pgspate load 's3://sales/2026/*.parquet' --table events --create --plan",
            "pgspate load orders.csv --table orders --rejects bad.csv --max-rejects 1%",
        ],
        answer_no: Some("Done, but rows were set aside, or kept out by triggers"),
        is_interruptible: true,
        variables: &[CONNECTION, EMBEDDED, SOURCES, TERMINAL],
    },
    CommandHelp {
        command: "sync",
        examples: &[
            "pgspate sync prices.csv --table prices --scope all --check",
            "pgspate sync today.parquet --table readings --scope-by day",
            "pgspate sync new.csv --table customers --key email --no-delete",
        ],
        answer_no: Some(
            "Done, but triggers kept changes out, --check found differences, or --advise-only has \
             advice",
        ),
        is_interruptible: true,
        variables: &[CONNECTION, EMBEDDED, SOURCES, TERMINAL],
    },
    CommandHelp {
        command: "apply",
        examples: &[
            "pgspate apply changes.ndjson --plan",
            "pgspate apply changes.ndjson --map 'shop.*=public.*'",
            "pgspate apply 'postgres://repl@source/shop?slot=s&publication=p' --snapshot --follow",
        ],
        answer_no: Some("Done, but events were set aside, or found no row"),
        is_interruptible: true,
        variables: &[CONNECTION, EMBEDDED, SOURCES, KAFKA, TERMINAL],
    },
    CommandHelp {
        command: "serve",
        examples: &[
            "pgspate serve --table account --table transaction",
            "pgspate serve --table events --listen unix:/run/pgspate/serve.sock",
            "pgspate serve --table events --listen 0.0.0.0:8480 --tokens tokens.txt",
        ],
        answer_no: None,
        is_interruptible: false,
        variables: &[CONNECTION, EMBEDDED, TERMINAL],
    },
    CommandHelp {
        command: "doctor",
        examples: &[
            "pgspate doctor --watch 60s",
            "pgspate doctor --table sales.orders --picture orders.svg",
            "pgspate doctor --watch 60s --storage gp3:500GiB,12000iops,500MiB/s",
        ],
        answer_no: Some("Done, and something was found"),
        is_interruptible: true,
        variables: &[CONNECTION, EMBEDDED, TERMINAL],
    },
    CommandHelp {
        command: "tune",
        examples: &[
            "pgspate tune --memory 64GiB --cpus 16",
            "pgspate tune --apply",
            "pgspate tune --revert",
        ],
        answer_no: None,
        is_interruptible: true,
        variables: &[CONNECTION, EMBEDDED, TERMINAL],
    },
    CommandHelp {
        command: "lab",
        examples: &[
            "pgspate lab list",
            "pgspate lab run bulk --scale 0.1",
            "pgspate lab report --out bulk.html",
        ],
        answer_no: None,
        is_interruptible: true,
        variables: &[PASSWORD, EMBEDDED, SOURCES, TERMINAL],
    },
    CommandHelp {
        command: "lab list",
        examples: &["pgspate lab list", "pgspate lab list --scale 1 --json"],
        answer_no: None,
        is_interruptible: false,
        variables: &[TERMINAL],
    },
    CommandHelp {
        command: "lab run",
        examples: &[
            "pgspate lab run bulk --scale 0.1",
            "pgspate lab run bulk --data 'orders/*.csv' --only strategy=pgspate",
            "pgspate lab run all --to postgres://me@db/test --repeats 5",
        ],
        answer_no: None,
        is_interruptible: true,
        variables: &[PASSWORD, EMBEDDED, SOURCES, TERMINAL],
    },
    CommandHelp {
        command: "lab report",
        examples: &["pgspate lab report", "pgspate lab report --results old --out old.html"],
        answer_no: None,
        is_interruptible: false,
        variables: &[TERMINAL],
    },
    CommandHelp {
        command: "fleet",
        examples: &[
            "pgspate fleet nights",
            "pgspate fleet nights --generation 2026-11-21 --json",
            "pgspate fleet nights --forget",
        ],
        answer_no: Some("Done, but members are running, failed or missing"),
        is_interruptible: true,
        variables: &[CONNECTION, EMBEDDED, TERMINAL],
    },
    CommandHelp {
        command: "status",
        examples: &[
            "pgspate status",
            "pgspate status 7 --json",
            "pgspate status --restore",
            "pgspate status 7 --forget",
        ],
        answer_no: None,
        is_interruptible: true,
        variables: &[CONNECTION, EMBEDDED, TERMINAL],
    },
    CommandHelp {
        command: "server",
        examples: &[
            "pgspate server start",
            "psql \"$(pgspate server dsn)\"",
            "PGSPATE_PG_VERSION=17 pgspate server start",
            "pgspate server stop",
        ],
        answer_no: None,
        is_interruptible: false,
        variables: &[EMBEDDED, TERMINAL],
    },
    CommandHelp {
        command: "server status",
        examples: &["pgspate server status", "pgspate server status --json"],
        answer_no: None,
        is_interruptible: false,
        variables: &[EMBEDDED],
    },
    CommandHelp {
        command: "completions",
        examples: &[
            "pgspate completions bash > ~/.local/share/bash-completion/completions/pgspate",
        ],
        answer_no: None,
        is_interruptible: false,
        variables: &[],
    },
    CommandHelp {
        command: "man",
        examples: &["pgspate man > pgspate.1 && man ./pgspate.1"],
        answer_no: None,
        is_interruptible: false,
        variables: &[],
    },
    CommandHelp {
        command: "",
        examples: &[
            "pgspate load orders.csv --table orders --create",
            "pgspate sync prices.csv --table prices --scope all",
            "pgspate doctor",
        ],
        answer_no: Some("Done, but the answer is no: rejects, differences or findings"),
        is_interruptible: true,
        variables: &[CONNECTION, EMBEDDED, SOURCES, TERMINAL],
    },
];

impl CommandHelp {
    /// Returns the help of the command with these words, if it has any.
    pub(crate) fn of(words: &str) -> Option<&'static CommandHelp> {
        COMMANDS.iter().find(|help| help.command == words)
    }

    /// Returns the title and the lines of each section.
    pub(crate) fn sections(&self) -> Vec<(&'static str, Vec<String>)> {
        let mut sections = vec![("Examples", self.example_lines())];
        let no = self.answer_no.map(|meaning| ("1", meaning));
        let interrupted = self.is_interruptible.then_some(("130", "Interrupted"));
        let statuses = [Some(("0", "Done")), no, Some(("2", "Error")), interrupted];
        sections.push(("Exit status", aligned(statuses.into_iter().flatten())));
        if !self.variables.is_empty() {
            let variables = self.variables.iter().flat_map(|group| group.iter().copied());
            sections.push(("Environment", aligned(variables)));
        }
        sections
    }

    fn example_lines(&self) -> Vec<String> {
        self.examples.iter().map(|example| (*example).to_owned()).collect()
    }

    /// Adds the sections to the command's help.
    fn add_to(&self, command: Command) -> Command {
        let text = |sections: &[(&str, Vec<String>)]| {
            let mut text = String::new();
            for (title, lines) in sections {
                let gap = if text.is_empty() { "" } else { "\n" };
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{gap}{title}:");
                lines.iter().for_each(|line| text += &format!("  {line}\n"));
            }
            text.trim_end().to_owned()
        };
        let sections = self.sections();
        command.after_help(text(&sections[..1])).after_long_help(text(&sections))
    }
}

/// Formats pairs as two columns.
fn aligned(pairs: impl Iterator<Item = (&'static str, &'static str)>) -> Vec<String> {
    let pairs: Vec<_> = pairs.collect();
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    pairs.iter().map(|(name, meaning)| format!("{name:<width$}  {meaning}")).collect()
}

/// Adds examples, exit status and environment to the help of the command and of its subcommands.
pub(crate) fn add_sections(command: Command) -> Command {
    add_below("", command)
}

fn add_below(words: &str, command: Command) -> Command {
    let below = |sub: Command| {
        let name = format!("{words} {}", sub.get_name());
        add_below(name.trim_start(), sub)
    };
    let command = command.mut_subcommands(below);
    match CommandHelp::of(words) {
        Some(help) => help.add_to(command),
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &str, command: &Command) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let name = format!("{words} {}", sub.get_name()).trim_start().to_owned();
            // The actions of the server have the help of `server`.
            let has_own = CommandHelp::of(&name).is_some() || words == "server";
            assert!(has_own, "pgspate {name} has no examples");
            check(&name, sub);
        }
    }

    #[test]
    fn every_command_has_examples_exit_status_and_environment() {
        check("", &crate::args::command());
        let mut command = crate::args::command();
        let load = command.find_subcommand_mut("load").unwrap();
        let (short, long) = (load.render_help().to_string(), load.render_long_help().to_string());
        assert!(short.contains("Examples:") && !short.contains("Exit status:"), "{short}");
        for title in ["Examples:", "Exit status:", "Environment:", "  130  Interrupted"] {
            assert!(long.contains(title), "{long}");
        }
    }

    #[test]
    fn every_command_that_reports_can_be_quiet() {
        let mut command = crate::args::command();
        command.build();
        let mut checked = 0;
        let is_own = |sub: &&Command| sub.get_name() != "help" && !sub.is_hide_set();
        let own = command.get_subcommands().filter(is_own);
        for sub in own.flat_map(|sub| sub.get_subcommands().filter(is_own).chain([sub])) {
            // These print what another program reads.
            if ["completions", "man"].contains(&sub.get_name()) {
                continue;
            }
            let has_flag = sub.get_arguments().any(|arg| arg.get_short() == Some('q'));
            assert!(has_flag, "pgspate {} has no -q", sub.get_name());
            checked += 1;
        }
        assert!(checked >= 12, "{checked}");
    }

    #[test]
    fn every_example_is_accepted() {
        let examples = COMMANDS.iter().flat_map(|help| help.examples);
        // An example with another program, or with a redirection, is for the shell.
        let plain = examples.filter(|it| it.starts_with("pgspate") && !it.contains('>'));
        for example in plain {
            let words = example.split(' ').map(|word| word.trim_matches('\''));
            if let Err(refused) = crate::args::command().try_get_matches_from(words) {
                panic!("{example}: {refused}");
            }
        }
    }
}
