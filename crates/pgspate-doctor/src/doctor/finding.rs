//! A check and its findings: a verdict, the evidence, and what to do.

use std::collections::BTreeMap;

use serde::Serialize;

/// How bad a finding is; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The problem slows writes a lot, or data is in danger.
    Warning,
    /// The problem slows writes somewhat.
    Note,
    /// The check could not be made: the role lacks a privilege, or the server does not count
    /// what the check needs.
    CannotSee,
    /// No problem was found.
    Ok,
}

impl Verdict {
    /// Returns the verdict as people read it.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Warning => "warning",
            Verdict::Note => "note",
            Verdict::CannotSee => "cannot see",
            Verdict::Ok => "ok",
        }
    }
}

/// A check: the question it asks, and the rule by which it judges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// The check's name, such as `dead-rows`.
    pub id: &'static str,
    /// The question that the check asks.
    pub question: &'static str,
    /// The rule, with its source.
    pub rule: &'static str,
}

/// What a check has found about one object.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The check's name.
    pub id: &'static str,
    /// The check's question.
    pub question: &'static str,
    /// How bad the finding is.
    pub verdict: Verdict,
    /// The table, index or setting that the finding is about, as SQL writes it.
    pub object: Option<String>,
    /// The evidence, in words.
    pub evidence: String,
    /// The evidence, in numbers.
    pub numbers: BTreeMap<&'static str, f64>,
    /// The advice: what the reader should do, in words.
    pub advice: Option<String>,
    /// Statements, commands or settings that help; each entry is complete.
    pub remedy: Vec<String>,
    /// The check's rule.
    pub rule: &'static str,
    /// Whether people are shown the finding even if the verdict is ok.
    #[serde(skip)]
    pub is_always_shown: bool,
    /// Sorts findings of the same verdict, the largest first; usually bytes.
    #[serde(skip)]
    pub(super) weight: f64,
}

impl Check {
    fn finding(&self, verdict: Verdict, evidence: impl Into<String>) -> Finding {
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
            is_always_shown: false,
            weight: 0.0,
        }
    }

    /// Returns a finding of a check that found no problem.
    pub(super) fn ok(&self, evidence: impl Into<String>) -> Finding {
        self.finding(Verdict::Ok, evidence)
    }

    /// Returns the findings; if there are none, one `ok` finding with the evidence `nothing`.
    pub(super) fn findings_or_ok(
        &self,
        found: impl IntoIterator<Item = Finding>,
        nothing: impl Into<String>,
    ) -> Vec<Finding> {
        let found: Vec<_> = found.into_iter().collect();
        if found.is_empty() { vec![self.ok(nothing)] } else { found }
    }

    /// Returns a note: something that slows writes somewhat.
    pub(super) fn note(&self, evidence: impl Into<String>) -> Finding {
        self.finding(Verdict::Note, evidence)
    }

    /// Returns a warning: something that slows writes a lot or endangers data.
    pub(super) fn warning(&self, evidence: impl Into<String>) -> Finding {
        self.finding(Verdict::Warning, evidence)
    }

    /// Returns a warning if `is_warning`, otherwise a note.
    pub(super) fn note_or_warning(&self, is_warning: bool, evidence: impl Into<String>) -> Finding {
        self.finding(if is_warning { Verdict::Warning } else { Verdict::Note }, evidence)
    }

    /// Returns a finding that the check could not be made, for the reason `why`.
    pub(super) fn cannot_see(&self, why: impl Into<String>) -> Finding {
        self.finding(Verdict::CannotSee, why)
    }

    /// Reports tables that could not be judged because their column statistics are missing or
    /// hidden. Each table comes with whether the role may read it: if it may, `analyze` helps, and
    /// otherwise a grant.
    pub(super) fn cannot_see_statistics(
        &self,
        role: &str,
        tables: &[(String, bool)],
    ) -> Vec<Finding> {
        let role = pgspate_target::quote_ident(role);
        let finding_about = |is_readable: bool, why: &str| {
            let chosen = tables.iter().filter(|(_, readable)| *readable == is_readable);
            let mut names: Vec<&str> = chosen.map(|(name, _)| name.as_str()).collect();
            names.dedup();
            let first = *names.first()?;
            let more = match names.len() {
                1 => String::new(),
                len => format!(" and {} more", len - 1),
            };
            let finding = self.cannot_see(format!("{why} {first}{more}"));
            Some(match is_readable {
                true => finding.remedy(format!("analyze {first};")),
                false => finding.remedy(format!("grant select on {first} to {role};")),
            })
        };
        let missing = finding_about(true, "there are no column statistics of");
        let hidden = finding_about(false, "this role cannot see the column statistics of");
        missing.into_iter().chain(hidden).collect()
    }
}

impl Finding {
    /// Names the object that the finding is about.
    pub(super) fn about(mut self, object: impl Into<String>) -> Finding {
        self.object = Some(object.into());
        self
    }

    /// Adds a number to the evidence.
    pub(super) fn number(mut self, name: &'static str, value: impl Into<f64>) -> Finding {
        self.numbers.insert(name, value.into());
        self
    }

    /// Adds a count to the evidence.
    pub(super) fn count(self, name: &'static str, value: u64) -> Finding {
        self.number(name, value as f64)
    }

    /// Sets what to do, in words.
    pub(super) fn advice(mut self, advice: impl Into<String>) -> Finding {
        self.advice = Some(advice.into());
        self
    }

    /// Adds a statement, command or setting that helps.
    pub(super) fn remedy(mut self, sql: impl Into<String>) -> Finding {
        self.remedy.push(sql.into());
        self
    }

    /// Sets the weight that sorts findings of the same verdict.
    pub(super) fn weight(mut self, weight: f64) -> Finding {
        self.weight = weight;
        self
    }

    /// Has the finding shown to people even if the verdict is ok.
    pub(super) fn always_shown(mut self) -> Finding {
        self.is_always_shown = true;
        self
    }

    /// Returns whether the finding is a note or a warning.
    pub fn is_problem(&self) -> bool {
        self.verdict <= Verdict::Note
    }
}
