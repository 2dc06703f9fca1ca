//! A stop request for a run, from another thread.
//!
//! A request is never withdrawn.

use tokio::sync::watch;

/// A stop request, shared by the run and its caller.
#[derive(Debug, Clone)]
pub struct RunStop(watch::Sender<bool>);

impl Default for RunStop {
    fn default() -> RunStop {
        RunStop(watch::Sender::new(false))
    }
}

impl RunStop {
    /// Requests the stop.
    pub fn request(&self) {
        self.0.send_replace(true);
    }

    /// Returns whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for the request.
    pub async fn requested(&self) {
        // The sender is in `self`, so the channel cannot be closed meanwhile.
        let _ = self.0.subscribe().wait_for(|asked| *asked).await;
    }
}
