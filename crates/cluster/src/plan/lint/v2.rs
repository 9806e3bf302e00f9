//! DeepEP V2.

use super::super::document::Level;
use super::super::request::{Mode, Request};
use super::{Rules, experts_divide};

const REFUSE: Level = Level::Refuse;

pub(super) fn lint(request: &Request, rules: &mut Rules) {
    let (ranks, experts, hidden) = (request.ranks(), request.experts, request.hidden);
    rules.want(
        ("L050", REFUSE),
        request.mode == Mode::Ht,
        "ElasticBuffer has no low-latency mode; it stays in the legacy Buffer".to_owned(),
        "use --engine deepep-v1, or ht with few tokens",
    );
    experts_divide(request, rules);
    let local = experts.div_ceil(ranks);
    rules.want(
        ("L051", REFUSE),
        ranks <= 1024 && experts <= 2048 && local <= 256,
        format!("{ranks} ranks (at most 1024), {experts} experts (2048), {local} local experts (256)"),
        "use fewer of them",
    );
    let row = request.dtype().row_bytes(hidden);
    rules.want(
        ("L053", REFUSE),
        row.is_multiple_of(16) && hidden.is_multiple_of(256),
        format!(
            "a dispatched row of {row} bytes (a multiple of 16 wanted), combine's hidden {hidden} (of 256)"
        ),
        "pad the hidden size to a multiple of 256",
    );
    let Some(sms) = request.settings.sms else { return };
    let device = request.links.device_sms.map_or(usize::MAX, |sms| sms as usize);
    let most = if request.nodes > 1 { device.min(160) } else { device };
    rules.want(
        ("L054", REFUSE),
        sms <= most && sms > 0,
        format!("num_sms {sms}; 1 to {most} wanted"),
        "give fewer SMs",
    );
}
