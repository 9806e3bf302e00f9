//! What launchers, runtimes and loggers put before a line: who wrote it, and when.

use memchr::memchr;

use super::time::{self, Clock, Stamp};

/// Who says which rank wrote a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Writer {
    /// A rank of the whole run.
    Rank(u32),
    /// A task of srun or mpirun: a rank, or a node where the task starts ranks itself.
    Task(u32),
    /// A rank within its node.
    Local(u32),
    /// A rank within a node whose number is known: node, rank there.
    On(u32, u32),
    /// Nobody that is known: the file it stands in.
    File(u32),
}

/// What the prefixes of a line say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prefix<'a> {
    /// The rank, as the innermost prefix says it.
    pub(super) rank: Option<u32>,
    /// The task of srun or mpirun.
    pub(super) task: Option<u32>,
    /// The rank within its node.
    pub(super) local: Option<u32>,
    /// Host or pod.
    pub(super) node: Option<&'a [u8]>,
    /// `node` is a pod.
    pub(super) pod: bool,
    /// When.
    pub(super) time: Option<Stamp>,
    /// Where the line itself starts.
    pub(super) end: usize,
}

/// Prefixes that other things look like, so that a whole file has to have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Habits {
    /// `3: ` of `srun --label`.
    pub(super) labels: bool,
    /// `node-a: ` of pdsh.
    pub(super) hosts: bool,
    /// `pod container ` of stern.
    pub(super) stern: bool,
}

const LIMIT: usize = 8;

/// Takes the prefixes off a line.
pub(super) fn strip(line: &[u8], habits: Habits) -> Prefix<'_> {
    let mut found = Prefix::default();
    for _ in 0..LIMIT {
        let rest = &line[found.end..];
        let blank = rest.iter().take(4).take_while(|byte| **byte == b' ').count();
        let text = &rest[blank..];
        let taken = match text.first() {
            Some(b'[') => bracket(text, &mut found),
            Some(b'(') => parenthesis(text, &mut found),
            Some(byte) if byte.is_ascii_digit() => {
                digits(text, habits, &mut found).or_else(|| word(text, habits, &mut found))
            }
            Some(byte) if byte.is_ascii_alphabetic() => {
                stamped(text, &mut found).or_else(|| word(text, habits, &mut found))
            }
            _ => None,
        };
        let Some(taken) = taken.filter(|taken| *taken > 0) else { break };
        found.end += blank + taken;
        if line.get(found.end) == Some(&b' ') {
            found.end += 1;
        }
    }
    found
}

fn number(text: &[u8]) -> Option<u32> {
    if text.is_empty() || text.len() > 7 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |value, byte| value * 10 + u32::from(byte - b'0')))
}

/// The number that `text` starts with, after `word`.
fn after(text: &[u8], word: &[u8]) -> Option<u32> {
    let rest = text.strip_prefix(word)?;
    number(&rest[..rest.iter().take_while(|byte| byte.is_ascii_digit()).count()])
}

fn set_time(found: &mut Prefix<'_>, stamp: Stamp) {
    // The outermost counts, but a date counts more than a time of day.
    let better = |old: Stamp| old.clock == Clock::Day && stamp.clock != Clock::Day;
    if found.time.is_none_or(better) {
        found.time = Some(stamp);
    }
}

fn bracket<'a>(text: &'a [u8], found: &mut Prefix<'a>) -> Option<usize> {
    let close = memchr(b']', &text[..text.len().min(200)])?;
    let inside = &text[1..close];
    let next = text.get(close + 1).copied().unwrap_or(b' ');
    if next == b':' {
        // A number that is none of a rank: who wrote it is not known, that it is a prefix is.
        let told = inside.strip_prefix(b"rank").unwrap_or_default();
        if number(told).is_none()
            && told.iter().any(u8::is_ascii_digit)
            && told.iter().all(|c| c.is_ascii_digit() || *c == b'-')
        {
            return Some(close + 2);
        }
        if let Some(rank) = inside.strip_prefix(b"rank").and_then(number) {
            found.rank = Some(rank);
            return Some(close + 2);
        }
        if let Some(local) = inside.strip_prefix(b"default").and_then(number) {
            found.local = Some(local);
            return Some(close + 2);
        }
    }
    if next == b'<' {
        let rest = &text[close + 1..];
        let stream =
            [&b"<stdout>"[..], b"<stderr>", b"<stddiag>"].into_iter().find(|name| rest.starts_with(name))?;
        let comma = inside.iter().rposition(|byte| *byte == b',')?;
        found.task = Some(number(&inside[comma + 1..])?);
        let colon = usize::from(rest.get(stream.len()) == Some(&b':'));
        return Some(close + 1 + stream.len() + colon);
    }
    if let Some(pod) = inside.strip_prefix(b"pod/") {
        let name = pod.split(|byte| *byte == b'/').next()?;
        found.node = Some(name);
        found.pod = true;
        return Some(close + 1);
    }
    if let Some(stamp) = time::kernel(inside) {
        set_time(found, stamp);
        return Some(close + 1);
    }
    if let Some((stamp, taken)) = time::parse(inside) {
        set_time(found, stamp);
        // Of `[E1129 12:00:00 file.cpp:629]` the file stays, of `[12:03:11 DP2 TP16 EP16]` only what it says.
        if inside[0].is_ascii_uppercase()
            && matches!(inside[0], b'E' | b'W' | b'I' | b'F')
            && inside[1].is_ascii_digit()
        {
            return None;
        }
        roles(&inside[taken..], found);
        return Some(close + 1);
    }
    if let Some(at) = inside.strip_prefix(b"NeMo ")
        && let Some((stamp, _)) = time::parse(at.get(2..)?)
    {
        set_time(found, stamp);
        return Some(close + 1);
    }
    // `[host:pid]` and `[host:pid:tid]` of Open MPI and UCX.
    let colon = memchr(b':', inside)?;
    let (host, pids) = inside.split_at(colon);
    let plain =
        host_like(host) && pids.split(|byte| *byte == b':').skip(1).all(|part| number(part).is_some());
    if plain {
        found.node = found.node.or(Some(host));
        return Some(close + 1);
    }
    None
}

/// Ranks among `DP2 TP16 EP16`: in `SGLang` and `vLLM` a rank of the expert group is one of the run, unless there are pipeline stages.
fn roles(text: &[u8], found: &mut Prefix<'_>) {
    let mut best: Option<(u8, u32)> = None;
    for part in text.split(|byte| b" _".contains(byte)) {
        let (order, value) = match part {
            [b'P', b'P', rest @ ..] if number(rest).is_some_and(|stage| stage > 0) => return,
            [b'E', b'P', rest @ ..] => (0, number(rest)),
            [b'T', b'P', rest @ ..] => (1, number(rest)),
            [b'D', b'P', rest @ ..] => (2, number(rest)),
            _ => continue,
        };
        if let Some(value) = value
            && best.is_none_or(|(known, _)| order < known)
        {
            best = Some((order, value));
        }
    }
    if let Some((_, rank)) = best
        && found.rank.is_none()
    {
        found.rank = Some(rank);
    }
}

fn parenthesis<'a>(text: &'a [u8], found: &mut Prefix<'a>) -> Option<usize> {
    let close = memchr(b')', &text[..text.len().min(200)])?;
    let inside = &text[1..close];
    let place = |word: &[u8]| inside.windows(word.len()).position(|window| window == word);
    let rank = place(b"rank=");
    let pid = place(b"pid=");
    if rank.is_none() && pid.is_none() {
        return None;
    }
    if let Some(at) = rank {
        found.rank = after(&inside[at..], b"rank=").or(found.rank);
    } else if let Some(at) = pid {
        roles(&inside[..at], found);
    }
    if let Some(at) = place(b"ip=") {
        let ip = &inside[at + 3..];
        let end = ip.iter().take_while(|byte| byte.is_ascii_hexdigit() || b".:".contains(byte)).count();
        if end > 0 {
            found.node = found.node.or(Some(&ip[..end]));
        }
    }
    Some(close + 1)
}

fn digits<'a>(text: &'a [u8], habits: Habits, found: &mut Prefix<'a>) -> Option<usize> {
    if let Some((stamp, mut taken)) = time::parse(text) {
        set_time(found, stamp);
        // `stdout F ` of the container runtimes.
        for stream in [&b" stdout "[..], b" stderr "] {
            if text[taken..].starts_with(stream) {
                taken += stream.len();
                if matches!(text.get(taken), Some(b'F' | b'P')) && text.get(taken + 1) == Some(&b' ') {
                    taken += 1;
                }
            }
        }
        let bar = &text[taken..];
        if bar.starts_with(b" | ") || bar.starts_with(b" - ") {
            taken += 2;
        } else if bar.starts_with(b":") {
            taken += 1;
        }
        // The host of journald's ISO form, `2026-11-29T12:00:00+0000 node-a kernel: `.
        return Some(taken + journal(&text[taken..], found));
    }
    if habits.labels {
        let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count <= 6 && text[count..].starts_with(b":") && matches!(text.get(count + 1), Some(b' ') | None) {
            found.task = Some(number(&text[..count])?);
            return Some(count + 1);
        }
    }
    None
}

/// `Nov 29 12:00:00 node-a kernel: `.
fn stamped<'a>(text: &'a [u8], found: &mut Prefix<'a>) -> Option<usize> {
    // `time="2026-11-29T12:00:00Z" level=info msg="` of Go programs, and `ts=`.
    for start in [&b"time=\""[..], b"time=", b"ts="] {
        if let Some((stamp, _)) = text.strip_prefix(start).and_then(time::parse) {
            set_time(found, stamp);
            return None;
        }
    }
    let (stamp, taken) = time::parse(text).or_else(|| {
        // `INFO 11-29 12:00:00 ` of vLLM keeps its level: only the time is taken.
        let space = memchr(b' ', &text[..text.len().min(9)])?;
        let (stamp, _) = time::parse(text.get(space + 1..)?)?;
        text[..space].iter().all(u8::is_ascii_uppercase).then_some((stamp, 0))
    })?;
    set_time(found, stamp);
    if taken == 0 || (matches!(text[0], b'E' | b'W' | b'I' | b'F') && text[1].is_ascii_digit()) {
        return None;
    }
    Some(taken + journal(&text[taken..], found))
}

/// Bytes of ` node-a ` before `kernel: ` or `program[12]: `.
fn journal<'a>(text: &'a [u8], found: &mut Prefix<'a>) -> usize {
    let Some(rest) = text.strip_prefix(b" ") else { return 0 };
    let Some(space) = memchr(b' ', &rest[..rest.len().min(100)]) else { return 0 };
    let host = &rest[..space];
    let program = &rest[space + 1..];
    let word =
        program.iter().take_while(|byte| byte.is_ascii_alphanumeric() || b"-_./@".contains(byte)).count();
    let behind = &program[word..];
    let kernel = program.starts_with(b"kernel: ");
    let with_pid = behind.first() == Some(&b'[')
        && memchr(b']', &behind[..behind.len().min(12)]).is_some_and(|at| behind.get(at + 1) == Some(&b':'));
    if word == 0 || !host_like(host) || !(kernel || with_pid) {
        return 0;
    }
    found.node = found.node.or(Some(host));
    1 + space + if kernel { 1 + b"kernel:".len() } else { 0 }
}

/// Whether this may be the name of a host: letters, digits, dots, hyphens.
fn host_like(text: &[u8]) -> bool {
    !text.is_empty()
        && text.len() <= 80
        && text[0].is_ascii_alphanumeric()
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(byte))
        && text.iter().any(u8::is_ascii_alphabetic)
}

fn word<'a>(text: &'a [u8], habits: Habits, found: &mut Prefix<'a>) -> Option<usize> {
    let head = &text[..text.len().min(120)];
    let end = head.iter().position(|byte| b" :".contains(byte))?;
    let name = &head[..end];
    if head[end] == b':' {
        // `host:pid:tid [gpu] ` of NCCL and NVSHMEM.
        let rest = &head[end + 1..];
        let pid = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if pid > 0 && rest.get(pid) == Some(&b':') && host_like(name) {
            let tid = rest[pid + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            let behind = &rest[pid + 1 + tid..];
            if tid > 0
                && behind.starts_with(b" [")
                && let Some(close) = memchr(b']', behind)
                && number(&behind[2..close]).is_some()
            {
                found.node = found.node.or(Some(name));
                return Some(end + 1 + pid + 1 + tid + close + 1);
            }
        }
        // `libfabric:pid:seconds::`.
        if name == b"libfabric"
            && let Some((stamp, _)) = rest.get(pid + 1..).and_then(|rest| time::epoch(rest, b':'))
        {
            set_time(found, stamp);
            return None;
        }
        if habits.hosts && head.get(end + 1).is_none_or(|byte| *byte == b' ') && machine(name) {
            found.node = found.node.or(Some(name));
            return Some(end + 1);
        }
        return None;
    }
    if habits.stern && name.contains(&b'-') && host_like(name) {
        let rest = &head[end + 1..];
        let container = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        if container > 0 && rest[..container].iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
        {
            found.node = found.node.or(Some(name));
            return Some(end + 1 + container);
        }
    }
    None
}

/// Whether this names one machine of several: it has a digit or a hyphen, and is no program or level.
fn machine(name: &[u8]) -> bool {
    host_like(name)
        && (name.contains(&b'-') || name.iter().any(u8::is_ascii_digit))
        && !name.contains(&b'_')
        && !name.starts_with(b"nvidia-")
        && !name.starts_with(b"mlx5")
}

impl Habits {
    /// Reads them off the start of a file.
    pub(super) fn of(head: &[u8]) -> Self {
        let (mut lines, mut labels, mut hosts, mut stern) = (0_usize, 0_usize, 0_usize, 0_usize);
        let mut container: Option<&[u8]> = None;
        let mut names: Vec<&[u8]> = Vec::new();
        for line in head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).take(400) {
            if line.is_empty() {
                continue;
            }
            lines += 1;
            let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let tail = &line[digits..];
            if digits > 0 && digits <= 6 && (tail.starts_with(b": ") || tail == b":") {
                labels += 1;
                continue;
            }
            let end = line.iter().take(120).position(|byte| b" :".contains(byte)).unwrap_or(0);
            let name = &line[..end];
            if end == 0 {
                continue;
            }
            if line[end] == b':' && matches!(line.get(end + 1), Some(b' ') | None) && machine(name) {
                hosts += 1;
                if !names.contains(&name) && names.len() < 600 {
                    names.push(name);
                }
            } else if line[end] == b' '
                && name.contains(&b'-')
                && host_like(name)
                && name[0].is_ascii_lowercase()
            {
                let second = line[end + 1..].split(|byte| *byte == b' ').next().unwrap_or_default();
                let fits = !second.is_empty()
                    && second[0].is_ascii_lowercase()
                    && second.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
                if fits && container.is_none_or(|known| known == second) {
                    container = Some(second);
                    stern += 1;
                }
            }
        }
        let most = |count: usize| count * 5 >= lines * 4 && count >= 1;
        Self {
            labels: labels * 2 >= lines && labels > 0,
            hosts: most(hosts) && names.len() >= 2,
            stern: most(stern) && stern >= 2,
        }
    }
}

/// What a logger of Python writes before its message of an error: `ERROR 11-29 12:00:00 [core.py:842] `, `ERROR worker.py:33 -- [rank5] `,
/// `ERROR `. The end is 0 where there is none.
pub(super) fn logger(line: &[u8]) -> Prefix<'_> {
    let mut found = Prefix::default();
    let Some(level) =
        [&b"ERROR"[..], b"CRITICAL", b"FATAL"].into_iter().find(|level| line.starts_with(level))
    else {
        return found;
    };
    let mut at = level.len();
    if !matches!(line.get(at), Some(b' ' | b':')) {
        return found;
    }
    // The blanks of a frame of a traceback are its own: one blank parts the words here.
    for _ in 0..LIMIT {
        let rest = &line[at..];
        if rest.starts_with(b":") || rest.starts_with(b"-") {
            at += 1;
            continue;
        }
        if rest.starts_with(b" ") && !rest.starts_with(b"  ") {
            at += 1;
            continue;
        }
        let Some(taken) = logged(rest, &mut found).filter(|taken| *taken > 0) else { break };
        at += taken;
    }
    if line[at..].starts_with(b"   ") {
        at += 1;
    }
    found.end = at;
    found
}

/// A word of a logger: a time, `[file.py:12]`, `file.py:12`, `[rank5]`.
fn logged<'a>(text: &'a [u8], found: &mut Prefix<'a>) -> Option<usize> {
    let source = |word: &[u8]| {
        memchr(b':', word).is_some_and(|colon| {
            word[..colon].ends_with(b".py") && word[colon + 1..].iter().all(u8::is_ascii_digit)
        })
    };
    if text.first() == Some(&b'[') {
        let close = memchr(b']', &text[..text.len().min(200)])?;
        let inside = &text[1..close];
        if let Some(rank) = inside.strip_prefix(b"rank").and_then(number) {
            found.rank = Some(rank);
            return Some(close + 1);
        }
        return (source(inside) || time::parse(inside).is_some()).then_some(close + 1);
    }
    if let Some((_, taken)) = time::parse(text) {
        return Some(taken);
    }
    let word = &text[..memchr(b' ', text)?];
    source(word).then_some(word.len())
}

/// The rank that a line names as its own, where no prefix does.
pub(super) fn own_rank(line: &[u8]) -> Option<u32> {
    const WORDS: [&[u8]; 5] = [b"[rank ", b"[Rank ", b"lobal rank: ", b"lobal rank ", b"rank = "];
    let named = WORDS.iter().find_map(|word| {
        let at = memchr::memmem::find(line, word)?;
        after(&line[at..], word)
    });
    // `ERROR worker.py:33 -- [rank5] ` of a logger.
    let logged = || {
        let at = memchr::memmem::find(&line[..line.len().min(160)], b"[rank")?;
        let close = memchr(b']', &line[at..])?;
        (line.get(at + close + 1) == Some(&b' ')).then(|| number(&line[at + 5..at + close])).flatten()
    };
    named.or_else(logged).or_else(|| {
        // The kernels of DeepEP count by node and GPU of eight (NUM_MAX_NVL_PEERS).
        let at = memchr::memmem::find(line, b", RDMA: ")?;
        let node = after(&line[at..], b", RDMA: ")?;
        let nvl = memchr::memmem::find(&line[at..], b", nvl: ")?;
        let gpu = after(&line[at + nvl..], b", nvl: ")?;
        (node < 100_000 && gpu < 8).then(|| node * 8 + gpu)
    })
}

/// Where a prefix of a rank stands within a line: what is before it was written by someone else, whose line was cut.
pub(super) fn inner(line: &[u8]) -> Option<usize> {
    let mut from = 1;
    while let Some(at) = line.get(from..).and_then(|rest| memchr(b'[', rest)).map(|at| at + from) {
        let rest = &line[at..];
        let close = memchr(b']', &rest[..rest.len().min(24)]);
        if let Some(close) = close {
            let inside = &rest[1..close];
            let behind = &rest[close + 1..];
            let rank = behind.starts_with(b":")
                && (inside.strip_prefix(b"rank").and_then(number).is_some()
                    || inside.strip_prefix(b"default").and_then(number).is_some());
            let task = (behind.starts_with(b"<stderr>") || behind.starts_with(b"<stdout>"))
                && inside
                    .iter()
                    .rposition(|byte| *byte == b',')
                    .is_some_and(|comma| number(&inside[comma + 1..]).is_some());
            if rank || task {
                return Some(at);
            }
        }
        from = at + 1;
    }
    None
}
