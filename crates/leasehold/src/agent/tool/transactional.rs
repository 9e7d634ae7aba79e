//! Transactional tools: writes to the **same database** that the record of the run is in. What such a tool does is committed in the very
//! transaction that journals its outcome, under the guard of the lease. There are both or neither, whoever dies when: the call is exactly
//! once, no fence ever stands for it and it is never in doubt.
//!
//! ```
//! use leasehold::{
//!     agent::tool::{Approval, transactional::{Called, SqliteTransaction, sqlite_tool}},
//!     store::transaction::rusqlite::params,
//! };
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//!
//! #[derive(Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! struct Booking {
//!     account: String,
//!     cents: i64,
//! }
//!
//! // The table is this program's own, in the file of the store; it was made before, by another connection.
//! let book = sqlite_tool(
//!     "ledger.book",
//!     "Book an amount on an account",
//!     Approval::Required,
//!     |transaction: &SqliteTransaction, called: Called, booking: Booking| {
//!         let sql = "INSERT INTO bookings (key, account, cents) VALUES (?1, ?2, ?3)";
//!         transaction.execute(sql, params![called.idempotency_key, booking.account, booking.cents])?;
//!         Ok(format!("booked {} cents", booking.cents).into())
//!     },
//! );
//! assert_eq!(book.tool().spec().parameters["required"], serde_json::json!(["account", "cents"]));
//! ```
//!
//! On PostgreSQL the function is async, and has [`PostgresTransaction`] for its statements:
//!
//! ```
//! use leasehold::agent::tool::{Approval, transactional::{Called, PostgresTransaction, postgres_tool}};
//! # #[derive(serde::Deserialize, schemars::JsonSchema)]
//! # struct Booking { account: String, cents: i64 }
//!
//! let book = postgres_tool(
//!     "ledger.book",
//!     "Book an amount on an account",
//!     Approval::Required,
//!     |transaction: PostgresTransaction, called: Called, booking: Booking| async move {
//!         let sql = "INSERT INTO bookings (key, account, cents) VALUES ($1, $2, $3)";
//!         transaction.execute(sql, &[&called.idempotency_key, &booking.account, &booking.cents]).await?;
//!         Ok(format!("booked {} cents", booking.cents).into())
//!     },
//! );
//! # book.tool();
//! ```
//!
//! What it may do in the transaction: read and change rows of tables that are not leasehold's. A statement that names one of those, ends
//! the transaction or changes a schema is refused, and the call with it. The function may be begun again from its beginning (the
//! journal grew, a deadlock), so whatever it does **beside** its statements is not covered. An `Err` is the tool's no: nothing is there, the
//! outcome is `not_applied`, and the model is told why.
//!
//! It is bounded by [`TRANSACTION_MAX`](crate::limits::TRANSACTION_MAX). On SQLite it holds the file's write lock while it runs, so
//! every other commit waits: statements are ended at the bound, and a function that waits for anything else in between holds everybody up
//! for as long as it waits. On PostgreSQL nobody waits for it but who wants the same rows of its tables.
//!
//! Approval, preview, budgets and four eyes are those of any write. Its effect is shown as `non_idempotent_write`, because a second
//! call is a second effect; one call is never in doubt.

use super::{
    Approval, Arguments, Preview, Previewed, Tool, ToolSpec,
    rust::{RustPreview, spec, typed},
};
use crate::{
    limits,
    run::{CallId, RunId},
};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{fmt, sync::Arc, time::Duration};

pub use crate::worker::{PostgresTransaction, SqliteTransaction, Undone, Work};

/// A write to the database that the record of the run is in.
pub trait TransactionalTool: Send + Sync {
    /// What it is. Its timeout is the time that its transaction may take, at most [`TRANSACTION_MAX`](crate::limits::TRANSACTION_MAX).
    fn spec(&self) -> &ToolSpec;
    /// What is done in the transaction. It changes nothing by itself: whoever holds the lease has it done.
    fn work(&self, called: Called, arguments: Arguments) -> Work;
    /// Says what would change, for the person who decides.
    fn preview(&self) -> Option<&dyn Preview> {
        None
    }
}

/// Which call it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// The run.
    pub run: RunId,
    /// The call.
    pub call: CallId,
    /// Of this call and no other: `lh-` and 32 hexadecimal digits.
    pub idempotency_key: String,
}

type WorkFn = dyn Fn(Called, Arguments) -> Work + Send + Sync;

/// A write on the embedded store, from a function. It holds the file's write lock, so it must not wait for anything.
pub fn sqlite_tool<T, F>(name: &str, description: &str, approval: Approval, work: F) -> RustTransactional
where
    T: JsonSchema + DeserializeOwned,
    F: Fn(&SqliteTransaction, Called, T) -> Result<Value, Undone> + Send + Sync + 'static,
{
    let function = Arc::new(work);
    let work = move |called: Called, arguments: Arguments| {
        let function = Arc::clone(&function);
        Work::Sqlite(Arc::new(move |transaction| {
            let typed = typed(arguments.clone()).map_err(Undone::Refused)?;
            function(transaction, called.clone(), typed)
        }))
    };
    RustTransactional::new::<T>(name, description, approval, Arc::new(work))
}

/// A write on PostgreSQL, from an async function.
pub fn postgres_tool<T, F, Fut>(name: &str, description: &str, approval: Approval, work: F) -> RustTransactional
where
    T: JsonSchema + DeserializeOwned + Send,
    F: Fn(PostgresTransaction, Called, T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Value, Undone>> + Send + 'static,
{
    let function = Arc::new(work);
    let work = move |called: Called, arguments: Arguments| {
        let function = Arc::clone(&function);
        Work::Postgres(Arc::new(move |transaction| match typed(arguments.clone()) {
            Ok(typed) => Box::pin(function(transaction, called.clone(), typed)),
            Err(why) => Box::pin(std::future::ready(Err(Undone::Refused(why)))),
        }))
    };
    RustTransactional::new::<T>(name, description, approval, Arc::new(work))
}

/// A transactional write before it is a [`Tool`].
#[derive(Clone)]
pub struct RustTransactional {
    spec: ToolSpec,
    approval: Approval,
    work: Arc<WorkFn>,
    preview: Option<RustPreview>,
}

impl RustTransactional {
    fn new<T: JsonSchema>(name: &str, description: &str, approval: Approval, work: Arc<WorkFn>) -> Self {
        let endpoint = format!("{name} in this program, in the database of the store");
        let spec = ToolSpec { timeout: limits::TRANSACTION_MAX, endpoint, ..spec::<T>(name, description) };
        Self { spec, approval, work, preview: None }
    }
    /// With less time than [`TRANSACTION_MAX`](crate::limits::TRANSACTION_MAX).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.spec.timeout = timeout;
        self
    }
    /// With a preview for the person who decides. It changes nothing.
    pub fn preview<T, F, Fut>(mut self, preview: F) -> Self
    where
        T: DeserializeOwned + Send,
        F: Fn(T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Previewed, String>> + Send + 'static,
    {
        self.preview = Some(RustPreview::new(preview));
        self
    }
    /// For the registry.
    pub fn tool(self) -> Tool {
        let approval = self.approval;
        Tool::Transactional(Arc::new(self), approval)
    }
}

impl From<RustTransactional> for Tool {
    fn from(tool: RustTransactional) -> Self {
        tool.tool()
    }
}

impl fmt::Debug for RustTransactional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spec.name)
    }
}

impl TransactionalTool for RustTransactional {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }
    fn work(&self, called: Called, arguments: Arguments) -> Work {
        (self.work)(called, arguments)
    }
    fn preview(&self) -> Option<&dyn Preview> {
        self.preview.as_ref().map(|preview| preview as &dyn Preview)
    }
}
