//! Reports of a [`ResultFile`]: JSON, CSV, Markdown and HTML, and writing them without losing anything.

mod csv;
mod file;
mod html;
mod markdown;
mod text;

use crate::schema::ResultFile;

pub use csv::to_csv;
pub use file::{OutputError, check_writable, write_atomic};
pub use html::to_html;
pub use markdown::to_markdown;

pub(crate) use html::{STYLE, escape};
pub(crate) use text::{
    bytes_text, count_text, notes, percent_text, plural, rate_text, settings_rows, time_text, variant_text,
};

/// A report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `expertrail.result/1`.
    Json,
    /// One line per operation, and one per operation and rank.
    Csv,
    /// A table for an issue or a pull request.
    Markdown,
    /// One page with charts and no outside resource.
    Html,
}

/// The report of `result`, ending in a line feed.
///
/// # Errors
/// Only [`Format::Json`] can fail, when a number is not finite; results built by
/// [`OpRun::summarise`](crate::schema::OpRun::summarise) have none.
pub fn render(result: &ResultFile, format: Format) -> Result<String, serde_json::Error> {
    Ok(match format {
        Format::Json => to_json(result)?,
        Format::Csv => to_csv(result),
        Format::Markdown => to_markdown(result),
        Format::Html => to_html(result),
    })
}

/// Pretty JSON of `expertrail.result/1`.
///
/// # Errors
/// When a number is not finite: JSON has no word for it.
pub fn to_json(result: &ResultFile) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(result)?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn json_reads_back() {
        let result = sample::result(4);
        let text = render(&result, Format::Json).unwrap();
        assert!(text.ends_with("}\n") && text.contains("\n  \"schema\": \"expertrail.result/1\""));
        assert_eq!(ResultFile::from_json(&text).unwrap(), result);
    }
}
