//! The nearest name, for hints about names that are not there.

/// The candidate that `name` most likely means, if one is near enough: the same but for case, or
/// at most a third of its letters away.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted: Vec<char> = name.to_lowercase().chars().take(LONGEST).collect();
    let allowed = (wanted.len() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| {
            let letters: Vec<char> = candidate.to_lowercase().chars().take(LONGEST).collect();
            (distance(&wanted, &letters), candidate)
        })
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.len().max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Names in PostgreSQL have at most 63 bytes; comparing more of a hostile one costs without use.
const LONGEST: usize = 64;

/// How many letters must be inserted, dropped, replaced or swapped with their neighbour.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replaced = above[j] + usize::from(a[i] != b[j]);
            let mut best = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
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
    fn distances() {
        let of = |a: &str, b: &str| {
            distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>())
        };
        assert_eq!((of("", "abc"), of("abc", "acb"), of("kitten", "sitting")), (3, 1, 3));
    }
}
