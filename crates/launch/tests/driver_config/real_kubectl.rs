//! What the scripts ask, put to the real kubectl, against an API server of the same world: the stand-in must not be kinder than kubectl
//! is. `exec` needs a streaming protocol and stays with the stand-in.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::world::{CONTEXT, Cluster, before_recycling, gpu_pod, in_order, options, scratch_pod, stand_in};

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn real() -> Option<String> {
    let path = std::env::var("PATH").ok()?;
    path.split(':')
        .map(|folder| format!("{folder}/kubectl"))
        .find(|file| fs::metadata(file).is_ok_and(|file| file.is_file()))
}

#[test]
fn the_scripts_read_the_same_through_kubectl_itself() {
    let Some(kubectl) = real() else {
        println!("not run: the driver-config scripts with the real kubectl (there is none on PATH)");
        return;
    };
    let mut busy = before_recycling();
    busy["pods"]
        .as_array_mut()
        .unwrap()
        .extend([gpu_pod("train-0", "gpu-1"), scratch_pod("loki-0", "gpu-2")]);
    busy["nvidiadrivers"][0]["spec"]["manager"] = serde_json::json!({"env": [{"name": "A", "value": "b"}]});
    for world in [before_recycling(), busy, in_order()] {
        let cluster = Cluster::new(&options(), &world);
        let calls: [(&str, &[&str]); 6] = [
            ("01-apply.sh", &[]),
            ("02-before-recycling.sh", &[]),
            ("03-recycle.sh", &[]),
            ("04-verify.sh", &[]),
            ("optional-drain-override.sh", &[]),
            ("01-apply.sh", &["--resource", "nobody"]),
        ];
        let before: Vec<_> = calls.iter().map(|(script, arguments)| cluster.on(script, arguments)).collect();
        let mut command = Command::new("python3");
        command.arg("-B").arg(stand_in()).arg("serve").env("FAKE_CLUSTER", cluster.path());
        let mut server = Server(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut port = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{}", port.trim())}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": "c", "user": "u"}}],
        });
        fs::write(cluster.path().join("config"), config.to_string()).unwrap();
        let wrapper = format!(
            "#!/bin/sh\nfor word; do [ \"$word\" != exec ] || exec python3 -I -S -B '{}' kubectl \"$@\"; done\nexport KUBECONFIG='{}' HOME='{}'\nexec '{kubectl}' \"$@\"\n",
            stand_in().display(),
            cluster.path().join("config").display(),
            cluster.path().display(),
        );
        fs::write(cluster.path().join("bin/kubectl"), wrapper).unwrap();
        let address = format!("http://127.0.0.1:{}", port.trim());
        for ((script, arguments), first) in calls.iter().zip(before) {
            let second = cluster.on(script, arguments);
            assert_eq!(second.code, first.code, "{script} {arguments:?}: {}{}", second.out, second.err);
            assert_eq!(second.out.replace(&address, "https://cluster.test:6443"), first.out, "{script}");
        }
    }
}
