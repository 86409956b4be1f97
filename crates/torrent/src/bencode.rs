//! Bencoding (BEP 3): numbers, strings, lists and dictionaries.
//!
//! Only the one right form of a value is accepted: keys ascend, numbers have no zeros in front. So encoding what was
//! decoded gives the same bytes, on which the name of a torrent depends. That is why no crate for serde does it: they
//! drop the keys that a type does not have.

use std::collections::BTreeMap;

use base::{Error, ErrorKind, Result};

/// Deepest nesting that is read; metainfo needs five levels.
const DEPTH_MAX: u32 = 16;

/// A dictionary; its keys ascend as bytes do.
pub type Dictionary = BTreeMap<Vec<u8>, Value>;

/// A bencoded value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(i64),
    /// A string of bytes.
    Bytes(Vec<u8>),
    /// Values in their order.
    List(Vec<Value>),
    /// Values by name.
    Dictionary(Dictionary),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<Dictionary> for Value {
    fn from(dictionary: Dictionary) -> Self {
        Self::Dictionary(dictionary)
    }
}

/// A dictionary of these entries, in any order.
pub(crate) fn dictionary<const N: usize>(entries: [(&str, Value); N]) -> Dictionary {
    entries.into_iter().map(|(key, value)| (key.as_bytes().to_vec(), value)).collect()
}

impl Value {
    /// The encoded value.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.append(&mut out);
        out
    }

    fn append(&self, out: &mut Vec<u8>) {
        match self {
            Self::Number(number) => out.extend(format!("i{number}e").into_bytes()),
            Self::Bytes(bytes) => append_bytes(bytes, out),
            Self::List(list) => {
                out.push(b'l');
                list.iter().for_each(|value| value.append(out));
                out.push(b'e');
            }
            Self::Dictionary(entries) => {
                out.push(b'd');
                for (key, value) in entries {
                    append_bytes(key, out);
                    value.append(out);
                }
                out.push(b'e');
            }
        }
    }

    /// The value that `bytes` are.
    ///
    /// # Errors
    /// `Malformed` if they are not one value in its one right form, or it is nested too deeply.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader { rest: bytes };
        let value = reader.value(DEPTH_MAX)?;
        match reader.rest {
            [] => Ok(value),
            _ => Err(malformed("bytes follow")),
        }
    }

    /// The number that this is.
    #[must_use]
    pub fn number(&self) -> Option<i64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// The bytes that this is.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    /// The dictionary that this is.
    #[must_use]
    pub fn entries(&self) -> Option<&Dictionary> {
        if let Self::Dictionary(entries) = self { Some(entries) } else { None }
    }

    /// The value of `key`, if this is a dictionary that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries()?.get(key.as_bytes())
    }
}

fn append_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend(bytes.len().to_string().into_bytes());
    out.push(b':');
    out.extend_from_slice(bytes);
}

fn malformed(why: &str) -> Error {
    Error::new(ErrorKind::Malformed, format!("a bencoded value is wrong: {why}"))
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: u32) -> Result<Value> {
        let depth = depth.checked_sub(1).ok_or_else(|| malformed("it is nested too deeply"))?;
        match self.rest.first() {
            Some(b'i') => {
                self.rest = &self.rest[1..];
                self.number(b'e').map(Value::Number)
            }
            Some(b'l') => {
                self.rest = &self.rest[1..];
                let mut list = Vec::new();
                while !self.ends() {
                    list.push(self.value(depth)?);
                }
                Ok(Value::List(list))
            }
            Some(b'd') => {
                self.rest = &self.rest[1..];
                let mut entries = Dictionary::new();
                while !self.ends() {
                    let key = self.string()?.to_vec();
                    if entries.last_key_value().is_some_and(|(last, _)| *last >= key) {
                        return Err(malformed("keys do not ascend"));
                    }
                    entries.insert(key, self.value(depth)?);
                }
                Ok(Value::Dictionary(entries))
            }
            Some(b'0'..=b'9') => self.string().map(|bytes| Value::Bytes(bytes.to_vec())),
            _ => Err(malformed("it ends early, or begins with none of `i`, `l`, `d` and digits")),
        }
    }

    /// Whether the end of a list or dictionary is next, which is then taken.
    fn ends(&mut self) -> bool {
        let ends = self.rest.first() == Some(&b'e');
        if ends {
            self.rest = &self.rest[1..];
        }
        ends
    }

    fn string(&mut self) -> Result<&'a [u8]> {
        let len =
            usize::try_from(self.number(b':')?).map_err(|_| malformed("a string of negative length"))?;
        let (bytes, rest) =
            self.rest.split_at_checked(len).ok_or_else(|| malformed("a string ends early"))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// A number and the `end` behind it.
    fn number(&mut self, end: u8) -> Result<i64> {
        // The longest one has a sign and 19 digits.
        let len = self.rest.iter().take(21).position(|&byte| byte == end);
        let digits = &self.rest[..len.ok_or_else(|| malformed("a number has no end"))?];
        let text =
            std::str::from_utf8(digits).map_err(|_| malformed("a number has other bytes than digits"))?;
        let number: i64 = text.parse().map_err(|_| malformed("this is not a number"))?;
        // Refuses `+1`, `-0` and `01`.
        if number.to_string() != text {
            return Err(malformed("a number has more digits than it needs"));
        }
        self.rest = &self.rest[digits.len() + 1..];
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values() -> impl Strategy<Value = Value> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..8);
        let leaf = prop_oneof![any::<i64>().prop_map(Value::Number), bytes().prop_map(Value::Bytes)];
        leaf.prop_recursive(4, 32, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
                proptest::collection::btree_map(bytes(), inner, 0..4).prop_map(Value::Dictionary),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(value in values()) {
            prop_assert_eq!(Value::decode(&value.encode()).unwrap(), value);
        }

        #[test]
        fn what_is_decoded_has_one_form(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(value) = Value::decode(&bytes) {
                prop_assert_eq!(value.encode(), bytes);
            }
        }
    }

    #[test]
    fn the_example_of_the_specification() {
        let value = Value::decode(b"d3:cow3:moo4:spaml1:a1:bee").unwrap();
        assert_eq!(value.get("cow").unwrap().bytes(), Some(&b"moo"[..]));
        assert_eq!(value.get("spam"), Some(&Value::List(vec!["a".into(), "b".into()])));
    }

    #[test]
    fn other_forms_are_refused() {
        let deep = [vec![b'l'; 20], vec![b'e'; 20]].concat();
        for wrong in [
            &b""[..],
            b"i01e",
            b"i-0e",
            b"i+1e",
            b"ie",
            b"01:a",
            b"-1:a",
            b"3:ab",
            b"99999999999999999999:a",
            b"le0:",
        ] {
            assert!(Value::decode(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
        assert!(Value::decode(b"d1:b0:1:a0:e").is_err() && Value::decode(b"d1:a0:1:a0:e").is_err());
        assert!(Value::decode(&deep).is_err());
    }
}
