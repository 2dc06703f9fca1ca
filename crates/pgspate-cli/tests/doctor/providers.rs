//! Servers that look like cloud providers' servers: the findings, and where settings are changed.

use pgspate_embedded::testing;
use serde_json::Value;

use crate::run::ask;
use crate::tune::tune;
use crate::{doctor, remedy, wait_for_finding};

#[test]
fn remedies_name_the_place_where_the_provider_has_its_settings() {
    let server = testing::server("autovacuum = off");
    let dsn = server.dsn();
    ask(&dsn, "create role rds_superuser");
    ask(&dsn, "create database rdsadmin");
    let run = doctor(&dsn, "--watch 100ms");
    assert!(run.stdout.starts_with("Amazon RDS for PostgreSQL "), "{}", run.stdout);
    assert!(run.stdout.contains("no superuser"), "{}", run.stdout);
    let finding = wait_for_finding(&dsn, "autovacuum", "");
    assert_eq!(remedy(&finding), ["-- in the DB parameter group: set autovacuum to on"]);
    let refused = tune(&dsn, "--apply");
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("has no ALTER SYSTEM"), "{}", refused.stderr);
    assert!(refused.stderr.contains("`--emit rds`"), "{}", refused.stderr);
}

#[test]
fn aurora_has_no_checkpoints_to_tune() {
    let db = testing::database();
    db.run(
        "set allow_system_table_mods = on; \
         create function pg_catalog.aurora_version() returns text language sql \
         as $$ select '15.4' $$",
    );
    let json: Value = serde_json::from_str(&tune(&db.dsn(), "--json").stdout).unwrap();
    assert_eq!(json["flavour"], "aurora");
    let names: Vec<&str> = json["proposals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|proposal| proposal["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"maintenance_work_mem"), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("wal_") || name.contains("checkpoint")));
    let terraform = tune(&db.dsn(), "--emit terraform").stdout;
    assert!(terraform.contains("family = \"aurora-postgresql"), "{terraform}");
}

#[test]
fn terraform_has_the_resources_of_each_provider() {
    for (role, database, resource) in [
        ("cloudsqlsuperuser", "cloudsqladmin", "database_flags {"),
        ("azure_pg_admin", "azure_maintenance", "azurerm_postgresql_flexible_server_configuration"),
    ] {
        let server = testing::server("");
        ask(&server.dsn(), &format!("create role {role}"));
        ask(&server.dsn(), &format!("create database {database}"));
        let terraform = tune(&server.dsn(), "--emit terraform").stdout;
        assert!(terraform.contains(resource), "{terraform}");
        assert!(terraform.contains("\"max_wal_size\""), "{terraform}");
    }
}

#[test]
fn names_that_anybody_can_create_make_no_provider() {
    let server = testing::server("rds.extensions = 'hstore'");
    let dsn = server.dsn();
    for role in ["rds_superuser", "cloudsqlsuperuser", "azure_pg_admin"] {
        ask(&dsn, &format!("create role {role}"));
    }
    ask(&dsn, "create function aurora_version() returns text language sql as $$ select '15.4' $$");
    let json: Value = serde_json::from_str(&tune(&dsn, "--json").stdout).unwrap();
    assert_eq!(json["flavour"], "plain");
}
