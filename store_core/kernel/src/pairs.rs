//! All properties of a property string (twin: parse_properties of codec/properties.py).

use std::collections::HashMap;

use crate::layout::*;

/// Where a property lies in its string: name [start, middle), value [middle + 1, end).
#[derive(Clone, Copy)]
struct Pair {
    start: usize,
    middle: usize,
    end: usize,
}

impl Pair {
    #[inline(always)]
    fn name<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.start..self.middle).unwrap_or(&[])
    }

    #[inline(always)]
    fn value<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.middle + 1..self.end).unwrap_or(&[])
    }
}

/// The properties of one string, none of them twice.
#[derive(Default)]
pub struct Pairs {
    all: Vec<Pair>,
    /// A bit for each mark of a name that is there.
    marks: u64,
}

// From so many on, earlier names are looked up in a map.
const MANY_PAIRS: usize = 64;

impl Pairs {
    /// Takes in a property string, which is UTF-8, in place of the last one.
    #[inline]
    pub fn split(&mut self, text: &[u8]) {
        self.all.clear();
        self.marks = 0;
        let (mut start, mut middle) = (0, None);
        separators(text, |at, separator| {
            if separator == PROPERTY_SEPARATOR {
                self.close(text, start, middle, at);
                (start, middle) = (at + 1, None);
            } else if middle.is_none() {
                middle = Some(at);
            }
        });
        self.close(text, start, middle, text.len());
        if self.all.len() >= MANY_PAIRS {
            self.keep_last_of_name(text);
        }
    }

    /// A segment ends: a pair if it has a name and a value. Of two of a name the last counts, in the first one's place.
    #[inline(always)]
    fn close(&mut self, text: &[u8], start: usize, middle: Option<usize>, end: usize) {
        let Some(middle) = middle else { return };
        if middle == start || middle + 1 == end {
            return;
        }
        let pair = Pair { start, middle, end };
        let mark = mark(pair.name(text));
        if self.marks & mark != 0 && self.all.len() < MANY_PAIRS {
            let same = |other: &&mut Pair| other.name(text) == pair.name(text);
            if let Some(earlier) = self.all.iter_mut().find(same) {
                *earlier = pair;
                return;
            }
        }
        self.marks |= mark;
        self.all.push(pair);
    }

    #[cold]
    fn keep_last_of_name(&mut self, text: &[u8]) {
        let mut kept: Vec<Pair> = Vec::with_capacity(self.all.len());
        let mut places = HashMap::with_capacity(self.all.len());
        for pair in &self.all {
            let place = *places.entry(pair.name(text)).or_insert(kept.len());
            match kept.get_mut(place) {
                Some(earlier) => *earlier = *pair,
                None => kept.push(*pair),
            }
        }
        self.all = kept;
    }

    /// Names and values, of the text that was split.
    #[inline(always)]
    pub fn of<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.all.iter().map(|pair| (pair.name(text), pair.value(text)))
    }
}

/// Calls `found` with each separator and where it stands.
///
/// They stand so close to each other that eight bytes at a time is quicker than one search after the other.
#[inline(always)]
fn separators(text: &[u8], mut found: impl FnMut(usize, u8)) {
    let mut check = |at: usize, byte: u8| {
        if byte == NAME_VALUE_SEPARATOR || byte == PROPERTY_SEPARATOR {
            found(at, byte);
        }
    };
    let (chunks, rest) = text.as_chunks::<8>();
    for (number, chunk) in chunks.iter().enumerate() {
        let word = u64::from_le_bytes(*chunk);
        // The highest bit of each byte that is no larger than the larger separator.
        let mut marks = !(((word & !HIGHEST_BITS) + ABOVE_SEPARATORS) | word) & HIGHEST_BITS;
        while marks != 0 {
            let at = (marks.trailing_zeros() / u8::BITS) as usize;
            check(8 * number + at, chunk.get(at).copied().unwrap_or(0));
            marks &= marks - 1;
        }
    }
    for (at, byte) in rest.iter().enumerate() {
        check(8 * chunks.len() + at, *byte);
    }
}

const HIGHEST_BITS: u64 = u64::from_ne_bytes([0x80; 8]);
/// Added to seven bits, sets the highest one of what is above both separators.
const ABOVE_SEPARATORS: u64 = u64::from_ne_bytes([0x7F - PROPERTY_SEPARATOR; 8]);

/// One of 64 bits: names of one record seldom share one, and equal names always do.
#[inline(always)]
fn mark(name: &[u8]) -> u64 {
    let (first, last) = (name.first().copied().unwrap_or(0), name.last().copied().unwrap_or(0));
    let mixed = name.len() as u32 ^ u32::from(first).rotate_left(8) ^ u32::from(last).rotate_left(16);
    1 << (mixed.wrapping_mul(0x9E37_79B1) >> 26)
}
