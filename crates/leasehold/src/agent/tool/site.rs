//! A small bundled site: pages in an SQLite file of their own, to try things on without any other system. It is the far side
//! of its tools, as real as one: it commits before it answers, several processes may use it, and its created pages keep the
//! key, run and epoch of the call that made them.

mod pages;
#[cfg(test)]
mod tests;

pub use pages::{Arrival, Page, Provenance, SiteError};

use super::{
    Approval, Arguments, Preview, Previewed, ReadAnswer, ReadTool, Tool, ToolSpec, WriteAnswer, WriteEffect, WritePermit,
    WriteTool,
};
use crate::run::canonical_hash;
use async_trait::async_trait;
use pages::{Created, FIELDS, FieldValues, Pages, Updated};
use serde_json::{Value, json};
use std::{path::Path, sync::Arc, time::Duration};

/// How long one call may take: more than the database's own waiting.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of a created page's body on its preview.
const BODY_SHOWN_MAX: usize = 400;
const SLUG_PATTERN: &str = "^[a-z0-9]+(-[a-z0-9]+)*$";

/// An open site.
#[derive(Clone, Debug)]
pub struct Site {
    pages: Pages,
    shown: String,
}

/// Whether a person releases each write; both: yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteApprovals {
    /// `site.update_page_metadata`.
    pub update: Approval,
    /// `site.create_page`.
    pub create: Approval,
}

impl Default for SiteApprovals {
    fn default() -> Self {
        Self { update: Approval::Required, create: Approval::Required }
    }
}

impl Site {
    /// Opens the file; makes it, with a few pages, where there is none.
    ///
    /// # Errors
    /// The file cannot be opened or is no site.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SiteError> {
        let shown = path.as_ref().file_name().map_or_else(|| "site".into(), |name| name.to_string_lossy().into_owned());
        Ok(Self { pages: Pages::open(path.as_ref())?, shown })
    }

    /// A page, for whoever checks what happened.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn page(&self, slug: &str) -> Result<Option<Page>, SiteError> {
        self.pages.read(slug.to_owned()).await
    }

    /// All pages, by slug.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn pages(&self) -> Result<Vec<Page>, SiteError> {
        self.pages.list().await
    }

    /// Every write call that arrived and was committed, in order, whatever it was answered: for whoever counts.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn arrivals(&self) -> Result<Vec<Arrival>, SiteError> {
        self.pages.arrivals().await
    }

    /// Its tools; a person releases each write.
    pub fn tools(&self) -> Vec<Tool> {
        self.tools_with(SiteApprovals::default())
    }

    /// Its tools, with the operator's word on who releases what.
    pub fn tools_with(&self, approvals: SiteApprovals) -> Vec<Tool> {
        let page = json!({ "type": "string", "description": "The page's slug, as site.list_pages gives it", "maxLength": 200 });
        let field = json!({ "type": "string", "maxLength": 2000 });
        let fields: serde_json::Map<String, Value> = FIELDS.iter().map(|name| ((*name).to_owned(), field.clone())).collect();
        let spec = |name: &str, description: &str, properties: Value| ToolSpec {
            input: None,
            name: format!("site.{name}"),
            description: description.to_owned(),
            parameters: json!({
                "type": "object",
                "required": properties.as_object().map(|p| p.keys().cloned().collect::<Vec<_>>()),
                "properties": properties,
                "additionalProperties": false,
            }),
            source: "site".into(),
            endpoint: self.shown.clone(),
            timeout: TIMEOUT,
        };
        let list = spec("list_pages", "List the pages of the site: slug and title of each.", json!({}));
        let read = spec("read_page", "Read one page: its descriptive fields and its text.", json!({ "page": page }));
        let update = spec(
            "update_page_metadata",
            "Set descriptive fields of one page. Fields that are not named stay as they are; the text is not touched.",
            json!({
                "page": page,
                "fields": { "type": "object", "properties": fields, "additionalProperties": false, "minProperties": 1 },
            }),
        );
        let create = spec(
            "create_page",
            "Create a page. A slug that is taken is refused.",
            json!({
                "slug": { "type": "string", "pattern": SLUG_PATTERN, "maxLength": 80 },
                "title": { "type": "string", "minLength": 1, "maxLength": 200 },
                "body": { "type": "string", "maxLength": 200_000 },
            }),
        );
        vec![
            Tool::Read(Arc::new(ListPages { spec: list, pages: self.pages.clone() })),
            Tool::Read(Arc::new(ReadPage { spec: read, pages: self.pages.clone() })),
            Tool::Write(Arc::new(UpdatePage { spec: update, pages: self.pages.clone() }), approvals.update),
            Tool::Write(Arc::new(CreatePage { spec: create, pages: self.pages.clone() }), approvals.create),
        ]
    }
}

fn text(arguments: &Arguments, name: &str) -> Result<String, String> {
    arguments.get(name).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| format!("`{name}` must be a string"))
}

fn arrival(spec: &ToolSpec, permit: &WritePermit, arguments: &Arguments) -> Arrival {
    let call = Provenance {
        idempotency_key: permit.idempotency_key().to_owned(),
        run: permit.run().to_string(),
        epoch: permit.fencing_token(),
    };
    Arrival { tool: spec.name.clone(), arguments: canonical_hash(arguments), call }
}

fn no_such_page(slug: &str) -> String {
    format!("there is no page `{slug}`; site.list_pages lists them")
}

struct ListPages {
    spec: ToolSpec,
    pages: Pages,
}

#[async_trait]
impl ReadTool for ListPages {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }
    async fn call(&self, _: &Arguments) -> ReadAnswer {
        match self.pages.list().await {
            Ok(pages) => {
                let listed: Vec<Value> = pages.iter().map(|page| json!({ "page": page.slug, "title": page.title() })).collect();
                ReadAnswer::ok(listed)
            }
            Err(e) => ReadAnswer::error(e.to_string()),
        }
    }
}

struct ReadPage {
    spec: ToolSpec,
    pages: Pages,
}

#[async_trait]
impl ReadTool for ReadPage {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }
    async fn call(&self, arguments: &Arguments) -> ReadAnswer {
        let slug = match text(arguments, "page") {
            Ok(slug) => slug,
            Err(why) => return ReadAnswer::error(why),
        };
        match self.pages.read(slug.clone()).await {
            Ok(Some(page)) => ReadAnswer::ok(json!({ "page": page.slug, "fields": page.fields, "body": page.body })),
            Ok(None) => ReadAnswer::error(no_such_page(&slug)),
            Err(e) => ReadAnswer::error(e.to_string()),
        }
    }
}

struct UpdatePage {
    spec: ToolSpec,
    pages: Pages,
}

impl UpdatePage {
    /// Page and fields; the schema is checked again, because a field outside the list refuses the whole call.
    fn parsed(arguments: &Arguments) -> Result<(String, FieldValues), String> {
        let page = text(arguments, "page")?;
        let Some(fields) = arguments.get("fields").and_then(Value::as_object) else {
            return Err("`fields` must be an object".into());
        };
        let mut parsed = Vec::new();
        for (name, value) in fields {
            let Some(known) = FIELDS.iter().find(|known| *known == name) else {
                return Err(format!("`{name}` is no descriptive field; there are: {}. Nothing was changed", FIELDS.join(", ")));
            };
            let Some(value) = value.as_str() else { return Err(format!("`{name}` must be a string. Nothing was changed")) };
            parsed.push((*known, value.to_owned()));
        }
        if parsed.is_empty() {
            return Err("`fields` names no field".into());
        }
        Ok((page, parsed))
    }
}

#[async_trait]
impl WriteTool for UpdatePage {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }
    fn write_effect(&self) -> WriteEffect {
        WriteEffect::Idempotent
    }
    async fn call(&self, permit: WritePermit, arguments: &Arguments) -> WriteAnswer {
        let (page, fields) = match Self::parsed(arguments) {
            Ok(parsed) => parsed,
            Err(why) => return WriteAnswer::error(why),
        };
        let arrival = arrival(&self.spec, &permit, arguments);
        if let Err(not_held) = permit.check() {
            return WriteAnswer::NotStarted { why: not_held.to_string() };
        }
        match self.pages.update(page.clone(), fields, arrival).await {
            Ok(Updated::NoSuchPage) => WriteAnswer::error(no_such_page(&page)),
            Ok(Updated::Verified(page)) => WriteAnswer::done(json!({ "page": page.slug, "fields": page.fields })),
            Ok(Updated::Different(name)) => {
                WriteAnswer::Unknown { why: format!("`{name}` of page {page} does not read back as it was written") }
            }
            Err(e) => e.into_answer(),
        }
    }
    fn preview(&self) -> Option<&dyn Preview> {
        Some(self)
    }
}

#[async_trait]
impl Preview for UpdatePage {
    async fn preview(&self, arguments: &Arguments) -> Result<Previewed, String> {
        let (slug, fields) = Self::parsed(arguments)?;
        let page = self.pages.read(slug.clone()).await.map_err(|e| e.to_string())?.ok_or_else(|| no_such_page(&slug))?;
        let mut lines = Vec::new();
        let mut before = serde_json::Map::new();
        for (name, new) in fields {
            let old = page.field(name);
            before.insert(name.to_owned(), old.into());
            if old != new {
                lines.push(format!("{name}: {} -> {}", Value::from(old), Value::from(new)));
            }
        }
        if lines.is_empty() {
            lines.push("nothing would change".into());
        }
        Ok(Previewed { text: lines.join("\n"), precondition: Some(Value::Object(before).to_string()) })
    }
}

struct CreatePage {
    spec: ToolSpec,
    pages: Pages,
}

impl CreatePage {
    fn parsed(arguments: &Arguments) -> Result<(String, String, String), String> {
        let slug = text(arguments, "slug")?;
        let is_slug =
            slug.split('-').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()));
        if !is_slug {
            return Err(format!("`{slug}` is no slug: small letters, digits and single hyphens"));
        }
        Ok((slug, text(arguments, "title")?, text(arguments, "body")?))
    }
}

#[async_trait]
impl WriteTool for CreatePage {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }
    fn write_effect(&self) -> WriteEffect {
        WriteEffect::NonIdempotent
    }
    async fn call(&self, permit: WritePermit, arguments: &Arguments) -> WriteAnswer {
        let (slug, title, body) = match Self::parsed(arguments) {
            Ok(parsed) => parsed,
            Err(why) => return WriteAnswer::error(why),
        };
        let arrival = arrival(&self.spec, &permit, arguments);
        if let Err(not_held) = permit.check() {
            return WriteAnswer::NotStarted { why: not_held.to_string() };
        }
        match self.pages.create(slug.clone(), title, body, arrival).await {
            Ok(Created::Made) => WriteAnswer::done(json!({ "page": slug, "created": true })),
            Ok(Created::Taken) => WriteAnswer::error(format!("there is a page `{slug}` already; nothing was created")),
            Err(e) => e.into_answer(),
        }
    }
    fn preview(&self) -> Option<&dyn Preview> {
        Some(self)
    }
}

#[async_trait]
impl Preview for CreatePage {
    async fn preview(&self, arguments: &Arguments) -> Result<Previewed, String> {
        let (slug, title, body) = Self::parsed(arguments)?;
        let taken = self.pages.read(slug.clone()).await.map_err(|e| e.to_string())?.is_some();
        if taken {
            let text = format!("page {slug} exists already: creating it will be refused");
            return Ok(Previewed { text, precondition: Some("taken".into()) });
        }
        let mut shown = body.as_str();
        if shown.len() > BODY_SHOWN_MAX {
            let end = (0..=BODY_SHOWN_MAX).rev().find(|at| body.is_char_boundary(*at)).unwrap_or(0);
            shown = &body[..end];
        }
        let more =
            if shown.len() < body.len() { format!("\n[{} bytes more]", body.len() - shown.len()) } else { String::new() };
        let text = format!("page {slug}: none -> new\ntitle: {}\nbody: {}{more}", Value::from(title), Value::from(shown));
        Ok(Previewed { text, precondition: Some("free".into()) })
    }
}
