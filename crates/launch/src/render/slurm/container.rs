//! The container of a step, by Pyxis.

use std::fmt::Write;

use crate::engine::quote;
use crate::run::Run;

/// The array `container` with Pyxis's options; nothing for bare hosts.
pub(super) fn arguments(run: &Run) -> String {
    let Some(image) = &run.slurm.container_image else { return String::new() };
    let mut text = "# Pyxis starts every step in the image. The run's directory, the outputs and the binary are mounted; of our own the image needs\n\
                    # nothing.\n\
                    mounts=$dir:/expertrail/run,$host_out:/expertrail/out,$host_binary:/expertrail/bin/expertrail:ro\n\
                    # Where Enroot hides the host's /dev (ENROOT_RESTRICT_DEV), GDRCopy and verbs need theirs.\n\
                    for device in /dev/gdrdrv /dev/infiniband; do\n    \
                    [ ! -e \"$device\" ] || mounts+=,$device:$device\n\
                    done\n"
        .to_owned();
    if let Some(folder) = &run.topo_mount {
        let folder = quote(folder);
        let _ = writeln!(
            text,
            "# NCCL_TOPO_FILE lies in the host's folder.\n[ ! -d {folder} ] || mounts+=,{folder}:{folder}:ro"
        );
    }
    for mount in &run.slurm.container_mounts {
        let _ = writeln!(text, "mounts+=,{}", quote(mount));
    }
    let _ = writeln!(
        text,
        "container=(--container-image={} --container-mounts=\"$mounts\" --container-workdir=/expertrail/run --no-container-mount-home)",
        quote(image)
    );
    if !run.env.is_empty() {
        let names: Vec<&str> = run.env.iter().map(|setting| setting.name.as_str()).collect();
        let _ = writeln!(
            text,
            "# What is exported above reaches the container; where the image sets a variable itself, the image would win without this.\n\
             container+=(--container-env={})",
            quote(&names.join(","))
        );
    }
    text.push('\n');
    text
}

/// The use of [`arguments`] in a line of `srun`.
pub(super) fn use_them(run: &Run) -> &'static str {
    if run.slurm.container_image.is_some() { " \"${container[@]}\"" } else { "" }
}

/// `image` as `enroot import` takes it: the registry is set off by `#`.
pub(super) fn enroot(image: &str) -> String {
    match image.split_once('/') {
        // A first part with a dot, a port, or this name is a registry; else it is a user of Docker Hub.
        Some((registry, rest)) if registry.contains(['.', ':']) || registry == "localhost" => {
            format!("docker://{registry}#{rest}")
        }
        _ => format!("docker://{image}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_set_off() {
        assert_eq!(enroot("ghcr.io/a/b:c"), "docker://ghcr.io#a/b:c");
        assert_eq!(enroot("nvcr.io/nvidia/pytorch:25.10-py3"), "docker://nvcr.io#nvidia/pytorch:25.10-py3");
        assert_eq!(enroot("user/image"), "docker://user/image");
        assert_eq!(enroot("debian:12"), "docker://debian:12");
    }
}
