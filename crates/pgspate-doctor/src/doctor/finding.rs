//! What a check has found: a verdict, its numbers, and what to do.

use std::collections::BTreeMap;

use serde::Serialize;

/// How bad it is; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It costs a lot, or data is in danger.
    Warning,
    /// It costs something.
    Note,
    /// The role or the server does not let it be seen.
    CannotSee,
    /// Nothing is wrong.
    Ok,
}

impl Verdict {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Warning => "warning",
            Verdict::Note => "note",
            Verdict::CannotSee => "cannot see",
            Verdict::Ok => "ok",
        }
    }
}

/// What a check asks, and by which rule it judges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// Its name: `dead-rows`.
    pub id: &'static str,
    /// What it wants to know.
    pub question: &'static str,
    /// Where its rule is from.
    pub rule: &'static str,
}

/// What a check has found, about one thing.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The check's name.
    pub id: &'static str,
    /// What it wanted to know.
    pub question: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// The table, index or setting that it is about, as SQL writes it.
    pub object: Option<String>,
    /// What was seen, in words.
    pub evidence: String,
    /// What was seen, in numbers.
    pub numbers: BTreeMap<&'static str, f64>,
    /// What to do, in words.
    pub advice: Option<String>,
    /// What to run, to set or to change, each on its own.
    pub remedy: Vec<String>,
    /// Where the rule is from.
    pub rule: &'static str,
    /// Said although nothing is wrong, as it was asked for.
    #[serde(skip)]
    pub is_told: bool,
    /// How much it costs, among findings of the same verdict: bytes as a rule.
    #[serde(skip)]
    pub(super) weight: f64,
}

impl Check {
    fn finds(&self, verdict: Verdict, evidence: impl Into<String>) -> Finding {
        Finding {
            id: self.id,
            question: self.question,
            verdict,
            object: None,
            evidence: evidence.into(),
            numbers: BTreeMap::new(),
            advice: None,
            remedy: Vec::new(),
            rule: self.rule,
            is_told: false,
            weight: 0.0,
        }
    }

    /// Nothing is wrong.
    pub(super) fn ok(&self, evidence: impl Into<String>) -> Finding {
        self.finds(Verdict::Ok, evidence)
    }

    /// What was found, or that nothing is wrong.
    pub(super) fn found(
        &self,
        found: impl IntoIterator<Item = Finding>,
        nothing: impl Into<String>,
    ) -> Vec<Finding> {
        let found: Vec<_> = found.into_iter().collect();
        if found.is_empty() { vec![self.ok(nothing)] } else { found }
    }

    /// It costs something.
    pub(super) fn note(&self, evidence: impl Into<String>) -> Finding {
        self.finds(Verdict::Note, evidence)
    }

    /// It costs a lot, or data is in danger.
    pub(super) fn warning(&self, evidence: impl Into<String>) -> Finding {
        self.finds(Verdict::Warning, evidence)
    }

    /// A note, or a warning where it is worse.
    pub(super) fn worse(&self, is_worse: bool, evidence: impl Into<String>) -> Finding {
        self.finds(if is_worse { Verdict::Warning } else { Verdict::Note }, evidence)
    }

    /// It cannot be seen, for this reason.
    pub(super) fn cannot_see(&self, why: impl Into<String>) -> Finding {
        self.finds(Verdict::CannotSee, why)
    }

    /// Tables, each with whether the role may read it, that could not be judged for want of their
    /// columns' statistics: there are none, or they are not shown to this role.
    pub(super) fn without_statistics(&self, role: &str, tables: &[(String, bool)]) -> Vec<Finding> {
        let role = pgspate_target::quote_ident(role);
        let finding = |is_readable: bool, why: &str| {
            let mine = tables.iter().filter(|(_, readable)| *readable == is_readable);
            let mut names: Vec<&str> = mine.map(|(name, _)| name.as_str()).collect();
            names.dedup();
            let first = *names.first()?;
            let more = match names.len() {
                1 => String::new(),
                len => format!(" and {} more", len - 1),
            };
            let finding = self.cannot_see(format!("{why} {first}{more}"));
            Some(match is_readable {
                true => finding.run(format!("analyze {first};")),
                false => finding.run(format!("grant select on {first} to {role};")),
            })
        };
        let never = finding(true, "there are no statistics of");
        let closed = finding(false, "this role does not see the statistics of");
        never.into_iter().chain(closed).collect()
    }
}

impl Finding {
    /// What it is about.
    pub(super) fn on(mut self, object: impl Into<String>) -> Finding {
        self.object = Some(object.into());
        self
    }

    /// A number of the evidence.
    pub(super) fn number(mut self, name: &'static str, value: impl Into<f64>) -> Finding {
        self.numbers.insert(name, value.into());
        self
    }

    /// A count of the evidence.
    pub(super) fn count(self, name: &'static str, value: u64) -> Finding {
        self.number(name, value as f64)
    }

    /// What to do, in words.
    pub(super) fn advice(mut self, advice: impl Into<String>) -> Finding {
        self.advice = Some(advice.into());
        self
    }

    /// What to run.
    pub(super) fn run(mut self, sql: impl Into<String>) -> Finding {
        self.remedy.push(sql.into());
        self
    }

    /// How much it costs among others of its verdict.
    pub(super) fn weighs(mut self, weight: f64) -> Finding {
        self.weight = weight;
        self
    }

    /// Said although nothing is wrong.
    pub(super) fn told(mut self) -> Finding {
        self.is_told = true;
        self
    }

    /// Whether something should be done.
    pub fn is_trouble(&self) -> bool {
        self.verdict <= Verdict::Note
    }
}
