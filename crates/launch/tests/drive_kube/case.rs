//! A run for the scripted cluster, and one launch of it from beginning to end.
#![allow(unreachable_pub, dead_code)] // a part of several tests, each of which uses some of it

use std::path::PathBuf;

use expertrail_launch::drive::kube::{KubeSystem, Options};
use expertrail_launch::drive::{DriveError, Ending, System};
use expertrail_launch::run::{Run, Target};
use expertrail_launch::spec::Spec;
use tempfile::TempDir;

use crate::world::{Bundle, Hand, Shown, World};

/// A rendered directory, written by hand: these tests are of the launch, not of the rendering.
pub struct Case {
    pub run: Run,
    pub folder: TempDir,
    pub binary: PathBuf,
}

/// What one launch came to.
pub struct Launched {
    pub lines: Vec<String>,
    /// The first step that was refused, or how it ended.
    pub ending: Result<Ending, DriveError>,
    pub shown: Shown,
    pub bundle: Bundle,
    pub cleaned: Result<(), DriveError>,
}

impl Case {
    pub fn new(extra: &str) -> Self {
        let text = format!(
            "name = \"bringup\"\nengine = \"command\"\ncommand = [\"true\"]\nprofile = \"crusoe-h200\"\nimage = \"ghcr.io/owner/image:tag\"\n{extra}"
        );
        let spec = Spec::parse("run.toml", &text, &[]).unwrap();
        let run = Run::resolve(&spec, Target::K8sJob, None, Some("bringup-abc123")).unwrap();
        let folder = TempDir::new().unwrap();
        let binary = folder.path().join("expertrail");
        std::fs::write(&binary, vec![7u8; 1000]).unwrap();
        let case = Self { run, folder, binary };
        case.write("namespace.yaml", &case.namespace());
        case.write("manifest.yaml", &case.manifest("900Gi"));
        if case.run.kubernetes.prepull {
            case.write("prepull.yaml", &case.prepull());
        }
        case
    }

    /// `MPIJob`s of the provider's three benchmarks, one after the other.
    pub fn mpi() -> Self {
        let text = "name = \"bringup\"\nengine = \"deepep\"\nprofile = \"aws-p5en\"\nimage = \"ghcr.io/owner/image:tag\"\n\
                    benchmarks = [\"intranode\", \"internode\", \"low-latency\"]\n[deepep]\n\
                    driver = \"upstream-tests\"\n[kubernetes]\nbinary = \"image\"\n";
        let spec = Spec::parse("run.toml", text, &[]).unwrap();
        let run = Run::resolve(&spec, Target::Mpijob, None, Some("bringup-abc123")).unwrap();
        let folder = TempDir::new().unwrap();
        let binary = folder.path().join("expertrail");
        let case = Self { run, folder, binary };
        case.write("namespace.yaml", &case.namespace());
        for step in &case.run.steps {
            let text = format!(
                "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {{name: {}-{}, namespace: expertrail, labels: {}}}\nspec:\n  \
                 mpiReplicaSpecs:\n    Worker:\n      replicas: {}\n      template: {{spec: {{containers: [{{name: ranks, image: i}}]}}}}\n",
                case.run.id,
                step.name,
                case.labels(),
                step.nodes
            );
            case.write(&format!("mpijob-{}.yaml", step.name), &text);
        }
        case
    }

    /// As `render` writes it, in place of what was written by hand.
    pub fn rendered(self) -> Self {
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ext| ext == "yaml") {
                std::fs::remove_file(path).unwrap();
            }
        }
        for file in expertrail_launch::render::run(&self.run).unwrap().files {
            self.write(&file.path, &file.text);
        }
        self
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn labels(&self) -> String {
        format!(
            "{{app.kubernetes.io/managed-by: expertrail, expertrail.dev/run: {id}, app: {id}}}",
            id = self.run.id
        )
    }

    fn namespace(&self) -> String {
        format!(
            "# Made where it is missing.\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: expertrail\n  labels: {}\n",
            self.labels()
        )
    }

    pub fn manifest(&self, memory: &str) -> String {
        let (id, labels, nodes) = (&self.run.id, self.labels(), self.run.nodes);
        format!(
            "# head\napiVersion: v1\nkind: Service\nmetadata: {{name: {id}, namespace: expertrail, labels: {labels}}}\nspec: {{clusterIP: None}}\n\
             ---\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: {id}, namespace: expertrail, labels: {labels}}}\nspec:\n  completions: {nodes}\n  \
             parallelism: {nodes}\n  ttlSecondsAfterFinished: 3600\n  template:\n    spec:\n      containers:\n        - name: ranks\n          \
             image: ghcr.io/owner/image:tag\n          command:\n            - |\n              echo a\n              ---\n          \
             resources:\n            requests: {{memory: {memory}, cpu: 158}}\n            limits: {{nvidia.com/gpu: 8, nvidia.com/hostdev: 8}}\n"
        )
    }

    fn prepull(&self) -> String {
        let (id, labels) = (&self.run.id, self.labels());
        format!(
            "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: {id}-prepull, namespace: expertrail, labels: {labels}}}\nspec:\n  template:\n    \
             spec:\n      containers:\n        - {{name: pulled, image: ghcr.io/owner/image:tag}}\n"
        )
    }

    pub fn options(&self) -> Options {
        Options::new(&self.binary)
    }

    pub fn launch(&self, world: &World, stop_at: Option<u64>) -> Launched {
        self.launch_with(world, stop_at, self.options())
    }

    /// What the orchestrator does, in its order.
    pub fn launch_with(&self, world: &World, stop_at: Option<u64>, options: Options) -> Launched {
        let mut shown = Shown::default();
        let mut system = KubeSystem::new(world, &world.time, &self.run, self.folder.path(), options);
        let stop = Hand { time: &world.time, at: stop_at };
        let mut lines = Vec::new();
        let mut begun = false;
        let ending = (|| {
            lines = system.describe()?;
            system.ready(&mut shown)?;
            begun = true;
            system.start(&mut shown)?;
            system.watch(&mut shown, &stop, world.time.at(self.run.timeout_s))
        })();
        let mut bundle = Bundle::default();
        let mut cleaned = Ok(());
        if begun {
            system.collect(&mut bundle).unwrap();
            cleaned = system.clean(&mut shown);
        }
        Launched { lines, ending, shown, bundle, cleaned }
    }
}

impl Launched {
    pub fn failed(&self) -> (String, Option<i32>) {
        match &self.ending {
            Ok(Ending::Failed { reason, code }) => (reason.clone(), *code),
            other => panic!("not failed but {other:?}; shown {:#?}", self.shown.0),
        }
    }

    pub fn never(&self) -> &str {
        match &self.ending {
            Ok(Ending::NeverStarted { reason }) => reason,
            other => panic!("started, or {other:?}; shown {:#?}", self.shown.0),
        }
    }

    pub fn error(&self) -> &DriveError {
        match &self.ending {
            Err(error) => error,
            other => panic!("no error but {other:?}"),
        }
    }

    /// Everything was collected and nothing is left.
    pub fn clean(&self, world: &World) {
        assert_eq!(self.cleaned, Ok(()), "{:#?}", self.shown.0);
        let left = world.objects();
        assert!(
            left.iter().all(|name| name.starts_with("namespace/") || name.starts_with("foreign/")),
            "{left:?}"
        );
    }
}

/// All of `words` in `text`.
#[track_caller]
pub fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}
