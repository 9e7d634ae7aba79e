//! Configured values taken out of words that come from the far side or from a library.

use crate::limits::MCP_SAID_CHARS_MAX;
use secrecy::{ExposeSecret as _, SecretString};

/// Shorter values are not looked for: `1` or `true` would be found everywhere.
const LENGTH_MIN: usize = 6;

/// The values of `env` and `headers`.
#[derive(Clone, Debug, Default)]
pub(super) struct Mask {
    secrets: Vec<SecretString>,
}

impl Mask {
    pub(super) fn add(&mut self, value: &str) {
        // `Bearer abc` is repeated as `abc` too.
        let parts = value.split_whitespace().chain([value]);
        self.secrets.extend(parts.filter(|part| part.len() >= LENGTH_MIN).map(SecretString::from));
        // The whole before its parts, so that no part stays.
        self.secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose_secret().len()));
    }

    /// The text without those values.
    pub(super) fn over(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.expose_secret(), "***"))
    }

    /// For an error: without those values, and cut.
    pub(super) fn said(&self, text: &str) -> String {
        let masked = self.over(text);
        match masked.char_indices().nth(MCP_SAID_CHARS_MAX) {
            Some((end, _)) => format!("{} [cut]", &masked[..end]),
            None => masked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_values_and_their_words_are_taken_out() {
        let mut mask = Mask::default();
        mask.add("Bearer sk-secret-1");
        mask.add("true");
        assert_eq!(mask.over("it says Bearer sk-secret-1, sk-secret-1 and true"), "it says ***, *** and true");
    }

    #[test]
    fn what_is_said_is_cut_at_its_bound() {
        let mask = Mask::default();
        assert_eq!(mask.said(&"ä".repeat(MCP_SAID_CHARS_MAX)), "ä".repeat(MCP_SAID_CHARS_MAX));
        assert_eq!(mask.said(&"ä".repeat(MCP_SAID_CHARS_MAX + 1)), format!("{} [cut]", "ä".repeat(MCP_SAID_CHARS_MAX)));
    }
}
