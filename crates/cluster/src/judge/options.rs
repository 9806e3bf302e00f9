//! Options that say something else than the log: what the log says holds.

use super::causes::IGNORED;
use super::evidence::{At, finding};
use super::model::Kind;
use super::weigh::Known;
use crate::finding::Finding;

/// A remark for each option that had no effect because the output says something else.
pub(super) fn contradictions(known: &Known<'_>) -> Vec<Finding> {
    let (run, given) = (known.run, known.options);
    let mut all = Vec::new();
    let mut say = |option: &str, given: &str, said: &str| {
        let mut note = finding("J026")
            .about(option.to_owned())
            .unknown(format!("{given} is given, and the output says {said}: that holds"))
            .advisory();
        note.cause = Some(IGNORED.id.to_owned());
        IGNORED.text.clone_into(&mut note.why);
        all.push(note.line(&run.place));
    };
    if let (Some(option), Some(said)) = (&given.gpu, &run.gpu)
        && !option.eq_ignore_ascii_case(&said.text)
    {
        say("--gpu", option, &said.text);
    }
    if let Some(engine) = &given.engine
        && matches!(run.kind, Kind::Expertrail | Kind::Alltoall | Kind::Guide)
    {
        say("--engine", engine, &format!("it is of the {}", run.kind.label()));
    }
    let section = run.figures.first().map_or_else(Default::default, |figure| figure.section);
    let settings = known.settings(section);
    for (option, given, said) in [
        ("--nodes", given.nodes, settings.nodes),
        ("--ranks-per-node", given.ranks_per_node, settings.ranks_per_node),
        ("--tokens", given.tokens, settings.tokens),
        ("--hidden", given.hidden, settings.hidden),
        ("--top-k", given.top_k, settings.top_k),
        ("--experts", given.experts, settings.experts),
    ] {
        if let (Some(given), Some(said)) = (given, said)
            && given != said
        {
            say(option, &given.to_string(), &said.to_string());
        }
    }
    all
}
