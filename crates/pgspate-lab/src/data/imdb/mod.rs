//! Seven files shaped like IMDb's: the same layouts, and about the same sizes, lengths and skew.
//!
//! All rows are invented. At scale 1 the files have as many rows as IMDb's files had at the end of
//! 2023: 140 million, in about 1.5 GB.

mod people;
mod titles;

use std::path::{Path, PathBuf};

use pgspate::Result;

use super::generated::{self, GeneratedTable};
use super::{GeneratedRows, scaled};
use crate::RunStop;

/// The scale at which the seven files take about 60 MB.
pub const SCALE_SMALL: f64 = 0.04;

/// Appends the rows of one title or person, and returns the number of rows. The arguments are the
/// sizes, the number of the title or person, the greatest number of rows, and the output.
type RowMaker = fn(&ImdbSizes, u64, u64, &mut Vec<u8>) -> u64;

/// The seed, and how many people and titles there are to refer to.
#[derive(Debug, Clone, Copy)]
struct ImdbSizes {
    seed: u64,
    people: u64,
    titles: u64,
}

/// People in `name.basics` at scale 1.
const PEOPLE: u64 = 13_000_000;
/// Titles in `title.basics` at scale 1.
const TITLES: u64 = 10_400_000;

/// Rows of the other tables at scale 1.
const PRINCIPALS: u64 = 59_400_000;
const AKAS: u64 = 37_000_000;
const EPISODES: u64 = 7_900_000;
const RATINGS: u64 = 1_370_000;

/// The seven tables, the largest first.
pub const TABLES: [GeneratedTable; 7] = [
    GeneratedTable {
        name: "title_principals",
        create: "create table title_principals (tconst text, ordering int, nconst text, \
                 category text, job text, characters text)",
        indexes: &[
            "alter table title_principals add primary key (tconst, ordering)",
            "create index title_principals_nconst on title_principals (nconst)",
        ],
        header: "tconst\tordering\tnconst\tcategory\tjob\tcharacters",
        count: |scale| scaled(PRINCIPALS, scale),
        make: |scale, seed| all(PRINCIPALS, people::principals, scale, seed),
    },
    GeneratedTable {
        name: "title_akas",
        create: "create table title_akas (title_id text, ordering int, title text, region text, \
                 language text, types text, attributes text, is_original_title boolean)",
        indexes: &[
            "alter table title_akas add primary key (title_id, ordering)",
            "create index title_akas_title on title_akas (title)",
        ],
        header: "titleId\tordering\ttitle\tregion\tlanguage\ttypes\tattributes\tisOriginalTitle",
        count: |scale| scaled(AKAS, scale),
        make: |scale, seed| all(AKAS, titles::akas, scale, seed),
    },
    GeneratedTable {
        name: "name_basics",
        create: "create table name_basics (nconst text, primary_name text, birth_year int, \
                 death_year int, primary_profession text, known_for_titles text)",
        indexes: &[
            "alter table name_basics add primary key (nconst)",
            "create index name_basics_primary_name on name_basics (primary_name)",
        ],
        header: "nconst\tprimaryName\tbirthYear\tdeathYear\tprimaryProfession\tknownForTitles",
        count: |scale| scaled(PEOPLE, scale),
        make: |scale, seed| all(PEOPLE, people::basics, scale, seed),
    },
    GeneratedTable {
        name: "title_basics",
        create: "create table title_basics (tconst text, title_type text, primary_title text, \
                 original_title text, is_adult boolean, start_year int, end_year int, \
                 runtime_minutes int, genres text)",
        indexes: &[
            "alter table title_basics add primary key (tconst)",
            "create index title_basics_start_year on title_basics (start_year)",
        ],
        header: "tconst\ttitleType\tprimaryTitle\toriginalTitle\tisAdult\tstartYear\tendYear\t\
                 runtimeMinutes\tgenres",
        count: |scale| scaled(TITLES, scale),
        make: |scale, seed| all(TITLES, titles::basics, scale, seed),
    },
    GeneratedTable {
        name: "title_crew",
        create: "create table title_crew (tconst text, directors text, writers text)",
        indexes: &["alter table title_crew add primary key (tconst)"],
        header: "tconst\tdirectors\twriters",
        count: |scale| scaled(TITLES, scale),
        make: |scale, seed| all(TITLES, titles::crew, scale, seed),
    },
    GeneratedTable {
        name: "title_episode",
        create: "create table title_episode (tconst text, parent_tconst text, season_number int, \
                 episode_number int)",
        indexes: &[
            "alter table title_episode add primary key (tconst)",
            "create index title_episode_parent on title_episode (parent_tconst)",
        ],
        header: "tconst\tparentTconst\tseasonNumber\tepisodeNumber",
        count: |scale| scaled(EPISODES, scale),
        make: |scale, seed| all(EPISODES, titles::episodes, scale, seed),
    },
    GeneratedTable {
        name: "title_ratings",
        create: "create table title_ratings (tconst text, average_rating numeric(3, 1), \
                 num_votes int)",
        indexes: &["alter table title_ratings add primary key (tconst)"],
        header: "tconst\taverageRating\tnumVotes",
        count: |scale| scaled(RATINGS, scale),
        make: |scale, seed| all(RATINGS, titles::ratings, scale, seed),
    },
];

/// Generates the rows of a table that has `rows` rows at scale 1.
fn all(rows: u64, make_rows: RowMaker, scale: f64, seed: u64) -> Box<dyn GeneratedRows> {
    let sizes = ImdbSizes { seed, people: scaled(PEOPLE, scale), titles: scaled(TITLES, scale) };
    Box::new(RowsOfMaker { sizes, make_rows, next: 1, left: scaled(rows, scale) })
}

struct RowsOfMaker {
    sizes: ImdbSizes,
    make_rows: RowMaker,
    next: u64,
    left: u64,
}

impl GeneratedRows for RowsOfMaker {
    fn append(&mut self, out: &mut Vec<u8>) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= (self.make_rows)(&self.sizes, self.next, self.left, out);
        self.next += 1;
        true
    }
}

/// Makes the seven files in a new folder inside `folder`, and returns their paths in the order of
/// [`TABLES`].
///
/// # Errors
/// When the folder cannot be written or is full.
pub fn write(folder: &Path, scale: f64, seed: u64, stop: &RunStop) -> Result<Vec<PathBuf>> {
    generated::write(&TABLES, 2, folder, "imdb", (scale, seed), stop)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use pgspate::ErrorKind;

    use super::*;

    /// The mean number of bytes in a row of each of IMDb's files.
    const WIDTHS: [u64; 7] = [42, 49, 61, 84, 32, 26, 17];

    fn text(table: &GeneratedTable, scale: f64, seed: u64) -> String {
        let mut out = Vec::new();
        let mut rows = table.all(scale, seed);
        while rows.append(&mut out) {}
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rows_have_the_layout_and_about_the_size_of_imdb() {
        for (table, width) in TABLES.iter().zip(WIDTHS) {
            let all = text(table, 0.0005, 1);
            let lines: Vec<&str> = all.lines().collect();
            assert_eq!(lines.len() as u64, table.rows_at(0.0005), "{}", table.name);
            let columns = table.header.split('\t').count();
            assert_eq!(columns, table.create.split(", ").count() - has_scale(table));
            for line in &lines {
                assert_eq!(line.split('\t').count(), columns, "{}", table.name);
                assert!(line.split('\t').all(|field| field == "\\N" || !field.contains('\\')));
                assert!(line.split('\t').all(|field| !field.is_empty()), "{}", table.name);
            }
            let mean = all.len() as u64 / lines.len() as u64;
            let near = width * 3 / 4..=width * 5 / 4;
            assert!(near.contains(&mean), "{}: {mean} bytes a row, not {width}", table.name);
        }
    }

    fn has_scale(table: &GeneratedTable) -> usize {
        usize::from(table.create.contains("numeric(3, 1)"))
    }

    #[test]
    fn keys_are_unique_and_references_have_targets() {
        let (scale, seed) = (0.0005, 5);
        let people = format!("nm{:07}", scaled(PEOPLE, scale));
        let titles = format!("tt{:07}", scaled(TITLES, scale));
        for table in &TABLES {
            let all = text(table, scale, seed);
            let mut keys = std::collections::HashSet::new();
            let is_pair = table.indexes[0].contains("ordering");
            for line in all.lines() {
                let fields: Vec<&str> = line.split('\t').collect();
                let key = (fields[0], if is_pair { fields[1] } else { "" });
                assert!(keys.insert(key), "{}", table.name);
                let last = if fields[0].starts_with("nm") { &people } else { &titles };
                assert!(fields[0] <= last.as_str(), "{}: {line}", table.name);
                if table.name == "title_principals" {
                    assert!(fields[2].starts_with("nm") && fields[2] <= people.as_str());
                }
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_rows() {
        for table in &TABLES {
            assert_eq!(text(table, 0.0001, 3), text(table, 0.0001, 3));
            assert_ne!(text(table, 0.0001, 3), text(table, 0.0001, 4), "{}", table.name);
        }
    }

    #[test]
    fn files_are_whole_and_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let paths = write(folder.path(), 0.0002, 1, &RunStop::default()).unwrap();
        let times = |paths: &[PathBuf]| -> Vec<_> {
            paths.iter().map(|path| fs::metadata(path).unwrap().modified().unwrap()).collect()
        };
        let before = times(&paths);
        for (table, path) in TABLES.iter().zip(&paths) {
            assert_eq!(path.file_name().unwrap().to_str(), Some(table.file().as_str()));
            let mut read = String::new();
            GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut read).unwrap();
            let expected = format!("{}\n{}", table.header, text(table, 0.0002, 1));
            assert_eq!(read, expected, "{}", table.name);
        }
        assert_eq!(write(folder.path(), 0.0002, 1, &RunStop::default()).unwrap(), paths);
        assert_eq!(times(&paths), before);
        assert_ne!(write(folder.path(), 0.0002, 2, &RunStop::default()).unwrap(), paths);
        let stop = RunStop::default();
        stop.request();
        let error = write(folder.path(), 0.0002, 3, &stop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        let made = fs::read_dir(folder.path().join("imdb-0.0002-3")).unwrap().flatten();
        assert!(made.into_iter().all(|file| file.path().extension().unwrap() == "part"));
    }
}
