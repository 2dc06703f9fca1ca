//! stdout and stderr, which may be pipes whose readers have gone away.
//!
//! What could not be said never changes what was done: nothing here panics.

use std::io::{ErrorKind, Write};

use pgspate::{Error, Kind, Result};

/// Writes data to stdout. A reader that has enough, such as `head`, is no error.
pub(crate) fn data(bytes: impl AsRef<[u8]>) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes.as_ref()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::new(Kind::Usage, "could not write to stdout").because(error))
        }
        _ => Ok(()),
    }
}

/// Says something to the user.
pub(crate) fn say(text: impl AsRef<str>) {
    let _ = std::io::stderr().lock().write_all(text.as_ref().as_bytes());
}

/// Says a line.
pub(crate) fn say_line(text: impl AsRef<str>) {
    say(format!("{}\n", text.as_ref()));
}
