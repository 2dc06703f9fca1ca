//! Trials that an earlier run skipped, checked again.
//!
//! An empty server is enough for this check. The starting state is made only if a trial can run
//! now.

use std::collections::HashMap;
use std::sync::Arc;

use pgspate::Result;
use pgspate_embedded::ServerStep;

use super::{ExperimentRun, LabEvent, TrialPlace, describe};
use crate::context::{SharedByTrials, TrialContext};
use crate::experiment::LabTrial;
use crate::lab_server::LabServer;
use crate::results::ResultLine;

impl ExperimentRun<'_> {
    /// Records the trials of `left` that cannot run now either, and returns the others. Returns
    /// all of `left` if a trial in it was not skipped before, or if the server is not the lab's
    /// own. `before` trials have been done already.
    pub(super) fn skip_refused<'t>(
        &mut self,
        shared: &Arc<SharedByTrials>,
        left: Vec<&'t (u32, LabTrial)>,
        known: &[&ResultLine],
        before: usize,
    ) -> Result<Vec<&'t (u32, LabTrial)>> {
        let TrialPlace::LabServer(installation) = self.place else { return Ok(left) };
        let old = |(repeat, trial): &(u32, LabTrial)| {
            known.iter().find(|old| old.repeat == *repeat && old.trial == *trial).copied()
        };
        let Some(olds) = left.iter().map(|it| old(it)).collect::<Option<Vec<&ResultLine>>>() else {
            return Ok(left);
        };
        let show = self.show;
        let own =
            LabServer::start(installation, &|step: &ServerStep| show(&LabEvent::Server(step)))?;
        let context = TrialContext::on_lab_server(shared, own.base())?;
        let connection = context.connect()?;
        let (experiment, of) = (self.plan.experiment, self.plan.all.len());
        let mut reasons: HashMap<&LabTrial, Option<String>> = HashMap::new();
        let (mut rest, mut nth) = (Vec::new(), before);
        for (one, old) in left.into_iter().zip(olds) {
            context.check()?;
            let (repeat, trial) = one;
            let asked = reasons.entry(trial).or_insert_with(|| experiment.refusal(trial, &context));
            let Some(reason) = asked.clone() else {
                rest.push(one);
                continue;
            };
            nth += 1;
            let (experiment, label) = (experiment.name(), trial.description());
            show(&LabEvent::TrialStarted { experiment, label: &label, nth, of, left: None });
            let mut line = self.line(trial, *repeat);
            describe(&context, &connection, &mut line)?;
            line.skipped = Some(reason);
            self.add(&line, Some(old))?;
            show(&LabEvent::Measured { line: &line });
        }
        Ok(rest)
    }
}
