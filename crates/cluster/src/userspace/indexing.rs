//! How DeepEP's source finds a queue pair: by the order of before NVSHMEM 3.5, or by both orders (DeepEP pull request 564).

/// More than DeepEP's device header has by far; a function or comment that does not end is read no further.
const FUNCTIONS: usize = 64;

/// Whether the device code looks queue pairs up where NVSHMEM from 3.5.19 on has them. None where no function that begins with
/// `ibgda_get_rc` has an index that is known. White space and comments do not matter; code that the preprocessor always drops does not
/// count.
///
/// A patched tree keeps the old index beside the new, for the state of an old NVSHMEM: the new one decides.
pub fn parse_indexing(text: &str) -> Option<bool> {
    let code = without_comments(text);
    let mut old = false;
    for body in bodies(&code, "ibgda_get_rc").take(FUNCTIONS) {
        let body: String = body.chars().filter(|c| !c.is_whitespace()).collect();
        if has_new_index(&body) {
            return Some(true);
        }
        old |= body.contains("pe*num_rc_per_pe") || body.contains("num_rc_per_pe*pe");
    }
    old.then_some(false)
}

/// `.npes * id` or `id * ….npes`, as an index: a product of the number of processing elements.
fn has_new_index(body: &str) -> bool {
    body.match_indices("npes").any(|(at, word)| {
        // An owner is short; hostile text may be one long name.
        let before = body.get(body.floor_char_boundary(at.saturating_sub(128))..at).unwrap_or_default();
        let after = body.get(at + word.len()..).unwrap_or_default();
        // Not a part of a longer name.
        if after.starts_with(is_name) {
            return false;
        }
        let owner = before.trim_end_matches(|c| is_name(c) || ".->:".contains(c));
        // `rcs[pe + npes * id]`, in either order; `*` before a name could also be a dereference, which stands after no name.
        after.starts_with("*id") || owner.ends_with("id*")
    })
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Bodies of functions whose name begins with `name`. One pass: text is looked at once, however braces are nested.
fn bodies<'a>(code: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let mut from = 0;
    std::iter::from_fn(move || {
        loop {
            let at = from + code.get(from..)?.find(name)?;
            from = at + name.len();
            // A call ends in `;` before a body can begin.
            let rest = code.get(from..)?;
            let open = rest.find(['{', ';', '}'])?;
            if !rest.get(open..)?.starts_with('{') {
                continue;
            }
            let body = rest.get(open..)?;
            let mut depth = 0_usize;
            let end = body.bytes().position(|c| {
                depth = match c {
                    b'{' => depth + 1,
                    b'}' => depth.saturating_sub(1),
                    _ => depth,
                };
                depth == 0
            });
            let end = end.unwrap_or(body.len());
            from += open + end;
            return body.get(1..end);
        }
    })
}

/// The text without comments, and without what stands between `#if 0` and its end.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, slash) = rest.split_at(at);
        out.push_str(before);
        let end = if slash.starts_with("//") {
            slash.find('\n').unwrap_or(slash.len())
        } else if let Some(inner) = slash.strip_prefix("/*") {
            inner.find("*/").map_or(slash.len(), |end| end + 4)
        } else {
            out.push('/');
            1
        };
        out.push(' ');
        rest = slash.get(end..).unwrap_or_default();
    }
    out.push_str(rest);
    let mut dropped = 0_usize;
    let kept = |line: &&str| {
        let word: String = line.split_whitespace().collect();
        if dropped > 0 {
            if word.starts_with("#if") {
                dropped += 1;
            } else if word.starts_with("#endif") || (dropped == 1 && word.starts_with("#el")) {
                dropped -= 1;
            }
            return false;
        }
        dropped = usize::from(word == "#if0" || word == "#iffalse");
        dropped == 0
    };
    out.lines().filter(kept).collect::<Vec<_>>().join("\n")
}

/// Whether the line is `#define NAME`, of the whole name and not of a longer one.
fn defines(line: &str, name: &str) -> bool {
    let directive =
        line.trim_start().strip_prefix('#').and_then(|rest| rest.trim_start().strip_prefix("define"));
    directive.is_some_and(|rest| {
        rest.starts_with(char::is_whitespace) && rest.split_whitespace().next() == Some(name)
    })
}

/// Whether `configs.cuh` defines `__CUDACC_RDC__` for every build with NVSHMEM, the other half of pull request 564: without it device
/// symbols of NVSHMEM get definitions instead of declarations. The unpatched file defines it for an editor only.
pub fn parse_rdc_guard(text: &str) -> bool {
    let code = without_comments(text);
    let mut conditions: Vec<String> = Vec::new();
    for line in code.lines() {
        let word: String = line.split_whitespace().collect();
        if word.starts_with("#if") {
            conditions.push(if conditions.len() < FUNCTIONS { word } else { String::new() });
        } else if word.starts_with("#endif") {
            conditions.pop();
        } else if defines(line, "__CUDACC_RDC__") {
            let usual = ["#ifndefDISABLE_NVSHMEM", "#ifndef__CUDACC_RDC__", "#if!defined(DISABLE_NVSHMEM)"];
            if conditions.iter().all(|condition| usual.contains(&condition.as_str())) {
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    // Index expressions as the report gives them, in code of our own around.
    const OLD: &str = "__device__ Qp* ibgda_get_rc(int pe, int id) {\n auto n = state->num_rc_per_pe;\n return &state->globalmem.rcs[\n pe * num_rc_per_pe * state->num_devices_initialized +\n id % (num_rc_per_pe * state->num_devices_initialized)];\n}\n";

    #[test]
    fn both_forms() {
        let new = "Qp* ibgda_get_rc(int pe, int id) {\n return &state->globalmem.rcs[pe + nvshmemi_device_state_d.npes * id];\n}\n";
        assert_eq!(parse_indexing(OLD), Some(false));
        assert_eq!(parse_indexing(new), Some(true));
        assert_eq!(
            parse_indexing(&new.replace("nvshmemi_device_state_d.npes * id", "id * s->npes")),
            Some(true)
        );
    }

    #[test]
    fn the_backport_keeps_both_in_a_template_that_the_function_calls() {
        let both = "template <typename S> Qp* ibgda_get_rc_impl(S* state, int pe, int id) {\n if constexpr (v1<S>) {\n return &rcs[pe * num_rc_per_pe * n + id % n];\n } else {\n return &rcs[pe + nvshmemi_device_state_d.npes * id];\n }\n}\nQp* ibgda_get_rc(int pe, int id) { return ibgda_get_rc_impl(ibgda_get_state(), pe, id); }\n";
        assert_eq!(parse_indexing(both), Some(true));
    }

    #[test]
    fn what_is_no_evidence() {
        // A call; a comment; code that is dropped; another function; a longer name.
        assert_eq!(parse_indexing("auto rc = ibgda_get_rc(pe, id);\nvoid f() { x = npes * id; }"), None);
        assert_eq!(
            parse_indexing(&OLD.replace("auto n", "/* npes * id */ // npes * id\n auto n")),
            Some(false)
        );
        assert_eq!(
            parse_indexing(&OLD.replace("auto n", "#if 0\n npes * id;\n#endif\n auto n")),
            Some(false)
        );
        assert_eq!(parse_indexing(&format!("{OLD} int other() {{ return npes * id; }}")), Some(false));
        assert_eq!(parse_indexing("q ibgda_get_rc(int a) { return npes_max * id; }"), None);
        assert_eq!(parse_indexing("ibgda_get_rc("), None);
        assert_eq!(parse_indexing("ibgda_get_rc( {{{{"), None);
        assert_eq!(parse_indexing("/* ibgda_get_rc"), None);
    }

    #[test]
    fn large_hostile_text_takes_linear_time() {
        let start = std::time::Instant::now();
        for part in ["/*", "ibgda_get_rc(", "ibgda_get_rc{", "//\n", "{", "npes", "#if 0\n"] {
            let _ = parse_indexing(&part.repeat((4 << 20) / part.len()));
        }
        assert!(
            start.elapsed().as_secs() < if cfg!(debug_assertions) { 60 } else { 20 },
            "{:?}",
            start.elapsed()
        );
    }

    #[test]
    fn the_guard_for_device_symbols() {
        let editor = "#ifdef __CLION_IDE__\n#define __CUDACC_RDC__ // NOLINT\n#endif\n";
        assert!(!parse_rdc_guard(editor));
        let patched = format!(
            "{editor}#ifndef DISABLE_NVSHMEM\n#ifndef __CUDACC_RDC__\n#define __CUDACC_RDC__\n#endif\n#endif\n"
        );
        assert!(parse_rdc_guard(&patched));
        assert!(parse_rdc_guard("#  define\t__CUDACC_RDC__ 1\n"));
        // Longer names, and one that white space parts.
        for line in ["#define __CUDACC_RDC__X", "#define __CUDACC_RDC_ _", "#define__CUDACC_RDC__"] {
            assert!(!parse_rdc_guard(line), "{line}");
        }
    }
}
