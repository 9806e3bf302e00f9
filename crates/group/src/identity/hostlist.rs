//! Slurm's hostlist expressions: `n[1-3,07],gpu-a[1-2]b[3-4]`.

use super::endpoint::is_host;

/// The most hosts an expression may name.
pub const MAX_HOSTS: usize = 65_536;

/// Expands a hostlist into host names, in its own order.
///
/// Leading zeros are kept (`n[08-10]` is n08, n09, n10) and several brackets in one name multiply, the
/// last one running fastest.
///
/// # Errors
/// What is wrong with the expression; also one of more than [`MAX_HOSTS`] names.
pub fn parse_hostlist(text: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for entry in split_entries(text)? {
        expand(entry, &mut hosts)?;
    }
    Ok(hosts)
}

/// Splits at the commas outside brackets.
fn split_entries(text: &str) -> Result<Vec<&str>, String> {
    let (mut entries, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '[' if inside => return Err(format!("a bracket within a bracket at byte {at}")),
            '[' => inside = true,
            ']' if !inside => return Err(format!("']' without '[' at byte {at}")),
            ']' => inside = false,
            ',' if !inside => {
                entries.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("'[' without ']'".to_owned());
    }
    entries.push(&text[start..]);
    Ok(entries)
}

/// Appends the names of one entry.
fn expand(entry: &str, hosts: &mut Vec<String>) -> Result<(), String> {
    let mut names = vec![String::new()];
    let mut rest = entry;
    while let Some((head, tail)) = rest.split_once('[') {
        let (ranges, after) = tail.split_once(']').ok_or("'[' without ']'")?;
        let numbers = expand_ranges(ranges)?;
        // Checked before anything is built: a short text can name 10^27 hosts.
        let total = names.len().saturating_mul(numbers.len());
        if total.saturating_add(hosts.len()) > MAX_HOSTS {
            return Err(format!("more than {MAX_HOSTS} hosts"));
        }
        names = names
            .iter()
            .flat_map(|name| numbers.iter().map(move |number| format!("{name}{head}{number}")))
            .collect();
        rest = after;
    }
    if hosts.len() + names.len() > MAX_HOSTS {
        return Err(format!("more than {MAX_HOSTS} hosts"));
    }
    for mut name in names {
        name.push_str(rest);
        if !is_host(&name) {
            return Err(format!("{:?} is no host name", name.chars().take(80).collect::<String>()));
        }
        hosts.push(name);
    }
    Ok(())
}

/// `1-3,07` into `1 2 3 07`.
fn expand_ranges(text: &str) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for range in text.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let parse = |digits: &str| {
            let plain =
                !digits.is_empty() && digits.len() <= 18 && digits.bytes().all(|b| b.is_ascii_digit());
            let value = if plain { digits.parse::<u64>().ok() } else { None };
            value.ok_or_else(|| format!("{:?} is no number", digits.chars().take(40).collect::<String>()))
        };
        let (first, last) = (parse(low)?, parse(high)?);
        if last < first {
            return Err(format!("range {first}-{last} runs backwards"));
        }
        if (last - first).saturating_add(numbers.len() as u64) >= MAX_HOSTS as u64 {
            return Err(format!("more than {MAX_HOSTS} hosts"));
        }
        let width = low.len();
        numbers.extend((first..=last).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts(text: &str) -> Vec<String> {
        parse_hostlist(text).unwrap()
    }

    #[test]
    fn forms() {
        assert_eq!(hosts("n1"), ["n1"]);
        assert_eq!(hosts("n1,n2"), ["n1", "n2"]);
        assert_eq!(hosts("n[1-3,07]"), ["n1", "n2", "n3", "n07"]);
        assert_eq!(hosts("n[08-10]"), ["n08", "n09", "n10"]);
        assert_eq!(hosts("n[8-11]"), ["n8", "n9", "n10", "n11"]);
        assert_eq!(hosts("a[1-2]b[3-4]"), ["a1b3", "a1b4", "a2b3", "a2b4"]);
        assert_eq!(hosts("gpu-[1,3]-ib,login"), ["gpu-1-ib", "gpu-3-ib", "login"]);
        assert_eq!(hosts("n[5]"), ["n5"]);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "", ",", "n1,", "n[", "n]", "n[]", "n[1-", "n[-2]", "n[3-1]", "n[[1]]", "n[1-2-3]", "n[a]",
            "n 1", "n[1,]", "[1-2",
        ] {
            assert!(parse_hostlist(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn expansion_is_bounded() {
        for text in ["n[0-65536]", "n[0-999999999999999999]", "a[0-999]b[0-999]c[0-999]", "n[0-65535],m"] {
            assert!(parse_hostlist(text).unwrap_err().contains("more than"), "{text}");
        }
        assert_eq!(hosts("n[0-65535]").len(), MAX_HOSTS);
    }

    proptest! {
        #[test]
        fn never_panics(text in "[\\[\\],a-c0-9 -]{0,40}") {
            let _ = parse_hostlist(&text);
        }

        #[test]
        fn a_range_names_what_counting_names(first in 0_u64..2000, count in 1_u64..50, width in 1_usize..6) {
            let last = first + count - 1;
            let text = format!("rack2-n[{first:0width$}-{last:0width$}]");
            let wanted: Vec<_> = (first..=last).map(|n| format!("rack2-n{n:0width$}")).collect();
            prop_assert_eq!(parse_hostlist(&text).unwrap(), wanted);
        }
    }
}
