//! What the scripts for Slurm and for plain hosts share.

use std::fmt::Write;

use crate::engine::{DEEPEP_FILE, DEEPEP_TEXT, Place, Word, quote};
use crate::files::FileSet;
use crate::run::{Run, Step};
use crate::spec::{Contract, Engine, Preflight};
use crate::words::count;

/// The directories are known only where the script runs: their words stay in the line and become the script's variables.
const DIRECTORIES: [(&str, &str); 2] = [("{files}", "\"$files\""), ("{out}", "\"$out\"")];

/// The place of a script that has the variables `binary`, `files`, `out` and `MASTER_ADDR`.
pub(super) fn place(frames: bool) -> Place {
    Place {
        binary: Word::Shell("\"$binary\"".to_owned()),
        files: "{files}".to_owned(),
        out: "{out}".to_owned(),
        master: Word::Shell("\"$MASTER_ADDR\"".to_owned()),
        frames,
    }
}

/// `words` as a command over several lines: an option with its value on each, `indent` before all but the first.
pub(super) fn lines(words: &[Word], indent: &str) -> String {
    let mut text = String::new();
    let mut program = false;
    for (index, word) in words.iter().enumerate() {
        let word = live(word);
        let breaks = !program && word.starts_with("--") || program && word == "--";
        if index > 0 {
            text.push_str(if breaks { " \\\n" } else { " " });
            if breaks {
                text.push_str(indent);
            }
        }
        program |= word == "--";
        text.push_str(&word);
    }
    text
}

/// One word of a shell, with the directories as variables.
pub(super) fn live(word: &Word) -> String {
    match word {
        Word::Shell(text) => text.clone(),
        Word::Plain(text) => pieces(text, &DIRECTORIES).unwrap_or_else(|| quote(text)),
    }
}

/// `text` quoted, with each of `names` as the shell text beside it; none where it has none of them.
fn pieces(text: &str, names: &[(&str, &str)]) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    let mut found = false;
    while let Some((at, name, shell)) = names
        .iter()
        .filter_map(|(name, shell)| Some((rest.find(name)?, *name, *shell)))
        .min_by_key(|(at, ..)| *at)
    {
        found = true;
        let (before, after) = rest.split_at(at);
        if !before.is_empty() {
            out.push_str(&quote(before));
        }
        out.push_str(shell);
        rest = &after[name.len()..];
    }
    if !rest.is_empty() {
        out.push_str(&quote(rest));
    }
    found.then_some(out)
}

/// Adds this project's benchmark file, where a step starts it.
pub(super) fn benchmark_file(run: &Run, files: &mut FileSet) {
    if run.needs_deepep_file {
        files.text(DEEPEP_FILE, DEEPEP_TEXT);
    }
}

/// A line on what the run is.
pub(super) fn headline(run: &Run) -> String {
    let what = match run.engine {
        Engine::Command => run.steps.first().map_or_else(String::new, |step| step.argv.join(" ")),
        _ => run.benchmarks.iter().map(|one| one.name()).collect::<Vec<_>>().join(", "),
    };
    format!(
        "Run {}: engine {} ({}), {} of {}, profile {}.",
        run.id,
        run.engine.name(),
        printable(&what),
        count(run.nodes, "node"),
        count(run.gpus_per_node, "rank"),
        run.profile.id
    )
}

/// `1 node`, `each of 2 nodes`.
pub(super) fn each(number: u32, what: &str) -> String {
    if number == 1 { count(number, what) } else { format!("each of {}", count(number, what)) }
}

/// `text` on one line, so that it can be a comment.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Comment lines.
pub(super) fn comment(lines: &[String]) -> String {
    lines.iter().map(|line| format!("# {}", printable(line)).trim_end().to_owned() + "\n").collect()
}

/// The first lines of a script.
pub(super) fn head(run: &Run, shell: &str, use_it: &[&str]) -> String {
    let mut lines = vec![headline(run)];
    lines.extend(use_it.iter().map(|line| (*line).to_owned()));
    lines.push(format!(
        "Written by `expertrail render {}`: change run.toml and render again rather than this file.",
        run.target.name()
    ));
    lines.extend(run.notes.iter().map(|note| format!("Note: {note}")));
    // Functions are called by `step` and `trap`, values with commas are words of arrays, what follows `&&` and `||` is meant so, a `$`
    // in quotes is for another shell or for none, and not every run uses every directory.
    format!(
        "#!{shell}\n{}# shellcheck disable=SC2015,SC2016,SC2029,SC2034,SC2054,SC2317,SC2329\n",
        comment(&lines)
    )
}

/// `export` lines, each under its reason.
pub(super) fn exports(run: &Run) -> String {
    if run.env.is_empty() {
        return String::new();
    }
    let mut text =
        "# Variables of all ranks. No list of HCAs among them: each rank gets its own, in its process.\n"
            .to_owned();
    for setting in &run.env {
        let _ =
            writeln!(text, "export {}={} # {}", setting.name, quote(&setting.value), printable(&setting.why));
    }
    text.push('\n');
    text
}

/// Processes that a launcher starts on each node for `step`.
pub(super) fn per_node(run: &Run, step: &Step) -> u32 {
    match step.contract {
        Contract::Ranks => run.gpus_per_node,
        Contract::Nodes => 1,
    }
}

/// What stands before a step: what its processes count.
pub(super) fn contract(run: &Run, step: &Step) -> String {
    match step.contract {
        Contract::Ranks => format!(
            "# {}: {}; RANK and WORLD_SIZE count ranks{}.\n",
            step.name,
            count(step.nodes * run.gpus_per_node, "rank"),
            if step.pinned { "; each rank gets its NIC in its own process" } else { "" }
        ),
        Contract::Nodes => format!(
            "# {}: one process on {}, which starts its {} itself; RANK and WORLD_SIZE count nodes.\n",
            step.name,
            each(step.nodes, "node"),
            count(run.gpus_per_node, "rank")
        ),
    }
}

/// Files of `step` that lie outside the run's outputs, so that somebody must fetch them.
pub(super) fn elsewhere(step: &Step) -> Vec<&String> {
    step.collect.iter().filter(|file| !file.starts_with("{out}/")).collect()
}

/// A command line of `sh` that copies what [`elsewhere`] names into the outputs of node `node` (shell text). What is missing is said and fails
/// nothing. Ranks become `*`: the ranks of a node have each written theirs.
pub(super) fn fetch(run: &Run, step: &Step, node: &str) -> Option<Vec<Word>> {
    let files = elsewhere(step);
    if files.is_empty() {
        return None;
    }
    let ranks = run.ranks().to_string();
    let nodes = step.nodes.to_string();
    let per_node = run.gpus_per_node.to_string();
    let names = [
        ("{node}", node),
        ("{rank}", "*"),
        ("{local_rank}", "*"),
        ("{files}", "\"$1\""),
        ("{out}", "\"$2\""),
        ("{run}", &run.id),
        ("{nodes}", &nodes),
        ("{ranks}", &ranks),
        ("{ranks_per_node}", &per_node),
    ];
    let patterns: Vec<String> =
        files.iter().map(|file| pieces(file, &names).unwrap_or_else(|| quote(file))).collect();
    let script = format!(
        "to=$2/collected/node-{node}; mkdir -p \"$to\"; for file in {}; do if [ -f \"$file\" ]; then cp -- \"$file\" \"$to\"; else echo \
         \"node {node}: $file is not collected: no such file\"; fi; done",
        patterns.join(" ")
    );
    let words = [Word::from("sh"), "-c".into(), script.into(), "sh".into(), "{files}".into(), "{out}".into()];
    Some(words.to_vec())
}

/// What comes after the step `preflight`: with `strict` no rank starts on nodes that fail. Wants `finish`.
pub(super) fn after_preflight(run: &Run) -> &'static str {
    match run.preflight {
        Preflight::Strict => {
            "# preflight = \"strict\": no rank starts on nodes that fail.\n[ \"$first\" = 0 ] || finish\n"
        }
        Preflight::Report | Preflight::Off => {
            "# preflight = \"report\": what it found is in the outputs; the run goes on.\n\
             [ \"$first\" = 0 ] || echo \"the preflight itself ended with exit code $first: the run goes on\"\nfirst=0\n"
        }
    }
}

/// The first step over all nodes, for what happens once on each of them.
pub(super) fn everywhere(run: &Run) -> Option<Step> {
    run.steps.first().map(|step| Step { nodes: run.nodes, ..step.clone() })
}

/// Function `kept`: a command whose output is shown and kept as `$out/logs/LOG` and `suffix`, within the time of the run.
pub(super) fn kept(run: &Run, suffix: &str) -> String {
    format!(
        r#"# kept LOG COMMAND...: its output here and in a log; no longer than the run may take in all. 124 is then its exit code.
kept() {{
    local log=$1 left=$(({} - SECONDS))
    shift
    [ "$left" -gt 0 ] || left=1
    exec timeout --kill-after=30 "$left" "$@" > >(tee -a "$out/logs/$log{suffix}.log") 2>&1
}}

"#,
        run.timeout_s
    )
}

/// Functions `fail`, `stop`, `step`, `ranks` and `finish` of a `bash` script that runs one command after the other, survives a signal until its command
/// has ended, and ends with the first failure's exit code.
pub(super) fn supervision(run: &Run) -> String {
    let timeout_s = run.timeout_s;
    // The next step's would take their place.
    let kept = if run.steps.len() > 1 {
        "    mkdir -p \"$host_out/exit/$name\" && mv \"$host_out\"/exit/rank-*.json \"$host_out/exit/$name\"/ 2>/dev/null\n"
    } else {
        ""
    };
    format!(
        r#"fail() {{
    echo "expertrail: $2" >&2
    exit "$1"
}}

pid='' stopped=0 first=0 summary=()
stop() {{
    # What runs first: words may go to a reader that is gone.
    [ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null
    stopped=130
    [ "$SECONDS" -lt {timeout_s} ] || stopped=124
    echo "expertrail: told to stop after $SECONDS s; stopping what runs" >&2
}}
trap stop TERM INT HUP
# Not ignored but caught: what this starts gets the signal as usual.
trap : PIPE

# step NAME COMMAND...: runs one command to its end and keeps its exit code. In the background, because a shell acts on a signal only
# between commands.
step() {{
    local name=$1 code started=$SECONDS
    shift
    [ "$stopped" = 0 ] || return 1
    echo "=== step $name"
    "$@" &
    pid=$!
    wait "$pid"
    code=$?
    # A signal ends the wait, not the step.
    while kill -0 "$pid" 2>/dev/null; do
        wait "$pid"
        code=$?
    done
    pid=''
    # Ranks that were stopped at the time limit have codes of their own, and those say nothing.
    [ "$code" = 0 ] || [ "$SECONDS" -lt {timeout_s} ] || [ "$stopped" != 0 ] || stopped=124
    summary+=("step $name: exit code $code after $((SECONDS - started)) s")
    [ "$first" != 0 ] || first=$code
    return "$code"
}}

# first_exit: code and rank of the process that was the first to fail, of those that said how they ended. Others were stopped because of it,
# and a launcher gives the highest code of all, or its own.
first_exit() {{
    cat "$host_out"/exit/*.json 2>/dev/null | tr -d '",' | awk '
        $1 == "code:" {{ code = $2 }}
        $1 == "rank:" {{ rank = $2 }}
        $1 == "seconds:" {{ seconds = $2 + 0 }}
        $1 == "signal:" {{ signal = $2 }}
        $1 == "}}" {{
            if (code == "null") code = signal == "null" ? 0 : 128 + signal
            if (code != 0 && (first == "" || seconds < least)) {{ first = code; least = seconds; who = rank }}
        }}
        END {{ if (first != "") print first, who }}'
}}

# ranks NAME COMMAND...: a step of ranks; the exit code that is kept is that of the rank which failed first.
ranks() {{
    local name=$1 code='' who='' before=$first
    if ! step "$@"; then
        read -r code who < <(first_exit)
        if [ -n "$code" ]; then
            [ "$before" != 0 ] || first=$code
            summary+=("step $name: the first to fail was rank $who, with exit code $code")
        fi
        echo "step $name failed: see: expertrail diagnose $host_out/logs"
    fi
{kept}}}

# finish: says how each step ended; ends with the first failure's exit code, 124 at the time limit, 130 when stopped before.
finish() {{
    printf '%s\n' "=== end of $run_id" "${{summary[@]}}" "outputs: $host_out"
    [ "$stopped" = 0 ] || exit "$stopped"
    exit "$first"
}}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_become_variables_and_the_rest_stays_quoted() {
        for (word, wanted) in [
            ("{out}/result.json", "\"$out\"/result.json"),
            ("--json={out}/a b", "--json=\"$out\"'/a b'"),
            ("{files}", "\"$files\""),
            ("it's {rank}", r"'it'\''s {rank}'"),
            ("$HOME", "'$HOME'"),
        ] {
            assert_eq!(live(&word.into()), wanted);
        }
        assert_eq!(live(&Word::Shell("\"$X\"".to_owned())), "\"$X\"");
    }

    #[test]
    fn lines_break_before_options_up_to_the_program() {
        let words: Vec<Word> =
            ["a", "b", "--c", "d", "--e", "--", "p", "--q", "r"].into_iter().map(Word::from).collect();
        assert_eq!(lines(&words, "  "), "a b \\\n  --c d \\\n  --e \\\n  -- p --q r");
    }
}
