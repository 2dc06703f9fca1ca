//! pgspate's cutter and encoder compared with COPY of the same delimited bytes. Both must give the
//! same rows in the same order, or the same SQLSTATE.
//!
//! Random cases run for `PGSPATE_TEST_SECONDS` seconds (default 10). `PGSPATE_TEST_SEED` is their
//! seed (default 1).

mod case;
mod encoded_case;
mod judge;
mod named;

use std::time::{Duration, Instant};

use case::{CaseRandom, DelimitedCase, random_case};
use judge::CopyJudge;

fn env_number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[tokio::test]
async fn random_input_is_read_as_copy_reads_it() {
    let db = pgspate_embedded::testing::database();
    let mut judge = CopyJudge::new(&db.dsn()).await;
    let mut random = CaseRandom(env_number("PGSPATE_TEST_SEED", 1));
    let until = Instant::now() + Duration::from_secs(env_number("PGSPATE_TEST_SECONDS", 10));
    let mut cases = 0;
    while Instant::now() < until {
        let case = random_case(&mut random);
        cases += 1;
        if judge.difference(&case).await.is_some() {
            let case = shrink(&mut judge, case).await;
            let why = judge.difference(&case).await;
            panic!(
                "after {cases} cases: {case:?}\n{}\n{}",
                case.input.escape_ascii(),
                why.unwrap()
            );
        }
    }
    eprintln!("compared {cases} cases");
    assert!(cases > 0);
}

/// Returns a smaller case in which pgspate and COPY still differ.
async fn shrink(judge: &mut CopyJudge, mut case: DelimitedCase) -> DelimitedCase {
    let mut width = case.input.len();
    while width > 0 {
        let mut at = 0;
        while at < case.input.len() {
            let mut smaller = case.clone();
            smaller.input.drain(at..(at + width).min(case.input.len()));
            if judge.difference(&smaller).await.is_some() {
                case = smaller;
            } else {
                at += width;
            }
        }
        width /= 2;
    }
    let plainer: [fn(&mut DelimitedCase); 5] = [
        |case| case.chunk_bytes = 1 << 20,
        |case| case.fill_bytes = 1 << 20,
        |case| case.header = false,
        |case| (case.force_null, case.force_not_null) = (0, 0),
        |case| case.has_number = false,
    ];
    for change in plainer {
        let mut smaller = case.clone();
        change(&mut smaller);
        if judge.difference(&smaller).await.is_some() {
            case = smaller;
        }
    }
    case
}
