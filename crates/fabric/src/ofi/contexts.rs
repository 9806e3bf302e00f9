//! What every operation lends to the provider until it completes.

use std::cell::UnsafeCell;
use std::ffi::c_void;

/// 64 bytes that belong to the provider while the operation is in flight (`fi_context2`).
#[repr(C, align(64))]
struct Lent(UnsafeCell<[u64; 8]>);

/// What we remember of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// To whom.
    pub(crate) peer: u32,
    /// The caller's own.
    pub(crate) context: u64,
}

/// What a completion stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    /// The operation that was in flight there.
    Operation(Operation),
    /// One that was given up before, and reported then.
    GivenUp,
    /// Nothing was in flight there.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    InFlight(Operation),
    /// Reported as failed while the provider still has it: its place is lent until the provider gives it back.
    GivenUp,
}

/// The contexts of all operations that may be in flight, at places that never move.
pub(crate) struct Contexts {
    lent: Box<[Lent]>,
    states: Vec<State>,
    free: Vec<u32>,
}

// SAFETY: the cells are touched by the provider alone, within calls of whoever has the endpoint.
unsafe impl Send for Contexts {}

impl Contexts {
    /// Room for `depth` operations.
    pub(crate) fn new(depth: usize) -> Self {
        let lent = (0..depth).map(|_| Lent(UnsafeCell::new([0; 8]))).collect();
        // The last is taken first, and given back first: the cache knows it.
        let free = (0..depth as u32).rev().collect();
        Self { lent, states: vec![State::Free; depth], free }
    }

    /// Takes a place for an operation; `None` when all are in flight.
    pub(crate) fn take(&mut self, operation: Operation) -> Option<u32> {
        let place = self.free.pop()?;
        self.states[place as usize] = State::InFlight(operation);
        Some(place)
    }

    /// What to give to the provider for the place.
    pub(crate) fn pointer(&self, place: u32) -> *mut c_void {
        self.lent[place as usize].0.get().cast()
    }

    /// The place that a completion's context stands for; `None` for any other pointer.
    pub(crate) fn place(&self, context: *const c_void) -> Option<u32> {
        let bytes = (context as usize).checked_sub(self.lent.as_ptr() as usize)?;
        let place = bytes / size_of::<Lent>();
        (bytes.is_multiple_of(size_of::<Lent>()) && place < self.lent.len()).then_some(place as u32)
    }

    /// Takes a completed place back.
    pub(crate) fn give_back(&mut self, place: u32) -> Returned {
        let state = std::mem::replace(&mut self.states[place as usize], State::Free);
        if state != State::Free {
            self.free.push(place);
        }
        match state {
            State::InFlight(operation) => Returned::Operation(operation),
            State::GivenUp => Returned::GivenUp,
            State::Free => Returned::Nothing,
        }
    }

    /// Gives up everything in flight to `peer`, and says what it was.
    pub(crate) fn give_up(&mut self, peer: u32) -> Vec<Operation> {
        let mut gone = Vec::new();
        for state in &mut self.states {
            if let State::InFlight(operation) = *state
                && operation.peer == peer
            {
                *state = State::GivenUp;
                gone.push(operation);
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(peer: u32, context: u64) -> Operation {
        Operation { peer, context }
    }

    #[test]
    fn places_are_64_bytes_apart_and_found_by_pointer() {
        let mut contexts = Contexts::new(3);
        let first = contexts.take(operation(0, 7)).unwrap();
        let second = contexts.take(operation(0, 8)).unwrap();
        let (a, b) = (contexts.pointer(first) as usize, contexts.pointer(second) as usize);
        assert_eq!((a % 64, b.abs_diff(a)), (0, 64));
        assert_eq!(contexts.place(contexts.pointer(second)), Some(second));
        let base = contexts.pointer(0) as usize;
        for stray in [0, base - 64, base + 8, base + 3 * 64] {
            assert_eq!(contexts.place(stray as *const c_void), None, "{stray:#x}");
        }
    }

    #[test]
    fn a_place_is_lent_until_it_is_given_back() {
        let mut contexts = Contexts::new(2);
        let first = contexts.take(operation(0, 7)).unwrap();
        let second = contexts.take(operation(1, 8)).unwrap();
        assert_eq!(contexts.take(operation(0, 9)), None);
        assert_eq!(contexts.give_back(first), Returned::Operation(operation(0, 7)));
        assert_eq!(contexts.give_back(first), Returned::Nothing, "completed twice");
        assert_eq!(contexts.give_up(1), [operation(1, 8)]);
        assert_eq!(contexts.give_up(1), []);
        assert_eq!(contexts.take(operation(0, 9)), Some(first));
        assert_eq!(contexts.take(operation(0, 10)), None, "the one given up is still lent");
        assert_eq!(contexts.give_back(second), Returned::GivenUp);
        assert_eq!(contexts.take(operation(0, 10)), Some(second));
    }
}
