//! Configured values taken out of words that come from the far side or from a library.

use super::error::McpError;
use crate::limits::{MCP_SAID_CHARS_MAX, MCP_TOKENS_MASKED_MAX};
use secrecy::{ExposeSecret as _, SecretString};
use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

/// Shorter values are not looked for: `1` or `true` would be found everywhere.
const LENGTH_MIN: usize = 6;

/// The values of `env` and `headers`, and the tokens that were used so far. Clones know the same tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct Mask {
    secrets: Vec<SecretString>,
    live: Arc<Mutex<VecDeque<SecretString>>>,
}

impl Mask {
    pub(super) fn add(&mut self, value: &str) {
        // `Bearer abc` is repeated as `abc` too.
        let parts = value.split_whitespace().chain([value]);
        self.secrets.extend(parts.filter(|part| part.len() >= LENGTH_MIN).map(SecretString::from));
        // The whole before its parts, so that no part stays.
        self.secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose_secret().len()));
    }

    /// A token that is in use from now on.
    pub(super) fn add_live(&self, token: &str) {
        if token.len() < LENGTH_MIN {
            return;
        }
        self.add_spelt(token);
        // As it stands in JSON.
        let json = serde_json::Value::from(token).to_string();
        if let Some(spelt) = json.strip_prefix('"').and_then(|json| json.strip_suffix('"')).filter(|spelt| *spelt != token) {
            self.add_spelt(spelt);
        }
    }

    fn add_spelt(&self, token: &str) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.iter().any(|known| known.expose_secret() == token) {
            return;
        }
        if live.len() >= MCP_TOKENS_MASKED_MAX {
            live.pop_front();
        }
        live.push_back(SecretString::from(token));
    }

    /// The text without tokens. Nobody else's words are changed: values of `env` and `headers` may be common ones.
    pub(super) fn over_tokens<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.iter().fold(Cow::Borrowed(text), |text, token| match text.contains(token.expose_secret()) {
            true => Cow::Owned(text.replace(token.expose_secret(), "***")),
            false => text,
        })
    }

    /// The text without those values.
    pub(super) fn over(&self, text: &str) -> String {
        let text = self.over_tokens(text).into_owned();
        self.secrets.iter().fold(text, |text, secret| text.replace(secret.expose_secret(), "***"))
    }

    /// What a server or a library said in an error.
    pub(super) fn over_error(&self, error: McpError) -> McpError {
        match error {
            McpError::NotConnected(why) => McpError::NotConnected(self.said(&why)),
            McpError::Lost(why) => McpError::Lost(self.said(&why)),
            McpError::Unauthorized(why) => McpError::Unauthorized(self.said(&why)),
            McpError::Refused { code, message } => McpError::Refused { code, message: self.said(&message) },
            McpError::Undecodable(why) => McpError::Undecodable(self.said(&why)),
            McpError::TimedOut(_) | McpError::NeedsInput(_) | McpError::Busy | McpError::Changed(_) => error,
        }
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
    fn tokens_are_taken_out_everywhere_the_oldest_forgotten_first() {
        let mask = Mask::default();
        let same = mask.clone();
        for number in 0..MCP_TOKENS_MASKED_MAX {
            mask.add_live(&format!("token-{number:03}"));
        }
        mask.add_live("token-000");
        assert_eq!(same.over("token-000 and token-001"), "*** and ***");
        mask.add_live("token-new");
        assert_eq!(same.over_tokens("token-000 token-001 token-new"), "token-000 *** ***");
        assert!(matches!(same.over_tokens("nothing"), Cow::Borrowed("nothing")));
    }

    #[test]
    fn what_is_said_is_cut_at_its_bound() {
        let mask = Mask::default();
        assert_eq!(mask.said(&"ä".repeat(MCP_SAID_CHARS_MAX)), "ä".repeat(MCP_SAID_CHARS_MAX));
        assert_eq!(mask.said(&"ä".repeat(MCP_SAID_CHARS_MAX + 1)), format!("{} [cut]", "ä".repeat(MCP_SAID_CHARS_MAX)));
    }
}
