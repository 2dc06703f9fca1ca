//! Prints proposals for the tool that applies them: psql, the AWS command line, or Terraform.

use std::fmt::Write as _;

use serde_json::json;

use super::{SettingProposal, TuneAdvice};
use crate::Result;
use pgspate_target::server::Flavour;

/// The tool that proposals are printed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmitFormat {
    /// Statements with ALTER SYSTEM.
    Sql,
    /// The input of `aws rds modify-db-parameter-group --cli-input-json`; for Aurora, the input of
    /// `modify-db-cluster-parameter-group`.
    Rds,
    /// Terraform code: a parameter group of Amazon, flags of a Cloud SQL instance, or resources of
    /// Azure. A server of no provider gets a parameter group of Amazon RDS.
    Terraform,
}

/// Returns the proposals in a format; an empty text if there are none. `group` is the name of the
/// parameter group.
///
/// # Errors
/// [`ErrorKind::Plan`](crate::ErrorKind::Plan) if the format is SQL and the server has no ALTER
/// SYSTEM.
pub fn emit(advice: &TuneAdvice, form: EmitFormat, group: &str) -> Result<String> {
    if form == EmitFormat::Sql && !advice.flavour.has_alter_system() {
        return Err(super::no_alter_system(advice.flavour));
    }
    if advice.proposals.is_empty() {
        // The AWS command line refuses an empty list.
        return Ok(String::new());
    }
    Ok(match form {
        EmitFormat::Sql => sql(&advice.proposals),
        EmitFormat::Rds => rds(advice, group),
        EmitFormat::Terraform => match advice.flavour {
            Flavour::CloudSql => cloud_sql(&advice.proposals),
            Flavour::Azure => azure(&advice.proposals),
            _ => aws(advice, group),
        },
    })
}

fn sql(proposals: &[SettingProposal]) -> String {
    let mut text = String::new();
    for it in proposals {
        let restart = if it.needs_restart { " -- takes effect after a restart" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "alter system set {} = '{}';{restart}", it.name, it.value);
    }
    text.push_str("select pg_reload_conf();\n");
    text
}

/// Returns when Amazon applies the parameter. A value that needs a restart cannot be applied at
/// once.
fn apply_method(proposal: &SettingProposal) -> &'static str {
    if proposal.needs_restart { "pending-reboot" } else { "immediate" }
}

/// Returns the value as a parameter group takes it: a plain number, and 1 for `on`.
fn amazon_value(proposal: &SettingProposal) -> &str {
    match proposal.bare_value.as_str() {
        "on" => "1",
        value => value,
    }
}

fn rds(advice: &TuneAdvice, group: &str) -> String {
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
    // Aurora has these settings in the parameter group of the cluster.
    let input = match advice.flavour {
        Flavour::Aurora => {
            json!({ "DBClusterParameterGroupName": group, "Parameters": parameters })
        }
        _ => json!({ "DBParameterGroupName": group, "Parameters": parameters }),
    };
    serde_json::to_string_pretty(&input).expect("values and names are text") + "\n"
}

fn aws(advice: &TuneAdvice, group: &str) -> String {
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

fn cloud_sql(proposals: &[SettingProposal]) -> String {
    let mut text = "# in the settings block of google_sql_database_instance\n".to_owned();
    for it in proposals {
        let _ = write!(
            text,
            "database_flags {{\n  name  = \"{}\"\n  value = \"{}\"\n}}\n",
            it.name, it.bare_value
        );
    }
    text
}

fn azure(proposals: &[SettingProposal]) -> String {
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
    use crate::tune::ServerMachine;

    fn advice(flavour: Flavour, count: usize) -> TuneAdvice {
        let machine = ServerMachine { memory_bytes: 0, cpus: 1, memory_from: "", cpus_from: "" };
        let proposal = SettingProposal {
            name: "wal_compression",
            now: "off".to_owned(),
            value: "on".to_owned(),
            bare_value: "on".to_owned(),
            needs_restart: false,
            reason: "",
            risk: "",
        };
        let (proposals, outstanding) = (vec![proposal; count], Vec::new());
        let unseen = Vec::new();
        TuneAdvice { flavour, major: 16, machine, proposals, unseen, outstanding }
    }

    #[test]
    fn aurora_gets_a_cluster_parameter_group() {
        for (flavour, key, resource) in [
            (Flavour::Rds, "DBParameterGroupName", "aws_db_parameter_group"),
            (Flavour::Aurora, "DBClusterParameterGroupName", "aws_rds_cluster_parameter_group"),
        ] {
            let json = emit(&advice(flavour, 1), EmitFormat::Rds, "mine").unwrap();
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(json[key], "mine");
            assert_eq!(json["Parameters"][0]["ParameterValue"], "1");
            let terraform = emit(&advice(flavour, 1), EmitFormat::Terraform, "mine").unwrap();
            assert!(terraform.starts_with(&format!("resource \"{resource}\" ")), "{terraform}");
        }
    }

    #[test]
    fn no_proposals_print_nothing_and_sql_needs_alter_system() {
        for flavour in [Flavour::Plain, Flavour::Rds, Flavour::CloudSql] {
            for form in [EmitFormat::Rds, EmitFormat::Terraform] {
                assert_eq!(emit(&advice(flavour, 0), form, "mine").unwrap(), "");
            }
        }
        let refused = emit(&advice(Flavour::Rds, 1), EmitFormat::Sql, "mine").unwrap_err();
        assert_eq!(refused.to_string(), "Amazon RDS for PostgreSQL has no ALTER SYSTEM");
        let sql = emit(&advice(Flavour::Citus, 1), EmitFormat::Sql, "mine").unwrap();
        assert!(sql.starts_with("alter system set wal_compression = 'on';\n"), "{sql}");
    }
}
