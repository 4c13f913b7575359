//! The digest of a value: 64 bits over its serialised form, without a buffer in between.
//!
//! Variants count by name, fields by their order, numbers by their value, texts and byte strings with their length. A variant may be
//! added anywhere; a field that is added changes the digests of its struct, and with them what earlier records are held
//! against. It tells values apart that differ by accident; nothing protects it from somebody who looks for two that collide.

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::num::NonZeroU64;

/// Digest of the arguments or the reply of a call. Shown as 16 hex digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(NonZeroU64);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Readers of JSON hold numbers beyond 2^53 as others.
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => serializer.serialize_u64(self.0.get()),
        }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let number = match deserializer.is_human_readable() {
            true => {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                u64::from_str_radix(&text, 16).map_err(de::Error::custom)?
            }
            false => u64::deserialize(deserializer)?,
        };
        NonZeroU64::new(number).map(Digest).ok_or_else(|| de::Error::custom("a digest is not 0"))
    }
}

/// What was found out about a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Its digest.
    pub digest: Digest,
    /// Bytes of its texts, byte strings and numbers; handles and lengths are not counted.
    pub bytes: u64,
}

/// Digest and size of a value.
#[inline]
pub fn measure(value: &impl Serialize) -> Measured {
    let mut mixer = Mixer { state: 0x9e37_79b9_7f4a_7c15, bytes: 0, uncounted: 0 };
    // It never fails: a value of this crate that refuses to be serialised would have a digest of what came before.
    let _ = value.serialize(&mut mixer);
    let digest = Digest(NonZeroU64::new(mixer.state).unwrap_or(NonZeroU64::MAX));
    Measured { digest, bytes: mixer.bytes }
}

/// Takes a value in, word by word.
struct Mixer {
    state: u64,
    bytes: u64,
    /// How many newtypes that do not count surround what comes.
    uncounted: u32,
}

impl Mixer {
    /// Each step is a bijection of the state: two values that differ in one word never come to the same.
    #[inline]
    fn word(&mut self, word: u64) {
        self.state = (self.state.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.state ^= self.state >> 32;
    }

    #[inline]
    fn number(&mut self, word: u64, bytes: u64) {
        self.word(word);
        if self.uncounted == 0 {
            self.bytes += bytes;
        }
    }

    /// In one step: most calls are a name and a number or two.
    #[inline]
    fn name(&mut self, name: &'static str) {
        let (words, rest) = name.as_bytes().as_chunks::<8>();
        let start = name.len() as u64 ^ rest_word(rest);
        self.word(words.iter().fold(start, |folded, word| {
            (folded ^ u64::from_le_bytes(*word)).wrapping_mul(0xc4ce_b9fe_1a85_ec53).rotate_left(29)
        }));
    }

    #[inline]
    fn content(&mut self, content: &[u8]) {
        self.bytes += content.len() as u64;
        self.word(content.len() as u64);
        let (words, rest) = content.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        self.word(rest_word(rest));
    }
}

/// Up to seven bytes as one word, the first lowest. By shifts: a copy of so few bytes is a call of `memcpy`, and names are many.
#[inline]
fn rest_word(rest: &[u8]) -> u64 {
    rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

type Never = de::value::Error;
type Done = Result<(), Never>;

macro_rules! numbers {
    ($($method:ident($type:ty)),*) => { $(
        #[inline]
        fn $method(self, value: $type) -> Done {
            self.number(value as u64, size_of::<$type>() as u64);
            Ok(())
        }
    )* };
}

impl Serializer for &mut Mixer {
    type Ok = ();
    type Error = Never;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    numbers!(
        serialize_bool(bool),
        serialize_i8(i8),
        serialize_i16(i16),
        serialize_i32(i32),
        serialize_i64(i64),
        serialize_u8(u8),
        serialize_u16(u16),
        serialize_u32(u32),
        serialize_u64(u64),
        serialize_char(char)
    );

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_f32(self, value: f32) -> Done {
        self.number(value.to_bits().into(), 4);
        Ok(())
    }

    fn serialize_f64(self, value: f64) -> Done {
        self.number(value.to_bits(), 8);
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Done {
        self.content(value.as_bytes());
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Done {
        self.content(value);
        Ok(())
    }

    fn serialize_none(self) -> Done {
        self.word(0);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Done {
        self.word(1);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Done {
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Done {
        Ok(())
    }

    #[inline]
    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Done {
        self.name(variant);
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Done {
        let uncounted = u32::from(name == "Handle");
        self.uncounted += uncounted;
        value.serialize(&mut *self)?;
        self.uncounted -= uncounted;
        Ok(())
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Done {
        self.name(variant);
        value.serialize(self)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self, Never> {
        self.word(len.map_or(u64::MAX, |len| len as u64));
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Never> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Never> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self, Never> {
        self.name(variant);
        Ok(self)
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self, Never> {
        self.serialize_seq(len)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Never> {
        Ok(self)
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self, Never> {
        self.name(variant);
        Ok(self)
    }
}

macro_rules! compounds {
    ($($trait:ident: $($method:ident($($name:ident: $type:ty),*)),+;)*) => { $(
        impl $trait for &mut Mixer {
            type Ok = ();
            type Error = Never;
            $(
                #[inline]
                fn $method<T: Serialize + ?Sized>(&mut self, $($name: $type,)* value: &T) -> Done {
                    value.serialize(&mut **self)
                }
            )+
            #[inline]
            fn end(self) -> Done {
                Ok(())
            }
        }
    )* };
}

compounds! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeMap: serialize_key(), serialize_value();
    SerializeStruct: serialize_field(_name: &'static str);
    SerializeStructVariant: serialize_field(_name: &'static str);
}
