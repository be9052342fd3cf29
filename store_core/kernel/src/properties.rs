//! Property strings, Java's string hash and index keys (twin: codec/properties.py and codec/tags.py).

use std::str::FromStr;
use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::layout::*;

static INNER_NUM: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(PROPERTY_INNER_NUM));

/// The values of the properties a store cares about, and which of them there are.
#[derive(Default)]
pub struct Known<'a> {
    pub flags: u16,
    pub keys: &'a [u8],
    pub uniq_key: &'a [u8],
    pub tags: &'a [u8],
    pub delay: &'a [u8],
}

/// One pass over a property string. Name and value are never empty, the first 0x01 parts them, the last of a name counts.
#[inline]
pub fn known(properties: &[u8]) -> Known<'_> {
    let mut known = Known::default();
    let mut rest = properties;
    while !rest.is_empty() {
        let end = memchr::memchr(PROPERTY_SEPARATOR, rest).unwrap_or(rest.len());
        known.add(rest.get(..end).unwrap_or(&[]));
        rest = rest.get(end + 1..).unwrap_or(&[]);
    }
    known
}

impl<'a> Known<'a> {
    /// Whether a value holds the separator that parts it from its name.
    #[inline]
    pub fn has_parted_value(&self) -> bool {
        [self.keys, self.uniq_key, self.tags, self.delay].iter().any(|value| value.contains(&NAME_VALUE_SEPARATOR))
    }

    /// Known names have no 0x01 in them, so behind one of them it is the first.
    #[inline]
    fn add(&mut self, segment: &'a [u8]) {
        let mut take = |name: &[u8], flag: u16| {
            let value = value_of(segment, name)?;
            self.flags |= flag;
            Some(value)
        };
        // Each arm names all properties with that first letter.
        match segment.first() {
            Some(b'U') => self.uniq_key = take(PROPERTY_UNIQ_KEY, HAS_UNIQ_KEY).unwrap_or(self.uniq_key),
            Some(b'K') => self.keys = take(PROPERTY_KEYS, HAS_KEYS).unwrap_or(self.keys),
            Some(b'T') => match take(PROPERTY_TAGS, HAS_TAGS) {
                Some(value) => self.tags = value,
                None => _ = take(PROPERTY_TRAN_MSG, HAS_TRAN_MSG),
            },
            Some(b'D') => match take(PROPERTY_DELAY, HAS_DELAY) {
                Some(value) => self.delay = value,
                None => _ = take(PROPERTY_DUP_INFO, HAS_DUP_INFO),
            },
            Some(b'I') => {
                _ = take(PROPERTY_INNER_NUM, HAS_INNER_NUM)
                    .or_else(|| take(PROPERTY_INNER_MULTI_DISPATCH, HAS_INNER_MULTI_DISPATCH));
            }
            Some(b'_') => _ = take(PROPERTY_CRC32, HAS_CRC32),
            _ => {}
        }
    }
}

/// Whether a number that a broker's record check reads is none, at which it fails: the level of a delayed message, or first
/// number and count of an inner batch.
#[inline]
pub fn is_bad(is_schedule: bool, may_be_batch: bool, properties: &[u8]) -> bool {
    (is_schedule && has_bad_level(properties)) || (may_be_batch && has_bad_batch(properties))
}

/// Whether the count of an inner batch may be among some properties.
#[inline]
pub fn may_be_batch(properties: &[u8]) -> bool {
    INNER_NUM.find(properties).is_some()
}

#[cold]
fn has_bad_level(properties: &[u8]) -> bool {
    last_value(properties, PROPERTY_DELAY).is_some_and(is_no::<i32>)
}

#[cold]
fn has_bad_batch(properties: &[u8]) -> bool {
    let numbers = last_value(properties, PROPERTY_INNER_BASE).zip(last_value(properties, PROPERTY_INNER_NUM));
    numbers.is_some_and(|(base, count)| is_no::<i64>(base) || is_no::<i16>(count))
}

fn last_value<'a>(properties: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    properties.rsplit(|byte| *byte == PROPERTY_SEPARATOR).find_map(|segment| value_of(segment, name))
}

/// The value of a segment if it is a property of this name; a value is never empty.
#[inline(always)]
fn value_of<'a>(segment: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match segment.strip_prefix(name)?.split_first() {
        Some((&NAME_VALUE_SEPARATOR, value)) if !value.is_empty() => Some(value),
        _ => None,
    }
}

/// Rust and Java read numbers alike, but for digits beyond ASCII.
fn is_no<T: FromStr>(value: &[u8]) -> bool {
    str::from_utf8(value).ok().and_then(|text| text.parse::<T>().ok()).is_none()
}

/// What a queue entry holds for these tags; 0 without tags.
#[inline]
pub fn tags_code(tags: &[u8]) -> i64 {
    i64::from(hash(0, tags).cast_signed())
}

/// The DELAY property as a level; 0 when it is no positive int.
pub fn delay_level(value: &[u8]) -> i32 {
    let (is_negative, digits) = match value.split_first() {
        Some((b'-', digits)) => (true, digits),
        Some((b'+', digits)) => (false, digits),
        _ => (false, value),
    };
    let level = digits.iter().try_fold(0_i32, |level, digit| match digit {
        b'0'..=b'9' => level.checked_mul(10)?.checked_add(i32::from(digit - b'0')),
        _ => None,
    });
    if is_negative { 0 } else { level.unwrap_or(0) }
}

/// The hash an index file stores: never negative, and 0 for the one value without a positive counterpart.
#[inline]
pub fn index_hash(hash: u32) -> i32 {
    hash.cast_signed().checked_abs().unwrap_or(0)
}

/// Goes on with `String.hashCode` over `text`, UTF-8 that is decoded as Java does it.
#[inline]
pub fn hash(state: u32, text: &[u8]) -> u32 {
    if !text.is_ascii() {
        let mut state = state;
        decode_java(text, |part| part.encode_utf16().for_each(|unit| state = step(state, u32::from(unit))));
        return state;
    }
    // Four letters a step, so that one multiplication need not wait for the other.
    let (fours, rest) = text.as_chunks::<4>();
    let state = fours.iter().fold(state, |state, four| {
        let [a, b, c, d] = four.map(u32::from);
        state.wrapping_mul(31_u32.pow(4)).wrapping_add((a * 31_u32.pow(3) + b * 31_u32.pow(2)) + (c * 31 + d))
    });
    rest.iter().fold(state, |state, byte| step(state, u32::from(*byte)))
}

#[inline]
fn step(state: u32, unit: u32) -> u32 {
    state.wrapping_mul(31).wrapping_add(unit)
}

const REPLACEMENT: &str = "\u{FFFD}";

/// UTF-8 text in parts; malformed ones become U+FFFD.
///
/// Unlike Rust, Java makes one U+FFFD of an encoded surrogate, whole or cut short.
pub fn decode_java<'a>(text: &'a [u8], mut add: impl FnMut(&'a str)) {
    // How many bytes of an encoded surrogate stand in front; Rust gives them one by one.
    let mut surrogate_bytes = 0;
    for part in text.utf8_chunks() {
        if !part.valid().is_empty() {
            add(part.valid());
            surrogate_bytes = 0;
        }
        surrogate_bytes = match (surrogate_bytes, part.invalid()) {
            (1, [0xA0..=0xBF]) => 2,
            (2, [0x80..=0xBF]) => 0,
            (_, invalid) => {
                if !invalid.is_empty() {
                    add(REPLACEMENT);
                }
                u8::from(invalid == [0xED])
            }
        };
    }
}
