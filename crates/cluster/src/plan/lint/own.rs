//! This project's library: only the limits that it declares.

use expertrail_core::{CoreError, Shape};

use super::super::document::Level;
use super::super::request::{Mode, Request, Sizes};
use super::Rules;

const REFUSE: Level = Level::Refuse;
/// `MAX_RANKS` of crates/cuda.
const RANKS: usize = 72;
/// `MAX_EXPERTS` of crates/cuda.
const EXPERTS: usize = 4096;
/// `MAX_BLOCKS` of crates/cuda.
const SMS: usize = 160;

pub(super) fn lint(request: &Request, sizes: &Sizes, rules: &mut Rules) {
    let ranks = request.ranks();
    let shape = Shape {
        max_tokens: request.tokens,
        hidden: request.hidden,
        top_k: request.top_k,
        experts: request.experts,
    };
    let says = |result: Result<(), CoreError>| result.err().map(|error| error.to_string());
    let broken = says(shape.check(request.fp8));
    rules.want(("L070", REFUSE), broken.is_none(), broken.unwrap_or_default(), "change the shape");
    let broken = says(shape.check_rows(ranks));
    rules.want(("L071", REFUSE), broken.is_none(), broken.unwrap_or_default(), "send fewer tokens in a call");
    rules.want(
        ("L072", REFUSE),
        request.nodes == 1 && ranks <= RANKS,
        format!(
            "{} nodes, {ranks} ranks: this version moves rows of GPUs inside one NVLink domain of one host, at most \
             {RANKS} ranks; figures between nodes are the model's",
            request.nodes
        ),
        "plan one node, or another engine",
    );
    rules.want(
        ("L073", REFUSE),
        request.experts <= EXPERTS,
        format!("{} experts > {EXPERTS}", request.experts),
        "use fewer experts",
    );
    if let Some(sms) = request.settings.sms {
        let most = request.links.device_sms.map_or(SMS, |device| SMS.min(device as usize));
        rules.want(
            ("L074", REFUSE),
            (1..=most).contains(&sms),
            format!("{sms} SMs; 1 to {most} wanted, one block for each"),
            "give fewer SMs",
        );
    }
    rules.want(
        ("L075", REFUSE),
        request.mode == Mode::Ht,
        "LL mode is not built yet; its figures are the model's".to_owned(),
        "plan --mode ht, or --engine deepep-v1",
    );
    let most = sizes.placement.most_local_experts();
    rules.want(
        ("L091", Level::Note),
        request.experts.is_multiple_of(ranks),
        format!("{} experts over {ranks} ranks: some have {most}, others {}", request.experts, most - 1),
        "allowed; the ranks with more get more rows",
    );
}
