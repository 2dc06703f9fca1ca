//! Stopping what is under way, from another thread.
//!
//! Once asked for it stays asked for: whatever looks later sees it, too.

use tokio::sync::watch;

/// Shared between a run and whoever may stop it.
#[derive(Debug, Clone)]
pub struct Stop(watch::Sender<bool>);

impl Default for Stop {
    fn default() -> Stop {
        Stop(watch::Sender::new(false))
    }
}

impl Stop {
    /// Asks for it.
    pub fn ask(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was asked for.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is.
    pub async fn asked(&self) {
        // The sender is in `self`, so the channel cannot be closed meanwhile.
        let _ = self.0.subscribe().wait_for(|asked| *asked).await;
    }
}
