//! Settings of the GPU Operator: the driver's parameters and its custom resource.

use super::finding::Sink;
use super::objects::Object;
use super::tree::Value;

pub(crate) fn check(objects: &[Object<'_>], sink: &mut Sink<'_>) {
    let maps: Vec<&Object<'_>> = objects
        .iter()
        .filter(|object| object.kind() == "ConfigMap" && parameters(object).is_some())
        .collect();
    for map in &maps {
        parameters_of(map, sink);
    }
    for driver in objects.iter().filter(|object| object.kind() == "NVIDIADriver") {
        resource(driver, &maps, sink);
    }
}

/// The entry of a ConfigMap that has parameters of the NVIDIA module.
fn parameters<'o>(object: &Object<'o>) -> Option<&'o super::tree::Entry> {
    let data = object.value.get("data")?;
    data.entries().iter().find(|entry| {
        entry.key == "nvidia.conf" || entry.value.text().is_some_and(|text| text.contains("NVreg_"))
    })
}

fn parameters_of(map: &Object<'_>, sink: &mut Sink<'_>) {
    let Some(entry) = parameters(map) else { return };
    if entry.key != "nvidia.conf" {
        sink.add(
            "N140",
            map.at(entry.line),
            format!("the key is {}; the driver container reads nvidia.conf", entry.key),
        )
        .fix("nvidia.conf: |");
    }
    let text = entry.value.text().unwrap_or_default();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with('#')).collect();
    let stream = lines.iter().any(|line| line.replace(' ', "") == "NVreg_EnableStreamMemOPs=1");
    let peer = lines.iter().any(|line| {
        line.split_once('=').is_some_and(|(key, value)| {
            key.trim() == "NVreg_RegistryDwords"
                && value
                    .trim_matches([' ', '"', '\''])
                    .split(';')
                    .any(|pair| pair.trim() == "PeerMappingOverride=1")
        })
    });
    let missing: Vec<&str> =
        [(stream, "NVreg_EnableStreamMemOPs=1"), (peer, "NVreg_RegistryDwords=\"PeerMappingOverride=1\"")]
            .into_iter()
            .filter_map(|(there, line)| (!there).then_some(line))
            .collect();
    if !missing.is_empty() {
        let options = lines.iter().any(|line| line.starts_with("options "));
        let why = if options { " (lines of this file have no `options nvidia`)" } else { "" };
        sink.add("N141", map.at(entry.line), format!("{} is missing{why}", missing.join(" and ")))
            .fix(missing.join("\n"));
    }
}

fn resource(driver: &Object<'_>, maps: &[&Object<'_>], sink: &mut Sink<'_>) {
    let Some(spec) = driver.value.get("spec") else { return };
    let on = |key: &str| spec.get(key).is_some_and(|part| part.flag_at("enabled"));
    let named = spec.path(&["kernelModuleConfig", "name"]).and_then(Value::text);
    let mut missing = Vec::new();
    if !on("gdrcopy") {
        missing.push("gdrcopy: {enabled: true, ...}");
    }
    if !on("rdma") {
        missing.push("rdma: {enabled: true}");
    }
    if named.is_none() {
        missing.push("kernelModuleConfig: {name: ...}");
    }
    let line = driver.value.line_of("spec");
    if !missing.is_empty() {
        sink.add(
            "N142",
            driver.at(line),
            format!("NVIDIADriver {} lacks {}", driver.name(), missing.join(", ")),
        )
        .fix(missing.join("\n"));
    }
    if let (Some(named), Some(map)) = (named, maps.first())
        && !maps.iter().any(|map| map.name() == named)
    {
        let line = spec.get("kernelModuleConfig").map_or(line, |part| part.line_of("name"));
        sink.add(
            "N143",
            driver.at(line),
            format!("kernelModuleConfig names {named}; the ConfigMap here is {}", map.name()),
        )
        .fix(format!("name: {}", map.name()));
    }
    for map in maps {
        let (own, other) = (map.namespace().unwrap_or_default(), "nvidia-gpu-operator");
        if own != other {
            let line = map.value.get("metadata").map_or(1, |m| m.line_of("namespace"));
            sink.add("N143", map.at(line), format!("the ConfigMap {} is in namespace `{own}`", map.name()))
                .fix(format!("namespace: {other}"));
        }
    }
}
