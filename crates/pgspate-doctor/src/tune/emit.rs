//! Proposals in the words of those who have to apply them.

use std::fmt::Write as _;

use serde_json::json;

use super::{Advice, Proposal};
use crate::Result;
use pgspate_target::server::Flavour;

/// Where settings are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `ALTER SYSTEM`.
    Sql,
    /// What `aws rds modify-db-parameter-group --cli-input-json` takes; for Aurora, what
    /// `modify-db-cluster-parameter-group` does.
    Rds,
    /// A resource for Terraform, of the provider that the server is at.
    Terraform,
}

/// The proposals in that form; empty where there are none. `group` names the parameter group.
///
/// # Errors
/// When that form cannot be applied where the server is.
pub fn emit(advice: &Advice, form: Form, group: &str) -> Result<String> {
    if form == Form::Sql && !advice.flavour.has_alter_system() {
        return Err(super::no_alter_system(advice.flavour));
    }
    if advice.proposals.is_empty() {
        // Of no parameters nobody takes a list.
        return Ok(String::new());
    }
    Ok(match form {
        Form::Sql => sql(&advice.proposals),
        Form::Rds => rds(advice, group),
        Form::Terraform => match advice.flavour {
            Flavour::CloudSql => cloud_sql(&advice.proposals),
            Flavour::Azure => azure(&advice.proposals),
            _ => aws(advice, group),
        },
    })
}

fn sql(proposals: &[Proposal]) -> String {
    let mut text = String::new();
    for it in proposals {
        let restart = if it.needs_restart { " -- counts after a restart" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "alter system set {} = '{}';{restart}", it.name, it.value);
    }
    text.push_str("select pg_reload_conf();\n");
    text
}

/// What needs a restart cannot be applied at once there.
fn apply_method(proposal: &Proposal) -> &'static str {
    if proposal.needs_restart { "pending-reboot" } else { "immediate" }
}

/// Values are bare numbers there; `on` and `off` are 1 and 0.
fn amazon_value(proposal: &Proposal) -> &str {
    match proposal.bare_value.as_str() {
        "on" => "1",
        value => value,
    }
}

fn rds(advice: &Advice, group: &str) -> String {
    let parameters: Vec<_> = advice
        .proposals
        .iter()
        .map(|it| {
            json!({
                "ParameterName": it.name,
                "ParameterValue": amazon_value(it),
                "ApplyMethod": apply_method(it),
            })
        })
        .collect();
    // Aurora's are in the group of the cluster.
    let input = match advice.flavour {
        Flavour::Aurora => {
            json!({ "DBClusterParameterGroupName": group, "Parameters": parameters })
        }
        _ => json!({ "DBParameterGroupName": group, "Parameters": parameters }),
    };
    serde_json::to_string_pretty(&input).expect("values and names are text") + "\n"
}

fn aws(advice: &Advice, group: &str) -> String {
    let (resource, engine) = match advice.flavour {
        Flavour::Aurora => ("aws_rds_cluster_parameter_group", "aurora-postgresql"),
        _ => ("aws_db_parameter_group", "postgres"),
    };
    let mut text = format!(
        "resource \"{resource}\" \"bulk_load\" {{\n  name   = \"{group}\"\n  \
         family = \"{engine}{}\"\n",
        advice.major
    );
    for it in &advice.proposals {
        let _ = write!(
            text,
            "\n  parameter {{\n    name         = \"{}\"\n    value        = \"{}\"\n    \
             apply_method = \"{}\"\n  }}\n",
            it.name,
            amazon_value(it),
            apply_method(it)
        );
    }
    text.push_str("}\n");
    text
}

fn cloud_sql(proposals: &[Proposal]) -> String {
    let mut text = "# within settings of google_sql_database_instance\n".to_owned();
    for it in proposals {
        let _ = write!(
            text,
            "database_flags {{\n  name  = \"{}\"\n  value = \"{}\"\n}}\n",
            it.name, it.bare_value
        );
    }
    text
}

fn azure(proposals: &[Proposal]) -> String {
    let mut text = String::new();
    for it in proposals {
        let _ = write!(
            text,
            "resource \"azurerm_postgresql_flexible_server_configuration\" \"{0}\" {{\n  name      \
             = \"{0}\"\n  server_id = var.server_id\n  value     = \"{1}\"\n}}\n",
            it.name, it.bare_value
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::Machine;

    fn advice(flavour: Flavour, count: usize) -> Advice {
        let machine = Machine { memory_bytes: 0, cpus: 1, memory_from: "", cpus_from: "" };
        let proposal = Proposal {
            name: "wal_compression",
            now: "off".to_owned(),
            value: "on".to_owned(),
            bare_value: "on".to_owned(),
            needs_restart: false,
            reason: "",
            risk: "",
        };
        let (proposals, outstanding) = (vec![proposal; count], Vec::new());
        Advice { flavour, major: 16, machine, proposals, outstanding }
    }

    #[test]
    fn auroras_settings_are_the_clusters() {
        for (flavour, key, resource) in [
            (Flavour::Rds, "DBParameterGroupName", "aws_db_parameter_group"),
            (Flavour::Aurora, "DBClusterParameterGroupName", "aws_rds_cluster_parameter_group"),
        ] {
            let json = emit(&advice(flavour, 1), Form::Rds, "mine").unwrap();
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(json[key], "mine");
            assert_eq!(json["Parameters"][0]["ParameterValue"], "1");
            let terraform = emit(&advice(flavour, 1), Form::Terraform, "mine").unwrap();
            assert!(terraform.starts_with(&format!("resource \"{resource}\" ")), "{terraform}");
        }
    }

    #[test]
    fn nothing_is_printed_that_cannot_be_applied() {
        for flavour in [Flavour::Plain, Flavour::Rds, Flavour::CloudSql] {
            for form in [Form::Rds, Form::Terraform] {
                assert_eq!(emit(&advice(flavour, 0), form, "mine").unwrap(), "");
            }
        }
        let refused = emit(&advice(Flavour::Rds, 1), Form::Sql, "mine").unwrap_err();
        assert_eq!(refused.to_string(), "Amazon RDS for PostgreSQL has no ALTER SYSTEM");
        let sql = emit(&advice(Flavour::Citus, 1), Form::Sql, "mine").unwrap();
        assert!(sql.starts_with("alter system set wal_compression = 'on';\n"), "{sql}");
    }
}
