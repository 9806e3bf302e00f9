//! How to submit, watch and cancel by hand.

use std::fmt::Write;

use super::container::enroot;
use super::minutes;
use crate::engine::quote;
use crate::render::script::headline;
use crate::run::Run;
use crate::spec::Engine;

/// The page.
pub(super) fn text(run: &Run) -> String {
    let id = &run.id;
    let place = match &run.slurm.directory {
        Some(directory) => format!(
            "The files of this directory must lie in {directory} (slurm.directory), which all nodes share:\n\n    mkdir -p {0} && cp -r . {0}\n    \
             cd {0}\n",
            quote(directory)
        ),
        None => "This directory must be on a file system that all nodes share: the job reads it and writes into it on every node. Copy it\n\
                 there first where it is not.\n"
            .to_owned(),
    };
    let mut text = format!(
        "{}\nAt most {}.\n\n{place}\nSubmit     sbatch run.sbatch\nWatch      squeue --name={id}\n           tail -F {id}-JOB.log job-JOB/logs/{step}-{of}0.log\n\
         Why not    squeue --name={id} --Format=JobID,State,ReasonList\n           sinfo -R\nCancel     scancel --name={id} --user=$USER\nAfterwards sacct --name={id} --format=JobID,JobName,State,ExitCode,Elapsed,NodeList\n           \
         expertrail diagnose job-JOB/logs     where it failed\n           expertrail judge job-JOB/result-*.json     where it passed\n\n\
         Or all of it at once: expertrail launch .\n\n\
         Outputs, job-JOB/ (JOB is the job's number)\n  logs/STEP-rankN.log    what rank N printed (STEP-nodeN.log where a process stands for a node)\n  \
         exit/rank-N.json       how it ended (exit/STEP/ where there are several steps)\n  facts/, findings/      the preflight of each node\n  result-*.json          results of rank 0\n\
         The batch log, {id}-JOB.log, has a line for each step; the job ends with the first failing step's exit code.\n",
        headline(run),
        minutes(run.timeout_s),
        step = run.steps.first().map_or("", |step| step.name.as_str()),
        of = if run.steps.first().is_some_and(|step| step.contract == crate::spec::Contract::Nodes) {
            "node"
        } else {
            "rank"
        },
    );
    match (&run.slurm.container_image, &run.image) {
        (Some(image), _) => {
            let _ = write!(
                text,
                "\nImage: {image}. Import it once, on a node: many ranks that pull at the same time are slow and may be refused by the registry:\n\n    \
                 enroot import -o IMAGE.sqsh docker://REGISTRY#REPOSITORY/IMAGE:TAG\n\nand set slurm.container_image to the path of the file, which \
                 every node must see.\n"
            );
        }
        (None, Some(image)) if run.engine != Engine::Expertrail => {
            let _ = write!(
                text,
                "\nNo slurm.container_image is set: the steps run on the bare hosts, where your program must be installed. To run them in\n\
                 {image}, where Pyxis is installed:\n\n    enroot import -o {id}.sqsh {}\n\nand set slurm.container_image to the path of the file.\n",
                quote(&enroot(image))
            );
        }
        _ => {}
    }
    if !run.notes.is_empty() {
        text.push_str("\nNotes\n");
        for note in &run.notes {
            let _ = writeln!(text, "- {note}");
        }
    }
    text
}
