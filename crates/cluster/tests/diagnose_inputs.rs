//! Files and documents that a diagnosis reads: folders, packed files, what kubectl and sacct print.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::io::Write;
use std::path::{Path, PathBuf};

use expertrail_cluster::diagnose::{Case, Evidence, Input, ReadError, read, read_texts, states};

const IMA: &str = "cuda-illegal-memory-access";
const LINE: &str = "an illegal memory access was encountered\n";

fn paths(paths: &[&Path]) -> Result<Case, ReadError> {
    read(paths.iter().map(|path| Input::Path(path.to_path_buf())).collect(), Evidence::default())
}

fn gz(text: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

#[test]
fn folders_in_order() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    std::fs::create_dir_all(at("logs/b")).unwrap();
    std::fs::write(at("logs/rank-2.log"), LINE).unwrap();
    std::fs::write(at("logs/b/rank-1.log"), LINE).unwrap();
    std::fs::write(at("logs/core"), [b"\x7fELF".as_slice(), &[0; 5000]].concat()).unwrap();
    std::fs::write(at("logs/empty.log"), "").unwrap();
    std::os::unix::fs::symlink(at("logs"), at("logs/b/loop")).unwrap();
    std::os::unix::fs::symlink(at("gone"), at("logs/dangling")).unwrap();
    let status = std::process::Command::new("mkfifo").arg(at("logs/pipe")).status().unwrap();
    assert!(status.success());
    std::os::unix::fs::symlink(at("logs/rank-2.log"), at("logs/rank-2-link.log")).unwrap();
    let case = paths(&[&at("logs"), &at("missing.log"), &at("logs/rank-2.log")]).unwrap();
    let names: Vec<String> = case
        .events(IMA)
        .map(|event| case.file(event.place.file).rsplit('/').next().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["rank-1.log", "rank-2-link.log"]);
    for part in ["rank-2.log: the same file", "loop", "dangling", "pipe", "core", "missing.log"] {
        assert!(case.notes.iter().any(|note| note.contains(part)), "{part}: {:?}", case.notes);
    }
    assert_eq!(case.count(IMA), 2);
}

#[test]
fn what_cannot_be_read() {
    let place = tempfile::tempdir().unwrap();
    let missing = place.path().join("missing.log");
    let error = paths(&[&missing]).unwrap_err().to_string();
    assert!(error.contains("missing.log") && error.contains("No such file"), "{error}");
    assert!(matches!(paths(&[]), Err(ReadError::Nothing(_))));
    let pipe = place.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = paths(&[&pipe]).unwrap_err().to_string();
    assert!(error.contains("a pipe"), "{error}");
    assert!(matches!(paths(&[Path::new("/dev/null")]), Err(ReadError::NotAFile(..))));
    // A folder without files.
    let error = paths(&[place.path()]).unwrap_err().to_string();
    assert!(error.contains("pipe"), "{error}");
}

#[test]
fn packed_files() {
    let place = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = place.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    // Two members, as appending writes them; the name does not matter.
    let two = write("r.log", &[gz(LINE.as_bytes()), gz(LINE.as_bytes())].concat());
    assert_eq!(paths(&[&two]).unwrap().count(IMA), 2);
    // Cut off in the middle: what was read counts. Noise that does not pack, so that there is a middle.
    let mut text = LINE.as_bytes().to_vec();
    let mut state = 1_u32;
    for _ in 0..200_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        text.push(b'!' + (state >> 24) as u8 % 90);
    }
    let packed = gz(&text);
    let cut = write("cut.log.gz", &packed[..packed.len() / 2]);
    let case = paths(&[&cut]).unwrap();
    assert_eq!(case.count(IMA), 1);
    assert!(
        case.notes.iter().any(|note| note.contains("cut.log.gz") && note.contains("counts")),
        "{:?}",
        case.notes
    );
    let broken = write("broken.gz", &[0x1f, 0x8b, 0xff, 0xff, 1, 2, 3]);
    let case = paths(&[&broken, &two]).unwrap();
    assert_eq!((case.count(IMA), case.notes.len()), (2, 1));
}

const PODS: &str = r#"{
    "apiVersion": "v1",
    "items": [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": "deepep-0", "namespace": "train" },
            "spec": { "nodeName": "node-a" },
            "status": {
                "phase": "Running",
                "containerStatuses": [
                    {
                        "image": "reg/x:1",
                        "lastState": { "terminated": { "exitCode": 137, "finishedAt": "2026-11-29T12:00:00Z",
                            "reason": "OOMKilled" } },
                        "name": "main", "ready": false, "restartCount": 5,
                        "state": { "waiting": { "message": "back-off 5m0s", "reason": "CrashLoopBackOff" } }
                    },
                    { "name": "side", "ready": true, "restartCount": 0, "state": { "running": {} } }
                ]
            }
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": "deepep-1", "namespace": "train" },
            "spec": {},
            "status": {
                "conditions": [
                    { "type": "PodScheduled", "status": "False",
                      "reason": "Unschedulable", "message": "0/4 nodes are available" }
                ],
                "phase": "Pending"
            }
        }
    ],
    "kind": "List"
}
"#;

#[test]
fn pods_as_json() {
    let all = states("pods.json", PODS.as_bytes());
    let texts: Vec<(u64, &str)> = all.iter().map(|(line, text)| (*line, text.as_str())).collect();
    assert_eq!(
        texts,
        [
            (10, "kube-pod train/deepep-0 node=node-a phase=Running ready=1/2 restarts=5"),
            (
                15,
                "kube-container train/deepep-0/main node=node-a init=false state=waiting waiting=CrashLoopBackOff \
                 last-terminated=OOMKilled last-exit=137 ready=1/2 restarts=5 image=reg/x:1 message=back-off 5m0s"
            ),
            (
                19,
                "kube-container train/deepep-0/side node=node-a init=false state=running ready=1/2 restarts=0"
            ),
            (
                31,
                "kube-pod train/deepep-1 phase=Pending ready=0/0 restarts=0 reason=Unschedulable \
                 message=0/4 nodes are available"
            ),
        ]
    );
    // The same in one line.
    let value: serde_json::Value = serde_json::from_str(PODS).unwrap();
    let compact = states("pods.json", value.to_string().as_bytes());
    assert_eq!(compact.len(), 4);
    assert!(compact.iter().all(|(line, _)| *line == 1));
    // Several documents, and text around them.
    let text = format!("$ kubectl get pods -o json\n{PODS}{PODS}{LINE}");
    assert_eq!(states("x.log", text.as_bytes()).len(), 8);
    assert_eq!(
        read_texts(&[("x.log", &text)]).first(IMA).unwrap().place.line,
        1 + 2 * PODS.lines().count() as u64 + 1
    );
    // What only looks like one is text.
    let case = read_texts(&[(
        "x.log",
        "{\n  \"train_batch\": 1,\n an illegal memory access was encountered\n}\nNVSHMEM v3.4.5\n{\nNVSHMEM v3.4.5",
    )]);
    assert_eq!(case.first(IMA).unwrap().place.line, 3);
    assert_eq!(case.count("nvshmem-banner"), 2);
}

#[test]
fn events_nodes_jobs_as_json() {
    let event = r#"{"apiVersion":"v1","kind":"Event","metadata":{"name":"e.1","namespace":"train"},"involvedObject":{"kind":"Pod","name":"deepep-1","namespace":"train"},"type":"Warning","reason":"FailedMount","count":3,"lastTimestamp":"2026-11-29T12:00:00Z","message":"hostPath type check failed:\n /etc/x is not a directory","source":{"host":"node-b"}}"#;
    assert_eq!(
        states("e.json", event.as_bytes()),
        [(
            1,
            "kube-event train/Pod/deepep-1 node=node-b type=Warning reason=FailedMount count=3 message=hostPath type check failed: /etc/x \
             is not a directory"
                .to_owned()
        )]
    );
    let node = r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"node-a"},"spec":{"unschedulable":true,"taints":[{"key":"nvidia.com/gpu","effect":"NoSchedule"}]},"status":{"allocatable":{"cpu":"190","nvidia.com/gpu":"8"},"conditions":[{"type":"DiskPressure","status":"True","reason":"KubeletHasDiskPressure","message":"kubelet has disk pressure"}]}}"#;
    let texts: Vec<String> = states("n.json", node.as_bytes()).into_iter().map(|(_, text)| text).collect();
    assert_eq!(
        texts,
        [
            "kube-node node-a condition=DiskPressure status=True reason=KubeletHasDiskPressure message=kubelet has disk pressure",
            "kube-node node-a unschedulable=true",
            "kube-node node-a taint=nvidia.com/gpu:NoSchedule",
            "kube-node node-a allocatable=nvidia.com/gpu amount=8",
        ]
    );
    let job = r#"{"kind":"Job","apiVersion":"batch/v1","metadata":{"name":"bench","namespace":"train"},"status":{"conditions":[{"type":"Failed","status":"True","reason":"BackoffLimitExceeded","message":"Job has reached the specified backoff limit"}]}}"#;
    assert_eq!(
        states("j.json", job.as_bytes())[0].1,
        "kube-job train/bench condition=Failed reason=BackoffLimitExceeded message=Job has reached the specified backoff limit"
    );
}

const DESCRIBE: &str = "\
Name:             deepep-0
Namespace:        train
Priority:         0
Node:             node-a/192.0.2.7
Labels:           app=deepep
Status:           Running
Init Containers:
  prep:
    Container ID:  containerd://1
    State:          Terminated
      Reason:       Completed
      Exit Code:    0
    Ready:          True
    Restart Count:  0
Containers:
  main:
    Image:         reg/x:1
    State:          Waiting
      Reason:       CrashLoopBackOff
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
    Ready:          False
    Restart Count:  5
Conditions:
  Type              Status
  PodScheduled      True
Events:
  Type     Reason     Age                 From               Message
  ----     ------     ----                ----               -------
  Warning  BackOff    3m (x12 over 30m)   kubelet            Back-off restarting failed container main


Name:               node-b
Roles:              <none>
Taints:             node.kubernetes.io/disk-pressure:NoSchedule
Unschedulable:      false
Conditions:
  Type             Status  LastHeartbeatTime                 LastTransitionTime                Reason                       Message
  ----             ------  -----------------                 ------------------                ------                       -------
  DiskPressure     True    Sun, 29 Nov 2026 12:00:00 +0000   Sun, 29 Nov 2026 11:00:00 +0000   KubeletHasDiskPressure       kubelet has disk pressure
Allocatable:
  cpu:                190
  nvidia.com/gpu:     8
$ echo done
an illegal memory access was encountered
";

#[test]
fn descriptions() {
    let all = states("d.txt", DESCRIBE.as_bytes());
    let texts: Vec<(u64, &str)> = all.iter().map(|(line, text)| (*line, text.as_str())).collect();
    assert_eq!(
        texts,
        [
            (
                31,
                "kube-event train/Pod/deepep-0 node=node-a type=Warning reason=BackOff count=12 message=Back-off restarting failed \
                 container main"
            ),
            (6, "kube-pod train/deepep-0 node=node-a phase=Running ready=0/1 restarts=5"),
            (
                11,
                "kube-container train/deepep-0/prep node=node-a init=true state=terminated terminated=Completed exit=0 ready=0/1 restarts=0"
            ),
            (
                21,
                "kube-container train/deepep-0/main node=node-a init=false state=waiting waiting=CrashLoopBackOff \
                 last-terminated=OOMKilled last-exit=137 ready=0/1 restarts=5 image=reg/x:1"
            ),
            (36, "kube-node node-b taint=node.kubernetes.io/disk-pressure:NoSchedule"),
            (
                41,
                "kube-node node-b condition=DiskPressure status=True reason=KubeletHasDiskPressure message=kubelet has disk pressure"
            ),
            (44, "kube-node node-b allocatable=nvidia.com/gpu amount=8"),
        ]
    );
    let case = read_texts(&[("d.txt", DESCRIBE)]);
    assert_eq!(case.first(IMA).unwrap().place.line, 46);
    assert!(case.nodes(IMA).is_empty());
}

#[test]
fn tables() {
    let text = "\
$ kubectl get pods -o wide
NAMESPACE   NAME                       READY   STATUS                  RESTARTS       AGE     IP           NODE     NOMINATED NODE
gpu-op      nvidia-cuda-validator-x    0/1     Init:CrashLoopBackOff   5 (3m ago)     10m     192.0.2.9    node-a   <none>
gpu-op      nvidia-driver-y            1/1     Running                 0              10m     192.0.2.8    <none>   <none>

LAST SEEN   TYPE      REASON             OBJECT         MESSAGE
10s         Warning   FailedScheduling   pod/deepep-1   0/4 nodes are available: 4 Insufficient nvidia.com/gpu.
NAME     STATUS                        ROLES    AGE   VERSION
node-a   NotReady,SchedulingDisabled   <none>   10d   v1.30.1
done
";
    let texts: Vec<(u64, String)> = states("t.txt", text.as_bytes());
    let expected: [(u64, &str); 4] = [
        (
            3,
            "kube-pod gpu-op/nvidia-cuda-validator-x node=node-a status=Init:CrashLoopBackOff ready=0/1 restarts=5",
        ),
        (4, "kube-pod gpu-op/nvidia-driver-y phase=Running status=Running ready=1/1 restarts=0"),
        (
            7,
            "kube-event -/Pod/deepep-1 type=Warning reason=FailedScheduling message=0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
        ),
        (9, "kube-node node-a status=NotReady,SchedulingDisabled"),
    ];
    let got: Vec<(u64, &str)> = texts.iter().map(|(line, text)| (*line, text.as_str())).collect();
    assert_eq!(got, expected);
}

#[test]
fn accounts_of_slurm() {
    let fixed = "\
JobID           JobName      State ExitCode        NodeList
------------ ---------- ---------- -------- ---------------
4711              train  NODE_FAIL      0:0     node-[a-d]
4711.0            train OUT_OF_ME+    0:125          node-a
4711.batch        batch CANCELLED+     0:15          node-a
";
    let texts: Vec<String> =
        states("sacct.txt", fixed.as_bytes()).into_iter().map(|(_, text)| text).collect();
    assert_eq!(
        texts,
        [
            "sacct job=4711 name=train state=NODE_FAIL exit=0:0 nodes=node-[a-d]",
            "sacct job=4711 step=0 name=train state=OUT_OF_MEMORY exit=0:125 nodes=node-a",
            "sacct job=4711 step=batch name=batch state=CANCELLED exit=0:15 nodes=node-a",
        ]
    );
    let pipes = "JobID|State|ExitCode|End|NodeList|Reason|\n4711.0|CANCELLED by 1000|0:9|2026-11-29T12:00:00|node-a|None|\n4712|COMPLETED|0:0|2026-11-29T12:00:00|node-a|None|\n";
    let texts: Vec<String> =
        states("sacct.txt", pipes.as_bytes()).into_iter().map(|(_, text)| text).collect();
    assert_eq!(
        texts,
        [
            "sacct job=4711 step=0 state=CANCELLED exit=0:9 nodes=node-a",
            "sacct job=4712 state=COMPLETED exit=0:0 nodes=node-a",
        ]
    );
    let case = read_texts(&[("sacct.txt", pipes)]);
    let event = case.first("sacct-completed").unwrap();
    assert_eq!(
        (event.place.line, event.node.as_deref(), event.time),
        (3, Some("node-a"), Some(1_795_953_600.0))
    );
}
