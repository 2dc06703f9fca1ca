//! Answers `POST /tables/NAME/rows`.
//!
//! Whatever can be refused without the body is refused before the body is read.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::http::header::{
    CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, LOCATION, TRANSFER_ENCODING,
};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode, Version};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use pgspate::Result as EngineResult;
use pgspate::writer::{
    ENCODINGS_MAX, EncodedRows, InsertOutcome, InsertRequest, InsertShape, KEY_BYTES_MAX,
    has_outdated_types,
};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::fault::{RequestFault, TABLE_CHANGED};
use crate::prefer::{Preferences, QueryParameters, ReturnForm};
use crate::records::{BodyFormat, FoundRecords, HeldBody, RecordRun, TextRows};
use crate::state::{AnswerText, BodyRoom, ServeState};
use crate::tables::ServedTable;

/// A body of at least this size is decoded on a thread of its own.
const BLOCKING_BYTES: usize = 64 << 10;

/// The bytes that the number of a record adds to the key of its request.
const NUMBER_BYTES: usize = 5;

const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// A request with records, without its body.
struct InsertCall {
    state: Arc<ServeState>,
    table: Arc<ServedTable>,
    format: BodyFormat,
    preferences: Preferences,
    query: QueryParameters,
    key: Option<String>,
}

/// The outcome of a record that was written independently of the others.
#[derive(Serialize)]
struct EachOutcome<'a> {
    index: usize,
    status: u16,
    #[serde(flatten)]
    fault: Option<&'a RequestFault>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    row: Option<Box<RawValue>>,
}

/// The outcome of a record: what was written, or why it was refused.
type RecordOutcome = Result<InsertOutcome, Box<RequestFault>>;

/// Writes the records of a request, and answers when they are durable.
///
/// # Errors
/// If the request is refused as a whole.
pub(crate) async fn insert(
    state: &Arc<ServeState>,
    name: &str,
    parts: &Parts,
    body: Body,
) -> Result<Response<Body>, RequestFault> {
    let Some(table) = state.tables.find(name) else {
        let message = format!("table \"{name}\" is not served");
        let fault = RequestFault::new(StatusCode::NOT_FOUND, "table_not_served", message);
        return Err(fault.hint("Name the table with `pgspate serve --table`.").closing());
    };
    let preferences = Preferences::parse(&parts.headers).map_err(RequestFault::closing)?;
    let key = idempotency_key(parts, preferences.rows_each).map_err(RequestFault::closing)?;
    check_has_length(parts).map_err(RequestFault::closing)?;
    let call = InsertCall {
        state: Arc::clone(state),
        table,
        format: BodyFormat::of_headers(&parts.headers).map_err(RequestFault::closing)?,
        preferences,
        query: QueryParameters::parse(&parts.uri).map_err(RequestFault::closing)?,
        key,
    };
    state.check_ready()?;
    let begun = Instant::now();
    call.table.count_request();
    let answer = call.answer(body, parts.version).await;
    if answer.is_err() {
        call.table.count_refused();
    }
    state.counters.count_duration(begun.elapsed());
    answer
}

/// Refuses a request of HTTP/1 that states no body. Such a request ends with its head: bytes that
/// follow are not its body, and none of their records would be written.
///
/// # Errors
/// Status 411.
fn check_has_length(parts: &Parts) -> Result<(), RequestFault> {
    let states_body =
        [CONTENT_LENGTH, TRANSFER_ENCODING].iter().any(|it| parts.headers.contains_key(it));
    if parts.version > Version::HTTP_11 || states_body {
        return Ok(());
    }
    let message = "the request has neither Content-Length nor Transfer-Encoding";
    let fault = RequestFault::new(StatusCode::LENGTH_REQUIRED, "length_required", message);
    Err(fault.hint("Send the body with one of these headers. Without them, it is not read."))
}

/// Returns the key of the header `Idempotency-Key`. A key in double quotes is the same key. With
/// `each`, the key must leave room for the number of a record.
fn idempotency_key(parts: &Parts, each: bool) -> Result<Option<String>, RequestFault> {
    let mut values = parts.headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    let invalid = |message: &str| RequestFault::bad("invalid_key", message);
    if values.next().is_some() {
        return Err(invalid("the request has several headers Idempotency-Key"));
    }
    let key = value.to_str().unwrap_or_default().trim();
    let key = key.strip_prefix('"').and_then(|key| key.strip_suffix('"')).unwrap_or(key);
    if key.is_empty() {
        return Err(invalid("the header Idempotency-Key has no valid key"));
    }
    let most = if each { KEY_BYTES_MAX - NUMBER_BYTES } else { KEY_BYTES_MAX };
    if key.len() > most {
        return Err(invalid(&format!("the idempotency key has more than {most} bytes")));
    }
    Ok(Some(key.to_owned()))
}

impl InsertCall {
    async fn answer(&self, body: Body, version: Version) -> Result<Response<Body>, RequestFault> {
        let body = read_body(&self.state, body, version).await?;
        let (format, each) = (self.format, self.preferences.rows_each);
        let is_large = body.bytes.len() >= BLOCKING_BYTES;
        let find = move || FoundRecords::find(format, body, each);
        let found = Arc::new(run_decoder(is_large, find).await?);
        let (columns, kinds) = self.written_columns(&found)?;
        let runs = found.runs(&kinds);
        match each {
            true => self.insert_each(&found, runs, &columns, &kinds, is_large).await,
            false => self.insert_all(&found, runs, &columns, &kinds, is_large).await,
        }
    }

    /// Returns the lists of columns that are written, and for each kind of records the number of
    /// its list.
    fn written_columns(
        &self,
        found: &FoundRecords,
    ) -> Result<(Vec<Vec<String>>, Vec<usize>), RequestFault> {
        if let Some(names) = &self.query.columns {
            found.check_names(names)?;
        }
        let (mut lists, mut numbers) = (Vec::<Vec<String>>::new(), Vec::new());
        for kind in &found.kinds {
            let mut list: Vec<String> = match &self.query.columns {
                None => kind.clone(),
                Some(names) if self.preferences.missing_is_default => {
                    names.iter().filter(|name| kind.contains(name)).cloned().collect()
                }
                Some(names) => names.clone(),
            };
            // In one order, so that clients with other orders share statements and digests of keys.
            list.sort_unstable();
            let known = lists.iter().position(|other| *other == list);
            numbers.push(known.unwrap_or(lists.len()));
            if known.is_none() {
                lists.push(list);
            }
        }
        if lists.len() > 1 && !self.preferences.rows_each {
            let message = "all records of a request must have the same keys";
            let hint = match self.query.columns {
                None => {
                    "Name the columns with columns=: then a missing key is NULL. Or write each \
                     record by itself with Prefer: rows=each."
                }
                Some(_) => "With missing=default, write each record by itself: Prefer: rows=each.",
            };
            return Err(RequestFault::bad("different_keys", message).hint(hint));
        }
        Ok((lists, numbers))
    }

    /// Returns the shape of records with these columns.
    async fn shape(&self, columns: &[String]) -> Result<Arc<InsertShape>, RequestFault> {
        let mut request = self.table.request(columns.to_vec());
        let needs_key = self.preferences.duplicates.is_some() && self.query.on_conflict.is_none()
            || self.preferences.returns == ReturnForm::HeadersOnly;
        let key = match needs_key {
            true => self.find_shape(&self.table.request(Vec::new())).await?.primary_key.clone(),
            false => Vec::new(),
        };
        request.on_conflict = self.query.conflict_rule(self.preferences.duplicates, &key)?;
        request.returning = match self.preferences.returns {
            ReturnForm::Minimal => Vec::new(),
            ReturnForm::HeadersOnly => key,
            ReturnForm::Representation => {
                self.query.select.clone().unwrap_or_else(|| vec!["*".to_owned()])
            }
        };
        self.find_shape(&request).await
    }

    async fn find_shape(&self, request: &InsertRequest) -> Result<Arc<InsertShape>, RequestFault> {
        let writer = &self.state.writer;
        match writer.kept_shape(request) {
            Some(shape) => Ok(shape),
            None => {
                let read = writer.shape(request).await;
                // Nothing was written, so that a lost connection leaves nothing unknown.
                read.map_err(|error| RequestFault::of_error(&error, false))
            }
        }
    }

    /// Encodes a run of records.
    async fn encode(
        &self,
        found: &Arc<FoundRecords>,
        run: RecordRun,
        shape: &Arc<InsertShape>,
        is_large: bool,
    ) -> Result<TextRows, RequestFault> {
        let (found, shape) = (Arc::clone(found), Arc::clone(shape));
        let bytes_max = self.state.limits.body_bytes.saturating_mul(4);
        run_decoder(is_large, move || found.encode(&run, &shape, bytes_max)).await
    }

    fn new_rows(&self, nth: Option<usize>) -> Result<EncodedRows, RequestFault> {
        let key = match (&self.key, nth) {
            (None, _) => return Ok(EncodedRows::default()),
            (Some(key), None) => key.clone(),
            // No header can have a line feed, so that no client has such a key itself.
            (Some(key), Some(nth)) => format!("{key}\n{nth}"),
        };
        let error = |error| RequestFault::of_error(&error, false);
        EncodedRows::with_key(key).map_err(error)
    }

    /// Writes all records together, or none.
    async fn insert_all(
        &self,
        found: &Arc<FoundRecords>,
        mut runs: Vec<RecordRun>,
        columns: &[Vec<String>],
        kinds: &[usize],
        is_large: bool,
    ) -> Result<Response<Body>, RequestFault> {
        let Some(run) = runs.pop() else {
            return Ok(self.all_answer(&InsertOutcome::default(), None, found.room()));
        };
        let list = kinds.get(run.kind).and_then(|number| columns.get(*number));
        let mut tries = 1;
        let (shape, outcome) = loop {
            let shape = self.shape(list.map_or(&[][..], Vec::as_slice)).await?;
            let texts = self.encode(found, run.clone(), &shape, is_large).await?;
            FoundRecords::check_count(texts.len(), false)?;
            let mut rows = self.new_rows(None)?;
            for nth in 0..texts.len() {
                texts.push_to(nth, &shape, &mut rows).map_err(|fault| at_record(*fault, nth))?;
            }
            drop(texts);
            match self.state.writer.insert(&shape, rows).await {
                Err(error) if has_outdated_types(&error) && tries < ENCODINGS_MAX => tries += 1,
                outcome => break (shape, outcome),
            }
        };
        let outcome = outcome.map_err(|it| RequestFault::of_error(&it, self.key.is_some()))?;
        self.table.count_written(&outcome);
        Ok(self.all_answer(&outcome, Some(&shape), found.room()))
    }

    fn all_answer(
        &self,
        outcome: &InsertOutcome,
        shape: Option<&InsertShape>,
        room: &Arc<BodyRoom>,
    ) -> Response<Body> {
        let body = match self.preferences.returns {
            ReturnForm::Representation => format!("[{}]", outcome.returned.join(",")),
            _ => String::new(),
        };
        let mut response = self.response(StatusCode::CREATED, "application/json", body, room);
        let headers = response.headers_mut();
        if let Ok(count) = HeaderValue::from_str(&format!("*/{}", outcome.rows)) {
            headers.insert(CONTENT_RANGE, count);
        }
        if let (ReturnForm::HeadersOnly, Some(shape), [row]) =
            (self.preferences.returns, shape, outcome.returned.as_slice())
            && let Some(location) = self.location(shape, row)
        {
            headers.insert(LOCATION, location);
        }
        response
    }

    /// Returns where a written row is, in PostgREST's form.
    fn location(&self, shape: &InsertShape, row: &str) -> Option<HeaderValue> {
        let row: serde_json::Map<String, serde_json::Value> = serde_json::from_str(row).ok()?;
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let mut filters = Vec::new();
        for name in &shape.primary_key {
            let value = match row.get(name)? {
                serde_json::Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            filters.push(format!("{}=eq.{}", encode(name), encode(&value)));
        }
        let table = encode(&shape.table_name.1);
        HeaderValue::from_str(&format!("/tables/{table}/rows?{}", filters.join("&"))).ok()
    }

    /// Writes each record independently of the others.
    async fn insert_each(
        &self,
        found: &Arc<FoundRecords>,
        runs: Vec<RecordRun>,
        columns: &[Vec<String>],
        kinds: &[usize],
        is_large: bool,
    ) -> Result<Response<Body>, RequestFault> {
        let mut outcomes: Vec<RecordOutcome> = Vec::new();
        // One run after the other, so that the records are written in their order.
        for run in runs {
            let list = kinds.get(run.kind).and_then(|number| columns.get(*number));
            let items = run.items.clone();
            match self.insert_run(found, run, list, is_large, outcomes.len()).await {
                Ok(more) => outcomes.extend(more),
                // All records are of this run, and none was written.
                Err(fault) if items.is_none() => return Err(fault),
                Err(fault) => {
                    let own = |nth| found.fault_of(nth).unwrap_or(&fault);
                    let refuse = |nth| Err(Box::new(own(nth).clone()));
                    outcomes.extend(items.into_iter().flatten().map(refuse));
                }
            }
        }
        for outcome in &outcomes {
            match outcome {
                Ok(written) => self.table.count_written(written),
                Err(_) => self.table.count_refused(),
            }
        }
        let lines: Vec<String> =
            outcomes.iter().enumerate().map(|(nth, it)| self.each_line(nth, it)).collect();
        Ok(self.response(StatusCode::OK, "application/x-ndjson", lines.concat(), found.room()))
    }

    /// Writes a run of records independently of each other. `before` is the number of records
    /// before the run.
    async fn insert_run(
        &self,
        found: &Arc<FoundRecords>,
        run: RecordRun,
        columns: Option<&Vec<String>>,
        is_large: bool,
        before: usize,
    ) -> Result<Vec<RecordOutcome>, RequestFault> {
        let mut outcomes: Vec<RecordOutcome> = Vec::new();
        for nth_try in 1..=ENCODINGS_MAX {
            let tried = async {
                let shape = self.shape(columns.map_or(&[][..], Vec::as_slice)).await?;
                let texts = self.encode(found, run.clone(), &shape, is_large).await?;
                self.try_run(&shape, texts, before, &mut outcomes).await
            }
            .await;
            match tried {
                Ok(()) => {}
                Err(fault) if nth_try == 1 => return Err(fault),
                // Some records are written. The fault concerns the others.
                Err(fault) => {
                    let left = outcomes.iter_mut().filter(|it| is_outdated(it));
                    left.for_each(|outcome| *outcome = Err(Box::new(fault.clone())));
                }
            }
            if !outcomes.iter().any(is_outdated) {
                break;
            }
        }
        Ok(outcomes)
    }

    /// Writes the records of a run that have no outcome yet, or whose encoding is outdated.
    async fn try_run(
        &self,
        shape: &Arc<InsertShape>,
        texts: TextRows,
        before: usize,
        outcomes: &mut Vec<RecordOutcome>,
    ) -> Result<(), RequestFault> {
        FoundRecords::check_count(before + texts.len(), true)?;
        let (mut places, mut records, mut tried) = (Vec::new(), Vec::new(), Vec::new());
        for nth in 0..texts.len() {
            if outcomes.get(nth).is_some_and(|outcome| !is_outdated(outcome)) {
                continue;
            }
            let mut rows = self.new_rows(self.key.is_some().then_some(before + nth))?;
            match texts.push_to(nth, shape, &mut rows) {
                Ok(()) => {
                    places.push(nth);
                    records.push(rows);
                }
                Err(fault) => tried.push((nth, Err(fault))),
            }
        }
        let count = texts.len();
        drop(texts);
        let fault = |error| RequestFault::of_error(&error, self.key.is_some());
        if !records.is_empty() {
            let written: Vec<EngineResult<InsertOutcome>> =
                self.state.writer.insert_each(shape, records).await.map_err(fault)?;
            let written = written.into_iter().map(|outcome| outcome.map_err(|it| fault(it).into()));
            tried.extend(places.into_iter().zip(written));
        }
        outcomes.resize_with(count, || Ok(InsertOutcome::default()));
        tried.into_iter().for_each(|(nth, outcome)| outcomes[nth] = outcome);
        Ok(())
    }

    /// Returns the line of an outcome.
    fn each_line(&self, index: usize, outcome: &RecordOutcome) -> String {
        let returns_rows = self.preferences.returns == ReturnForm::Representation;
        let line = match outcome {
            Ok(written) => EachOutcome {
                index,
                status: StatusCode::CREATED.as_u16(),
                fault: None,
                rows: Some(written.rows),
                row: (written.returned.first())
                    .filter(|_| returns_rows)
                    .and_then(|row| RawValue::from_string(row.clone()).ok()),
            },
            Err(fault) => EachOutcome {
                index,
                status: fault.status.as_u16(),
                fault: Some(fault),
                rows: None,
                row: None,
            },
        };
        serde_json::to_string(&line).unwrap_or_default() + "\n"
    }

    fn response(
        &self,
        status: StatusCode,
        media: &'static str,
        text: String,
        room: &Arc<BodyRoom>,
    ) -> Response<Body> {
        let has_body = !text.is_empty();
        let mut response = Response::new(match has_body {
            true => Bytes::from_owner(AnswerText { text, _room: Arc::clone(room) }).into(),
            false => Body::empty(),
        });
        *response.status_mut() = status;
        let headers = response.headers_mut();
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
        }
        let applied = self.preferences.applied.join(", ");
        if let (false, Ok(applied)) = (applied.is_empty(), HeaderValue::from_str(&applied)) {
            headers.insert(PREFERENCE_APPLIED, applied);
        }
        response
    }
}

/// Returns whether a record was not written, because it was encoded for types that its columns no
/// longer have.
fn is_outdated(outcome: &RecordOutcome) -> bool {
    outcome.as_ref().is_err_and(|fault| fault.code == TABLE_CHANGED)
}

/// Adds the number of the record to the details of a fault.
fn at_record(fault: RequestFault, nth: usize) -> RequestFault {
    let details = match &fault.details {
        Some(details) => format!("record {}, {details}", nth + 1),
        None => format!("record {}", nth + 1),
    };
    fault.details(details)
}

/// Runs a decoder: on a thread of its own if the body is large.
async fn run_decoder<T: Send + 'static>(
    is_large: bool,
    run: impl FnOnce() -> Result<T, RequestFault> + Send + 'static,
) -> Result<T, RequestFault> {
    if !is_large {
        return run();
    }
    tokio::task::spawn_blocking(run).await.unwrap_or_else(|_| {
        let message = "the decoder of the body has failed";
        Err(RequestFault::new(StatusCode::INTERNAL_SERVER_ERROR, "bug", message))
    })
}

/// Reads a body. Takes room for its bytes first.
async fn read_body(
    state: &Arc<ServeState>,
    mut body: Body,
    version: Version,
) -> Result<HeldBody, RequestFault> {
    let most = state.limits.body_bytes;
    let too_large = || {
        let message = format!("the body has more than {most} bytes");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        let fault = RequestFault::new(status, "body_too_large", message);
        fault.hint("Send the records in several requests, or use `--max-body`.").closing()
    };
    let stated = body.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    if stated.is_some_and(|bytes| bytes > most) {
        return Err(too_large());
    }
    let room = state.open_room(stated).map_err(RequestFault::closing)?;
    let mut bytes = BytesMut::new();
    let ended_early = || RequestFault::bad("invalid_body", "the body ended early").closing();
    let read = async {
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return Err(ended_early()) };
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > most {
                return Err(too_large());
            }
            room.grow_to(bytes.len() + data.len()).map_err(RequestFault::closing)?;
            bytes.extend_from_slice(&data);
        }
        // Over HTTP/2, hyper reports no error if the client resets its stream with NO_ERROR.
        let is_cut_off = version == Version::HTTP_2 && !body.is_end_stream();
        match is_cut_off || stated.is_some_and(|stated| stated != bytes.len()) {
            true => Err(ended_early()),
            false => Ok(()),
        }
    };
    match tokio::time::timeout(state.limits.request_timeout, read).await {
        Ok(Ok(())) => Ok(HeldBody { bytes: bytes.freeze(), room: Arc::new(room) }),
        Ok(Err(fault)) => Err(fault),
        Err(_) => {
            let message = "the body did not arrive in time";
            let status = StatusCode::REQUEST_TIMEOUT;
            Err(RequestFault::new(status, "timeout", message).closing())
        }
    }
}
