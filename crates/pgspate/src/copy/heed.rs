//! Work that ends when the user wants it to: the server is asked to cancel its statements.

use std::time::Duration;

use futures_util::future::join_all;

use super::LOOK;
use crate::target::connect::Canceller;

/// How long a request to cancel may take before it is made again: one may get lost.
const AGAIN: Duration = Duration::from_millis(250);

/// What `work` gives. Once it `is_cancelled`, the statements of `sessions` are cancelled until it
/// gives something, which is then for the caller to judge.
pub(crate) async fn heeding<T>(
    is_cancelled: impl Fn() -> bool,
    sessions: &[Canceller],
    work: impl Future<Output = T>,
) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(LOOK, work.as_mut()).await {
            return done;
        }
        if is_cancelled() {
            let requests = join_all(sessions.iter().map(Canceller::cancel));
            tokio::select! {
                biased;
                done = work.as_mut() => return done,
                _ = tokio::time::timeout(AGAIN, requests) => {}
            }
        }
    }
}
