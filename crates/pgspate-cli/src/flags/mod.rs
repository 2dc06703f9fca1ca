//! The flags of the commands: one item for each flag, with its name, help, default and target.
//!
//! Help, manual page, reference and completions are generated from these items. Tests compare the
//! arguments of Python's calls with them. A flag that several commands share is one item in
//! `shared`.

mod apply;
mod doctor;
mod fleet;
mod load;
mod reading;
mod serve;
mod shared;
mod source_option;
mod sync;
mod tune;

use std::any::TypeId;

use clap::builder::{
    PathBufValueParser, PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser,
};
use clap::error::Error;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, FromArgMatches};

pub(crate) use apply::ApplyArgs;
pub(crate) use doctor::DoctorArgs;
pub(crate) use fleet::FleetArgs;
pub(crate) use load::LoadArgs;
pub(crate) use serve::ServeArgs;
pub(crate) use shared::{CommonArgs, StallArgs};
pub(crate) use sync::SyncArgs;
pub(crate) use tune::TuneArgs;

/// Copies a flag's value from the parsed arguments into `T`.
type FlagSetter<T> = Box<dyn Fn(&mut T, &ArgMatches)>;

/// A flag or a positional argument, and how it sets a field of `T`.
pub(crate) struct Flag<T> {
    arg: Arg,
    set: FlagSetter<T>,
}

/// The arguments of a command. Parsing begins with the default value, and each flag sets a field.
pub(crate) trait CommandFlags: Default + 'static {
    /// Flags of which exactly one must be given.
    const ONE_OF: &'static [&'static str] = &[];

    /// Returns the flags, in the order of the help.
    fn flags() -> Vec<Vec<Flag<Self>>>;
}

/// Lets clap parse the arguments that [`CommandFlags`] defines.
pub(crate) struct ParsedFlags<T>(pub(crate) T);

impl<T: CommandFlags> clap::Args for ParsedFlags<T> {
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

impl<T: CommandFlags> FromArgMatches for ParsedFlags<T> {
    fn from_arg_matches(found: &ArgMatches) -> Result<Self, Error> {
        let mut asked = ParsedFlags(T::default());
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

    /// Puts the flag under a heading of the help.
    fn under(self, heading: &'static str) -> Flag<T> {
        self.with(|arg| arg.help_heading(heading))
    }

    fn with(self, change: impl FnOnce(Arg) -> Arg) -> Flag<T> {
        Flag { arg: change(self.arg), set: self.set }
    }
}

/// Returns a flag without a value; `set` is called if the flag is given.
fn switch<T>(flag: &'static str, set: impl Fn(&mut T) + 'static) -> Flag<T> {
    let arg = Arg::new(flag).long(flag).action(ArgAction::SetTrue);
    let set = move |it: &mut T, found: &ArgMatches| {
        if found.get_flag(flag) {
            set(it);
        }
    };
    Flag { arg, set: Box::new(set) }
}

/// Returns a flag with one value, which the help calls `name`.
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

/// Returns a flag that can be given several times, each time with one value.
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

/// Returns a flag with a list of column names separated by commas. A name that contains a comma is
/// in double quotes, with its own double quotes doubled.
fn column_names<T>(
    flag: &'static str,
    name: &'static str,
    set: impl Fn(&mut T, Vec<String>) + 'static,
) -> Flag<T> {
    values(flag, name, text().map(|list| split_column_names(&list)), move |it, names| {
        set(it, names.into_iter().flatten().collect());
    })
}

/// Returns the argument with each value of a list of names taken as one name.
pub(crate) fn with_whole_names(arg: Arg) -> Arg {
    match arg.get_value_parser().type_id() == TypeId::of::<Vec<String>>() {
        true => arg.value_parser(text().map(|name| vec![name])),
        false => arg,
    }
}

fn split_column_names(list: &str) -> Vec<String> {
    let unquoted = |name: &str| {
        let quoted = name.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
        quoted.map_or_else(|| name.to_owned(), |name| name.replace("\"\"", "\""))
    };
    split_outside_quotes(list).into_iter().map(unquoted).collect()
}

/// Splits a list at its commas, except within double quotes.
fn split_outside_quotes(list: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let is_delimiter = |letter: char| {
        is_quoted ^= letter == '"';
        letter == ',' && !is_quoted
    };
    list.split(is_delimiter).collect()
}

/// Converts flags that set a field of `T` into flags that set this field of the `T` within `O`.
fn part<T: 'static, O: 'static>(part: fn(&mut O) -> &mut T, flags: Vec<Flag<T>>) -> Vec<Flag<O>> {
    let convert = |Flag { arg, set }: Flag<T>| Flag {
        arg,
        set: Box::new(move |it: &mut O, found: &ArgMatches| set(part(it), found)),
    };
    flags.into_iter().map(convert).collect()
}

/// Puts all flags under a heading of the help.
fn under<T>(heading: &'static str, flags: Vec<Flag<T>>) -> Vec<Flag<T>> {
    flags.into_iter().map(|flag| flag.under(heading)).collect()
}

fn text() -> StringValueParser {
    StringValueParser::new()
}

fn path() -> PathBufValueParser {
    PathBufValueParser::new()
}

/// Returns a parser that accepts one of these words. Each word comes with its help and its value.
fn choice<V: Clone + Send + Sync + 'static, const N: usize>(
    words: [(&'static str, &'static str, V); N],
) -> impl TypedValueParser<Value = V> {
    let possible = words.each_ref().map(|(word, help, _)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(possible).map(move |word_given| {
        let found = words.iter().find(|(word, ..)| *word == word_given);
        found.expect("clap accepts only these words").2.clone()
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use pgspate::{apply, load, reading, sync};
    use pgspate_doctor::doctor;

    use super::*;

    #[test]
    fn names_are_split_at_commas_outside_quotes() {
        for (list, names) in [
            ("a,b", &["a", "b"][..]),
            (r#""a,b",c"#, &["a,b", "c"]),
            (r#""say ""hi"", bob",5" pipe"#, &[r#"say "hi", bob"#, r#"5" pipe"#]),
            ("", &[""]),
        ] {
            assert_eq!(split_column_names(list), names, "{list}");
        }
    }

    fn asked<T: CommandFlags>(words: &[&str]) -> T {
        crate::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[track_caller]
    fn assert_alike(asked: &impl Debug, expected: &impl Debug) {
        assert_eq!(format!("{asked:#?}"), format!("{expected:#?}"));
    }

    #[test]
    fn without_flags_the_options_have_the_engines_defaults() {
        let sources = vec!["x".to_owned()];
        let reading = reading::ReadingOptions::of_sources(sources.clone());
        let load = load::LoadOptions { reading: reading.clone(), ..load::LoadOptions::default() };
        assert_alike(&asked::<LoadArgs>(&["x"]).options, &load);
        let sync = asked::<SyncArgs>(&["x", "--no-delete"]).options;
        assert_alike(&sync, &sync::SyncOptions { reading, ..sync::SyncOptions::default() });
        let served = pgspate_serve::ServeOptions { tables: sources.clone(), ..Default::default() };
        assert_alike(&asked::<ServeArgs>(&["-t", "x"]).options, &served);
        let apply = apply::ApplyOptions { sources, ..apply::ApplyOptions::default() };
        assert_alike(&asked::<ApplyArgs>(&["x"]).options, &apply);
        assert_alike(&asked::<DoctorArgs>(&[]).options, &doctor::DoctorOptions::default());
    }
}
