//! Tool names on the wire. Ours are `source.tool` in any alphabet and of any length; providers accept only
//! `[A-Za-z0-9_-]{1,64}`. The mapping is a pure function of the name, so that a transcript reads the same in every request,
//! and it can be undone: by decoding where the name fits, through the table of offered tools where it had to be shortened.
//!
//! `.` becomes `__`; a character outside the alphabet becomes `_-<hex>-`, and so does a first one that is no letter, as Gemini
//! insists; an underscore stays unless what follows would make it look like one of these. A name that does not fit ends in `_-h` and a hash, which no encoded name contains.

use crate::limits::WIRE_NAME_BYTES_MAX;
use sha2::{Digest as _, Sha256};
use std::{collections::BTreeMap, fmt::Write as _};

const HASH_MARK: &str = "_-h";
const HASH_HEX_LEN: usize = 20;

/// The name of a tool on the wire: always within the providers' alphabet and length, never empty.
pub fn to_wire(name: &str) -> String {
    let encoded = encode(name);
    if !encoded.is_empty() && encoded.len() <= WIRE_NAME_BYTES_MAX {
        return encoded;
    }
    // The encoded form is ASCII, so any cut is at a character boundary.
    let keep = encoded.len().min(WIRE_NAME_BYTES_MAX - HASH_MARK.len() - HASH_HEX_LEN);
    // An underscore before the mark would read as a dot, and the whole as another name's encoding.
    let mut wire = format!("{}{HASH_MARK}", encoded[..keep].trim_end_matches('_'));
    for byte in &Sha256::digest(name)[..HASH_HEX_LEN / 2] {
        let _ = write!(wire, "{byte:02x}");
    }
    wire
}

fn encode(name: &str) -> String {
    let mut wire = String::with_capacity(name.len() + 8);
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '.' => wire.push_str("__"),
            'a'..='z' | 'A'..='Z' => wire.push(c),
            '0'..='9' | '-' if !wire.is_empty() => wire.push(c),
            '_' if chars.peek().is_none_or(char::is_ascii_alphanumeric) => wire.push('_'),
            _ => {
                let _ = write!(wire, "_-{:x}-", u32::from(c));
            }
        }
    }
    wire
}

/// Undoes [`to_wire`] for a name that was not shortened; `None` for one that was, and for what no name encodes to.
pub fn decode(wire: &str) -> Option<String> {
    let mut name = String::with_capacity(wire.len());
    let mut rest = wire;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("__") {
            name.push('.');
            rest = after;
        } else if let Some(after) = rest.strip_prefix("_-") {
            let (hex, after) = after.split_once('-')?;
            name.push(char::from_u32(u32::from_str_radix(hex, 16).ok()?)?);
            rest = after;
        } else {
            name.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    (to_wire(&name) == wire).then_some(name)
}

/// Two offered names with one wire name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tools `{first}` and `{second}` have the same name on the wire (`{wire}`): rename one")]
pub struct WireCollision {
    /// One.
    pub first: String,
    /// The other.
    pub second: String,
    /// What both map to.
    pub wire: String,
}

/// The names of one request.
#[derive(Clone, Debug, Default)]
pub struct WireNames {
    ours: BTreeMap<String, String>,
}

impl WireNames {
    /// The table of the offered tools.
    ///
    /// # Errors
    /// Two different names map to one; the registry refuses such tools when they are added.
    pub fn new<'a>(offered: impl IntoIterator<Item = &'a str>) -> Result<Self, WireCollision> {
        let mut ours: BTreeMap<String, String> = BTreeMap::new();
        for name in offered {
            let wire = to_wire(name);
            match ours.get(&wire) {
                Some(first) if first != name => {
                    return Err(WireCollision { first: first.clone(), second: name.to_owned(), wire });
                }
                _ => ours.insert(wire, name.to_owned()),
            };
        }
        Ok(Self { ours })
    }

    /// For a request.
    pub fn to_wire(&self, name: &str) -> String {
        to_wire(name)
    }

    /// For a reply: our name of an offered tool, else what the model wrote, unchanged.
    pub fn from_wire(&self, wire: &str) -> String {
        self.ours.get(wire).cloned().unwrap_or_else(|| wire.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_wire(name: &str) -> bool {
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        begins && (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    }

    #[test]
    fn a_plain_name_stays_readable() {
        assert_eq!(to_wire("ledger.append"), "ledger__append");
        assert_eq!(to_wire("site.update_page_metadata"), "site__update_page_metadata");
        assert_eq!(to_wire("3d.render"), "_-33-d__render");
        assert_eq!(decode("site__update_page_metadata").as_deref(), Some("site.update_page_metadata"));
    }

    #[test]
    fn dots_spaces_umlauts_and_long_names_map_and_come_back() {
        let long = format!("files.{}", "x".repeat(74));
        let cut_at_a_dot = "a_a_-üa.a.__a_a-üü__ü___";
        let names =
            [cut_at_a_dot, "a.b", "a..b", "a._b", "a_.b", "a._-b", "büro.lösch mich", "a.b c", "3d.x", "-.-", long.as_str()];
        let table = WireNames::new(names).unwrap();
        for name in names {
            assert!(is_wire(&to_wire(name)), "{name}: {}", to_wire(name));
            assert_eq!(table.from_wire(&table.to_wire(name)), name);
        }
    }

    #[test]
    fn a_name_that_was_not_offered_comes_back_as_written() {
        let table = WireNames::new(["a.b"]).unwrap();
        assert_eq!(table.from_wire("a__c"), "a__c");
        assert_eq!(table.from_wire(""), "");
        assert!(is_wire(&to_wire("")));
    }

    proptest! {
        #[test]
        fn any_two_names_are_told_apart_within_the_alphabet(a in ".{0,90}", b in "[a-b_.\\-ü]{0,90}", c in "[a_.\\-]{0,9}", d in "[a_.\\-]{0,9}") {
            let names: std::collections::BTreeSet<&str> = [a.as_str(), b.as_str(), c.as_str(), d.as_str()].into();
            for name in &names {
                let wire = to_wire(name);
                prop_assert!(is_wire(&wire), "{name:?} -> {wire}");
                if let Some(back) = decode(&wire) {
                    prop_assert_eq!(&back, name);
                } else {
                    prop_assert!(wire.contains(HASH_MARK), "{name:?} -> {wire} has no way back");
                }
            }
            if let Ok(table) = WireNames::new(names.iter().copied()) {
                for name in names {
                    prop_assert_eq!(table.from_wire(&to_wire(name)), name);
                }
            }
        }
    }
}
