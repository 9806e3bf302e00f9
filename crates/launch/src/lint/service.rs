//! How pods find each other: Services, subdomains and the address of the first.

use super::finding::{At, Severity, Sink};
use super::objects::Object;
use super::unit::{Kind, Unit, decided};

pub(crate) fn check(unit: &Unit<'_>, objects: &[Object<'_>], sink: &mut Sink<'_>) {
    address(unit, sink);
    // Operators make the Services of their own kinds.
    let Some(doc) = unit.doc.filter(|doc| doc.text_at("kind").as_deref() == Some("Job")) else { return };
    let (Some(pod), true) = (unit.pods.first(), unit.across_nodes()) else { return };
    let services: Vec<Object<'_>> =
        objects.iter().copied().filter(|object| object.kind() == "Service").collect();
    let subdomain = pod.spec.text_at("subdomain");
    let line = doc.path(&["spec", "template"]).map_or(unit.line, |template| template.line_of("spec"));
    let Some(subdomain) = subdomain else {
        if services.is_empty() && addresses(unit).is_empty() {
            return;
        }
        let fix = services
            .first()
            .map_or("subdomain: NAME_OF_THE_SERVICE".to_owned(), |s| format!("subdomain: {}", s.name()));
        sink.add("N093", unit.at(line), "the pods have no subdomain, so that no pod has a name of its own")
            .fix(fix);
        return;
    };
    if !decided(&subdomain) {
        return;
    }
    let at = unit.at(pod.spec.line_of("subdomain"));
    let Some(service) = services.iter().find(|service| service.name() == subdomain) else {
        match services.first() {
            Some(other) => sink
                .add("N093", at, format!("subdomain is {subdomain} and the Service is {}", other.name()))
                .fix(format!("subdomain: {}", other.name())),
            None => sink
                .add("N090", at, format!("no Service {subdomain} is in these files"))
                .fix(format!("a Service {subdomain} with clusterIP: None; or lint its file as well")),
        };
        return;
    };
    if service.namespace() != unit.namespace {
        let (own, other) =
            (unit.namespace.clone().unwrap_or_default(), service.namespace().unwrap_or_default());
        let line = service.value.get("metadata").map_or(1, |m| m.line_of("namespace"));
        sink.add(
            "N095",
            service.at(line),
            format!("the Service is in namespace `{other}` and the pods in `{own}`"),
        )
        .fix(format!("namespace: {own}"));
    }
    let Some(spec) = service.value.get("spec") else { return };
    if spec.text_at("clusterIP").as_deref() != Some("None") {
        sink.add(
            "N091",
            service.at(spec.line_of("clusterIP")),
            format!("the Service {subdomain} has an address of its own"),
        )
        .fix("clusterIP: None");
    }
    if !spec.flag_at("publishNotReadyAddresses") {
        sink.add(
            "N092",
            service.at(spec.line_of("publishNotReadyAddresses")),
            format!("the Service {subdomain} does not publish pods that are not ready"),
        )
        .fix("publishNotReadyAddresses: true");
    }
    let labels = pod.template.path(&["metadata", "labels"]);
    for wanted in spec.get("selector").map(super::tree::Value::entries).unwrap_or_default() {
        let value = wanted.value.text().unwrap_or_default();
        // These are set by the Job's controller.
        let controllers = wanted.key.contains("job-name") || wanted.key.contains("controller-uid");
        let own = labels.and_then(|labels| labels.text_at(&wanted.key));
        if own.as_deref() != Some(value.as_str()) && decided(&value) && !controllers {
            let what = format!(
                "the Service selects {}: {value}, and the pods have {}",
                wanted.key,
                own.unwrap_or_else(|| "no such label".to_owned())
            );
            sink.add("N094", service.at(wanted.line), what).fix("the label of the pod template");
        }
    }
}

/// Addresses of the first rank that are written out, with their places.
fn addresses(unit: &Unit<'_>) -> Vec<(String, At)> {
    let settings = unit
        .settings
        .iter()
        .filter(|setting| setting.name == "MASTER_ADDR" && setting.decided)
        .map(|setting| (setting.value.clone(), setting.at));
    let options = unit.torchruns().filter_map(|(_, command)| {
        let word = command.option(&["--master_addr", "--rdzv_endpoint"])?;
        let host = word.text.rsplit_once(':').map_or(word.text.as_str(), |(host, _)| host);
        decided(host).then(|| (host.to_owned(), unit.at(word.line)))
    });
    settings.chain(options).collect()
}

fn address(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    if !unit.across_nodes() {
        return;
    }
    let nodes = unit.nodes.as_ref().map(|nodes| nodes.count);
    for (address, at) in addresses(unit) {
        if matches!(address.as_str(), "localhost" | "127.0.0.1" | "::1" | "0.0.0.0") {
            sink.add("N096", at, format!("the address of the first rank is {address}, on several nodes"))
                .fix("the name of the first node or pod");
            continue;
        }
        let job = unit.kind == Kind::Job && unit.pods.len() == 1;
        if !job || address.parse::<std::net::IpAddr>().is_ok() || unit.name.contains('$') {
            continue;
        }
        let Some(pod) = unit.pods.first() else { continue };
        let subdomain = pod.spec.text_at("subdomain").unwrap_or_default();
        if !decided(&subdomain) || subdomain.is_empty() {
            continue;
        }
        let parts: Vec<&str> = address.split('.').collect();
        let namespace = unit.namespace.as_deref();
        let right =
            format!("{}-0.{subdomain}.{}.svc.cluster.local", unit.name, namespace.unwrap_or("NAMESPACE"));
        let index = parts
            .first()
            .and_then(|host| host.strip_prefix(&format!("{}-", unit.name)))
            .and_then(|index| index.parse::<u64>().ok());
        let fault = match (index, parts.get(1), parts.get(2)) {
            (None, _, _) => Some(format!("pods of this Job are called {}-N", unit.name)),
            (Some(index), _, _) if nodes.is_some_and(|nodes| index >= nodes) => {
                Some(format!("there is no pod {index}"))
            }
            (_, None, _) => Some(format!("a pod's name ends in .{subdomain}")),
            (_, Some(part), _) if *part != subdomain => Some(format!("the pods' subdomain is {subdomain}")),
            (_, _, Some(part)) if namespace.is_some_and(|own| own != *part) => {
                Some(format!("the pods' namespace is {}", namespace.unwrap_or_default()))
            }
            _ => None,
        };
        if let Some(fault) = fault {
            sink.add("N096", at, format!("no pod has the name {address}: {fault}")).fix(right);
        } else if index.is_some_and(|index| index > 0) {
            sink.add("N096", at, format!("{address} is not the first pod")).weigh(Severity::Warn).fix(right);
        }
    }
}
