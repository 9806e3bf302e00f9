//! The messages that are not rows: the header of a call and the status at a dispatch's end. All numbers little-endian.
//!
//! Each is written into a fixed region of the peer, one for each generation (epoch modulo 2). Two generations are enough:
//! a rank sends the header of call e + 2 only after call e + 1 has ended, for which it needed the peer's header of e + 1,
//! which the peer sent after its own call e had ended. A region is read once its immediate has arrived, and not before.

use thiserror::Error;

use super::bytes::{get_u16, get_u32, get_u64, put_words, words};
use super::chunk::{ALIGN, MAGIC, VERSION};

/// A message that a peer wrote and that this call cannot use.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CallError {
    /// The region is shorter than the message.
    #[error("a {what} needs {want} bytes, its region has {got}")]
    Short {
        /// Which message.
        what: &'static str,
        /// Bytes there are.
        got: usize,
        /// Bytes needed.
        want: usize,
    },
    /// A field has another value than this message must have.
    #[error(
        "the {what} of a peer says {field} {got}, expected is {want}; both nodes must run the same version of Expertrail and \
         make the same calls"
    )]
    Field {
        /// Which message.
        what: &'static str,
        /// Which field.
        field: &'static str,
        /// What the peer wrote.
        got: u64,
        /// What it must be.
        want: u64,
    },
    /// A count is beyond what the shape allows.
    #[error("the header of a peer announces {got} {what}: at most {limit} are possible with {of}")]
    Count {
        /// What is counted.
        what: &'static str,
        /// What the peer wrote.
        got: u64,
        /// The most that is possible.
        limit: u64,
        /// What sets the limit.
        of: &'static str,
    },
    /// Tokens cross that go nowhere.
    #[error(
        "the header of a peer announces {tokens} tokens for this node but only {copies} copies of them for its ranks; both \
         nodes must run the same version of Expertrail"
    )]
    Copies {
        /// Tokens announced.
        tokens: u64,
        /// Sum of the counts to ranks.
        copies: u64,
    },
}

/// What one rank tells a rail peer about a call before any row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallHeader {
    /// The call's number.
    pub epoch: u64,
    /// Hash of everything that all ranks must have called alike.
    pub signature: u64,
    /// The call that made the handle, for a cached dispatch or a combine; 0 otherwise.
    pub origin: u64,
    /// Tokens of this source with a destination on the peer's node: each crosses once.
    pub tokens_to_node: u32,
    /// Whether this rank gives its output a fixed number of rows: statuses are then exchanged before any row.
    pub fixed: bool,
    /// Tokens for each rank of the peer's node, `[G]`. Empty in cached calls and combines.
    pub to_rank: Vec<u32>,
    /// Choices of each expert of the peer's node, `[experts of the node]`. Empty in cached calls and combines.
    pub to_expert: Vec<u32>,
}

/// What a header must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderBounds {
    /// Ranks on this node, G.
    pub ranks: usize,
    /// Experts on this node.
    pub experts: usize,
    /// The most tokens of a rank.
    pub max_tokens: usize,
    /// Choices of a token.
    pub top_k: usize,
}

/// Bytes before the counts.
const FIXED: usize = 48;

/// Marks a header in its third byte pair, as [`STATUS`] marks a status; chunks have their operation there.
const HEADER: u8 = 0x10;
const STATUS: u8 = 0x20;

impl CallHeader {
    /// Bytes of a header with the counts of `ranks` ranks and `experts` experts.
    pub fn encoded_bytes(ranks: usize, experts: usize) -> usize {
        FIXED + 4 * (ranks + experts)
    }

    /// Bytes of a region for such headers: whole lines, at least 64.
    pub fn region_bytes(ranks: usize, experts: usize) -> usize {
        Self::encoded_bytes(ranks, experts).next_multiple_of(ALIGN)
    }

    /// Writes the header to the front of `region` and returns its length, which is what must be sent.
    ///
    /// # Errors
    /// [`CallError::Short`] when the region is too short.
    pub fn encode(&self, region: &mut [u8]) -> Result<usize, CallError> {
        let (got, want) = (region.len(), Self::encoded_bytes(self.to_rank.len(), self.to_expert.len()));
        let mut fixed = [0u8; FIXED];
        fixed[..4].copy_from_slice(&mark(HEADER));
        fixed[4..8].copy_from_slice(&(self.to_rank.len() as u32).to_le_bytes());
        fixed[8..12].copy_from_slice(&(self.to_expert.len() as u32).to_le_bytes());
        fixed[12..16].copy_from_slice(&self.tokens_to_node.to_le_bytes());
        fixed[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        fixed[24..32].copy_from_slice(&self.signature.to_le_bytes());
        fixed[32..40].copy_from_slice(&self.origin.to_le_bytes());
        fixed[40] = u8::from(self.fixed);
        let counts = self.to_rank.iter().chain(&self.to_expert).map(|count| count.to_le_bytes());
        let all = words(&fixed).chain(counts);
        if got < want || put_words(region, 0, all).is_none() {
            return Err(CallError::Short { what: "header", got, want });
        }
        Ok(want)
    }

    /// Reads the header of call `epoch` at the front of `region`; what follows it there is left from earlier calls. Counts
    /// are checked against the shape, so that sums over all sources cannot wrap.
    ///
    /// # Errors
    /// [`CallError`] naming the field that is not what it must be.
    pub fn decode(region: &[u8], epoch: u64, bounds: &HeaderBounds) -> Result<Self, CallError> {
        let short = |want| CallError::Short { what: "header", got: region.len(), want };
        let at32 = |at| get_u32(region, at).ok_or(short(FIXED));
        let at64 = |at| get_u64(region, at).ok_or(short(FIXED));
        check_mark("header", region, HEADER)?;
        check("header", "epoch", at64(16)?, epoch)?;
        let flags = at64(40)?;
        check("header", "flags beyond the first", flags & !1, 0)?;
        let (ranks, experts, tokens) = (at32(4)? as usize, at32(8)? as usize, at32(12)?);
        if ranks > 0 || experts > 0 {
            check("header", "number of ranks", ranks as u64, bounds.ranks as u64)?;
            check("header", "number of experts", experts as u64, bounds.experts as u64)?;
        }
        let want = Self::encoded_bytes(ranks, experts);
        let counts = region.get(FIXED..want).ok_or(short(want))?;
        let mut counts = words(counts).map(u32::from_le_bytes);
        let decoded = Self {
            epoch,
            signature: at64(24)?,
            origin: at64(32)?,
            tokens_to_node: tokens,
            fixed: flags == 1,
            to_rank: counts.by_ref().take(ranks).collect(),
            to_expert: counts.collect(),
        };
        decoded.check_counts(bounds)?;
        Ok(decoded)
    }

    fn check_counts(&self, bounds: &HeaderBounds) -> Result<(), CallError> {
        let at_most = |what, got: u64, limit: u64, of| {
            if got > limit { Err(CallError::Count { what, got, limit, of }) } else { Ok(()) }
        };
        let tokens = u64::from(self.tokens_to_node);
        at_most("tokens", tokens, bounds.max_tokens as u64, "the communicator's most tokens")?;
        if self.to_rank.is_empty() && self.to_expert.is_empty() {
            return Ok(());
        }
        for &count in &self.to_rank {
            at_most("tokens for one rank", count.into(), tokens, "its tokens for this node")?;
        }
        let sum = |counts: &[u32]| counts.iter().map(|&count| u64::from(count)).sum::<u64>();
        let choices = sum(&self.to_expert);
        at_most("choices", choices, tokens * bounds.top_k as u64, "its tokens for this node and the top-k")?;
        let copies = sum(&self.to_rank);
        at_most("copies", copies, choices, "its choices of experts on this node")?;
        if copies < tokens {
            return Err(CallError::Copies { tokens, copies });
        }
        Ok(())
    }
}

/// How a dispatch ended at one rank, told to its rail peers. As [`Kind::Poison`](super::Kind::Poison), a failure at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// All rows are in their final places.
    Ready,
    /// A rank of the node gave its output fewer rows than it receives; nothing was written.
    TooSmall {
        /// The rank.
        rank: u32,
        /// Rows it receives.
        needed: u64,
        /// Rows it gave.
        given: u64,
    },
    /// The communicator failed: [`Failure::to_word`](crate::Failure::to_word), never 0.
    Failed(u64),
}

impl Status {
    /// Bytes of its encoding: one line.
    pub const ENCODED: usize = 64;

    /// The message for call `epoch`.
    pub fn encode(&self, epoch: u64) -> [u8; Self::ENCODED] {
        let (tag, rank, first, second) = match *self {
            Self::Ready => (0u32, 0, 0, 0),
            Self::TooSmall { rank, needed, given } => (1, rank, needed, given),
            Self::Failed(word) => (2, 0, word, 0),
        };
        let mut out = [0; Self::ENCODED];
        out[..4].copy_from_slice(&mark(STATUS));
        out[4..8].copy_from_slice(&tag.to_le_bytes());
        out[8..12].copy_from_slice(&rank.to_le_bytes());
        out[16..24].copy_from_slice(&epoch.to_le_bytes());
        out[24..32].copy_from_slice(&first.to_le_bytes());
        out[32..40].copy_from_slice(&second.to_le_bytes());
        out
    }

    /// Reads the status of call `epoch`.
    ///
    /// # Errors
    /// [`CallError`] naming the field that is not what it must be.
    pub fn decode(region: &[u8], epoch: u64) -> Result<Self, CallError> {
        let short = || CallError::Short { what: "status", got: region.len(), want: Self::ENCODED };
        let message = region.get(..Self::ENCODED).ok_or_else(short)?;
        let at32 = |at| get_u32(message, at).ok_or_else(short);
        let at64 = |at| get_u64(message, at).ok_or_else(short);
        check_mark("status", message, STATUS)?;
        check("status", "epoch", at64(16)?, epoch)?;
        let (tag, rank, first, second) = (at32(4)?, at32(8)?, at64(24)?, at64(32)?);
        let decoded = match tag {
            0 => Self::Ready,
            1 => Self::TooSmall { rank, needed: first, given: second },
            _ => Self::Failed(first),
        };
        if decoded == Self::Failed(0) {
            return Err(CallError::Field { what: "status", field: "failure word", got: 0, want: 1 });
        }
        // One encoding for each meaning: unknown tags and bytes that it does not use are refused with it.
        let own = decoded.encode(epoch);
        for (i, field) in ["tag", "rank", "epoch", "first value", "second value", "rest", "rest", "rest"]
            .into_iter()
            .enumerate()
        {
            check("status", field, at64(8 * i)?, get_u64(&own, 8 * i).ok_or_else(short)?)?;
        }
        Ok(decoded)
    }
}

fn mark(message: u8) -> [u8; 4] {
    let [first, second] = MAGIC.to_le_bytes();
    [first, second, VERSION, message]
}

fn check_mark(what: &'static str, region: &[u8], message: u8) -> Result<(), CallError> {
    let [.., version, kind] = mark(message);
    let short = || CallError::Short { what, got: region.len(), want: 4 };
    let byte = |at: usize| region.get(at).copied().ok_or_else(short);
    check(what, "magic", get_u16(region, 0).ok_or_else(short)?.into(), MAGIC.into())?;
    check(what, "version", byte(2)?.into(), version.into())?;
    check(what, "message", byte(3)?.into(), kind.into())
}

fn check(what: &'static str, field: &'static str, got: u64, want: u64) -> Result<(), CallError> {
    if got == want { Ok(()) } else { Err(CallError::Field { what, field, got, want }) }
}
