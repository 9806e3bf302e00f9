//! Images that cannot be pulled.

use expertrail_cluster::kube::client::clean;

use super::super::look::{Pod, Snapshot};
use super::{Hints, Stage, View};

/// What a registry or runtime says, what it means, what to do. The first that fits counts; `{secret}` is the advice on secrets.
const SAID: [(&[&str], &str, &str); 9] = [
    (
        &["no match for platform", "no matching manifest", "does not match the specified platform"],
        "the image does not exist for this node's kind of CPU",
        "Build it for the node's architecture (docker buildx build --platform)",
    ),
    (
        &["no space left on device"],
        "the node's disk is full",
        "Free space on the node (`crictl rmi --prune`), or take another node",
    ),
    (
        &["toomanyrequests", "429 Too Many Requests"],
        "the registry limits how often it may be asked",
        "Log in with a pull secret, or use a copy of the image in a registry of your own",
    ),
    (
        &[
            "no such host",
            "i/o timeout",
            "connection refused",
            "connection reset",
            "network is unreachable",
            "TLS handshake timeout",
        ],
        "the node does not reach the registry",
        "Check the registry's name, and the node's way out (DNS, proxy, firewall)",
    ),
    (
        &["x509:", "certificate"],
        "the node does not trust the registry's certificate",
        "The container runtime of each node needs the registry's CA",
    ),
    (
        &["server gave HTTP response to HTTPS client"],
        "the registry speaks plain HTTP, and the node asks by HTTPS",
        "Give the registry a certificate, or list it as insecure in the runtime of each node",
    ),
    (
        &["invalid reference format", "InvalidImageName"],
        "this is no name of an image",
        "Wanted registry/repository:tag, in lower case",
    ),
    (
        &[
            "no basic auth credentials",
            "authorization failed",
            "unauthorized",
            "401 Unauthorized",
            "403 Forbidden",
            "pull access denied",
            "denied:",
        ],
        "the registry does not accept the credentials, or got none",
        "{secret}",
    ),
    (
        &["manifest unknown", "not found", "404 Not Found", "name unknown"],
        "the registry has no image of that name and tag",
        "Check the name letter by letter, the tag too. Some registries also say so of a private image when they get no credentials: {secret}",
    ),
];

/// How an image without credentials gets some.
fn secret(image: &str, hints: &Hints) -> String {
    let registry = registry(image);
    let name = hints.pull_secret.as_deref().unwrap_or("pull-secret");
    let make = format!(
        "kubectl -n {} create secret docker-registry {name} --docker-server={registry} --docker-username=USER --docker-password=TOKEN",
        hints.namespace
    );
    let naming = match &hints.pull_secret {
        Some(name) => format!(
            "the run names the secret {name}: it is missing here, has expired, or is for another server. Make it again: {make}"
        ),
        None => format!(
            "a private image needs a secret: {make}, and kubernetes.pull_secret = \"{name}\" in run.toml"
        ),
    };
    format!("{naming}. {}", forms(&registry))
}

/// How the address of an image is built in a registry of that kind.
fn forms(registry: &str) -> &'static str {
    if registry.ends_with(".crusoecloudcompute.com") {
        "Images there are registry.REGION.ccr.crusoecloudcompute.com/REPOSITORY.FIRST-8-OF-PROJECT-ID/IMAGE:TAG; the user is the account's \
         e-mail, the password a registry token, not the console's password"
    } else if registry.contains(".dkr.ecr.") {
        "Images there are ACCOUNT.dkr.ecr.REGION.amazonaws.com/REPOSITORY:TAG; the user is AWS, the password that of `aws ecr \
         get-login-password`, which lasts 12 hours; nodes with the right role need no secret"
    } else if registry == "ghcr.io" {
        "Images there are ghcr.io/OWNER/IMAGE:TAG; the password is a token with read:packages"
    } else {
        "The server is the part of the image's name before the first `/`; the password is a token of the registry"
    }
}

/// The registry of an image's name: what is before the first `/` where it looks like a host, else Docker Hub's address for secrets.
fn registry(image: &str) -> String {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => clean(host),
        _ => "https://index.docker.io/v1/".to_owned(),
    }
}

/// What to do about a secret that the kubelet does not find.
pub(super) fn no_secret(hints: &Hints) -> String {
    let name = hints.pull_secret.as_deref().unwrap_or("that the pod names");
    format!("The secret {name} is not in namespace {}: a private image will not be pulled", hints.namespace)
}

pub(super) fn view(
    image: &str,
    reason: &str,
    said: &str,
    (pod, snapshot): (&Pod, &Snapshot),
    hints: &Hints,
) -> View {
    let lower = format!("{reason} {said}").to_lowercase();
    let found = SAID.iter().find(|(signs, ..)| signs.iter().any(|sign| lower.contains(&sign.to_lowercase())));
    let missing = snapshot.about(&pod.name).any(|note| note.reason == "FailedToRetrieveImagePullSecret");
    let on = pod.node.as_deref().map(|node| format!(" on {node}")).unwrap_or_default();
    let (meaning, remedy) = match found {
        Some((_, meaning, remedy)) => (*meaning, remedy.replace("{secret}", &secret(image, hints))),
        None => ("the image cannot be pulled", String::new()),
    };
    let lacking = if missing {
        let name = hints.pull_secret.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
        format!("; the pull secret{name} is not in namespace {}", hints.namespace)
    } else {
        String::new()
    };
    let said = if said.is_empty() { String::new() } else { format!(" ({})", clean(said)) };
    View::new(Stage::NoImage, format!("{reason}{on}, image {}: {meaning}{lacking}{said}", clean(image)))
        .remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_of_a_secret_is_the_images_host() {
        for (image, wanted) in [
            ("ghcr.io/owner/image:tag", "ghcr.io"),
            ("registry.local:5000/x", "registry.local:5000"),
            ("localhost/x", "localhost"),
            ("debian:bookworm-slim", "https://index.docker.io/v1/"),
            ("library/debian", "https://index.docker.io/v1/"),
        ] {
            assert_eq!(registry(image), wanted, "{image}");
        }
    }

    #[test]
    fn what_registries_say() {
        let hints = Hints { namespace: "ep".to_owned(), pull_secret: None };
        let (pod, snapshot) = (Pod::default(), Snapshot::default());
        for (said, words, remedy) in [
            (
                "failed to resolve reference \"g/x:y\": g/x:y: not found",
                "no image of that name and tag",
                "letter by letter",
            ),
            (
                "authorization failed: no basic auth credentials",
                "does not accept the credentials",
                "create secret docker-registry",
            ),
            ("dial tcp: lookup reg on 10.0.0.10:53: no such host", "does not reach the registry", "DNS"),
            ("no match for platform in manifest: not found", "this node's kind of CPU", "--platform"),
        ] {
            let view = view(
                "registry.eu.ccr.crusoecloudcompute.com/r.12345678/i:t",
                "ErrImagePull",
                said,
                (&pod, &snapshot),
                &hints,
            );
            assert!(view.words.contains(words), "{}", view.words);
            assert!(view.remedy.contains(remedy), "{}", view.remedy);
            assert_eq!(view.stage, Stage::NoImage);
        }
        let private = secret("registry.eu.ccr.crusoecloudcompute.com/r.12345678/i:t", &hints);
        assert!(private.contains("FIRST-8-OF-PROJECT-ID"), "{private}");
    }
}
