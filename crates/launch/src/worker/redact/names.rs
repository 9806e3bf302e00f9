//! Which names are those of secrets.

/// What a name says of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// Nothing.
    Plain,
    /// It is a secret, whatever it looks like.
    Always,
    /// It is one unless it is a number: tokens and keys are counted and numbered, too.
    Unless,
}

/// Words after which a name means a place or a property of a secret, not the secret.
const ABOUT: [&str; 18] = [
    "NAME",
    "NAMES",
    "REF",
    "FILE",
    "PATH",
    "DIR",
    "FOLDER",
    "SOCK",
    "TYPE",
    "POLICY",
    "COUNT",
    "LENGTH",
    "SIZE",
    "LIMIT",
    "USER",
    "MODE",
    "ENABLED",
    "EXPIRATION",
];

/// Words before `key` that make it a secret in names of documents, where `key` alone is a place in a map.
const SECRET_KEYS: [&str; 13] = [
    "API",
    "ACCESS",
    "PRIVATE",
    "SECRET",
    "SSH",
    "SIGNING",
    "ENCRYPTION",
    "TLS",
    "AUTH",
    "SERVICE",
    "ACCOUNT",
    "LICENSE",
    "NGC",
];

/// What `name` says of its value.
pub(super) fn sort(name: &str) -> Sort {
    let words = words(name);
    let Some(last) = words.last() else { return Sort::Plain };
    // As an environment variable is written.
    let loud = name.bytes().any(|byte| byte.is_ascii_uppercase())
        && !name.bytes().any(|byte| byte.is_ascii_lowercase());
    let always = |word: &String| {
        ["PASSW", "PASSPHRASE", "SECRET", "CREDENTIAL", "DOCKERCONFIG", "DOCKERCFG"]
            .iter()
            .any(|part| word.contains(part))
            || matches!(word.as_str(), "AUTHORIZATION" | "PWD" | "COOKIE")
                && !(word == "PWD" && words.len() == 1)
    };
    let places = words.len() > 1 && ABOUT.contains(&last.as_str());
    let reference = words.iter().any(|word| word == "REF") || last == "SECRETS";
    if places || name.ends_with("PWD") && matches!(name, "OLDPWD" | "PWD") {
        return Sort::Plain;
    }
    if reference && !loud {
        return Sort::Plain;
    }
    if words.iter().any(always) {
        return Sort::Always;
    }
    let auth = |word: &String| matches!(word.as_str(), "AUTH" | "OAUTH");
    let token = |word: &String| word.ends_with("TOKEN") || loud && word.ends_with("TOKENS");
    if words.iter().any(auth) || words.iter().any(token) {
        return Sort::Unless;
    }
    if key(&words, last, loud) { Sort::Unless } else { Sort::Plain }
}

fn key(words: &[String], last: &str, loud: bool) -> bool {
    // Partition keys and the keys of memory regions and queue pairs: PKEY, LKEY, RKEY, QKEY.
    let fabric =
        |word: &str| matches!(word, "PKEY" | "LKEY" | "RKEY" | "QKEY" | "PKEYS" | "HOTKEY" | "MONKEY");
    if loud {
        return words.iter().any(|word| (word.ends_with("KEY") || word.ends_with("KEYS")) && !fabric(word));
    }
    if ["APIKEY", "ACCESSKEY", "SECRETKEY", "PRIVATEKEY"].iter().any(|end| last.ends_with(end)) {
        return true;
    }
    let before = words.len().checked_sub(2).and_then(|at| words.get(at));
    last == "KEY" && before.is_some_and(|word| SECRET_KEYS.contains(&word.as_str()))
}

/// The words of a name, in capitals: cut at what is no letter or digit and where a capital follows a small letter.
fn words(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut small = false;
    for c in name.chars() {
        let ends = !c.is_ascii_alphanumeric() || c.is_ascii_uppercase() && small;
        if ends && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_ascii_alphanumeric() {
            word.push(c.to_ascii_uppercase());
        }
        small = c.is_ascii_lowercase();
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}
