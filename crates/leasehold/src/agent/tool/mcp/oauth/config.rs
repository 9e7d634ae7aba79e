//! `[mcp.oauth]` as the operator writes it.

use super::super::super::http::is_variable_name;
use crate::limits::{MCP_SCOPE_BYTES_MAX, MCP_SCOPES_MAX};
use reqwest::Url;
use serde::Deserialize;

/// How this program gets the right to use a server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OAuthConfig {
    /// Who logs in.
    pub grant: Grant,
    /// As it is registered with the authorization server; left out: this program registers itself where that is offered.
    pub client_id: Option<String>,
    /// The environment variable with the client's secret.
    pub client_secret_env: Option<String>,
    /// The authorization server that the secret is for; any other one is refused.
    pub issuer: Option<String>,
    /// The address of a client id metadata document, where the authorization server takes one.
    pub client_metadata_url: Option<String>,
    /// What is asked for; left out: what the server says that it wants.
    pub scopes: Vec<String>,
    /// The port of this machine that the browser is sent back to; left out: a free one.
    pub redirect_port: Option<u16>,
    /// Whether the authorization server may be at a private address although the server's own URL names none.
    pub private_addresses: bool,
}

/// Who logs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// A person, with a browser.
    #[default]
    AuthorizationCode,
    /// This program itself, with its secret.
    ClientCredentials,
}

impl OAuthConfig {
    /// The key that contradicts another, and the mend.
    pub(in super::super) fn check(&self) -> Result<(), (&'static str, String)> {
        let is_named = |name: &Option<String>| name.as_ref().is_some_and(String::is_empty);
        if is_named(&self.client_id) {
            return Err(("client_id", "is empty: remove it, or write the id".into()));
        }
        if self.client_secret_env.is_some() && self.client_id.is_none() {
            return Err(("client_secret_env", "belongs to a `client_id`: write that too".into()));
        }
        if self.client_secret_env.as_deref().is_some_and(|name| !is_variable_name(name)) {
            return Err(("client_secret_env", "is not the name of an environment variable".into()));
        }
        if self.client_secret_env.is_some() && self.issuer.is_none() {
            let why = "needs `issuer`, so that the secret goes to nobody else: write the issuer of the authorization server";
            return Err(("client_secret_env", why.into()));
        }
        if let Some(issuer) = &self.issuer {
            let is_one = issuer.parse::<Url>().is_ok_and(|url| {
                let is_plain = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
                matches!(url.scheme(), "http" | "https") && url.host().is_some() && is_plain
            });
            if !is_one {
                return Err(("issuer", "must be an https:// URL without user, query and fragment".into()));
            }
        }
        if self.grant == Grant::ClientCredentials {
            if self.client_secret_env.is_none() {
                return Err(("grant", "client_credentials needs `client_id`, `client_secret_env` and `issuer`".into()));
            }
            if self.redirect_port.is_some() || self.client_metadata_url.is_some() {
                return Err((
                    "grant",
                    "client_credentials sends nobody anywhere: remove `redirect_port` and `client_metadata_url`".into(),
                ));
            }
        }
        if let Some(url) = &self.client_metadata_url {
            if self.client_id.is_some() {
                return Err(("client_metadata_url", "there is a `client_id` too: remove one of the two".into()));
            }
            let is_one =
                url.parse::<Url>().is_ok_and(|url| url.scheme() == "https" && url.path() != "/" && url.host().is_some());
            if !is_one {
                return Err(("client_metadata_url", "must be an https:// URL with a path".into()));
            }
        }
        let is_scope = |scope: &String| {
            let fits = !scope.is_empty() && scope.len() <= MCP_SCOPE_BYTES_MAX;
            fits && scope.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\')
        };
        if self.scopes.len() > MCP_SCOPES_MAX || !self.scopes.iter().all(is_scope) {
            let why =
                format!("at most {MCP_SCOPES_MAX}, each 1 to {MCP_SCOPE_BYTES_MAX} characters without spaces, quotes and `\\`");
            return Err(("scopes", why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(), (&'static str, String)> {
        toml::from_str::<OAuthConfig>(text).unwrap().check()
    }

    #[test]
    fn what_contradicts_itself_is_refused_by_its_key() {
        assert_eq!(read(""), Ok(()));
        let key = |text: &str| read(text).unwrap_err().0;
        assert_eq!(key("client_id = ''"), "client_id");
        assert_eq!(key("client_secret_env = 'A'"), "client_secret_env");
        assert_eq!(key("client_id = 'a'\nclient_secret_env = 'not one'"), "client_secret_env");
        assert!(read("client_id = 'a'\nclient_secret_env = 'A'").unwrap_err().1.contains("`issuer`"));
        assert_eq!(key("issuer = 'a.example'"), "issuer");
        assert_eq!(key("issuer = 'https://a.example?b'"), "issuer");
        assert_eq!(read("issuer = 'https://a.example/b'"), Ok(()));
        assert_eq!(key("grant = 'client_credentials'"), "grant");
        assert_eq!(
            key(
                "grant = 'client_credentials'\nclient_id = 'a'\nclient_secret_env = 'A'\nissuer = 'https://a.example'\nredirect_port = 1"
            ),
            "grant"
        );
        assert_eq!(
            read("grant = 'client_credentials'\nclient_id = 'a'\nclient_secret_env = 'A'\nissuer = 'https://a.example'"),
            Ok(())
        );
        assert_eq!(key("client_metadata_url = 'http://a.example/b'"), "client_metadata_url");
        assert_eq!(key("client_metadata_url = 'https://a.example'"), "client_metadata_url");
        assert_eq!(key("client_id = 'a'\nclient_metadata_url = 'https://a.example/b'"), "client_metadata_url");
    }

    #[test]
    fn scopes_have_their_bounds() {
        let scopes = |scopes: Vec<String>| OAuthConfig { scopes, ..OAuthConfig::default() }.check().is_ok();
        assert!(scopes(vec!["s".into(); MCP_SCOPES_MAX]));
        assert!(!scopes(vec!["s".into(); MCP_SCOPES_MAX + 1]));
        assert!(scopes(vec!["s".repeat(MCP_SCOPE_BYTES_MAX)]));
        assert!(!scopes(vec!["s".repeat(MCP_SCOPE_BYTES_MAX + 1)]));
        assert!(!scopes(vec!["a b".into()]) && !scopes(vec![String::new()]));
    }
}
