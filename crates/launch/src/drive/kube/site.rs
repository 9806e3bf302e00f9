//! One cluster and one namespace: calls, and what their refusals mean for a run.

use std::time::{Duration, Instant};

use expertrail_cluster::kube::client::{Client, Kind, Look, Refusal, clean};
use expertrail_cluster::kube::{Kubectl, Output};
use serde_json::Value;

use super::look::RUN_LABEL;
use crate::drive::DriveError;

/// The longest that one question may take.
const CALL: Duration = Duration::from_secs(30);

/// Questions at once.
const THREADS: usize = 8;

/// Time, so that tests need not wait for it.
pub trait Clock: Sync {
    /// Now.
    fn now(&self) -> Instant;
    /// Waits.
    fn sleep(&self, time: Duration);
}

/// This machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Where to: what a person can say of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Context of the kubeconfig.
    pub context: Option<String>,
    /// Namespace.
    pub namespace: String,
}

/// A cluster, a namespace, and the way to it.
pub struct Site<'a> {
    /// Calls.
    pub client: Client<'a>,
    /// Time.
    pub clock: &'a dyn Clock,
    /// Namespace.
    pub namespace: String,
    /// The context that all calls name; none within a pod, which needs none.
    pub context: Option<String>,
    /// Whether a person named the context.
    pub named: bool,
    /// The server's address.
    pub server: Option<String>,
    /// Who asks.
    pub user: Option<String>,
}

impl<'a> Site<'a> {
    /// Finds the context and the server. Nothing is asked of the server yet.
    ///
    /// # Errors
    /// When there is no kubectl, the namespace is one of the system, or the kubeconfig has no such context.
    pub fn open(kubectl: &'a dyn Kubectl, clock: &'a dyn Clock, place: &Place) -> Result<Self, DriveError> {
        if matches!(
            place.namespace.as_str(),
            "" | "default" | "kube-system" | "kube-public" | "kube-node-lease"
        ) {
            return Err(DriveError::Refused(format!(
                "namespace {:?}: a run has a namespace of its own, so that what it leaves behind is easy to see and to remove; name another \
                 (kubernetes.namespace in run.toml, or --namespace)",
                place.namespace
            )));
        }
        // Each call has its own limit; the run as a whole has the launch's.
        let far = Instant::now() + Duration::from_hours(24 * 30);
        let mut client = Client::new(kubectl, far, CALL, THREADS);
        let context = match &place.context {
            Some(context) => Some(context.clone()),
            None => match client.text(&["config", "current-context"]) {
                Ok(text) if text.trim().lines().count() > 1 => {
                    return Err(DriveError::System(format!(
                        "the answer to `kubectl config current-context` is no name of a context: it begins: {}",
                        text.trim().lines().next().map(clean).unwrap_or_default()
                    )));
                }
                Ok(text) => Some(text.trim().to_owned()).filter(|context| !context.is_empty()),
                Err(refusal) if matches!(refusal.kind, Kind::NoKubectl | Kind::Deadline) => {
                    return Err(no_kubectl(&refusal));
                }
                // Inside a pod there is no kubeconfig: kubectl then uses the pod's service account.
                Err(_) => None,
            },
        };
        client.set_context(context.clone());
        let mut site = Self {
            client,
            clock,
            namespace: place.namespace.clone(),
            named: place.context.is_some(),
            context,
            server: None,
            user: None,
        };
        let view = match site.client.json(&["config", "view", "--minify", "-o", "json"]) {
            Ok(view) => view,
            Err(refusal)
                if matches!(
                    refusal.kind,
                    Kind::NoKubectl | Kind::Deadline | Kind::NoContext | Kind::Garbage
                ) =>
            {
                return Err(site.error(&refusal));
            }
            Err(_) => Value::Null,
        };
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(clean);
        site.server = text(&view["clusters"][0]["cluster"]["server"]);
        site.user = text(&view["contexts"][0]["context"]["user"]);
        Ok(site)
    }

    /// What a refusal means for the run.
    pub fn error(&self, refusal: &Refusal) -> DriveError {
        let context = self.context.as_deref().map_or_else(|| "(none)".to_owned(), clean);
        let server = self.server.as_deref().unwrap_or("unknown");
        let said = &refusal.message;
        match refusal.kind {
            Kind::NoKubectl => no_kubectl(refusal),
            Kind::NoContext => DriveError::Refused(format!(
                "the kubeconfig has no context {context} ({said}): `kubectl config get-contexts` lists them"
            )),
            Kind::Unauthorized => DriveError::Access(format!(
                "the credentials of context {context} are not accepted by {server}: they have expired, or are another cluster's ({said}). Log in \
                 again as your provider wants it (on EKS: `aws sso login`, then `aws eks update-kubeconfig`), and try `{}`",
                self.client.typed("auth whoami")
            )),
            Kind::Unreachable | Kind::Deadline => DriveError::Access(format!(
                "the cluster of context {context} (server {server}) does not answer: {said}"
            )),
            Kind::Forbidden => DriveError::Access(format!(
                "{said}. `expertrail rbac --namespace {}` prints the rights that a launch needs",
                self.namespace
            )),
            Kind::Rejected => DriveError::Refused(format!("context {context}: {said}")),
            Kind::Quota => DriveError::Full(format!("context {context}: {said}{}", self.quota(said))),
            Kind::NotFound | Kind::NoSuchKind | Kind::Garbage | Kind::Other => {
                DriveError::System(format!("context {context}: {said}"))
            }
        }
    }

    /// Objects of those kinds with the label of `run`.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn labelled(&self, kinds: &str, run: &str) -> Look<Value> {
        let label = format!("{RUN_LABEL}={run}");
        self.client.json(&["get", kinds, "-n", &self.namespace, "-l", &label, "-o", "json"])
    }

    /// All events of the namespace.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn events(&self) -> Look<Value> {
        self.client.json(&["get", "events", "-n", &self.namespace, "-o", "json"])
    }

    /// The answer of a call that must succeed.
    ///
    /// # Errors
    /// When kubectl says otherwise.
    pub fn done(&self, answer: Look<Output>) -> Result<String, DriveError> {
        match answer {
            Ok(output) if output.code == Some(0) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Ok(output) => Err(self.error(&expertrail_cluster::kube::client::understand(&output))),
            Err(refusal) => Err(self.error(&refusal)),
        }
    }

    /// ` --context C --namespace N` of commands of this program.
    pub fn options(&self) -> String {
        use expertrail_cluster::kube::client::quoted;
        let context = self
            .context
            .as_ref()
            .map(|context| format!(" --context {}", quoted(context)))
            .unwrap_or_default();
        format!("{context} --namespace {}", quoted(&self.namespace))
    }

    /// `text` with the context in its kubectl commands, so that what is copied from it reaches the cluster of the run.
    pub fn named_in(&self, text: &str) -> String {
        /// Words with which commands begin that this program suggests; `kubectl` in other places is prose.
        const BEGIN: [&str; 8] = ["-n", "get", "describe", "logs", "create", "delete", "label", "uncordon"];
        let mut out = String::new();
        for (at, part) in text.split("kubectl ").enumerate() {
            if at > 0 {
                let word = part.split(|c: char| c.is_whitespace() || c == '`').next().unwrap_or_default();
                out.push_str(&if BEGIN.contains(&word) {
                    self.client.typed("")
                } else {
                    "kubectl ".to_owned()
                });
            }
            out.push_str(part);
        }
        out
    }

    /// Which quota is used up, as an admission error names it, and how to look at it.
    pub fn quota(&self, said: &str) -> String {
        let rest = said.split_once("exceeded quota: ").map_or("", |(_, rest)| rest);
        let name = rest.split(|c: char| c == ',' || c.is_whitespace()).next().unwrap_or_default();
        let (which, show) = if name.is_empty() {
            (String::new(), "quota".to_owned())
        } else {
            (format!(" {}", clean(name)), format!("quota {}", expertrail_cluster::kube::client::quoted(name)))
        };
        format!(
            ". The ResourceQuota{which} of namespace {} is used up: `{}` shows by what. Remove what uses it, ask for less, or have it raised",
            self.namespace,
            self.typed(&format!("describe {show}"))
        )
    }

    /// A kubectl command in this namespace, as it is typed.
    pub fn typed(&self, rest: &str) -> String {
        self.client.typed(&format!("-n {} {rest}", self.namespace))
    }
}

fn no_kubectl(refusal: &Refusal) -> DriveError {
    match refusal.kind {
        Kind::Deadline => {
            DriveError::Access(format!("{}: it hangs before it asks any server", refusal.message))
        }
        _ => DriveError::NoProgram(refusal.message.clone()),
    }
}
