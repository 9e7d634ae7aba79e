//! The conversations with an authorization server. Discovery, registration, PKCE and the token requests are the SDK's; what it lets
//! pass and we do not is refused here.

use super::{
    super::words,
    config::{Grant, OAuthConfig},
    http::Reach,
    login::{Login, LoginError, Refreshed},
};
use crate::limits::MCP_ISSUER_BYTES_MAX;
use reqwest::Url;
use rmcp::{
    model::{ClientJsonRpcMessage, ClientRequest, PingRequest, RequestId},
    transport::{
        auth::{
            AuthError, AuthorizationManager, AuthorizationMetadata, AuthorizationRequest, AuthorizationSession,
            ClientCredentialsConfig, CredentialStore as _, InMemoryCredentialStore, OAuthClientConfig,
        },
        streamable_http_client::{StreamableHttpClient as _, StreamableHttpError},
    },
};
use secrecy::{ExposeSecret as _, SecretString};
use std::collections::HashMap;

/// As it registers itself.
const CLIENT_NAME: &str = "leasehold";

/// Talks to the authorization server of one MCP server.
pub(super) struct Flow {
    pub(super) url: Url,
    /// Of the MCP server.
    pub(super) client: reqwest::Client,
    pub(super) config: OAuthConfig,
    pub(super) client_secret: Option<SecretString>,
}

/// What a server last wanted.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// In its words; none: it has not said anything yet.
    pub(super) challenge: Option<String>,
    /// What the login was good for that is good for too little.
    pub(super) granted: Vec<String>,
}

/// A login that waits for its person.
pub struct PendingLogin {
    session: AuthorizationSession,
    got: InMemoryCredentialStore,
    client_secret: Option<String>,
    token_endpoint: String,
}

/// Where an issuer publishes what it is: RFC 8414, and OpenID as MCP has it.
fn published_by(issuer: &Url) -> [Url; 3] {
    let path = issuer.path().trim_end_matches('/');
    let at = |path: String| {
        let mut url = issuer.clone();
        url.set_path(&path);
        url
    };
    [
        at(format!("/.well-known/oauth-authorization-server{path}")),
        at(format!("/.well-known/openid-configuration{path}")),
        at(format!("{path}/.well-known/openid-configuration")),
    ]
}

/// The body, where it is not longer.
async fn at_most(mut answer: reqwest::Response, max: usize) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.ok()? {
        body.extend_from_slice(&chunk);
        if body.len() > max {
            return None;
        }
    }
    Some(body)
}

/// What the issuer itself says, which is what was found in its name. The SDK takes a document from wherever the server points to.
async fn said_by(
    client: &reqwest::Client,
    issuer: &Url,
    found: &AuthorizationMetadata,
) -> Result<AuthorizationMetadata, LoginError> {
    if issuer.query().is_some() || issuer.fragment().is_some() {
        return Err(LoginError::Failed(format!("`{issuer}`, its issuer, has a query or a fragment, and is none")));
    }
    for url in published_by(issuer) {
        let Ok(answer) = client.get(url).send().await else { continue };
        if !answer.status().is_success() {
            continue;
        }
        let Some(bytes) = at_most(answer, MCP_ISSUER_BYTES_MAX).await else { continue };
        let Ok(own) = serde_json::from_slice::<AuthorizationMetadata>(&bytes) else { continue };
        let said = |it: &AuthorizationMetadata| {
            let endpoints = (it.token_endpoint.clone(), it.authorization_endpoint.clone(), it.registration_endpoint.clone());
            (it.issuer.clone(), endpoints)
        };
        if said(&own) == said(found) {
            return Ok(own);
        }
    }
    Err(LoginError::Failed(format!(
        "its authorization server is said to be `{issuer}`, which does not say the same of itself: nothing was sent to either"
    )))
}

fn failed(what: &str, error: &AuthError) -> LoginError {
    LoginError::Failed(format!("{what}: {}", words::chain(error)))
}

impl Flow {
    /// What the server wants of who shows nothing; none: it does not say.
    async fn challenge(&self) -> Option<String> {
        let ping = ClientRequest::PingRequest(PingRequest { method: Default::default(), extensions: Default::default() });
        let ping = ClientJsonRpcMessage::request(ping, RequestId::Number(0));
        match self.client.post_message(self.url.as_str().into(), ping, None, None, HashMap::new()).await {
            Err(StreamableHttpError::AuthRequired(error)) => Some(error.www_authenticate_header),
            _ => None,
        }
    }

    /// Finds the authorization server, from what the server said last or says now.
    async fn discovered(&self, challenge: Option<&str>) -> Result<(AuthorizationManager, AuthorizationMetadata), LoginError> {
        let asked = if challenge.is_none() { self.challenge().await } else { None };
        let challenge = challenge.or(asked.as_deref());
        let reach = Reach::of(&self.url, self.config.private_addresses);
        let client = reach.clone().client().map_err(|e| LoginError::Failed(format!("no HTTP client: {}", words::chain(&e))))?;
        let manager = match self.config.private_addresses {
            true => AuthorizationManager::new_allowing_private_addresses(self.url.clone()).await,
            false => AuthorizationManager::new(self.url.clone()).await,
        };
        let mut manager = manager.map_err(|e| failed("no HTTP client", &e))?;
        manager.with_client(client.clone()).map_err(|e| failed("no HTTP client", &e))?;
        let found = manager.resolve_metadata_from_challenge(challenge).await;
        let found = found.map_err(|e| failed("its authorization server is not found", &e))?;
        if !found.source.is_discovered() {
            return Err(LoginError::Failed(
                "the server publishes nothing about an authorization server: remove [mcp.oauth], or mend the server".into(),
            ));
        }
        let issuer = self.accept(&found.metadata, &reach)?;
        let metadata = said_by(&client, &issuer, &found.metadata).await?;
        manager.set_metadata(metadata.clone());
        Ok((manager, metadata))
    }

    /// What the SDK would let pass. Gives the issuer that the document names, which is not yet known to be true.
    fn accept(&self, metadata: &AuthorizationMetadata, reach: &Reach) -> Result<Url, LoginError> {
        let methods = metadata.code_challenge_methods_supported.as_deref().unwrap_or_default();
        if self.config.grant == Grant::AuthorizationCode && !methods.iter().any(|method| method == "S256") {
            return Err(LoginError::Failed(
                "its authorization server does not say that it takes PKCE with S256, which is required".into(),
            ));
        }
        let Some(issuer) = &metadata.issuer else {
            return Err(LoginError::Failed(
                "its authorization server does not say who it is (`issuer`), which is required".into(),
            ));
        };
        let mut endpoints = vec![issuer, &metadata.token_endpoint];
        if self.config.grant == Grant::AuthorizationCode {
            endpoints.push(&metadata.authorization_endpoint);
            endpoints.extend(&metadata.registration_endpoint);
        }
        for endpoint in endpoints {
            let url = endpoint.parse::<Url>().ok();
            let scheme = url.as_ref().map(Url::scheme).unwrap_or_default();
            if !(scheme == "https" || (scheme == "http" && self.url.scheme() == "http")) {
                return Err(LoginError::Failed(format!("its authorization server is at `{endpoint}`, which is not https")));
            }
            if !url.is_some_and(|url| reach.takes_url(&url)) {
                return Err(LoginError::Failed(format!(
                    "its authorization server is at `{endpoint}`, a private or special address: see `private_addresses` of [mcp.oauth]"
                )));
            }
        }
        let is: Url = issuer.parse().map_err(|_| LoginError::Failed(format!("`{issuer}`, its issuer, is no URL")))?;
        // The root may be written with its slash or without.
        match &self.config.issuer {
            Some(wanted) if wanted.parse::<Url>().ok().as_ref() != Some(&is) => Err(LoginError::Failed(format!(
                "its authorization server is `{issuer}`, and `issuer` of [mcp.oauth] is `{wanted}`: mend the one that is wrong"
            ))),
            _ => Ok(is),
        }
    }

    /// Makes the address that a person opens.
    pub(super) async fn begin(&self, redirect: &str, wanted: &Wanted) -> Result<PendingLogin, LoginError> {
        let (mut manager, metadata) = self.discovered(wanted.challenge.as_deref()).await?;
        let scopes = match self.config.scopes.as_slice() {
            [] => {
                let mut scopes = wanted.granted.clone();
                let more = manager.select_initial_scopes(&[]).await;
                scopes.extend(more.into_iter().filter(|scope| !wanted.granted.contains(scope)));
                scopes
            }
            scopes => scopes.to_vec(),
        };
        let mut request = AuthorizationRequest::new(redirect).with_scopes(scopes.clone()).with_initial_scope_selection();
        let takes_documents = metadata.additional_fields.get("client_id_metadata_document_supported");
        let takes_documents = takes_documents.and_then(serde_json::Value::as_bool) == Some(true);
        let mut client_secret = None;
        if let Some(id) = &self.config.client_id {
            request = request.with_preregistered_client(id);
            client_secret = self.client_secret.as_ref().map(|secret| secret.expose_secret().to_owned());
        } else if let Some(url) = self.config.client_metadata_url.as_ref().filter(|_| takes_documents) {
            request = request.with_client_metadata_url(url);
        } else {
            // Here and not by the session, which would not tell the secret that came with the id.
            let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
            if metadata.registration_endpoint.is_none() {
                return Err(LoginError::Failed(
                    "its authorization server registers nobody by itself: register `leasehold` there and write `client_id`"
                        .into(),
                ));
            }
            let registered = manager.register_client(CLIENT_NAME, redirect, &scopes).await;
            let registered = registered.map_err(|e| failed("this program was not registered", &e))?;
            request = request.with_preregistered_client(registered.client_id);
            client_secret = registered.client_secret;
        }
        if let Some(secret) = &client_secret {
            request = request.with_client_secret(secret);
        }
        let got = InMemoryCredentialStore::new();
        manager.set_credential_store(got.clone());
        let session = AuthorizationSession::new(manager, request).await;
        let session = session.map_err(|(_, e)| failed("the login cannot begin", &e))?;
        Ok(PendingLogin { session, got, client_secret, token_endpoint: metadata.token_endpoint })
    }

    /// The secret of a client: the configured one's is read anew, and another's came with its login.
    fn secret_of(&self, login: &Login) -> Result<Option<String>, LoginError> {
        match &self.config.client_id {
            Some(id) if *id != login.client_id => {
                Err(LoginError::Needed("`client_id` is another than that of the login".into()))
            }
            Some(_) => Ok(self.client_secret.as_ref().map(|secret| secret.expose_secret().to_owned())),
            None => Ok(login.client_secret.clone()),
        }
    }

    /// Uses the refresh token, once. `may_send` is asked after everything else was found.
    pub(super) async fn refresh(&self, login: &Login, may_send: impl FnOnce() -> bool) -> Refreshed {
        match self.refresh_or(login, may_send).await {
            Ok(login) => Refreshed::Login(login),
            Err(Either::Refused(why)) => Refreshed::Refused(why),
            Err(Either::Other(LoginError::Needed(why) | LoginError::Failed(why))) => Refreshed::Failed(why),
        }
    }

    async fn refresh_or(&self, login: &Login, may_send: impl FnOnce() -> bool) -> Result<Login, Either> {
        let client_secret = self.secret_of(login)?;
        let (mut manager, metadata) = self.discovered(None).await?;
        // A token goes to who gave it.
        if login.issuer != metadata.issuer {
            let name = |issuer: &Option<String>| issuer.clone().unwrap_or_else(|| "nobody named".into());
            let (was, is) = (name(&login.issuer), name(&metadata.issuer));
            return Err(LoginError::Failed(format!("its authorization server was `{was}` and is `{is}` now")).into());
        }
        let token_endpoint = metadata.token_endpoint;
        if let Some(was) = login.token_endpoint.as_ref().filter(|was| **was != token_endpoint) {
            let why = format!(
                "its authorization server gave tokens at `{was}` and does at `{token_endpoint}` now: log in anew if that is right"
            );
            return Err(LoginError::Failed(why).into());
        }
        let got = InMemoryCredentialStore::new();
        got.save(login.to_stored()?).await.map_err(|e| failed("the login", &e))?;
        manager.set_credential_store(got.clone());
        let mut client = OAuthClientConfig::new(&login.client_id, self.url.as_str());
        if let Some(secret) = &client_secret {
            client = client.with_client_secret(secret);
        }
        manager.configure_client(client).map_err(|e| failed("the login", &e))?;
        if !may_send() {
            return Err(
                LoginError::Failed("finding the authorization server took too long; nothing was sent to it".into()).into()
            );
        }
        match manager.refresh_token().await {
            Ok(_) => Ok(login_in(&got, client_secret, token_endpoint).await?),
            Err(AuthError::TokenRefreshRejected(why)) => Err(Either::Refused(why)),
            Err(error) => Err(failed("the refresh", &error).into()),
        }
    }

    /// Gets a token in this program's own name.
    pub(super) async fn as_machine(&self) -> Result<Login, LoginError> {
        let (mut manager, metadata) = self.discovered(None).await?;
        let (Some(client_id), Some(secret)) = (&self.config.client_id, &self.client_secret) else {
            return Err(LoginError::Failed("client_credentials needs `client_id`, `client_secret_env` and `issuer`".into()));
        };
        let scopes = match self.config.scopes.as_slice() {
            [] => manager.select_initial_scopes(&[]).await,
            scopes => scopes.to_vec(),
        };
        let config = ClientCredentialsConfig::ClientSecret {
            client_id: client_id.clone(),
            client_secret: secret.expose_secret().to_owned(),
            scopes: scopes.into_iter().filter(|scope| scope != "offline_access").collect(),
            resource: Some(self.url.to_string()),
        };
        manager.validate_client_credentials_metadata(&config).map_err(|e| failed("the login", &e))?;
        let got = InMemoryCredentialStore::new();
        manager.set_credential_store(got.clone());
        manager.configure_client_credentials(&config).map_err(|e| failed("the login", &e))?;
        manager.exchange_client_credentials(&config).await.map_err(|e| failed("the login", &e))?;
        login_in(&got, None, metadata.token_endpoint).await
    }
}

enum Either {
    Refused(String),
    Other(LoginError),
}

impl From<LoginError> for Either {
    fn from(error: LoginError) -> Self {
        Self::Other(error)
    }
}

async fn login_in(
    got: &InMemoryCredentialStore,
    client_secret: Option<String>,
    token_endpoint: String,
) -> Result<Login, LoginError> {
    let stored = got.load().await.map_err(|e| failed("the login", &e))?;
    let stored = stored.ok_or_else(|| LoginError::Failed("the authorization server gave no token".into()))?;
    Login::from_stored(&stored, client_secret, Some(token_endpoint))
}

impl PendingLogin {
    /// What a person opens in a browser.
    pub fn url(&self) -> &str {
        self.session.get_authorization_url()
    }

    /// Whether an address that a browser was sent to is the answer to this login, and not to another or made up.
    pub fn is_answer(&self, redirected: &str) -> bool {
        let state = |url: &str| {
            let url: Url = url.parse().ok()?;
            url.query_pairs().find(|(key, _)| key == "state").map(|(_, value)| value.into_owned())
        };
        state(self.url()).is_some_and(|asked| state(redirected) == Some(asked))
    }

    /// Ends it with the address that the browser was sent back to.
    ///
    /// # Errors
    /// The person or the authorization server said no, or it is the answer to another login.
    pub async fn finish(&self, redirected: &str) -> Result<Login, LoginError> {
        let url: Url = redirected
            .parse()
            .map_err(|_| LoginError::Failed("that is no URL: paste the whole address the browser was sent to".into()))?;
        let value = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
        if !self.is_answer(redirected) {
            return Err(LoginError::Failed(
                "its `state` is not the one of this login: begin anew, and open the new address".into(),
            ));
        }
        if let Some(error) = value("error") {
            let more = value("error_description").map(|more| format!(": {more}")).unwrap_or_default();
            return Err(LoginError::Failed(format!("the authorization server said no: {error}{more}")));
        }
        match self.session.handle_callback_url(redirected).await {
            Ok(_) => login_in(&self.got, self.client_secret.clone(), self.token_endpoint.clone()).await,
            Err(error) => Err(failed("the code was not taken", &error)),
        }
    }
}

impl std::fmt::Debug for PendingLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PendingLogin")
    }
}
