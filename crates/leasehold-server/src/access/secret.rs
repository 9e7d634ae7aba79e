//! Secrets: made here, shown once, and kept as their SHA-256 alone. A secret has 256 random bits, so its hash needs no salt and can
//! be what it is looked up by: nothing compares a secret with another.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use leasehold::{limits::SECRET_BYTES_MAX, store::Unavailable};
use secrecy::SecretString;
use sha2::{Digest as _, Sha256};

/// What an API token begins with, so that a scanner of repositories finds one.
pub(crate) const TOKEN_PREFIX: &str = "lh_";

/// A new secret of 43 characters behind this prefix.
pub(crate) fn fresh(prefix: &str) -> Result<SecretString, Unavailable> {
    let mut bits = [0_u8; 32];
    let none = |why: String| Unavailable(format!("this machine gives no random bytes: {why}"));
    let filled = rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty()).map_err(|e| none(e.to_string()))?;
    if filled != bits.len() {
        return Err(none("too few came".into()));
    }
    Ok(SecretString::from(format!("{prefix}{}", URL_SAFE_NO_PAD.encode(bits))))
}

/// What a secret is kept and looked up as; none where no secret of ours can be so.
pub(crate) fn hash(secret: &str) -> Option<String> {
    let fits = (1..=SECRET_BYTES_MAX).contains(&secret.len());
    fits.then(|| Sha256::digest(secret).iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret as _;
    use std::collections::BTreeSet;

    #[test]
    fn a_secret_is_43_characters_that_a_url_takes_and_no_two_are_the_same() {
        let mut seen = BTreeSet::new();
        for _ in 0..100 {
            let secret = fresh(TOKEN_PREFIX).unwrap();
            let text = secret.expose_secret();
            assert!(text.starts_with("lh_") && text.len() == 46, "{}", text.len());
            assert!(text[3..].bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
            assert!(!format!("{secret:?}").contains(&text[3..]));
            assert!(seen.insert(text.to_owned()));
        }
    }

    #[test]
    fn a_hash_is_that_of_the_whole_secret_and_too_long_ones_have_none() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash("abc").as_deref(), Some(abc));
        assert_eq!(hash(""), None);
        assert!(hash(&"x".repeat(SECRET_BYTES_MAX)).is_some());
        assert_eq!(hash(&"x".repeat(SECRET_BYTES_MAX + 1)), None);
    }
}
