//! What the scheduler says when no node takes a pod.

use expertrail_cluster::kube::client::clean;

/// A part of the scheduler's sentence: how it begins, what it means, what to do.
const PARTS: [(&str, &str, &str); 13] = [
    (
        "Insufficient memory",
        "too little memory that is free",
        "Ask for less (kubernetes.memory), just under Allocatable of `kubectl describe node`",
    ),
    (
        "Insufficient cpu",
        "too few CPUs that are free",
        "Ask for less (kubernetes.cpu), just under Allocatable of `kubectl describe node`",
    ),
    (
        "Insufficient hugepages-",
        "too few huge pages",
        "The nodes do not have them: kubernetes.hugepages_2mi = \"\" leaves them out",
    ),
    ("Insufficient ephemeral-storage", "too little disk space", ""),
    (
        "Insufficient nvidia.com/gpu",
        "too few GPUs that are free",
        "Other pods have them, or the device plugin withdrew some: `expertrail check --kube` shows who uses which",
    ),
    (
        "Insufficient ",
        "too few",
        "Other pods have them, or no device plugin offers them there: see Allocatable of `kubectl describe node`",
    ),
    (
        "node(s) didn't match Pod's node affinity/selector",
        "without the labels that are asked for",
        "Compare kubernetes.node_selector and nvidia.com/gpu.present with `kubectl get nodes --show-labels`; GPU labels vanish for a while when driver pods restart",
    ),
    (
        "node(s) didn't match pod anti-affinity",
        "with another pod of this run already",
        "Each pod needs a node of its own: more nodes, or a smaller nodes = in run.toml",
    ),
    (
        "node(s) had untolerated taint",
        "with a taint that the pod does not tolerate",
        "Add it to kubernetes.tolerations",
    ),
    ("node(s) were unschedulable", "cordoned", "`kubectl uncordon NODE`, if nobody is working on it"),
    (
        "pod has unbound immediate PersistentVolumeClaims",
        "a volume claim that has no volume",
        "`kubectl get pvc` in the namespace says why",
    ),
    ("node(s) had volume node affinity conflict", "in another zone than the pod's volume", ""),
    (
        "node(s) didn't match pod affinity rules",
        "in another zone than the rest of the run",
        "kubernetes.same_zone = false drops the rule",
    ),
];

/// The scheduler's sentence (`0/6 nodes are available: 2 Insufficient nvidia.com/gpu, ...`) in words, and the remedies in its order.
pub(super) fn explain(said: &str) -> (String, String) {
    let Some((head, rest)) = said.split_once(" nodes are available: ") else {
        return (format!("no node takes it: {}", clean(said)), String::new());
    };
    let all = head.rsplit('/').next().unwrap_or("?");
    // What follows is about evicting others for it.
    let rest = rest.split(" preemption:").next().unwrap_or(rest);
    let (mut words, mut remedies): (Vec<String>, Vec<&str>) = (Vec::new(), Vec::new());
    for part in rest.trim().trim_end_matches('.').split(", ") {
        let part = part.trim();
        let (count, what) = match part.split_once(' ') {
            Some((count, what)) if count.bytes().all(|byte| byte.is_ascii_digit()) => (Some(count), what),
            _ => (None, part),
        };
        let known = PARTS.iter().find(|(begins, ..)| what.starts_with(begins));
        let meaning = match known {
            Some(("Insufficient ", meaning, _)) => {
                format!("{meaning} {} that are free", clean(what.trim_start_matches("Insufficient ")))
            }
            Some((begins, meaning, _)) if begins.contains("taint") => {
                let taint = what.trim_start_matches(begins).trim().trim_matches(['{', '}']);
                format!("{meaning} ({})", clean(taint).trim_end_matches([':', ' ']))
            }
            Some((_, meaning, _)) => (*meaning).to_owned(),
            None => clean(what),
        };
        words.push(count.map_or(meaning.clone(), |count| format!("{count} {meaning}")));
        if let Some((.., remedy)) =
            known.filter(|(.., remedy)| !remedy.is_empty() && !remedies.contains(remedy))
        {
            remedies.push(remedy);
        }
    }
    (format!("no node of {all} takes it: {}", words.join("; ")), remedies.join(". "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_the_sentence_has_its_words_and_its_remedy() {
        let said = "0/6 nodes are available: 1 Insufficient nvidia.com/hostdev, 2 Insufficient nvidia.com/gpu, 1 node(s) had untolerated \
                    taint {workload: bench}, 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/6 nodes are available: 6 \
                    No preemption victims found for incoming pod.";
        let (words, remedy) = explain(said);
        assert_eq!(
            words,
            "no node of 6 takes it: 1 too few nvidia.com/hostdev that are free; 2 too few GPUs that are free; 1 with a taint that the pod \
             does not tolerate (workload: bench); 2 without the labels that are asked for"
        );
        for part in ["Allocatable", "check --kube", "kubernetes.tolerations", "kubernetes.node_selector"] {
            assert!(remedy.contains(part), "{part} is not in {remedy}");
        }
        assert!(!words.contains("preemption"), "{words}");
    }

    #[test]
    fn a_sentence_of_another_form_is_shown_as_it_is() {
        assert_eq!(explain("no nodes\navailable").0, "no node takes it: no nodes available");
        let (words, _) =
            explain("0/1 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: }.");
        assert_eq!(
            words,
            "no node of 1 takes it: 1 with a taint that the pod does not tolerate (nvidia.com/gpu)"
        );
    }
}
