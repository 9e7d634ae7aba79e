//! One connection: the handshake, and one request at a time of a caller on it. Nothing here has a deadline; the server's operation has.

use super::{
    elicit::{self, Floor},
    error::McpError,
    guarded::{GuardedHttp, GuardedPipes},
    heard::{self, Heard},
    lines::Objects,
    mask::Mask,
    passage::{Fate, Passage},
    process::{LastWords, Process},
    target::Target,
    words,
};
use crate::{
    agent::tool::Teller,
    limits::{MCP_GRACE, MCP_MESSAGE_BYTES_MAX, MCP_PAGES_MAX, MCP_TOOLS_MAX},
};
use rmcp::{
    ClientHandler, RoleClient, ServiceError,
    model::{
        CallToolRequest, CallToolRequestParams, CallToolResult, CancelledNotification, CancelledNotificationParam,
        ClientCapabilities, ClientConfig, ClientRequest, ConstString as _, CustomRequest, CustomResult, DiscoverRequest,
        DiscoverRequestParams, ElicitRequestParams, ElicitResult, ElicitationCapability, ElicitationCreateRequestMethod,
        ErrorCode, ErrorData, FormElicitationCapability, Implementation, InputRequiredResult, ListToolsRequest,
        PaginatedRequestParams, PingRequest, ProgressNotificationParam, ProtocolVersion, RequestId, RequestMetaObject,
        ServerResult, SubscriptionFilter, Tool,
    },
    service::{
        ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, NotificationContext, PeerRequestOptions,
        RequestContext, RunningService,
    },
    transport::{
        StreamableHttpClientTransport, async_rw::AsyncRwTransport, common::client_side_sse::FixedInterval,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::sync::watch;

const RESUMES_MAX: usize = 2;
const RESUME_AFTER: Duration = Duration::from_millis(500);

/// What a server may ask of us or tell us.
#[derive(Clone, Debug)]
pub(super) struct Handler {
    /// Counts what it says of changes of its tools.
    pub(super) list_changes: watch::Sender<u64>,
    /// Counts its notifications of progress.
    pub(super) progress: watch::Sender<u64>,
    /// Where it asks people; none: they are not to be asked.
    pub(super) floor: Option<Floor>,
    /// Where it says how far its calls are.
    pub(super) heard: Heard,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        // Nothing else is declared: no sampling, no roots, no tasks, and no question that a person would answer at a URL.
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation =
            self.floor.as_ref().map(|_| ElicitationCapability::new().with_form(FormElicitationCapability::new()));
        let us = Implementation::new("leasehold", env!("CARGO_PKG_VERSION"));
        // The version is what the old handshake begins with.
        ClientConfig::new(capabilities, us).with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    #[expect(deprecated, reason = "the protocol drops roots; servers of older versions may ask for them still")]
    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "this client has no roots", None))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        match &self.floor {
            Some(floor) => floor.ask(request, context.ct).await,
            None => Err(elicit::nobody()),
        }
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleClient>,
    ) -> Result<CustomResult, ErrorData> {
        match (request.method.as_str(), &self.floor) {
            // Its schema or its mode is none that the library knows.
            (ElicitationCreateRequestMethod::VALUE, Some(_)) => Err(elicit::not_shown()),
            (ElicitationCreateRequestMethod::VALUE, None) => Err(elicit::nobody()),
            _ => Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None)),
        }
    }

    async fn on_progress(&self, said: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.progress.send_modify(|count| *count += 1);
        self.heard.progress(&said);
    }

    async fn on_logging_message(&self, said: heard::Line, _: NotificationContext<RoleClient>) {
        self.heard.log(&said);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.list_changes.send_modify(|count| *count += 1);
    }
}

/// A connection that has shaken hands.
pub(super) struct Connection {
    service: tokio::sync::Mutex<RunningService<RoleClient, Handler>>,
    peer: rmcp::Peer<RoleClient>,
    process: Option<Process>,
    /// It has a session that the far side may have forgotten.
    pub(super) may_be_stale: bool,
    pub(super) version: ProtocolVersion,
    pub(super) server: Option<String>,
    /// What it said last of its tools; none: it was not asked yet.
    pub(super) definitions: Mutex<Option<Said>>,
    /// Where it asks in the middle of a call; none: it does not, or nobody is to be asked.
    pub(super) floor: Option<Floor>,
    heard: Heard,
    /// It has a log that can be shown.
    has_log: bool,
}

/// What a server said of its tools.
pub(super) struct Said {
    /// After so many changes that it told of.
    pub(super) changes: u64,
    /// When it was asked.
    pub(super) at: Instant,
    /// Hashes of the definitions of tools that can be offered.
    pub(super) hashes: BTreeMap<String, String>,
}

/// What a call comes to.
pub(super) enum Answered {
    /// It is over.
    Result(CallToolResult),
    /// It goes on when it is made again with the answers.
    Question(InputRequiredResult),
}

/// Why there is no connection.
pub(super) enum NotOpen {
    /// The process does not start or the host does not answer.
    Unreachable(String),
    /// It does not shake hands in the way that was tried.
    Handshake(String),
    /// It lets us in no further.
    Unauthorized(String),
}

impl Connection {
    /// Connects and shakes hands, with the newest version unless only the old handshake is to be tried.
    pub(super) async fn open(
        target: &Target,
        mut handler: Handler,
        last_words: &LastWords,
        mask: &Mask,
        only_initialize: bool,
    ) -> Result<Self, NotOpen> {
        let mode = if only_initialize {
            ClientLifecycleMode::Initialize
        } else {
            ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
            }
        };
        let list_changes = handler.list_changes.clone();
        // Each connection has its own, so that what is asked on one that was given up reaches no call of the next.
        handler.floor = handler.floor.map(|_| Floor::default());
        let floor = handler.floor.clone();
        handler.heard = handler.heard.anew();
        let heard = handler.heard.clone();
        let (service, process) = match target {
            Target::Process(command) => {
                let (process, output, input) = Process::start(command, last_words)
                    .map_err(|e| NotOpen::Unreachable(format!("`{}` does not start: {e}", command.program)))?;
                let pipes = AsyncRwTransport::new(Objects::new(output), input).with_max_line_length(MCP_MESSAGE_BYTES_MAX);
                (handler.serve_with_lifecycle(GuardedPipes::new(pipes), mode).await, Some(process))
            }
            Target::Http { url, client, authorization } => {
                let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                    // A call that met a forgotten session is not sent again by the library.
                    .reinit_on_expired_session(false)
                    .max_sse_event_size(MCP_MESSAGE_BYTES_MAX)
                    .max_json_response_size(MCP_MESSAGE_BYTES_MAX);
                // The rest of a broken answer is asked for this often, and then the call is told: by default it never would be.
                let mut resumes = FixedInterval::default();
                resumes.max_times = Some(RESUMES_MAX);
                resumes.duration = RESUME_AFTER;
                config.retry_config = Arc::new(resumes);
                let http = GuardedHttp { client: client.clone(), authorization: authorization.clone(), mask: mask.clone() };
                let transport = StreamableHttpClientTransport::with_client(http, config);
                (handler.serve_with_lifecycle(transport, mode).await, None)
            }
        };
        let service = match service {
            Ok(service) => service,
            Err(error) => {
                return Err(match words::unauthorized_handshake(&error) {
                    Some(why) => NotOpen::Unauthorized(why),
                    None if words::is_unreachable(&error) => NotOpen::Unreachable(words::of_handshake(&error)),
                    None => NotOpen::Handshake(why_not(&error, process.as_ref(), last_words).await),
                });
            }
        };
        let peer = service.peer().clone();
        let info = peer.peer_info();
        let version = info.as_ref().map_or(ProtocolVersion::V_2024_11_05, |info| info.protocol_version.clone());
        let server = info.as_ref().and_then(|info| info.server_info.as_ref()).map(|s| format!("{} {}", s.name, s.version));
        let tells = info.as_ref().and_then(|info| info.capabilities.tools.as_ref()).and_then(|tools| tools.list_changed);
        if !version.has_initialize() && tells == Some(true) {
            tokio::spawn(listen(peer.clone(), list_changes));
        }
        let may_be_stale = process.is_none() && version.has_initialize();
        let has_log = info.as_ref().is_some_and(|info| info.capabilities.logging.is_some());
        if has_log && version.has_initialize() {
            heard::ask_for_log(&peer).await;
        }
        Ok(Self {
            service: tokio::sync::Mutex::new(service),
            peer,
            process,
            may_be_stale,
            floor: floor.filter(|_| version.has_initialize()),
            heard,
            has_log,
            version,
            server,
            definitions: Default::default(),
        })
    }

    /// Behind it may be another process at each request.
    pub(super) fn is_http(&self) -> bool {
        self.process.is_none()
    }

    pub(super) fn is_over(&self) -> bool {
        self.peer.is_transport_closed()
    }

    /// Ends it; true: its process, if it has one, is over and reaped.
    pub(super) async fn close(&self, limit: Duration) -> bool {
        let is_closed = match self.service.lock().await.close_with_timeout(limit).await {
            Ok(reason) => reason.is_some(),
            Err(error) => {
                tracing::warn!(%error, "the end of an MCP connection was not clean");
                false
            }
        };
        is_closed || self.process.is_none()
    }

    /// To wait for the end of its process.
    pub(super) fn process_over(&self) -> Option<watch::Receiver<bool>> {
        self.process.as_ref().map(Process::over)
    }

    async fn ask(&self, request: ClientRequest, meta: Option<RequestMetaObject>) -> Result<ServerResult, McpError> {
        let mut options = PeerRequestOptions::no_options();
        options.meta = meta;
        let handle = self.peer.send_cancellable_request(request, options).await.map_err(lost)?;
        handle.await_response().await.map_err(lost)
    }

    /// Asks for a sign of life; an error answer is one.
    pub(super) async fn ping(&self) -> Result<(), McpError> {
        let request = if self.version.has_initialize() {
            ClientRequest::PingRequest(PingRequest { method: Default::default(), extensions: Default::default() })
        } else {
            ClientRequest::DiscoverRequest(DiscoverRequest::new(DiscoverRequestParams {}))
        };
        match self.ask(request, None).await {
            Ok(_) | Err(McpError::Refused { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// All its tools.
    pub(super) async fn list(&self) -> Result<Vec<Tool>, McpError> {
        let mut tools: Vec<Tool> = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..MCP_PAGES_MAX {
            let request = ListToolsRequest {
                method: Default::default(),
                params: Some(PaginatedRequestParams::default().with_cursor(cursor.take())),
                extensions: Default::default(),
            };
            let ServerResult::ListToolsResult(page) = self.ask(ClientRequest::ListToolsRequest(request), None).await? else {
                return Err(McpError::Undecodable("its answer to tools/list is none".into()));
            };
            tools.extend(page.tools);
            if tools.len() > MCP_TOOLS_MAX {
                return Err(McpError::Undecodable(format!("it lists more than {MCP_TOOLS_MAX} tools")));
            }
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(tools),
            }
        }
        Err(McpError::Undecodable(format!("its list of tools has more than {MCP_PAGES_MAX} pages")))
    }

    /// Calls a tool, once. Given up before it is answered, the server is told so, where the request may have reached it.
    pub(super) async fn call(
        self: &Arc<Self>,
        params: CallToolRequestParams,
        mut meta: RequestMetaObject,
        passage: &Passage,
        teller: Teller,
    ) -> Result<Answered, McpError> {
        if self.has_log && !self.version.has_initialize() {
            heard::ask_for_log_with(&mut meta);
        }
        let mut request = CallToolRequest::new(params);
        request.extensions.insert(passage.clone());
        let mut options = PeerRequestOptions::no_options();
        options.meta = Some(meta);
        let sent = self.peer.send_cancellable_request(ClientRequest::CallToolRequest(request), options).await;
        let handle = sent.map_err(lost)?;
        let listening = self.heard.listen(&handle.progress_token, teller);
        let mut on_its_way = OnItsWay { id: Some(handle.id.clone()), connection: Arc::clone(self), passage: passage.clone() };
        let answer = handle.await_response().await;
        on_its_way.id = None;
        let answer = answer.map_err(lost)?;
        listening.answered();
        match answer {
            ServerResult::CallToolResult(result) => Ok(Answered::Result(result)),
            // A result without content and without anything else.
            ServerResult::EmptyResult(_) => Ok(Answered::Result(CallToolResult::default())),
            ServerResult::InputRequiredResult(question) => Ok(Answered::Question(question)),
            ServerResult::CustomResult(CustomResult(result))
                if result.get("resultType").is_some_and(|t| t == "input_required") =>
            {
                Err(McpError::NeedsInput(elicit::ended_in_no_form()))
            }
            ServerResult::CreateTaskResult(_) => {
                Err(McpError::Undecodable("it made a task of the call, which was not offered to it".into()))
            }
            _ => Err(McpError::Undecodable("its answer to tools/call is none".into())),
        }
    }
}

/// A call without an answer yet.
struct OnItsWay {
    /// None: it is answered.
    id: Option<RequestId>,
    connection: Arc<Connection>,
    passage: Passage,
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        if self.passage.close() != Fate::MayHaveArrived {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // It keeps the connection until it is said.
        let connection = Arc::clone(&self.connection);
        runtime.spawn(async move {
            let why = "whoever called gave it up".to_owned();
            let cancelled = CancelledNotification::new(CancelledNotificationParam::new(Some(id), Some(why)));
            let said = tokio::time::timeout(MCP_GRACE, connection.peer.send_notification(cancelled.into())).await;
            if !matches!(said, Ok(Ok(()))) {
                tracing::debug!("an MCP server was not told that a call was given up: {said:?}");
            }
        });
    }
}

/// Since 2026-07-28 changes are told to who asks for them. Ends with the connection.
async fn listen(peer: rmcp::Peer<RoleClient>, list_changes: watch::Sender<u64>) {
    let heard = async {
        let mut told = peer.listen(SubscriptionFilter::builder().tools_list_changed().build()).await?;
        while told.next().await?.is_some() {
            list_changes.send_modify(|count| *count += 1);
        }
        Ok::<(), ServiceError>(())
    };
    if let Err(error) = heard.await {
        tracing::debug!(%error, "an MCP server tells no changes of its tools any more");
    }
}

/// With how the process ended, where it did.
async fn why_not(error: &ClientInitializeError, process: Option<&Process>, last_words: &LastWords) -> String {
    let is_cut = matches!(error, ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::TransportError { .. });
    if let (true, Some(process)) = (is_cut, process) {
        let mut over = process.over();
        let is_over = tokio::time::timeout(MCP_GRACE, over.wait_for(|over| *over)).await;
        if matches!(is_over, Ok(Ok(_))) {
            return format!("it ended before the handshake was done ({})", last_words.end().unwrap_or_default());
        }
    }
    words::of_handshake(error)
}

fn lost(error: ServiceError) -> McpError {
    match error {
        ServiceError::McpError(ErrorData { code, message, .. }) => {
            McpError::Refused { code: code.0, message: message.into_owned() }
        }
        ServiceError::UnexpectedResponse => McpError::Undecodable("its answer cannot be decoded".into()),
        other => match words::unauthorized_request(&other) {
            Some(why) => McpError::Unauthorized(why),
            None => McpError::Lost(words::of_request(&other)),
        },
    }
}
