//! Rows of `name.basics` (people) and `title.principals` (who did what in a title).

use super::ImdbSizes;
use crate::data::{SeededRandom, field, put, words};

const PROFESSIONS: [&str; 12] = [
    "actor",
    "actress",
    "miscellaneous",
    "producer",
    "writer",
    "camera_department",
    "director",
    "composer",
    "sound_department",
    "editor",
    "cinematographer",
    "soundtrack",
];

/// Categories of `title.principals`, frequent ones first.
const CATEGORIES: [&str; 10] = [
    "actor",
    "self",
    "actress",
    "writer",
    "director",
    "producer",
    "editor",
    "cinematographer",
    "composer",
    "archive_footage",
];

const JOBS: [&str; 6] =
    ["producer", "creator", "created by", "director of photography", "story by", "executive"];

/// Appends the row of a person in `name.basics`.
pub(super) fn basics(sizes: &ImdbSizes, person: u64, _room: u64, out: &mut Vec<u8>) -> u64 {
    let mut random = SeededRandom::at(sizes.seed, 1, person);
    put(out, format_args!("nm{person:07}\t"));
    words::person(&mut random, out);
    out.push(b'\t');
    // Four in five have no year of birth, and of the others two in five are dead.
    let born = random.percent(20.0).then(|| 1880 + random.below(125));
    let died = born.filter(|_| random.percent(40.0)).map(|born| born + 20 + random.below(60));
    field(out, born, '\t');
    field(out, died.map(|year| year.min(2023)), '\t');
    let professions = random.skewed(5).min(3);
    match professions {
        0 if random.percent(20.0) => put(out, format_args!("\\N")),
        _ => list(out, professions.max(1), |_| *random_of(&mut random, &PROFESSIONS)),
    }
    out.push(b'\t');
    match random.below(5) {
        0 => put(out, format_args!("\\N")),
        count => list(out, count, |_| title(sizes, &mut random)),
    }
    out.push(b'\n');
    1
}

/// Appends the rows of a title in `title.principals`: one to eleven people.
pub(super) fn principals(sizes: &ImdbSizes, nth: u64, room: u64, out: &mut Vec<u8>) -> u64 {
    let mut random = SeededRandom::at(sizes.seed, 2, nth);
    let count = (1 + random.below(11)).min(room);
    for ordering in 1..=count {
        // A few people occur in very many titles, most people in one.
        let person = 1 + random.skewed(sizes.people);
        let category = random.pick_skewed(&CATEGORIES);
        put(out, format_args!("tt{nth:07}\t{ordering}\tnm{person:07}\t{category}\t"));
        let has_job = matches!(category, "producer" | "writer" | "cinematographer");
        let job = (has_job && random.percent(60.0)).then(|| random.pick_skewed(&JOBS));
        field(out, job, '\t');
        match category {
            "self" => put(out, format_args!("[\"Self\"]\n")),
            "actor" | "actress" if random.percent(85.0) => {
                put(out, format_args!("[\""));
                words::title(&mut random, 2, out);
                put(out, format_args!("\"]\n"));
            }
            _ => put(out, format_args!("\\N\n")),
        }
    }
    count
}

/// Returns a reference to a title. Titles with small numbers are chosen more often.
fn title(sizes: &ImdbSizes, random: &mut SeededRandom) -> String {
    format!("tt{:07}", 1 + random.skewed(sizes.titles))
}

fn random_of<'a>(random: &mut SeededRandom, of: &'a [&'static str]) -> &'a &'static str {
    &of[random.skewed(of.len() as u64) as usize]
}

/// Appends `count` values, separated by commas.
pub(super) fn list<T: std::fmt::Display>(
    out: &mut Vec<u8>,
    count: u64,
    mut value: impl FnMut(u64) -> T,
) {
    for nth in 0..count {
        let comma = if nth + 1 < count { "," } else { "" };
        put(out, format_args!("{}{comma}", value(nth)));
    }
}
