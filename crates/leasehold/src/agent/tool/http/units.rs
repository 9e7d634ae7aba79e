//! Durations and sizes as people write them in configuration: `"30s"`, `"2m"`, `"1MiB"`. Never negative, always with a unit, and
//! zero only where a wait may be none.

use bytesize::ByteSize;
use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de::Error as _};
use std::time::Duration;

/// Reads a duration: `"30s"`, `"1m 30s"`, `"500ms"`.
///
/// # Errors
/// A sentence that says what to write instead.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    match Duration::try_from(signed(text)?) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(format!("`{text}` must be more than zero")),
    }
}

fn signed(text: &str) -> Result<SignedDuration, String> {
    text.trim().parse().map_err(|_| {
        format!("`{text}` is not a duration: write a number and a unit (`ms`, `s`, `m`, `h`), for example \"30s\"")
    })
}

/// A duration that may be zero.
pub(super) fn optional_wait<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let wait = Duration::try_from(signed(&text).map_err(D::Error::custom)?);
    wait.map(Some).map_err(|_| D::Error::custom(format!("`{text}` must not be negative")))
}

/// Reads a size in bytes: `"64KiB"`, `"1MiB"`, `"2MB"`.
///
/// # Errors
/// A sentence that says what to write instead.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let wrong =
        || format!("`{text}` is not a size: write a number and a unit (`B`, `KiB`, `MiB`, `KB`, `MB`), for example \"1MiB\"");
    if text.trim().bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(wrong());
    }
    let size: ByteSize = text.trim().parse().map_err(|_| wrong())?;
    match usize::try_from(size.as_u64()) {
        Ok(0) => Err(format!("`{text}` must be more than zero")),
        Ok(size) => Ok(size),
        Err(_) => Err(format!("`{text}` is more than this machine can hold")),
    }
}

/// For `#[serde(deserialize_with)]` on an optional duration.
///
/// # Errors
/// As [`parse_duration`].
pub fn optional_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text).map(Some).map_err(D::Error::custom)
}

/// For `#[serde(deserialize_with)]` on an optional size.
///
/// # Errors
/// As [`parse_size`].
pub fn optional_size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    let text = String::deserialize(from)?;
    parse_size(&text).map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_read_as_people_write_them() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        assert_eq!(parse_size("64 KiB"), Ok(64 << 10));
    }

    #[test]
    fn a_zero_a_negative_and_a_missing_or_wrong_unit_are_refused() {
        for text in ["0s", "-5s", "5s ago", "30", "30 parsecs", "", "s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        for text in ["0B", "-1MiB", "1024", "1 MiBit", "", "MiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
