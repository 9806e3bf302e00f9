//! Remedies that several checks share, for each kind of node.

use std::fmt::Write;

use crate::facts::{Facts, RegistryDwords};
use crate::finding::{Manager, Remedy};

fn remedy(manager: Manager, text: &str, steps: Vec<String>) -> Remedy {
    Remedy { manager: Some(manager), text: text.to_owned(), steps }
}

/// `text` as one word of a command to paste, whatever it holds: facts may come from a capture or a document of anybody.
pub(crate) fn shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./:,=+@%-".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    if !text.chars().any(char::is_control) {
        return format!("'{}'", text.replace('\'', "'\\''"));
    }
    // A line must stay one line where it is printed, so control characters are written as numbers.
    let mut word = "$'".to_owned();
    for c in text.chars() {
        match c {
            '\'' | '\\' => word.extend(['\\', c]),
            c if c.is_control() => {
                let mut buffer = [0; 4];
                for byte in c.encode_utf8(&mut buffer).bytes() {
                    // Three digits of octal end by themselves, whatever follows.
                    let _ = write!(word, "\\{byte:03o}");
                }
            }
            c => word.push(c),
        }
    }
    word + "'"
}

/// The value that `RegistryDwords` should have: what is there stays, but for what no key or number looks like. That would end the
/// quotes around the value, in the commands and in the file.
struct Dwords {
    text: String,
    left_out: bool,
}

impl Dwords {
    /// What stands behind a command that writes the value.
    fn note(&self) -> &'static str {
        if self.left_out {
            "      # entries of RegistryDwords with unusual characters are left out: add them by hand"
        } else {
            ""
        }
    }
}

fn registry_dwords(facts: &Facts) -> Dwords {
    let now = facts
        .driver
        .params
        .value()
        .and_then(|params| params.get("RegistryDwords"))
        .map_or("", String::as_str);
    let mut entries = RegistryDwords::parse(now).0;
    let all = entries.len();
    let usual = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
    entries.retain(|key, value| usual(key) && usual(value));
    let left_out = entries.len() < all;
    let kept: Vec<String> = entries.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    Dwords { text: RegistryDwords::with_peer_mapping(&kept.join(";")), left_out }
}

/// Read after all others, so that its values stand.
const OWN_FILE: &str = "/etc/modprobe.d/zz-nvidia-expertrail.conf";

/// Commands that take the keys out of the files which set them to something else: of two values the last file's counts.
fn take_out(facts: &Facts) -> Vec<String> {
    let options = facts.driver.configured.value().into_iter().flatten();
    let mut files: Vec<&str> = options
        .filter(|option| ["NVreg_EnableStreamMemOPs", "NVreg_RegistryDwords"].contains(&option.key.as_str()))
        .map(|option| option.file.as_str())
        .filter(|file| *file != OWN_FILE && file.starts_with('/'))
        .collect();
    files.dedup();
    files
        .into_iter()
        .map(|file| {
            if file == "/proc/cmdline" {
                return "sudo sed -i.bak -E 's/ nvidia\\.NVreg_(EnableStreamMemOPs|RegistryDwords)=[^ \"]*//g' /etc/default/grub && sudo update-grub      # the kernel's command line sets them".to_owned();
            }
            format!(
                "sudo sed -i.bak -E 's/[[:space:]]*NVreg_(EnableStreamMemOPs|RegistryDwords)=(\"[^\"]*\"|[^[:space:]]*)//g' {}      # it sets the keys, too",
                shell(file)
            )
        })
        .collect()
}

/// Builds GDRCopy's module against the driver that runs, and loads it.
pub(crate) fn gdrcopy(facts: &Facts) -> Vec<Remedy> {
    vec![
        remedy(
            Manager::Machine,
            "Build a newer GDRCopy against this driver, and load its module in place of the old one.",
            vec![
                "git clone --branch v2.5.1 https://github.com/NVIDIA/gdrcopy && cd gdrcopy/packages".to_owned(),
                "CUDA=/usr/local/cuda ./build-deb-packages.sh && sudo apt-get install ./gdrdrv-dkms_*.deb ./libgdrapi_*.deb".to_owned(),
                "sudo modprobe -r gdrdrv && sudo modprobe gdrdrv && cat /sys/module/gdrdrv/version".to_owned(),
            ],
        ),
        operator(&registry_dwords(facts)),
        remedy(
            Manager::Container,
            "gdrdrv is a module of the host's kernel; ask whoever administers the node to build 2.5.1 or newer against its driver.",
            vec!["sudo modprobe -r gdrdrv && sudo modprobe gdrdrv      # on the host, with the new one installed".to_owned()],
        ),
    ]
}

/// Sets both driver keys. They belong together, so that one reboot or recycle mends both.
pub(super) fn driver_keys(facts: &Facts) -> Vec<Remedy> {
    let dwords = registry_dwords(facts);
    let keys = format!("NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords=\"{}\"", dwords.text);
    let note = dwords.note();
    let mut machine = take_out(facts);
    machine.extend([
                format!("echo 'options nvidia {keys}' | sudo tee {OWN_FILE}{note}"),
                "sudo update-initramfs -u      # Debian, Ubuntu; on RHEL: sudo dracut -f".to_owned(),
                "sudo reboot".to_owned(),
                "grep -E 'EnableStreamMemOPs|RegistryDwords:' /proc/driver/nvidia/params      # then: 1, and PeerMappingOverride=1".to_owned(),
    ]);
    vec![
        remedy(
            Manager::Machine,
            "Give the driver both keys and load it anew: a full reboot (of a virtual machine: stop and start) is the sure way.",
            machine,
        ),
        operator(&dwords),
        remedy(
            Manager::Container,
            "The keys belong to the driver of the host; nothing inside a container changes them. Ask whoever administers the node to load the driver with them.",
            // A comment of modprobe.d has a line of its own.
            std::iter::once(format!("options nvidia {keys}"))
                .chain((!note.is_empty()).then(|| note.trim_start().to_owned()))
                .collect(),
        ),
    ]
}

/// ConfigMap, one merge patch, recycled driver pods.
fn operator(dwords: &Dwords) -> Remedy {
    let (text, note) = (&dwords.text, dwords.note());
    remedy(
        Manager::Operator,
        "Through the GPU Operator: both keys in a ConfigMap, one single merge patch (a part of it leaves the driver inconsistent), then recycle the driver pods, with no GPU workload on the nodes.",
        vec![
            format!("printf '%s\\n' 'NVreg_EnableStreamMemOPs=1' 'NVreg_RegistryDwords=\"{text}\"' > nvidia.conf{note}"),
            "kubectl get nvidiadriver      # the resource of this kind of GPU whose STATUS is ready; if it names a kernelModuleConfig already, put the lines there".to_owned(),
            "kubectl -n nvidia-gpu-operator create configmap nvidia-kernel-params --from-file=nvidia.conf".to_owned(),
            "kubectl patch nvidiadriver NAME --type=merge -p '{\"spec\":{\"kernelModuleConfig\":{\"name\":\"nvidia-kernel-params\"},\"rdma\":{\"enabled\":true},\"gdrcopy\":{\"enabled\":true,\"repository\":\"nvcr.io/nvidia/cloud-native\",\"image\":\"gdrdrv\",\"version\":\"v2.5.1\"}}}'".to_owned(),
            "kubectl -n nvidia-gpu-operator delete pod -l app.kubernetes.io/component=nvidia-driver".to_owned(),
            "expertrail check --kube --for deepep-ibgda      # after 60 to 90 s: pods 3/3, params=2/2 modules=2/2".to_owned(),
        ],
    )
}

/// Loads a module now and at boot.
pub(crate) fn module(facts: &Facts, module: &str, package: &str) -> Vec<Remedy> {
    vec![
        remedy(
            Manager::Machine,
            &format!("Load {module} now and at every boot."),
            vec![
                format!("sudo modprobe {module}      # not found? {package}"),
                format!("echo {module} | sudo tee /etc/modules-load.d/{module}.conf"),
            ],
        ),
        operator(&registry_dwords(facts)),
        remedy(
            Manager::Container,
            &format!(
                "{module} is a module of the host's kernel; ask whoever administers the node to load it."
            ),
            vec![format!("sudo modprobe {module}      # on the host")],
        ),
    ]
}

/// Lifts the limit of locked memory.
pub(crate) fn locked_memory(daemon: &str) -> Vec<Remedy> {
    let drop_in = |unit: &str| {
        let folder = format!("/etc/systemd/system/{unit}.service.d");
        vec![
            format!("sudo mkdir -p {}", shell(&folder)),
            format!(
                "printf '[Service]\\nLimitMEMLOCK=infinity\\n' | sudo tee {}",
                shell(&format!("{folder}/memlock.conf"))
            ),
            format!("sudo systemctl daemon-reload && sudo systemctl restart {}", shell(unit)),
        ]
    };
    let unit = if daemon.is_empty() { "containerd" } else { daemon };
    let mut node = vec!["kubectl drain NODE --ignore-daemonsets      # nothing may run on it".to_owned()];
    node.extend(drop_in(unit));
    node.push("kubectl uncordon NODE".to_owned());
    let machine = if daemon.is_empty() {
        vec![
            "ulimit -l unlimited      # this shell, as far as the hard limit allows".to_owned(),
            "printf '* soft memlock unlimited\\n* hard memlock unlimited\\n' | sudo tee /etc/security/limits.d/memlock.conf      # next logins".to_owned(),
        ]
    } else {
        drop_in(daemon)
    };
    vec![
        remedy(Manager::Machine, "Lift the limit of locked memory.", machine),
        remedy(
            Manager::Operator,
            "Lift the limit for the container runtime of the node, or give the pod the capability IPC_LOCK.",
            node,
        ),
        remedy(
            Manager::Container,
            "Give the container no limit, or the capability IPC_LOCK.",
            vec![
                "docker run --ulimit memlock=-1 --cap-add IPC_LOCK ...".to_owned(),
                "Kubernetes: securityContext: {capabilities: {add: [IPC_LOCK]}}".to_owned(),
            ],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::shell;

    #[test]
    fn words_of_commands() {
        for plain in ["0000:15:01.0", "a=b,c+d@e%f_g-h", "/etc/modprobe.d/nvidia.conf"] {
            assert_eq!(shell(plain), plain);
        }
        assert_eq!(shell(""), "''");
        assert_eq!(shell("a b"), "'a b'");
        assert_eq!(shell("$(id)`id`;*~"), "'$(id)`id`;*~'");
        assert_eq!(shell("it's"), "'it'\\''s'");
        // One line feed, octal 012; a quote and a backslash are escaped in this form.
        assert_eq!(shell("a\n1'\\"), "$'a\\0121\\'\\\\'");
        // U+009B, a terminal's control sequence, is two bytes: c2 9b, octal 302 233.
        assert_eq!(shell("\u{9b}"), "$'\\302\\233'");
    }
}
