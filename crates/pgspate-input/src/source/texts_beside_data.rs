//! Recognises files that people and programs put beside data: a README, a licence, a list of
//! checksums, a backup.
//!
//! Only names that are never those of data count. A file that the user names itself is always read.

use super::Input;

/// File names without their extensions, in lower case.
const NAMES: [&str; 9] = [
    "readme",
    "license",
    "licence",
    "copying",
    "notice",
    "authors",
    "changelog",
    "thumbs",
    "desktop",
];

/// Extensions of files with such a name; the file may also have none.
const EXTENSIONS_OF_NAMES: [&str; 4] = ["", "txt", "db", "ini"];

/// Extensions of files that are no data, whatever their name: texts, checksums, and leftovers of
/// editors and downloads.
const EXTENSIONS: [&str; 19] = [
    "md",
    "rst",
    "adoc",
    "html",
    "htm",
    "pdf",
    "md5",
    "sha1",
    "sha256",
    "sha512",
    "asc",
    "bak",
    "orig",
    "old",
    "swp",
    "tmp",
    "part",
    "partial",
    "crdownload",
];

/// Takes texts for people out of the inputs of folders and patterns. Returns the other inputs, and
/// the names of those taken out. If all inputs are such texts, or are named in `specs`, all stay.
pub fn without_texts_beside_data(
    specs: &[String],
    inputs: Vec<Input>,
) -> (Vec<Input>, Vec<String>) {
    let is_text = |input: &Input| {
        let name = input.name();
        is_text_for_people(name) && !specs.iter().any(|spec| names_file(spec, name))
    };
    if inputs.iter().all(is_text) {
        return (inputs, Vec::new());
    }
    let (texts, data): (Vec<_>, Vec<_>) = inputs.into_iter().partition(is_text);
    (data, texts.iter().map(|input| input.name().to_owned()).collect())
}

/// Returns whether a path, URL or pattern names the file, or files of its extension.
fn names_file(spec: &str, name: &str) -> bool {
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let (wanted, file) = (last(spec), last(name));
    let extension = |file: &str| file.rsplit_once('.').map(|(_, extension)| extension.to_owned());
    wanted == file || wanted.contains('*') && extension(&wanted) == extension(&file)
}

fn is_text_for_people(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path).to_lowercase();
    let (stem, extension) = file.rsplit_once('.').unwrap_or((&file, ""));
    EXTENSIONS.contains(&extension)
        || file.ends_with('~')
        || (NAMES.contains(&stem) && EXTENSIONS_OF_NAMES.contains(&extension))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_a_spec_names_are_read() {
        for spec in ["in/a.part", "https://u:p@h/a.part", "in/*.part", "a.part"] {
            assert!(names_file(spec, "in/a.part"), "{spec}");
        }
        for spec in ["in", "in/*", "in/*.csv", "b.part"] {
            assert!(!names_file(spec, "in/a.part"), "{spec}");
        }
    }

    #[test]
    fn names_of_data_are_not_taken_for_texts() {
        for text in [
            "land/README",
            "README.md",
            "s3://b/k/LICENSE.txt",
            "a.csv.md5",
            "Thumbs.db",
            "a.csv.bak",
            "a.csv~",
        ] {
            assert!(is_text_for_people(text), "{text}");
        }
        for data in ["readme.csv", "notice.json", "land/a", "a.txt", "md", "authors.parquet"] {
            assert!(!is_text_for_people(data), "{data}");
        }
    }
}
