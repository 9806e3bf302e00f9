//! Numbered scripts that set up a host, each with its check.
//!
//! For a virtual machine or a bare host whose driver belongs to the machine. Each script is run as `NN-name.sh apply` or
//! `NN-name.sh verify`; `apply` twice changes nothing the second time, and `verify` ends in an error with the reason when it is not as
//! it should be. `all.sh` runs them in order.

use std::fmt::Write as _;

use crate::files::FileSet;

/// Settings of the scripts. Each can be given in the environment of a script, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Folder of the CUDA toolkit.
    pub cuda: String,
    /// Python into which NVSHMEM's package goes.
    pub python: String,
    /// Version of NVSHMEM's package; none: the newest.
    pub nvshmem: Option<String>,
    /// `TORCH_CUDA_ARCH_LIST`: `9.0` for Hopper, `10.0` for Blackwell; none: what the GPUs say.
    pub arch: Option<String>,
    /// Tag of `GDRCopy`.
    pub gdrcopy: String,
    /// Commit that the tag must be, in full; none: the one that is found, which is then held to.
    pub gdrcopy_commit: Option<String>,
    /// systemd unit of the container runtime.
    pub runtime: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cuda: "/usr/local/cuda".to_owned(),
            python: "python3".to_owned(),
            nvshmem: Some("3.4.5".to_owned()),
            arch: None,
            gdrcopy: "v2.5.1".to_owned(),
            gdrcopy_commit: None,
            runtime: "containerd".to_owned(),
        }
    }
}

/// A script, and whether it belongs to the driver's configuration.
struct Script {
    name: &'static str,
    text: &'static str,
    driver: bool,
}

macro_rules! script {
    ($name:literal, $driver:literal) => {
        Script {
            name: $name,
            text: include_str!(concat!("../../assets/host-setup/", $name)),
            driver: $driver,
        }
    };
}

const SCRIPTS: [Script; 8] = [
    script!("10-driver-options.sh", true),
    script!("20-gdrcopy.sh", true),
    script!("30-nvshmem.sh", false),
    script!("40-nvshmem-link.sh", false),
    script!("50-arch.sh", false),
    script!("60-memlock.sh", true),
    script!("70-runtime-restart.sh", true),
    script!("all.sh", true),
];
const LIBRARY: &str = include_str!("../../assets/host-setup/lib.sh");

/// All scripts.
pub fn render(options: &Options) -> FileSet {
    files(options, |_| true)
}

/// The scripts for the driver, `GDRCopy` and locked memory, without those for what jobs are built of; and the files that they write, for
/// cloud-init, image builds and configuration management.
pub(super) fn driver_only(options: &Options) -> FileSet {
    let mut all = files(options, |script| script.driver);
    for (path, text) in host_files(options) {
        all.text(format!("files{path}"), text);
    }
    all
}

/// What the scripts write below `/etc`. That they are the same is tested.
fn host_files(options: &Options) -> [(String, &'static str); 5] {
    let unit = format!("/etc/systemd/system/{}.service.d/expertrail-memlock.conf", options.runtime);
    [
        (
            "/etc/modprobe.d/zz-nvidia-expertrail.conf".to_owned(),
            "# Written by 10-driver-options.sh. Read after all others, so that its values stand.\noptions nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords=\"PeerMappingOverride=1;\"\n",
        ),
        ("/etc/modules-load.d/expertrail-gpudirect.conf".to_owned(), "nvidia_peermem\n"),
        ("/etc/modules-load.d/expertrail-gdrdrv.conf".to_owned(), "gdrdrv\n"),
        (
            "/etc/security/limits.d/90-expertrail-memlock.conf".to_owned(),
            "* soft memlock unlimited\n* hard memlock unlimited\nroot soft memlock unlimited\nroot hard memlock unlimited\n",
        ),
        (unit, "[Service]\nLimitMEMLOCK=infinity\n"),
    ]
}

fn files(options: &Options, wanted: impl Fn(&Script) -> bool) -> FileSet {
    let mut files = FileSet::default();
    let scripts: Vec<&Script> = SCRIPTS.iter().filter(|script| wanted(script)).collect();
    files.text("README.md", readme(&scripts));
    files.text("settings.sh", settings(options));
    files.text("lib.sh", LIBRARY);
    for script in scripts {
        files.program(script.name, script.text);
    }
    files
}

/// `text` as one word of a shell, also within the braces of `${NAME:-...}`.
pub(super) fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/:@=,+-".contains(c);
    if text.chars().all(plain) {
        return text.to_owned();
    }
    let safe: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("'{}'", safe.replace('\'', "'\\''"))
}

fn settings(options: &Options) -> String {
    let mut text = String::from(
        "# shellcheck shell=bash disable=SC2034\n# Settings of the scripts in this folder, as rendered. Each can be given in the environment, too.\n",
    );
    let all = [
        ("CUDA", options.cuda.as_str(), "folder of the CUDA toolkit"),
        (
            "PYTHON",
            &options.python,
            "Python that jobs use; a virtual environment's, where the system's is closed",
        ),
        (
            "NVSHMEM_PIN",
            options.nvshmem.as_deref().unwrap_or_default(),
            "version of NVSHMEM; empty: the newest",
        ),
        (
            "ARCH",
            options.arch.as_deref().unwrap_or_default(),
            "9.0 Hopper, 10.0 Blackwell; empty: what nvidia-smi says",
        ),
        ("GDRCOPY_TAG", &options.gdrcopy, "version of GDRCopy"),
        (
            "GDRCOPY_COMMIT",
            options.gdrcopy_commit.as_deref().unwrap_or_default(),
            "commit that the tag must be",
        ),
        ("GDRCOPY_URL", "https://github.com/NVIDIA/gdrcopy.git", "where it is cloned from"),
        ("DWORDS", "", "entries of RegistryDwords that must stay beside ours, `;` between them"),
        ("RUNTIME", &options.runtime, "systemd unit of the container runtime"),
    ];
    for (name, value, what) in all {
        let _ = writeln!(text, "{name}=${{{name}:-{}}} # {what}", word(value));
    }
    text
}

fn readme(scripts: &[&Script]) -> String {
    let mut lines = String::new();
    for script in scripts {
        // The second line of a script says what it is for.
        let what = script.text.lines().nth(1).unwrap_or_default().trim_start_matches("# ");
        let _ = writeln!(lines, "- `{}`: {what}", script.name);
    }
    format!(
        "# Set-up of a host\n\n\
         For a virtual machine or a bare host. **Not for nodes whose driver the GPU Operator manages**: there `expertrail render driver-config`\n\
         is the way.\n\n\
         Copy this folder to the host and run there, as root, each script with `apply`, or `all.sh apply`; then stop and start the machine (a\n\
         virtual machine: stop and start it at the provider) and run `all.sh verify`. `apply` a second time changes nothing. Where there is a\n\
         folder `files`, it has what the scripts write, for cloud-init and image builds (an initramfs must then be made by hand).\n\n{lines}\n\
         `settings.sh` has what can be chosen. Exit codes: 0 done or right, 1 not as it should be, 2 usage, 3 not done (a command or `--yes` is\n\
         missing), 4 no access.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::word;

    #[test]
    fn words_of_a_shell() {
        assert_eq!(word("/usr/local/cuda"), "/usr/local/cuda");
        assert_eq!(word("burn-?in|x"), "'burn-?in|x'");
        assert_eq!(word("a'b\nc"), "'a'\\''b c'");
        assert_eq!(word(""), "");
    }
}
