//! Steps of a build that all ranks take together or not at all.

use expertrail_group::Group;

use crate::build_error::BuildError;

const READY: u8 = 1;
const REFUSED: u8 = 2;

/// Ends a step: every rank tells the others that it came through, with the bytes that `give` makes of its result, or
/// why it did not. A rank that failed says so before it returns, so that nobody waits for it in the next step.
///
/// # Errors
/// This rank's own error, or else that of the first rank that has one, as [`BuildError::PeerBuild`], or else the
/// group's.
pub(crate) fn agree<T>(
    group: &Group,
    phase: &'static str,
    own: Result<T, BuildError>,
    give: impl FnOnce(&T) -> Vec<u8>,
) -> Result<(T, Vec<Vec<u8>>), BuildError> {
    let (tag, body) = match &own {
        Ok(value) => (READY, give(value)),
        Err(error) => (REFUSED, error.to_string().into_bytes()),
    };
    let mut message = vec![tag];
    message.extend(body);
    let gathered = group.all_gather(phase, &message);
    // The own error says more than what became of the exchange.
    let value = own?;
    let given = gathered?;
    let given = given.iter().enumerate().map(|(peer, bytes)| parse(group.rank(), peer, bytes));
    Ok((value, given.collect::<Result<_, _>>()?))
}

fn parse(rank: usize, peer: usize, bytes: &[u8]) -> Result<Vec<u8>, BuildError> {
    match bytes.split_first() {
        Some((&READY, body)) => Ok(body.to_vec()),
        Some((&REFUSED, text)) => {
            let reason = String::from_utf8_lossy(text).into_owned();
            Err(BuildError::PeerBuild { rank, peer, reason })
        }
        _ => Err(unreadable(rank, peer)),
    }
}

/// What to say when what a rank gave does not parse.
pub(crate) fn unreadable(rank: usize, peer: usize) -> BuildError {
    BuildError::Protocol { rank, peer, what: "the build", found: "bytes that mean nothing" }
}
