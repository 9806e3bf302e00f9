//! `expertrail launch --ab A.toml B.toml`.

use std::path::{Path, PathBuf};

use expertrail_launch::ab::{self, Comparison, Side};
use expertrail_launch::bundle::secrets::Secrets;
use expertrail_launch::drive::Stop as _;
use expertrail_launch::drive::launch::{INTERRUPTED, Launched};
use expertrail_launch::render;
use expertrail_launch::run::{Run, Target};

use super::screen::Keyboard;
use super::{LaunchArgs, Rendered, confirmed, laid, start, summary};
use crate::node::{Stop, print, write_output};
use crate::render::{Described, write};

/// One of the two descriptions.
struct Given<'a> {
    name: &'static str,
    file: &'a Path,
    described: Described,
}

pub(super) fn main(args: &LaunchArgs) -> Result<u8, Stop> {
    let target =
        args.target.ok_or_else(|| Stop::usage("--ab needs --target: the system that both run on"))?;
    if args.describe.run_id.is_some() {
        return Err(Stop::usage("--run-id with --ab would give both runs one name: leave it out"));
    }
    let [a, b] = args.ab.as_slice() else { return Err(Stop::usage("--ab wants two descriptions")) };
    let read = |name: &'static str, file: &'_ Path| -> Result<Described, Stop> {
        let mut describe = args.describe.clone();
        describe.file = Some(file.to_owned());
        describe.read().map_err(|stop| stop.of(&format!("{name}: ")))
    };
    let a = Given { name: "A", file: a, described: read("A", a)? };
    let b = Given { name: "B", file: b, described: read("B", b)? };
    let specs = (&a.described.spec, &b.described.spec);
    let differences = ab::check(specs, target, a.described.facts.as_ref(), &args.variable)
        .map_err(|error| Stop::usage(error.to_string()))?;
    let root = match &args.output {
        Some(output) => output.clone(),
        None => PathBuf::from(format!("ab-{}", a.described.run(target)?.id)),
    };
    let first = rendered(args, &a, target, &root)?;
    let second = rendered(args, &b, target, &root)?;
    if first.run.id == second.run.id {
        return Err(Stop::usage(format!(
            "A and B would have one name, {}: give them different names",
            first.run.id
        )));
    }

    // Values of variables may be secrets.
    let secrets = [Secrets::of(&first.run), Secrets::of(&second.run)];
    let clean = |text: &str| secrets.iter().fold(text.to_owned(), |text, one| one.text(&text));
    for difference in &differences {
        print(&clean(&format!("differs: {difference}\n")))?;
    }
    let both = [first, second];
    if !confirmed(args, &both)? {
        return Ok(if args.dry_run { 0 } else { 3 });
    }
    let [first, second] = both;
    let keyboard = Keyboard::new()?;
    let left = start(args, &first, &keyboard, None)?;
    print(&summary(&left))?;
    if keyboard.cancelled() || left.bundle.is_none() {
        return Ok(INTERRUPTED);
    }
    let side_a = side(&a, &first, &left);
    let second = pinned(&b, second, &left)?;
    let right = start(args, &second, &keyboard, None)?;
    print(&summary(&right))?;
    if keyboard.cancelled() || right.bundle.is_none() {
        return Ok(INTERRUPTED);
    }
    let comparison = ab::decide(&args.variable, differences, side_a, side(&b, &second, &right));
    finish(&comparison, &root, &clean)
}

fn rendered(args: &LaunchArgs, given: &Given<'_>, target: Target, root: &Path) -> Result<Rendered, Stop> {
    let (run, files) = given.described.files(target)?;
    laid(args, run, &files, root.join(given.name.to_lowercase()))
}

/// B again, on the nodes of A.
fn pinned(given: &Given<'_>, b: Rendered, a: &Launched) -> Result<Rendered, Stop> {
    let mut spec = given.described.spec.clone();
    if !ab::pin(&mut spec, b.run.target, &a.outcome.hosts) {
        eprintln!(
            "warning: the system does not tell on which nodes A ran: B may get others, and the answer then is \"not decided\""
        );
        return Ok(b);
    }
    let run = Run::resolve(&spec, b.run.target, given.described.facts.as_ref(), Some(&b.run.id))?;
    let mut files = render::run(&run)?;
    files.text("run.toml", given.described.text.clone());
    write(&run, &files, &b.folder)?;
    Ok(Rendered { run, folder: b.folder, draft: None })
}

fn side(given: &Given<'_>, rendered: &Rendered, launched: &Launched) -> Side {
    let bundle = launched.bundle.as_deref().unwrap_or(Path::new("")).display().to_string();
    Side::new(given.name, &given.file.display().to_string(), &bundle, &rendered.run, &launched.outcome)
}

fn finish(comparison: &Comparison, root: &Path, clean: &dyn Fn(&str) -> String) -> Result<u8, Stop> {
    let json = serde_json::to_string_pretty(comparison).map_err(|error| Stop::access(error.to_string()))?;
    std::fs::create_dir_all(root)
        .map_err(|error| Stop::access(format!("cannot make {}: {error}", root.display())))?;
    let text = clean(&ab::text(comparison));
    write_output(&root.join("ab.json"), &(clean(&json) + "\n"))?;
    write_output(&root.join("ab.txt"), &text)?;
    print(&format!("\n{text}written to {}\n", root.join("ab.json").display()))?;
    Ok(if comparison.layer == ab::Layer::NotDecided { 3 } else { 0 })
}
