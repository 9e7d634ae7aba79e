//! What a form sent, and what was wrong with it, for showing the form again.

use crate::api::Problem;
use axum::http::StatusCode;
use std::collections::BTreeMap;

/// Fields of a form that is sent; every call of a turn with every field of a page is fewer.
const SENT_MAX: usize = 10_000;

/// Fields as they were sent, and the mistakes by field.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    pairs: Vec<(String, String)>,
    /// By the name of the field.
    pub(super) mistakes: BTreeMap<String, String>,
}

impl Kept {
    /// The same where it is no longer than a form can be.
    pub(super) fn bounded(pairs: Vec<(String, String)>) -> Result<Self, Problem> {
        if pairs.len() > SENT_MAX {
            let detail = format!("the form has more than {SENT_MAX} fields");
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail));
        }
        Ok(Self::of(pairs))
    }
    /// As it was sent. A browser ends lines as mail does; the text is what the person typed.
    pub(super) fn of(pairs: Vec<(String, String)>) -> Self {
        let pairs = pairs.into_iter().map(|(name, value)| (name, value.replace("\r\n", "\n")));
        Self { pairs: pairs.collect(), mistakes: BTreeMap::new() }
    }
    /// The same where it is about this, else nothing.
    pub(super) fn only_if(&self, is: bool) -> Self {
        if is { self.clone() } else { Self::default() }
    }
    /// Something was sent.
    pub(super) fn is_sent(&self) -> bool {
        !self.pairs.is_empty()
    }
    /// The last value of a field: a button comes after what it goes with.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
    /// The same without blanks around; none where nothing else is there.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
    }
    /// A field that a form of ours always has.
    pub(super) fn needed(&self, name: &str) -> Result<String, Problem> {
        self.text(name).ok_or_else(|| Problem::field(format!("#/{name}"), "this is missing: send the form as the page has it"))
    }
    /// Every value of a field.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }
    /// Fields whose name begins so, with the rest of their name.
    pub(super) fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.pairs.iter().filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, value.as_str())))
    }
    /// What is wrong with a field.
    pub(super) fn mistake(&self, name: &str) -> Option<&str> {
        self.mistakes.get(name).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_that_is_sent_has_so_many_fields() {
        let sent = |n: usize| Kept::bounded(vec![("a".to_owned(), "b\r\nc".to_owned()); n]);
        assert_eq!(sent(SENT_MAX).unwrap().get("a"), Some("b\nc"));
        assert_eq!(sent(SENT_MAX + 1).unwrap_err().code, "too_large");
    }
}
