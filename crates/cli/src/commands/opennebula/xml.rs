//! What OpenNebula says in XML.

use std::io::Read as _;

use base64::Engine as _;
use roxmltree::{Document, Node};

use crate::exit::{Exit, Failure, Result};

/// Longest text, in bytes.
const TEXT_BYTES_MAX: u64 = 16 << 20;

/// Standard input, which is XML in base64.
pub(super) fn standard_input() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().take(TEXT_BYTES_MAX).read_to_string(&mut text)?;
    let plain: String = text.split_whitespace().collect();
    let bytes = base64::engine::general_purpose::STANDARD.decode(plain);
    bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| wrong("it is no base64"))
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
