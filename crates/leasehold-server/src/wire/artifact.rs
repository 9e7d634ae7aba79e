//! Artifacts, and what their content is whoever says something else.

use leasehold::store::engine::KeptArtifact;
use serde::{Deserialize, Serialize};

/// Binary content that came with the outcome of a call.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct Artifact {
    /// What names it in its run.
    pub(crate) artifact: String,
    /// The call that it came with first.
    pub(crate) call_id: String,
    /// The number of that entry.
    pub(crate) sequence: u64,
    /// `image`, `audio` or `resource`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// What its tool says it is, which nobody has checked.
    pub(crate) mime_type: String,
    /// Bytes of its content.
    pub(crate) bytes: u64,
    /// SHA-256 of its content, in hex.
    pub(crate) sha256: String,
}

impl From<KeptArtifact> for Artifact {
    fn from(kept: KeptArtifact) -> Self {
        let KeptArtifact { handle, sequence, bytes, kind, mime_type, sha256, call_id } = kept;
        Self { artifact: handle, call_id: call_id.to_string(), sequence, kind, mime_type, bytes, sha256 }
    }
}

/// Images that a browser shows without running anything: type, end of a file's name, first bytes.
const IMAGES: [(&str, &str, &[u8]); 4] = [
    ("image/png", "png", b"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", "jpg", b"\xff\xd8\xff"),
    ("image/gif", "gif", b"GIF8"),
    ("image/webp", "webp", b"RIFF"),
];

/// The type of content and the end of a file's name: of an image where its tool says so and its first bytes too, else of bytes.
pub(crate) fn served_as(mime_type: &str, content: &[u8]) -> (&'static str, &'static str) {
    let is_it = |(name, _, magic): &&(&'static str, &'static str, &[u8])| {
        *name == mime_type && content.starts_with(magic) && (*name != "image/webp" || content.get(8..12) == Some(b"WEBP"))
    };
    IMAGES.iter().find(is_it).map_or(("application/octet-stream", "bin"), |(name, end, _)| (name, end))
}

#[cfg(test)]
mod tests {
    use super::served_as;

    #[test]
    fn only_what_is_an_image_by_its_word_and_its_bytes_is_served_as_one() {
        const BYTES: (&str, &str) = ("application/octet-stream", "bin");
        let png = b"\x89PNG\r\n\x1a\n..";
        for (said, content, expected) in [
            ("image/png", &png[..], ("image/png", "png")),
            ("image/jpeg", b"\xff\xd8\xff\xe0", ("image/jpeg", "jpg")),
            ("image/gif", b"GIF89a", ("image/gif", "gif")),
            ("image/webp", b"RIFF\x01\x02\x03\x04WEBPVP8 ", ("image/webp", "webp")),
            ("image/webp", b"RIFF\x01\x02\x03\x04WAVE", BYTES),
            ("image/webp", b"RIFF", BYTES),
            ("image/png", b"<html><script>", BYTES),
            ("image/svg+xml", b"<svg/>", BYTES),
            ("text/html", &png[..], BYTES),
            ("image/png; a=b", &png[..], BYTES),
            ("image/png", b"", BYTES),
        ] {
            assert_eq!(served_as(said, content), expected, "{said}");
        }
    }
}
