//! Breadth-first search over all states, with the shortest way to what went wrong.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use crate::world::{Action, Rules, State, Violation};

/// What a search found.
pub(crate) enum Outcome {
    /// Nothing wrong in any state.
    Good {
        /// States visited.
        states: usize,
        /// States in which all is done.
        ends: usize,
    },
    /// The first violation, by a shortest way.
    Bad {
        /// What it is.
        violation: Violation,
        /// The steps that lead there.
        trace: Vec<String>,
        /// States visited before.
        states: usize,
    },
}

/// States are kept as 64 bits of hash: at a million states two of them meet with a chance of about 3e-8.
type Seen = HashMap<u64, (u64, Action), BuildHasherDefault<Same>>;

/// Walks everything that `rules` allow N nodes.
pub(crate) fn explore<const N: usize>(rules: Rules) -> Outcome {
    let start = State::<N>::new(&rules);
    let mut seen = Seen::default();
    seen.insert(digest(&start), (0, Action::Start));
    let mut layer = vec![start];
    let mut ends = 0;
    while !layer.is_empty() {
        let mut next = Vec::new();
        for state in layer {
            let from = digest(&state);
            let actions = state.actions(&rules);
            if actions.is_empty() {
                if state.done() {
                    ends += 1;
                    continue;
                }
                return bad(&seen, from, Action::Start, Violation::Deadlock);
            }
            for action in actions {
                let mut to = state.clone();
                if let Err(violation) = to.step(&rules, action) {
                    return bad(&seen, from, action, violation);
                }
                if let Entry::Vacant(vacant) = seen.entry(digest(&to)) {
                    vacant.insert((from, action));
                    next.push(to);
                }
            }
        }
        layer = next;
    }
    Outcome::Good { states: seen.len(), ends }
}

fn bad(seen: &Seen, mut at: u64, last: Action, violation: Violation) -> Outcome {
    let mut trace = Vec::new();
    if last != Action::Start {
        trace.push(format!("{last:?}"));
    }
    while let Some(&(from, action)) = seen.get(&at) {
        if action == Action::Start {
            break;
        }
        trace.push(format!("{action:?}"));
        at = from;
    }
    trace.reverse();
    Outcome::Bad { violation, trace, states: seen.len() }
}

fn digest<const N: usize>(state: &State<N>) -> u64 {
    let mut hasher = Mix::default();
    state.hash(&mut hasher);
    hasher.finish()
}

/// A fast hash of words: states are large and there are many.
#[derive(Default)]
struct Mix(u64);

impl Mix {
    fn add(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9).rotate_left(31).wrapping_add(1);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.add(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.add(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.add(value as u64);
    }
}

/// The keys are hashes already.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}
