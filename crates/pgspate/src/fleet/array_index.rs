//! The index and the size of a job array, from the variables that its scheduler sets.

use pgspate_target::ledger::ArrayExtent;

use crate::{Error, ErrorKind, Result};

/// The environment variables that a scheduler of job arrays sets.
struct ArrayVariables {
    scheduler: &'static str,
    index: &'static str,
    /// The number of jobs; empty if the scheduler does not set it.
    size: &'static str,
    /// The first index; empty if the first index is 0.
    first: &'static str,
    /// The last index; empty if the indexes have no gaps.
    last: &'static str,
}

const SCHEDULERS: [ArrayVariables; 4] = [
    ArrayVariables {
        scheduler: "AWS Batch",
        index: "AWS_BATCH_JOB_ARRAY_INDEX",
        size: "AWS_BATCH_JOB_ARRAY_SIZE",
        first: "",
        last: "",
    },
    ArrayVariables {
        scheduler: "Kubernetes",
        index: "JOB_COMPLETION_INDEX",
        size: "",
        first: "",
        last: "",
    },
    ArrayVariables {
        scheduler: "Cloud Run",
        index: "CLOUD_RUN_TASK_INDEX",
        size: "CLOUD_RUN_TASK_COUNT",
        first: "",
        last: "",
    },
    ArrayVariables {
        scheduler: "Slurm",
        index: "SLURM_ARRAY_TASK_ID",
        size: "SLURM_ARRAY_TASK_COUNT",
        first: "SLURM_ARRAY_TASK_MIN",
        last: "SLURM_ARRAY_TASK_MAX",
    },
];

/// A process's place in a job array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArrayPlace {
    pub(super) index: i32,
    /// The index of the first job.
    pub(super) first: i32,
    /// The number of indexes from the first to the last, if the scheduler sets it.
    pub(super) size: Option<i32>,
    /// Which members the array has.
    pub(super) extent: ArrayExtent,
}

/// Reads the process's place in its array. `variable` returns the value of an environment variable.
///
/// # Errors
/// [`ErrorKind::Usage`] if no scheduler has set an index, or if a variable is not a number.
pub(super) fn read_array_place(variable: impl Fn(&str) -> Option<String>) -> Result<ArrayPlace> {
    let Some(names) = SCHEDULERS.iter().find(|it| variable(it.index).is_some()) else {
        let known: Vec<_> =
            SCHEDULERS.iter().map(|it| format!("{} ({})", it.index, it.scheduler)).collect();
        let message = "no environment variable has the member's index";
        return Err(Error::new(ErrorKind::Usage, message).hint(format!(
            "Give the index with `--member I`. `--member auto` reads {}.",
            known.join(", ")
        )));
    };
    let number = |name: &str| -> Result<Option<i32>> {
        let Some(value) = Some(name).filter(|it| !it.is_empty()).and_then(&variable) else {
            return Ok(None);
        };
        let number = value.trim().parse().ok().filter(|number| *number >= 0);
        let message = || format!("environment variable {name} is \"{value}\", expected a number");
        number.map(Some).ok_or_else(|| Error::new(ErrorKind::Usage, message()))
    };
    let index = number(names.index)?.unwrap_or_default();
    let (size, first, last) = (number(names.size)?, number(names.first)?, number(names.last)?);
    let first = first.unwrap_or(0);
    // No scheduler but Slurm sets the last index.
    let (Some(count), Some(last)) = (size, last) else {
        return Ok(ArrayPlace { index, first, size, extent: ArrayExtent::All });
    };
    let span = last.saturating_sub(first).saturating_add(1);
    let extent = if count == span { ArrayExtent::AllOrSome } else { ArrayExtent::Some };
    Ok(ArrayPlace { index, first, size: Some(span), extent })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(variables: &[(&str, &str)]) -> Result<ArrayPlace> {
        read_array_place(|name| {
            variables.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_engine_s_variables_are_read() {
        let from_zero =
            |index, size| ArrayPlace { index, first: 0, size, extent: ArrayExtent::All };
        let batch = [("AWS_BATCH_JOB_ARRAY_INDEX", "2"), ("AWS_BATCH_JOB_ARRAY_SIZE", "300")];
        assert_eq!(place(&batch).unwrap(), from_zero(2, Some(300)));
        assert_eq!(place(&batch[..1]).unwrap(), from_zero(2, None));
        assert_eq!(place(&[("JOB_COMPLETION_INDEX", "0")]).unwrap(), from_zero(0, None));
        let cloud_run = [("CLOUD_RUN_TASK_INDEX", "9"), ("CLOUD_RUN_TASK_COUNT", "10")];
        assert_eq!(place(&cloud_run).unwrap(), from_zero(9, Some(10)));
        let mut slurm = [
            ("SLURM_ARRAY_TASK_ID", "7"),
            ("SLURM_ARRAY_TASK_COUNT", "100"),
            ("SLURM_ARRAY_TASK_MIN", "1"),
            ("SLURM_ARRAY_TASK_MAX", "100"),
        ];
        let slurm_place = |extent| ArrayPlace { index: 7, first: 1, size: Some(100), extent };
        assert_eq!(place(&slurm).unwrap(), slurm_place(ArrayExtent::AllOrSome));
        slurm[1].1 = "50";
        assert_eq!(place(&slurm).unwrap(), slurm_place(ArrayExtent::Some));
    }

    #[test]
    fn a_missing_or_wrong_index_is_refused() {
        let hint = place(&[]).unwrap_err().hint_text().unwrap().to_owned();
        assert!(hint.contains("SLURM_ARRAY_TASK_ID (Slurm)"), "{hint}");
        let error = place(&[("JOB_COMPLETION_INDEX", "x")]).unwrap_err();
        assert!(error.to_string().contains("is \"x\", expected a number"), "{error}");
    }
}
