//! Reads AWS profiles: the keys, region and endpoint in `~/.aws/credentials` and `~/.aws/config`.
//!
//! Only settings that need no further request are read. A profile that gets its keys from single
//! sign-on, a role or a program is detected, and the error says how to get the keys.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::Env;
use crate::{Error, ErrorKind, Result};

/// The `--source-option` key that names a profile.
pub(super) const PROFILE_OPTION: &str = "profile";

type IniSection = BTreeMap<String, String>;

/// The settings of a profile.
#[derive(Debug, Default, PartialEq)]
pub(super) struct AwsProfile {
    pub(super) name: String,
    /// The settings, by their names in the files.
    pub(super) settings: IniSection,
}

/// Settings of profiles whose keys come from another place than the two files.
const INDIRECT_SETTINGS: [&str; 6] = [
    "sso_session",
    "sso_start_url",
    "role_arn",
    "credential_process",
    "credential_source",
    "login_session",
];

impl AwsProfile {
    /// Reads the profile `option_name`. Without `option_name`, reads the profile that the variable
    /// AWS_PROFILE or AWS_DEFAULT_PROFILE names, or else the profile `default`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a profile was named and neither file contains the profile.
    pub(super) fn read(option_name: Option<&str>, env: &Env) -> Result<AwsProfile> {
        let variable = env.get("AWS_PROFILE").or_else(|| env.get("AWS_DEFAULT_PROFILE"));
        let named = option_name.or(variable.map(String::as_str));
        let name = named.unwrap_or("default").to_owned();
        let mut config = parse_ini(&read_config_file(env, "AWS_CONFIG_FILE", "config"));
        let mut keys =
            parse_ini(&read_config_file(env, "AWS_SHARED_CREDENTIALS_FILE", "credentials"));
        let from_config = config
            .remove(&format!("profile {name}"))
            .or_else(|| (name == "default").then(|| config.remove("default")).flatten());
        let from_keys = keys.remove(&name);
        if named.is_some() && from_config.is_none() && from_keys.is_none() {
            let message = format!("AWS profile \"{name}\" does not exist");
            return Err(Error::new(ErrorKind::Usage, message).hint(
                "Check AWS_PROFILE against ~/.aws/credentials and ~/.aws/config (or the files \
                 that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name).",
            ));
        }
        let mut settings = from_config.unwrap_or_default();
        let from_keys = from_keys.unwrap_or_default();
        if from_keys.contains_key("aws_access_key_id") {
            // Keys belong together: all must come from the same file.
            settings.retain(|key, _| !key.starts_with("aws_"));
        }
        settings.extend(from_keys);
        Ok(AwsProfile { name, settings })
    }

    /// Returns whether the profile has no keys but a setting that says where to get them.
    pub(super) fn is_indirect(&self) -> bool {
        !self.settings.contains_key("aws_access_key_id")
            && INDIRECT_SETTINGS.iter().any(|key| self.settings.contains_key(*key))
    }
}

/// Returns the text of one of the two files. A missing file counts as empty.
fn read_config_file(env: &Env, variable: &str, name: &str) -> String {
    let path = match (env.get(variable), env.get("HOME")) {
        (Some(path), _) => PathBuf::from(path),
        (None, Some(home)) => PathBuf::from(home).join(".aws").join(name),
        (None, None) => return String::new(),
    };
    std::fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
}

/// Parses the sections of an ini file. Indented lines belong to a nested setting and are left out.
fn parse_ini(text: &str) -> BTreeMap<String, IniSection> {
    let mut sections: BTreeMap<String, IniSection> = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            let name = header.split(']').next().unwrap_or_default();
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ").replace('"', "");
            sections.entry(name.clone()).or_default();
            current = Some(name);
        } else if let (Some(name), Some((key, value)), false) =
            (&current, line.split_once('='), is_nested)
        {
            let value = value.split(" #").next().unwrap_or_default().trim();
            let section = sections.entry(name.clone()).or_default();
            section.insert(key.trim().to_ascii_lowercase(), value.to_owned());
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn env(dir: &std::path::Path, more: &[(&str, &str)]) -> Env {
        let mut env = Env::new();
        for (variable, file) in
            [("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")]
        {
            env.insert(variable.into(), dir.join(file).to_str().unwrap().into());
        }
        env.extend(more.iter().map(|(key, value)| ((*key).into(), (*value).into())));
        env
    }

    #[test]
    fn settings_of_both_files_are_merged() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("credentials"),
            "# mine\n[default]\naws_access_key_id = A\naws_secret_access_key=B\n\n\
             [work]\r\naws_access_key_id=C\r\naws_secret_access_key = D/+=\r\n",
        )
        .unwrap();
        fs::write(
            dir.path().join("config"),
            "[default]\nregion = eu-west-1\n[profile work]\nregion=us-east-2 # far\n\
             s3 =\n  endpoint_url = http://nested\naws_session_token = stale\n\
             [profile \"two words\"]\nendpoint_url = http://localhost:9000\n",
        )
        .unwrap();
        let default = AwsProfile::read(None, &env(dir.path(), &[])).unwrap();
        assert_eq!(default.settings["aws_access_key_id"], "A");
        assert_eq!(default.settings["region"], "eu-west-1");
        let work = AwsProfile::read(None, &env(dir.path(), &[("AWS_PROFILE", "work")])).unwrap();
        assert_eq!(work.settings["aws_secret_access_key"], "D/+=");
        assert_eq!(work.settings["region"], "us-east-2");
        assert!(!work.settings.contains_key("endpoint_url"));
        assert!(!work.settings.contains_key("aws_session_token"));
        let two = AwsProfile::read(Some("two words"), &env(dir.path(), &[])).unwrap();
        assert_eq!(two.settings["endpoint_url"], "http://localhost:9000");
    }

    #[test]
    fn a_missing_profile_is_an_error_only_if_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            AwsProfile::read(None, &env(dir.path(), &[])).unwrap().settings,
            IniSection::new()
        );
        let error =
            AwsProfile::read(None, &env(dir.path(), &[("AWS_PROFILE", "gone")])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert_eq!(error.to_string(), "AWS profile \"gone\" does not exist");
    }

    #[test]
    fn a_profile_without_keys_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config"), "[profile sso]\nsso_session = corp\n").unwrap();
        assert!(AwsProfile::read(Some("sso"), &env(dir.path(), &[])).unwrap().is_indirect());
    }
}
