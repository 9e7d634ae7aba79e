//! Sealing: the payloads of the journal, the artifacts of a run, and secrets in records, as they lie in the store, under
//! XChaCha20-Poly1305.
//!
//! An envelope is a format tag, the id of its key, a random nonce, and the sealed payload. What it was sealed for (the run, the column,
//! the number of the entry or the handle of the artifact; of a record its kind, its key and what it is about) is authenticated with it:
//! moved to another place it does not open. Each has a nonce of its own of 192
//! random bits, so one key serves any number of them.

use crate::run::RunId;
use chacha20poly1305::{
    KeyInit as _, XChaCha20Poly1305,
    aead::{Aead as _, Payload},
};
use secrecy::{ExposeSecret as _, SecretSlice};
use std::{collections::BTreeMap, fmt};

/// Format tag of a sealed payload.
pub const FORMAT_SEALED: u8 = 2;
/// Bytes of a nonce.
const NONCE_BYTES: usize = 24;
/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// Why a payload does not open. No content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// There is no keyring, or it has no such key.
    #[error("it is sealed with key `{0}`, which this process does not have")]
    UnknownKey(String),
    /// It was cut, changed, or is in another place than it was sealed for.
    #[error("it is sealed, and does not open: it was changed, or moved from another place")]
    DoesNotOpen,
    /// The system gives no random numbers.
    #[error("no random numbers: {0}")]
    NoRandom(String),
}

/// Why a text is no keyring. No content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyringError {
    /// Not of the form.
    #[error("a keyring is TOML with a line `id = \"64 hexadecimal digits\"` for each key: {0}")]
    Malformed(String),
    /// No key in it.
    #[error("the keyring has no key; `leasehold key create` makes one")]
    Empty,
}

/// Where a payload belongs.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The run.
    pub run: RunId,
    /// Where in it.
    pub column: Column<'a>,
}

/// Which column of which row of a run.
#[derive(Clone, Copy, Debug)]
pub enum Column<'a> {
    /// The payload of the entry with this number.
    Entry(u64),
    /// What the artifact with this handle is.
    ArtifactAbout(&'a str),
    /// Its content.
    ArtifactContent(&'a str),
}

/// Where the secret of a record belongs.
#[derive(Clone, Copy, Debug)]
pub struct RecordPlace<'a> {
    /// Of the record.
    pub kind: &'a str,
    /// Of the record.
    pub key: &'a str,
    /// What it is about, which may not be exchanged under it.
    pub about: &'a str,
}

impl RecordPlace<'_> {
    fn bytes(self) -> Vec<u8> {
        let parts = [self.kind, self.key, self.about];
        // Each with its length, so that no other three parts have the same bytes.
        let parts = parts.iter().flat_map(|part| [&(part.len() as u64).to_be_bytes(), part.as_bytes()].concat());
        b"records.body".iter().copied().chain(parts).collect()
    }
}

impl Place<'_> {
    fn bytes(self) -> Vec<u8> {
        let number;
        let (name, row) = match self.column {
            Column::Entry(sequence) => {
                number = sequence.to_be_bytes();
                (&b"journal.payload"[..], &number[..])
            }
            Column::ArtifactAbout(handle) => (&b"artifacts.about"[..], handle.as_bytes()),
            Column::ArtifactContent(handle) => (&b"artifacts.content"[..], handle.as_bytes()),
        };
        [self.run.0.as_bytes().as_slice(), name, row].concat()
    }
}

/// Keys by id. What is new is sealed with the greatest id; each opens what it sealed.
pub struct Keyring {
    keys: BTreeMap<String, SecretSlice<u8>>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.keys.keys()).finish()
    }
}

impl Keyring {
    /// Reads a keyring: TOML, a line `id = "64 hexadecimal digits"` for each key.
    ///
    /// # Errors
    /// Not of that form, or without a key. No content is repeated.
    pub fn parse(text: &str) -> Result<Self, KeyringError> {
        let malformed = |why: &str| KeyringError::Malformed(why.to_owned());
        // The parser's own words would show the line.
        let table: BTreeMap<String, String> = toml::from_str(text).map_err(|_| malformed("it does not parse as that"))?;
        let mut keys = BTreeMap::new();
        for (id, hex) in table {
            if id.is_empty() || id.len() > usize::from(u8::MAX) {
                return Err(malformed("an id is too long or empty"));
            }
            let key = hex::decode(&hex).ok().filter(|key| key.len() == KEY_BYTES);
            let key = key.ok_or_else(|| malformed(&format!("key `{id}` is not 64 hexadecimal digits")))?;
            keys.insert(id, SecretSlice::from(key));
        }
        if keys.is_empty() { Err(KeyringError::Empty) } else { Ok(Self { keys }) }
    }

    /// A line of a keyring with a new key.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn new_line(id: &str) -> Result<String, SealError> {
        Ok(format!("{id} = \"{}\"\n", hex::encode(random::<KEY_BYTES>()?)))
    }

    /// The ids, oldest first.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// Seals a payload for its place.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn seal(&self, place: Place<'_>, payload: &[u8]) -> Result<Vec<u8>, SealError> {
        self.seal_at(&place.bytes(), payload)
    }

    /// Seals a secret for its record.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn seal_record(&self, place: RecordPlace<'_>, payload: &[u8]) -> Result<Vec<u8>, SealError> {
        self.seal_at(&place.bytes(), payload)
    }

    fn seal_at(&self, aad: &[u8], payload: &[u8]) -> Result<Vec<u8>, SealError> {
        let unknown = || SealError::UnknownKey(String::new());
        let (id, key) = self.keys.last_key_value().ok_or_else(unknown)?;
        let nonce = random::<NONCE_BYTES>()?;
        let sealed = cipher(key)?.encrypt(&nonce.into(), Payload { msg: payload, aad }).map_err(|_| SealError::DoesNotOpen)?;
        // `parse` takes no longer id.
        let length = u8::try_from(id.len()).unwrap_or(u8::MAX);
        Ok([&[FORMAT_SEALED, length], id.as_bytes(), &nonce, &sealed].concat())
    }
}

/// Opens an envelope of this place.
///
/// # Errors
/// No such key; cut, changed, or of another place.
pub fn open(keyring: Option<&Keyring>, place: Place<'_>, envelope: &[u8]) -> Result<Vec<u8>, SealError> {
    open_at(keyring, &place.bytes(), envelope)
}

/// Opens an envelope of this record.
///
/// # Errors
/// No such key; cut, changed, or of another record.
pub fn open_record(keyring: Option<&Keyring>, place: RecordPlace<'_>, envelope: &[u8]) -> Result<Vec<u8>, SealError> {
    open_at(keyring, &place.bytes(), envelope)
}

fn open_at(keyring: Option<&Keyring>, aad: &[u8], envelope: &[u8]) -> Result<Vec<u8>, SealError> {
    let parts = || {
        let (_tag, rest) = envelope.split_first()?;
        let (length, rest) = rest.split_first()?;
        let (id, rest) = rest.split_at_checked(usize::from(*length))?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_BYTES)?;
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().ok()?;
        Some((std::str::from_utf8(id).ok()?, nonce, sealed))
    };
    let (id, nonce, sealed) = parts().ok_or(SealError::DoesNotOpen)?;
    let key = keyring.and_then(|ring| ring.keys.get(id)).ok_or_else(|| SealError::UnknownKey(id.to_owned()))?;
    cipher(key)?.decrypt(&nonce.into(), Payload { msg: sealed, aad }).map_err(|_| SealError::DoesNotOpen)
}

fn cipher(key: &SecretSlice<u8>) -> Result<XChaCha20Poly1305, SealError> {
    // `parse` takes no key of another length.
    XChaCha20Poly1305::new_from_slice(key.expose_secret()).map_err(|_| SealError::DoesNotOpen)
}

fn random<const N: usize>() -> Result<[u8; N], SealError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| SealError::NoRandom(e.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(sequence: u64) -> Place<'static> {
        Place { run: RunId(uuid::Uuid::from_u128(7)), column: Column::Entry(sequence) }
    }

    fn keyring(ids: &[&str]) -> Keyring {
        Keyring::parse(&ids.iter().map(|id| Keyring::new_line(id).unwrap()).collect::<String>()).unwrap()
    }

    #[test]
    fn what_was_sealed_opens_in_its_place_with_its_key_and_nowhere_else() {
        let ring = keyring(&["a", "b"]);
        let envelope = ring.seal(place(3), b"pay 100").unwrap();
        assert!(!envelope.windows(7).any(|part| part == b"pay 100"));
        assert_eq!(open(Some(&ring), place(3), &envelope).unwrap(), b"pay 100");
        assert_eq!(open(Some(&ring), place(4), &envelope), Err(SealError::DoesNotOpen));
        let other = Place { run: RunId(uuid::Uuid::from_u128(8)), ..place(3) };
        assert_eq!(open(Some(&ring), other, &envelope), Err(SealError::DoesNotOpen));
        assert_eq!(open(Some(&keyring(&["a", "b"])), place(3), &envelope), Err(SealError::DoesNotOpen));
        assert_eq!(open(Some(&keyring(&["a"])), place(3), &envelope), Err(SealError::UnknownKey("b".into())));
        assert_eq!(open(None, place(3), &envelope), Err(SealError::UnknownKey("b".into())));
    }

    #[test]
    fn the_secret_of_a_record_opens_in_that_record_only() {
        let ring = keyring(&["a"]);
        let place = RecordPlace { kind: "login", key: "crm", about: "https://crm.example/mcp" };
        let envelope = ring.seal_record(place, b"token").unwrap();
        assert_eq!(open_record(Some(&ring), place, &envelope).unwrap(), b"token");
        for other in [
            RecordPlace { kind: "logincrm", key: "", ..place },
            RecordPlace { key: "mail", ..place },
            RecordPlace { about: "https://evil.example/mcp", ..place },
        ] {
            assert_eq!(open_record(Some(&ring), other, &envelope), Err(SealError::DoesNotOpen), "{other:?}");
        }
        assert_eq!(open_record(None, place, &envelope), Err(SealError::UnknownKey("a".into())));
    }

    #[test]
    fn an_envelope_that_was_cut_or_changed_anywhere_does_not_open() {
        let ring = keyring(&["a"]);
        let envelope = ring.seal(place(0), b"text").unwrap();
        for cut in 0..envelope.len() {
            assert!(open(Some(&ring), place(0), &envelope[..cut]).is_err(), "cut at {cut}");
        }
        for at in 1..envelope.len() {
            let mut changed = envelope.clone();
            changed[at] ^= 1;
            assert!(open(Some(&ring), place(0), &changed).is_err(), "changed at {at}");
        }
    }

    #[test]
    fn an_artifact_opens_under_its_handle_and_in_its_column_and_nowhere_else() {
        let ring = keyring(&["a"]);
        let at = |column| Place { column, ..place(0) };
        let envelope = ring.seal(at(Column::ArtifactContent("h1")), b"image").unwrap();
        assert_eq!(open(Some(&ring), at(Column::ArtifactContent("h1")), &envelope).unwrap(), b"image");
        for other in [Column::ArtifactContent("h2"), Column::ArtifactAbout("h1"), Column::Entry(0)] {
            assert_eq!(open(Some(&ring), at(other), &envelope), Err(SealError::DoesNotOpen), "{other:?}");
        }
    }

    #[test]
    fn two_envelopes_of_one_payload_differ() {
        let ring = keyring(&["a"]);
        assert_ne!(ring.seal(place(0), b"text").unwrap(), ring.seal(place(0), b"text").unwrap());
    }

    #[test]
    fn a_keyring_is_refused_without_showing_what_is_in_it() {
        for text in ["", "a = 1", "a = \"00ff\"", "secretsecret", "a = \"zz\""] {
            let error = Keyring::parse(text).unwrap_err().to_string();
            assert!(!error.contains("00ff") && !error.contains("secretsecret"), "{error}");
        }
        let ring = keyring(&["a"]);
        assert_eq!(format!("{ring:?}"), "{\"a\"}");
    }
}
