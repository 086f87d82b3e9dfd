//! Whether an answer is right.

/// The answer as lower-case words of letters and digits.
pub(super) fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_lowercase).collect()
}

/// Whether the expected words stand in the answer, in a row.
pub(super) fn has_words(answer: &str, expected: &str) -> bool {
    let (answer, expected) = (words(answer), words(expected));
    !expected.is_empty() && answer.windows(expected.len()).any(|w| w == expected)
}

/// The last letter that stands alone, in lower case: what an answer about letters comes to.
pub(super) fn last_letter(answer: &str) -> Option<char> {
    let single = |word: &String| word.chars().count() == 1;
    words(answer).iter().rfind(|w| single(w)).and_then(|w| w.chars().next())
}

/// Whether the word stands in the answer in this very case: the symbol "He" is not "he".
pub(super) fn has_exact_word(answer: &str, expected: &str) -> bool {
    answer.split(|c: char| !c.is_alphanumeric()).any(|w| w == expected)
}

/// The last number of a text. Thousands may be grouped by commas; "12 + 7 = 19" ends with the result.
pub(super) fn last_number(text: &str) -> Option<i64> {
    let chars: Vec<char> = text.chars().collect();
    let digit = |i: usize| chars.get(i).is_some_and(char::is_ascii_digit);
    let mut last = None;
    let mut i = 0;
    while i < chars.len() {
        if !digit(i) {
            i += 1;
            continue;
        }
        let minus = i > 0
            && matches!(chars.get(i - 1), Some('-' | '−'))
            && (i == 1 || chars.get(i - 2).is_none_or(|c| !c.is_alphanumeric()));
        let mut number = String::new();
        while digit(i) || (chars.get(i) == Some(&',') && (1..=3).all(|k| digit(i + k)) && !digit(i + 4)) {
            number.extend(chars.get(i).filter(|c| c.is_ascii_digit()));
            i += 1;
        }
        // "4.0" is 4; "4.5" is no whole number.
        let mut whole = true;
        if chars.get(i) == Some(&'.') && digit(i + 1) {
            i += 1;
            while digit(i) {
                whole &= chars.get(i) == Some(&'0');
                i += 1;
            }
        }
        last = match number.parse::<i64>() {
            Ok(n) if whole => Some(if minus { -n } else { n }),
            _ => None,
        };
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_read() {
        for (text, want) in [
            ("12 + 7 = 19.", Some(19)),
            ("The result is 1,234,567", Some(1_234_567)),
            ("-5", Some(-5)),
            ("3-5", Some(5)),
            ("= −12", Some(-12)),
            ("4.0", Some(4)),
            ("4.5", None),
            ("1, 2, 3", Some(3)),
            ("none", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(last_number(text), want, "{text}");
        }
    }

    #[test]
    fn words_are_compared_whole() {
        assert!(has_words("The capital is **Paris**.", "Paris"));
        assert!(!has_words("Parisian", "Paris"));
        assert!(has_words("It is Buenos  Aires!", "buenos aires"));
        assert!(!has_words("anything", ""));
    }
}
