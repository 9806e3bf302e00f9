//! The failure that ends a communicator, in the words that all backends use: what happened, who is at fault, who
//! found it, in which step of which call.
//!
//! In a peer's memory a failure is one word: [`Failure::to_word`].

use std::fmt;

/// The step of a call, for messages and poison records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Phase {
    /// Between calls.
    Idle = 0,
    /// Counts and bases of a dispatch.
    DispatchNotify = 1,
    /// Rows of a dispatch.
    DispatchData = 2,
    /// Bases of a combine.
    CombineNotify = 3,
    /// Rows of a combine that pass through staging.
    CombineStaging = 4,
    /// The end of a combine, when every rank has read its rows.
    CombineDone = 5,
    /// A barrier of the communicator.
    Barrier = 6,
    /// The start of a call, announced between nodes.
    RailNotify = 7,
    /// Rows of a dispatch that cross between nodes.
    RailDispatch = 8,
    /// Rows of a combine that cross between nodes.
    RailCombine = 9,
}

impl Phase {
    /// The phase whose discriminant is `bits`, as poison records carry it; [`Phase::Idle`] for any other value, because
    /// the word comes from memory that a peer writes.
    pub fn from_bits(bits: u8) -> Self {
        match bits {
            1 => Self::DispatchNotify,
            2 => Self::DispatchData,
            3 => Self::CombineNotify,
            4 => Self::CombineStaging,
            5 => Self::CombineDone,
            6 => Self::Barrier,
            7 => Self::RailNotify,
            8 => Self::RailDispatch,
            9 => Self::RailCombine,
            _ => Self::Idle,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "between calls",
            Self::DispatchNotify => "dispatch: count exchange",
            Self::DispatchData => "dispatch: rows",
            Self::CombineNotify => "combine: start",
            Self::CombineStaging => "combine: staged rows",
            Self::CombineDone => "combine: end",
            Self::Barrier => "barrier",
            Self::RailNotify => "start of a call between nodes",
            Self::RailDispatch => "dispatch: rows between nodes",
            Self::RailCombine => "combine: rows between nodes",
        })
    }
}

/// Why a communicator can no longer be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    /// The culprit's process ended without closing its communicator.
    Died = 1,
    /// The culprit closed its communicator while others still waited for it.
    Left = 2,
    /// The culprit was not there when the deadline passed.
    Deadline = 3,
    /// The wait was cancelled from outside (Ctrl-C).
    Cancelled = 4,
    /// The culprit announced memory that it does not have.
    Protocol = 5,
    /// The network between the reporter and the culprit failed.
    Network = 6,
    /// The network delivered something of the culprit's twice, or told of it twice.
    Repeated = 7,
}

impl Cause {
    /// The cause whose discriminant is `bits`, as records carry it; [`Cause::Cancelled`] for any other value, because the
    /// word comes from memory that a peer writes.
    pub fn from_bits(bits: u32) -> Self {
        match bits {
            1 => Self::Died,
            2 => Self::Left,
            3 => Self::Deadline,
            5 => Self::Protocol,
            6 => Self::Network,
            7 => Self::Repeated,
            _ => Self::Cancelled,
        }
    }
}

/// The first failure that ended a communicator: the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What happened.
    pub cause: Cause,
    /// The rank at fault.
    pub culprit: usize,
    /// The rank that found it.
    pub reporter: usize,
    /// What the reporter was doing.
    pub phase: Phase,
    /// The call's number at the reporter.
    pub epoch: u64,
}

impl Failure {
    /// The failure in one word: cause 3 bits below the topmost (which GPUs set), phase 4, culprit 12, reporter 12 (4,096
    /// ranks), epoch 32. Never zero, because causes start at 1.
    pub fn to_word(&self) -> u64 {
        (self.cause as u64) << 60
            | (self.phase as u64) << 56
            | (self.culprit as u64 & 0xFFF) << 44
            | (self.reporter as u64 & 0xFFF) << 32
            | self.epoch & 0xFFFF_FFFF
    }

    /// What a word says.
    pub fn from_word(word: u64) -> Self {
        Self {
            cause: Cause::from_bits((word >> 60) as u32 & 7),
            phase: Phase::from_bits((word >> 56 & 0xF) as u8),
            culprit: (word >> 44 & 0xFFF) as usize,
            reporter: (word >> 32 & 0xFFF) as usize,
            epoch: word & 0xFFFF_FFFF,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cause, culprit, reporter, phase, epoch } = self;
        match cause {
            Cause::Died => write!(
                f,
                "rank {culprit} died (found by rank {reporter} in {phase}, call {epoch}); look at rank \
                 {culprit}'s own output for the reason, then build a new communicator without it"
            ),
            Cause::Left => write!(
                f,
                "rank {culprit} closed its communicator while rank {reporter} waited for it in {phase}, call \
                 {epoch}; every rank must make the same calls"
            ),
            Cause::Deadline => write!(
                f,
                "rank {culprit} did not arrive before rank {reporter}'s deadline in {phase}, call {epoch}; \
                 look at what rank {culprit} is doing, or set a longer deadline"
            ),
            Cause::Protocol => write!(
                f,
                "rank {culprit} announced memory outside of its segment (found by rank {reporter} in {phase}, \
                 call {epoch}); the ranks must run the same program"
            ),
            Cause::Network => write!(
                f,
                "the network between rank {reporter} and rank {culprit} failed in {phase}, call {epoch}; look at the link \
                 of both, then build a new communicator"
            ),
            Cause::Repeated => write!(
                f,
                "the network gave rank {reporter} something of rank {culprit}'s twice in {phase}, call {epoch}; its \
                 provider breaks the rules: use another provider or version, then build a new communicator"
            ),
            Cause::Cancelled => write!(f, "cancelled at rank {reporter} in {phase}, call {epoch}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Cause; 7] = [
        Cause::Died,
        Cause::Left,
        Cause::Deadline,
        Cause::Cancelled,
        Cause::Protocol,
        Cause::Network,
        Cause::Repeated,
    ];

    #[test]
    fn a_failure_survives_its_word() {
        for cause in ALL {
            let failure =
                Failure { cause, culprit: 4095, reporter: 17, phase: Phase::CombineStaging, epoch: 1 << 31 };
            assert_ne!(failure.to_word(), 0);
            assert_eq!(Failure::from_word(failure.to_word()), failure);
        }
        // A rank that cannot be does not change the other fields.
        let failure =
            Failure { cause: Cause::Left, culprit: 1 << 12, reporter: 1 << 13, phase: Phase::Idle, epoch: 3 };
        assert_eq!(failure.to_word(), 2 << 60 | 3);
        // As a GPU writes it: deadline (3), phase 2 (rows), rank 1 at fault, found by rank 17, call 0x80000001.
        let failure = Failure::from_word(1 << 63 | 3 << 60 | 2 << 56 | 1 << 44 | 17 << 32 | 0x8000_0001);
        assert_eq!((failure.cause, failure.phase), (Cause::Deadline, Phase::DispatchData));
        assert_eq!((failure.culprit, failure.reporter, failure.epoch), (1, 17, 0x8000_0001));
    }

    /// Discriminants are the interface between ranks: kernels and peers of another build write them as numbers.
    const NUMBERED: [(u8, Phase, &str); 10] = [
        (0, Phase::Idle, "between calls"),
        (1, Phase::DispatchNotify, "dispatch: count exchange"),
        (2, Phase::DispatchData, "dispatch: rows"),
        (3, Phase::CombineNotify, "combine: start"),
        (4, Phase::CombineStaging, "combine: staged rows"),
        (5, Phase::CombineDone, "combine: end"),
        (6, Phase::Barrier, "barrier"),
        (7, Phase::RailNotify, "start of a call between nodes"),
        (8, Phase::RailDispatch, "dispatch: rows between nodes"),
        (9, Phase::RailCombine, "combine: rows between nodes"),
    ];

    #[test]
    fn phases_keep_their_numbers_and_words() {
        for (bits, phase, words) in NUMBERED {
            assert_eq!(phase as u8, bits);
            assert_eq!(Phase::from_bits(bits), phase);
            assert_eq!(phase.to_string(), words);
        }
        for bits in 10..=u8::MAX {
            assert_eq!(Phase::from_bits(bits), Phase::Idle, "{bits}");
        }
    }

    #[test]
    fn causes_keep_their_numbers() {
        assert_eq!(ALL.map(|cause| cause as u8), [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn messages_name_culprit_reporter_phase_and_call() {
        let failure =
            |cause| Failure { cause, culprit: 31, reporter: 7, phase: Phase::CombineStaging, epoch: 907 };
        for cause in ALL.into_iter().filter(|cause| *cause != Cause::Cancelled) {
            let text = failure(cause).to_string();
            for part in ["rank 31", "rank 7", "combine: staged rows", "call 907"] {
                assert!(text.contains(part), "{cause:?}: no {part:?} in {text:?}");
            }
        }
        // Nobody is at fault when a user cancels.
        assert_eq!(
            failure(Cause::Cancelled).to_string(),
            "cancelled at rank 7 in combine: staged rows, call 907"
        );
    }
}
