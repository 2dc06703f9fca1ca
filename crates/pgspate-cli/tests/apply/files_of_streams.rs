//! Which files belong to a stream: no choice of files applies events again.

use insta::assert_snapshot;

use crate::apply;
use crate::support::LoadCase;

/// A file is the same stream however it is spelled. Without its first file, a stream is not taken
/// for another one.
#[test]
fn no_spelling_and_no_missing_file_applies_events_again() {
    let case = LoadCase::new("create table log (v int)");
    let event = |v| format!("{{\"op\":\"insert\",\"table\":\"log\",\"row\":{{\"v\":{v}}}}}\n");
    for v in 1..4 {
        case.put(&format!("land/{v}.ndjson"), event(v));
    }
    let path = case.path("land/1.ndjson");
    for source in ["land/1.ndjson", "./land/../land/1.ndjson", path.to_str().unwrap()] {
        let run = apply(&case, &format!("{source} --quiet"));
        assert_eq!(run.status, Some(0), "{}", run.stderr);
    }
    assert_eq!(apply(&case, "land/ --quiet").status, Some(0));
    assert_eq!(case.value("select string_agg(v::text, '' order by v) from log"), "123");
    std::fs::remove_file(&path).unwrap();
    assert_snapshot!(apply(&case, "land/ --quiet").refusal(), @r#"
    error: "[DIR]/land/2.ndjson" was applied as part of stream "[DIR]/land/1.ndjson"

    hint: Name all files of the stream in their order, with those that are applied already,
          … or only files that it has not read yet. `--stream NAME` begins a stream of its
          … own, which applies the files from their beginning. Events of stream
          … "[DIR]/land/1.ndjson" would be applied again then.
    "#);
    assert_eq!(apply(&case, "land/ --plan").status, Some(2));
    // Files that are new alone are a stream of their own. So is a stream with another name.
    std::fs::remove_file(case.path("land/2.ndjson")).unwrap();
    std::fs::rename(case.path("land/3.ndjson"), case.path("done")).unwrap();
    case.put("land/4.ndjson", event(4));
    assert_eq!(apply(&case, "land/ --quiet").status, Some(0));
    assert_eq!(apply(&case, "land/4.ndjson --stream again --quiet").status, Some(0));
    assert_eq!(case.value("select string_agg(v::text, '' order by v) from log"), "12344");
}

/// A file may have been applied in the middle of a stream, or alone.
#[test]
fn no_other_choice_of_files_applies_events_again() {
    let case = LoadCase::new("create table log (v int)");
    for v in 1..=5 {
        let event = format!("{{\"op\":\"insert\",\"table\":\"log\",\"row\":{{\"v\":{v}}}}}\n");
        case.put(&format!("{v}.ndjson"), event);
    }
    for files in ["1.ndjson 2.ndjson 3.ndjson", "4.ndjson"] {
        assert_eq!(apply(&case, &format!("{files} --quiet")).status, Some(0));
    }
    assert_snapshot!(apply(&case, "2.ndjson 5.ndjson --quiet").refusal(), @r#"
    error: "[DIR]/2.ndjson" was applied as part of stream "[DIR]/1.ndjson"

    hint: Name all files of the stream in their order, with those that are applied already,
          … or only files that it has not read yet. `--stream NAME` begins a stream of its
          … own, which applies the files from their beginning. Events of stream
          … "[DIR]/1.ndjson" would be applied again then.
    "#);
    assert_snapshot!(apply(&case, "1.ndjson 2.ndjson 3.ndjson 4.ndjson --quiet").refusal(), @r#"
    error: "[DIR]/4.ndjson" was applied as part of stream "[DIR]/4.ndjson"

    hint: Name all files of the stream in their order, with those that are applied already,
          … or only files that it has not read yet. `--stream NAME` begins a stream of its
          … own, which applies the files from their beginning. Events of stream
          … "[DIR]/4.ndjson" would be applied again then.
    "#);
    // The first file of a stream continues it, in any run.
    assert_eq!(apply(&case, "1.ndjson 2.ndjson 3.ndjson 5.ndjson --quiet").status, Some(0));
    assert!(apply(&case, "5.ndjson --quiet").refusal().contains("was applied as part of stream"));
    assert_eq!(case.value("select string_agg(v::text, '' order by v) from log"), "12345");
    // A stream that a user forgets takes its files along.
    case.db.run("delete from pgspate.stream");
    assert_eq!(case.value("select count(*) from pgspate.stream_file"), "0");
}
