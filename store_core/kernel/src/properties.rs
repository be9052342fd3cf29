//! Property strings, Java's string hash and index keys (twin: twin_properties.py).

use crate::layout::*;

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
    let mut start = 0;
    let mut separator = None;
    for at in memchr::memchr2_iter(NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, properties) {
        if properties.get(at) == Some(&NAME_VALUE_SEPARATOR) {
            separator = separator.or(Some(at));
        } else {
            known.add(properties, start, separator, at);
            start = at + 1;
            separator = None;
        }
    }
    known.add(properties, start, separator, properties.len());
    known
}

impl<'a> Known<'a> {
    #[inline]
    fn add(&mut self, properties: &'a [u8], start: usize, separator: Option<usize>, end: usize) {
        let Some(separator) = separator else { return };
        let (Some(name), Some(value)) = (properties.get(start..separator), properties.get(separator + 1..end)) else {
            return;
        };
        if value.is_empty() {
            return;
        }
        self.flags |= match name {
            PROPERTY_UNIQ_KEY => {
                self.uniq_key = value;
                HAS_UNIQ_KEY
            }
            PROPERTY_KEYS => {
                self.keys = value;
                HAS_KEYS
            }
            PROPERTY_TAGS => {
                self.tags = value;
                HAS_TAGS
            }
            PROPERTY_DELAY => {
                self.delay = value;
                HAS_DELAY
            }
            PROPERTY_INNER_MULTI_DISPATCH => HAS_INNER_MULTI_DISPATCH,
            PROPERTY_INNER_NUM => HAS_INNER_NUM,
            PROPERTY_DUP_INFO => HAS_DUP_INFO,
            PROPERTY_CRC32 => HAS_CRC32,
            PROPERTY_TRAN_MSG => HAS_TRAN_MSG,
            _ => 0,
        };
    }
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

const POWERS: [u32; 8] = {
    let mut powers = [1_u32; 8];
    let mut i = 7;
    #[allow(clippy::indexing_slicing)] // in a constant: checked when compiled
    while i > 0 {
        powers[i - 1] = powers[i].wrapping_mul(31);
        i -= 1;
    }
    powers
};
const EIGHT_STEPS: u32 = 31_u32.wrapping_pow(8);

/// Goes on with `String.hashCode` over `text`, UTF-8 that is decoded as Java does it.
#[inline]
pub fn hash(state: u32, text: &[u8]) -> u32 {
    if !text.is_ascii() {
        let mut state = state;
        decode_java(text, |unit| state = step(state, u32::from(unit)));
        return state;
    }
    let mut chunks = text.chunks_exact(8);
    let state = chunks.by_ref().fold(state, |state, chunk| {
        let sum = chunk
            .iter()
            .zip(POWERS)
            .fold(0_u32, |sum, (byte, power)| sum.wrapping_add(u32::from(*byte).wrapping_mul(power)));
        state.wrapping_mul(EIGHT_STEPS).wrapping_add(sum)
    });
    chunks.remainder().iter().fold(state, |state, byte| step(state, u32::from(*byte)))
}

#[inline]
fn step(state: u32, unit: u32) -> u32 {
    state.wrapping_mul(31).wrapping_add(unit)
}

const REPLACEMENT: u16 = 0xFFFD;

/// The UTF-16 units of UTF-8 text; malformed parts become U+FFFD.
///
/// Unlike Rust, Java makes one U+FFFD of an encoded surrogate, whole or cut short.
fn decode_java(text: &[u8], mut unit: impl FnMut(u16)) {
    // How many bytes of an encoded surrogate stand in front; Rust gives them one by one.
    let mut surrogate_bytes = 0;
    for part in text.utf8_chunks() {
        if !part.valid().is_empty() {
            part.valid().encode_utf16().for_each(&mut unit);
            surrogate_bytes = 0;
        }
        surrogate_bytes = match (surrogate_bytes, part.invalid()) {
            (1, [0xA0..=0xBF]) => 2,
            (2, [0x80..=0xBF]) => 0,
            (_, invalid) => {
                if !invalid.is_empty() {
                    unit(REPLACEMENT);
                }
                u8::from(invalid == [0xED])
            }
        };
    }
}
