//! Parses `--source-option KEY=VALUE`, where the value may be a secret.
//!
//! All users of a machine can see the arguments of a process. So a secret value can be read from a
//! file or from an environment variable instead. No error repeats a value.

use std::ffi::OsStr;
use std::io::Read;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command};

/// The most bytes of a value. No HTTP header and no key of an object store is longer.
const VALUE_BYTES_MAX: u64 = 64 << 10;

/// Parses `KEY=VALUE`, `KEY=@FILE` and `KEY=env:NAME`.
#[derive(Clone)]
pub(crate) struct SourceOption;

impl TypedValueParser for SourceOption {
    type Value = (String, String);

    fn parse_ref(
        &self,
        command: &Command,
        _: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        // Not clap's own message, which would repeat the value.
        parse(value).map_err(|why| {
            let message = format!("invalid value for '--source-option <KEY=VALUE>': {why}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

fn parse(option: &OsStr) -> Result<(String, String), String> {
    let option = option.to_str().ok_or("expected UTF-8")?;
    let (key, value) = option.split_once('=').ok_or("expected KEY=VALUE")?;
    let value = match (value.strip_prefix('@'), value.strip_prefix("env:")) {
        (Some(path), _) => read_file(path)?,
        (None, Some(name)) => read_environment(name)?,
        (None, None) => value.to_owned(),
    };
    Ok((key.to_owned(), value))
}

/// Reads a value from a file, without the line end of its last line.
fn read_file(path: &str) -> Result<String, String> {
    let mut text = String::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(VALUE_BYTES_MAX + 1).read_to_string(&mut text));
    read.map_err(|error| format!("could not read file \"{path}\": {error}"))?;
    if text.len() as u64 > VALUE_BYTES_MAX {
        return Err(format!("file \"{path}\" is larger than {VALUE_BYTES_MAX} bytes"));
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

fn read_environment(name: &str) -> Result<String, String> {
    let value = std::env::var_os(name)
        .ok_or_else(|| format!("environment variable \"{name}\" is not set"))?;
    value.into_string().map_err(|_| format!("environment variable \"{name}\" is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_from_the_argument_a_file_or_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let option = format!("header.authorization=@{}", file.display());
        let parsed = |option: &str| parse(OsStr::new(option));
        assert!(parsed(&option).unwrap_err().contains("could not read file"));
        for (content, expected) in [("Bearer a=b\n", "Bearer a=b"), ("x\r\n", "x"), ("y", "y")] {
            std::fs::write(&file, content).unwrap();
            let (key, value) = parsed(&option).unwrap();
            assert_eq!((key.as_str(), value.as_str()), ("header.authorization", expected));
        }
        std::fs::write(&file, "x".repeat(65 << 10)).unwrap();
        assert!(parsed(&option).unwrap_err().contains("larger than 65536 bytes"));
        assert_eq!(parsed("k=v=w").unwrap(), ("k".to_owned(), "v=w".to_owned()));
        assert_eq!(parsed("k=env:PATH").unwrap().1, std::env::var("PATH").unwrap());
        let missing = parsed("k=env:PGSPATE_TEST_NO_SUCH").unwrap_err();
        assert_eq!(missing, "environment variable \"PGSPATE_TEST_NO_SUCH\" is not set");
        assert_eq!(parsed("secret").unwrap_err(), "expected KEY=VALUE");
    }
}
