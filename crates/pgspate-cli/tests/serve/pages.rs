//! Metrics, statistics and the live page.

use std::thread;

use crate::scene::ServeScene;

#[test]
fn metrics_and_statistics_count_what_happens() {
    let scene = ServeScene::new(&[]);
    thread::scope(|scope| {
        for id in 0..20 {
            let scene = &scene;
            scope.spawn(move || {
                let body = format!(r#"{{"id":{id},"name":"a"}}"#);
                assert_eq!(scene.post("/tables/account/rows", &body).status, 201);
            });
        }
    });
    assert_eq!(scene.post("/tables/account/rows", r#"{"id":1,"name":"a"}"#).status, 409);
    let stats = scene.process.get("/stats").json();
    assert_eq!(stats["tables"][0]["table"], "public.account");
    assert_eq!(stats["tables"][0]["rows"], 20);
    assert_eq!(stats["tables"][0]["refused"], 1);
    assert_eq!(stats["statuses"]["201"], 20);
    assert_eq!(stats["statuses"]["409"], 1);
    assert_eq!((&stats["ready"], &stats["in_flight"]), (&true.into(), &1.into()));
    let written = stats["writer"]["set_rows"].as_u64().unwrap()
        + stats["writer"]["statements"].as_u64().unwrap();
    assert!(written >= 20, "{stats}");
    let sum = |key: &str| -> u64 {
        stats[key].as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).sum()
    };
    assert_eq!(sum("durations"), 21);
    let limits = stats["duration_limits"].as_array().unwrap().len();
    assert_eq!(stats["durations"].as_array().unwrap().len(), limits + 1);
    let sizes = stats["set_sizes"].as_array().unwrap().len();
    assert_eq!(stats["writer"]["sets"].as_array().unwrap().len(), sizes + 1);

    let metrics = scene.process.get("/metrics");
    assert_eq!(metrics.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    for line in [
        "pgspate_serve_server_up 1",
        "pgspate_serve_table_rows_total{table=\"public.account\"} 20",
        "pgspate_serve_table_refused_total{table=\"public.account\"} 1",
        "pgspate_serve_requests_total{status=\"201\"} 20",
        "pgspate_serve_request_seconds_bucket{le=\"+Inf\"} 21",
        "pgspate_serve_request_seconds_count 21",
    ] {
        assert!(metrics.body.lines().any(|it| it == line), "{line}\n{}", metrics.body);
    }
    // Each value has its help and its type before it.
    let names: Vec<&str> =
        metrics.body.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    for line in metrics.body.lines().filter(|line| !line.starts_with('#')) {
        let known = |name: &&str| line.starts_with(name.split(' ').next().unwrap());
        assert!(names.iter().any(known), "{line}");
    }
}

#[test]
fn the_live_page_loads_nothing_from_elsewhere_and_knows_the_statistics() {
    let scene = ServeScene::new(&[]);
    let page = scene.process.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(page.header("content-security-policy").contains("default-src 'none'"));
    let html = page.body.as_str();
    assert!(!html.contains("://") && !html.contains("src="), "{html}");
    // What the script reads is in the statistics.
    let stats = scene.process.get("/stats").json();
    let script = html.split("<script>").nth(1).unwrap().split("</script>").next().unwrap();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut read = 0;
    for (object, values) in [("s.", &stats), ("w.", &stats["writer"])] {
        for (at, _) in script.match_indices(object) {
            let is_object = !script[..at].ends_with(|c| is_name(c) || c == '.');
            let name: String = script[at + 2..].chars().take_while(|c| is_name(*c)).collect();
            if is_object {
                assert!(!values[&name].is_null(), "{object}{name} is not in the statistics");
                read += 1;
            }
        }
    }
    assert!(read > 10, "{script}");
}

#[test]
fn the_reference_names_the_keys_of_the_summary() {
    let mut scene = ServeScene::new(&["--json"]);
    let run = scene.process.stop();
    let summary: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let page = include_str!("../../../../docs/reference/json-output.md");
    let section = page.split("\n## serve\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let objects = [&summary, &summary["tables"][0], &summary["writer"]];
    for key in objects.iter().flat_map(|object| object.as_object().unwrap().keys()) {
        assert!(section.contains(&format!("`{key}`")), "{key}");
    }
}
