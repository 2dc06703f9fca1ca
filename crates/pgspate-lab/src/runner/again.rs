//! Trials that were left out before, asked for again.
//!
//! Asking takes a server with nothing in it. What trials begin with is made only if there is one
//! that can be made now.

use std::collections::HashMap;
use std::sync::Arc;

use pgspate::Result;
use pgspate_embedded::Step;

use super::{Course, Event, Place, describe};
use crate::experiment::Trial;
use crate::ground::{Ground, Shared};
use crate::own::Own;
use crate::results::Line;

impl Course<'_> {
    /// Without those that are refused as they were before, if all of them were left out and servers
    /// are the lab's own. `before` trials have had their turn.
    pub(super) fn not_refused<'t>(
        &mut self,
        shared: &Arc<Shared>,
        left: Vec<&'t (u32, Trial)>,
        known: &[&Line],
        before: usize,
    ) -> Result<Vec<&'t (u32, Trial)>> {
        let Place::Own(installation) = self.place else { return Ok(left) };
        let old = |(repeat, trial): &(u32, Trial)| {
            known.iter().find(|old| old.repeat == *repeat && old.trial == *trial).copied()
        };
        let Some(olds) = left.iter().map(|it| old(it)).collect::<Option<Vec<&Line>>>() else {
            return Ok(left);
        };
        let show = self.show;
        let own = Own::start(installation, &|step: &Step| show(&Event::Server(step)))?;
        let ground = Ground::on_own(shared, own.base())?;
        let connection = ground.connect()?;
        let (experiment, of) = (self.plan.experiment, self.plan.all.len());
        let mut reasons: HashMap<&Trial, Option<String>> = HashMap::new();
        let (mut rest, mut nth) = (Vec::new(), before);
        for (one, old) in left.into_iter().zip(olds) {
            ground.check()?;
            let (repeat, trial) = one;
            let asked = reasons.entry(trial).or_insert_with(|| experiment.refusal(trial, &ground));
            let Some(reason) = asked.clone() else {
                rest.push(one);
                continue;
            };
            nth += 1;
            let (experiment, label) = (experiment.name(), trial.label());
            show(&Event::Trial { experiment, label: &label, nth, of, left: None });
            let mut line = self.line(trial, *repeat);
            describe(&ground, &connection, &mut line)?;
            line.skipped = Some(reason);
            self.add(&line, Some(old))?;
            show(&Event::Measured { line: &line });
        }
        Ok(rest)
    }
}
