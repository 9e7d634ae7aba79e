//! `[tool.fetch]` and `[[tool.sql]]`: tools that read for an agent where the operator says so. Off unless they stand in the file.

use super::{
    check::Checker,
    diagnostic::ConfigError,
    effective::{Fetch, Origin, Sql},
    file::File,
};
use leasehold::agent::tool::{fetch::Fetch as FetchTool, sql::SqlTool};
use std::collections::HashMap;

/// What `[tool.fetch]` adds.
pub(super) const FETCH_TOOL: &str = "fetch.get";

impl Checker<'_> {
    pub(super) fn fetch(&self, file: &File) -> Result<Option<Fetch>, ConfigError> {
        let Some(spanned) = &file.tool.fetch else { return Ok(None) };
        let config = spanned.get_ref().clone();
        FetchTool::tool(&config).map_err(|e| self.key_error(spanned, e.key, e.to_string()))?;
        Ok(Some(Fetch { config, origin: Origin::File(self.place(spanned)) }))
    }

    pub(super) fn sql(&self, file: &File) -> Result<Vec<Sql>, ConfigError> {
        let mut seen: HashMap<&str, String> = HashMap::new();
        let mut all = Vec::with_capacity(file.tool.sql.len());
        for spanned in &file.tool.sql {
            let config = spanned.get_ref();
            SqlTool::check(config).map_err(|e| self.key_error(spanned, e.key, format!("database `{}`: {e}", config.name)))?;
            let place = self.key_place(spanned, "name");
            if let Some(other) = seen.insert(&config.name, place.clone()) {
                let what = format!("two databases are named `{}`; the other one is at {other}", config.name);
                return Err(ConfigError::new(place, what).mend("rename one"));
            }
            all.push(Sql {
                config: config.clone(),
                base: self.base(),
                place: self.place(spanned),
                url_place: self.key_place(spanned, if config.url.is_some() { "url" } else { "url_env" }),
            });
        }
        Ok(all)
    }
}
