//! Slurm by a stand-in for its programs.

use std::cell::RefCell;

use expertrail_launch::drive::command::{Answer, Call, Programs};
use expertrail_launch::drive::launch;
use expertrail_launch::drive::slurm::{Slurm, directories};
use expertrail_launch::drive::{DriveError, System};
use expertrail_launch::run::Target;

use crate::fake::{Silent, rendered_for};

/// A cluster on which somebody's job of the same name came between the look and the start.
#[derive(Default)]
struct Beaten {
    calls: RefCell<Vec<String>>,
    /// Working directories of the user's jobs.
    folders: String,
}

impl Programs for Beaten {
    fn call(&self, call: &Call<'_>) -> Result<Answer, DriveError> {
        self.calls.borrow_mut().push(format!("{} {}", call.program, call.args.join(" ")));
        let ok = |text: &str| Answer { code: Some(0), stdout: text.to_owned(), ..Answer::default() };
        let later = self.calls.borrow().iter().any(|line| line.starts_with("sbatch --parsable"));
        Ok(match (call.program, call.args.first()) {
            ("id", _) => ok("me\n"),
            ("squeue", _) if call.args.contains(&"--format=%Z") => ok(&self.folders),
            ("squeue", _) if later => ok("7 RUNNING\n"),
            ("sbatch", Some(&"--parsable")) => Answer {
                code: Some(1),
                stderr: "sbatch: error: QOSMaxSubmitJobPerUserLimit\n".to_owned(),
                ..Answer::default()
            },
            _ => ok(""),
        })
    }
}

/// What `sbatch` refused is no job of this launch: one of the same name is another's, and is not cancelled.
#[test]
fn a_job_that_slurm_refused_cancels_no_other() {
    let (_root, folder) = rendered_for(Target::Slurm);
    std::fs::write(folder.join("run.sbatch"), "#!/bin/bash\n").unwrap();
    let run = launch::read(&folder).unwrap();
    let programs = Beaten::default();
    let mut slurm = Slurm::new(&programs, &run, &folder);
    let mut shown = Silent::default();
    slurm.ready(&mut shown).unwrap();
    let error = slurm.start(&mut shown).unwrap_err();
    assert!(matches!(&error, DriveError::Refused(text) if text.contains("QOSMaxSubmit")), "{error}");
    slurm.clean(&mut shown).unwrap();
    let calls = programs.calls.borrow();
    assert!(!calls.iter().any(|call| call.starts_with("scancel")), "{calls:?}");
}

/// Runs are known by the directories that their jobs were submitted in, each once.
#[test]
fn runs_of_this_users_jobs() {
    let (root, folder) = rendered_for(Target::Slurm);
    let lines = format!("{0}\n{1}\n{0}\n", folder.display(), root.path().display());
    let programs = Beaten { folders: lines, ..Beaten::default() };
    assert_eq!(directories(&programs), Ok(vec![folder]));
}
