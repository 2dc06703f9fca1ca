//! Tests of connection strings, files and variables, without a server.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::dsn::SessionAttrs;
use super::host::Endpoint;
use super::tls_settings::{TlsMode, TrustedRoots};
use super::*;
use crate::{Error, ErrorKind};

fn env(variables: &[(&str, &str)]) -> Environment {
    let pairs = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Environment {
        variables: pairs.collect(),
        user: Some("osuser".to_owned()),
        ..Environment::default()
    }
}

fn resolved(text: &str, env: &Environment) -> Dsn {
    Dsn::resolve(Some(text), env).unwrap().unwrap()
}

fn refused(text: &str) -> Error {
    Dsn::resolve(Some(text), &env(&[])).unwrap_err()
}

fn passwords(dsn: &Dsn) -> Vec<Option<&str>> {
    dsn.hosts.iter().map(|host| host.password.as_ref().map(|secret| secret.expose())).collect()
}

fn write_file(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn no_server_without_parameters() {
    assert!(Dsn::resolve(None, &env(&[])).unwrap().is_none());
    let without_server = env(&[("PGSSLMODE", "nonsense"), ("PGPASSWORD", "x"), ("PGHOST", "")]);
    assert!(Dsn::resolve(None, &without_server).unwrap().is_none());
    for name in ["PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER"] {
        let value = if name == "PGHOSTADDR" { "127.0.0.1" } else { "12" };
        assert!(Dsn::resolve(None, &env(&[(name, value)])).unwrap().is_some(), "{name}");
    }
    assert!(Dsn::resolve(Some(""), &env(&[])).unwrap().is_some());
}

#[test]
fn defaults_are_those_of_libpq() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let environment = Environment { socket_dirs: vec![missing, dir.path().to_owned()], ..env(&[]) };
    let dsn = resolved("", &environment);
    assert_eq!((dsn.user(), dsn.dbname()), ("osuser", "osuser"));
    let socket = dir.path().join(".s.PGSQL.5432");
    assert_eq!(dsn.hosts[0].socket_path(), Some(socket));
    assert_eq!(dsn.tls.mode, TlsMode::Prefer);
    assert_eq!(dsn.session, SessionAttrs::Any);
    assert_eq!(resolved("user=bob", &environment).dbname(), "bob");
    let nobody = Environment { user: None, ..environment };
    let error = Dsn::resolve(Some("host=a"), &nobody).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
}

#[test]
fn the_string_wins_over_the_service_and_the_service_over_variables() {
    let home = tempfile::tempdir().unwrap();
    let text = "# comment\n[other]\nhost=wrong\n\n[sales]\nhost=service-host\nuser=service-user\n\
                dbname=service-db\npassword=from service \n[after]\nport=9\n";
    fs::write(home.path().join(".pg_service.conf"), text).unwrap();
    let variables = env(&[
        ("PGSERVICE", "sales"),
        ("PGHOST", "env-host"),
        ("PGUSER", "env-user"),
        ("PGPORT", "5433"),
        ("PGPASSWORD", "from env"),
    ]);
    let env = Environment { home: Some(home.path().to_owned()), ..variables };
    let dsn = resolved("user=own-user", &env);
    assert_eq!(dsn.to_string(), "postgres://own-user:***@service-host:5433/service-db");
    assert_eq!(passwords(&dsn), [Some("from service")]);
    let dsn = Dsn::resolve(None, &env).unwrap().unwrap();
    assert_eq!(dsn.user(), "service-user");
    let dsn = resolved("postgres:///?service=after", &env);
    assert_eq!(dsn.to_string(), "postgres://env-user:***@env-host:9/env-user");
    let error = Dsn::resolve(Some("service=none"), &env).unwrap_err();
    assert_eq!(error.to_string(), "definition of service \"none\" not found");
    assert!(error.hint_text().unwrap().contains(".pg_service.conf"));
}

#[test]
fn a_service_may_be_in_the_system_file() {
    let dir = tempfile::tempdir().unwrap();
    let shown = dir.path().display().to_string();
    fs::write(
        dir.path().join("pg_service.conf"),
        "[a]\nhost=far\n[bad]\nhots=x\n[loop]\nservice=a\n[none]\nx\n",
    )
    .unwrap();
    for env in [
        env(&[("PGSYSCONFDIR", &shown), ("PGSERVICEFILE", "/no/such/file")]),
        Environment { sysconf_dirs: vec![dir.path().to_owned()], ..env(&[]) },
        env(&[("PGSERVICEFILE", &format!("{shown}/pg_service.conf"))]),
    ] {
        assert_eq!(resolved("service=a", &env).hosts[0].label(), "far");
        let error = Dsn::resolve(Some("service=bad"), &env).unwrap_err();
        assert_eq!(error.to_string(), "unknown connection parameter \"hots\"");
        assert!(error.hint_text().unwrap().starts_with("Did you mean \"host\"?"));
        assert_eq!(error.place().unwrap().line, Some(4));
        for name in ["loop", "none"] {
            assert!(Dsn::resolve(Some(&format!("service={name}")), &env).is_err());
        }
    }
}

#[test]
fn hosts_addresses_and_ports_are_paired() {
    let dsn = resolved("host=a,/tmp,,::1 port=1,2,,4", &env(&[]));
    let ports: Vec<u16> = dsn.hosts.iter().map(|host| host.port).collect();
    assert_eq!(ports, [1, 2, 5432, 4]);
    assert!(matches!(&dsn.hosts[2].endpoint, Endpoint::Socket { is_default: true, .. }));
    assert_eq!(dsn.to_string(), "postgres://osuser@a:1,%2Ftmp:2,%2Ftmp,[::1]:4/osuser");
    let dsn = resolved("host=a,b hostaddr=10.0.0.1,::2 port=7", &env(&[]));
    assert_eq!(dsn.hosts[1].to_string(), "server at \"b\" (::2), port 7");
    let dsn = resolved("host=@shared", &env(&[]));
    assert_eq!(dsn.hosts[0].socket_path().unwrap().to_str(), Some("\0shared/.s.PGSQL.5432"));
    assert_eq!(dsn.psql_command(), "psql postgres://osuser@%40shared:5432/osuser");
    for text in [
        "host=a,b port=1,2,3",
        "host=a,b hostaddr=::1",
        "hostaddr=a",
        "port=0",
        "port=65536",
        "port=x",
        "host=b@c",
    ] {
        assert_eq!(refused(text).kind(), ErrorKind::Usage, "{text}");
    }
}

#[test]
fn values_are_checked_and_errors_say_where_they_come_from() {
    let error = Dsn::resolve(Some("host=a"), &env(&[("PGSSLMODE", "full")])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid sslmode value \"full\", expected one of disable, allow, prefer, require, \
         verify-ca, verify-full"
    );
    let hint = "The value of sslmode comes from environment variable PGSSLMODE.";
    assert_eq!(error.hint_text(), Some(hint));
    for text in [
        "connect_timeout=soon",
        "keepalives=yes",
        "keepalives_count=1.5",
        "tcp_user_timeout=99999999999",
        "channel_binding=maybe",
        "target_session_attrs=any,all",
        "load_balance_hosts=true",
        "sslsni=2",
        "sslnegotiation=direct",
        "ssl_min_protocol_version=SSLv3",
        "ssl_max_protocol_version=TLSv1.1",
        "ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.2",
        "sslrootcert=system sslmode=verify-ca",
        "sslmode=verify-ca sslrootcert=/no/such/file",
        "sslmode=verify-full",
        "sslcrl=x",
        "sslcrldir=x",
        "sslpassword=hunter2",
        "requirepeer=postgres",
        "require_auth=none",
        "gssencmode=require",
        "min_protocol_version=3.2",
        "replication=database",
    ] {
        let error = refused(&format!("host=a {text}"));
        assert_eq!(error.kind(), ErrorKind::Usage, "{text}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    let error = refused("host=a sslmod=require");
    assert_eq!(error.to_string(), "unknown connection parameter \"sslmod\"");
    assert!(error.hint_text().unwrap().starts_with("Did you mean \"sslmode\"?"));
}

#[test]
fn timeouts_and_options() {
    let text = "host=a connect_timeout=5 keepalives=0 keepalives_idle=60 keepalives_interval=-1 \
                keepalives_count=3 tcp_user_timeout=1500 options='-c a=b' client_encoding=latin1";
    let variables = [("PGTZ", "Etc/GMT 1\\"), ("PGDATESTYLE", "default"), ("PGGEQO", "off")];
    let dsn = resolved(text, &env(&variables));
    assert_eq!(dsn.timeouts.connect, Some(Duration::from_secs(5)));
    assert_eq!(dsn.timeouts.tcp_user, Some(Duration::from_millis(1500)));
    assert!(!dsn.timeouts.keepalives);
    assert_eq!(dsn.timeouts.keepalives_idle, Some(Duration::from_secs(60)));
    assert_eq!(dsn.timeouts.keepalives_interval, None);
    assert_eq!(dsn.timeouts.keepalives_count, Some(3));
    assert_eq!(dsn.options.as_deref(), Some("-c a=b -c timezone=Etc/GMT\\ 1\\\\ -c geqo=off"));
    assert_eq!(dsn.client_encoding(), Some("latin1"));
    assert_eq!(resolved("client_encoding=auto", &env(&[])).client_encoding(), None);
    // Only a missing or empty value selects pgspate's default. Zero selects the operating system's
    // default.
    let dsn = resolved("host=a keepalives_idle='' keepalives_count=0", &env(&[]));
    assert_eq!(dsn.timeouts.keepalives_idle, Some(Duration::from_secs(30)));
    assert_eq!(dsn.timeouts.keepalives_interval, Some(Duration::from_secs(10)));
    assert_eq!(dsn.timeouts.keepalives_count, None);
    assert_eq!((dsn.timeouts.connect, dsn.timeouts.tcp_user), (None, None));
}

#[test]
fn tls_files_are_found_in_the_home_folder() {
    let home = tempfile::tempdir().unwrap();
    let environment = Environment { home: Some(home.path().to_owned()), ..env(&[]) };
    assert_eq!(resolved("host=a", &environment).tls.roots, TrustedRoots::Unchecked);
    let missing = Dsn::resolve(Some("host=a sslmode=verify-ca"), &environment).unwrap_err();
    assert!(missing.to_string().ends_with(".postgresql/root.crt\" does not exist"), "{missing}");
    assert!(Dsn::resolve(Some("host=/tmp sslmode=verify-ca"), &environment).is_ok());
    let warned = resolved("host=a sslrootcert=/no/such/file sslcert=/nor/this", &environment);
    assert_eq!(warned.warnings().len(), 2);

    let folder = home.path().join(".postgresql");
    fs::create_dir(&folder).unwrap();
    for name in ["root.crt", "root.crl", "postgresql.crt"] {
        fs::write(folder.join(name), "").unwrap();
    }
    let dsn = resolved("host=a", &environment);
    assert_eq!(dsn.tls.roots, TrustedRoots::File(folder.join("root.crt")));
    let client = (folder.join("postgresql.crt"), folder.join("postgresql.key"));
    assert_eq!(dsn.tls.client, Some(client));
    assert!(dsn.tls.revocation_lists.is_some() && dsn.warnings().is_empty());
    assert!(resolved("host=a sslmode=disable", &environment).tls.revocation_lists.is_none());
    assert!(resolved("host=a sslrootcert=system", &environment).tls.revocation_lists.is_none());
    let dsn = resolved("host=a sslrootcert=system", &environment);
    assert_eq!((dsn.tls.mode, dsn.tls.roots), (TlsMode::VerifyFull, TrustedRoots::System));
    let dsn = resolved("host=a", &env(&[("PGREQUIRESSL", "1")]));
    assert_eq!(dsn.tls.mode, TlsMode::Require);
    assert_eq!(resolved("postgres://a?ssl=true", &environment).tls.mode, TlsMode::Require);
}

#[test]
fn the_password_file_is_searched_for_each_host() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("passes");
    let text = "# hosts\na:5432:db:bob:one\nlocalhost:*:*:bob:two\n10.0.0.1:*:*:*:three\n";
    write_file(&path, text, 0o600);
    let shown = path.display();
    let text = format!("host=a,b,,,/tmp hostaddr=,,,10.0.0.1, user=bob dbname=db passfile={shown}");
    let environment = Environment { home: Some(home.path().to_owned()), ..env(&[]) };
    let dsn = resolved(&text, &environment);
    assert_eq!(passwords(&dsn), [Some("one"), None, Some("two"), Some("three"), None]);
    assert!(dsn.to_string().starts_with("postgres://bob:***@a,"));
    let given = resolved(&format!("{text} password=mine"), &environment);
    assert_eq!(passwords(&given), [Some("mine"); 5]);

    write_file(&path, "*:*:*:*:open", 0o640);
    let dsn = resolved(&text, &environment);
    assert_eq!(passwords(&dsn), [None; 5]);
    assert_eq!(dsn.warnings().len(), 1);
    assert!(dsn.warnings()[0].contains("group or world access"), "{:?}", dsn.warnings());
}

#[test]
fn displayed_urls_have_no_password_and_parse_again() {
    let text = "postgres://bob:hunter2@a:5432,[::1]:7/my%20db?sslmode=disable&options=-c%20x%3D'y'";
    let dsn = resolved(text, &env(&[]));
    assert_eq!(dsn.to_string(), "postgres://bob:***@a,[::1]:7/my%20db");
    assert!(!format!("{dsn:?}").contains("hunter2"));
    assert_eq!(
        dsn.psql_command(),
        "psql 'postgres://bob@a:5432,[::1]:7/my%20db?options=-c%20x%3D%27y%27&sslmode=disable'"
    );
    let url = dsn.psql_command().replace("psql ", "").replace('\'', "");
    assert_eq!(resolved(&url, &env(&[])).psql_command(), dsn.psql_command());
    let other = resolved(&text.replace("my%20db", "x%2Fy"), &env(&[]));
    assert_eq!(other.to_string(), "postgres://bob:***@a,[::1]:7/x%2Fy");
    assert!(!format!("{:?}", env(&[("PGPASSWORD", "hunter2")])).contains("hunter2"));
}

/// Returns all text that resolving `text` can show.
fn shown(text: &str, env: &Environment) -> String {
    match Dsn::resolve(Some(text), env) {
        Ok(dsn) => {
            let dsn = dsn.unwrap();
            format!("{dsn} {dsn:?} {} {:?}", dsn.psql_command(), dsn.warnings())
        }
        Err(error) => format!("{error} {error:?} {:?}", error.hint_text()),
    }
}

proptest! {
    #[test]
    fn no_text_causes_a_panic(
        prefix in prop::sample::select(vec!["", "postgres://", "host=", "password='", "service="]),
        text in "\\PC{0,60}|[a-z@:/?=&%'\\\\ \\[\\],0-9]{0,60}",
    ) {
        shown(&format!("{prefix}{text}"), &env(&[]));
        shown("", &env(&[("PGHOST", &text), ("PGPORT", &text), ("PGOPTIONS", &text)]));
    }

    #[test]
    fn an_encoded_password_is_kept_and_never_shown(
        before in "\\PC{0,20}",
        after in "\\PC{0,20}",
    ) {
        let password = format!("{before}SECRET{after}");
        let encoded = uri::encode(&password);
        let quoted = conninfo::quote(&password);
        for text in [
            format!("postgres://bob:{encoded}@h/db"),
            format!("postgres://h/db?password={encoded}&user=bob"),
            format!("host=h password={quoted} user=bob"),
        ] {
            let dsn = resolved(&text, &env(&[]));
            prop_assert_eq!(passwords(&dsn), vec![Some(password.as_str())]);
            prop_assert!(!shown(&text, &env(&[])).contains("SECRET"));
            let broken = format!("{text} x=1&colour=2");
            prop_assert!(!shown(&broken, &env(&[])).contains("SECRET"));
        }
    }

    /// Raw special characters in a password. `?` and ` host=` are left out, since they can begin a
    /// valid query or parameter.
    #[test]
    fn a_password_with_raw_special_characters_is_never_shown(
        before in "[a-z@:/=&%'\\\\ \\[\\],#0-9]{0,8}",
        after in "[a-z@:/=&%'\\\\ \\[\\],#0-9]{0,8}",
    ) {
        let raw = format!("{before}SECRET{after}");
        for text in [
            format!("postgres://bob:{raw}@h/db"),
            format!("postgres://h/db?password={raw}"),
            format!("host=h user=bob password={raw}"),
            format!("host=h password='{raw} user=bob"),
            format!("bob:{raw}@h/db"),
            format!("postgres:/bob:{raw}@h/db"),
        ] {
            let shown = shown(&text, &env(&[]));
            prop_assert!(!shown.contains("SECRET"), "{} showed {}", text, shown);
        }
    }
}
