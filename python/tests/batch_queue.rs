//! The queue of batches between the calling thread and the engine's threads.

// The library has tests of Python alone, and the queue's other users are in the library.
#[allow(dead_code)]
#[path = "../src/batch_queue.rs"]
mod batch_queue;

use batch_queue::{Batch, BatchQueue, CallerTask};

struct Numbered(u32);

impl Batch for Numbered {}

#[test]
fn a_batch_of_an_abandoned_request_is_dropped() {
    let queue = BatchQueue::with_capacity(2);
    let _abandoned = queue.request(&[]);
    assert!(matches!(queue.next_task(), CallerTask::Begin(_)));
    assert!(matches!(queue.next_task(), CallerTask::Make));
    // The engine requests the rows again while the calling thread makes the first batch.
    let batches = queue.request(&[]);
    queue.put(Some(Ok(Numbered(1))));
    assert!(matches!(queue.next_task(), CallerTask::Begin(_)));
    queue.put(Some(Ok(Numbered(2))));
    queue.put(None);
    let taken: Vec<u32> = batches.map(|batch| batch.expect("a batch").0).collect();
    assert_eq!(taken, [2]);
}

#[test]
fn an_error_and_the_end_of_an_abandoned_request_are_dropped() {
    let queue = BatchQueue::with_capacity(2);
    let _abandoned = queue.request(&[]);
    assert!(matches!(queue.next_task(), CallerTask::Begin(_)));
    let mut batches = queue.request(&[]);
    queue.put(None);
    let broken = pgspate::Error::new(pgspate::ErrorKind::Type, "of the first request");
    queue.put(Some(Err(broken)));
    assert!(matches!(queue.next_task(), CallerTask::Begin(_)));
    queue.put(Some(Ok(Numbered(3))));
    assert_eq!(batches.next().map(|batch| batch.expect("a batch").0), Some(3));
}
