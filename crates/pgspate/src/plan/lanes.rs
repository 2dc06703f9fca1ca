//! Chooses the number of lanes, and whether the table needs a single COPY statement.

use super::{InputFacts, LANES_MAX, PlanRequest};
use crate::copy::Lanes;
use pgspate_target::TargetTable;

/// Below this many stored bytes, opening a second connection takes longer than it saves.
const ONE_LANE_BYTES_MAX: u64 = 1 << 20;

/// Returns the number of lanes, the reason for the number, and whether the table needs a single
/// COPY statement.
pub(super) fn choose_lanes(
    table: &TargetTable,
    input: &InputFacts,
    request: &PlanRequest,
) -> (Lanes, String, bool) {
    let several_asked = request.options.lanes.is_some_and(|lanes| lanes > 1);
    if let Some(reason) = one_statement_reason(table, several_asked) {
        return (Lanes::Fixed(1), reason, true);
    }
    if table.has_foreign_parts {
        let reason = "pgspate cannot see whether lanes wait for each other on the foreign server";
        return (Lanes::Fixed(1), reason.to_owned(), false);
    }
    if let Some(lanes) = request.options.lanes {
        return (Lanes::Fixed(lanes), "as asked".to_owned(), false);
    }
    let storage = table.storage.facts();
    if let (Some(extension), true) = (storage.extension, storage.lanes_wait_for_new_parts) {
        let reason = format!("{extension} lets only one lane at a time write to a new chunk");
        return (Lanes::Fixed(1), reason, false);
    }
    if input.is_stream && table.has_unique_index() {
        let reason = "the input cannot be read again if two lanes wait for the same key";
        return (Lanes::Fixed(1), reason.to_owned(), false);
    }
    if input.stored_bytes.is_some_and(|bytes| bytes < ONE_LANE_BYTES_MAX) {
        return (Lanes::Fixed(1), "the input is small".to_owned(), false);
    }
    if let Some(cores) = request.local_server_cores {
        // More lanes than processors slow each other down: with two processors, three lanes took
        // 1.93 s and two lanes 1.73 s.
        let lanes = cores.clamp(2, LANES_MAX);
        let s = if cores == 1 { "" } else { "s" };
        let reason = format!("the server is on this machine, with {cores} processor{s}");
        return (Lanes::Auto(lanes, lanes), reason, false);
    }
    let reason = "two at first, and one more as long as that makes the load faster";
    (Lanes::Auto(2, LANES_MAX), reason.to_owned(), false)
}

/// Returns why the table needs all rows in a single COPY statement, if it does. `several_asked`
/// says that the user asks for several lanes.
pub(crate) fn one_statement_reason(table: &TargetTable, several_asked: bool) -> Option<String> {
    if let Some(name) = table.self_references.first() {
        return Some(format!(
            "one COPY statement: rows may refer to each other by foreign key \"{name}\""
        ));
    }
    if let Some(trigger) = table.triggers.iter().find(|trigger| !trigger.for_each_row) {
        let name = &trigger.name;
        return Some(format!("one COPY statement: trigger \"{name}\" runs once per statement"));
    }
    let trigger = table.triggers.first().filter(|_| !several_asked)?;
    Some(format!(
        "one COPY statement: trigger \"{}\" may depend on earlier rows; if not, use `--lanes N`",
        trigger.name
    ))
}
