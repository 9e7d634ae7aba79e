//! A query of an SQLite file. The file is opened to be read, and SQLite asks an authorizer about each thing that a statement would
//! do while it prepares it: reading is answered yes, everything else no, also what nobody thought of.

use super::{Bounds, Rows, SqlConfig, described, float};
use crate::limits::{SQL_COLUMNS_MAX, SQL_PATTERN_BYTES_MAX, SQL_VALUE_BYTES_MAX};
use rusqlite::{
    Connection, OpenFlags,
    config::DbConfig,
    hooks::{AuthAction, AuthContext, Authorization},
    limits::Limit,
    types::ValueRef,
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    path::PathBuf,
    time::{Duration, Instant},
};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

/// Pragmas that say what a table is like and change nothing.
const ABOUT_A_TABLE: [&str; 5] = ["table_info", "table_xinfo", "index_list", "index_info", "foreign_key_list"];
/// Tables that SQLite makes of the arguments of a function, or of the pragmas above.
const FUNCTIONS: [&str; 4] = ["json_each", "json_tree", "pragma_table_info", "pragma_table_xinfo"];
/// Longest wait for a file that is locked.
const BUSY_MAX: Duration = Duration::from_secs(2);
/// Steps of SQLite's machine between two looks at the clock. Nothing looks within a function.
const STEPS: i32 = 3;
/// Functions that are not called: the first loads code; the others take many seconds for two values at the limit. Of what is left the
/// slowest calls measured at the limits took 1.5 s (`GLOB` of sets), 1.1 s (`instr`) and 0.6 s (`replace`).
const NOT_CALLED: [&str; 5] = ["load_extension", "trim", "ltrim", "rtrim", "json_patch"];
/// What is wrong with a store of leasehold's, and the mend.
const IS_STORE: &str = "it is not queried: it is a store of leasehold's; name another file, or write allow_store = true";

/// A file.
#[derive(Clone, Debug)]
pub(super) struct Sqlite {
    path: PathBuf,
    tables: Option<Vec<String>>,
    allow_store: bool,
}

impl Sqlite {
    pub(super) fn new(path: PathBuf, config: &SqlConfig) -> Self {
        Self { path, tables: config.tables.clone(), allow_store: config.allow_store }
    }

    /// Why it may not be queried. A file that is not there yet, or is locked, is asked again at each call.
    pub(super) fn fit(&self) -> Result<(), String> {
        let names = self.open(Duration::ZERO).and_then(|connection| names(&connection));
        names.map_or(Ok(()), |names| self.may(&names))
    }

    pub(super) async fn query(
        &self,
        query: &str,
        parameters: &[Value],
        bounds: Bounds,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<Rows, String> {
        let (sqlite, query, parameters) = (self.clone(), query.to_owned(), parameters.to_vec());
        let stop = CancellationToken::new();
        // A caller that goes away takes its query with it.
        let _gone = stop.clone().drop_guard();
        let looked = tokio::task::spawn_blocking(move || {
            // Given back when the query has ended, however long ago its caller has.
            let _place = place;
            sqlite.look(&query, &parameters, bounds, stop)
        });
        looked.await.map_err(|_| "the look at the database broke".to_owned())?
    }

    fn open(&self, patience: Duration) -> Result<Connection, String> {
        if !self.path.is_file() {
            return Err("there is no such database file".into());
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || {
            let connection = Connection::open_with_flags(&self.path, flags)?;
            connection.busy_timeout(patience)?;
            connection.pragma_update(None, "query_only", true)?;
            connection.pragma_update(None, "trusted_schema", false)?;
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
            connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
            connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, i32::try_from(SQL_VALUE_BYTES_MAX).unwrap_or(i32::MAX))?;
            let pattern = i32::try_from(SQL_PATTERN_BYTES_MAX).unwrap_or(i32::MAX);
            connection.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, pattern)?;
            Ok(connection)
        };
        open().map_err(|e: rusqlite::Error| format!("the database cannot be opened: {e}"))
    }

    /// A store of leasehold's is told by its tables, whatever the file is called.
    fn may(&self, names: &BTreeSet<String>) -> Result<(), String> {
        let is_store = ["runs", "journal", "refinery_schema_history"].iter().all(|name| names.contains(*name));
        if is_store && !self.allow_store { Err(IS_STORE.into()) } else { Ok(()) }
    }

    fn look(&self, query: &str, parameters: &[Value], bounds: Bounds, stop: CancellationToken) -> Result<Rows, String> {
        let deadline = Instant::now() + bounds.timeout;
        let mut connection = self.open(BUSY_MAX.min(bounds.timeout))?;
        let names = names(&connection)?;
        self.may(&names)?;
        let said = |e: rusqlite::Error| said(&e, bounds.timeout);
        // The file's own tables, which are known by now, may be wider.
        connection.set_limit(Limit::SQLITE_LIMIT_COLUMN, i32::try_from(SQL_COLUMNS_MAX).unwrap_or(i32::MAX)).map_err(said)?;
        connection.progress_handler(STEPS, Some(move || stop.is_cancelled() || Instant::now() >= deadline)).map_err(said)?;
        connection.authorizer(Some(self.authorizer(names))).map_err(said)?;
        let mut statement = connection.prepare(query).map_err(said)?;
        if statement.column_count() == 0 || !statement.readonly() {
            return Err("this is no query: it has no columns".into());
        }
        let wanted = statement.parameter_count();
        if wanted != parameters.len() {
            return Err(format!("the query has {wanted} parameters, and {} are given", parameters.len()));
        }
        for (at, parameter) in (1..).zip(parameters) {
            bind(&mut statement, at, parameter).map_err(said)?;
        }
        let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let count = columns.len();
        let mut rows = Rows::new(columns, bounds);
        let mut found = statement.raw_query();
        while let Some(row) = found.next().map_err(said)? {
            let values = (0..count).map(|at| row.get_ref(at).map(value)).collect::<Result<_, _>>();
            if !rows.add(values.map_err(said)?) {
                break;
            }
        }
        Ok(rows)
    }

    /// Answers what a statement may do.
    fn authorizer(&self, names: BTreeSet<String>) -> impl for<'r> FnMut(AuthContext<'r>) -> Authorization + Send + 'static {
        let listed: Option<BTreeSet<String>> =
            self.tables.as_ref().map(|tables| tables.iter().map(|table| table.to_ascii_lowercase()).collect());
        let may_read = move |table: &str| {
            let table = table.to_ascii_lowercase();
            listed.as_ref().is_none_or(|listed| listed.contains(&table) || FUNCTIONS.contains(&table.as_str()))
        };
        move |context| {
            let may = match context.action {
                AuthAction::Select | AuthAction::Recursive => true,
                AuthAction::Function { function_name } => {
                    !NOT_CALLED.iter().any(|name| function_name.eq_ignore_ascii_case(name))
                }
                // Without a column it may be the name that a query gives to a part of itself.
                AuthAction::Read { table_name, column_name: "" } => {
                    may_read(table_name) || !names.contains(&table_name.to_ascii_lowercase())
                }
                AuthAction::Read { table_name, .. } => may_read(table_name),
                AuthAction::Pragma { pragma_name, pragma_value: Some(table) } => {
                    ABOUT_A_TABLE.contains(&pragma_name.to_ascii_lowercase().as_str()) && may_read(table)
                }
                _ => false,
            };
            if may { Authorization::Allow } else { Authorization::Deny }
        }
    }
}

/// What the file has, in small letters.
fn names(connection: &Connection) -> Result<BTreeSet<String>, String> {
    let read = || {
        let mut names = connection.prepare("SELECT lower(name) FROM sqlite_schema WHERE type IN ('table', 'view')")?;
        names.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<BTreeSet<String>>>()
    };
    read().map_err(|e| format!("the database cannot be read: {e}"))
}

fn bind(statement: &mut rusqlite::Statement<'_>, at: usize, value: &Value) -> rusqlite::Result<()> {
    match value {
        Value::Null => statement.raw_bind_parameter(at, rusqlite::types::Null),
        Value::Bool(is) => statement.raw_bind_parameter(at, is),
        Value::String(text) => statement.raw_bind_parameter(at, text),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => statement.raw_bind_parameter(at, whole),
            None => statement.raw_bind_parameter(at, number.as_f64()),
        },
        other => statement.raw_bind_parameter(at, other.to_string()),
    }
}

fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(whole) => whole.into(),
        ValueRef::Real(number) => float(number),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(bytes) => described(bytes.len()),
    }
}

/// SQLite's words, without the query, which who asked has.
fn said(error: &rusqlite::Error, timeout: Duration) -> String {
    match error {
        rusqlite::Error::MultipleStatement => "this is more than one statement; send one query".into(),
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        rusqlite::Error::SqliteFailure(code, _) if code.code == rusqlite::ErrorCode::OperationInterrupted => {
            format!("no whole answer within {timeout:?}; ask for less")
        }
        rusqlite::Error::SqliteFailure(code, _) if code.code == rusqlite::ErrorCode::AuthorizationForStatementDenied => {
            "not authorized: only reading is, of what the operator lists".into()
        }
        other => other.to_string(),
    }
}
