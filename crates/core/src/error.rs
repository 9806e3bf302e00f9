//! What can be wrong with a caller's arguments.

use thiserror::Error;

/// Result of the core.
pub type Result<T> = std::result::Result<T, CoreError>;

/// A misuse found before any data moved. Each message says what was given and what is allowed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CoreError {
    /// The topology does not exist.
    #[error(
        "topology of {ranks} ranks with {ranks_per_node} per node: both must be at least 1, ranks at most \
         4096 and a multiple of ranks per node"
    )]
    Topology {
        /// Ranks asked for.
        ranks: usize,
        /// Ranks per node asked for.
        ranks_per_node: usize,
    },
    /// Too few or too many experts.
    #[error("{experts} experts: there must be between 1 and {limit}")]
    Experts {
        /// Experts asked for.
        experts: usize,
        /// The most allowed.
        limit: usize,
    },
    /// A routing for another number of experts than the communicator has.
    #[error(
        "the routing chooses among {routing} experts, but the communicator has {placement}; both must be the same"
    )]
    OtherExperts {
        /// Experts of the routing.
        routing: usize,
        /// Experts placed on the ranks.
        placement: usize,
    },
    /// The hidden size breaks the row rule.
    #[error(
        "hidden size {hidden}: it must be a multiple of {multiple} between {multiple} and {limit} (rows are moved in units of 16 bytes; FP8 rows have one scale per 128 elements)"
    )]
    Hidden {
        /// Hidden size asked for.
        hidden: usize,
        /// What it must be a multiple of.
        multiple: usize,
        /// The largest allowed.
        limit: usize,
    },
    /// The top-k breaks its rule.
    #[error(
        "top-k {top_k} of {experts} experts: it must be between 1 and {limit}, and at most the number of experts"
    )]
    TopK {
        /// Top-k asked for.
        top_k: usize,
        /// Experts in all.
        experts: usize,
        /// The most allowed.
        limit: usize,
    },
    /// Too many tokens.
    #[error("{tokens} tokens on one rank: at most {limit} are allowed")]
    Tokens {
        /// Tokens given.
        tokens: usize,
        /// The most allowed.
        limit: usize,
    },
    /// More rows could arrive at a rank than 32 bits number.
    #[error(
        "{ranks} ranks of {shape} could send {rows} rows to one rank: at most {} can be numbered; use fewer tokens in a call",
        u32::MAX
    )]
    Rows {
        /// Ranks.
        ranks: usize,
        /// The shape.
        shape: crate::shape::Shape,
        /// The most rows that could arrive.
        rows: u64,
    },
    /// An expert id is neither -1 nor the id of an expert.
    #[error(
        "routing of token {token}, choice {choice}: expert {id} is out of range; ids are 0 to {last} or -1 for none"
    )]
    ExpertId {
        /// Token (row) of the routing.
        token: usize,
        /// Choice (column) of the routing.
        choice: usize,
        /// The id found.
        id: i64,
        /// The largest id allowed.
        last: usize,
    },
    /// A slice has another length than its shape says.
    #[error("{what}: {got} elements given, {want} wanted ({why})")]
    Length {
        /// Which argument.
        what: &'static str,
        /// Elements given.
        got: usize,
        /// Elements wanted.
        want: usize,
        /// Where the wanted length comes from.
        why: String,
    },
    /// The expert-major padding multiple is not usable.
    #[error("expert alignment {alignment}: it must be between 1 and {limit}")]
    Alignment {
        /// Alignment asked for.
        alignment: usize,
        /// The largest allowed.
        limit: usize,
    },
    /// Chunks between nodes are too small to be fast, or too large for one command.
    #[error(
        "chunks of {bytes} bytes between nodes: they must have {least} to {most} (smaller ones spend the time on their \
         messages; tests and simulations may ask for small chunks explicitly)"
    )]
    ChunkBytes {
        /// Bytes asked for.
        bytes: usize,
        /// The least allowed.
        least: usize,
        /// The most allowed.
        most: usize,
    },
    /// The window of a stream between nodes is not usable.
    #[error(
        "a window of {window} chunks between nodes: it must be between 1 and {limit}, a quarter of the numbers that an \
         immediate tells apart"
    )]
    Window {
        /// Chunks asked for.
        window: usize,
        /// The most allowed.
        limit: usize,
    },
    /// More staging slots than a command can name.
    #[error(
        "{nodes} nodes with a window of {window} chunks need {slots} staging slots on each rank: at most {limit} can be \
         numbered; use a smaller window"
    )]
    Slots {
        /// Nodes.
        nodes: usize,
        /// Chunks in the window of a stream.
        window: usize,
        /// Slots on each rank.
        slots: usize,
        /// The most allowed.
        limit: usize,
    },
    /// A range of ranks that the placement does not have.
    #[error("ranks {start} to below {end}: the placement has {ranks} ranks")]
    Ranks {
        /// First rank.
        start: usize,
        /// One more than the last.
        end: usize,
        /// Ranks in all.
        ranks: usize,
    },
    /// A handle of another communicator, rank or shape.
    #[error("handle does not belong here: {0}")]
    Handle(String),
}
