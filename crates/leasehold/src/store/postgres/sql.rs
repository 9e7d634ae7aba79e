//! Statements and their parameters. A statement is a file in `sql/` and names its parameters (`:lease_id`); PostgreSQL numbers
//! them, so the names become numbers once, in the order in which the code binds them. Each parameter goes with its type: that
//! makes a statement the same whether the server keeps it prepared or reads it each time (see `url`).

use std::{fmt::Write as _, sync::OnceLock};
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// One statement.
#[derive(Debug)]
pub(super) struct Sql {
    named: &'static str,
    numbered: OnceLock<String>,
}

macro_rules! statements {
    ($($name:ident = $file:literal),+ $(,)?) => {
        $(pub(super) static $name: Sql =
            Sql { named: include_str!(concat!("sql/", $file, ".sql")), numbered: OnceLock::new() };)+
    };
}

statements! {
    ANNOUNCE = "announce",
    ARTIFACT = "artifact",
    ARTIFACTS = "artifacts",
    BY_REQUEST_KEY = "by_request_key",
    CALLERS = "callers",
    CHARGE = "charge",
    DUE = "due",
    FIND = "find",
    FORGET_EFFECTS = "forget_effects",
    FORGET_WORKERS = "forget_workers",
    GUARD_OF = "guard_of",
    INSERT_RECORD = "insert_record",
    INSERT_RUN = "insert_run",
    INSPECT = "inspect",
    JOURNAL = "journal",
    KEEP = "keep",
    LAPSED = "lapsed",
    LIST = "list",
    LIST_ATTENTION = "list_attention",
    LOAD = "load",
    LOCK_BUDGET = "lock_budget",
    LOCK_SCHEMA = "lock_schema",
    LOOK = "look",
    NEXT_DUE = "next_due",
    NOTIFY = "notify",
    NOW = "now",
    OVERDUE = "overdue",
    RECORD = "record",
    RECORDS = "records",
    REMOVE_RECORD = "remove_record",
    RENEW = "renew",
    SCHEMA_VERSION = "schema_version",
    SPENT = "spent",
    TOLD = "told",
    TOUCHED = "touched",
    UNTOLD = "untold",
    UPDATE_RECORD = "update_record",
    WORKERS = "workers",
    WRITE_RUN = "write_run",
    WRITE_RUNS = "write_runs",
}

impl Sql {
    /// As the server takes it; every caller of a statement binds the same names in the same order.
    pub(super) fn text(&self, params: &Params<'_>) -> &str {
        self.numbered.get_or_init(|| number(self.named, &params.names))
    }
}

/// Replaces each `:name` by its number. A name that is not bound stays, which no server takes.
fn number(named: &str, names: &[&str]) -> String {
    let mut numbered = String::with_capacity(named.len());
    let mut rest = named;
    while let Some(colon) = rest.find(':') {
        let (before, after) = rest.split_at(colon);
        numbered.push_str(before);
        let cast = after.bytes().take_while(|b| *b == b':').count();
        let word = after[cast..].bytes().take_while(|b| b.is_ascii_lowercase() || *b == b'_').count();
        let name = &after[cast..cast + word];
        match names.iter().position(|n| *n == name) {
            Some(at) if cast == 1 => {
                // Into memory: it has no failing case.
                write!(numbered, "${}", at + 1).ok();
            }
            _ => numbered.push_str(&after[..cast + word]),
        }
        rest = &after[cast + word..];
    }
    numbered.push_str(rest);
    numbered
}

/// What a column of one type takes.
pub(super) trait Scalar: ToSql + Sync {
    /// The column's type.
    const TYPE: Type;
    /// The type of an array of such.
    const ARRAY: Type;
}

macro_rules! scalars {
    ($($rust:ty: $one:ident, $many:ident;)+) => {
        $(impl Scalar for $rust {
            const TYPE: Type = Type::$one;
            const ARRAY: Type = Type::$many;
        })+
    };
}

scalars! {
    Uuid: UUID, UUID_ARRAY;
    String: TEXT, TEXT_ARRAY;
    &str: TEXT, TEXT_ARRAY;
    i64: INT8, INT8_ARRAY;
    i32: INT4, INT4_ARRAY;
    bool: BOOL, BOOL_ARRAY;
    Vec<u8>: BYTEA, BYTEA_ARRAY;
    &[u8]: BYTEA, BYTEA_ARRAY;
}

impl<T: Scalar> Scalar for Option<T> {
    const TYPE: Type = T::TYPE;
    const ARRAY: Type = T::ARRAY;
}

impl<T: Scalar> Scalar for &T {
    const TYPE: Type = T::TYPE;
    const ARRAY: Type = T::ARRAY;
}

/// The parameters of one execution.
#[derive(Default)]
pub(super) struct Params<'a> {
    names: Vec<&'static str>,
    values: Vec<(&'a (dyn ToSql + Sync), Type)>,
}

impl<'a> Params<'a> {
    /// One more, of a scalar type.
    pub(super) fn one<T: Scalar>(&mut self, name: &'static str, value: &'a T) -> &mut Self {
        self.names.push(name);
        self.values.push((value, T::TYPE));
        self
    }

    /// One more, of an array type.
    pub(super) fn many<T: Scalar>(&mut self, name: &'static str, value: &'a Vec<T>) -> &mut Self {
        self.names.push(name);
        self.values.push((value, T::ARRAY));
        self
    }

    /// One more, of an array type, that may be missing.
    pub(super) fn any<T: Scalar>(&mut self, name: &'static str, value: &'a Option<Vec<T>>) -> &mut Self {
        self.names.push(name);
        self.values.push((value, T::ARRAY));
        self
    }

    /// Values with their types.
    pub(super) fn typed(&self) -> &[(&'a (dyn ToSql + Sync), Type)] {
        &self.values
    }
    /// The values.
    pub(super) fn values(&self) -> Vec<&'a (dyn ToSql + Sync)> {
        self.values.iter().map(|(value, _)| *value).collect()
    }
    /// The types.
    pub(super) fn types(&self) -> Vec<Type> {
        self.values.iter().map(|(_, of)| of.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn names_become_numbers_and_casts_stay() {
        let sql = number("SELECT :a_b::uuid[], :c, :a_b WHERE x::bigint = :unbound -- as: it is", &["c", "a_b"]);
        assert_eq!(sql, "SELECT $2::uuid[], $1, $2 WHERE x::bigint = :unbound -- as: it is");
    }
}
