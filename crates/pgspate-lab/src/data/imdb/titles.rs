//! Rows about titles: their names, their names in other regions, who made them, episodes, ratings.

use super::ImdbSizes;
use super::people::list;
use crate::data::{SeededRandom, field, put, words};

/// Types of titles, frequent ones first: three in four are episodes.
const TYPES: [(&str, f64); 7] = [
    ("tvEpisode", 75.0),
    ("short", 9.5),
    ("movie", 6.5),
    ("video", 2.8),
    ("tvSeries", 2.5),
    ("tvMovie", 1.5),
    ("videoGame", 2.2),
];

const GENRES: [&str; 20] = [
    "Drama",
    "Comedy",
    "Talk-Show",
    "Short",
    "Documentary",
    "News",
    "Romance",
    "Family",
    "Reality-TV",
    "Animation",
    "Crime",
    "Action",
    "Adventure",
    "Music",
    "Game-Show",
    "Sport",
    "Fantasy",
    "Mystery",
    "Horror",
    "Sci-Fi",
];

const REGIONS: [&str; 16] = [
    "FR", "DE", "JP", "IN", "ES", "IT", "PT", "US", "GB", "CA", "XWW", "AU", "BR", "MX", "RU", "SE",
];

const LANGUAGES: [&str; 8] = ["fr", "de", "ja", "hi", "es", "it", "pt", "en"];

/// Numbers of the random streams, one for each table.
const BASICS: u64 = 3;
const AKAS: u64 = 4;
const CREW: u64 = 5;
const EPISODE: u64 = 6;
const RATING: u64 = 7;

/// The random stream of a title's name. The name has its own stream, because two files contain it.
const NAME: u64 = 8;

fn name(sizes: &ImdbSizes, title: u64, is_episode: bool, out: &mut Vec<u8>) {
    let mut random = SeededRandom::at(sizes.seed, NAME, title);
    match is_episode && random.percent(45.0) {
        true => {
            let (season, episode) = (1 + random.skewed(20), 1 + random.skewed(300));
            put(out, format_args!("Episode #{season}.{episode}"));
        }
        false => words::title(&mut random, 4, out),
    }
}

fn kind(sizes: &ImdbSizes, title: u64) -> &'static str {
    let mut percent = SeededRandom::at(sizes.seed, BASICS, title).share() * 100.0;
    for (kind, share) in TYPES {
        percent -= share;
        if percent < 0.0 {
            return kind;
        }
    }
    TYPES[0].0
}

/// Appends the row of a title in `title.basics`.
pub(super) fn basics(sizes: &ImdbSizes, title: u64, _room: u64, out: &mut Vec<u8>) -> u64 {
    let kind = kind(sizes, title);
    let mut random = SeededRandom::at(sizes.seed, BASICS, title);
    // Skip the first number: `kind` has used it.
    random.next();
    put(out, format_args!("tt{title:07}\t{kind}\t"));
    let start = out.len();
    name(sizes, title, kind == "tvEpisode", out);
    let end = out.len();
    out.push(b'\t');
    match random.percent(97.0) {
        true => out.extend_from_within(start..end),
        false => words::title(&mut random, 4, out),
    }
    put(out, format_args!("\t{}\t", u8::from(random.percent(3.0))));
    let year = random.percent(87.0).then(|| 2023 - random.skewed(130));
    field(out, year, '\t');
    let end = year.filter(|_| kind == "tvSeries" && random.percent(50.0));
    field(out, end.map(|year| (year + random.skewed(12)).min(2023)), '\t');
    let runtime = random.percent(30.0).then(|| 1 + random.skewed(200));
    field(out, runtime, '\t');
    match random.percent(4.5) {
        true => put(out, format_args!("\\N")),
        false => {
            let count = 1 + random.skewed(4).min(2);
            list(out, count, |_| random.pick_skewed(&GENRES));
        }
    }
    out.push(b'\n');
    1
}

/// Appends the rows of a title in `title.akas`: its names in other regions, one to thirteen.
pub(super) fn akas(sizes: &ImdbSizes, title: u64, room: u64, out: &mut Vec<u8>) -> u64 {
    let mut random = SeededRandom::at(sizes.seed, AKAS, title);
    let count = (1 + random.skewed(13)).min(room);
    let is_episode = kind(sizes, title) == "tvEpisode";
    for ordering in 1..=count {
        put(out, format_args!("tt{title:07}\t{ordering}\t"));
        let is_same = ordering == 1 || random.percent(40.0);
        match (is_same, is_episode) {
            (true, _) => name(sizes, title, is_episode, out),
            (false, true) => put(out, format_args!("Folge #{}.{ordering}", 1 + random.below(20))),
            (false, false) => words::title(&mut random, 4, out),
        }
        let is_original = ordering == 1;
        let region = (!is_original).then(|| random.pick_skewed(&REGIONS));
        let language = (!is_original && random.percent(80.0)).then(|| random.pick(&LANGUAGES));
        out.push(b'\t');
        field(out, region, '\t');
        field(out, language, '\t');
        let types = match () {
            () if is_original => Some("original"),
            () => random.percent(12.0).then_some("imdbDisplay"),
        };
        field(out, types, '\t');
        let attribute = random.percent(1.0).then(|| random.pick(&["literal title", "new title"]));
        field(out, attribute, '\t');
        put(out, format_args!("{}\n", u8::from(is_original)));
    }
    count
}

/// Appends the row of a title in `title.crew`: who directed and who wrote it.
pub(super) fn crew(sizes: &ImdbSizes, title: u64, _room: u64, out: &mut Vec<u8>) -> u64 {
    let mut random = SeededRandom::at(sizes.seed, CREW, title);
    put(out, format_args!("tt{title:07}\t"));
    people(sizes, &mut random, 57.0, 1, out);
    out.push(b'\t');
    people(sizes, &mut random, 50.0, 6, out);
    out.push(b'\n');
    1
}

fn people(
    sizes: &ImdbSizes,
    random: &mut SeededRandom,
    percent: f64,
    most: u64,
    out: &mut Vec<u8>,
) {
    match random.percent(percent) {
        false => put(out, format_args!("\\N")),
        true => {
            let count = 1 + random.skewed(most);
            list(out, count, |_| format!("nm{:07}", 1 + random.skewed(sizes.people)));
        }
    }
}

/// Appends a row of `title.episode`.
pub(super) fn episodes(sizes: &ImdbSizes, nth: u64, _room: u64, out: &mut Vec<u8>) -> u64 {
    let mut random = SeededRandom::at(sizes.seed, EPISODE, nth);
    // About three in four titles are episodes. Take them in order.
    let title = 1 + (nth - 1) * 13 / 10;
    let series = 1 + random.skewed(sizes.titles);
    put(out, format_args!("tt{title:07}\ttt{series:07}\t"));
    let number = random.percent(80.0).then(|| (1 + random.skewed(30), 1 + random.skewed(200)));
    field(out, number.map(|number| number.0), '\t');
    field(out, number.map(|number| number.1), '\n');
    1
}

/// Appends a row of `title.ratings`. A few titles have nearly all votes.
pub(super) fn ratings(sizes: &ImdbSizes, nth: u64, _room: u64, out: &mut Vec<u8>) -> u64 {
    let mut random = SeededRandom::at(sizes.seed, RATING, nth);
    let rating = 10 + random.below(46) + random.below(46);
    let share = random.share();
    let votes = 5 + (share.powi(24) * 2_000_000.0) as u64 + random.skewed(200);
    // Two in fifteen titles have a rating. Take them in order.
    let title = 1 + (nth - 1) * 15 / 2;
    put(out, format_args!("tt{title:07}\t{}.{}\t{votes}\n", rating / 10, rating % 10));
    1
}
