//! Calls to one cluster: explicit context, a limit for each call and one for all, and what kubectl's errors mean.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::answer;
use super::kubectl::{Kubectl, KubectlError, Output};

/// What kind of refusal it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::enum_variant_names)] // NoSuchKind is of Kubernetes, the enum of refusals
pub enum Kind {
    /// kubectl is not there or cannot be run.
    NoKubectl,
    /// No answer in time.
    Deadline,
    /// No server answers.
    Unreachable,
    /// The server does not know who asks.
    Unauthorized,
    /// The kubeconfig has no such context.
    NoContext,
    /// Not permitted.
    Forbidden,
    /// There is no such object.
    NotFound,
    /// The server has no such kind of object.
    NoSuchKind,
    /// The server does not take an object: it is not valid, or a rule of admission says no.
    Rejected,
    /// A quota is used up.
    Quota,
    /// The answer is not what it should be.
    Garbage,
    /// Anything else that kubectl says.
    Other,
}

/// Why something could not be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What kind it is.
    pub kind: Kind,
    /// What kubectl or the server said, for a person.
    pub message: String,
}

impl Refusal {
    fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The object, or its whole kind, is not there: an answer, not a failure to look.
    pub fn absent(&self) -> bool {
        matches!(self.kind, Kind::NotFound | Kind::NoSuchKind)
    }

    /// Nothing more can be asked of this cluster.
    pub fn fatal(&self) -> bool {
        matches!(self.kind, Kind::NoKubectl | Kind::Unreachable | Kind::Unauthorized | Kind::NoContext)
    }
}

/// What was looked up, or why not.
pub type Look<T> = Result<T, Refusal>;

/// kubectl for one context.
pub struct Client<'a> {
    kubectl: &'a dyn Kubectl,
    context: Option<String>,
    /// The kubeconfig that calls use: typed commands must name it, too.
    kubeconfig: Option<String>,
    until: Instant,
    limit: Duration,
    threads: usize,
}

impl<'a> Client<'a> {
    /// Calls through `kubectl`, each at most `limit` long, all of them done at `until`.
    pub fn new(kubectl: &'a dyn Kubectl, until: Instant, limit: Duration, threads: usize) -> Self {
        Self { kubectl, context: None, kubeconfig: None, until, limit, threads: threads.max(1) }
    }

    /// Every later call names this context.
    pub fn set_context(&mut self, context: Option<String>) {
        self.context = context;
    }

    /// Commands for a person name this kubeconfig.
    pub fn set_kubeconfig(&mut self, file: Option<&std::path::Path>) {
        self.kubeconfig = file.map(|file| file.to_string_lossy().into_owned());
    }

    /// ` --kubeconfig FILE`, or nothing.
    pub fn kubeconfig(&self) -> String {
        self.kubeconfig.as_ref().map(|file| format!(" --kubeconfig {}", quoted(file))).unwrap_or_default()
    }

    /// Time that is left for all calls.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Runs a call. Its exit status is left to the caller.
    ///
    /// # Errors
    /// When kubectl cannot be run or gives no answer in time.
    pub fn raw(&self, args: &[&str]) -> Look<Output> {
        let limit = self.limit.min(self.left());
        if limit.is_zero() {
            return Err(Refusal::new(Kind::Deadline, "not asked: the time for the whole check was used up"));
        }
        self.raw_within(args, limit)
    }

    /// As [`Client::raw`], also after the deadline: for what must not be left undone.
    ///
    /// # Errors
    /// When kubectl cannot be run or gives no answer in time.
    pub fn raw_within(&self, args: &[&str], limit: Duration) -> Look<Output> {
        let (context, timeout) = self.common(limit);
        let mut all: Vec<&str> = context.as_deref().into_iter().collect();
        all.push(&timeout);
        all.extend(args);
        answered(self.kubectl.run(&all, limit))
    }

    /// As [`Client::raw_within`], with `input` as kubectl's standard input.
    ///
    /// # Errors
    /// As [`Client::raw_within`].
    pub fn raw_with(&self, args: &[&str], input: &[u8], limit: Duration) -> Look<Output> {
        let (context, timeout) = self.common(limit);
        let mut all: Vec<&str> = context.as_deref().into_iter().collect();
        all.push(&timeout);
        all.extend(args);
        answered(self.kubectl.run_with(&all, input, limit))
    }

    /// Options that every call has.
    fn common(&self, limit: Duration) -> (Option<String>, String) {
        let context = self.context.as_ref().map(|context| format!("--context={context}"));
        (context, format!("--request-timeout={}s", limit.as_secs().max(1)))
    }

    /// Standard output of a call that succeeds. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// When it does not succeed; for a `get` with `-o name`, when it answers anything but names of what was asked for.
    pub fn text(&self, args: &[&str]) -> Look<String> {
        let output = self.raw(args)?;
        if output.code != Some(0) {
            return Err(understand(&output));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match answer::names_objection(args, &text) {
            Some(why) => Err(Refusal::new(Kind::Garbage, answer::message(args, &why, &output.stdout))),
            None => Ok(text),
        }
    }

    /// As [`Client::text`], as JSON.
    ///
    /// # Errors
    /// When it does not succeed or answers something else: no JSON, or an object of another kind or name than was asked for.
    pub fn json(&self, args: &[&str]) -> Look<Value> {
        let output = self.raw(args)?;
        if output.code != Some(0) {
            return Err(understand(&output));
        }
        let garbage = |why: &str| Refusal::new(Kind::Garbage, answer::message(args, why, &output.stdout));
        let value = serde_json::from_slice(&output.stdout)
            .map_err(|error| garbage(&format!("it is no JSON ({error})")))?;
        match answer::objection(args, &value) {
            Some(why) => Err(garbage(&why)),
            None => Ok(value),
        }
    }

    /// The objects of a list, each taken apart by `read`; one that is not understood is left out.
    ///
    /// # Errors
    /// When it does not succeed or the answer is no list.
    pub fn list<T>(&self, args: &[&str], read: impl Fn(&Value) -> Option<T>) -> Look<Vec<T>> {
        let value = self.json(args)?;
        if let Some(items) = value.get("items").and_then(Value::as_array) {
            Ok(items.iter().filter_map(read).collect())
        } else {
            let what = args.iter().take(2).copied().collect::<Vec<_>>().join(" ");
            Err(Refusal::new(Kind::Garbage, format!("the answer to `kubectl {what}` has no list `items`")))
        }
    }

    /// `work` for each of `items`, a few at a time; results in their order.
    pub fn each<T: Sync, R: Send>(&self, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut done = Vec::new();
            while let (at, Some(item)) = {
                let at = next.fetch_add(1, Ordering::Relaxed);
                (at, items.get(at))
            } {
                done.push((at, work(item)));
            }
            done
        };
        let mut all: Vec<(usize, R)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads.min(items.len())).map(|_| scope.spawn(worker)).collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, result)| result).collect()
    }

    /// A command as it is typed for this cluster. `rest` follows `kubectl`.
    pub fn typed(&self, rest: &str) -> String {
        let file = self.kubeconfig();
        match &self.context {
            Some(context) => format!("kubectl{file} --context {} {rest}", quoted(context)),
            None => format!("kubectl{file} {rest}"),
        }
    }
}

/// The answer, or what kind of failure it is that there is none.
fn answered(result: Result<Output, KubectlError>) -> Look<Output> {
    result.map_err(|error| {
        let kind = match error {
            KubectlError::Missing(_) | KubectlError::Start { .. } => Kind::NoKubectl,
            KubectlError::Deadline { .. } => Kind::Deadline,
            KubectlError::TooLong { .. } => Kind::Garbage,
        };
        Refusal::new(kind, error.to_string())
    })
}

/// What kubectl and servers say of an object that they do not take.
const REJECTED: [&str; 10] = [
    " is invalid:",
    "(Invalid)",
    "(BadRequest)",
    "unknown field ",
    "error validating ",
    "error parsing ",
    "error converting YAML to JSON",
    "strict decoding error",
    "denied the request",
    "Object 'Kind' is missing",
];

/// What kubectl means by an error.
pub fn understand(output: &Output) -> Refusal {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let has = |parts: &[&str]| parts.iter().any(|part| stderr.contains(part));
    let kind = if has(&["does not exist", "context was not found"]) && has(&["context"]) {
        Kind::NoContext
    } else if has(&["exceeded quota:"]) {
        // The server calls both of these forbidden too, and no right would change them.
        Kind::Quota
    } else if has(&REJECTED) {
        Kind::Rejected
    } else if has(&["(Forbidden)", "is forbidden:", "Forbidden"]) {
        Kind::Forbidden
    } else if has(&["(NotFound)"]) {
        Kind::NotFound
    } else if has(&[
        "the server doesn't have a resource type",
        "the server could not find the requested resource",
        "no matches for kind",
    ]) {
        Kind::NoSuchKind
    } else if has(&["Unauthorized", "You must be logged in", "getting credentials"]) {
        Kind::Unauthorized
    } else if has(&[
        "Unable to connect to the server",
        "The connection to the server",
        "connection refused",
        "no such host",
        "i/o timeout",
        "TLS handshake timeout",
        "Client.Timeout exceeded",
        "no configuration has been provided",
    ]) {
        Kind::Unreachable
    } else {
        Kind::Other
    };
    // kubectl's last line is the error, those before it are its own log lines; a crash of it, or a plugin, writes on below.
    let starts = ["error", "Error", "Unable to", "The connection", "panic:"];
    let named = stderr.lines().rev().find(|line| starts.iter().any(|start| line.starts_with(start)));
    let last = named.or_else(|| stderr.lines().rev().find(|line| !line.trim().is_empty()));
    let message = match (last, output.code) {
        (Some(line), _) => clean(line.trim().trim_start_matches("error: ")),
        (None, Some(code)) => format!("kubectl ended with status {code} and no message"),
        (None, None) => "kubectl was ended by a signal".to_owned(),
    };
    Refusal { kind, message }
}

/// Text of a cluster for a person: one line, without control characters or credentials of URLs, and not too long.
pub fn clean(text: &str) -> String {
    let mut out: String = text
        .chars()
        .take(400)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect::<String>()
        .trim()
        .to_owned();
    if text.chars().nth(400).is_some() {
        out.push_str(" ...");
    }
    without_credentials(&out)
}

/// `https://user:secret@host` becomes `https://host`.
pub fn without_credentials(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        out.push_str(before);
        out.push_str("://");
        let end = after.find(|c: char| c.is_whitespace() || "/\"'?#".contains(c)).unwrap_or(after.len());
        let (authority, tail) = after.split_at(end);
        out.push_str(authority.rsplit_once('@').map_or(authority, |(_, host)| host));
        rest = tail;
    }
    out.push_str(rest);
    out
}

/// `text` as one word of a shell.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/:@=,+-".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        let safe: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("'{}'", safe.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> Refusal {
        understand(&Output { code: Some(1), stdout: Vec::new(), stderr: text.as_bytes().to_vec() })
    }

    #[test]
    fn what_kubectl_means() {
        let cases = [
            ("error: context \"x\" does not exist\n", Kind::NoContext),
            ("Error in configuration: context was not found for specified context: x\n", Kind::NoContext),
            (
                "Error from server (Forbidden): nodes is forbidden: User \"a\" cannot list resource\n",
                Kind::Forbidden,
            ),
            ("Error from server (NotFound): configmaps \"nvidia-kernel-params\" not found\n", Kind::NotFound),
            ("error: the server doesn't have a resource type \"nvidiadrivers\"\n", Kind::NoSuchKind),
            ("error: You must be logged in to the server (Unauthorized)\n", Kind::Unauthorized),
            (
                "E1130 05:00:00.0 1 memcache.go:265] x\nThe connection to the server localhost:8080 was refused - did you specify the right host or port?\n",
                Kind::Unreachable,
            ),
            (
                "Unable to connect to the server: dial tcp: lookup k on 1.1.1.1:53: no such host\n",
                Kind::Unreachable,
            ),
            (
                "error: unable to upgrade connection: container not found (\"nvidia-driver-ctr\")\n",
                Kind::Other,
            ),
            ("", Kind::Other),
            (
                "The Job \"x\" is invalid: spec.template: Invalid value: core.PodTemplateSpec{}: field is immutable\n",
                Kind::Rejected,
            ),
            (
                "Error from server (BadRequest): error when creating \"STDIN\": Job in version \"v1\" cannot be handled as a Job: strict decoding \
                 error: unknown field \"spec.complections\"\n",
                Kind::Rejected,
            ),
            (
                "error: error validating \"STDIN\": error validating data: ValidationError(Job.spec): unknown field \"x\"\n",
                Kind::Rejected,
            ),
            (
                "Error from server (Forbidden): error when creating \"STDIN\": admission webhook \"validate.kyverno.svc-fail\" denied the request: \
                 resource Job/ep/x was blocked\n",
                Kind::Rejected,
            ),
            (
                "Error from server (Forbidden): error when creating \"STDIN\": jobs.batch \"x\" is forbidden: exceeded quota: bench-quota, requested: \
                 count/jobs.batch=1, used: count/jobs.batch=4, limited: count/jobs.batch=4\n",
                Kind::Quota,
            ),
            (
                "Error from server (InternalError): Internal error occurred: failed calling webhook \"x\"\n",
                Kind::Other,
            ),
        ];
        for (text, kind) in cases {
            assert_eq!(error(text).kind, kind, "{text}");
        }
        assert!(
            error("E1 log\nThe connection to the server x was refused\n")
                .message
                .starts_with("The connection")
        );
        assert_eq!(error("").message, "kubectl ended with status 1 and no message");
    }

    #[test]
    fn nothing_secret_and_nothing_that_moves_the_cursor() {
        assert_eq!(without_credentials("https://me:pw@host:6443/x y://b@c"), "https://host:6443/x y://c");
        assert_eq!(without_credentials("no address, a@b"), "no address, a@b");
        assert_eq!(clean("a\u{1b}[2Jb\nc"), "a [2Jb c");
        assert!(clean(&"x".repeat(10_000)).len() < 500);
    }

    #[test]
    fn words_of_a_shell() {
        assert_eq!(quoted("gpu-node-1.example"), "gpu-node-1.example");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("a'; rm -rf /"), "'a'\\''; rm -rf /'");
        assert_eq!(quoted(""), "''");
    }
}
