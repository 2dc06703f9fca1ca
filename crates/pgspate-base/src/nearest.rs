//! Finds the most similar name, for hints about unknown names.

/// Returns the candidate most similar to `name`, ignoring case. At most a third of the letters may
/// differ, and one letter of a name with fewer than three.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted: Vec<char> = name.to_lowercase().chars().take(NAME_CHARS_MAX).collect();
    let allowed = (wanted.len() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| {
            let letters: Vec<char> =
                candidate.to_lowercase().chars().take(NAME_CHARS_MAX).collect();
            (distance(&wanted, &letters), candidate)
        })
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.len().max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns the sentence `Did you mean column "name"?` for the candidate most similar to `name`, if
/// there is a similar one. `what` is the noun before the name, or empty.
pub fn did_you_mean<'a>(
    what: &str,
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let space = if what.is_empty() { "" } else { " " };
    nearest(name, candidates).map(|near| format!("Did you mean {what}{space}\"{near}\"?"))
}

/// Names in PostgreSQL have at most 63 bytes, so comparing more characters would only cost time.
const NAME_CHARS_MAX: usize = 64;

/// Returns how many letters must be inserted, deleted, replaced or swapped with their neighbour.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut two_above: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replaced = above[j] + usize::from(a[i] != b[j]);
            let mut best = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(two_above[j - 1] + 1);
            }
            row.push(best);
        }
        two_above = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_found_and_others_are_not() {
        let columns = ["id", "quantity", "price", "Customer"];
        assert_eq!(nearest("quantiy", columns), Some("quantity"));
        assert_eq!(nearest("pirce", columns), Some("price"));
        assert_eq!(nearest("CUSTOMER", columns), Some("Customer"));
        assert_eq!(nearest("i", columns), Some("id"));
        assert_eq!(nearest("colour", columns), None);
        assert_eq!(nearest("", columns), None);
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn a_question_names_the_similar_name() {
        let question = did_you_mean("column", "pirce", ["price"]);
        assert_eq!(question.as_deref(), Some("Did you mean column \"price\"?"));
        let question = did_you_mean("", "blk", ["bulk"]);
        assert_eq!(question.as_deref(), Some("Did you mean \"bulk\"?"));
        assert_eq!(did_you_mean("", "colour", ["price"]), None);
    }

    #[test]
    fn distances_count_edits_and_swaps() {
        let text_distance = |a: &str, b: &str| {
            distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>())
        };
        assert_eq!(text_distance("", "abc"), 3);
        assert_eq!(text_distance("abc", "acb"), 1);
        assert_eq!(text_distance("kitten", "sitting"), 3);
    }
}
