//! Text that comes back as it went in. PostgreSQL's `text` holds every character but U+0000. That one is kept as U+001A and `0`, and
//! U+001A itself is doubled; all other text is kept as it is, so that a person who looks at a table reads it. Different texts stay
//! different, so the stored form can be compared and be unique in place of the text.

const MARK: char = '\u{1a}';

/// The form of a column.
pub(super) fn stored(text: &str) -> String {
    let mut stored = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => stored.extend([MARK, '0']),
            MARK => stored.extend([MARK, MARK]),
            other => stored.push(other),
        }
    }
    stored
}

/// The text of a column. What no `stored` makes is shown as it is.
pub(super) fn shown(stored: String) -> String {
    if !stored.contains(MARK) {
        return stored;
    }
    let mut text = String::with_capacity(stored.len());
    let mut chars = stored.chars().peekable();
    while let Some(c) = chars.next() {
        let marked = if c == MARK { chars.next_if(|n| matches!(*n, '0' | MARK)) } else { None };
        text.push(match marked {
            Some('0') => '\0',
            _ => c,
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{shown, stored};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_text_comes_back_and_no_stored_form_holds_what_postgresql_refuses(text in "([\0\u{1a}0a]|\\PC){0,12}") {
            let form = stored(&text);
            prop_assert!(!form.contains('\0'));
            prop_assert_eq!(shown(form), text);
        }
    }

    #[test]
    fn plain_text_is_kept_as_it_is() {
        assert_eq!(stored("Ada \u{1f680} \\u0000"), "Ada \u{1f680} \\u0000");
    }
}
