//! Whether an answer of kubectl is one to what was asked: a proxy's page, a wrapper's greeting or an object of another kind must not
//! become a verdict on the cluster.

use serde_json::Value;

use super::client::clean;

/// Characters of an answer that a message quotes.
const QUOTED: usize = 120;

/// Options whose value is the next word.
const VALUED: [&str; 6] = ["-n", "--namespace", "-l", "--selector", "-o", "--output"];

/// What a `kubectl get` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Asked<'a> {
    /// Kinds, as they were typed, without their groups.
    kinds: Vec<&'a str>,
    /// Names of objects; none for a list.
    names: Vec<&'a str>,
}

impl<'a> Asked<'a> {
    /// None where it is no `get`.
    fn of(args: &[&'a str]) -> Option<Self> {
        let (first, rest) = args.split_first()?;
        if *first != "get" {
            return None;
        }
        let mut words = Vec::new();
        let mut rest = rest.iter();
        while let Some(word) = rest.next() {
            if VALUED.contains(word) {
                rest.next();
            } else if !word.starts_with('-') {
                words.push(*word);
            }
        }
        // `get job/a service/a` names each with its kind.
        if words.iter().all(|word| word.contains('/')) {
            let (kinds, names) = words.iter().filter_map(|word| word.split_once('/')).unzip();
            return Some(Self { kinds, names });
        }
        let (kinds, names) = words.split_first()?;
        Some(Self { kinds: kinds.split(',').map(plain).collect(), names: names.to_vec() })
    }

    /// Whether `kind`, as the server writes it (`MPIJob`), is one of these.
    fn has(&self, kind: &str) -> bool {
        let one = plain(kind).to_lowercase();
        let many = |asked: &str| {
            asked == one
                || asked.strip_suffix('s').is_some_and(|stem| stem == one)
                || asked.strip_suffix("es").is_some_and(|stem| stem == one)
                || asked.strip_suffix("ies").is_some_and(|stem| one.strip_suffix('y') == Some(stem))
                // A kind that is typed by its singular, and answered by its plural.
                || one.strip_suffix('s') == Some(asked)
        };
        self.kinds.iter().any(|asked| many(&asked.to_lowercase()))
    }
}

/// `jobs.batch` without its group.
fn plain(kind: &str) -> &str {
    kind.split('.').next().unwrap_or(kind)
}

/// Why `value` is no answer to `args` with `-o json`; none where it is one. Parts that an answer leaves out are not held against it.
pub(super) fn objection(args: &[&str], value: &Value) -> Option<String> {
    if !value.is_object() {
        return Some("it is JSON, and no object".to_owned());
    }
    let kind = value["kind"].as_str();
    if args.starts_with(&["config", "view"]) {
        return kind.filter(|kind| *kind != "Config").map(|kind| format!("it is of kind {}", clean(kind)));
    }
    let asked = Asked::of(args)?;
    if asked.names.len() == 1 && asked.kinds.len() == 1 {
        return one(&asked, value);
    }
    let Some(items) = value["items"].as_array() else {
        return Some(match kind {
            Some(kind) => format!("it is of kind {}, and has no list `items`", clean(kind)),
            None => "it has no list `items`".to_owned(),
        });
    };
    items.iter().find_map(|item| one(&asked, item))
}

/// Why `value` is not one of the objects that were asked for.
fn one(asked: &Asked<'_>, value: &Value) -> Option<String> {
    if let Some(kind) = value["kind"].as_str().filter(|kind| !asked.has(kind)) {
        return Some(format!("it has an object of kind {}", clean(kind)));
    }
    let name = value["metadata"]["name"].as_str();
    match name {
        // Events and the like are known by what they are about; a list is asked for without a name.
        None if asked.names.is_empty() => None,
        None => Some("it has an object without a name".to_owned()),
        Some(name) => (!asked.names.is_empty() && !asked.names.contains(&name))
            .then(|| format!("it has an object of the name {}", clean(name))),
    }
}

/// Why `text` is no answer to `args` with `-o name`: every line is `KIND/NAME`. None where it is one, or names were not asked for.
pub(super) fn names_objection(args: &[&str], text: &str) -> Option<String> {
    if !args.windows(2).any(|pair| pair == ["-o", "name"]) {
        return None;
    }
    let asked = Asked::of(args)?;
    let word = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "-._:".contains(c))
    };
    text.lines().filter(|line| !line.trim().is_empty()).find_map(|line| match line.trim().split_once('/') {
        Some((kind, name)) if word(kind) && word(name) => {
            if !asked.has(kind) {
                return Some(format!("it has an object of kind {kind}"));
            }
            let other = !asked.names.is_empty() && !asked.names.contains(&name);
            other.then(|| format!("it has an object of the name {name}"))
        }
        _ => Some("a line of it is no KIND/NAME".to_owned()),
    })
}

/// The message: the command, why, and how the answer begins.
pub(super) fn message(args: &[&str], why: &str, answer: &[u8]) -> String {
    let command = args.join(" ");
    // Cut before it is decoded: it may be long.
    let start = String::from_utf8_lossy(answer.get(..QUOTED * 4).unwrap_or(answer)).into_owned();
    let start: String = start.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(QUOTED).collect();
    let start =
        if start.is_empty() { "it is empty".to_owned() } else { format!("it begins: {}", clean(&start)) };
    format!("the answer to `kubectl {}` is not what was asked for: {why}; {start}", clean(&command))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn why(args: &str, value: &Value) -> String {
        objection(&args.split(' ').collect::<Vec<_>>(), value).unwrap_or_default()
    }

    #[test]
    fn answers_are_held_against_the_question() {
        let pod = json!({"kind": "Pod", "metadata": {"name": "a"}});
        let job = json!({"kind": "Job", "metadata": {"name": "a"}});
        let list = |items: &[&Value]| json!({"kind": "List", "items": items});
        for (args, value) in [
            ("get pods,jobs -n ep -l a=b -o json", list(&[&pod, &job])),
            ("get jobs.batch -n ep -o json", list(&[&job])),
            ("get nicclusterpolicies.mellanox.com -o json", list(&[&json!({"kind": "NicClusterPolicy"})])),
            ("get pod a -n ep -o json", pod.clone()),
            (
                "get configmap a -n ep --show-managed-fields -o json",
                json!({"kind": "ConfigMap", "metadata": {"name": "a"}}),
            ),
            ("get nodes a b -o json", list(&[&json!({"kind": "Node", "metadata": {"name": "b"}})])),
            ("get events -n ep -o json", json!({"items": [{"reason": "Pulled"}]})),
            ("version -o json", json!({"serverVersion": {}})),
        ] {
            assert_eq!(why(args, &value), "", "{args}");
        }
        for (args, value, word) in [
            ("get pods -o json", list(&[&pod, &job]), "kind Job"),
            ("get pods -o json", json!({"kind": "Status", "message": "x"}), "kind Status"),
            ("get pods -o json", json!({}), "no list"),
            ("get pods -o json", json!([]), "no object"),
            ("get nodes a b -o json", list(&[&json!({"kind": "Node", "metadata": {"name": "c"}})]), "name c"),
            (
                "get namespace ep -o json",
                json!({"kind": "Namespace", "metadata": {"name": "other"}}),
                "name other",
            ),
            ("get namespace ep -o json", list(&[]), "kind List"),
            ("get namespace ep -o json", json!({}), "without a name"),
        ] {
            assert!(why(args, &value).contains(word), "{args}: {}", why(args, &value));
        }
    }

    #[test]
    fn names_are_lines_of_kind_and_name() {
        let why = |args: &str, text: &str| {
            names_objection(&args.split(' ').collect::<Vec<_>>(), text).unwrap_or_default()
        };
        assert_eq!(why("get jobs.batch -n ep -l a=b -o name", "job.batch/a\njob.batch/b\n"), "");
        assert_eq!(why("get -n ep --ignore-not-found -o name job/a service/b", "service/b\n"), "");
        assert_eq!(why("get pods -n ep -o name", ""), "");
        assert_eq!(why("get pods -n ep", "NAME READY"), "");
        assert!(why("get pods -n ep -o name", "<html>\n").contains("KIND/NAME"));
        assert!(why("get pods -n ep -o name", "https://login/?a=b\n").contains("KIND/NAME"));
        assert!(why("get pods -n ep -o name", "job.batch/a\n").contains("kind job.batch"));
        assert!(why("get namespace ep -o name", "namespace/other\n").contains("name other"));
    }

    #[test]
    fn a_message_has_the_command_and_the_beginning_of_the_answer() {
        let text = message(&["get", "pods"], "it is no JSON", b"<html>\n  <title>Log in</title>");
        assert_eq!(
            text,
            "the answer to `kubectl get pods` is not what was asked for: it is no JSON; it begins: <html> <title>Log in</title>"
        );
        assert!(message(&["get", "pods"], "x", b"").ends_with("it is empty"));
        assert!(message(&["get"], "x", &vec![b'a'; 100_000]).len() < 300);
    }
}
