//! Messages of topics to the thread that makes batches.
//!
//! Partitions are assigned by hand, from where the ledger is. Each message is handed on once, in
//! the order of its partition; librdkafka connects again by itself, and goes on where it was.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Headers, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::begin::{Bounds, check};
use super::client::{Answers, Told, bounds};
use super::errors::{is_of_group, is_passing, of_request};
use super::read::{Message, Partition, TopicPiece, TopicSource};
use crate::{Error, ErrorKind, Gone, Pieces, Result, SourcePoint};

/// How long it waits for a message before it looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(20);
/// Messages, and bytes of them, that are handed on together at most.
const MESSAGES_MAX: usize = 1000;
const BYTES_MAX: usize = 256 << 10;
/// How the headers begin that are handed on.
const HEADER: &str = "__debezium.";

/// Where the reading of a partition is.
struct Place {
    topic: String,
    number: i32,
    /// The next message, as far as it is known.
    next: i64,
    /// Where it ends, by the last word of its brokers.
    end: i64,
    /// Where to stop.
    until: Option<i64>,
}

impl Place {
    fn is_done(&self) -> bool {
        self.until.is_some_and(|until| self.next >= until)
    }
}

/// Which of the places a partition is.
#[derive(Default)]
struct Index {
    topics: HashMap<String, HashMap<i32, u32>>,
    count: usize,
}

impl Index {
    fn add(&mut self, places: &[Place]) {
        for (nth, place) in places.iter().enumerate().skip(self.count) {
            self.topics.entry(place.topic.clone()).or_default().insert(place.number, nth as u32);
        }
        self.count = places.len();
    }

    fn of(&self, topic: &str, number: i32) -> Option<u32> {
        self.topics.get(topic)?.get(&number).copied()
    }
}

/// What has come and is not handed on.
#[derive(Default)]
struct Taking {
    messages: Vec<Message>,
    bytes: usize,
}

impl TopicSource {
    /// Reads until nobody wants more, or up to where the partitions ended.
    pub(super) fn run(&mut self, pieces: &Pieces<TopicPiece>) {
        let mut places = Vec::with_capacity(self.partitions.len());
        let mut list = TopicPartitionList::new();
        for partition in std::mem::take(&mut self.partitions) {
            if self.begin(partition, &mut places, &mut list, pieces).is_err() {
                return;
            }
        }
        self.lag.note_connection();
        self.see_end(&places);
        let read = match list.count() {
            0 if !self.follows => Ok(()),
            _ => self.topics.client.assign(&list).map_err(not_assigned),
        };
        if let Err(error) = read.and_then(|()| self.read(&mut places, pieces)) {
            let _ = pieces.send(Err(error));
        }
    }

    /// Adds a partition to those that are read, if there is anything in it to be read.
    fn begin(
        &self,
        partition: Partition,
        places: &mut Vec<Place>,
        list: &mut TopicPartitionList,
        pieces: &Pieces<TopicPiece>,
    ) -> Result<(), Gone> {
        let place = Place {
            topic: partition.topic.clone(),
            number: partition.number,
            next: partition.from(),
            end: partition.end,
            until: (!self.follows).then_some(partition.end),
        };
        if !place.is_done() {
            // The offset is one by its making.
            let _ =
                list.add_partition_offset(&place.topic, place.number, Offset::Offset(place.next));
        }
        places.push(place);
        pieces.send(Ok(TopicPiece::Partition(partition)))
    }

    fn read(&self, places: &mut Vec<Place>, pieces: &Pieces<TopicPiece>) -> Result<()> {
        let client = &self.topics.client;
        let mut index = Index::default();
        let mut taking = Taking::default();
        let mut told: Option<Told> = None;
        let mut lost: Option<Instant> = None;
        while pieces.are_wanted() && !places.iter().all(Place::is_done) {
            index.add(places);
            let wait = if taking.messages.is_empty() { LOOK } else { Duration::ZERO };
            let polled = client.poll(wait);
            let now = client.context().take_told();
            match polled {
                Some(Ok(message)) => {
                    taking.add(&message, &index, places);
                    if taking.is_full() && taking.hand_on(pieces).is_err() {
                        return Ok(());
                    }
                }
                Some(Err(error)) => self.heed(error, places)?,
                None => {
                    // All is taken that there was before it told how far it is, unless it has
                    // told in between.
                    let told = told.take().filter(|_| now.is_none());
                    let passed = told.map(|told| pass(&told, places));
                    let passed = passed.map(|all| pieces.send(Ok(TopicPiece::Passed(all))));
                    if taking.hand_on(pieces).is_err() || passed.is_some_and(|it| it.is_err()) {
                        return Ok(());
                    }
                }
            }
            if let Some(now) = now {
                lost = self.note_connection(&now, lost)?;
                self.find_new(&now, places, pieces)?;
                for place in places.iter_mut() {
                    let reached = now.partitions.get(&(place.topic.clone(), place.number));
                    place.end = place.end.max(reached.map_or(0, |reached| reached.end));
                }
                self.see_end(places);
                told = Some(now);
            }
        }
        let _ = taking.hand_on(pieces);
        Ok(())
    }

    fn see_end(&self, places: &[Place]) {
        let sum = places.iter().map(|place| place.end.unsigned_abs()).sum();
        self.lag.note_end(SourcePoint::Messages(sum));
    }

    /// Notes whether any broker is there, and since when none is.
    fn note_connection(&self, told: &Told, lost: Option<Instant>) -> Result<Option<Instant>> {
        if told.is_connected {
            self.lag.note_connection();
            return Ok(None);
        }
        self.lag.note_loss(lost.is_none());
        let since = lost.unwrap_or_else(Instant::now);
        if since.elapsed() < self.limits.retry_for {
            return Ok(Some(since));
        }
        let seconds = self.limits.retry_for.as_secs();
        let message = format!("no broker was within reach for {seconds} seconds");
        let error = Error::new(ErrorKind::Connect, message)
            .hint("Run the same command again: it goes on where the ledger is.");
        Err(match self.topics.client.context().said() {
            Some(said) => error.because(said),
            None => error,
        })
    }

    /// Reads the partitions that topics have got meanwhile, where the run goes on for ever.
    fn find_new(
        &self,
        told: &Told,
        places: &mut Vec<Place>,
        pieces: &Pieces<TopicPiece>,
    ) -> Result<()> {
        if !self.follows || told.partitions.len() <= places.len() {
            return Ok(());
        }
        let mut new: Vec<_> = told.partitions.keys().collect();
        new.retain(|(topic, number)| {
            !places.iter().any(|place| (&place.topic, place.number) == (topic, *number))
        });
        new.sort_unstable();
        let mut list = TopicPartitionList::new();
        let answers = Answers::within(self.limits.stall_timeout);
        for (topic, number) in new {
            // One that cannot be asked for yet is told of again.
            let bounds = bounds(&self.topics.client, topic, *number, &answers);
            let Ok((first, end)) = bounds else { continue };
            let (topic, number) = (topic.clone(), *number);
            let (mark, reads_again) = (None, false);
            let found = Partition { topic, number, mark, next: first, reads_again, end };
            if self.begin(found, places, &mut list, pieces).is_err() {
                return Ok(());
            }
        }
        match list.count() {
            0 => Ok(()),
            _ => self.topics.client.incremental_assign(&list).map_err(not_assigned),
        }
    }

    /// What becomes of an error that librdkafka tells: it goes on after those that pass.
    fn heed(&self, error: KafkaError, places: &[Place]) -> Result<()> {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        match code {
            Code::PartitionEOF => Ok(()),
            _ if is_passing(code) || is_of_group(code) => Ok(()),
            Code::AutoOffsetReset | Code::OffsetOutOfRange | Code::LogTruncation => {
                Err(self.out_of_range(places))
            }
            _ => Err(of_request("read the topics", error, self.topics.client.context().said())),
        }
    }

    /// A message that was asked for is not there: which one, and why.
    fn out_of_range(&self, places: &[Place]) -> Error {
        let answers = Answers::within(self.limits.stall_timeout);
        for place in places {
            let Place { topic, number, next, .. } = place;
            let (first, end) = match bounds(&self.topics.client, topic, *number, &answers) {
                Ok(found) => found,
                Err(error) => return error,
            };
            let bounds = Bounds { topic: topic.clone(), number: *number, first, end };
            if let Err(error) = check(&bounds, &self.stream, *next) {
                return error;
            }
        }
        Error::new(ErrorKind::Source, "the brokers do not have a message that they had")
            .hint("Run the same command again: it says what can still be read.")
    }
}

/// Where partitions have nothing before what librdkafka will fetch next that has not been taken:
/// there are marks of transactions, and messages of those that were rolled back.
fn pass(told: &Told, places: &mut [Place]) -> Vec<(u32, i64)> {
    let mut passed = Vec::new();
    for (nth, place) in places.iter_mut().enumerate() {
        let reached = told.partitions.get(&(place.topic.clone(), place.number));
        // What is not wanted any more was not taken.
        let next = reached.map(|it| place.until.map_or(it.next, |until| it.next.min(until)));
        if let Some(next) = next.filter(|next| *next > place.next) {
            place.next = next;
            passed.push((nth as u32, next));
        }
    }
    passed
}

impl Taking {
    fn add(&mut self, message: &BorrowedMessage<'_>, index: &Index, places: &mut [Place]) {
        let Some(part) = index.of(message.topic(), message.partition()) else { return };
        let (place, offset) = (&mut places[part as usize], message.offset());
        // What came before is not wanted again, nor is what came after the run had begun.
        if offset < place.next || place.is_done() {
            return;
        }
        if place.until.is_some_and(|until| offset >= until) {
            place.next = offset;
            return;
        }
        place.next = offset + 1;
        let bytes = |part: Option<&[u8]>| part.map(<[u8]>::to_vec);
        let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
        let headers = headers.filter(|header| header.key.starts_with(HEADER));
        let taken = Message {
            part,
            offset,
            written: message.timestamp().to_millis(),
            key: bytes(message.key()),
            value: bytes(message.payload()),
            headers: headers
                .filter_map(|header| Some((header.key.into(), header.value?.to_vec())))
                .collect(),
        };
        self.bytes += message.payload_len() + message.key_len();
        self.messages.push(taken);
    }

    fn is_full(&self) -> bool {
        self.messages.len() >= MESSAGES_MAX || self.bytes >= BYTES_MAX
    }

    fn hand_on(&mut self, pieces: &Pieces<TopicPiece>) -> Result<(), Gone> {
        let Taking { messages, .. } = std::mem::take(self);
        match messages.is_empty() {
            true => Ok(()),
            false => pieces.send(Ok(TopicPiece::Messages(messages))),
        }
    }
}

fn not_assigned(error: KafkaError) -> Error {
    of_request("begin to read the topics", error, None)
}
