//! Every bound of the system, with what happens beyond it. Each edge has a test.

use std::{num::NonZeroU32, time::Duration};

/// Bytes of a request's messages together; more: refused before the run exists.
pub const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Calls in one turn; more: the reply is refused as the model's error and asked for again within the cap on rounds.
pub const TURN_CALLS_MAX: usize = 64;
/// Bytes of one call's arguments; more: an error result for the model.
pub const ARGUMENTS_BYTES_MAX: usize = 6 * 1024 * 1024;
/// Levels of arrays and objects in one another in arguments and a request's metadata; more: refused. In a result: kept as its
/// text. A journal entry nests them further, and JSON is read back only so deep.
pub const NESTING_MAX: usize = 64;
/// Bytes of one tool result that are stored; more: cut at a character boundary, and the result says so.
pub const RESULT_STORED_BYTES_MAX: usize = 6 * 1024 * 1024;
/// Bytes of one tool result that the model sees; more: an excerpt that says it is one.
pub const RESULT_SHOWN_BYTES_MAX: usize = 32 * 1024;
/// Bytes of one artifact of a run; more: it is described in the result and not kept.
pub const ARTIFACT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Artifacts of one call; further ones are described and not kept.
pub const ARTIFACTS_CALL_MAX: usize = 16;
/// Bytes of the artifacts of one call; what is beyond is described and not kept.
pub const ARTIFACTS_CALL_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Artifacts of one run; further ones are described and not kept.
pub const ARTIFACTS_RUN_MAX: usize = 256;
/// Bytes of the artifacts of one run; what is beyond is described and not kept.
pub const ARTIFACTS_RUN_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// Characters of one thing that a running call says to whoever watches; more: cut.
pub const LIVE_CHARS_MAX: usize = 500;
/// Things that a running call says to whoever watches in a second; further ones are left out and counted.
pub const LIVE_RATE: NonZeroU32 = at_least_one(10);
/// The same at once, after a pause.
pub const LIVE_BURST: NonZeroU32 = at_least_one(20);
/// Lines of a preview; further ones are counted.
pub const PREVIEW_LINES_MAX: usize = 20;
/// Characters of one line of a preview; more: cut, and the line says so.
pub const PREVIEW_LINE_CHARS_MAX: usize = 500;
/// Bytes of a preview on a card; more: cut, and the preview says so.
pub const PREVIEW_BYTES_MAX: usize = 16 * 1024;
/// A similar call that was asked for, started or done longer ago is not named on a card.
pub const SIMILAR_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);
/// Runs in which calls similar to those of one tool on a card are looked for, those that called it last; older ones are not looked at.
pub const SIMILAR_RUNS_MAX: usize = 50;
/// Similar calls that a card names for one of its calls; further ones are left out.
pub const SIMILAR_SHOWN_MAX: usize = 5;
/// Bytes of a question that a running call asks a person; more: it is not asked.
pub const QUESTION_PROMPT_BYTES_MAX: usize = 8 * 1024;
/// Bytes of the schema of its answer; more: it is not asked.
pub const QUESTION_SCHEMA_BYTES_MAX: usize = 32 * 1024;
/// Questions of one entry of a call, one after the other; and times that a call may end in questions. Further ones are not asked.
pub const QUESTIONS_MAX: u32 = 16;
/// Questions in which a call may end at once; more: none is asked.
pub const INPUT_QUESTIONS_MAX: usize = 16;
/// Bytes of the name that a tool gives such a question; more: none is asked.
pub const INPUT_ID_BYTES_MAX: usize = 256;
/// Bytes that a tool may want to see again with the answers; more: none is asked.
pub const INPUT_STATE_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the values that answer a question; more: refused.
pub const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Misfits that are named of values that a person filled in; further ones are found once those are mended.
pub const INVALID_FIELDS_MAX: usize = 20;
/// Time for a preview or a precondition; longer: the card says that there is none.
pub const PREVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Reads of one turn that run side by side; further ones wait for a place.
pub const PARALLEL_READS_MAX: usize = 8;
/// Entries of an idempotent write in one segment, the first included; then the run is retried.
pub const IDEMPOTENT_ATTEMPTS_MAX: u32 = 3;
/// Stamps in one segment, one after the other, after which a write was not entered; then the run is retried, which spends a
/// requeue, or is in doubt where an earlier entry may have landed.
pub const NOT_STARTED_IN_A_ROW_MAX: u32 = 3;
/// Time for the transaction of a transactional tool, also where the tool says more, and a third of a lease at most; longer: it is
/// undone, and the model is told.
pub const TRANSACTION_MAX: Duration = Duration::from_secs(5);
/// Times that the transaction of one call is begun because it fell to another transaction; then the model is told.
pub const TRANSACTION_ATTEMPTS_MAX: u32 = 5;
/// Transactions of transactional tools that one process has open at once on PostgreSQL; further ones wait for a connection. On SQLite
/// it is one.
pub const TRANSACTIONS_AT_ONCE_MAX: usize = 4;
/// Writes that the store commits together.
pub const COMMIT_BATCH_MAX: usize = 128;
/// Due runs that a worker passes over without looking at them again until its next sweep, because it cannot serve them; more: each
/// look is a page deep, so that what it can serve is found behind twice as many.
pub const PASSED_OVER_MAX: usize = 1_000;
/// Runs that a worker keeps in mind as said to be unsettled, so that each is said once; further ones are left without a word until
/// one of those is settled.
pub const UNSETTLED_SAID_MAX: usize = 1_000;
/// Running runs that one look at the inbox asks the store for at the same time; further ones after those.
pub const LOOKS_AT_ONCE_MAX: usize = 8;
/// Entries or rows of one page.
pub const PAGE_MAX: usize = 1_000;
/// Bytes of the kind and of the key of a record, each; more: refused before it is sent.
pub const RECORD_NAME_BYTES_MAX: usize = 200;
/// Bytes of a record's body; more: refused before it is sent.
pub const RECORD_BODY_BYTES_MAX: usize = 64 * 1024;
/// Records that are written together; more: refused before they are sent.
pub const RECORDS_AT_ONCE_MAX: usize = 64;
/// Events of a webhook that one process sends at once; further ones are sent after those.
pub const WEBHOOK_AT_ONCE_MAX: usize = 8;
/// Events that one process keeps in mind as due soon; further ones are found in the store once there is place again.
pub const WEBHOOK_IN_MIND_MAX: usize = 10_000;
/// Bytes of a keyring; no more are read.
pub const KEYRING_BYTES_MAX: u64 = 64 * 1024;
/// Keys that one store was written with; a further one is refused.
pub const SEALED_KEYS_MAX: usize = 512;
/// Times that a process notes its key in a store while others do the same; then it does not begin.
pub const SEALED_NOTE_ATTEMPTS_MAX: usize = 8;
/// Bytes of the name of a user, a token or a team; more: refused.
pub const NAME_BYTES_MAX: usize = 64;
/// Teams, and patterns of tools, of one user or token; more: refused.
pub const RIGHTS_MAX: usize = 64;
/// Bytes of a pattern of tools in a right; more: refused.
pub const PATTERN_BYTES_MAX: usize = 128;
/// Bytes of a token, a session or a login link that is looked up; a longer one is none.
pub const SECRET_BYTES_MAX: usize = 512;
/// Times that a change of a user or a token is begun again because somebody else changed the same; then it is refused.
pub const ACCESS_ATTEMPTS_MAX: usize = 8;
/// Rows that one sweep looks at when a local command starts.
pub const LOCAL_SWEEP_MAX: usize = 50;
/// Bytes of a model's name for a tool on the wire.
pub const WIRE_NAME_BYTES_MAX: usize = 64;
/// Rounds when an agent does not say.
pub const ROUNDS_DEFAULT: u32 = 20;
/// Attempts at one model call in place, for a run that a caller waits for.
pub const MODEL_ATTEMPTS_IN_PLACE: usize = 3;
/// Longest wait for a place at a model whose limits are used up; then its fallback is asked, and where there is none the run is
/// looked at again, and waits anew under its lease.
pub const MODEL_WAIT_MAX: Duration = Duration::from_secs(60);
/// Bytes of a reply in pieces, as its provider writes them; more: the reply is none, and no more of it is read.
pub const MODEL_REPLY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Models that one reply may be asked of, the agent's own and its fallbacks; more: refused in the configuration.
pub const MODELS_IN_TURN_MAX: usize = 8;
/// Leases for which whoever ends a process waits until the store has taken what its tools answered too late: one until the lost
/// lease has ended on the store's clock too, one in which no sweep ends any (after an outage), one in hand. Beyond: it ends, and says
/// what is not on record.
pub const LATE_OUTCOMES_LEASES: u32 = 3;
/// The same, at least, however short a lease is.
pub const LATE_OUTCOMES_WAIT_MIN: Duration = Duration::from_secs(10);
/// Longest time that an operator may give people to answer what an MCP server asks in one call; more: the configuration is refused.
pub const MCP_QUESTIONS_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes of one message of an MCP server; a longer one is dropped, and who waits for it waits until its deadline.
pub const MCP_MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Tools of one MCP server; more: the list is refused.
pub const MCP_TOOLS_MAX: usize = 1_000;
/// Pages of one list of tools; more: the list is refused.
pub const MCP_PAGES_MAX: usize = 100;
/// Bytes of one tool's description and schemas, as an MCP server says them; more: that tool is refused.
pub const MCP_DEFINITION_BYTES_MAX: usize = 60 * 1024;
/// Bytes of what an MCP server last wrote to its standard error that are kept; older ones are forgotten.
pub const MCP_STDERR_BYTES_MAX: usize = 8 * 1024;
/// Characters of what an MCP server says in an error that are repeated; more: cut.
pub const MCP_SAID_CHARS_MAX: usize = 500;
/// Longest wait before an MCP server that failed is connected to again.
pub const MCP_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Time that an MCP server's process has to end after its input was closed, and again after it was told to end; then it is killed
/// with its group.
pub const MCP_GRACE: Duration = Duration::from_secs(2);
/// Scopes that `[mcp.oauth]` asks for; more: the configuration is refused.
pub const MCP_SCOPES_MAX: usize = 64;
/// Bytes of one of them; more: the configuration is refused.
pub const MCP_SCOPE_BYTES_MAX: usize = 256;
/// Bytes of a login at an MCP server's authorization server, as it is kept; more: it is refused.
pub const MCP_LOGIN_BYTES_MAX: usize = 32 * 1024;
/// Bytes of what an authorization server publishes about itself; more: it is refused.
pub const MCP_ISSUER_BYTES_MAX: usize = 256 * 1024;
/// Time before its end at which an access token is refreshed; one that lasts less than twice as long, at its half.
pub const MCP_REFRESH_AHEAD: Duration = Duration::from_secs(60);
/// Longest time for one refresh of a login, finding the authorization server included; then it has failed.
pub const MCP_REFRESH_MAX: Duration = Duration::from_secs(10);
/// After this long the right to refresh a login goes to another process: whoever had it has died.
pub const MCP_REFRESH_LOCK: Duration = Duration::from_secs(15);
/// Tokens of one MCP server that a process takes out of its words; older ones are forgotten.
pub const MCP_TOKENS_MASKED_MAX: usize = 32;
/// Longest time that `mcp login` waits for the browser; then it is refused.
pub const MCP_LOGIN_WAIT_MAX: Duration = Duration::from_secs(10 * 60);
/// Bytes of the request that brings the browser back to `mcp login`; a longer one is answered with an error.
pub const MCP_REDIRECT_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a file that `files.read` reads and `files.write` and `files.edit` write; longer: refused.
pub const FILE_BYTES_MAX: usize = 1024 * 1024;
/// Entries of a directory that `files.list` shows.
pub const FILE_LISTED_MAX: usize = 1_000;
/// Lines that `files.search` shows.
pub const FILE_FOUND_MAX: usize = 200;
/// Files and directories that `files.search` looks at.
pub const FILE_SEARCHED_MAX: usize = 20_000;
/// Bytes of a URL that `fetch.get` goes to, or is redirected to; longer: refused.
pub const FETCH_URL_BYTES_MAX: usize = 8 * 1024;
/// Redirects that one `fetch.get` follows; more: an error result.
pub const FETCH_REDIRECTS_MAX: usize = 5;
/// Bytes of a query of `sql.*`; longer: refused.
pub const SQL_QUERY_BYTES_MAX: usize = 64 * 1024;
/// Parameters of a query; more: refused.
pub const SQL_PARAMETERS_MAX: usize = 100;
/// Rows of an answer that an operator may allow; more: the configuration is refused.
pub const SQL_ROWS_MAX: usize = 10_000;
/// Bytes of an answer's rows that an operator may allow; more: the configuration is refused.
pub const SQL_RESULT_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of one value that SQLite makes or reads for a query; longer: an error result.
pub const SQL_VALUE_BYTES_MAX: usize = 256 * 1024;
/// Columns of a query of SQLite; more: an error result.
pub const SQL_COLUMNS_MAX: usize = 200;
/// Bytes of a pattern of `LIKE` or `GLOB` in a query of SQLite; longer: an error result.
pub const SQL_PATTERN_BYTES_MAX: usize = 1_000;
/// Queries of one database that a process has under way; further ones wait for a place, within their time.
pub const SQL_AT_ONCE_MAX: usize = 4;
/// Bytes of an old tool result that are kept where a conversation would not fit its model's window.
pub const WINDOW_EXCERPT_BYTES: usize = 400;

const fn at_least_one(n: u32) -> NonZeroU32 {
    match NonZeroU32::new(n) {
        Some(n) => n,
        None => NonZeroU32::MIN,
    }
}
