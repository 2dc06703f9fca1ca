//! Sessions of lanes whose load has lost its own session.

use std::time::Duration;

use pgspate::ledger::{end_lost_lanes, share_lanes_lock_sql};
use pgspate::target::connect::Connection;

use crate::{ask, tls_server};

const KEY: i64 = 7;
/// A longer wait counts as hanging. pgspate itself waits less time for a session to end.
const HANG_LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn only_lanes_that_have_written_are_ended() {
    let fixture = tls_server();
    let open = async || fixture.connect("").await.unwrap();
    let (waiting, writing): (Connection, Connection) = (open().await, open().await);
    for lane in [&waiting, &writing] {
        lane.client.batch_execute(&share_lanes_lock_sql(KEY)).await.unwrap();
    }
    writing.client.batch_execute("begin; create table public.written (id int)").await.unwrap();
    let own = open().await;
    let outlasted = tokio::time::timeout(HANG_LIMIT, end_lost_lanes(&own.client, KEY)).await;
    outlasted.expect("the wait for lost lanes must end").unwrap();
    assert_eq!(ask(&own, "select to_regclass('public.written') is null").await, "t");
    assert!(writing.client.simple_query("select 1").await.is_err());
    assert_eq!(ask(&waiting, "select 1").await, "1");
}
