//! The run that a text names. The API takes whole ids, and lists show their ends.

use super::{
    Remote,
    client::Want,
    shown::{Line, Page},
};
use crate::cli::Failure;
use leasehold::{limits::PAGE_MAX, run::RunId};
use serde::Deserialize;
use std::collections::BTreeSet;

/// Pages that are looked through for the end of an id: a hundred thousand runs.
const PAGES_MAX: usize = 100;

#[derive(Debug, Deserialize)]
struct Item {
    run: Line,
}

impl Remote {
    /// Its id. An end is looked for among what the caller's lists have.
    pub(super) async fn find(&self, text: &str) -> Result<RunId, Failure> {
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        let plain: String = text.chars().filter(|c| *c != '-').collect::<String>().to_lowercase();
        if plain.len() < 4 || !plain.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(Failure::usage(format!("`{text}` is neither a run id nor the end of one (4 hex digits or more)")));
        }
        let fits = |line: &Line| line.id.to_string().replace('-', "").ends_with(&plain);
        let most = ("limit", PAGE_MAX.to_string());
        // An approver sees more in the inbox than in the list.
        let inbox: Page<Item> = self.client.get("/inbox", std::slice::from_ref(&most), Want::Json).await?.read()?;
        let mut found: BTreeSet<RunId> = inbox.items.into_iter().map(|item| item.run).filter(fits).map(|run| run.id).collect();
        let mut cursor: Option<String> = None;
        for page in 0.. {
            if page == PAGES_MAX {
                return Err(Failure::usage(format!("there are too many runs to look for `{text}`: give the whole id")));
            }
            let query: Vec<_> = [most.clone()].into_iter().chain(cursor.map(|at| ("cursor", at))).collect();
            let list: Page<Line> = self.client.get("/runs", &query, Want::Json).await?.read()?;
            found.extend(list.items.into_iter().filter(fits).map(|run| run.id));
            cursor = list.next_cursor;
            if cursor.is_none() || found.len() > 1 {
                break;
            }
        }
        match found.len() {
            0 => Err(self.no_such_run(text)),
            1 => found.pop_first().ok_or_else(|| self.no_such_run(text)),
            _ => Err(Failure::usage(format!("several runs end in `{text}`; give more of the id"))),
        }
    }

    /// There is none, or none that the caller may know of.
    pub(super) fn no_such_run(&self, text: &str) -> Failure {
        Failure::refused(format!("there is no run `{text}` on {}", self.client.url()))
    }
}
