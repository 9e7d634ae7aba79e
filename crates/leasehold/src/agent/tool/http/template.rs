//! URLs with `{placeholders}`. An argument fills its placeholder and nothing else: whatever the model writes, the request goes
//! to the operator's scheme, host and port, and to a path of as many segments as the operator wrote.

use super::super::Arguments;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;
use serde_json::Value;

/// Everything but RFC 3986's unreserved characters.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Argument(String),
}

/// A parsed template.
#[derive(Clone, Debug)]
pub(super) struct UrlTemplate {
    pieces: Vec<Piece>,
    /// The template without its query, for people.
    shown: String,
    base: Url,
}

impl UrlTemplate {
    /// Parses; a placeholder stands in the path or the query only.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("`{text}` is not an absolute http or https URL"));
        };
        if !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") {
            return Err(format!("the scheme is `{scheme}`; it must be http or https, and no placeholder"));
        }
        let authority_end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(authority_end);
        if authority.contains(['{', '}']) {
            return Err("a placeholder stands in host or port: only the path and the query may have placeholders".into());
        }
        if authority.contains('@') {
            return Err("it contains a user or a password: use `headers` with `env`".into());
        }
        if tail.contains('#') {
            return Err("it contains a fragment (`#`), which is never sent".into());
        }
        if tail.contains('\\') || tail.chars().any(|c| c.is_ascii_control() || c == ' ') {
            return Err("it contains a backslash, a space or a control character: percent-encode it".into());
        }
        let base = Url::parse(&format!("{scheme}://{authority}/")).map_err(|e| format!("host or port: {e}"))?;
        let shown = text.split('?').next().unwrap_or_default().to_owned();
        let mut pieces =
            vec![Piece::Literal(format!("{scheme}://{authority}{}", if tail.starts_with('/') { "" } else { "/" }))];
        let mut rest = tail;
        while let Some(open) = rest.find(['{', '}']) {
            let (literal, after) = rest.split_at(open);
            pieces.push(Piece::Literal(literal.to_owned()));
            let name = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
            match name {
                Some((name, after)) if !name.is_empty() && !name.contains(['{', '/', '?', '&']) => {
                    pieces.push(Piece::Argument(name.to_owned()));
                    rest = after;
                }
                _ => return Err(format!("a brace in `{text}` does not belong to a `{{placeholder}}`")),
            }
        }
        pieces.push(Piece::Literal(rest.to_owned()));
        let template = Self { pieces, shown, base };
        // A sample value shows that the literal parts stay what they are.
        let sample = template.placeholders().map(|name| (name.to_owned(), Value::from("x"))).collect();
        template
            .fill(&sample)
            .map_err(|why| format!("{why} (write the path as it goes over the wire, without `.` and `..` segments)"))?;
        Ok(template)
    }

    /// The arguments it uses.
    pub(super) fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Argument(name) => Some(name.as_str()),
            Piece::Literal(_) => None,
        })
    }

    /// For people: no query, which may hold a secret.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// The URL of one call.
    pub(super) fn fill(&self, arguments: &Arguments) -> Result<Url, String> {
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(literal) => text.push_str(literal),
                Piece::Argument(name) => {
                    let value = scalar(arguments.get(name).unwrap_or(&Value::Null))
                        .ok_or_else(|| format!("`{name}` goes into the URL and must be a string, a number or a boolean"))?;
                    if value.is_empty() && !text.contains('?') {
                        return Err(format!("`{name}` goes into the path of the URL and must not be empty"));
                    }
                    text.extend(utf8_percent_encode(&value, COMPONENT));
                }
            }
        }
        let (_, tail) = text.split_once("://").ok_or("the URL has no scheme")?;
        let path_and_query = &tail[tail.find('/').ok_or("the URL has no path")?..];
        let path = path_and_query.split('?').next().unwrap_or_default();
        if path.split('/').any(is_dot_segment) {
            return Err("an argument makes a path segment `.` or `..`: refused".into());
        }
        let url = Url::parse(&text).map_err(|e| format!("no URL: {e}"))?;
        // The parser may normalise; what it made must still be what was written.
        if url.path() != path || url.origin() != self.base.origin() || !url.username().is_empty() || url.password().is_some() {
            return Err("the arguments change where the URL points to: refused".into());
        }
        Ok(url)
    }
}

fn is_dot_segment(segment: &str) -> bool {
    matches!(segment.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..")
}

/// The text of a value that has one.
pub(super) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arguments(value: &str) -> Arguments {
        [("p".to_owned(), Value::from(value))].into_iter().collect()
    }

    #[test]
    fn a_placeholder_never_stands_in_scheme_host_or_port() {
        for url in
            ["{p}://h/", "http://{p}/", "http://h:{p}/", "http://a.{p}/x", "{p}", "http://u:p@h/", "ftp://h/{p}", "http://h"]
        {
            assert_eq!(UrlTemplate::parse(url).is_ok(), url == "http://h", "{url}");
        }
        for url in ["http://h/{p", "http://h/p}", "http://h/{}", "http://h/x#{p}", "http://h/a/../{p}", "http://h/\\evil/{p}"] {
            assert!(UrlTemplate::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_value_cannot_change_the_path() {
        let template = UrlTemplate::parse("http://h:81/pages/{p}/meta?q={p}").unwrap();
        for (value, encoded) in [
            ("a/../b", "a%2F..%2Fb"),
            ("x@evil.example", "x%40evil.example"),
            ("%2f", "%252f"),
            ("a\nb", "a%0Ab"),
            ("http://169.254.169.254/", "http%3A%2F%2F169.254.169.254%2F"),
            ("ü&=?#", "%C3%BC%26%3D%3F%23"),
            ("...", "..."),
        ] {
            let url = template.fill(&arguments(value)).unwrap();
            assert_eq!(url.as_str(), format!("http://h:81/pages/{encoded}/meta?q={encoded}"));
        }
        for value in [".", "..", ""] {
            assert!(template.fill(&arguments(value)).is_err(), "{value:?}");
        }
        assert!(UrlTemplate::parse("http://h/.{p}").unwrap().fill(&arguments(".")).is_err());
        assert!(UrlTemplate::parse("http://h/%2e{p}").unwrap().fill(&arguments(".")).is_err());
        let absent = template.fill(&Arguments::new());
        assert!(absent.is_err());
    }

    proptest! {
        #[test]
        fn whatever_the_value_host_and_segments_stay(value in "(?s).{1,40}") {
            let template = UrlTemplate::parse("http://h:81/a/{p}/b").unwrap();
            if let Ok(url) = template.fill(&arguments(&value)) {
                prop_assert_eq!(url.host_str(), Some("h"));
                prop_assert_eq!(url.port(), Some(81));
                let segments: Vec<&str> = url.path_segments().unwrap().collect();
                prop_assert_eq!(segments.len(), 3);
                prop_assert_eq!((segments[0], segments[2]), ("a", "b"));
                let decoded = percent_encoding::percent_decode_str(segments[1]).decode_utf8().unwrap().into_owned();
                prop_assert_eq!(decoded, value);
            }
        }
    }
}
