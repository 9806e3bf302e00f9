//! `build.sh` and `README.txt`, and what our own image has, started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use expertrail_launch::render::image::Kind;

use crate::common::{arguments, folder_of, instructions, program, readme, rendered, said};

/// `build.sh --help` is README.txt, and that names all that the script reads and the build checks.
#[test]
fn help_and_readme_say_what_to_give_and_what_was_not_run() {
    for kind in Kind::ALL {
        let files = folder_of(kind, &[]);
        let folder = tempfile::TempDir::new().unwrap();
        files.write(&folder.path().join("image")).unwrap();
        for file in &files.files {
            // Nothing of the templates is left; shell has `"$@"` and `${a[@]}`, a digest `name@sha256:`.
            let left = file.text.match_indices('@').filter(|(at, _)| {
                file.text[at + 1..].split('@').next().is_some_and(|name| {
                    name.len() > 2
                        && name.chars().all(|c| c.is_ascii_uppercase() || "_0123456789".contains(c))
                })
            });
            assert_eq!(left.count(), 0, "{kind} {}", file.path);
        }
        let text = readme(kind);
        for option in ["--help", "-h"] {
            let done = Command::new(folder.path().join("image/build.sh"))
                .arg(option)
                .current_dir("/")
                .env("PATH", "/usr/bin:/bin")
                .output()
                .unwrap();
            assert!(done.status.success(), "{done:?}");
            assert_eq!(said(&done), text, "{kind}");
        }
        let (container, build) = rendered(kind, &[]);
        for name in ["EXPERTRAIL_BINARY", "TAG", "SETUP_SHA256"] {
            let read = build.contains(&format!("${{{name}:-"));
            assert_eq!(text.contains(&format!("\n  {name} ")), read, "{kind}: {name}");
        }
        assert!(
            !build.contains("SETUP_SHA256") || text.contains(&arguments(&container)["SETUP_COMMIT"]),
            "{kind}"
        );
        for part in ["The last step asks `expertrail stack`", "What was not run:\n\n- The build itself"] {
            assert!(text.contains(part), "{kind}: {part}");
        }
        // What steps refuse, the page says.
        for (step, said) in [
            ("libnvshmem_host to", "links libnvshmem_host"),
            ("cuda/std/tuple", "cuda/std/tuple"),
            ("sha256sum", "checksum"),
            ("setup.py has another gate", "gate for aggressive PTX"),
            ("git rev-parse FETCH_HEAD", "hash of its commit"),
            ("StrictModes", "ssh and sshd"),
        ] {
            let (step, said) = (container.contains(step), text.contains(said));
            assert!(!step || said, "{kind}: {said}");
        }
    }
}

/// `build.sh` with a docker that prints what it is given.
#[test]
fn the_building_script() {
    let folder = tempfile::TempDir::new().unwrap();
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    program(&bin, "docker", "echo \"kit $DOCKER_BUILDKIT:\" \"$@\"\n");
    program(folder.path(), "binary", "exit 0\n");
    let run = |kind: Kind, env: &[(&str, &str)]| {
        let place = folder.path().join(kind.name());
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("build.sh"), rendered(kind, &[]).1).unwrap();
        let path = format!("{}:/usr/bin:/bin", bin.display());
        let mut command = Command::new("/bin/bash");
        command.arg(place.join("build.sh")).args(["--build-arg", "MAX_JOBS=4"]).env_clear().env("PATH", path);
        command.envs(env.iter().copied()).output().unwrap()
    };
    let binary = folder.path().join("binary").display().to_string();
    let none = run(Kind::Expertrail, &[]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
    assert!(said(&none).contains("no expertrail binary: name it with EXPERTRAIL_BINARY"), "{none:?}");
    let gone = run(Kind::Expertrail, &[("EXPERTRAIL_BINARY", "/nonexistent")]);
    assert!(said(&gone).contains("no expertrail binary at /nonexistent"), "{gone:?}");
    let good = run(Kind::Expertrail, &[("EXPERTRAIL_BINARY", &binary), ("TAG", "me/e:1")]);
    assert_eq!(said(&good).trim(), "kit 1: build -f Containerfile -t me/e:1 --build-arg MAX_JOBS=4 .");
    assert!(folder.path().join("expertrail/expertrail").exists());
    let efa = run(Kind::DeepepEfa, &[("EXPERTRAIL_BINARY", &binary)]);
    assert_eq!(efa.status.code(), Some(2), "{efa:?}");
    assert!(said(&efa).contains("SETUP_SHA256 is not set"), "{efa:?}");
    let sum = run(Kind::DeepepEfa, &[("EXPERTRAIL_BINARY", &binary), ("SETUP_SHA256", "12ab")]);
    assert!(
        said(&sum).contains("-t deepep:efa1.48.0 --build-arg SETUP_SHA256=12ab --build-arg MAX_JOBS=4 ."),
        "{sum:?}"
    );
}

/// Our own image's tree: what its Containerfile copies, on nothing but a shell and the C library that the binary asks for.
/// `EXPERTRAIL_BINARY` names the binary; needs root for chroot.
#[test]
fn our_own_image_starts_in_a_chroot() {
    let Some(binary) = std::env::var_os("EXPERTRAIL_BINARY").map(PathBuf::from) else {
        eprintln!("NOT RUN: EXPERTRAIL_BINARY does not name a binary of expertrail");
        return;
    };
    let root = tempfile::TempDir::new().unwrap();
    let copy = |from: &Path, to: &str| {
        let to = root.path().join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, &to).unwrap();
    };
    let (text, _) = rendered(Kind::Expertrail, &[]);
    let all = instructions(&text);
    let copies: Vec<(&str, &str)> =
        all.iter().filter(|(word, _)| word == "COPY").filter_map(|(_, rest)| rest.split_once(' ')).collect();
    assert_eq!(copies, [("expertrail", "/usr/local/bin/expertrail")], "one binary, nothing else");
    copy(&binary, copies[0].1);
    // The base: a shell, and the loader and libraries of both.
    copy(Path::new("/bin/sh"), "/bin/sh");
    for program in [binary.as_path(), Path::new("/bin/sh")] {
        let listed = Command::new("ldd").arg(program).output().unwrap();
        for library in said(&listed).split_whitespace().filter(|word| word.starts_with('/')) {
            // Only the C library's own: anything else the base would not have.
            let name = Path::new(library).file_name().unwrap().to_str().unwrap();
            let known = ["libc.", "libm.", "libdl.", "libpthread.", "librt.", "libgcc_s.", "ld-linux"];
            assert!(
                known.iter().any(|known| name.starts_with(known)),
                "{} needs {library}",
                program.display()
            );
            copy(Path::new(library), library);
        }
    }
    let inside =
        |argv: &[&str]| Command::new("/usr/sbin/chroot").arg(root.path()).args(argv).env_clear().output();
    let version = match inside(&["/usr/local/bin/expertrail", "--version"]) {
        Ok(done) if said(&done).contains("Operation not permitted") => {
            eprintln!("NOT RUN: chroot needs root");
            return;
        }
        done => done.unwrap(),
    };
    assert!(version.status.success() && said(&version).starts_with("expertrail "), "{version:?}");
    // The image's own last step, as its builder would run it.
    let gate = &all.last().unwrap().1;
    let done = inside(&["/bin/sh", "-c", &format!("PATH=/usr/local/bin; {gate}")]).unwrap();
    assert!(done.status.success() && said(&done).contains("UNVERIFIED"), "{done:?}");
}
