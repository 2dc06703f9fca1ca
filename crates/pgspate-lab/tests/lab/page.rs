//! The report page: the page is complete, loads nothing, and shows hostile names as text.

use pgspate::ErrorKind;
use pgspate_lab::{PICTURES, experiments, read, report};

use crate::support::{TOY, options, run};

#[test]
fn hostile_names_are_text_on_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.repeats = 1;
    run(&options, None).0.unwrap();
    let lines = read(folder.path()).unwrap();
    let page = report::page(&[&TOY], &lines, folder.path()).unwrap();
    assert!(!page.contains("<script"), "{page}");
    assert!(!page.contains("<b>way"), "{page}");
    assert!(page.matches("&lt;script&gt;").count() > 8);
    for part in [
        "<h2>A toy</h2>",
        "<table class=\"summary\">",
        "class=\"conditions\"",
        "class=\"answer\"",
        "5 s &amp; more",
        "pgspate lab run toy",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // The page loads nothing, so it must not contain these words.
    for word in ["http://", "https://", "src=\"/", "@import", "url("] {
        assert!(!page.contains(word), "{word}");
    }
    let tags = |name: &str| {
        (page.matches(&format!("<{name}")).count(), page.matches(&format!("</{name}>")).count())
    };
    for name in ["section", "svg", "table", "details", "ul", "div"] {
        let (opened, closed) = tags(name);
        assert_eq!(opened, closed, "{name}");
    }
    assert!(!folder.path().join(PICTURES).exists());
}

#[test]
fn a_folder_without_results_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report.html");
    let error = report::write(&experiments::ALL, folder.path(), &out).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().starts_with("there are no results in"));
    assert!(!out.exists());
}
