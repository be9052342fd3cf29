//! Searching in bytes without frames: for heads, for zeros, and checksums that do not get slow on hostile bytes.

use crc32fast::Hasher;
use memchr::memmem::Finder;

use crate::layout::*;

/// Finds the magics in a window, from front to back, each byte looked at once for each.
pub struct Magics {
    record: Finder<'static>,
    blank: Finder<'static>,
    /// The record magic found last, if it is still ahead; the window's length when there is none any more.
    next_record: Option<usize>,
}

const BLANK_BYTES: [u8; 4] = MAGIC_BLANK.to_be_bytes();

impl Magics {
    pub fn new() -> Self {
        Self { record: Finder::new(&RECORD_MAGIC_START), blank: Finder::new(&BLANK_BYTES), next_record: None }
    }

    /// The first index at or behind `from` where a magic may stand. `from` never goes back.
    pub fn next(&mut self, data: &[u8], from: usize) -> Option<usize> {
        let record = match self.next_record {
            Some(at) if at >= from => at,
            _ => self.record.find(data.get(from..)?).map_or(data.len(), |at| from + at),
        };
        self.next_record = Some(record);
        let blank = data.get(from..record).and_then(|bytes| self.blank.find(bytes));
        match blank {
            Some(at) => Some(from + at),
            None if record < data.len() => Some(record),
            None => None,
        }
    }
}

const CHUNK: usize = 64;

/// How many zeros `bytes` begin with.
pub fn leading_zeros(bytes: &[u8]) -> usize {
    let whole = bytes.chunks_exact(CHUNK).take_while(|chunk| **chunk == [0; CHUNK]).count() * CHUNK;
    whole + bytes.get(whole..).unwrap_or(&[]).iter().take_while(|byte| **byte == 0).count()
}

/// How many zeros `bytes` end with.
pub fn trailing_zeros(bytes: &[u8]) -> usize {
    let whole = bytes.rchunks_exact(CHUNK).take_while(|chunk| **chunk == [0; CHUNK]).count() * CHUNK;
    let rest = bytes.get(..bytes.len().saturating_sub(whole)).unwrap_or(&[]);
    whole + rest.iter().rev().take_while(|byte| **byte == 0).count()
}

/// Where the first run of ZERO_RUN or more zeros begins.
pub fn long_zero_run(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..) {
        let zero = memchr::memchr(0, rest)?;
        let length = leading_zeros(rest.get(zero..)?);
        if length >= ZERO_RUN {
            return Some(at + zero);
        }
        at += zero + length;
    }
    None
}

const STEP: usize = 4096;
const LONG: usize = 16 * STEP;

/// Checksums of any ranges of a window at a price that does not grow with their length.
///
/// Hostile bytes can hold very many heads that claim very large bodies.
#[derive(Default)]
pub struct Checksums {
    /// CRC of the window's first i * STEP bytes.
    steps: Vec<u32>,
}

impl Checksums {
    pub fn of(&mut self, data: &[u8], from: usize, to: usize) -> Option<u32> {
        let range = data.get(from..to)?;
        if range.len() < LONG {
            return Some(crate::record::checksum(range));
        }
        let in_front = self.of_first(data, from)?;
        let whole = self.of_first(data, to)?;
        // Both are sums over GF(2): combining them leaves what lies between.
        let mut hasher = Hasher::new_with_initial_len(in_front, from as u64);
        hasher.combine(&Hasher::new_with_initial_len(whole, range.len() as u64));
        Some(hasher.finalize())
    }

    fn of_first(&mut self, data: &[u8], to: usize) -> Option<u32> {
        let step = to / STEP;
        while self.steps.len() <= step {
            let crc = match self.steps.last() {
                None => 0,
                Some(crc) => extend(*crc, data.get((self.steps.len() - 1) * STEP..self.steps.len() * STEP)?),
            };
            self.steps.push(crc);
        }
        Some(extend(*self.steps.get(step)?, data.get(step * STEP..to)?))
    }
}

fn extend(crc: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}
