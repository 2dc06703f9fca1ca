//! One item for each flag: its name, its help, its default, and what it sets.
//!
//! Help, manual page, reference and completions are made of these items, and tests compare the
//! arguments of Python's calls with them. A flag of several commands is one item in `shared`.

mod apply;
mod doctor;
mod load;
mod reading;
mod shared;
mod source_option;
mod sync;
mod tune;

use clap::builder::{
    PathBufValueParser, PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser,
};
use clap::error::Error;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, FromArgMatches};

pub(crate) use apply::ApplyArgs;
pub(crate) use doctor::DoctorArgs;
pub(crate) use load::LoadArgs;
pub(crate) use shared::{CommonArgs, StallArgs};
pub(crate) use sync::SyncArgs;
pub(crate) use tune::TuneArgs;

/// Takes a flag's value from those that are found.
type Set<T> = Box<dyn Fn(&mut T, &ArgMatches)>;

/// A flag, or an argument without a name, that sets something of `T`.
pub(crate) struct Flag<T> {
    arg: Arg,
    set: Set<T>,
}

/// What a command is asked for. Its flags set it, beginning with the default.
pub(crate) trait Flagged: Default + 'static {
    /// Flags of which exactly one must be given.
    const ONE_OF: &'static [&'static str] = &[];

    /// The flags, in the order of the help.
    fn flags() -> Vec<Vec<Flag<Self>>>;
}

/// Arguments of a command of clap's that are defined by [`Flagged`].
pub(crate) struct FromFlags<T>(pub(crate) T);

impl<T: Flagged> clap::Args for FromFlags<T> {
    fn augment_args(command: Command) -> Command {
        let command = match T::ONE_OF {
            [] => command,
            names => command.group(ArgGroup::new("one of").args(names).required(true)),
        };
        command.args(T::flags().into_iter().flatten().map(|flag| flag.arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Flagged> FromArgMatches for FromFlags<T> {
    fn from_arg_matches(found: &ArgMatches) -> Result<Self, Error> {
        let mut asked = FromFlags(T::default());
        asked.update_from_arg_matches(found)?;
        Ok(asked)
    }

    fn update_from_arg_matches(&mut self, found: &ArgMatches) -> Result<(), Error> {
        T::flags().iter().flatten().for_each(|flag| (flag.set)(&mut self.0, found));
        Ok(())
    }
}

impl<T> Flag<T> {
    fn help(self, help: &'static str) -> Flag<T> {
        self.with(|arg| arg.help(help))
    }

    fn default(self, value: &'static str) -> Flag<T> {
        self.with(|arg| arg.default_value(value))
    }

    /// Puts it under a heading of the help.
    fn under(self, heading: &'static str) -> Flag<T> {
        self.with(|arg| arg.help_heading(heading))
    }

    fn with(self, change: impl FnOnce(Arg) -> Arg) -> Flag<T> {
        Flag { arg: change(self.arg), set: self.set }
    }
}

/// Takes nothing; `set` is called if the flag is given.
fn switch<T>(flag: &'static str, set: impl Fn(&mut T) + 'static) -> Flag<T> {
    let arg = Arg::new(flag).long(flag).action(ArgAction::SetTrue);
    let set = move |it: &mut T, found: &ArgMatches| {
        if found.get_flag(flag) {
            set(it);
        }
    };
    Flag { arg, set: Box::new(set) }
}

/// Takes one value, which the help calls `name`.
fn value<T, P: TypedValueParser>(
    flag: &'static str,
    name: &'static str,
    parser: P,
    set: impl Fn(&mut T, P::Value) + 'static,
) -> Flag<T> {
    let arg = Arg::new(flag).long(flag).value_name(name).value_parser(parser);
    let set = move |it: &mut T, found: &ArgMatches| {
        if let Some(value) = found.get_one::<P::Value>(flag) {
            set(it, value.clone());
        }
    };
    Flag { arg, set: Box::new(set) }
}

/// Takes values, one each time that the flag is given.
fn values<T, P: TypedValueParser>(
    flag: &'static str,
    name: &'static str,
    parser: P,
    set: impl Fn(&mut T, Vec<P::Value>) + 'static,
) -> Flag<T> {
    let arg = Arg::new(flag).long(flag).value_name(name).value_parser(parser);
    let set = move |it: &mut T, found: &ArgMatches| {
        if let Some(values) = found.get_many::<P::Value>(flag) {
            set(it, values.cloned().collect());
        }
    };
    Flag { arg: arg.action(ArgAction::Append), set: Box::new(set) }
}

/// Takes names with commas between them.
fn names<T>(
    flag: &'static str,
    name: &'static str,
    set: impl Fn(&mut T, Vec<String>) + 'static,
) -> Flag<T> {
    values(flag, name, text(), set).with(|arg| arg.value_delimiter(','))
}

/// Flags of a part of something, as flags of the whole.
fn part<T: 'static, O: 'static>(part: fn(&mut O) -> &mut T, flags: Vec<Flag<T>>) -> Vec<Flag<O>> {
    let of_whole = |Flag { arg, set }: Flag<T>| Flag {
        arg,
        set: Box::new(move |it: &mut O, found: &ArgMatches| set(part(it), found)),
    };
    flags.into_iter().map(of_whole).collect()
}

/// Flags under a heading of the help.
fn under<T>(heading: &'static str, flags: Vec<Flag<T>>) -> Vec<Flag<T>> {
    flags.into_iter().map(|flag| flag.under(heading)).collect()
}

fn text() -> StringValueParser {
    StringValueParser::new()
}

fn path() -> PathBufValueParser {
    PathBufValueParser::new()
}

/// One of some words, each with its help and what it means.
fn choice<V: Clone + Send + Sync + 'static, const N: usize>(
    words: [(&'static str, &'static str, V); N],
) -> impl TypedValueParser<Value = V> {
    let possible = words.each_ref().map(|(word, help, _)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(possible).map(move |said| {
        let found = words.iter().find(|(word, ..)| *word == said);
        found.expect("clap has compared it with them").2.clone()
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use pgspate::{apply, load, reading, sync};
    use pgspate_doctor::doctor;

    use super::*;

    fn asked<T: Flagged>(words: &[&str]) -> T {
        crate::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[track_caller]
    fn assert_alike(asked: &impl Debug, expected: &impl Debug) {
        assert_eq!(format!("{asked:#?}"), format!("{expected:#?}"));
    }

    #[test]
    fn without_flags_the_defaults_of_the_engine_count() {
        let sources = vec!["x".to_owned()];
        let reading = reading::Options::of_sources(sources.clone());
        let load = load::Options { reading: reading.clone(), ..load::Options::default() };
        assert_alike(&asked::<LoadArgs>(&["x"]).options, &load);
        let sync = asked::<SyncArgs>(&["x", "--no-delete"]).options;
        assert_alike(&sync, &sync::Options { reading, ..sync::Options::default() });
        let apply = apply::Options { sources, ..apply::Options::default() };
        assert_alike(&asked::<ApplyArgs>(&["x"]).options, &apply);
        assert_alike(&asked::<DoctorArgs>(&[]).options, &doctor::Options::default());
    }
}
