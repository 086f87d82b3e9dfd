//! Which tokens of a guess are right.

/// What checking a guess gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified<T> {
    /// Rows that were drawn from, at least 1: so many tokens of the pass belong to the text. Their draws are tokens of the answer, the last one
    /// is not fed yet.
    pub rows: usize,
    /// Tokens of the guess that were right.
    pub right: usize,
    /// The last draw.
    pub last: T,
}

/// Draws from the rows of a pass over the last token and `draft`, one after the other, as long as each draw is what the draft has at
/// that place. `draw` gives a token, and whether it ends the answer.
///
/// # Errors
/// Those of `draw`, with the number of rows that were asked for.
pub fn verify<T: Copy, E>(
    rows: &[f32],
    vocab: usize,
    draft: &[u32],
    mut draw: impl FnMut(usize, &[f32]) -> Result<(T, u32, bool), E>,
) -> Result<Verified<T>, (usize, E)> {
    let mut index = 0;
    loop {
        let row = rows.get(index * vocab..(index + 1) * vocab).unwrap_or_default();
        let (last, token, ends) = draw(index, row).map_err(|error| (index + 1, error))?;
        let right = draft.get(index) == Some(&token);
        index += 1;
        if ends || !right {
            return Ok(Verified { rows: index, right: index - usize::from(!right), last });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of one float that names the token to draw.
    fn run(rows: &[f32], draft: &[u32]) -> (usize, usize, u32) {
        let verified =
            verify(rows, 1, draft, |_, row| Ok::<_, ()>((row[0] as u32, row[0] as u32, row[0] > 90.0)));
        let Verified { rows, right, last } = verified.unwrap();
        (rows, right, last)
    }

    #[test]
    fn right_guesses_are_kept_and_one_token_more() {
        assert_eq!(run(&[5.0], &[]), (1, 0, 5));
        assert_eq!(run(&[5.0, 6.0, 7.0], &[5, 6]), (3, 2, 7));
        assert_eq!(run(&[5.0, 8.0, 7.0], &[5, 6]), (2, 1, 8));
        assert_eq!(run(&[4.0, 6.0, 7.0], &[5, 6]), (1, 0, 4));
        // What ends the answer ends it, also if it was guessed.
        assert_eq!(run(&[5.0, 99.0, 7.0], &[5, 99]), (2, 2, 99));
    }

    #[test]
    fn errors_name_their_row() {
        let failed = verify(&[1.0, 2.0], 1, &[1], |i, _| if i == 0 { Ok(((), 1, false)) } else { Err("no") });
        assert_eq!(failed, Err((2, "no")));
    }
}
