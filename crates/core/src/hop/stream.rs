//! The two ends of a stream of chunks: who may write which slot, and what has arrived.
//!
//! A stream has `window` slots at the receiver; chunk q lies in slot `q % window`. The sender may write chunk q when q is
//! below the window or the credit of chunk `q - window` has come. Credits and arrivals come in any order and carry 10 bits
//! of the number only, which both ends complete: what is in flight spans at most a quarter of those 1,024 numbers, so a
//! second completion of a chunk is told from a first one of a later chunk for the next three quarters.
//!
//! Nothing here allocates after `new`.

use thiserror::Error;

use super::immediate::{SEQUENCES, low_sequence};

/// The most slots of a stream: a quarter of the sequence numbers that the immediate tells apart.
pub const MAX_WINDOW: usize = (SEQUENCES / 4) as usize;

/// What a stream reports instead of counting it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StreamError {
    /// The same completion came twice.
    #[error(
        "{what} of chunk {seq} came twice; the network duplicated a completion, or the peer runs another version: end the \
         communicator"
    )]
    Duplicate {
        /// "the arrival" or "the credit".
        what: &'static str,
        /// The chunk.
        seq: u64,
    },
    /// A completion of a chunk that cannot be on its way.
    #[error(
        "{what} of a chunk with low number {seq10} came, but only the chunks {low} to below {end} can be on their way; the \
         peer's window is another one, or it runs another version: end the communicator"
    )]
    OutsideWindow {
        /// "the arrival" or "the credit".
        what: &'static str,
        /// The 10 bits that came.
        seq10: u16,
        /// The first chunk that may come.
        low: u64,
        /// One more than the last chunk that may come.
        end: u64,
    },
    /// More than 10 bits.
    #[error("sequence {seq10} is not a number of 10 bits")]
    Width {
        /// What was given.
        seq10: u16,
    },
    /// The caller reads a chunk that is not there.
    #[error("chunk {seq} was to be read, but it has not arrived (chunks below {low} are read already)")]
    NotArrived {
        /// The chunk.
        seq: u64,
        /// The first chunk that was not read.
        low: u64,
    },
    /// The caller reads a chunk twice.
    #[error("chunk {seq} was read already: its slot may hold another chunk by now")]
    Consumed {
        /// The chunk.
        seq: u64,
    },
    /// A stream of no slots, or of more than the sequence numbers allow.
    #[error("a stream of {window} slots: it must have 1 to {MAX_WINDOW}")]
    Window {
        /// Slots asked for.
        window: usize,
    },
}

/// One bit for each chunk that can be on its way, by its number modulo [`MAX_WINDOW`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Bits([u64; MAX_WINDOW / 64]);

impl Bits {
    fn place(seq: u64) -> (usize, u64) {
        let bit = (seq % MAX_WINDOW as u64) as usize;
        (bit / 64, 1 << (bit % 64))
    }

    fn has(&self, seq: u64) -> bool {
        let (word, bit) = Self::place(seq);
        self.0[word] & bit != 0
    }

    fn set(&mut self, seq: u64) {
        let (word, bit) = Self::place(seq);
        self.0[word] |= bit;
    }

    fn clear(&mut self, seq: u64) {
        let (word, bit) = Self::place(seq);
        self.0[word] &= !bit;
    }
}

fn check_window(window: usize) -> Result<u64, StreamError> {
    if window == 0 || window > MAX_WINDOW {
        return Err(StreamError::Window { window });
    }
    Ok(window as u64)
}

/// Which of the chunks `low..end` has these 10 bits; an error that says whether it was one before or can be none.
fn complete(what: &'static str, seq10: u16, low: u64, end: u64) -> Result<u64, StreamError> {
    if u64::from(seq10) >= SEQUENCES {
        return Err(StreamError::Width { seq10 });
    }
    let ahead = u64::from(seq10).wrapping_sub(u64::from(low_sequence(low))) % SEQUENCES;
    if ahead < end - low {
        return Ok(low + ahead);
    }
    let behind = SEQUENCES - ahead;
    if behind <= low && behind <= SEQUENCES / 2 {
        return Err(StreamError::Duplicate { what, seq: low - behind });
    }
    Err(StreamError::OutsideWindow { what, seq10, low, end })
}

/// The sender's end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sender {
    window: u64,
    next: u64,
    floor: u64,
    /// Credits that came before that of an earlier chunk.
    credited: Bits,
}

impl Sender {
    /// A new stream of `window` slots.
    ///
    /// # Errors
    /// [`StreamError::Window`] unless it is 1 to [`MAX_WINDOW`].
    pub fn new(window: usize) -> Result<Self, StreamError> {
        Ok(Self { window: check_window(window)?, next: 0, floor: 0, credited: Bits::default() })
    }

    /// Whether the next chunk may be written now.
    pub fn ready(&self) -> bool {
        // The credit of `next - window` has come exactly when it is below the floor: nothing above the floor plus the
        // window was ever sent.
        self.next < self.floor + self.window
    }

    /// Takes the number of the next chunk, which must then be written to slot `number % window`. `None` while its slot
    /// is not free.
    pub fn send(&mut self) -> Option<u64> {
        if !self.ready() {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }

    /// Counts the credit with these 10 bits and tells whose it was.
    ///
    /// # Errors
    /// [`StreamError::Duplicate`] and [`StreamError::OutsideWindow`]; nothing is counted then.
    pub fn credit(&mut self, seq10: u16) -> Result<u64, StreamError> {
        let what = "the credit";
        let seq = complete(what, seq10, self.floor, self.next)?;
        if self.credited.has(seq) {
            return Err(StreamError::Duplicate { what, seq });
        }
        self.credited.set(seq);
        while self.floor < self.next && self.credited.has(self.floor) {
            self.credited.clear(self.floor);
            self.floor += 1;
        }
        Ok(seq)
    }

    /// Slots of the stream.
    pub fn window(&self) -> usize {
        self.window as usize
    }

    /// The number of the next chunk: how many were sent in all.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// All chunks below this number are credited.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Chunks that were sent and are not known to be credited, those that wait for an earlier credit included.
    pub fn in_flight(&self) -> u64 {
        self.next - self.floor
    }
}

/// The receiver's end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Receiver {
    window: u64,
    low: u64,
    arrived: Bits,
    consumed: Bits,
}

impl Receiver {
    /// A new stream of `window` slots.
    ///
    /// # Errors
    /// [`StreamError::Window`] unless it is 1 to [`MAX_WINDOW`].
    pub fn new(window: usize) -> Result<Self, StreamError> {
        let (arrived, consumed) = (Bits::default(), Bits::default());
        Ok(Self { window: check_window(window)?, low: 0, arrived, consumed })
    }

    /// Counts the arrival of the chunk with these 10 bits and tells its number.
    ///
    /// # Errors
    /// [`StreamError::Duplicate`] and [`StreamError::OutsideWindow`]; nothing is counted then.
    pub fn arrive(&mut self, seq10: u16) -> Result<u64, StreamError> {
        let what = "the arrival";
        let seq = complete(what, seq10, self.low, self.low + self.window)?;
        if self.arrived.has(seq) {
            return Err(StreamError::Duplicate { what, seq });
        }
        self.arrived.set(seq);
        Ok(seq)
    }

    /// Whether chunk `seq` has arrived (it may have been read since).
    pub fn arrived(&self, seq: u64) -> bool {
        seq < self.low || (seq - self.low < self.window && self.arrived.has(seq))
    }

    /// Whether chunk `seq` lies in its slot, to be read.
    pub fn readable(&self, seq: u64) -> bool {
        seq >= self.low && self.arrived(seq) && !self.consumed.has(seq)
    }

    /// Marks chunk `seq` as read. Its credit must go back after this and only once.
    ///
    /// # Errors
    /// [`StreamError::NotArrived`] and [`StreamError::Consumed`], errors of the caller.
    pub fn consume(&mut self, seq: u64) -> Result<(), StreamError> {
        if seq < self.low || (self.arrived(seq) && self.consumed.has(seq)) {
            return Err(StreamError::Consumed { seq });
        }
        if !self.arrived(seq) {
            return Err(StreamError::NotArrived { seq, low: self.low });
        }
        self.consumed.set(seq);
        while self.consumed.has(self.low) {
            self.consumed.clear(self.low);
            self.arrived.clear(self.low);
            self.low += 1;
        }
        Ok(())
    }

    /// Slots of the stream.
    pub fn window(&self) -> usize {
        self.window as usize
    }

    /// All chunks below this number were read.
    pub fn low(&self) -> u64 {
        self.low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_two() {
        let mut sender = Sender::new(2).unwrap();
        assert_eq!([sender.send(), sender.send(), sender.send()], [Some(0), Some(1), None]);
        // The credit of 1 frees slot 1, but chunk 2 needs slot 0.
        assert_eq!(sender.credit(1), Ok(1));
        assert_eq!((sender.floor(), sender.in_flight(), sender.ready()), (0, 2, false));
        assert_eq!(sender.credit(0), Ok(0));
        assert_eq!((sender.floor(), sender.in_flight()), (2, 0));
        assert_eq!([sender.send(), sender.send(), sender.send()], [Some(2), Some(3), None]);
    }

    #[test]
    fn credits_that_cannot_be() {
        let mut sender = Sender::new(2).unwrap();
        assert_eq!(
            sender.credit(0),
            Err(StreamError::OutsideWindow { what: "the credit", seq10: 0, low: 0, end: 0 })
        );
        sender.send();
        sender.send();
        sender.credit(1).unwrap();
        assert_eq!(sender.credit(1), Err(StreamError::Duplicate { what: "the credit", seq: 1 }));
        sender.credit(0).unwrap();
        assert_eq!(sender.credit(0), Err(StreamError::Duplicate { what: "the credit", seq: 0 }));
        assert_eq!(sender.credit(1024), Err(StreamError::Width { seq10: 1024 }));
    }

    #[test]
    fn arrivals_that_cannot_be() {
        let mut receiver = Receiver::new(3).unwrap();
        assert_eq!(receiver.arrive(2), Ok(2));
        assert_eq!(receiver.arrive(2), Err(StreamError::Duplicate { what: "the arrival", seq: 2 }));
        assert_eq!(
            receiver.arrive(3),
            Err(StreamError::OutsideWindow { what: "the arrival", seq10: 3, low: 0, end: 3 })
        );
        // Before the first chunk there is none that could come twice.
        assert_eq!(
            receiver.arrive(1023),
            Err(StreamError::OutsideWindow { what: "the arrival", seq10: 1023, low: 0, end: 3 })
        );
        receiver.consume(2).unwrap();
        assert_eq!(receiver.low(), 0);
        // Read out of order, and its slot is still not chunk 5's: chunk 0 comes first.
        assert!(receiver.arrive(5).is_err());
        for seq in [1, 0] {
            receiver.arrive(seq).unwrap();
            receiver.consume(u64::from(seq)).unwrap();
        }
        assert_eq!(receiver.low(), 3);
        assert_eq!(receiver.arrive(1), Err(StreamError::Duplicate { what: "the arrival", seq: 1 }));
        assert_eq!(receiver.arrive(5), Ok(5));
    }

    #[test]
    fn reading_what_is_not_there() {
        let mut receiver = Receiver::new(2).unwrap();
        assert_eq!(receiver.consume(1), Err(StreamError::NotArrived { seq: 1, low: 0 }));
        assert_eq!(receiver.consume(700), Err(StreamError::NotArrived { seq: 700, low: 0 }));
        receiver.arrive(1).unwrap();
        assert!(receiver.readable(1) && !receiver.readable(0));
        receiver.consume(1).unwrap();
        assert!(receiver.arrived(1) && !receiver.readable(1));
        assert_eq!(receiver.consume(1), Err(StreamError::Consumed { seq: 1 }));
        receiver.arrive(0).unwrap();
        receiver.consume(0).unwrap();
        assert_eq!(receiver.consume(0), Err(StreamError::Consumed { seq: 0 }));
    }

    #[test]
    fn windows_are_a_quarter_of_the_numbers_at_most() {
        assert!(Sender::new(256).is_ok() && Receiver::new(256).is_ok());
        for window in [0, 257] {
            assert_eq!(Sender::new(window), Err(StreamError::Window { window }));
            assert_eq!(Receiver::new(window), Err(StreamError::Window { window }));
        }
    }
}
