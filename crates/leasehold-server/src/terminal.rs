//! The one door to the terminal. Nothing else in this program prints.
//!
//! Text of models, tools, arguments and errors may contain anything: escape sequences, carriage returns, marks that turn
//! the reading direction, characters without width. What goes through here is made visible first ([`Safe`]), so that no such
//! text can hide, move or imitate what this program says, an approval prompt least of all. [`Screen`] escapes everything it
//! is given, also what a caller believed harmless; only its own styles and line ends reach the terminal as control
//! characters.
//!
//! A terminal breaks a line that is too long wherever it likes, and what comes next stands at the left edge like a line of this
//! program. So [`Screen`] breaks lines itself, and everything after the first row of a line stands behind a gutter. Only the
//! commands that people copy are left whole ([`Screen::command`]).
//!
//! JSON output has the same characters written as `\uXXXX`, which is the same JSON.

use owo_colors::{OwoColorize as _, Style};
use std::{
    fmt,
    io::{self, IsTerminal as _, Write as _},
};
use unicode_general_category::{GeneralCategory, get_general_category};
use unicode_width::UnicodeWidthChar as _;

/// Columns of a terminal that does not say how many it has.
const COLUMNS_DEFAULT: usize = 80;
/// Columns that a table needs.
const TABLE_COLUMNS_MIN: usize = 60;
/// Before what continues a line.
const GUTTER: &str = "| ";
/// Combining marks in a row that are shown as they are; more could paint over other lines.
const MARKS_MAX: usize = 4;

/// Has to be made visible: controls, formats, unassigned and private characters, separators of lines, and characters that show
/// nothing.
fn is_hidden(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    let invisible = matches!(
        c,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}' | '\u{3164}'
            | '\u{ffa0}' | '\u{fe00}'..='\u{fe0d}' | '\u{e0100}'..='\u{e01ef}'
    );
    invisible
        || matches!(
            get_general_category(c),
            GeneralCategory::Control
                | GeneralCategory::Format
                | GeneralCategory::Unassigned
                | GeneralCategory::PrivateUse
                | GeneralCategory::Surrogate
                | GeneralCategory::LineSeparator
                | GeneralCategory::ParagraphSeparator
        )
}

fn is_mark(c: char) -> bool {
    !c.is_ascii() && matches!(get_general_category(c), GeneralCategory::NonspacingMark | GeneralCategory::EnclosingMark)
}

/// One line of text in which every character is visible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Safe(String);

impl Safe {
    /// Makes every hidden character visible, line ends too.
    pub(crate) fn line(text: &str) -> Self {
        let mut safe = String::with_capacity(text.len());
        let mut marks = 0;
        for c in text.chars() {
            marks = if is_mark(c) { marks + 1 } else { 0 };
            match c {
                '\n' => safe.push_str("\\n"),
                '\r' => safe.push_str("\\r"),
                '\t' => safe.push_str("\\t"),
                c if is_hidden(c) || marks > MARKS_MAX => safe.extend(c.escape_unicode()),
                c => safe.push(c),
            }
        }
        Self(safe)
    }

    /// The lines of a longer text, each safe. `\r\n` ends a line like `\n`.
    pub(crate) fn lines(text: &str) -> impl Iterator<Item = Self> {
        text.split('\n').map(|line| Self::line(line.strip_suffix('\r').unwrap_or(line)))
    }

    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Safe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// JSON on one line with every hidden character escaped.
pub(crate) fn safe_json(value: &impl serde::Serialize) -> Result<String, serde_json::Error> {
    Ok(escaped(&serde_json::to_string(value)?))
}

/// JSON without line ends between its values, with every hidden character escaped.
fn escaped(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        // Outside of strings JSON is ASCII without controls, so a hidden character is inside of one.
        if is_hidden(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                safe.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

/// How a piece of a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// As it is.
    Plain,
    /// What to read first.
    Strong,
    /// What can be skipped.
    Faint,
    /// It went well.
    Good,
    /// It needs somebody.
    Warn,
    /// It went wrong.
    Bad,
}

impl Look {
    fn paint(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Strong => Style::new().bold(),
            Self::Faint => Style::new().dimmed(),
            Self::Good => Style::new().green(),
            Self::Warn => Style::new().yellow().bold(),
            Self::Bad => Style::new().red().bold(),
        }
    }
}

/// A piece of a line.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    text: Safe,
    look: Look,
}

/// A piece of that look.
pub(crate) fn span(look: Look, text: impl AsRef<str>) -> Span {
    Span { text: Safe::line(text.as_ref()), look }
}

/// Columns that a character may take, the most of what terminals do.
fn columns(c: char) -> usize {
    // The mark that asks for an emoji makes the character before it wide.
    if c == '\u{fe0f}' { 1 } else { c.width_cjk().unwrap_or(0) }
}

/// Collects lines and prints them at once.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    out: String,
    colour: bool,
    /// Columns; none where nothing breaks a line.
    width: Option<usize>,
}

impl Screen {
    /// For a stream that shows colours or not.
    pub(crate) fn new(colour: bool) -> Self {
        Self { out: String::new(), colour, width: None }
    }
    /// For a terminal so wide.
    fn on(stream: &(impl io::IsTerminal + std::os::fd::AsFd)) -> Self {
        let terminal = stream.is_terminal();
        let columns = || rustix::termios::tcgetwinsize(stream).map_or(0, |size| usize::from(size.ws_col));
        let width = terminal.then(|| match columns() {
            0 => COLUMNS_DEFAULT,
            n => n,
        });
        Self { width, ..Self::new(colours(terminal)) }
    }
    /// For standard output as it is.
    pub(crate) fn stdout() -> Self {
        Self::on(&io::stdout())
    }
    /// For standard error as it is.
    pub(crate) fn stderr() -> Self {
        Self::on(&io::stderr())
    }

    fn paint(&mut self, text: &str, look: Look) {
        if self.colour && look != Look::Plain {
            self.out.push_str(&text.style(look.paint()).to_string());
        } else {
            self.out.push_str(text);
        }
    }

    /// One line of pieces; what does not fit in a row goes on behind a gutter.
    pub(crate) fn spans(&mut self, spans: &[Span]) -> &mut Self {
        let indent: usize = spans.iter().flat_map(|span| span.text.as_str().chars()).take_while(|c| *c == ' ').count();
        self.wrapped(spans, &format!("{:indent$}  {GUTTER}", ""))
    }

    /// On a narrow terminal the indent gives way, the gutter does not.
    fn gutter(&self, wanted: &str) -> String {
        let most = self.width.map_or(usize::MAX, |width| (width / 2).max(GUTTER.len()));
        wanted.get(wanted.len().saturating_sub(most)..).unwrap_or(GUTTER).to_owned()
    }

    /// Breaks at the last space of a row, or where the row ends; each further row begins with `before`.
    fn wrapped(&mut self, spans: &[Span], before: &str) -> &mut Self {
        let length: usize = spans.iter().flat_map(|span| span.text.as_str().chars()).map(columns).sum();
        let width = match self.width {
            Some(width) if length > width => width.max(GUTTER.len() + 2),
            _ => {
                for span in spans {
                    self.paint(span.text.as_str(), span.look);
                }
                self.out.push('\n');
                return self;
            }
        };
        let before = self.gutter(before);
        let chars: Vec<(char, Look)> =
            spans.iter().flat_map(|span| span.text.as_str().chars().map(|c| (c, span.look))).collect();
        let mut rest = chars.as_slice();
        let mut room = width;
        while !rest.is_empty() {
            let mut used = 0;
            let fits = rest.iter().take_while(|(c, _)| {
                used += columns(*c);
                used <= room
            });
            let fits = fits.count().max(1);
            // A space in the second half of the row is a good place; a long word is cut.
            let space = rest[..fits].iter().rposition(|(c, _)| *c == ' ').filter(|at| fits < rest.len() && *at > fits / 2);
            let (row, left) = rest.split_at(space.map_or(fits, |at| at + 1));
            for piece in row.chunk_by(|a, b| a.1 == b.1) {
                let text: String = piece.iter().map(|(c, _)| *c).collect();
                self.paint(&text, piece[0].1);
            }
            self.out.push('\n');
            if !left.is_empty() {
                self.paint(&before, Look::Faint);
            }
            rest = left;
            room = width - before.len();
        }
        self
    }

    /// A line to be copied: the terminal breaks it, and copying it gives it whole. Only for words of this program.
    pub(crate) fn command(&mut self, text: impl AsRef<str>) -> &mut Self {
        self.out.push_str(Safe::line(text.as_ref()).as_str());
        self.out.push('\n');
        self
    }
    /// One line.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> &mut Self {
        self.spans(&[span(Look::Plain, text)])
    }
    /// One line of that look.
    pub(crate) fn styled(&mut self, look: Look, text: impl AsRef<str>) -> &mut Self {
        self.spans(&[span(look, text)])
    }
    /// An empty line.
    pub(crate) fn gap(&mut self) -> &mut Self {
        self.out.push('\n');
        self
    }
    /// `name   value`, the value after `width` columns.
    pub(crate) fn fact(&mut self, width: usize, name: &str, value: impl AsRef<str>) -> &mut Self {
        self.spans(&[span(Look::Faint, format!("  {name:<width$}  ")), span(Look::Plain, value)])
    }
    /// Text of several lines behind a gutter that it cannot leave. At most `max` lines; how many are left out is said.
    pub(crate) fn block(&mut self, indent: usize, text: &str, max: usize) -> &mut Self {
        let gutter = self.gutter(&format!("{:indent$}{GUTTER}", ""));
        let mut left = 0;
        for (index, line) in Safe::lines(text).enumerate() {
            if index < max {
                self.wrapped(&[span(Look::Faint, &gutter), Span { text: line, look: Look::Plain }], &gutter);
            } else {
                left += 1;
            }
        }
        if left > 0 {
            let more = format!("{gutter}... {left} more line{}", if left == 1 { "" } else { "s" });
            self.styled(Look::Faint, more);
        }
        self
    }
    /// Text of several lines as it is, without a gutter: for a reader that is a program.
    pub(crate) fn lines(&mut self, text: &str) -> &mut Self {
        for line in Safe::lines(text.strip_suffix('\n').unwrap_or(text)) {
            self.spans(&[Span { text: line, look: Look::Plain }]);
        }
        self
    }
    /// A table with a line of heads. Cells are made safe here. Where columns would cut every word, each row is a line.
    pub(crate) fn table(&mut self, heads: &[&str], rows: &[Vec<String>]) -> &mut Self {
        if self.width.is_some_and(|width| width < TABLE_COLUMNS_MIN) {
            for row in rows {
                let cells: Vec<&str> = row.iter().map(String::as_str).filter(|cell| !cell.is_empty()).collect();
                self.line(cells.join("  "));
            }
            return self;
        }
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        if let Some(width) = self.width {
            // One column less: the space at the left edge is taken away below.
            table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
            table.set_width(u16::try_from(width + 1).unwrap_or(u16::MAX));
        }
        table.set_header(heads.iter().map(|head| head.to_uppercase()));
        for row in rows {
            table.add_row(row.iter().map(|cell| Safe::line(cell).0));
        }
        // An id that is cut cannot be copied.
        for (index, _) in heads.iter().enumerate().filter(|(_, head)| ["run", "token"].contains(*head)) {
            if let Some(column) = table.column_mut(index) {
                column.set_constraint(comfy_table::ColumnConstraint::ContentWidth);
            }
        }
        for line in table.lines() {
            self.out.push_str(line.trim_end().strip_prefix(' ').unwrap_or(&line));
            self.out.push('\n');
        }
        self
    }

    /// What was collected.
    pub(crate) fn into_text(self) -> String {
        self.out
    }
    /// Prints to standard output.
    pub(crate) fn print(self) -> io::Result<()> {
        write_all(&mut io::stdout().lock(), &self.out)
    }
    /// Prints to standard error; a closed one is nobody's problem.
    pub(crate) fn eprint(self) {
        write_all(&mut io::stderr().lock(), &self.out).ok();
    }
}

fn write_all(stream: &mut impl io::Write, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

/// Prints a value as one line of JSON to standard output.
pub(crate) fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    let mut json = safe_json(value).map_err(io::Error::other)?;
    json.push('\n');
    write_all(&mut io::stdout().lock(), &json)
}

/// Prints JSON of somebody else as it is written, on one line.
pub(crate) fn print_json_text(json: &str) -> io::Result<()> {
    let value: serde_json::Value = serde_json::from_str(json).map_err(io::Error::other)?;
    // A line end between its values would end the line.
    let written = json.contains(['\n', '\r', '\t']).then(|| safe_json(&value)).transpose();
    let mut safe = written.map_err(io::Error::other)?.unwrap_or_else(|| escaped(json));
    safe.push('\n');
    write_all(&mut io::stdout().lock(), &safe)
}

/// Says something on standard error.
pub(crate) fn note(text: impl AsRef<str>) {
    let mut screen = Screen::stderr();
    screen.line(text);
    screen.eprint();
}

/// Says what went wrong on standard error. The text may have several lines.
pub(crate) fn error(text: &str) {
    let mut screen = Screen::stderr();
    let mut lines = Safe::lines(text);
    let first = lines.next().unwrap_or_default();
    screen.spans(&[span(Look::Bad, "error: "), Span { text: first, look: Look::Plain }]);
    for line in lines {
        screen.spans(&[Span { text: line, look: Look::Plain }]);
    }
    screen.eprint();
}

/// Colours are wanted: a terminal, and nobody said no.
fn colours(terminal: bool) -> bool {
    let no =
        std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty()) || std::env::var_os("TERM").is_some_and(|t| t == "dumb");
    terminal && !no
}

/// A person can be asked: what is typed comes from a terminal and what is asked is seen on one.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Forgets what was typed so far: nobody answers what they have not seen. Between a card and its question.
pub(crate) fn forget_typed() -> io::Result<()> {
    if io::stdin().is_terminal() {
        rustix::termios::tcflush(io::stdin(), rustix::termios::QueueSelector::IFlush)?;
    }
    Ok(())
}

/// Asks one line; none at the end of the input.
pub(crate) fn ask(question: &str) -> io::Result<Option<String>> {
    let mut stderr = io::stderr().lock();
    stderr.write_all(Safe::line(question).as_str().as_bytes())?;
    stderr.flush()?;
    drop(stderr);
    let mut answer = String::new();
    if io::stdin().read_line(&mut answer)? == 0 {
        // Nobody ended the line of the question.
        note("");
        return Ok(None);
    }
    Ok(Some(answer.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hidden_characters_become_visible_escapes() {
        let text = "a\u{1b}[2Jb\u{7}\u{8}\r\nc\u{202e}d\u{200b}\u{feff}\u{2066}\u{61c}\u{9b}\u{ad}\u{2028}e";
        assert_eq!(
            Safe::line(text).as_str(),
            "a\\u{1b}[2Jb\\u{7}\\u{8}\\r\\nc\\u{202e}d\\u{200b}\\u{feff}\\u{2066}\\u{61c}\\u{9b}\\u{ad}\\u{2028}e"
        );
    }

    #[test]
    fn every_named_mark_is_escaped() {
        let named = ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}').chain('\u{200b}'..='\u{200f}').chain([
            '\u{61c}',
            '\u{2060}',
            '\u{feff}',
            '\u{e0041}',
            '\u{fffff}',
            '\u{378}',
        ]);
        for c in named {
            assert_eq!(Safe::line(&c.to_string()).as_str(), format!("\\u{{{:x}}}", u32::from(c)), "{c:?}");
        }
    }

    #[test]
    fn ordinary_text_of_any_script_stays_as_it_is() {
        let text = "Grüße, 価格 \u{1f680} ישוב e\u{301} \\ \"quoted\" \u{a0}";
        assert_eq!(Safe::line(text).as_str(), text);
    }

    #[test]
    fn a_pile_of_marks_is_cut_open() {
        let text = format!("a{}", "\u{301}".repeat(20));
        let safe = Safe::line(&text);
        assert_eq!(safe.as_str().matches('\u{301}').count(), MARKS_MAX);
        assert_eq!(safe.as_str().matches("\\u{301}").count(), 20 - MARKS_MAX);
    }

    #[test]
    fn a_block_cannot_leave_its_gutter() {
        let mut screen = Screen::new(false);
        screen.block(2, "one\r\ntwo\rthree\n\u{1b}[Afour\n5\n6", 3);
        assert_eq!(screen.into_text(), "  | one\n  | two\\rthree\n  | \\u{1b}[Afour\n  | ... 2 more lines\n");
    }

    #[test]
    fn colours_are_only_the_screens_own() {
        let mut screen = Screen::new(true);
        screen.styled(Look::Bad, "x\u{1b}[0my");
        let text = screen.into_text();
        assert!(text.contains("\\u{1b}[0my"), "{text:?}");
        assert!(text.starts_with("\u{1b}["), "{text:?}");
    }

    fn rows(width: usize, fill: impl for<'a> FnOnce(&'a mut Screen) -> &'a mut Screen) -> Vec<String> {
        let mut screen = Screen { width: Some(width), ..Screen::new(false) };
        fill(&mut screen);
        screen.into_text().lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_long_line_goes_on_behind_a_gutter() {
        let shown = rows(20, |screen| {
            screen.line("  one two three four five six").line("  abcdefghijklmnopqrstuvwxyz").line("as wide as it can be")
        });
        let expected =
            ["  one two three ", "    | four five six", "  abcdefghijklmnopqr", "    | stuvwxyz", "as wide as it can be"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn text_that_counts_columns_cannot_draw_a_prompt() {
        let forged = format!("fine{}  [a]pprove, [d]eny or [s]kip? ", " ".repeat(60));
        for width in 2..100 {
            let shown = rows(width, |screen| {
                screen.line(format!("  the model says: \"{forged}\"")).block(6, &forged, 9).fact(11, "why", &forged)
            });
            // Three lines begin; each other row is behind the gutter.
            let own = shown.iter().filter(|row| !row.trim_start().starts_with(GUTTER)).count();
            assert_eq!(own, 2, "{width}: {shown:#?}");
            assert!(shown.iter().all(|row| row.chars().count() <= width.max(4)), "{width}: {shown:#?}");
        }
    }

    #[test]
    fn wide_characters_count_as_wide() {
        for text in ["価格".repeat(20), "\u{1f600}".repeat(30), "\u{2764}\u{fe0f}".repeat(30), "e\u{301}".repeat(50)] {
            let shown = rows(40, |screen| screen.line(&text));
            assert!(shown.len() > 1 && shown[1..].iter().all(|row| row.starts_with("  | ")), "{shown:?}");
            assert!(shown.iter().all(|row| row.chars().map(columns).sum::<usize>() <= 40), "{shown:?}");
        }
    }

    #[test]
    fn a_command_is_left_whole_and_an_id_is_not_cut() {
        let command = format!("leasehold approve {}", "0".repeat(64));
        assert_eq!(rows(20, |screen| screen.command(&command)), [command.as_str()]);
        let id = "01a2291a-cf0b-7441-bf0e-89c7a21d5c45";
        let row = [vec![id.to_owned(), "a longer text of several words than fit".to_owned()]];
        let shown = rows(60, |screen| screen.table(&["run", "about"], &row));
        assert!(shown[1].starts_with(id) && shown.len() > 2, "{shown:#?}");
        let narrow = rows(40, |screen| screen.table(&["run", "about"], &row));
        assert!(narrow[0].starts_with(id) && narrow[1..].iter().all(|row| row.starts_with("  | ")), "{narrow:#?}");
    }

    proptest! {
        #[test]
        fn no_text_brings_a_hidden_character_through(text in any::<String>()) {
            let safe = Safe::line(&text);
            prop_assert!(!safe.as_str().chars().any(is_hidden));
            prop_assert_eq!(&Safe::line(safe.as_str()), &safe);
            let mut screen = Screen::new(false);
            screen.line(&text).block(2, &text, usize::MAX).fact(8, &text, &text).table(&["a"], &[vec![text.clone()]]);
            prop_assert!(!screen.into_text().chars().any(|c| c != '\n' && is_hidden(c)));
            let broken = rows(30, |screen| screen.line(&text));
            prop_assert!(broken.iter().skip(1).all(|row| row.trim_start().starts_with(GUTTER)));
            let joined: String = broken.iter().enumerate().map(|(n, row)| {
                if n == 0 { row.as_str() } else { row.trim_start().strip_prefix(GUTTER).unwrap_or_default() }
            }).collect();
            prop_assert_eq!(joined, safe.as_str());
        }

        #[test]
        fn a_block_has_as_many_lines_as_its_text(text in "[a-z\n\r\u{2028}\u{85}\u{b}\u{c}]{0,40}") {
            let mut screen = Screen::new(false);
            screen.block(0, &text, usize::MAX);
            let shown = screen.into_text();
            prop_assert_eq!(shown.lines().count(), text.matches('\n').count() + 1);
            prop_assert!(shown.lines().all(|line| line.starts_with("| ")));
        }

        #[test]
        fn json_means_the_same_and_hides_nothing(text in any::<String>()) {
            let json = safe_json(&text).unwrap();
            prop_assert!(!json.chars().any(is_hidden));
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }
}
