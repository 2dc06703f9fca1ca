//! The state that all requests share: the writer, the tables, the limits and the counters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pgspate::writer::Writer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::AccessRules;
use crate::fault::RequestFault;
use crate::options::{HttpLimits, ServeReport};
use crate::tables::ServedTables;

/// How many bytes a permit of the room for bodies stands for.
const ROOM_UNIT: usize = 1024;
/// How much room a body takes before its bytes arrive.
const FIRST_BYTES: usize = 8 << 10;

/// The upper limits of the classes of durations, in seconds. The last class has no limit.
pub(crate) const DURATIONS: [f64; 12] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 10.0];

/// The shared state.
pub(crate) struct ServeState {
    pub(crate) writer: Writer,
    pub(crate) tables: ServedTables,
    pub(crate) access: AccessRules,
    pub(crate) limits: HttpLimits,
    pub(crate) counters: ServeCounters,
    /// The address, as a URL or `unix:/path`.
    pub(crate) address: String,
    /// Whether the server answers.
    pub(crate) is_server_up: AtomicBool,
    /// Whether the server accepts no writes.
    pub(crate) is_read_only: AtomicBool,
    pub(crate) is_stopping: AtomicBool,
    room: Arc<Semaphore>,
    room_size: u32,
    begun: Instant,
}

/// The numbers of requests and connections.
#[derive(Debug, Default)]
pub(crate) struct ServeCounters {
    pub(crate) connections: AtomicU64,
    pub(crate) connections_open: AtomicUsize,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) in_flight: AtomicUsize,
    statuses: Mutex<BTreeMap<u16, u64>>,
    durations: [AtomicU64; DURATIONS.len() + 1],
    micros: AtomicU64,
}

/// The room of a request: as much as the larger one of its body and the text made of its body.
pub(crate) struct BodyRoom {
    state: Arc<ServeState>,
    permits: Mutex<OwnedSemaphorePermit>,
}

impl BodyRoom {
    /// Takes as much more as is missing for `bytes`. A request that has all the room needs no more.
    ///
    /// # Errors
    /// Status 429 if there is not enough room now.
    pub(crate) fn grow_to(&self, bytes: usize) -> Result<(), RequestFault> {
        let mut permits = self.permits.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = self.state.units(bytes) as usize;
        let missing = missing.saturating_sub(permits.num_permits());
        if missing > 0 {
            let missing = u32::try_from(missing).unwrap_or(u32::MAX);
            let more = Arc::clone(&self.state.room).try_acquire_many_owned(missing);
            permits.merge(more.map_err(|_| RequestFault::full_queue())?);
        }
        Ok(())
    }
}

/// The text of an answer, which keeps its request's room as long as the client has not read it.
pub(crate) struct AnswerText {
    pub(crate) text: String,
    pub(crate) _room: Arc<BodyRoom>,
}

impl AsRef<[u8]> for AnswerText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// Counts something as long as it lives.
pub(crate) struct LiveCount<'a>(&'a AtomicUsize);

impl LiveCount<'_> {
    pub(crate) fn of(counter: &AtomicUsize) -> LiveCount<'_> {
        counter.fetch_add(1, Ordering::Relaxed);
        LiveCount(counter)
    }
}

impl Drop for LiveCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ServeCounters {
    /// Counts an answered request.
    pub(crate) fn count_answer(&self, status: u16) {
        *self.lock().entry(status).or_default() += 1;
    }

    /// Counts how long a request with records took.
    pub(crate) fn count_duration(&self, duration: Duration) {
        let class = DURATIONS.partition_point(|limit| *limit < duration.as_secs_f64());
        self.durations[class].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns the number of requests with records in each class of durations, and the sum of their
    /// durations in seconds.
    pub(crate) fn durations(&self) -> (Vec<u64>, f64) {
        let classes = self.durations.iter().map(|it| it.load(Ordering::Relaxed)).collect();
        (classes, self.micros.load(Ordering::Relaxed) as f64 / 1e6)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u16, u64>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServeState {
    pub(crate) fn new(
        writer: Writer,
        tables: ServedTables,
        access: AccessRules,
        limits: HttpLimits,
        address: String,
    ) -> ServeState {
        let units = (limits.queue_bytes / ROOM_UNIT).clamp(1, Semaphore::MAX_PERMITS);
        let room_size = u32::try_from(units).unwrap_or(u32::MAX);
        ServeState {
            writer,
            tables,
            access,
            limits,
            counters: ServeCounters::default(),
            address,
            is_server_up: AtomicBool::new(true),
            is_read_only: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            room: Arc::new(Semaphore::new(room_size as usize)),
            room_size,
            begun: Instant::now(),
        }
    }

    /// Takes room for the first bytes of a body, which then grows as bytes arrive. A client that
    /// states a length and sends nothing holds no more.
    ///
    /// # Errors
    /// Status 429 if there is no room now, or not enough for the stated length.
    pub(crate) fn open_room(
        self: &Arc<ServeState>,
        stated: Option<usize>,
    ) -> Result<BodyRoom, RequestFault> {
        let has_room = self.room.available_permits() >= self.units(stated.unwrap_or(0)) as usize;
        if self.writer.is_full() || !has_room {
            return Err(RequestFault::full_queue());
        }
        let first = self.units(stated.unwrap_or(FIRST_BYTES).min(FIRST_BYTES));
        let permits = Arc::clone(&self.room).try_acquire_many_owned(first);
        let permits = Mutex::new(permits.map_err(|_| RequestFault::full_queue())?);
        Ok(BodyRoom { state: Arc::clone(self), permits })
    }

    /// Returns the permits for some bytes: at most all there are.
    fn units(&self, bytes: usize) -> u32 {
        let units = u32::try_from(bytes.div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX);
        units.clamp(1, self.room_size)
    }

    /// Returns the bytes of bodies that are being read or written.
    pub(crate) fn queued_bytes(&self) -> u64 {
        let free = self.room.available_permits();
        ((self.room_size as usize).saturating_sub(free) * ROOM_UNIT) as u64
    }

    /// Checks that records can be written now.
    ///
    /// # Errors
    /// Status 503 if the server is away or accepts no writes, or serving ends.
    pub(crate) fn check_ready(&self) -> Result<(), RequestFault> {
        if self.is_stopping.load(Ordering::Relaxed) {
            let message = "pgspate serve is stopping";
            return Err(RequestFault::unavailable("stopping", message).closing());
        }
        if !self.is_server_up.load(Ordering::Relaxed) {
            let message = "the server cannot be reached; nothing was written";
            return Err(RequestFault::unavailable("server_away", message).closing());
        }
        if self.is_read_only.load(Ordering::Relaxed) {
            let message = "the server accepts no writes; nothing was written";
            return Err(RequestFault::unavailable("read_only", message).closing());
        }
        Ok(())
    }

    pub(crate) fn report(&self) -> ServeReport {
        let counters = &self.counters;
        let statuses = counters.lock().clone();
        ServeReport {
            address: self.address.clone(),
            seconds: self.begun.elapsed().as_secs_f64(),
            connections: counters.connections.load(Ordering::Relaxed),
            refused_connections: counters.connections_refused.load(Ordering::Relaxed),
            requests: statuses.values().sum(),
            statuses,
            tables: self.tables.all.iter().map(|table| table.counts()).collect(),
            writer: self.writer.report(),
        }
    }
}
