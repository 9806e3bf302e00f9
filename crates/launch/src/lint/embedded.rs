//! Scripts that lie in a `ConfigMap`: pods start them, and what is wrong in them is as wrong as in a file of its own.

use super::objects::Object;
use super::scripts;
use super::tree::Value;
use super::unit::{Kind, Unit};

/// Launches of the scripts in the `ConfigMap`s among `objects`. Those of a `ConfigMap` that a pod of `units` mounts run on its nodes.
pub(crate) fn units<'a>(objects: &[Object<'a>], units: &[Unit<'a>]) -> Vec<Unit<'a>> {
    let mut found = Vec::new();
    for map in objects.iter().filter(|object| object.kind() == "ConfigMap") {
        let user = units.iter().find(|unit| mounts(unit, map));
        for entry in map.value.get("data").map(Value::entries).unwrap_or_default() {
            let Some(text) = entry.value.text().filter(|text| is_script(&entry.key, text)) else { continue };
            let mut unit = scripts::unit_at(map.file, &text, entry.value.line);
            unit.line = entry.line;
            if let Some(user) = user {
                // Figures have places of their own; a batch script's own come first.
                unit.nodes = unit.nodes.take().or_else(|| user.nodes.clone());
                unit.gpus = unit.gpus.take().or_else(|| user.gpus.clone());
            }
            // The pod's variables reach it, and are judged where they are set.
            unit.open |= unit.kind != Kind::Batch;
            found.push(unit);
        }
    }
    found
}

/// Whether it is a shell's text: by its first line, or else by its name.
fn is_script(name: &str, text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    if let Some(interpreter) = first.strip_prefix("#!") {
        let words = interpreter.split(|c: char| c == '/' || c.is_whitespace());
        return words.into_iter().any(|word| matches!(word, "sh" | "bash" | "dash"));
    }
    [".sh", ".bash", ".sbatch"].iter().any(|end| name.ends_with(end))
}

/// Whether a pod of `unit` has a volume of the `ConfigMap`.
fn mounts(unit: &Unit<'_>, map: &Object<'_>) -> bool {
    let (name, namespace) = (map.name(), map.namespace());
    if name.is_empty() || namespace.is_some() && unit.namespace.is_some() && namespace != unit.namespace {
        return false;
    }
    unit.pods.iter().any(|pod| {
        let volumes = pod.spec.get("volumes").map(Value::items).unwrap_or_default();
        volumes.iter().any(|volume| {
            let projected = volume.path(&["projected", "sources"]).map(Value::items).unwrap_or_default();
            std::iter::once(volume)
                .chain(projected)
                .filter_map(|source| source.get("configMap")?.text_at("name"))
                .any(|named| named == name)
        })
    })
}
