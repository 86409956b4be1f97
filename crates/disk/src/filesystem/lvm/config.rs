//! The text in which LVM keeps its metadata (libdm/libdm-config.c of LVM2): sections of names with values.

use std::iter::Peekable;
use std::str::Chars;

/// Sections and lists may be nested so deep. Metadata has 5 levels.
const DEPTH_MAX: usize = 16;

/// A value of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    Text(String),
    List(Vec<Value>),
    Section(Section),
}

/// Names with their values, in the order of the text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Section(Vec<(String, Value)>);

impl Section {
    /// The text of a whole file; `None` if it is not well-formed.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parser = Parser { rest: text.chars().peekable() };
        let section = parser.section(0)?;
        (parser.next() == Some(Token::End)).then_some(section)
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        if let Value::Number(number) = self.get(name)? { Some(*number) } else { None }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        if let Value::Text(text) = self.get(name)? { Some(text) } else { None }
    }

    pub(super) fn list(&self, name: &str) -> Option<&[Value]> {
        if let Value::List(list) = self.get(name)? { Some(list) } else { None }
    }

    pub(super) fn section(&self, name: &str) -> Option<&Self> {
        if let Value::Section(section) = self.get(name)? { Some(section) } else { None }
    }

    /// The sections in this one, with their names.
    pub(super) fn sections(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.0.iter().filter_map(|(name, value)| {
            if let Value::Section(section) = value { Some((name.as_str(), section)) } else { None }
        })
    }

    /// All texts in it, also in lists.
    pub(super) fn texts(&self) -> Vec<&str> {
        let mut found = Vec::new();
        self.0.iter().for_each(|(_, value)| value.texts(&mut found));
        found
    }
}

impl Value {
    fn texts<'a>(&'a self, found: &mut Vec<&'a str>) {
        match self {
            Self::Number(_) => {}
            Self::Text(text) => found.push(text),
            Self::List(values) => values.iter().for_each(|value| value.texts(found)),
            Self::Section(section) => found.extend(section.texts()),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    /// A name or a number.
    Word(String),
    Text(String),
    /// One of `= { } [ ] ,`
    Mark(char),
    End,
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
}

impl Parser<'_> {
    /// Names with values, up to a `}` or the end, which stays.
    fn section(&mut self, depth: usize) -> Option<Section> {
        let mut section = Section::default();
        if depth > DEPTH_MAX {
            return None;
        }
        loop {
            self.skip();
            if matches!(self.rest.peek(), None | Some('}')) {
                return Some(section);
            }
            let (Token::Word(name) | Token::Text(name)) = self.next()? else { return None };
            let value = match self.next()? {
                Token::Mark('=') => self.value(depth + 1)?,
                Token::Mark('{') => {
                    let inner = self.section(depth + 1)?;
                    (self.next()? == Token::Mark('}')).then_some(Value::Section(inner))?
                }
                _ => return None,
            };
            section.0.push((name, value));
        }
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        match self.next()? {
            Token::Text(text) => Some(Value::Text(text)),
            Token::Word(word) => Some(word.parse().map_or(Value::Text(word), Value::Number)),
            Token::Mark('[') if depth <= DEPTH_MAX => self.list(depth),
            _ => None,
        }
    }

    fn list(&mut self, depth: usize) -> Option<Value> {
        let mut values = Vec::new();
        loop {
            self.skip();
            match self.rest.peek()? {
                ']' => break,
                ',' => _ = self.rest.next(),
                _ => values.push(self.value(depth + 1)?),
            }
        }
        self.rest.next();
        Some(Value::List(values))
    }

    /// Skips blanks and comments.
    fn skip(&mut self) {
        while let Some(next) = self.rest.peek() {
            match next {
                '#' => while self.rest.next_if(|next| *next != '\n').is_some() {},
                next if next.is_whitespace() => _ = self.rest.next(),
                _ => return,
            }
        }
    }

    fn next(&mut self) -> Option<Token> {
        self.skip();
        let Some(next) = self.rest.next() else { return Some(Token::End) };
        match next {
            '=' | '{' | '}' | '[' | ']' | ',' => Some(Token::Mark(next)),
            '"' => {
                let mut text = String::new();
                loop {
                    match self.rest.next()? {
                        '"' => return Some(Token::Text(text)),
                        '\\' => text.push(self.rest.next()?),
                        other => text.push(other),
                    }
                }
            }
            first if is_of_word(first) => {
                let mut word = first.to_string();
                while let Some(next) = self.rest.next_if(|next| is_of_word(*next)) {
                    word.push(next);
                }
                Some(Token::Word(word))
            }
            _ => None,
        }
    }
}

fn is_of_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_.+-/@".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_of_a_group() {
        let text = "vg-0 {\nid = \"a-b\"\t# Hint only\nstatus = [\"READ\", \"WRITE\"]\nflags = []\nseqno = 3\n\
                    lv { segment1 { stripes = [\n\"pv0\", 17\n] } }\n}\n# by\nnote = \"a \\\"b\\\" \\\\\"\n";
        let all = Section::parse(text).unwrap();
        let (name, group) = all.sections().next().unwrap();
        assert_eq!((name, group.text("id"), group.number("seqno")), ("vg-0", Some("a-b"), Some(3)));
        assert_eq!(all.text("note"), Some("a \"b\" \\"));
        assert_eq!(group.list("flags"), Some(&[][..]));
        let stripes = group.section("lv").and_then(|lv| lv.section("segment1")?.list("stripes")).unwrap();
        assert_eq!(stripes, [Value::Text("pv0".to_owned()), Value::Number(17)]);
        assert_eq!(group.texts(), ["a-b", "READ", "WRITE", "pv0"]);
    }

    #[test]
    fn text_that_is_not_well_formed_is_refused() {
        let deep = "a = ".to_owned() + &"[".repeat(10_000);
        let nested = "a { ".repeat(10_000);
        let bad = [
            "a",
            "a =",
            "a { b = 1",
            "a = [1, 2",
            "a = \"b",
            "}",
            "a } ",
            "a = }",
            "= 3",
            "a ;",
            &deep,
            &nested,
        ];
        assert!(bad.iter().all(|text| Section::parse(text).is_none()));
        assert_eq!(Section::parse(" # nothing"), Some(Section::default()));
    }
}
