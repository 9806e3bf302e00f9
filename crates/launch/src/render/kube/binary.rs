//! How this project's binary comes into pods whose image lacks it.

use super::{BINARY_FOLDER, FILES, Volume, files_volume, pull_policy, small_resources};
use crate::doc::Node;
use crate::run::Run;
use crate::spec::Binary;
use crate::{list, map};

/// The init container that `launch` copies the binary into.
const BINARY_CONTAINER: &str = "expertrail-binary";
/// What that container runs.
pub(super) const WAIT: (&str, &str) =
    ("wait-for-binary.sh", include_str!("../../../assets/kubernetes/wait-for-binary.sh"));

/// How this project's binary comes into a pod.
pub(in crate::render) struct Brought {
    /// Where it lies, with the mount of the containers that use it.
    pub(in crate::render) volume: Volume,
    /// The init container that puts it there.
    pub(in crate::render) container: Node,
}

/// How this project's binary comes into a pod of `image`; none where the image has it.
pub(in crate::render) fn binary(run: &Run, image: &str) -> Option<Brought> {
    let kubernetes = &run.kubernetes;
    let mount = map! { "name": "binary", "mountPath": BINARY_FOLDER };
    let (image, command, mounts) = match (kubernetes.binary, &kubernetes.expertrail_image) {
        (Binary::Image, _) => return None,
        (Binary::Init, Some(ours)) => {
            let copy = list!["cp", "/usr/local/bin/expertrail", format!("{BINARY_FOLDER}/expertrail")];
            (ours.as_str(), copy, list![mount])
        }
        // Without an image of ours somebody has to bring the binary; the pod's own image has at least a shell.
        (Binary::Init, None) | (Binary::Copy, _) => {
            let wait = list!["sh", format!("{FILES}/{}", WAIT.0)];
            (image, wait, list![mount, files_volume(run).1])
        }
    };
    Some(Brought {
        volume: (
            map! { "name": "binary", "emptyDir": map! { "sizeLimit": "1Gi" } },
            map! { "name": "binary", "mountPath": BINARY_FOLDER, "readOnly": true },
        ),
        container: map! {
            "name": BINARY_CONTAINER,
            "image": image,
            "imagePullPolicy": pull_policy(image),
            "command": command,
            "resources": small_resources(),
            "volumeMounts": mounts,
        },
    })
}

/// Commands by which a person copies the binary into waiting pods; none where nothing waits.
pub(in crate::render) fn copy_lines(run: &Run) -> Vec<String> {
    if run.kubernetes.binary != Binary::Copy {
        return Vec::new();
    }
    let (id, namespace, kubectl) = (&run.id, &run.kubernetes.namespace, super::kubectl(run));
    let copy = format!("cat >{BINARY_FOLDER}/expertrail && : >{BINARY_FOLDER}/ready");
    vec![format!(
        "for pod in $({kubectl} -n {namespace} get pods -l expertrail.dev/run={id},app.kubernetes.io/component=ranks -o name); do {kubectl} -n \
         {namespace} exec -i \"$pod\" -c {BINARY_CONTAINER} -- sh -c '{copy}' <\"$(command -v expertrail)\"; done"
    )]
}
