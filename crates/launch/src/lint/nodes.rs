//! Which nodes a launch is for, as far as it says so itself.

use expertrail_cluster::profile::{self, Profile};

use super::finding::At;
use super::unit::Unit;

/// GPU products that providers' documents know.
const PRODUCTS: &[&str] = &["gb300", "gb200", "b300", "b200", "h200", "h100"];

/// What a launch says of its nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    /// Product that the image is named for, and the image's place.
    pub(crate) image: Option<(&'static str, At)>,
    /// Product that the pods are sent to, and the place.
    pub(crate) selector: Option<(&'static str, At)>,
    /// Instance type, and the place.
    pub(crate) instance: Option<(String, At)>,
    /// Profile of the nodes.
    pub(crate) profile: Option<Profile>,
    /// The provider is known and not only the product.
    pub(crate) certain: bool,
}

/// The product in a text such as an image's tag or a label's value.
pub(crate) fn product(text: &str) -> Option<&'static str> {
    let lower = text.to_ascii_lowercase();
    let mut words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    words.find_map(|word| PRODUCTS.iter().copied().find(|product| *product == word))
}

/// The nodes of `unit`; `given` is what the user said.
pub(crate) fn of(unit: &Unit<'_>, given: Option<&Profile>) -> Nodes {
    let mut nodes = Nodes::default();
    let mut crusoe = false;
    for pod in &unit.pods {
        if let Some(image) = pod.container.text_at("image") {
            crusoe |= image.contains("crusoe");
            if let Some(product) = product(&image) {
                nodes.image = nodes.image.or(Some((product, unit.at(pod.container.line_of("image")))));
            }
        }
        for (key, value, line) in selectors(pod.spec) {
            let at = unit.at(line);
            if key == "nvidia.com/gpu.product" {
                nodes.selector = nodes.selector.or(product(&value).map(|product| (product, at)));
            } else if key.ends_with("/instance-type") && !value.contains('$') {
                nodes.instance.get_or_insert((value, at));
            }
        }
        let volumes = pod.spec.get("volumes");
        crusoe |= volumes.is_some_and(|all| {
            let path = |volume: &super::tree::Value| volume.get("hostPath")?.text_at("path");
            all.items().iter().filter_map(path).any(|path| path.starts_with("/etc/crusoe"))
        });
    }
    let topo = unit.value("NCCL_TOPO_FILE");
    crusoe |= topo.is_some_and(|file| file.starts_with("/etc/crusoe"));
    if let Some(profile) = given {
        nodes.profile = Some(profile.clone());
        nodes.certain = true;
        return nodes;
    }
    if let Some((instance, _)) = &nodes.instance {
        let family = instance.split('.').next().unwrap_or_default();
        nodes.profile = profile::get(&format!("aws-{family}")).ok();
        nodes.certain = nodes.profile.is_some();
    }
    let product = nodes.selector.or(nodes.image).map(|(product, _)| product);
    let product = product.or_else(|| topo.and_then(product_of_file));
    if let (None, Some(product)) = (&nodes.profile, product) {
        nodes.profile = profile::get(&format!("crusoe-{product}")).ok();
        nodes.certain = crusoe && nodes.profile.is_some();
    }
    nodes
}

fn product_of_file(path: &str) -> Option<&'static str> {
    product(path.rsplit('/').next().unwrap_or_default())
}

/// Labels that a pod asks of its node: selector and required affinity, with lines.
pub(crate) fn selectors(spec: &super::tree::Value) -> Vec<(String, String, usize)> {
    let mut all = Vec::new();
    for entry in spec.get("nodeSelector").map(super::tree::Value::entries).unwrap_or_default() {
        all.extend(entry.value.text().map(|value| (entry.key.clone(), value, entry.line)));
    }
    let terms = spec.path(&[
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ]);
    for term in terms.map(super::tree::Value::items).unwrap_or_default() {
        for rule in term.get("matchExpressions").map(super::tree::Value::items).unwrap_or_default() {
            if rule.text_at("operator").as_deref() != Some("In") {
                continue;
            }
            let Some(key) = rule.text_at("key") else { continue };
            for value in rule.get("values").map(super::tree::Value::items).unwrap_or_default() {
                all.extend(value.text().map(|text| (key.clone(), text, value.line)));
            }
        }
    }
    all
}

/// First rail number of a profile: the offset that ranks add to their local number.
pub(crate) fn offset(profile: &Profile) -> Option<u64> {
    Some(super::unit::numbered(profile.rails.first()?)?.1)
}
