//! What OpenNebula says in XML.

use std::io::Read as _;

use base64::Engine as _;
use roxmltree::{Document, Node};

use crate::exit::{Exit, Failure, Result};

/// Longest text, in bytes.
const TEXT_BYTES_MAX: u64 = 16 << 20;

/// What OpenNebula says, and the words behind it. Its managers hand it over as the first word or on standard input, in
/// base64 or as it is, each action in its own way.
pub(super) fn told<'a>(words: &'a [&'a str]) -> Result<(String, &'a [&'a str])> {
    if let [first, rest @ ..] = words
        && let Some(text) = plain(first)
    {
        return Ok((text, rest));
    }
    standard_input().map(|text| (text, words))
}

/// Standard input: XML, as it is or in base64.
pub(super) fn standard_input() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().take(TEXT_BYTES_MAX).read_to_string(&mut text)?;
    plain(&text).ok_or_else(|| wrong("it is neither XML nor XML in base64"))
}

/// The XML that `text` is, or has in base64.
fn plain(text: &str) -> Option<String> {
    let text = text.trim();
    if text.starts_with('<') {
        return Some(text.to_owned());
    }
    let packed: String = text.split_whitespace().collect();
    let bytes = base64::engine::general_purpose::STANDARD.decode(packed).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    text.trim_start().starts_with('<').then_some(text)
}

/// Parses it, and gives `read` its root.
pub(super) fn parse<T>(text: &str, read: impl FnOnce(Node<'_, '_>) -> Result<T>) -> Result<T> {
    let document = Document::parse(text).map_err(|error| wrong(&error.to_string()))?;
    read(document.root_element())
}

fn wrong(why: &str) -> Failure {
    Failure::new(Exit::Usage, format!("what OpenNebula says can't be read: {why}"))
}

/// The text at `path`, whose parts are separated by slashes; `None` if it is missing or empty.
pub(super) fn text(node: Node<'_, '_>, path: &str) -> Option<String> {
    let found = path.split('/').try_fold(node, |node, name| child(node, name))?;
    let text: String = found.children().filter_map(|child| child.text()).collect();
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The number at `path`.
pub(super) fn number(node: Node<'_, '_>, path: &str) -> Option<u64> {
    text(node, path)?.parse().ok()
}

/// The first child with this name.
pub(super) fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.has_tag_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xml_is_read_in_both_forms_and_words_are_not_taken_for_it() {
        let packed = base64::engine::general_purpose::STANDARD.encode("<A><B>c</B></A>");
        let folded = format!("{}\n{}\n", &packed[..8], &packed[8..]);
        for text in ["<A><B>c</B></A>", " \n<A><B>c</B></A>\n", &packed, &folded] {
            assert_eq!(plain(text).as_deref(), Some("<A><B>c</B></A>"), "{text}");
        }
        for word in ["", "0", "1234", "h:/var/lib/one/datastores/100/0", "raw"] {
            assert_eq!(plain(word), None, "{word}");
        }
        let words = [packed.as_str(), "100"];
        assert_eq!(told(&words).ok(), Some(("<A><B>c</B></A>".to_owned(), &words[1..])));
    }
}
