//! Signatures after Standard Webhooks: the receiver knows that it was us, that nothing was changed, and when it was sent.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use secrecy::{ExposeSecret as _, SecretSlice};
use sha2::Sha256;

/// Bytes of a secret.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// What signs.
pub(super) struct Secret(SecretSlice<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a secret")
    }
}

impl Secret {
    /// `whsec_` and base64. What is wrong never repeats it.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let base64 = text.strip_prefix("whsec_").ok_or("it does not begin with `whsec_`")?;
        let bytes = STANDARD.decode(base64).map_err(|_| "what follows `whsec_` is not base64")?;
        if BYTES.contains(&bytes.len()) { Ok(Self(bytes.into())) } else { Err("it is not of 24 to 64 bytes") }
    }

    /// The value of `webhook-signature`.
    pub(super) fn sign(&self, id: &str, timestamp: i64, body: &str) -> Result<String, &'static str> {
        // An HMAC takes keys of every length.
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose_secret()).map_err(|_| "the secret is not one")?;
        mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
        Ok(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_specification_has_its_signature() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, "{\"test\": 2432232314}").unwrap();
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_has_its_form_and_its_length_and_is_never_repeated() {
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        for bytes in [24, 64] {
            Secret::parse(&of(bytes)).unwrap();
        }
        for text in [of(23), of(65), "whsec_".into(), "whsec_???".into(), STANDARD.encode([7; 32])] {
            let why = Secret::parse(&text).unwrap_err();
            assert!(!why.contains(&STANDARD.encode([7; 9])), "{why}");
        }
        assert_eq!(format!("{:?}", Secret::parse(&of(32)).unwrap()), "a secret");
    }
}
