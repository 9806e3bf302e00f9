//! Router decisions of one rank: which experts each token goes to.

use crate::error::{CoreError, Result};

/// `[tokens, top_k]` expert ids, row-major; `-1` means "no expert".
///
/// An expert may stand twice in a row: the token is sent to its rank once, but counts, weights and
/// expert-major rows treat the two choices as two. Ids are checked once, here, so that everything behind
/// may rely on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routing {
    ids: Vec<i32>,
    top_k: usize,
    experts: usize,
}

impl Routing {
    /// Takes `ids` of `[tokens, top_k]` choices among `experts` experts.
    ///
    /// # Errors
    /// [`CoreError::Length`] when `ids` is not a whole number of rows, [`CoreError::ExpertId`] at the first
    /// id that is neither -1 nor below `experts`.
    pub fn new(ids: Vec<i32>, top_k: usize, experts: usize) -> Result<Self> {
        if top_k == 0 || !ids.len().is_multiple_of(top_k) {
            return Err(CoreError::Length {
                what: "routing",
                got: ids.len(),
                want: ids.len() / top_k.max(1) * top_k,
                why: format!("a whole number of rows of top-k {top_k}"),
            });
        }
        // One unsigned comparison finds both kinds of bad id: -1 wraps to 0 and passes.
        if let Some(at) = ids.iter().position(|&id| (id.wrapping_add(1)) as u32 > experts as u32) {
            return Err(CoreError::ExpertId {
                token: at / top_k,
                choice: at % top_k,
                id: i64::from(ids[at]),
                last: experts.saturating_sub(1),
            });
        }
        Ok(Self { ids, top_k, experts })
    }

    /// The same from 64-bit ids, as `torch.topk` gives them.
    ///
    /// # Errors
    /// As [`Routing::new`]; an id that does not fit 32 bits is out of range too.
    pub fn from_i64(ids: &[i64], top_k: usize, experts: usize) -> Result<Self> {
        if let Some((at, &id)) = ids.iter().enumerate().find(|&(_, &id)| i32::try_from(id).is_err()) {
            let top_k = top_k.max(1);
            return Err(CoreError::ExpertId {
                token: at / top_k,
                choice: at % top_k,
                id,
                last: experts.saturating_sub(1),
            });
        }
        Self::new(ids.iter().map(|&id| id as i32).collect(), top_k, experts)
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len() / self.top_k
    }

    /// Choices per token, K.
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// Experts in all, E.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// All ids, `[tokens, top_k]` row-major.
    pub fn ids(&self) -> &[i32] {
        &self.ids
    }

    /// The choices of one token.
    pub fn row(&self, token: usize) -> &[i32] {
        &self.ids[token * self.top_k..(token + 1) * self.top_k]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_ids_are_named() {
        let err = Routing::new(vec![0, 1, -1, 4], 2, 4).unwrap_err();
        assert_eq!(err, CoreError::ExpertId { token: 1, choice: 1, id: 4, last: 3 });
        assert!(Routing::new(vec![0, -2], 2, 4).is_err());
        assert!(Routing::new(vec![0, 1, 2], 2, 4).is_err());
        assert!(Routing::new(vec![i32::MIN, i32::MAX], 2, 4).is_err());
        let err = Routing::from_i64(&[0, 1 << 40], 2, 4).unwrap_err();
        assert!(matches!(err, CoreError::ExpertId { id, .. } if id == 1 << 40));
    }

    #[test]
    fn duplicates_and_none_are_allowed() {
        let r = Routing::new(vec![3, 3, -1, -1], 2, 4).unwrap();
        assert_eq!((r.tokens(), r.row(0), r.row(1)), (2, &[3, 3][..], &[-1, -1][..]));
        assert_eq!(Routing::new(vec![], 2, 4).unwrap().tokens(), 0);
    }
}
