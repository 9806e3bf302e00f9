//! Checks of a cluster: a healthy one, and for each finding a change that raises it and one close by that must not.
#![allow(clippy::unwrap_used)] // what a helper does not expect is the test's failure

#[path = "kube/world.rs"]
mod world;

use std::collections::BTreeSet;

use expertrail_cluster::causes;
use expertrail_cluster::check::{Target, Verdict};
use expertrail_cluster::finding::Status;
use expertrail_cluster::kube::{CAUSES, CHECKS, Options};
use serde_json::json;
use world::{Fake, Inside, World, container, failed, judged, node, of, one, options, said, steps, worst};

#[test]
fn a_healthy_cluster_passes() {
    let report = judged(World::healthy());
    let wrong: Vec<_> = report
        .findings()
        .iter()
        .filter(|finding| !matches!(finding.status, Status::Pass | Status::NotApplicable))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(report.checks.verdict, Verdict::Pass);
    assert_eq!(report.exit_code(true), 0);
    assert_eq!(report.context.as_deref(), Some("test-context"));
    assert_eq!(report.server_version.as_deref(), Some("v1.31.4"));
}

#[test]
fn the_line_of_step_four_is_the_guides() {
    let report = judged(World::healthy());
    // The guide's printf: "%-55s ready=%s params=%d/2 modules=%d/2\n"; "gpu-a" and 50 blanks are 55 columns.
    let blanks = " ".repeat(50);
    assert_eq!(
        report.nodes[0].to_string(),
        format!("gpu-a{blanks} ready=true/true/true params=2/2 modules=2/2")
    );
    let text = report.text(false);
    assert!(
        text.contains(&format!("\ngpu-b{blanks} ready=true/true/true params=2/2 modules=2/2\n")),
        "{text}"
    );
}

#[test]
fn what_a_target_does_not_demand_is_said() {
    let note = |target: Target, change: fn(&mut Inside)| {
        let mut world = World::healthy();
        change(world.inside.get_mut("driver-b").unwrap());
        let text = Fake::new(world).report(&Options { target, ..options() }).text(false);
        text.lines().find(|line| line.contains("not demanded")).map(str::to_owned)
    };
    let keys = |inside: &mut Inside| inside.params = Some("EnableStreamMemOPs: 0\n".to_owned());
    let modules = |inside: &mut Inside| inside.modules = Some("gdrdrv 1 0 - Live 0x0\n".to_owned());
    let said = "driver keys and modules are not demanded by expertrail: --for deepep-ibgda judges them";
    assert_eq!(note(Target::Expertrail, keys).as_deref(), Some(said));
    assert_eq!(
        note(Target::Nccl, modules).as_deref(),
        Some("driver keys and modules are not demanded by nccl: --for deepep-ibgda judges them")
    );
    assert_eq!(note(Target::DeepepIbgda, keys), None);
    assert_eq!(note(Target::Expertrail, |_| {}), None);
    assert_eq!(note(Target::Expertrail, |inside| inside.params = None), None);
}

#[test]
fn the_text_is_plain() {
    let mut world = World::healthy();
    world.lists.get_mut("nodes").unwrap().remove(1);
    world.lists.get_mut("driver-pods").unwrap().remove(1);
    let text = judged(world).text(true);
    assert!(text.contains("(1 GPU node)\n"), "{text}");
    for line in text.lines() {
        assert_eq!(line.trim_end(), line, "blanks at the end");
        assert!(!line.contains(" of them"), "{line}");
    }
    let text = judged(World::healthy()).text(true);
    assert!(text.contains("PASS    P308 gpu-a (driver-a), gpu-b (driver-b): "), "{text}");
}

#[test]
fn nothing_is_changed_and_every_call_names_its_context() {
    let fake = Fake::new(World::healthy());
    fake.report(&options());
    let calls = fake.calls.lock().unwrap();
    for call in calls.iter() {
        let bare: Vec<&str> = call
            .iter()
            .map(String::as_str)
            .filter(|arg| !arg.starts_with("--context=") && !arg.starts_with("--request-timeout="))
            .collect();
        let reads = match bare.as_slice() {
            ["get" | "logs" | "version", ..]
            | ["auth", "can-i", ..]
            | ["config", "view" | "current-context", ..]
            | ["exec", .., "--", "nvidia-smi", "topo", "-m"] => true,
            ["exec", .., "sh", "-c", script] => {
                !script.contains('>') || script.replace("2>/dev/null", "").find('>').is_none()
            }
            _ => false,
        };
        assert!(reads, "{bare:?}");
        assert!(call.iter().any(|arg| arg.starts_with("--request-timeout=")), "{call:?}");
        let first = call.iter().any(|arg| arg == "current-context");
        assert!(first || call.contains(&"--context=test-context".to_owned()), "{call:?}");
    }
    // One list for each kind, whatever the number of nodes; two calls for each driver pod.
    let lists = calls.iter().filter(|call| call.get(2).is_some_and(|word| word == "get")).count();
    assert_eq!(lists, 11, "{calls:#?}");
    assert_eq!(calls.iter().filter(|call| call.contains(&"exec".to_owned())).count(), 4);
}

#[test]
fn no_credentials_are_shown() {
    let report = judged(World::healthy());
    assert_eq!(report.server.as_deref(), Some("https://k8s.test:6443"));
    let all = report.text(true) + &serde_json::to_string(&report).unwrap();
    assert!(!all.contains("hunter2"), "{all}");
}

#[test]
fn the_document_keeps_everything() {
    let report = judged(World::healthy());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["schema"], "expertrail.findings/1");
    assert_eq!(json["nodes"][0]["params"], 2);
    assert_eq!(json["resources"][0]["name"], "nvidiadriver h200");
    assert_eq!(json["resources"][0]["gdrcopy"], "nvcr.io/nvidia/cloud-native/gdrdrv:v2.5.1");
    assert_eq!(json["resources"][0]["nodes"], 2);
    assert_eq!(json["topologies"][0]["nodes"], json!(["gpu-a", "gpu-b"]));
    assert_eq!(json["capacities"][1]["gpus"], json!({"resource": "nvidia.com/gpu", "total": 2, "free": 2}));
    let back: expertrail_cluster::kube::Report = serde_json::from_value(json).unwrap();
    assert_eq!(back, report);
}

#[test]
fn ids_and_causes_are_registered_once() {
    let ids: BTreeSet<&str> = CHECKS.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids.len(), CHECKS.len());
    assert!(ids.iter().all(|id| ("P300"..="P349").contains(id)));
    let all: Vec<&str> = causes::all().map(|cause| cause.id).collect();
    let unique: BTreeSet<&str> = all.iter().copied().collect();
    for cause in CAUSES.iter().copied().flatten() {
        assert!(unique.contains(cause.id));
        assert_eq!(all.iter().filter(|id| **id == cause.id).count(), 1, "{}", cause.id);
    }
    // Causes of other parts that these checks name.
    for id in [
        "driver-key-missing",
        "peermem-missing",
        "gdrcopy-missing",
        "no-rdma-device",
        "rail-down",
        "fewer-rails-than-gpus",
        "huge-pages-missing",
        "fleet-outlier",
        "fleet-split",
    ] {
        assert!(causes::get(id).is_some(), "{id}");
    }
}

mod access {
    use super::*;

    #[test]
    fn a_missing_permission_is_named_with_a_role() {
        let fake = Fake::new(World::healthy()).hook(|args| {
            (args.contains(&"auth") && args.contains(&"--subresource=exec")).then(|| {
                expertrail_cluster::kube::Output {
                    code: Some(1),
                    stdout: b"no - no RBAC policy matched\n".to_vec(),
                    stderr: Vec::new(),
                }
            })
        });
        let report = fake.report(&options());
        let finding = one(&report, "P300");
        assert_eq!(finding.status, Status::Unknown);
        assert_eq!(finding.cause.as_deref(), Some("kube-permission-missing"));
        assert_eq!(finding.observed, "not permitted: create pods/exec in nvidia-gpu-operator");
        let yaml = steps(finding);
        assert!(
            yaml.contains("kind: Role\nmetadata: {name: expertrail-check, namespace: nvidia-gpu-operator}"),
            "{yaml}"
        );
        assert!(yaml.contains("resources: [pods/exec], verbs: [create]"), "{yaml}");
        assert!(yaml.contains("kind: ClusterRoleBinding"), "{yaml}");
        // Nothing that would change the cluster is asked for without --probe-host.
        assert!(!yaml.contains("delete") && !yaml.contains("patch"), "{yaml}");
        // Nothing else is wrong, so what it is needed for still answers here.
        assert_eq!(report.checks.verdict, Verdict::Pass);
    }

    #[test]
    fn probing_asks_for_more() {
        let fake = Fake::new(World::healthy());
        fake.report(&options());
        assert!(!fake.lines().iter().any(|line| line.contains("can-i delete")));
        let fake = Fake::new(World::healthy());
        fake.report(&Options { probe_host: expertrail_cluster::kube::ProbeHost::EveryNode, ..options() });
        assert!(fake.lines().iter().any(|line| line.contains("can-i delete pods -n nvidia-gpu-operator")));
    }

    /// Each kind refused on its own: what depends on it is unknown, the rest is judged.
    #[test]
    fn what_may_not_be_read_is_unknown_and_the_rest_goes_on() {
        let cases: [(&'static str, &str); 8] = [
            ("nodes", "P318"),
            ("nvidiadrivers.nvidia.com", "P303"),
            ("clusterpolicies.nvidia.com", "P303"),
            ("nicclusterpolicies.mellanox.com", "P302"),
            ("configmap", "P306"),
            ("customresourcedefinitions", "P322"),
            ("deployments", "P301"),
            ("exec", "P312"),
        ];
        for (kind, id) in cases {
            let mut fake = Fake::new(World::healthy()).forbid(kind);
            if kind == "exec" {
                fake = fake.when(&["exec"], failed("Error from server (Forbidden): pods \"driver-a\" is forbidden: User \"me\" cannot create resource \"pods/exec\"\n"));
            }
            let report = fake.report(&options());
            assert_eq!(worst(&report, id), Status::Unknown, "{kind}: {:#?}", of(&report, id));
            assert!(
                report.findings().iter().all(|finding| finding.status != Status::Fail),
                "{kind}: {}",
                report.text(true)
            );
            let right = report.findings().iter().filter(|finding| finding.status == Status::Pass).count();
            assert!(right >= 5, "{kind}: {}", report.text(true));
        }
        // Driver pods.
        let fake = Fake::new(World::healthy())
            .when(&["get", "pods", "-l"], failed("Error from server (Forbidden): pods is forbidden\n"));
        assert_eq!(worst(&fake.report(&options()), "P309"), Status::Unknown);
        // All pods: which nodes are free is not known, and no node is called free.
        let fake = Fake::new(World::healthy()).when(
            &["get", "pods", "--all-namespaces"],
            failed("Error from server (Forbidden): pods is forbidden\n"),
        );
        let report = fake.report(&options());
        assert_eq!(one(&report, "P318").status, Status::Unknown);
        assert_eq!(report.capacities[0].gpus.free, None);
    }

    #[test]
    fn everything_refused_is_inconclusive_never_a_pass() {
        let fake = Fake::new(World::healthy()).hook(|args| {
            let asks = ["get", "exec", "logs"].iter().any(|word| args.contains(word));
            asks.then(|| failed("Error from server (Forbidden): x is forbidden: User \"me\"\n"))
        });
        let report = fake.report(&options());
        assert_eq!(report.checks.verdict, Verdict::Inconclusive);
        assert_eq!(report.exit_code(false), 3);
    }
}

mod resources {
    use super::*;

    #[test]
    fn one_or_two_of_three_settings_fail_with_the_patch_that_completes_them() {
        let cases = [
            (vec!["rdma"], "gdrcopy.enabled and kernelModuleConfig set, rdma.enabled missing"),
            (vec!["gdrcopy"], "kernelModuleConfig and rdma.enabled set, gdrcopy.enabled missing"),
            (vec!["kernelModuleConfig"], "gdrcopy.enabled and rdma.enabled set, kernelModuleConfig missing"),
            (vec!["rdma", "gdrcopy"], "kernelModuleConfig set, gdrcopy.enabled and rdma.enabled missing"),
            (
                vec!["rdma", "gdrcopy", "kernelModuleConfig"],
                "none of gdrcopy, kernelModuleConfig and rdma is set",
            ),
        ];
        for (removed, observed) in cases {
            let mut world = World::healthy();
            for part in &removed {
                world.at("nvidiadrivers", 0)["spec"].as_object_mut().unwrap().remove(*part);
            }
            let report = judged(world);
            let finding = one(&report, "P305");
            assert_eq!((finding.status, finding.observed.as_str()), (Status::Fail, observed));
            assert_eq!(finding.cause.as_deref(), Some("kube-driver-patch-incomplete"));
            let patch = steps(finding);
            let text = patch.lines().find(|line| line.contains("patch")).unwrap();
            assert!(
                text.starts_with("kubectl --context test-context patch nvidiadriver h200 --type=merge -p '"),
                "{text}"
            );
            // The one document that sets all three, as the guide has it.
            let document: serde_json::Value = serde_json::from_str(text.split('\'').nth(1).unwrap()).unwrap();
            assert_eq!(
                document,
                json!({"spec": {"gdrcopy": {"enabled": true, "image": "gdrdrv", "repository": "nvcr.io/nvidia/cloud-native", "version": "v2.5.1"},
                    "kernelModuleConfig": {"name": "nvidia-kernel-params"}, "rdma": {"enabled": true}}})
            );
        }
    }

    #[test]
    fn the_patch_keeps_the_config_map_that_is_named() {
        let mut world = World::healthy();
        let spec = &mut world.at("nvidiadrivers", 0)["spec"];
        spec["rdma"]["enabled"] = json!(false);
        spec["kernelModuleConfig"]["name"] = json!("site-params");
        spec["gdrcopy"]["version"] = json!("v2.6.0");
        let mut config = world.configs["nvidia-kernel-params"].clone();
        config["metadata"]["name"] = json!("site-params");
        world.configs = [("site-params".to_owned(), config)].into();
        let report = judged(world);
        let patch = steps(one(&report, "P305"));
        assert!(patch.contains(r#""kernelModuleConfig":{"name":"site-params"}"#), "{patch}");
        assert!(patch.contains(r#""version":"v2.6.0""#), "{patch}");
        // The ConfigMap is right already: it is not written again.
        assert!(!patch.contains("configmap"), "{patch}");
    }

    #[test]
    fn other_targets_do_not_demand_the_patch() {
        let mut world = World::healthy();
        for part in ["rdma", "gdrcopy", "kernelModuleConfig"] {
            world.at("nvidiadrivers", 0)["spec"].as_object_mut().unwrap().remove(part);
        }
        for target in [Target::Expertrail, Target::Nccl] {
            let report = Fake::new(world.clone()).report(&Options { target, ..options() });
            assert_eq!(one(&report, "P305").status, Status::NotApplicable);
        }
    }

    #[test]
    fn a_cluster_policy_instead_of_a_driver_resource() {
        let mut world = World::healthy();
        world.lists.insert("nvidiadrivers", vec![]);
        *world.at("clusterpolicies", 0) = json!({"metadata": {"name": "cluster-policy"},
            "spec": {"driver": {"rdma": {"enabled": true}, "kernelModuleConfig": {"name": "nvidia-kernel-params"}},
                "gdrcopy": {"enabled": true, "image": "gdrdrv", "repository": "r", "version": "v2.5.1"}},
            "status": {"state": "ready"}});
        let report = judged(world.clone());
        assert_eq!(one(&report, "P305").status, Status::Pass);
        assert_eq!(one(&report, "P303").subject.as_deref(), Some("clusterpolicy cluster-policy"));
        assert_eq!(report.resources[0].nodes, 2);
        world.at("clusterpolicies", 0)["spec"]["gdrcopy"]["enabled"] = json!(false);
        let report = judged(world);
        let patch = steps(one(&report, "P305"));
        assert!(patch.contains("patch clusterpolicy cluster-policy --type=merge"), "{patch}");
        assert!(
            patch.contains(
                r#""driver":{"kernelModuleConfig":{"name":"nvidia-kernel-params"},"rdma":{"enabled":true}}"#
            ),
            "{patch}"
        );
    }

    #[test]
    fn only_the_ready_resource_of_the_right_kind_passes() {
        // Not ready.
        let mut world = World::healthy();
        world.at("nvidiadrivers", 0)["status"]["state"] = json!("notReady");
        assert_eq!(one(&judged(world), "P303").status, Status::Fail);
        // A second resource that backs nothing is left alone.
        let mut world = World::healthy();
        let mut other = world.at("nvidiadrivers", 0).clone();
        other["metadata"]["name"] = json!("b200");
        other["spec"] = json!({"nodeSelector": {"pool": "b200"}});
        other["status"]["state"] = json!("notReady");
        world.lists.get_mut("nvidiadrivers").unwrap().push(other);
        let report = judged(world);
        assert_eq!(worst(&report, "P303"), Status::Pass);
        assert_eq!(one(&report, "P305").subject.as_deref(), Some("nvidiadriver h200"));
    }

    #[test]
    fn resources_and_nodes_that_do_not_match() {
        // The name is of another kind.
        let mut world = World::healthy();
        world.at("nvidiadrivers", 0)["metadata"]["name"] = json!("b200");
        world.at("daemonsets", 0)["metadata"]["ownerReferences"][0]["name"] = json!("b200");
        let finding = judged(world);
        let finding = one(&finding, "P304");
        assert_eq!(
            (finding.status, finding.observed.as_str()),
            (Status::Warn, "backed by nvidiadriver b200")
        );
        // No resource selects a node that has no driver pod.
        let mut world = World::healthy();
        let mut new = node("gpu-c");
        new["metadata"]["labels"]["pool"] = json!("other");
        world.lists.get_mut("nodes").unwrap().push(new.clone());
        let report = judged(world);
        let finding = one(&report, "P304");
        assert_eq!(
            (finding.status, finding.observed.as_str()),
            (Status::Fail, "no driver resource selects gpu-c")
        );
        // Two do.
        let mut world = World::healthy();
        let mut other = world.at("nvidiadrivers", 0).clone();
        other["metadata"]["name"] = json!("default");
        world.lists.get_mut("nvidiadrivers").unwrap().push(other);
        new["metadata"]["labels"]["pool"] = json!("h200");
        world.lists.get_mut("nodes").unwrap().push(new);
        assert_eq!(one(&judged(world), "P304").status, Status::Fail);
    }

    #[test]
    fn nodes_that_bring_their_driver_want_no_resource() {
        let with = |label: &str| {
            let mut world = World::healthy();
            let mut new = node("gpu-c");
            new["metadata"]["labels"]["pool"] = json!("other");
            new["metadata"]["labels"]["nvidia.com/gpu.deploy.driver"] = json!(label);
            world.lists.get_mut("nodes").unwrap().push(new);
            world
        };
        let report = judged(with("pre-installed"));
        assert_eq!(one(&report, "P304").observed, "backed by nvidiadriver h200");
        assert_eq!(judged(with("true")).checks.verdict, Verdict::Fail);
        // A product of which all nodes do.
        let mut world = with("pre-installed");
        world.at("nodes", 3)["metadata"]["labels"]["nvidia.com/gpu.product"] = json!("NVIDIA-B200");
        let report = judged(world);
        let own = of(&report, "P304")
            .into_iter()
            .find(|one| one.subject.as_deref() == Some("NVIDIA-B200"))
            .unwrap();
        assert_eq!(
            (own.status, own.observed.as_str()),
            (Status::NotApplicable, "a driver of their own: gpu-c")
        );
        // A resource for all nodes puts no pod on it: it does not back it.
        let mut world = with("pre-installed");
        world.at("nvidiadrivers", 0)["spec"]["nodeSelector"] = json!({});
        assert_eq!(judged(world).resources[0].nodes, 2);
    }

    /// The labels go while driver pods restart: no failure.
    #[test]
    fn nodes_without_labels_that_no_resource_selects_are_a_warning() {
        let mut world = World::healthy();
        let mut new = node("gpu-c");
        new["metadata"]["labels"] = json!({"nvidia.com/gpu.present": "true"});
        world.lists.get_mut("nodes").unwrap().push(new);
        let report = judged(world);
        let finding = of(&report, "P304").into_iter().find(|one| one.status != Status::Pass).unwrap();
        assert_eq!(
            (finding.status, finding.observed.as_str()),
            (Status::Warn, "no driver resource selects gpu-c, whose product is not labelled")
        );
    }

    /// All commands of a report.
    fn typed(report: &expertrail_cluster::kube::Report) -> String {
        report.findings().iter().map(steps).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn pods_are_recycled_by_the_label_that_they_carry() {
        const NEWER: &str = "app.kubernetes.io/component=nvidia-driver";
        const OLDER: &str = "app=nvidia-driver-daemonset";
        let mut world = World::healthy();
        world.at("nvidiadrivers", 0)["spec"]["rdma"]["enabled"] = json!(false);
        let (both, first) =
            (world.list("driver-pods"), json!({"items": [world.at("driver-pods", 0).clone()]}));
        let none = json!({"items": []});
        let report = |newer: &serde_json::Value, older: &serde_json::Value| {
            Fake::new(world.clone())
                .when(&["get", "pods", "-l", NEWER], said(newer.to_string()))
                .when(&["get", "pods", "-l", OLDER], said(older.to_string()))
                .report(&options())
        };
        let recycle = |report: &expertrail_cluster::kube::Report| {
            let all = steps(one(report, "P305"));
            let line = all.lines().find(|line| line.contains("delete pod")).unwrap();
            line.split("      #").next().unwrap().to_owned()
        };
        let delete = "kubectl --context test-context -n nvidia-gpu-operator delete pod -l";
        assert_eq!(recycle(&report(&both, &none)), format!("{delete} {NEWER}"));
        assert_eq!(recycle(&report(&both, &both)), format!("{delete} {NEWER}"));
        let older = report(&none, &both);
        assert_eq!(recycle(&older), format!("{delete} {OLDER}"));
        assert!(!typed(&older).contains(NEWER), "{}", typed(&older));
        // Some carry the one, some the other: no label selects all.
        assert_eq!(recycle(&report(&first, &both)), format!("{delete} {NEWER}; {delete} {OLDER}"));
    }

    #[test]
    fn the_next_check_is_typed_with_the_name_space_of_this_one() {
        let mut world = World::healthy();
        world.at("nvidiadrivers", 0)["spec"]["rdma"]["enabled"] = json!(false);
        let usual = typed(&judged(world.clone()));
        assert!(usual.contains("expertrail check --kube --for deepep-ibgda "), "{usual}");
        world.at("daemonsets", 0)["metadata"]["namespace"] = json!("gpu-operator");
        let other = Options { driver_namespace: "gpu-operator".to_owned(), ..options() };
        let typed = typed(&Fake::new(world).report(&other));
        assert!(
            typed.contains("expertrail check --kube --driver-namespace gpu-operator --for deepep-ibgda "),
            "{typed}"
        );
    }

    #[test]
    fn config_maps() {
        let with = |data: serde_json::Value| {
            let mut world = World::healthy();
            world.configs.get_mut("nvidia-kernel-params").unwrap()["data"] = data;
            judged(world)
        };
        let right = "NVreg_EnableStreamMemOPs=1\nNVreg_RegistryDwords=\"PeerMappingOverride=1;RMX=2\"\n";
        assert_eq!(one(&with(json!({"nvidia.conf": right})), "P306").status, Status::Pass);
        let cases = [
            (json!({}), "it is empty"),
            (json!({"nvidia-kernel-params.conf": right}), "its keys are nvidia-kernel-params.conf"),
            (
                json!({"nvidia.conf": "NVreg_EnableStreamMemOPs=10\nNVreg_RegistryDwords=\"PeerMappingOverride=1\"\n"}),
                "NVreg_EnableStreamMemOPs=1 is not in nvidia.conf",
            ),
            (
                json!({"nvidia.conf": ""}),
                "NVreg_EnableStreamMemOPs=1 and NVreg_RegistryDwords=\"PeerMappingOverride=1;\" are not in nvidia.conf",
            ),
            (
                json!({"nvidia.conf": "options nvidia NVreg_EnableStreamMemOPs=1\n"}),
                "`options nvidia NVreg_EnableStreamMemOPs=1`: a line of modprobe.d",
            ),
        ];
        for (data, observed) in cases {
            let report = with(data);
            let finding = one(&report, "P306");
            assert_eq!((finding.status, finding.observed.as_str()), (Status::Fail, observed));
        }
        // It does not exist.
        let mut world = World::healthy();
        world.configs.clear();
        let report = judged(world);
        let finding = one(&report, "P306");
        assert_eq!((finding.status, finding.observed.as_str()), (Status::Fail, "it does not exist"));
        let typed = steps(finding);
        assert!(typed.contains("printf '%s\\n' NVreg_EnableStreamMemOPs=1 'NVreg_RegistryDwords=\"PeerMappingOverride=1;\"' > nvidia.conf"), "{typed}");
        assert!(
            typed.contains(
                "-n nvidia-gpu-operator create configmap nvidia-kernel-params --from-file=nvidia.conf"
            ),
            "{typed}"
        );
    }

    #[test]
    fn other_lines_of_the_config_map_are_kept() {
        let mut world = World::healthy();
        world.configs.get_mut("nvidia-kernel-params").unwrap()["data"]["nvidia.conf"] =
            json!("NVreg_NvLinkDisable=0\nNVreg_RegistryDwords=\"RMOther=0x2\"\n");
        let report = judged(world);
        let typed = steps(one(&report, "P306"));
        assert!(typed.contains("NVreg_NvLinkDisable=0"), "{typed}");
        assert!(typed.contains("\"PeerMappingOverride=1;RMOther=0x2;\""), "{typed}");
    }

    #[test]
    fn comments_and_parameters_of_modprobe_lines_are_kept() {
        let mut world = World::healthy();
        world.configs.get_mut("nvidia-kernel-params").unwrap()["data"]["nvidia.conf"] = json!(
            "# asked for by ops, don't remove\noptions nvidia NVreg_NvLinkDisable=0 NVreg_RegistryDwords=\"RMX=2\"\noptions nvidia-drm modeset=1\n"
        );
        let report = judged(world);
        let typed = steps(one(&report, "P306"));
        let line = typed.lines().find(|line| line.starts_with("printf")).unwrap();
        // What a shell makes of it.
        let folder = tempfile::tempdir().unwrap();
        let done = std::process::Command::new("sh").args(["-c", line]).current_dir(folder.path()).status();
        assert!(done.unwrap().success());
        assert_eq!(
            std::fs::read_to_string(folder.path().join("nvidia.conf")).unwrap(),
            "# asked for by ops, don't remove\nNVreg_NvLinkDisable=0\nNVreg_EnableStreamMemOPs=1\nNVreg_RegistryDwords=\"PeerMappingOverride=1;RMX=2;\"\n"
        );
        assert!(
            line.ends_with("# without what is no parameter of nvidia: options nvidia-drm modeset=1"),
            "{line}"
        );
    }

    #[test]
    fn gdrcopy_settings() {
        let with = |key: &str, value: serde_json::Value| {
            let mut world = World::healthy();
            world.at("nvidiadrivers", 0)["spec"]["gdrcopy"][key] = value;
            judged(world)
        };
        let report = with("version", json!("v2.4.1"));
        let finding = one(&report, "P307");
        assert_eq!((finding.status, finding.observed.as_str()), (Status::Warn, "version v2.4.1"));
        assert!(steps(finding).contains(r#""version":"v2.5.1""#));
        assert_eq!(one(&with("version", json!("v2.5.2")), "P307").status, Status::Pass);
        assert_eq!(
            one(&with("repository", json!(null)), "P307").observed,
            "gdrcopy is enabled without repository"
        );
    }

    #[test]
    fn operators() {
        let mut world = World::healthy();
        world.at("deployments", 0)["status"]["readyReplicas"] = json!(0);
        assert_eq!(one(&judged(world), "P301").status, Status::Warn);
        let mut world = World::healthy();
        world.lists.insert("deployments", vec![]);
        assert_eq!(one(&judged(world.clone()), "P301").status, Status::Warn);
        world.definitions.clear();
        assert_eq!(one(&judged(world.clone()), "P301").status, Status::NotApplicable);
        for place in 0..2 {
            world.at("nodes", place)["status"]["allocatable"]["nvidia.com/gpu"] = json!("0");
        }
        assert_eq!(one(&judged(world), "P301").status, Status::Fail);
        // The Network Operator.
        let mut world = World::healthy();
        world.at("nicclusterpolicies", 0)["status"]["state"] = json!("notReady");
        assert_eq!(one(&judged(world), "P302").status, Status::Warn);
        let mut world = World::healthy();
        world.lists.insert("nicclusterpolicies", vec![]);
        assert_eq!(one(&judged(world.clone()), "P302").status, Status::Pass);
        world.lists.insert("deployments", vec![]);
        assert_eq!(one(&judged(world.clone()), "P302").status, Status::NotApplicable);
        for place in 0..2 {
            world.at("nodes", place)["status"]["allocatable"]["nvidia.com/hostdev"] = json!("0");
        }
        assert_eq!(one(&judged(world), "P302").status, Status::Warn);
    }
}

mod pods {
    use super::*;

    /// A pod that was made before the patch: one container.
    fn single(world: &mut World, place: usize) {
        let pod = world.at("driver-pods", place);
        for path in ["spec", "status"] {
            let key = if path == "spec" { "containers" } else { "containerStatuses" };
            pod[path][key].as_array_mut().unwrap().truncate(1);
        }
    }

    #[test]
    fn one_container_means_recycled_before_the_patch() {
        let mut world = World::healthy();
        single(&mut world, 0);
        let report = judged(world.clone());
        let finding = of(&report, "P308").into_iter().find(|finding| finding.status == Status::Fail).unwrap();
        assert_eq!(finding.subject.as_deref(), Some("gpu-a (driver-a)"));
        assert_eq!(
            finding.observed,
            "1/1, without nvidia-peermem-ctr and nvidia-gdrcopy-ctr: made before the patch"
        );
        assert!(
            steps(finding)
                .starts_with("kubectl --context test-context -n nvidia-gpu-operator delete pod driver-a")
        );
        assert!(report.nodes[0].to_string().ends_with(" ready=true params=2/2 modules=2/2"));
        // The resource asks for no loaders: then it is what lacks them.
        for part in ["rdma", "gdrcopy"] {
            world.at("nvidiadrivers", 0)["spec"].as_object_mut().unwrap().remove(part);
        }
        single(&mut world, 1);
        let report = judged(world);
        assert_eq!(one(&report, "P308").status, Status::NotApplicable);
        assert_eq!(one(&report, "P305").status, Status::Fail);
    }

    #[test]
    fn pods_older_than_the_last_change() {
        // The DaemonSet's template tells exactly.
        let mut world = World::healthy();
        world.at("driver-pods", 1)["metadata"]["labels"]["pod-template-generation"] = json!("3");
        world.inside.get_mut("driver-b").unwrap().modules = Some("nvidia 1 0 - Live 0x0\n".to_owned());
        let report = judged(world.clone());
        let finding = of(&report, "P310").into_iter().find(|finding| finding.status == Status::Fail).unwrap();
        assert_eq!(finding.observed, "made from template 3 of its DaemonSet, which has 4 now");
        // What the target needs is active already: no failure.
        world.inside.insert("driver-b".to_owned(), Inside::healthy());
        assert_eq!(worst(&judged(world.clone()), "P310"), Status::Warn);
        // Without templates, times: the resource was changed at 10:00, so a pod of 09:30 is older.
        world.lists.insert("daemonsets", vec![]);
        world.at("driver-pods", 1)["metadata"]["creationTimestamp"] = json!("2026-03-01T09:30:00Z");
        let report = judged(world.clone());
        let finding = of(&report, "P310").into_iter().find(|finding| finding.status == Status::Warn).unwrap();
        assert_eq!(finding.observed, "nvidiadriver h200 was changed 30 min after the pod was made");
        world.at("driver-pods", 1)["metadata"]["creationTimestamp"] = json!("2026-03-01T10:00:00Z");
        assert_eq!(worst(&judged(world.clone()), "P310"), Status::Pass);
        // The ConfigMap was changed at 11:00; no template shows that.
        let mut world = World::healthy();
        world.configs.get_mut("nvidia-kernel-params").unwrap()["metadata"]["managedFields"][0]["time"] =
            json!("2026-03-01T11:00:00Z");
        let report = judged(world);
        assert!(of(&report, "P310").iter().all(|finding| finding.observed
            == "configmap nvidia-kernel-params was changed 55 min after the pod was made"));
    }

    fn blocked(log: &str, usage: &[&str]) -> World {
        let mut world = World::healthy();
        let waiting = ["nvidia-driver-ctr", "nvidia-peermem-ctr", "nvidia-gdrcopy-ctr"].map(
            |name| json!({"name": name, "ready": false, "state": {"waiting": {"reason": "PodInitializing"}}}),
        );
        let pod = world.at("driver-pods", 0);
        pod["status"] = json!({"phase": "Pending",
            "initContainerStatuses": [{"name": "k8s-driver-manager", "ready": false, "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
            "containerStatuses": waiting});
        world.logs.insert("driver-a/k8s-driver-manager".to_owned(), log.to_owned());
        world.usage.extend(usage.iter().map(|line| (*line).to_owned()));
        world
    }

    const DRAIN: &str = "Draining node gpu-a of any GPU pods...\nerror: unable to drain node \"gpu-a\": cannot delete Pods with local storage (use --delete-emptydir-data to override): monitoring/agent-x\ncannot proceed until all GPU pods are drained from the node\n";

    #[test]
    fn a_drain_that_is_blocked() {
        let report = judged(blocked(
            DRAIN,
            &[
                "monitoring\tagent-x\tgpu-a\tReplicaSet\t{}\t{\"cpu\":\"1\"} \t",
                "burnin\tqualify-1\tgpu-a\tJob\t\t{\"nvidia.com/gpu\":\"2\"} \t",
                "kube-system\tplugin-1\tgpu-a\tDaemonSet\t\t{\"nvidia.com/gpu\":\"0\"} \t",
            ],
        ));
        let finding = of(&report, "P309").into_iter().find(|finding| finding.status == Status::Fail).unwrap();
        assert_eq!(finding.cause.as_deref(), Some("kube-driver-drain-blocked"));
        assert_eq!(
            finding.observed,
            "0/3 Init:CrashLoopBackOff for 115 min: pods with local storage block the drain: burnin/qualify-1, monitoring/agent-x"
        );
        assert!(finding.remedies[0].text.starts_with("Wait for burnin/qualify-1:"), "{finding:#?}");
        assert_eq!(
            finding.remedies[1].steps,
            [
                "kubectl --context test-context cordon gpu-a",
                "kubectl --context test-context -n monitoring delete pod agent-x",
                "kubectl --context test-context uncordon gpu-a      # once its driver pod is 3/3",
            ]
        );
        let durable = &finding.remedies[2].steps[0];
        for switch in ["ENABLE_GPU_POD_EVICTION", "DRAIN_USE_FORCE", "DRAIN_DELETE_EMPTYDIR_DATA"] {
            assert!(durable.contains(switch), "{durable}");
        }
        // No command ever deletes the job's pod.
        assert!(!steps(finding).contains("qualify-1"));
        // Its line says what is known.
        assert!(report.nodes[0].to_string().ends_with(" ready=false/false/false params=?/2 modules=?/2"));
        assert_eq!(worst(&report, "P312"), Status::Unknown);
    }

    #[test]
    fn the_driver_managers_environment_is_kept() {
        let durable = |env: serde_json::Value| {
            let mut world = blocked(DRAIN, &[]);
            world.at("nvidiadrivers", 0)["spec"]["manager"] = json!({"env": env});
            let report = judged(world);
            let finding =
                of(&report, "P309").into_iter().find(|finding| finding.status == Status::Fail).unwrap();
            assert!(!serde_json::to_string(&report).unwrap().contains("hunter2"));
            finding.remedies.last().unwrap().steps[0].clone()
        };
        let typed = durable(json!([
            {"name": "DRAIN_TIMEOUT_SECONDS", "value": "0s"},
            {"name": "DRAIN_USE_FORCE", "value": "false"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]));
        let patch: serde_json::Value = serde_json::from_str(typed.split('\'').nth(1).unwrap()).unwrap();
        assert_eq!(
            patch,
            json!({"spec": {"manager": {"env": [
                {"name": "DRAIN_TIMEOUT_SECONDS", "value": "0s"},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "ENABLE_GPU_POD_EVICTION", "value": "true"},
                {"name": "DRAIN_USE_FORCE", "value": "true"},
                {"name": "DRAIN_DELETE_EMPTYDIR_DATA", "value": "true"}]}}})
        );
        // A password is not printed, and a patch without it would take it away: then the person edits.
        let typed = durable(json!([{"name": "HTTPS_PROXY", "value": "http://me:hunter2@proxy:3128"}]));
        assert!(typed.starts_with("kubectl --context test-context edit nvidiadriver h200 "), "{typed}");
        assert!(typed.contains("spec.manager.env: add ENABLE_GPU_POD_EVICTION, "), "{typed}");
    }

    #[test]
    fn only_a_job_blocks_then_there_is_nothing_to_delete() {
        let log = "cannot proceed until all GPU pods are drained from the node\n";
        let report =
            judged(blocked(log, &["burnin\tqualify-1\tgpu-a\tJob\t\t{\"nvidia.com/gpu\":\"2\"} \t"]));
        let finding = of(&report, "P309").into_iter().find(|finding| finding.status == Status::Fail).unwrap();
        assert!(
            finding.observed.ends_with("GPU pods block the drain: burnin/qualify-1"),
            "{}",
            finding.observed
        );
        assert!(!steps(finding).contains("delete pod"), "{}", steps(finding));
        assert!(!steps(finding).contains("cordon"), "{}", steps(finding));
    }

    #[test]
    fn other_reasons_of_an_init_container() {
        let report = judged(blocked("Could not resolve Linux kernel version\n", &[]));
        let finding = of(&report, "P309").into_iter().find(|finding| finding.status == Status::Fail).unwrap();
        assert_eq!(finding.cause.as_deref(), Some("kube-driver-pod-failing"));
        assert!(
            finding
                .observed
                .ends_with("k8s-driver-manager last wrote: Could not resolve Linux kernel version"),
            "{}",
            finding.observed
        );
        let report =
            judged(blocked("Could not unload NVIDIA driver kernel modules, driver is in use\n", &[]));
        let finding = of(&report, "P309").into_iter().find(|finding| finding.status == Status::Fail).unwrap();
        assert_eq!(finding.cause.as_deref(), Some("gdrdrv-refcount-blocks-unload"));
    }

    #[test]
    fn a_young_pod_may_still_be_on_its_way() {
        let mut world = World::healthy();
        let pod = world.at("driver-pods", 0);
        pod["metadata"]["creationTimestamp"] = json!("2026-03-01T11:59:00Z");
        pod["status"]["containerStatuses"][1]["ready"] = json!(false);
        let report = judged(world.clone());
        assert_eq!(worst(&report, "P309"), Status::Warn);
        world.at("driver-pods", 0)["metadata"]["creationTimestamp"] = json!("2026-03-01T11:57:00Z");
        assert_eq!(worst(&judged(world), "P309"), Status::Fail);
    }

    #[test]
    fn loaders_that_fail() {
        let failing = |log: &str, modules: &str| {
            let mut world = World::healthy();
            let pod = world.at("driver-pods", 0);
            pod["status"]["containerStatuses"][1] = json!({"name": "nvidia-peermem-ctr", "ready": false, "restartCount": 9, "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
            world.logs.insert("driver-a/nvidia-peermem-ctr".to_owned(), log.to_owned());
            world.inside.get_mut("driver-a").unwrap().modules = Some(modules.to_owned());
            judged(world)
        };
        let none = "gdrdrv 1 0 - Live 0x0\n";
        let report = failing(
            "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument\nfailed to load nvidia-peermem module\n",
            none,
        );
        let finding = of(&report, "P314")[0];
        assert_eq!(
            (finding.status, finding.cause.as_deref()),
            (Status::Fail, Some("peermem-mofed-symbol-mismatch"))
        );
        let report = failing(
            "failed to load nvidia-peermem module\n",
            "nvidia_peermem 1 0 - Live 0x0\ngdrdrv 1 0 - Live 0x0\n",
        );
        assert_eq!(of(&report, "P314")[0].cause.as_deref(), Some("peermem-sidecar-still-loaded"));
        let report = failing("waiting for mellanox ofed\n", none);
        assert_eq!(of(&report, "P314")[0].cause.as_deref(), Some("kube-module-loader-failing"));
        // The other node's are right, and so are all of a healthy cluster.
        let right = (Status::Pass, "nvidia-peermem-ctr and nvidia-gdrcopy-ctr ready");
        assert_eq!((of(&report, "P314")[1].status, of(&report, "P314")[1].observed.as_str()), right);
        let report = judged(World::healthy());
        assert_eq!((one(&report, "P314").status, one(&report, "P314").observed.as_str()), right);
    }

    #[test]
    fn nodes_without_a_driver_pod() {
        let mut world = World::healthy();
        world.lists.get_mut("nodes").unwrap().push(node("gpu-c"));
        let report = judged(world.clone());
        assert_eq!(
            (one(&report, "P311").status, one(&report, "P311").subject.as_deref()),
            (Status::Warn, Some("gpu-c"))
        );
        world.at("nodes", 3)["metadata"]["labels"]["nvidia.com/gpu.deploy.driver"] = json!("pre-installed");
        let report = judged(world.clone());
        assert_eq!(
            (one(&report, "P311").status, one(&report, "P311").observed.as_str()),
            (Status::Pass, "one on each of 2 GPU nodes; a driver of their own: gpu-c")
        );
        assert_eq!(one(&judged(World::healthy()), "P311").observed, "one on each of 2 GPU nodes");
        world.at("nodes", 3)["metadata"]["labels"]["nvidia.com/gpu.deploy.driver"] = json!("true");
        world.at("nodes", 3)["status"]["allocatable"]["nvidia.com/gpu"] = json!("0");
        assert_eq!(one(&judged(world), "P311").status, Status::Fail);
    }
}

mod state {
    use super::*;

    fn with(change: impl Fn(&mut Inside)) -> expertrail_cluster::kube::Report {
        let mut world = World::healthy();
        change(world.inside.get_mut("driver-b").unwrap());
        judged(world)
    }

    #[test]
    fn keys_are_parsed() {
        let params = |stream: &str, dwords: &str| {
            format!("EnableStreamMemOPs: {stream}\nRegistryDwords: \"{dwords}\"\n")
        };
        let cases = [
            ("1", "PeerMappingOverride=1", 2),
            ("10", "PeerMappingOverride=1;", 1),
            ("1", "PeerMappingOverride=0", 1),
            ("0", "", 0),
            ("1", "XPeerMappingOverride=1", 1),
        ];
        for (stream, dwords, count) in cases {
            let report = with(|inside| inside.params = Some(params(stream, dwords)));
            assert!(
                report.nodes[1].to_string().contains(&format!("params={count}/2 modules=2/2")),
                "{}",
                report.nodes[1]
            );
            let status = if count == 2 { Status::Pass } else { Status::Fail };
            assert_eq!(worst(&report, "P312"), status, "{stream} {dwords}");
        }
        let report = with(|inside| inside.params = Some(params("0", "")));
        let finding = of(&report, "P312").into_iter().find(|finding| finding.status == Status::Fail).unwrap();
        assert_eq!(finding.subject.as_deref(), Some("gpu-b"));
        // The resource and the ConfigMap are right: the pod of this node is all that is left to do.
        assert!(steps(finding).contains("delete pod driver-b"), "{}", steps(finding));
        assert!(!steps(finding).contains("patch"));
        let report = with(|inside| inside.params = None);
        assert_eq!(worst(&report, "P312"), Status::Unknown);
    }

    #[test]
    fn modules_on_a_ready_pod() {
        let half = "nvidia_peermem 16384 0 - Live 0x0\nxgdrdrv 1 0 - Live 0x0\n";
        let report = with(|inside| inside.modules = Some(half.to_owned()));
        let finding = of(&report, "P313").into_iter().find(|finding| finding.status == Status::Fail).unwrap();
        assert_eq!(finding.observed, "modules=1/2: gdrdrv not loaded");
        assert_eq!(finding.cause.as_deref(), Some("gdrcopy-missing"));
        assert!(report.nodes[1].to_string().ends_with("params=2/2 modules=1/2"));
        // Younger than 60 s: wait.
        for (second, status) in [("30", Status::Warn), ("00", Status::Fail)] {
            let mut world = World::healthy();
            world.inside.get_mut("driver-b").unwrap().modules = Some(half.to_owned());
            world.at("driver-pods", 1)["status"]["containerStatuses"][2] =
                container("nvidia-gdrcopy-ctr", &format!("2026-03-01T11:59:{second}Z"));
            assert_eq!(worst(&judged(world), "P313"), status, "{second}");
        }
        let report = with(|inside| {
            inside.modules = Some("nvidia_peermem 1 0 - Unloading 0x0\ngdrdrv 1 0 - Live 0x0\n".to_owned());
        });
        assert_eq!(worst(&report, "P313"), Status::Fail);
    }

    #[test]
    fn rails() {
        let report = with(|inside| inside.devices.clear());
        assert_eq!(worst(&report, "P315"), Status::Fail);
        let report = with(|inside| inside.devices[2].1 = "1: DOWN");
        let causes: Vec<_> = of(&report, "P315").iter().filter_map(|finding| finding.cause.clone()).collect();
        assert_eq!(causes, ["rail-down", "fewer-rails-than-gpus"]);
        // Both rails of two GPUs are up, and a spare port is not: named, and no failure.
        let spare = |state: &'static str| {
            with(|inside| {
                inside.devices.push(("mlx5_3".to_owned(), state, "10 Gb/sec (4X SDR)", "InfiniBand"));
            })
        };
        let report = spare("1: DOWN");
        let finding = of(&report, "P315").into_iter().find(|one| one.status != Status::Pass).unwrap();
        assert_eq!(
            (finding.status, finding.observed.as_str()),
            (Status::Warn, "mlx5_3 1: DOWN, and 2 rails for 2 GPUs are up")
        );
        assert_eq!(report.checks.verdict, Verdict::Warn, "{}", report.text(false));
        // The frontend may be down or slower: it is no rail.
        let report = with(|inside| inside.devices[0].1 = "1: DOWN");
        assert_eq!(worst(&report, "P315"), Status::Pass);
    }

    #[test]
    fn gpus_without_nvlink() {
        let report = with(|inside| inside.matrix = inside.matrix.replace("NV18", "SYS"));
        let finding = of(&report, "P326").into_iter().find(|finding| finding.status == Status::Fail).unwrap();
        assert_eq!(finding.observed, "no NVLink between GPU0 and GPU1");
        let report = with(|inside| {
            inside.matrix = "Failed to initialize NVML: Driver/library version mismatch\n".to_owned();
        });
        assert_eq!(worst(&report, "P326"), Status::Unknown);
    }

    #[test]
    fn nodes_that_differ() {
        // Two nodes that differ: no majority.
        let report = with(|inside| inside.version = "570.86.15");
        assert_eq!(one(&report, "P328").cause.as_deref(), Some("fleet-split"));
        // One of three differs: it is named.
        let mut world = World::healthy();
        world.grow(3);
        world.inside.get_mut("driver-b").unwrap().firmware = "28.39.1002";
        let report = judged(world);
        let finding = one(&report, "P328");
        assert_eq!(
            (finding.cause.as_deref(), finding.subject.as_deref()),
            (Some("fleet-outlier"), Some("gpu-b"))
        );
        assert_eq!(finding.observed, "firmware 28.39.1002");
        assert_eq!(report.topologies.len(), 2);
    }
}

mod capacity {
    use super::*;

    #[test]
    fn two_free_nodes() {
        let with = |usage: &[&str]| {
            let mut world = World::healthy();
            world.usage.extend(usage.iter().map(|line| (*line).to_owned()));
            judged(world)
        };
        assert_eq!(one(&with(&[]), "P318").observed, "2 of 2 GPU nodes are free");
        let report = with(&["team\ttrain-0\tgpu-b\tJob\t\t{\"nvidia.com/gpu\":\"1\"} \t"]);
        let finding = one(&report, "P318");
        assert_eq!(finding.status, Status::Warn);
        assert_eq!(finding.observed, "1 of 2 GPU nodes are free: gpu-b 1/2 GPUs free, used by team/train-0");
        // All GPUs free, a host device in use.
        assert_eq!(
            one(&with(&["team\tx\tgpu-b\t\t\t{\"nvidia.com/hostdev\":\"1\"} \t"]), "P318").status,
            Status::Warn
        );
        // CPU in use only.
        assert_eq!(one(&with(&["team\tx\tgpu-b\t\t\t{\"cpu\":\"100\"} \t"]), "P318").status, Status::Pass);
    }

    #[test]
    fn nodes_that_take_nothing() {
        let mut world = World::healthy();
        world.at("nodes", 0)["spec"]["unschedulable"] = json!(true);
        let report = judged(world);
        let finding = of(&report, "P320").into_iter().find(|finding| finding.status == Status::Warn).unwrap();
        assert_eq!(finding.observed, "cordoned");
        assert!(steps(finding).contains("uncordon gpu-a"));
        assert_eq!(one(&report, "P318").status, Status::Fail);
        let mut world = World::healthy();
        world.at("nodes", 0)["status"]["conditions"] =
            json!([{"type": "Ready", "status": "Unknown"}, {"type": "DiskPressure", "status": "True"}]);
        let report = judged(world);
        let finding = of(&report, "P320").into_iter().find(|finding| finding.status == Status::Warn).unwrap();
        assert_eq!(finding.observed, "not ready, DiskPressure");
        // A CPU node is nobody's concern.
        let mut world = World::healthy();
        world.at("nodes", 2)["spec"]["unschedulable"] = json!(true);
        assert_eq!(worst(&judged(world), "P320"), Status::Pass);
    }

    #[test]
    fn labels_and_products() {
        let mut world = World::healthy();
        world.at("nodes", 1)["metadata"]["labels"].as_object_mut().unwrap().remove("nvidia.com/gpu.product");
        let report = judged(world);
        let finding = of(&report, "P319").into_iter().find(|finding| finding.status == Status::Warn).unwrap();
        assert_eq!(
            (finding.subject.as_deref(), finding.observed.as_str()),
            (Some("gpu-b"), "no label nvidia.com/gpu.product")
        );
        let mut world = World::healthy();
        world.at("nodes", 1)["metadata"]["labels"]["nvidia.com/gpu.product"] = json!("NVIDIA-B200");
        let report = judged(world);
        assert_eq!(
            (one(&report, "P321").status, one(&report, "P321").observed.as_str()),
            (Status::Warn, "NVIDIA-B200, NVIDIA-H200")
        );
        // Two free nodes, but of two kinds: no job of one image runs on both.
        let finding = one(&report, "P318");
        assert_eq!(finding.status, Status::Fail);
        assert_eq!(
            finding.observed,
            "2 GPU nodes, of which 2 take pods, no two of one kind: 1 x NVIDIA-B200, 1 x NVIDIA-H200"
        );
    }

    #[test]
    fn gpus_and_rdma_devices_that_are_offered() {
        let mut world = World::healthy();
        world.at("nodes", 0)["status"]["allocatable"]["nvidia.com/gpu"] = json!("1");
        let report = judged(world);
        assert_eq!(of(&report, "P329")[0].observed, "1 of 2 GPUs");
        assert_eq!(worst(&report, "P329"), Status::Fail);
        let mut world = World::healthy();
        world.at("nodes", 0)["status"]["allocatable"]["nvidia.com/hostdev"] = json!("0");
        let report = judged(world.clone());
        assert_eq!(
            (of(&report, "P316")[0].status, of(&report, "P316")[0].observed.as_str()),
            (Status::Fail, "nvidia.com/hostdev 0 of 2")
        );
        let report = Fake::new(world.clone()).report(&Options { target: Target::Nccl, ..options() });
        assert_eq!(worst(&report, "P316"), Status::Warn);
        let allocatable = world.at("nodes", 0)["status"]["allocatable"].as_object_mut().unwrap();
        allocatable.insert("rdma/shared_a".to_owned(), json!("63"));
        assert_eq!(worst(&judged(world), "P316"), Status::Pass);
    }

    /// Eight GPUs and NICs, of which a node offers some.
    fn eight(capacity: &serde_json::Value, allocatable: &serde_json::Value) -> World {
        let mut world = World::healthy();
        for place in 0..2 {
            world.at("nodes", place)["status"]["capacity"] =
                json!({"nvidia.com/gpu": "8", "nvidia.com/hostdev": "8"});
            world.at("nodes", place)["status"]["allocatable"] =
                json!({"nvidia.com/gpu": "8", "nvidia.com/hostdev": "8"});
        }
        world.at("nodes", 0)["status"]["capacity"] = capacity.clone();
        world.at("nodes", 0)["status"]["allocatable"] = allocatable.clone();
        world
    }

    #[test]
    fn some_rdma_devices_are_not_all() {
        let full = json!({"nvidia.com/gpu": "8", "nvidia.com/hostdev": "8"});
        let report = judged(eight(&full, &full));
        assert_eq!(one(&report, "P316").observed, "nvidia.com/hostdev 8");
        assert_eq!(one(&report, "P318").status, Status::Pass);
        // Three of eight: the rest was withdrawn, and the node is not free for a job over it.
        let report = judged(eight(&full, &json!({"nvidia.com/gpu": "8", "nvidia.com/hostdev": "3"})));
        let finding = of(&report, "P316")[0];
        assert_eq!((finding.status, finding.observed.as_str()), (Status::Fail, "nvidia.com/hostdev 3 of 8"));
        assert_eq!(finding.cause.as_deref(), Some("kube-rdma-withdrawn"));
        let free = one(&report, "P318");
        assert_eq!(free.status, Status::Warn);
        assert_eq!(free.observed, "1 of 2 GPU nodes are free: gpu-a offers nvidia.com/hostdev 3 of 8");
        // Nothing was withdrawn, but there never was one for each GPU.
        let half = json!({"nvidia.com/gpu": "8", "nvidia.com/hostdev": "4"});
        let report = judged(eight(&half, &half));
        let finding = of(&report, "P316")[0];
        assert_eq!(
            (finding.status, finding.observed.as_str()),
            (Status::Warn, "nvidia.com/hostdev 4 for 8 GPUs")
        );
        // A GPU that is withdrawn still wants its NIC.
        let report = judged(eight(&half, &json!({"nvidia.com/gpu": "4", "nvidia.com/hostdev": "4"})));
        assert_eq!(of(&report, "P316")[0].status, Status::Warn);
        // One resource for each rail.
        let rails = |count: &str| {
            let mut map = json!({"nvidia.com/gpu": "8"});
            for rail in 0..8 {
                map[format!("nvidia.com/rdma_rail{rail}")] = json!(if rail == 5 { count } else { "1" });
            }
            map
        };
        let report = judged(eight(&rails("1"), &rails("1")));
        assert_eq!(worst(&report, "P316"), Status::Pass);
        let report = judged(eight(&rails("1"), &rails("0")));
        let finding = of(&report, "P316")[0];
        assert_eq!(
            (finding.status, finding.observed.as_str()),
            (Status::Fail, "nvidia.com/rdma_rail5 0 of 1")
        );
        // The shared plugin offers places for pods, not devices: one serves a pod with all NICs.
        let shared = json!({"nvidia.com/gpu": "8", "rdma/ib": "1"});
        assert_eq!(worst(&judged(eight(&shared, &shared)), "P316"), Status::Pass);
    }

    #[test]
    fn several_efa_devices_for_each_gpu() {
        let efa = Options { target: Target::DeepepEfa, ..options() };
        let status = |capacity: &str, allocatable: &str| {
            let with = |count: &str| json!({"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": count});
            let report = Fake::new(eight(&with(capacity), &with(allocatable))).report(&efa);
            // The other node has no EFA device at all: the first is looked at.
            of(&report, "P316").iter().find(|one| one.subject.as_deref() == Some("gpu-a")).unwrap().status
        };
        assert_eq!(status("32", "32"), Status::Pass);
        assert_eq!(status("32", "31"), Status::Fail);
        assert_eq!(status("8", "8"), Status::Pass);
        assert_eq!(status("4", "4"), Status::Warn);
    }

    #[test]
    fn efa() {
        let mut world = World::healthy();
        for place in 0..2 {
            let status = &mut world.at("nodes", place)["status"];
            status["allocatable"] =
                json!({"nvidia.com/gpu": "2", "vpc.amazonaws.com/efa": "16", "hugepages-2Mi": "5120Mi"});
        }
        let efa = Options { target: Target::DeepepEfa, ..options() };
        world.lists.get_mut("daemonsets").unwrap().push(
            json!({"metadata": {"name": "aws-efa-k8s-device-plugin-daemonset", "namespace": "kube-system"},
            "status": {"desiredNumberScheduled": 2, "numberReady": 2}}),
        );
        let report = Fake::new(world.clone()).report(&efa);
        assert_eq!(one(&report, "P323").status, Status::Pass);
        assert_eq!(one(&report, "P317").status, Status::Pass);
        assert_eq!(one(&report, "P316").status, Status::Pass);
        assert_eq!(one(&report, "P302").status, Status::NotApplicable);
        assert_eq!(one(&report, "P322").status, Status::Warn);
        world.at("nodes", 0)["status"]["allocatable"]["hugepages-2Mi"] = json!("5119Mi");
        world.at("daemonsets", 1)["status"]["numberReady"] = json!(1);
        world.definitions.push("mpijobs.kubeflow.org");
        let report = Fake::new(world).report(&efa);
        assert_eq!(worst(&report, "P317"), Status::Warn);
        assert_eq!(one(&report, "P323").status, Status::Warn);
        assert_eq!(one(&report, "P322").status, Status::Pass);
        // None at all.
        let report = Fake::new(World::healthy()).report(&efa);
        assert_eq!(one(&report, "P323").status, Status::Fail);
        assert_eq!(worst(&report, "P316"), Status::Fail);
    }

    #[test]
    fn taints_are_noted() {
        let report = judged(World::healthy());
        assert_eq!(one(&report, "P327").observed, "jobs must tolerate nvidia.com/gpu=present:NoSchedule");
    }
}

mod host {
    use super::*;
    use expertrail_cluster::kube::ProbeHost;

    fn probing() -> Options {
        Options { probe_host: ProbeHost::EveryNode, ..options() }
    }

    #[test]
    fn the_file_is_there_and_the_pods_are_gone() {
        let fake = Fake::new(World::healthy());
        fake.stranger("gpu-a");
        let report = fake.report(&probing());
        let finding = one(&report, "P324");
        assert_eq!(finding.status, Status::Pass);
        assert_eq!(
            finding.observed,
            "NCCL_TOPO_FILE=/etc/crusoe/nccl_topo/h200-141gb-sxm-ib-cloud-hypervisor.xml"
        );
        assert_eq!(fake.left(), 1, "the pod of somebody else stays");
        assert_eq!(
            (one(&report, "P325").status, one(&report, "P325").observed.as_str()),
            (Status::Pass, "no pod of ours is left")
        );
        let lines = fake.lines();
        let created: Vec<&String> = lines.iter().filter(|line| line.contains(" debug node/")).collect();
        assert_eq!(created.len(), 2);
        assert!(
            created[0].contains("--image=busybox:1.36")
                && created[0].ends_with(" /host/etc/crusoe/nccl_topo"),
            "{created:?}"
        );
        assert!(!lines.iter().any(|line| line.contains("zzzzz")));
    }

    #[test]
    fn nodes_of_another_provider_have_no_such_file() {
        let mut world = World::healthy();
        for place in 0..2 {
            world.at("nodes", place)["spec"]["providerID"] = json!("aws:///us-east-2a/i-0123");
        }
        world.host.clear();
        let fake = Fake::new(world.clone());
        let report = fake.report(&probing());
        let finding = one(&report, "P324");
        assert_eq!(finding.status, Status::NotApplicable);
        assert!(
            finding.observed.contains("--profile crusoe-h200") && finding.observed.contains("/etc/crusoe/"),
            "{}",
            finding.observed
        );
        assert!(!fake.lines().iter().any(|line| line.contains(" debug ")), "no pod is made for that");
        assert!(of(&report, "P325").is_empty());
        // Who names the profile wants it looked for.
        let profile = expertrail_cluster::profile::get("crusoe-h200").ok();
        let report = Fake::new(world).report(&Options { profile, ..probing() });
        assert_eq!(worst(&report, "P324"), Status::Warn);
    }

    #[test]
    fn one_for_each_product() {
        let fake = Fake::new(World::healthy());
        fake.report(&Options { probe_host: ProbeHost::OnePerProduct, ..options() });
        assert_eq!(fake.lines().iter().filter(|line| line.contains(" debug node/")).count(), 1);
    }

    #[test]
    fn without_the_option_nothing_is_created() {
        let fake = Fake::new(World::healthy());
        let report = fake.report(&options());
        assert!(!fake.lines().iter().any(|line| line.contains("debug") || line.contains("delete")));
        assert!(of(&report, "P324").is_empty());
    }

    #[test]
    fn another_file_or_none() {
        let mut world = World::healthy();
        world.host.insert("gpu-a".to_owned(), Some(vec!["b200.xml"]));
        world.host.insert("gpu-b".to_owned(), None);
        let fake = Fake::new(world);
        let report = fake.report(&probing());
        let observed: Vec<&str> =
            of(&report, "P324").iter().map(|finding| finding.observed.as_str()).collect();
        assert_eq!(
            observed,
            ["/etc/crusoe/nccl_topo has b200.xml", "/etc/crusoe/nccl_topo is empty or not there"]
        );
        assert_eq!(worst(&report, "P324"), Status::Warn);
        assert_eq!(fake.left(), 0);
    }

    #[test]
    fn the_pod_is_deleted_also_when_something_fails() {
        // The answer to its creation is lost, its log cannot be read: it is deleted all the same.
        let fake =
            Fake::new(World::healthy()).when(&["logs"], failed("Error from server: no route to host\n"));
        let report = fake.report(&probing());
        assert_eq!(worst(&report, "P324"), Status::Unknown);
        assert_eq!(fake.left(), 0);
        // It cannot be deleted: that is said, with the command.
        let fake = Fake::new(World::healthy())
            .when(&["delete", "pod"], failed("Error from server (Forbidden): pods is forbidden\n"));
        let report = fake.report(&probing());
        assert_eq!(fake.left(), 2);
        let left = of(&report, "P325");
        assert_eq!(left.len(), 2);
        assert!(
            steps(left[0]).starts_with(
                "kubectl --context test-context -n nvidia-gpu-operator delete pod node-debugger-gpu-"
            ),
            "{}",
            steps(left[0])
        );
        // Its creation is refused: nothing to delete, nothing claimed.
        let fake = Fake::new(World::healthy())
            .when(&["debug"], failed("Error from server (Forbidden): pods is forbidden\n"));
        let report = fake.report(&probing());
        assert_eq!(worst(&report, "P324"), Status::Unknown);
        assert!(of(&report, "P325").is_empty());
    }
}

mod hostile {
    use super::*;

    #[test]
    fn answers_that_are_none() {
        let garbage = [
            "",
            "null",
            "[]",
            "{}",
            "{\"items\": 5}",
            "{\"items\": [null, 1, \"x\", [], {}]}",
            "{\"items\": [{\"metadata\": []}]}",
            "{\"items\": [",
            "\u{0}\u{1b}[2J",
            "<html>login</html>",
        ];
        for text in garbage {
            for word in ["get", "exec", "version", "auth", "logs", "config"] {
                let output = said(text);
                let fake = Fake::new(World::healthy())
                    .hook(move |args| args.contains(&word).then(|| output.clone()));
                let report = fake.report(&Options {
                    probe_host: expertrail_cluster::kube::ProbeHost::EveryNode,
                    ..options()
                });
                let shown = report.text(true);
                assert!(!shown.contains('\u{1b}') && !shown.contains('\u{0}'), "{word} {text:?}");
                if word == "get" || word == "exec" {
                    assert_ne!(report.checks.verdict, Verdict::Pass, "{word} {text:?}");
                }
                serde_json::to_string(&report).unwrap();
            }
        }
    }

    #[test]
    fn bytes_that_are_no_text_and_very_long_lines() {
        let long = vec![b'x'; 10 << 20];
        for bytes in [vec![0xff; 64], long] {
            for word in ["get", "exec", "auth", "logs"] {
                let output = expertrail_cluster::kube::Output {
                    code: Some(0),
                    stdout: bytes.clone(),
                    stderr: bytes.clone(),
                };
                let fake = Fake::new(World::healthy())
                    .hook(move |args| args.contains(&word).then(|| output.clone()));
                let start = std::time::Instant::now();
                let report = fake.report(&options());
                assert!(report.text(true).len() < 200_000);
                // Not optimised, ten million characters take seconds for each answer that is walked through.
                let limit = if cfg!(debug_assertions) { 90 } else { 20 };
                assert!(start.elapsed().as_secs() < limit, "{word}: {:?}", start.elapsed());
            }
        }
    }

    #[test]
    fn every_field_of_the_wrong_type() {
        // Each leaf of the objects in turn becomes another type.
        let mut paths = Vec::new();
        let world = World::healthy();
        for (list, items) in &world.lists {
            leaves(&items[0], "", &mut |path| paths.push((*list, path)));
        }
        assert!(paths.len() > 60);
        for (list, path) in paths {
            for value in [json!(null), json!(-1), json!({"a": []}), json!("\u{1b}[31m$(x)"), json!([[]])] {
                let mut world = World::healthy();
                *world.at(list, 0).pointer_mut(&path).unwrap() = value;
                let report = judged(world);
                assert!(!report.text(true).contains('\u{1b}'), "{list} {path}");
            }
        }
    }

    fn leaves(value: &serde_json::Value, path: &str, found: &mut impl FnMut(String)) {
        found(path.to_owned());
        match value {
            serde_json::Value::Object(map) => {
                for (key, value) in map {
                    let key = key.replace('~', "~0").replace('/', "~1");
                    leaves(value, &format!("{path}/{key}"), found);
                }
            }
            serde_json::Value::Array(items) => {
                for (at, value) in items.iter().enumerate() {
                    leaves(value, &format!("{path}/{at}"), found);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn names_are_words_of_a_shell() {
        let mut world = World::healthy();
        world.at("nvidiadrivers", 0)["metadata"]["name"] = json!("h200; rm -rf /");
        world.at("daemonsets", 0)["metadata"]["ownerReferences"][0]["name"] = json!("h200; rm -rf /");
        world.at("nvidiadrivers", 0)["spec"]["rdma"]["enabled"] = json!(false);
        let report = judged(world);
        let typed = steps(one(&report, "P305"));
        assert!(typed.contains("patch nvidiadriver 'h200; rm -rf /' --type=merge"), "{typed}");
    }
}

mod large {
    use super::*;

    #[test]
    fn a_thousand_nodes() {
        let mut world = World::healthy();
        world.grow(1000);
        for inside in world.inside.values_mut() {
            inside.params = Some("EnableStreamMemOPs: 0\nRegistryDwords: \"\"\n".to_owned());
        }
        let fake = Fake::new(world);
        let start = std::time::Instant::now();
        let report = fake.report(&options());
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
        assert_eq!(report.nodes.len(), 1000);
        // A thousand times the same is one finding.
        let finding = one(&report, "P312");
        assert_eq!(finding.status, Status::Fail);
        assert!(
            finding.subject.as_deref() == Some("gpu-0002, gpu-0003, gpu-0004, gpu-0005 and 996 more"),
            "{:?}",
            finding.subject
        );
        assert_eq!(finding.evidence.len(), 1000);
        assert_eq!(report.topologies.len(), 1);
        assert_eq!(
            fake.calls
                .lock()
                .unwrap()
                .iter()
                .filter(|call| call.get(2).is_some_and(|word| word == "get"))
                .count(),
            11
        );
    }

    #[test]
    fn the_time_for_everything_ends_it() {
        let mut world = World::healthy();
        world.grow(100);
        let fake = Fake::new(world).hook(|args| {
            if args.contains(&"exec") {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            None
        });
        let start = std::time::Instant::now();
        let report = fake.report(&Options { deadline: std::time::Duration::from_millis(600), ..options() });
        assert!(start.elapsed().as_millis() < 3_000, "{:?}", start.elapsed());
        assert_eq!(worst(&report, "P312"), Status::Unknown);
        assert_ne!(report.checks.verdict, Verdict::Pass);
        assert!(
            report
                .findings()
                .iter()
                .any(|finding| finding.observed.contains("the time for the whole check was used up"))
        );
    }
}
