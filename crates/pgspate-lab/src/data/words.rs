//! Words for names, titles and remarks, of several alphabets.
//!
//! Only the lengths and bytes matter, not the meaning.

use std::sync::LazyLock;

use super::SeededRandom;
use super::put;

/// Words to pick from.
type WordList = LazyLock<Vec<&'static str>>;

static GIVEN: WordList = LazyLock::new(|| GIVEN_NAMES.split(", ").collect());
static FAMILY: WordList = LazyLock::new(|| FAMILY_NAMES.split(", ").collect());
static PLAIN: WordList = LazyLock::new(|| PLAIN_WORDS.split(", ").collect());

/// Given names, frequent ones first.
const GIVEN_NAMES: &str = "\
    John, Anna, Michael, Maria, David, Laura, Peter, Elena, James, Sofia, Robert, Julia, Thomas, \
    Eva, Daniel, Nina, Paul, Sara, Mark, Olga, José, Karin, Luis, Ingrid, Andrés, Zoë, Jörg, \
    Chloé, Søren, Aïda, Kenji, Priya, Rahul, Yuki, Wei, Ling, Omar, Leila, Hassan, Amina, Ivan, \
    Tatjana, Pavel, Milena, Giorgos, Despina, Emre, Ayşe, Nguyễn, Linh, Chukwuemeka, Ifeoma, \
    Kwame, Abena, Tadeusz, Małgorzata, Bartholomew, Ines, Ottilie, Maximilian, Guadalupe, \
    Concepción, Wolfgang, Świetłana";

/// Family names, frequent ones first.
const FAMILY_NAMES: &str = "\
    Smith, Müller, Johnson, García, Brown, Singh, Jones, Martin, Davis, Kim, Miller, Rossi, \
    Wilson, Silva, Moore, Novák, Taylor, Kumar, Lee, Ivanova, Clark, Tanaka, Lewis, Dubois, \
    Walker, Schneider, Hall, Fernández, Young, Andersson, King, Kowalski, Wright, Hansen, Hill, \
    Popescu, Green, Yılmaz, Baker, Chen, Nelson, Okafor, Carter, Papadopoulos, Mitchell, \
    Van den Berg, Turner, O'Brien, Parker, Lindqvist, Collins, Horváth, Edwards, Ferreira, \
    Stewart, Mensah, Morris, Nakamura, Rogers, Sørensen, Cook, Bălan, Morgan, Castellanos, Bell, \
    Wojciechowski, Murphy, Al-Rashid, Bailey, Hernández-Reyes, Cooper, Abdurrahman";

/// Words of titles and remarks, frequent ones first.
const PLAIN_WORDS: &str = "\
    the, of, and, in, a, night, day, love, man, house, life, story, last, first, world, city, \
    road, girl, boy, time, dark, light, home, river, king, queen, secret, lost, summer, winter, \
    dream, heart, star, fire, water, blood, game, return, journey, island, garden, mirror, \
    shadow, letter, winter's, window, bridge, train, silence, morning, evening, stranger, \
    mother, father, brother, sister, children, neighbour, teacher, soldier, doctor, dance, \
    music, song, voice, stone, gold, silver, iron, glass, paper, storm, rain, snow, wind, \
    forest, mountain, desert, ocean, harbour, station, market, kitchen, school, hospital, \
    theatre, circus, museum, election, championship, interview, adventure, mystery, detective, \
    chronicle, festival, revolution, kingdom, paradise, nightmare, anniversary, inheritance, \
    photograph, confession, disappearance, Kaleidoskop, Straßenbahn, forêt, corazón, ночь, \
    любовь, 東京";

/// Appends a name of a person.
pub(super) fn person(random: &mut SeededRandom, out: &mut Vec<u8>) {
    put(out, format_args!("{}", random.pick_skewed(&GIVEN)));
    if random.percent(8.0) {
        put(out, format_args!(" {}.", (b'A' + random.below(26) as u8) as char));
    }
    put(out, format_args!(" {}", random.pick(&FAMILY)));
}

/// Appends a title of about `words` words.
pub(super) fn title(random: &mut SeededRandom, words: u64, out: &mut Vec<u8>) {
    let count = 1 + random.skewed(words * 4 - 3);
    for nth in 0..count {
        let word = random.pick_skewed(&PLAIN);
        let mut letters = word.chars();
        match letters.next() {
            Some(first) if nth == 0 || word.len() > 3 => {
                put(out, format_args!("{}{}", first.to_uppercase(), letters.as_str()));
            }
            _ => put(out, format_args!("{word}")),
        }
        if nth + 1 < count {
            out.push(b' ');
        }
    }
}

/// A long text from which remarks are cut, which is far cheaper than generating each remark.
#[derive(Debug)]
pub(super) struct RemarkPool(String);

impl RemarkPool {
    /// Creates the text of a seed, 64 KiB long.
    pub(super) fn new(seed: u64) -> RemarkPool {
        let mut random = SeededRandom::new(seed, "soup");
        let mut text = String::with_capacity(70_000);
        while text.len() < 65_536 {
            // Only ASCII, so that it can be cut anywhere.
            let word = random.pick(&PLAIN);
            if word.is_ascii() {
                text.push_str(word);
                text.push(' ');
            }
        }
        RemarkPool(text)
    }

    /// Returns a random part of `bytes` bytes, up to 16 KiB.
    pub(super) fn cut(&self, random: &mut SeededRandom, bytes: usize) -> &str {
        let start = random.below((self.0.len() - bytes) as u64) as usize;
        &self.0[start..start + bytes]
    }
}
