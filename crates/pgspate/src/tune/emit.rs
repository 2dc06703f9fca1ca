//! Proposals in the words of those who have to apply them.

use std::fmt::Write as _;

use serde_json::json;

use super::{Advice, Proposal};
use crate::doctor::Flavour;

/// Where settings are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `ALTER SYSTEM`.
    Sql,
    /// What `aws rds modify-db-parameter-group --cli-input-json` takes.
    Rds,
    /// A resource for Terraform, of the provider that the server is at.
    Terraform,
}

/// The proposals in that form. `group` names the parameter group, or the server.
pub fn emit(advice: &Advice, form: Form, group: &str) -> String {
    match form {
        Form::Sql => sql(&advice.proposals),
        Form::Rds => rds(&advice.proposals, group),
        Form::Terraform => match advice.flavour {
            Flavour::CloudSql => cloud_sql(&advice.proposals),
            Flavour::Azure => azure(&advice.proposals),
            _ => aws(advice, group),
        },
    }
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

fn rds(proposals: &[Proposal], group: &str) -> String {
    let parameters: Vec<_> = proposals
        .iter()
        .map(|it| {
            json!({
                "ParameterName": it.name,
                "ParameterValue": amazon_value(it),
                "ApplyMethod": apply_method(it),
            })
        })
        .collect();
    let input = json!({ "DBParameterGroupName": group, "Parameters": parameters });
    serde_json::to_string_pretty(&input).expect("values and names are text") + "\n"
}

fn aws(advice: &Advice, group: &str) -> String {
    let engine = if advice.flavour == Flavour::Aurora { "aurora-postgresql" } else { "postgres" };
    let mut text = format!(
        "resource \"aws_db_parameter_group\" \"bulk_load\" {{\n  name   = \"{group}\"\n  \
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
