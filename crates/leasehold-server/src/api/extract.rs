//! What a request carries, taken strictly: a body of exactly the known fields, a query likewise, a run's id. What is wrong is said
//! with its place.

use super::problem::Problem;
use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Request, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::IntoResponse as _,
};
use leasehold::run::RunId;
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned},
};

/// A body of JSON.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

/// A body of JSON, or none.
#[derive(Debug)]
pub(crate) struct MaybeJson<T>(pub(crate) T);

/// A query.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

/// The run that the path names. What is no id is an unknown run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunPath(pub(crate) RunId);

/// What JSON writes as an object. Alone, serde takes an array of the fields for a struct, too, in an order that nobody has described.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Fields<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Fields(std::marker::PhantomData))
    }
}

/// Objects of which each is one.
pub(crate) fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(Vec::<Object<T>>::deserialize(deserializer)?.into_iter().map(|Object(one)| one).collect())
}

/// The same where they may be left out or null.
pub(crate) fn maybe_objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    let some = Option::<Vec<Object<T>>>::deserialize(deserializer)?;
    Ok(some.map(|some| some.into_iter().map(|Object(one)| one).collect()))
}

/// A field that may be left out and is never null.
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A whole number, however JSON writes it: `6.0` is one.
pub(crate) fn whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(deserializer: D) -> Result<T, D::Error> {
    let number = serde_json::Number::deserialize(deserializer)?;
    let integer = number.as_i128().or_else(|| {
        // Beyond this a float no longer tells one whole number from the next.
        number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() <= 9_007_199_254_740_992.0).map(|n| n as i128)
    });
    let fits = integer.and_then(|n| T::try_from(n).ok());
    fits.ok_or_else(|| de::Error::custom(format!("{number} is not a whole number of the right size")))
}

/// The same where it may be left out or null.
pub(crate) fn maybe_whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(deserializer: D) -> Result<Option<T>, D::Error> {
    struct Whole<T>(T);
    impl<'de, T: TryFrom<i128>> Deserialize<'de> for Whole<T> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            whole(deserializer).map(Self)
        }
    }
    Ok(Option::<Whole<T>>::deserialize(deserializer)?.map(|whole| whole.0))
}

/// A word of an enumeration is a string and nothing else: serde also takes `{"approve": null}` for `"approve"`.
macro_rules! words {
    ($($name:ty),+) => {
        $(impl TryFrom<String> for $name {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                let known = <Self as strum::VariantNames>::VARIANTS;
                text.parse().map_err(|_| format!("`{text}` is none of: {}", known.join(", ")))
            }
        })+
    };
}
pub(super) use words;

/// `calls[0].decision` as a JSON pointer.
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::from("#");
    for segment in path.iter() {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } => pointer.push_str(&format!("/{}", key.replace('~', "~0").replace('/', "~1"))),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    pointer
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let at = pointer(error.path());
        let inner = error.into_inner();
        if inner.is_data() { Problem::field(at, inner.to_string()) } else { not_json(&inner) }
    })?;
    json.end().map_err(|error| not_json(&error))?;
    // What is read as one thing here and as another elsewhere decides nothing.
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    leasehold::agent::unambiguous(text).map_err(|why| Problem::field("#", why))?;
    Ok(value)
}

fn not_json(error: &serde_json::Error) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "not_json", format!("the body is not JSON: {error}"))
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

async fn body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Problem> {
    let read = tokio::time::timeout(super::limits::BODY_READ_TIMEOUT, Bytes::from_request(request, state)).await;
    let late = |_| Problem::new(StatusCode::REQUEST_TIMEOUT, "not_read", "the body did not arrive in time");
    read.map_err(late)?.map_err(|rejection: BytesRejection| {
        if rejection.into_response().status() == StatusCode::PAYLOAD_TOO_LARGE {
            let most = super::limits::BODY_BYTES_MAX;
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("the body is longer than {most} bytes"))
        } else {
            Problem::new(StatusCode::BAD_REQUEST, "not_read", "the body did not arrive whole")
        }
    })
}

/// A reason or a note, bounded: it is kept with the run, and a reason is told to the model.
pub(crate) fn noted(pointer: &str, text: Option<&str>) -> Result<(), Problem> {
    let most = super::limits::NOTE_BYTES_MAX;
    match text.map_or(0, str::len) {
        bytes if bytes > most => Err(Problem::field(pointer, format!("this is {bytes} bytes long, and the limit is {most}"))),
        _ => Ok(()),
    }
}

fn not_declared() -> Problem {
    let detail = "the body has to be JSON, with Content-Type: application/json";
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail)
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(not_declared());
        }
        read::<Object<T>>(&body(request, state).await?).map(|Object(read)| Self(read))
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for MaybeJson<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let declared = is_json(request.headers());
        let bytes = body(request, state).await?;
        match (bytes.is_empty(), declared) {
            (true, _) => Ok(Self(T::default())),
            (false, true) => Ok(Self(read::<Option<Object<T>>>(&bytes)?.map(|Object(read)| read).unwrap_or_default())),
            (false, false) => Err(not_declared()),
        }
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Query::<T>::from_request_parts(parts, state).await {
            Ok(query) => Ok(Self(query.0)),
            Err(rejection) => {
                let text = rejection.body_text();
                let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
                let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                Err(match text.split_once(": ") {
                    Some((name, why)) if is_name(name) => Problem::parameter(name, why),
                    _ => Problem::parameter("?", text),
                })
            }
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RunPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let axum::extract::Path(text) =
            axum::extract::Path::<String>::from_request_parts(parts, state).await.map_err(|_| Problem::not_found())?;
        text.parse().map(Self).map_err(|_| Problem::not_found())
    }
}

/// The MCP server that the path names.
#[derive(Clone, Debug)]
pub(crate) struct ServerPath(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for ServerPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(name)| Self(name)).map_err(|_| Problem::not_found())
    }
}

/// What a client would rather have, of what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    Json,
    Text,
    Events,
}

impl Wants {
    /// The first of `Accept` that there is; JSON where it names none.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let named = headers.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
        let kinds = named.flat_map(|value| value.split(',')).map(|item| item.split(';').next().unwrap_or_default().trim());
        for kind in kinds {
            match kind {
                "application/json" => return Self::Json,
                "text/plain" => return Self::Text,
                "text/event-stream" => return Self::Events,
                _ => {}
            }
        }
        Self::Json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[serde(deserialize_with = "whole")]
        #[allow(dead_code, reason = "only read")]
        n: u32,
    }
    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[allow(dead_code, reason = "only read")]
        list: Vec<Inner>,
        #[serde(default, deserialize_with = "present")]
        #[allow(dead_code, reason = "only read")]
        word: Option<String>,
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, place) in [
            (r#"{"list": [{"n": 1}, {"n": -1}]}"#, "#/list/1/n"),
            (r#"{"list": [], "word": null}"#, "#/word"),
            (r#"{"list": [{"n": 1, "m/x": 2}]}"#, "#/list/0/m~1x"),
            (r#"{"list": [{"n": 6.5}]}"#, "#/list/0/n"),
            (r#"{"list": [{"n": 5000000000}]}"#, "#/list/0/n"),
            (r#"{"list": [{"n": "6"}]}"#, "#/list/0/n"),
        ] {
            let problem = serde_json::to_value(read::<Outer>(text.as_bytes()).unwrap_err()).unwrap();
            assert_eq!(
                (problem["code"].as_str(), problem["errors"][0]["pointer"].as_str()),
                (Some("invalid_input"), Some(place))
            );
        }
        assert_eq!(read::<Outer>(b"{\"list\": []} x").unwrap_err().code, "not_json");
        assert!(read::<Outer>(b"{\"list\": [{\"n\": 1}, {\"n\": 6.0}]}").is_ok());
    }

    #[test]
    fn the_first_kind_that_there_is_counts() {
        let of = |text: &str| Wants::of(&[(header::ACCEPT, text.parse().unwrap())].into_iter().collect());
        assert_eq!(of("text/html, text/plain;q=0.9, */*"), Wants::Text);
        assert_eq!(of("application/json, text/plain"), Wants::Json);
        assert_eq!(of("*/*"), Wants::Json);
        assert_eq!(of("text/event-stream"), Wants::Events);
    }
}
