//! Byte strings: bytes in a binary format; in one that people read, text where they are UTF-8, else base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// Bytes of a call or a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes<'a>(pub Cow<'a, [u8]>);

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Bytes<'a> {
        Bytes(Cow::Borrowed(bytes))
    }
}

impl<'a> From<&'a Vec<u8>> for Bytes<'a> {
    fn from(bytes: &'a Vec<u8>) -> Bytes<'a> {
        Bytes(Cow::Borrowed(bytes))
    }
}

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_bytes(&self.0);
        }
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("base64", &STANDARD.encode(&self.0))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Bytes<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return deserializer.deserialize_any(Octets);
        }
        deserializer.deserialize_byte_buf(Octets)
    }
}

struct Octets;

impl<'de> Visitor<'de> for Octets {
    type Value = Bytes<'static>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes, a text, or an object with `base64`")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        self.visit_byte_buf(bytes.to_vec())
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Self::Value, E> {
        Ok(Bytes(Cow::Owned(bytes)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        self.visit_bytes(text.as_bytes())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = seq.next_element()? {
            bytes.push(byte);
        }
        self.visit_byte_buf(bytes)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        match map.next_entry::<Cow<'_, str>, Cow<'_, str>>()? {
            Some((key, text)) if key == "base64" => {
                let bytes = STANDARD.decode(text.as_bytes()).map_err(A::Error::custom)?;
                self.visit_byte_buf(bytes)
            }
            _ => Err(A::Error::missing_field("base64")),
        }
    }
}

/// `#[serde(with = "octets")]` of a `Vec<u8>`: as [`Bytes`].
pub mod octets {
    use super::{Bytes, Deserialize, Deserializer, Serialize, Serializer};

    /// As [`Bytes`].
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        Bytes::from(bytes).serialize(serializer)
    }

    /// As [`Bytes`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        Ok(Bytes::deserialize(deserializer)?.0.into_owned())
    }
}

/// `#[serde(with = "octets_option")]` of an `Option<Vec<u8>>`: as [`Bytes`].
pub mod octets_option {
    use super::{Bytes, Deserialize, Deserializer, Serialize, Serializer};

    /// As [`Bytes`].
    pub fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
        bytes.as_ref().map(Bytes::from).serialize(serializer)
    }

    /// As [`Bytes`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
        Ok(Option::<Bytes<'_>>::deserialize(deserializer)?.map(|bytes| bytes.0.into_owned()))
    }
}
