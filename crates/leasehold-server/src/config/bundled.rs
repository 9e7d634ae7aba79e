//! `[tool.fetch]`: a tool that reads for an agent where the operator says so. Off unless it stands in the file.

use super::{
    check::Checker,
    diagnostic::ConfigError,
    effective::{Fetch, Origin},
    file::File,
};
use leasehold::agent::tool::fetch::Fetch as FetchTool;

/// What `[tool.fetch]` adds.
pub(super) const FETCH_TOOL: &str = "fetch.get";

impl Checker<'_> {
    pub(super) fn fetch(&self, file: &File) -> Result<Option<Fetch>, ConfigError> {
        let Some(spanned) = &file.tool.fetch else { return Ok(None) };
        let config = spanned.get_ref().clone();
        FetchTool::tool(&config).map_err(|e| self.key_error(spanned, e.key, e.to_string()))?;
        Ok(Some(Fetch { config, origin: Origin::File(self.place(spanned)) }))
    }
}
