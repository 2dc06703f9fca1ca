//! Faults of the network, at chosen messages and at all of them.

use crate::plan::{At, Fault, Plan};
use crate::proxy::Proxy;
use crate::run::finish_within;
use crate::scene::{LIMIT, Scene};
use crate::trial::{Tally, Trial};

#[test]
fn a_proxy_without_faults_changes_nothing() {
    let scene = Scene::new();
    let proxy = Proxy::start(&scene.dsn, None);
    let child = scene.load(&proxy.dsn(), "3");
    let run = finish_within(child, LIMIT).unwrap_or_else(|run| panic!("it hangs: {}", run.stderr));
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""), "{}", proxy.log());
    assert_eq!(scene.difference(), None);
    let (messages, commits) = proxy.counts();
    assert!(messages > 100 && commits == 3, "{}", proxy.log());
    println!("{messages} messages\n{}", proxy.log());
}

#[test]
fn a_cut_in_the_middle() {
    let scene = Scene::new();
    let mut tally = Tally::default();
    tally.run(&scene, Trial::new(Plan::new(Fault::Cut, At::Message(120)), "3"));
    tally.close();
}
