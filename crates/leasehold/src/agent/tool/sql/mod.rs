//! `sql.<name>`: a query of a database of the operator's, as a tool that reads.
//!
//! That it only reads is the database's own doing and rests on no look at the text: PostgreSQL is given the query as that of a cursor
//! in a transaction that is read only and always rolled back, on a connection that nobody uses afterwards; SQLite opens the file to
//! read it and asks us about each thing that a statement would do. Rows, bytes and time are bounded, and what was left out is said.

mod config;
mod postgres;
mod sqlite;

pub use config::{SqlConfig, SqlError};

use super::{Arguments, ReadAnswer, ReadTool, Tool, ToolSpec};
use crate::limits::{SQL_AT_ONCE_MAX, SQL_PARAMETERS_MAX, SQL_QUERY_BYTES_MAX};
use async_trait::async_trait;
use config::Place;
use postgres::Postgres;
use serde_json::{Map, Value, json};
use sqlite::Sqlite;
use std::{path::Path, sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How much of an answer there may be.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    timeout: Duration,
    rows: usize,
    bytes: usize,
}

/// Builds the tool from configuration.
#[derive(Debug)]
pub struct SqlTool;

impl SqlTool {
    /// Says what is wrong with the configuration wherever it is used.
    ///
    /// # Errors
    /// The key that is wrong and the mend.
    pub fn check(config: &SqlConfig) -> Result<(), SqlError> {
        config.place(Path::new("/"), |_| None).map(|_| ())
    }

    /// The tool, to be called. `base`: what a relative path is relative to.
    ///
    /// # Errors
    /// The key that is wrong and the mend; that the variable of `url_env` is not set among them.
    pub fn open(config: &SqlConfig, base: &Path, env: impl Fn(&str) -> Option<String>) -> Result<Tool, SqlError> {
        let database = match config.place(base, env)? {
            Place::Sqlite(path) => Database::Sqlite(Sqlite::new(path, config)),
            Place::Postgres(url) => {
                let postgres = Postgres::new(&url, config).map_err(|why| SqlError { key: config.url_key(), why })?;
                Database::Postgres(Box::new(postgres))
            }
            Place::Unset(variable) => {
                return Err(SqlError { key: "url_env", why: format!("the environment variable {variable} is not set") });
            }
        };
        Ok(tool(config, database))
    }

    /// The tool, to be known by its name and schema; nothing is called.
    pub fn declare(config: &SqlConfig) -> Tool {
        tool(config, Database::None)
    }

    /// Asks the database whether it may be offered; no answer within the time is no reason against it, since each call asks again.
    /// Blocks.
    ///
    /// # Errors
    /// Why it may not, and the mend.
    pub fn fit(
        config: &SqlConfig,
        base: &Path,
        env: impl Fn(&str) -> Option<String>,
        patience: Duration,
    ) -> Result<(), String> {
        match config.place(base, env) {
            Ok(Place::Sqlite(path)) => Sqlite::new(path, config).fit(),
            Ok(Place::Postgres(url)) => {
                let postgres = Postgres::new(&url, config)?;
                let asked = std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
                    let fit = runtime.block_on(async { tokio::time::timeout(patience, postgres.fit()).await.ok() });
                    // A name that is still being looked up would be waited for.
                    runtime.shutdown_background();
                    fit
                });
                asked.join().ok().flatten().unwrap_or(Ok(()))
            }
            Ok(Place::Unset(_)) | Err(_) => Ok(()),
        }
    }
}

fn tool(config: &SqlConfig, database: Database) -> Tool {
    let dialect = if config.is_sqlite() { "SQLite" } else { "PostgreSQL" };
    let mut description = config.description.clone().unwrap_or_else(|| format!("Query the database `{}`.", config.name));
    let placeholder = if config.is_sqlite() { "?1, ?2" } else { "$1, $2" };
    description.push_str(&format!(
        "\nOne read-only query in the SQL of {dialect}; values go into `parameters` and are {placeholder} in it."
    ));
    if let Some(tables) = &config.tables {
        description.push_str(&format!("\nTables: {}.", tables.join(", ")));
    }
    let bounds = config.bounds();
    let spec = ToolSpec {
        name: format!("sql.{}", config.name),
        description,
        parameters: json!({
            "type": "object",
            "properties": {
                "query": { "type": "string", "minLength": 1, "maxLength": SQL_QUERY_BYTES_MAX },
                "parameters": {
                    "type": "array",
                    "maxItems": SQL_PARAMETERS_MAX,
                    "items": { "type": ["string", "number", "boolean", "null"] },
                },
            },
            "required": ["query"],
            "additionalProperties": false,
        }),
        input: None,
        source: "sql".into(),
        endpoint: config.endpoint(),
        timeout: bounds.timeout,
    };
    Tool::Read(Arc::new(Sql { spec, bounds, database, places: Arc::new(Semaphore::new(SQL_AT_ONCE_MAX)) }))
}

enum Database {
    Postgres(Box<Postgres>),
    Sqlite(Sqlite),
    /// Not of this process.
    None,
}

struct Sql {
    spec: ToolSpec,
    bounds: Bounds,
    database: Database,
    places: Arc<Semaphore>,
}

impl Sql {
    async fn query(&self, query: &str, parameters: &[Value]) -> Result<Value, String> {
        if query.len() > SQL_QUERY_BYTES_MAX {
            return Err(format!("the query is longer than {SQL_QUERY_BYTES_MAX} bytes"));
        }
        if parameters.len() > SQL_PARAMETERS_MAX {
            return Err(format!("there are more than {SQL_PARAMETERS_MAX} parameters"));
        }
        // Never closed.
        let place: Option<OwnedSemaphorePermit> = Arc::clone(&self.places).acquire_owned().await.ok();
        let answer = match &self.database {
            Database::Postgres(postgres) => postgres.query(query, parameters, self.bounds).await,
            Database::Sqlite(sqlite) => sqlite.query(query, parameters, self.bounds, place).await,
            Database::None => Err("this process does not query it".into()),
        };
        answer.map(Rows::into_value)
    }
}

#[async_trait]
impl ReadTool for Sql {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, arguments: &Arguments) -> ReadAnswer {
        // The schema has asked for it.
        let query = arguments.get("query").and_then(Value::as_str).unwrap_or_default();
        let parameters = arguments.get("parameters").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let timeout = self.bounds.timeout;
        let answer = crate::agent::patience::within(timeout, self.query(query, parameters)).await;
        match answer.unwrap_or_else(|| Err(format!("no whole answer within {timeout:?}; ask for less"))) {
            Ok(result) => ReadAnswer::ok(result),
            Err(why) => ReadAnswer::error(why),
        }
    }
}

/// Rows as they come, up to the bounds.
#[derive(Debug)]
struct Rows {
    columns: Vec<String>,
    rows: Vec<Value>,
    bounds: Bounds,
    bytes: usize,
    cut: Option<String>,
}

impl Rows {
    fn new(columns: Vec<String>, bounds: Bounds) -> Self {
        let bytes = columns.iter().map(String::len).sum();
        Self { columns, rows: Vec::new(), bounds, bytes, cut: None }
    }

    /// Takes a row in; false: it was too much, and no more are wanted.
    fn add(&mut self, row: Vec<Value>) -> bool {
        let row = Value::Array(row);
        let bytes = self.bytes + row.to_string().len() + 1;
        if self.rows.len() == self.bounds.rows {
            self.cut_at(format!("only the first {} rows", self.bounds.rows));
        } else if bytes > self.bounds.bytes {
            self.cut_for_bytes();
        } else {
            self.bytes = bytes;
            self.rows.push(row);
        }
        self.cut.is_none()
    }

    fn cut_for_bytes(&mut self) {
        let (rows, max) = (self.rows.len(), self.bounds.bytes);
        self.cut_at(format!(
            "only the first {rows} rows: with the next one there are more than {max} bytes; ask for fewer or shorter columns"
        ));
    }

    fn cut_at(&mut self, why: String) {
        self.cut = Some(why);
    }

    fn into_value(self) -> Value {
        let mut result = Map::new();
        result.insert("columns".into(), self.columns.into());
        result.insert("rows".into(), self.rows.into());
        result.insert("truncated".into(), self.cut.is_some().into());
        if let Some(note) = self.cut {
            result.insert("note".into(), note.into());
        }
        result.into()
    }
}

/// A number where JSON has it, otherwise its text.
fn float(number: f64) -> Value {
    serde_json::Number::from_f64(number).map_or_else(|| number.to_string().into(), Value::Number)
}

/// Bytes are described.
fn described(bytes: usize) -> Value {
    json!({ "bytes": bytes })
}
