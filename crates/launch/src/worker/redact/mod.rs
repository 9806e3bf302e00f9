//! Secrets out of texts and documents, before they are written down or leave the node.
//!
//! A value is taken for a secret by the name it is given (`HF_TOKEN=`, `"auth": `, `--docker-password `, a pod's `name`/`value` pair,
//! the data of a Secret) or by its own form (`AKIA...`, `ghp_...`, `https://user:password@host`). What is counted is not secret: `tokens:
//! 4096`, `num_max_dispatch_tokens_per_rank`, `NCCL_IB_PKEY` and `topologyKey` stay.

mod forms;
mod names;
mod scan;

use serde_json::Value;

use names::{Sort, sort};

/// What stands in a secret's place.
pub const REDACTED: &str = "[redacted]";

/// `text` without secrets. Lines stay lines, and JSON stays JSON.
pub fn redact_text(text: &str) -> String {
    let mut scanner = scan::Scanner::new(text);
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let end = line.trim_end_matches(['\n', '\r']).len();
        let (line, end) = line.split_at(end);
        scanner.line(line, &mut out);
        out.push_str(end);
    }
    out
}

/// Takes secrets out of a document, in place.
pub fn redact_json(value: &mut Value) {
    match value {
        Value::String(text) => {
            let clean = redact_text(text);
            if clean != *text {
                *text = clean;
            }
        }
        Value::Array(all) => all.iter_mut().for_each(redact_json),
        Value::Object(map) => {
            let is = |key: &str, wanted: &str| map.get(key).and_then(Value::as_str) == Some(wanted);
            let secret_object = is("kind", "Secret");
            // A variable of a pod: {"name": "HF_TOKEN", "value": "..."}.
            let named = map.get("name").and_then(Value::as_str).is_some_and(|name| sort(name) != Sort::Plain);
            for (key, value) in map.iter_mut() {
                let whole = secret_object && matches!(key.as_str(), "data" | "stringData");
                let sort = if named && key == "value" { Sort::Always } else { sort(key) };
                match (whole, sort) {
                    (true, _) => blank(value, Sort::Always),
                    (false, Sort::Plain) => redact_json(value),
                    (false, sort) => blank(value, sort),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Takes away what a secret name holds. Below it names tell nothing: every text goes, and numbers where the name is always one of a
/// secret.
fn blank(value: &mut Value, sort: Sort) {
    match value {
        Value::String(text) if text.is_empty() => {}
        Value::String(_) => *value = Value::String(REDACTED.to_owned()),
        Value::Number(_) if sort == Sort::Always => *value = Value::String(REDACTED.to_owned()),
        Value::Array(all) => all.iter_mut().for_each(|one| blank(one, sort)),
        // A reference to a secret: {"secretKeyRef": {"name": "deepep-pull", "key": "token"}} names things, and keeps its names.
        Value::Object(map) if sort == Sort::Unless => map.values_mut().for_each(redact_json),
        Value::Object(map) => {
            for (key, one) in map.iter_mut() {
                // A volume's {"secret": {"secretName": "x"}}: what names a secret does not tell it.
                let names = matches!(
                    key.as_str(),
                    "apiVersion" | "kind" | "metadata" | "name" | "namespace" | "secretName" | "optional"
                );
                if names { redact_json(one) } else { blank(one, sort) }
            }
        }
        Value::Number(_) | Value::Bool(_) | Value::Null => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts() {
        for (text, wanted) in [
            ("HF_TOKEN=abc123 PATH=/bin", "HF_TOKEN=[redacted] PATH=/bin"),
            ("export WANDB_API_KEY='a b'", "export WANDB_API_KEY='[redacted]'"),
            ("db_password: hunter2", "db_password: [redacted]"),
            (r#"{"auth": "dXNlcjpwdw==", "n": 1}"#, r#"{"auth": "[redacted]", "n": 1}"#),
            (r#"{\"auth\":\"dXNlcjpwdw==\"}"#, r#"{\"auth\":\"[redacted]\"}"#),
            (r#"{"password":12345,"n":1}"#, r#"{"password":"[redacted]","n":1}"#),
            (r#"{"password":"a\"b","n":1}"#, r#"{"password":"[redacted]","n":1}"#),
            ("  .dockerconfigjson: eyJhdXRocyI6e319", "  .dockerconfigjson: [redacted]"),
            ("Authorization: Bearer abc.def-ghi", "Authorization: [redacted]"),
            (
                "curl -H 'Authorization: Basic dXNlcjpwdw==' http://x",
                "curl -H 'Authorization: [redacted]' http://x",
            ),
            ("pull https://bob:s3cret@ghcr.io/x:1", "pull https://[redacted]@ghcr.io/x:1"),
            ("key id AKIAIOSFODNN7EXAMPLE used", "key id [redacted] used"),
            ("saw hf_AbCdEfGhIjKlMnOpQrSt.", "saw [redacted]."),
            ("saw ghp_16C7e42F292c6912E7710c838347Ae178B4a", "saw [redacted]"),
            (
                "kubectl create secret --docker-password=pw1 --docker-username=me",
                "kubectl create secret --docker-password=[redacted] --docker-username=me",
            ),
            ("login --password pw1 host", "login --password [redacted] host"),
            ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "AWS_SECRET_ACCESS_KEY=[redacted]"),
            ("AWS_SESSION_TOKEN: FwoGZXIvYXdzE", "AWS_SESSION_TOKEN: [redacted]"),
            (
                "MYSECRET=1 GITHUBTOKEN=2 SSHKEY=3 X_CREDENTIALS=4 MY_AUTH=5",
                "MYSECRET=[redacted] GITHUBTOKEN=[redacted] SSHKEY=[redacted] X_CREDENTIALS=[redacted] MY_AUTH=[redacted]",
            ),
        ] {
            assert_eq!(redact_text(text), wanted);
        }
    }

    #[test]
    fn what_is_counted_or_named_stays() {
        for text in [
            "tokens: 4096, hidden 7168, --tokens 65536 num_max_dispatch_tokens_per_rank=128",
            r#"{"tokens":4096,"author":"x","token":17}"#,
            "NCCL_IB_PKEY=0x8005 NVSHMEM_IB_PKEY: 1",
            "topologyKey: kubernetes.io/hostname",
            "- key: nvidia.com/gpu.present",
            "imagePullSecrets:\n- name: deepep-pull",
            "secretName: deepep-pull",
            "valueFrom: {secretKeyRef: {name: hf, key: token}}",
            "AWS_WEB_IDENTITY_TOKEN_FILE=/var/run/secrets/token",
            "SSH_AUTH_SOCK=/tmp/ssh-1/agent",
            "https://ghcr.io:443/v2/ user@host:/path",
            "mlx5_0 hf_config skipped, sk-learn",
            "TOKENS=65536",
            "",
        ] {
            assert_eq!(redact_text(text), text);
        }
    }

    #[test]
    fn pairs_of_a_pod_and_secrets() {
        let yaml = "env:\n- name: HF_TOKEN\n  value: \"abc\"\n- name: NCCL_DEBUG\n  value: WARN\n";
        assert_eq!(redact_text(yaml), yaml.replace("\"abc\"", "\"[redacted]\""));
        let line = r#"[{"name":"HF_TOKEN","value":"abc"},{"name":"A","value":"b"}]"#;
        assert_eq!(redact_text(line), line.replace("abc", REDACTED));
        let secret = "apiVersion: v1\ndata:\n  user: Ym9i\n  x.y: cHc=\nkind: Secret\nmetadata:\n  name: s\n---\nkind: ConfigMap\ndata:\n  a: b\n";
        assert_eq!(redact_text(secret), secret.replace("Ym9i", REDACTED).replace("cHc=", REDACTED));
    }

    #[test]
    fn private_keys_over_many_lines() {
        let text =
            "a\n-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn\nNzaC1r\n-----END OPENSSH PRIVATE KEY-----\nz";
        assert_eq!(
            redact_text(text),
            "a\n-----BEGIN OPENSSH PRIVATE KEY-----\n[redacted]\n[redacted]\n-----END OPENSSH PRIVATE KEY-----\nz"
        );
        let jwt = "x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN y";
        assert_eq!(redact_text(jwt), "x [redacted] y");
    }

    #[test]
    fn documents() {
        let mut document = json!({
            "env": [{"name": "HF_TOKEN", "value": "x"}, {"name": "NCCL_DEBUG", "value": "WARN"}],
            "HF_TOKEN": "abc", "tokens": 4096, "token": 17, "password": 12, "note": "Authorization: Bearer q",
            "auths": {"ghcr.io": {"auth": "eDp5"}},
            "from": {"secretKeyRef": {"name": "hf", "key": "token"}},
            "secret": {"kind": "Secret", "data": {"a": "b"}},
            "variables": {"NCCL_IB_PKEY": "0x8005"},
        });
        redact_json(&mut document);
        assert_eq!(
            document,
            json!({
                "env": [{"name": "HF_TOKEN", "value": REDACTED}, {"name": "NCCL_DEBUG", "value": "WARN"}],
                "HF_TOKEN": REDACTED, "tokens": 4096, "token": 17, "password": REDACTED, "note": "Authorization: [redacted]",
                "auths": {"ghcr.io": {"auth": REDACTED}},
                "from": {"secretKeyRef": {"name": "hf", "key": "token"}},
                "secret": {"kind": "Secret", "data": {"a": REDACTED}},
                "variables": {"NCCL_IB_PKEY": "0x8005"},
            })
        );
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_is_settled_after_once(text in "[a-zA-Z0-9_=:\"'\\\\{}\\[\\] /@.\n-]{0,200}|\\PC{0,80}") {
            let once = redact_text(&text);
            proptest::prop_assert_eq!(redact_text(&once), once);
        }

        #[test]
        fn the_value_of_a_secret_variable_is_gone(name in "[A-Z]{1,8}_(TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL|AUTH)", value in "[a-z0-9+/]{6,40}") {
            for text in [format!("{name}={value}"), format!("{name}: {value}"), format!("{{\"{name}\": \"{value}\"}}"), format!("- name: {name}\n  value: {value}")] {
                proptest::prop_assert!(!redact_text(&text).contains(&value), "{}", text);
            }
        }
    }
}
