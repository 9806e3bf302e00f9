//! A run on Kubernetes, through `kubectl`: shown, started, watched, collected, removed.
//!
//! No cluster was at hand when this was written: it is tested with stand-ins for `kubectl` that answer as clusters were seen to
//! (`tests/drive_kube.rs`), and with `kubectl` itself as far as it goes without one.

mod access;
mod apply;
mod capacity;
mod clean;
mod collect;
mod decide;
mod follow;
mod list;
mod look;
mod manifest;
mod reasons;
mod site;
mod watch;
mod words;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use expertrail_cluster::kube::Kubectl;
use expertrail_cluster::kube::client::{Kind, clean as tidy};

pub use access::{Uses, manifest as roles};
pub use list::{Which, logs, over, remove, runs, status};
pub use look::RUN_LABEL;
pub use site::{Clock, Place, RealClock, Site};

use super::{Collect, DriveError, Ending, Event, Show, Stop, System};
use crate::run::{Run, Target};
use crate::spec::Binary;
use manifest::{Document, Manifest, Template};
use watch::Watch;

/// How long a state that may mend itself is borne before the run is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// No node takes a pod.
    pub no_room: Duration,
    /// The image cannot be had. The kubelet tries again after 10, 20, 40 s: what does not heal by then is no hiccup.
    pub no_image: Duration,
    /// A volume cannot be mounted. `ConfigMap`s that come a little later than the pod are normal.
    pub no_volume: Duration,
    /// A container cannot be made.
    pub bad_config: Duration,
    /// A container ends and is begun again.
    pub crashing: Duration,
    /// There are no pods at all.
    pub no_pods: Duration,
    /// The API server does not answer.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            no_room: Duration::from_mins(10),
            no_image: Duration::from_secs(90),
            no_volume: Duration::from_mins(2),
            bad_config: Duration::from_mins(1),
            crashing: Duration::from_mins(3),
            no_pods: Duration::from_mins(2),
            silence: Duration::from_mins(5),
        }
    }
}

/// How the cluster is reached, and what is done there.
#[derive(Clone, Debug)]
pub struct Options {
    /// Context of the kubeconfig; none: the run's, else the current one.
    pub context: Option<String>,
    /// Namespace; must be the rendered one.
    pub namespace: Option<String>,
    /// This project's binary, where it is copied into pods.
    pub binary: PathBuf,
    /// What is borne.
    pub patience: Patience,
    /// Between two looks at the cluster.
    pub interval: Duration,
}

impl Options {
    /// The usual, with `binary`.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self {
            context: None,
            namespace: None,
            binary: binary.into(),
            patience: Patience::default(),
            interval: Duration::from_secs(2),
        }
    }
}

/// A run on a cluster.
pub struct KubeSystem<'a> {
    kubectl: &'a dyn Kubectl,
    clock: &'a dyn Clock,
    run: Run,
    folder: PathBuf,
    options: Options,
    opened: Option<Opened<'a>>,
    watch: Watch,
    /// The start found the run of another launch, or could not look for one.
    beaten: bool,
}

/// What is known once the cluster and the files were looked at.
struct Opened<'a> {
    site: Site<'a>,
    manifest: Manifest,
}

impl<'a> KubeSystem<'a> {
    /// `run` as it was rendered into `folder`. Nothing is asked yet.
    pub fn new(
        kubectl: &'a dyn Kubectl,
        clock: &'a dyn Clock,
        run: &Run,
        folder: impl Into<PathBuf>,
        options: Options,
    ) -> Self {
        let watch = Watch::new(clock.now());
        Self {
            kubectl,
            clock,
            run: run.clone(),
            folder: folder.into(),
            options,
            opened: None,
            watch,
            beaten: false,
        }
    }

    /// Where the run goes to: as rendered, as far as that says; anything else is refused.
    fn place(&self) -> Result<Place, DriveError> {
        let rendered = &self.run.kubernetes;
        if let (Some(given), Some(wanted)) = (&self.options.context, &rendered.context)
            && given != wanted
        {
            return Err(DriveError::Refused(format!(
                "--context {}: the run was rendered for context {}; render it again with --set kubernetes.context={}",
                tidy(given),
                tidy(wanted),
                tidy(given)
            )));
        }
        if let Some(given) = self.options.namespace.as_ref().filter(|given| **given != rendered.namespace) {
            return Err(DriveError::Refused(format!(
                "--namespace {}: the run was rendered for namespace {}, and rank 0's address is within it; render it again with --set \
                 kubernetes.namespace={}",
                tidy(given),
                rendered.namespace,
                tidy(given)
            )));
        }
        Ok(Place {
            context: self.options.context.clone().or_else(|| rendered.context.clone()),
            namespace: rendered.namespace.clone(),
        })
    }

    fn open(&mut self) -> Result<(), DriveError> {
        if self.opened.is_none() {
            let place = self.place()?;
            let manifest = Manifest::read(&self.folder, &self.run)?;
            self.opened = Some(Opened { site: Site::open(self.kubectl, self.clock, &place)?, manifest });
        }
        Ok(())
    }

    /// The cluster alone: enough to collect and to remove, whatever became of the files.
    fn site(&mut self) -> Result<&Site<'a>, DriveError> {
        if self.opened.is_none() {
            let site = Site::open(self.kubectl, self.clock, &self.place()?)?;
            self.opened = Some(Opened { site, manifest: Manifest::default() });
        }
        self.parts().map(|(site, _)| site)
    }

    fn parts(&self) -> Result<(&Site<'a>, &Manifest), DriveError> {
        let opened = self.opened.as_ref();
        opened
            .map(|opened| (&opened.site, &opened.manifest))
            .ok_or_else(|| DriveError::System("the cluster was not looked at yet".to_owned()))
    }

    /// Documents that come first, and the `MPIJob` that is run first.
    fn first(manifest: &Manifest) -> Vec<&Document> {
        manifest.base.iter().chain(manifest.steps.first()).collect()
    }
}

fn objects(manifest: &Manifest) -> Vec<String> {
    let line = |one: &Document| match one.template() {
        Some(template) if one.kind() == "DaemonSet" => {
            format!("  DaemonSet {}: pulls {} on every node first", one.name(), template.images.join(", "))
        }
        Some(template) => {
            let what = template.asks();
            let asks = if what.is_empty() { String::new() } else { format!(", each {what}") };
            format!(
                "  {} {}: {} pods{asks}; image {}",
                one.kind(),
                one.name(),
                template.pods,
                template.images.join(", ")
            )
        }
        None => format!("  {} {}", one.kind(), one.name()),
    };
    manifest.objects().map(line).map(|line| tidy_line(&line)).collect()
}

/// As [`tidy`], with the indent.
fn tidy_line(line: &str) -> String {
    format!("  {}", tidy(line))
}

impl System for KubeSystem<'_> {
    fn describe(&mut self) -> Result<Vec<String>, DriveError> {
        self.open()?;
        let (site, manifest) = self.parts()?;
        let how = if site.named { "" } else { ", the current one: name it with --context to be sure" };
        let mut lines = vec![
            format!("cluster: {}", site.server.as_deref().unwrap_or("address unknown")),
            format!("context: {}{how}", site.context.as_deref().map_or_else(|| "none".to_owned(), tidy)),
            format!("user: {}", site.user.as_deref().unwrap_or("unknown")),
        ];
        let there = match apply::exists(site) {
            Ok(true) => "",
            Ok(false) => " (will be made)",
            Err(refusal) if refusal.kind == Kind::Forbidden => " (it cannot be seen whether it exists)",
            Err(refusal) => return Err(site.error(&refusal)),
        };
        lines.push(format!("namespace: {}{there}", site.namespace));
        lines.push(format!("run {}: will be made, and removed at the end:", self.run.id));
        lines.extend(objects(manifest));
        if let Some(template) = manifest.template() {
            lines.push(match capacity::Capacity::look(site, &template) {
                Ok(capacity) => format!("nodes: {}", capacity.line()),
                Err(refusal) => format!("nodes: cannot be seen ({})", refusal.message),
            });
            for path in &template.host_paths {
                lines.push(format!(
                    "host folder {}: whether nodes have it cannot be seen from here; pods on a node without it do not start",
                    tidy(path)
                ));
            }
        }
        if self.run.kubernetes.binary == Binary::Copy {
            lines.push(format!("copied into each pod: {}", self.options.binary.display()));
        }
        for file in &manifest.ignored {
            lines.push(format!("not applied, for it is not of this run: {file}"));
        }
        Ok(lines)
    }

    fn ready(&mut self, show: &mut dyn Show) -> Result<(), DriveError> {
        self.open()?;
        let (site, manifest) = self.parts()?;
        show.show(Event::Step("asking for permissions".to_owned()));
        let makes = match apply::exists(site) {
            Ok(there) => !there,
            Err(refusal) if refusal.kind == Kind::Forbidden => false,
            Err(refusal) => return Err(site.error(&refusal)),
        };
        access::review(site, Uses::of(&self.run, makes), show)?;
        if self.run.target == Target::Mpijob {
            let definition = ["get", "customresourcedefinitions", "mpijobs.kubeflow.org", "-o", "name"];
            match site.client.text(&definition) {
                Err(refusal) if refusal.absent() => {
                    return Err(DriveError::Refused(
                        "the cluster knows no MPIJobs: the MPI Operator is not installed (there is no definition mpijobs.kubeflow.org). Install it, \
                         or render the target k8s-job, which needs no operator"
                            .to_owned(),
                    ));
                }
                _ => {}
            }
        }
        let documents: Vec<&Document> = manifest.objects().collect();
        apply::absent(site, &self.run.id, &documents)?;
        if self.run.kubernetes.binary == Binary::Copy {
            apply::binary(&self.options.binary)?;
        }
        let Some(template) = manifest.template() else { return Ok(()) };
        apply::secrets(site, &template.secrets)?;
        room(site, &template, show)
    }

    fn start(&mut self, show: &mut dyn Show) -> Result<(), DriveError> {
        self.open()?;
        let (site, manifest) = self.parts()?;
        // Between the question and now somebody else may have begun the same run, which must not be removed as this one's.
        let others = apply::absent(site, &self.run.id, &manifest.objects().collect::<Vec<_>>());
        self.beaten = others.is_err();
        others?;
        let (site, manifest) = self.parts()?;
        apply::namespace(site, manifest.namespace.as_ref(), show)?;
        show.show(Event::Step("asking the API server whether it takes the manifest".to_owned()));
        apply::rehearse(site, &manifest.objects().collect::<Vec<_>>())?;
        let pulls = !manifest.pulls.is_empty();
        let now = if pulls { manifest.pulls.iter().collect() } else { Self::first(manifest) };
        show.show(Event::Step(format!("applying {}", titles(&now))));
        let made = apply::apply(site, &now)?;
        show.show(Event::Step(format!("made {}", made.join(", "))));
        self.watch.begin(pulls, self.clock.now());
        Ok(())
    }

    fn untouched(&self) -> bool {
        self.beaten
    }

    fn watch(&mut self, show: &mut dyn Show, stop: &dyn Stop, until: Instant) -> Result<Ending, DriveError> {
        self.open()?;
        let Some(opened) = &self.opened else {
            return Err(DriveError::System("the cluster was not looked at yet".to_owned()));
        };
        let task = watch::Task {
            site: &opened.site,
            manifest: &opened.manifest,
            run: &self.run,
            options: &self.options,
        };
        let mut show = Named { show, site: &opened.site };
        let ending = self.watch.run(&task, &mut show, stop, until)?;
        Ok(named_ending(&opened.site, ending))
    }

    fn collect(&mut self, to: &mut dyn Collect) -> Result<(), DriveError> {
        let id = self.run.id.clone();
        let followed = std::mem::take(&mut self.watch).into_logs();
        collect::collect(self.site()?, &id, &followed, to)
    }

    fn clean(&mut self, show: &mut dyn Show) -> Result<(), DriveError> {
        let id = self.run.id.clone();
        clean::remove(self.site()?, &id, show)
    }
}

/// Shows events with the context in their commands.
struct Named<'a, 'c> {
    show: &'a mut dyn Show,
    site: &'a Site<'c>,
}

impl Show for Named<'_, '_> {
    fn show(&mut self, event: Event) {
        self.show.show(match event {
            Event::State(text) => Event::State(self.site.named_in(&text)),
            Event::Warning(text) => Event::Warning(self.site.named_in(&text)),
            // What the run prints is not changed, and steps have no commands.
            other @ (Event::Step(_) | Event::Line(_)) => other,
        });
    }
}

/// An ending with the context in its commands.
fn named_ending(site: &Site<'_>, ending: Ending) -> Ending {
    match ending {
        Ending::Failed { reason, code } => Ending::Failed { reason: site.named_in(&reason), code },
        Ending::NeverStarted { reason } => Ending::NeverStarted { reason: site.named_in(&reason) },
        Ending::Deadline { state } => Ending::Deadline { state: site.named_in(&state) },
        Ending::Succeeded | Ending::Interrupted => ending,
    }
}

fn titles(documents: &[&Document]) -> String {
    documents.iter().map(|one| format!("{} {}", one.kind(), tidy(one.name()))).collect::<Vec<_>>().join(", ")
}

/// Refuses what can never fit; warns of what may have to wait.
fn room(site: &Site<'_>, template: &Template, show: &mut dyn Show) -> Result<(), DriveError> {
    let capacity = match capacity::Capacity::look(site, template) {
        Ok(capacity) => capacity,
        Err(refusal) if refusal.kind == Kind::Forbidden => return Ok(()),
        Err(refusal) => return Err(site.error(&refusal)),
    };
    if let Some(never) = capacity.never(template.pods) {
        return Err(DriveError::Refused(site.named_in(&never)));
    }
    if let Some(waits) = capacity.waits(template.pods) {
        show.show(Event::Warning(site.named_in(&waits)));
    }
    Ok(())
}
