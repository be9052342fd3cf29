//! Rows sorted by their key and packed, so that a scratch file holds a few bytes for each (twin: twin_derive.py).
//!
//! A row is told by what is not as the row before of its key lets expect: a byte with a bit for each such field, then each
//! one's difference, small numbers first (zigzag, 7 bits a byte). A message of a queue that is as its neighbours are takes 5.

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::derive::{ROW_SIZE, Row, nonsense};

/// A flag byte, and at most 10 bytes a field.
const LARGEST: usize = 1 + 10 * FIELDS;
const FIELDS: usize = 6;

type Bytes<'py> = Bound<'py, PyArray1<u8>>;
type Numbers<'py> = Bound<'py, PyArray1<i32>>;

/// Ids of the keys that have rows, how many rows each has, and how many packed bytes.
#[derive(Default)]
struct Groups {
    ids: Vec<i32>,
    counts: Vec<i32>,
    sizes: Vec<i32>,
}

/// Rows of some keys, packed; see `store_core.kernel.derive`.
#[pyfunction]
#[pyo3(signature = (parts, key_ids, keys, /))]
pub fn pack_rows<'py>(
    py: Python<'py>,
    parts: Vec<PyReadonlyArray1<'py, u8>>,
    key_ids: Vec<PyReadonlyArray1<'py, i32>>,
    keys: usize,
) -> PyResult<(Bytes<'py>, Numbers<'py>, Numbers<'py>, Numbers<'py>)> {
    let parts = parts.iter().map(|part| part.as_slice()).collect::<Result<Vec<_>, _>>()?;
    let key_ids = key_ids.iter().map(|ids| ids.as_slice()).collect::<Result<Vec<_>, _>>()?;
    let fits = parts.len() == key_ids.len()
        && parts.iter().zip(&key_ids).all(|(part, ids)| ids.len().checked_mul(ROW_SIZE) == Some(part.len()));
    if !fits {
        return Err(nonsense());
    }
    let packed = py.detach(|| {
        let (sorted, counts) = sorted(&parts, &key_ids, keys)?;
        packed(&sorted, &counts)
    });
    let (packed, groups) = packed.ok_or_else(nonsense)?;
    let Groups { ids, counts, sizes } = groups;
    Ok((packed.into_pyarray(py), ids.into_pyarray(py), counts.into_pyarray(py), sizes.into_pyarray(py)))
}

/// The rows of packed groups that lie back to back; see `store_core.kernel.derive`.
#[pyfunction]
#[pyo3(signature = (packed, counts, /))]
pub fn unpack_rows<'py>(
    py: Python<'py>,
    packed: PyReadonlyArray1<'py, u8>,
    counts: PyReadonlyArray1<'py, i32>,
) -> PyResult<Bytes<'py>> {
    let (packed, counts) = (packed.as_slice()?, counts.as_slice()?);
    let rows = py.detach(|| unpacked(packed, counts)).ok_or_else(nonsense)?;
    Ok(rows.into_pyarray(py))
}

/// Every row goes where those of its key in front of it, and those of keys before its own, leave it.
fn sorted(parts: &[&[u8]], key_ids: &[&[i32]], keys: usize) -> Option<(Vec<u8>, Vec<i32>)> {
    let mut counts = vec![0_i32; keys];
    for id in key_ids.iter().copied().flatten() {
        *counts.get_mut(usize::try_from(*id).ok()?)? += 1;
    }
    let mut next = Vec::with_capacity(keys);
    let mut end = 0_usize;
    for count in &counts {
        next.push(end);
        end = end.checked_add(usize::try_from(*count).ok()?.checked_mul(ROW_SIZE)?)?;
    }
    let mut sorted = vec![0; end];
    for (part, ids) in parts.iter().zip(key_ids) {
        for (row, id) in part.chunks_exact(ROW_SIZE).zip(ids.iter()) {
            let at = next.get_mut(usize::try_from(*id).ok()?)?;
            sorted.get_mut(*at..*at + ROW_SIZE)?.copy_from_slice(row);
            *at += ROW_SIZE;
        }
    }
    Some((sorted, counts))
}

fn packed(sorted: &[u8], counts: &[i32]) -> Option<(Vec<u8>, Groups)> {
    let mut rows = sorted.as_chunks::<ROW_SIZE>().0.iter();
    let mut packed = Vec::with_capacity(sorted.len() / 3);
    let mut groups = Groups::default();
    for (id, count) in (0..).zip(counts).filter(|(_, count)| **count > 0) {
        let start = packed.len();
        let mut before = Row::FIRST;
        for bytes in rows.by_ref().take(usize::try_from(*count).ok()?) {
            let row = Row::of(bytes);
            add(&mut packed, &before, &row);
            before = row;
        }
        groups.ids.push(id);
        groups.counts.push(*count);
        groups.sizes.push(i32::try_from(packed.len() - start).ok()?);
    }
    Some((packed, groups))
}

impl Row {
    /// What stands in front of a group's first row.
    const FIRST: Self =
        Self { queue_offset: -1, phy_offset: 0, tags_code: 0, store_timestamp_ms: 0, size_bytes: 0, batch_size: 1 };

    /// How far the fields are from what the row before lets expect.
    #[inline(always)]
    fn behind(&self, before: &Self) -> [i64; FIELDS] {
        [
            self.phy_offset.wrapping_sub(before.phy_offset),
            self.queue_offset.wrapping_sub(before.queue_offset).wrapping_sub(1),
            self.tags_code.wrapping_sub(before.tags_code),
            self.store_timestamp_ms.wrapping_sub(before.store_timestamp_ms),
            i64::from(self.size_bytes) - i64::from(before.size_bytes),
            i64::from(self.batch_size) - i64::from(before.batch_size),
        ]
    }

    /// The row that is so far from what this one lets expect.
    #[inline(always)]
    fn next(&self, far: &[i64; FIELDS]) -> Self {
        Self {
            phy_offset: self.phy_offset.wrapping_add(far[0]),
            queue_offset: self.queue_offset.wrapping_add(1).wrapping_add(far[1]),
            tags_code: self.tags_code.wrapping_add(far[2]),
            store_timestamp_ms: self.store_timestamp_ms.wrapping_add(far[3]),
            size_bytes: self.size_bytes.wrapping_add(far[4] as i32),
            batch_size: self.batch_size.wrapping_add(far[5] as i16),
        }
    }
}

#[inline(always)]
fn add(packed: &mut Vec<u8>, before: &Row, row: &Row) {
    let mut room = [0; LARGEST];
    let mut flags = 0;
    let mut end = 1;
    for (field, far) in row.behind(before).into_iter().enumerate() {
        if far == 0 {
            continue;
        }
        flags |= 1 << field;
        let mut left = ((far << 1) ^ (far >> 63)) as u64;
        while left >= 0x80 {
            put(&mut room, &mut end, left as u8 | 0x80);
            left >>= 7;
        }
        put(&mut room, &mut end, left as u8);
    }
    room[0] = flags;
    packed.extend_from_slice(room.get(..end).unwrap_or(&[]));
}

/// The next byte; there is room for all that a row can take.
#[inline(always)]
fn put(room: &mut [u8; LARGEST], end: &mut usize, byte: u8) {
    if let Some(place) = room.get_mut(*end) {
        *place = byte;
    }
    *end += 1;
}

fn unpacked(packed: &[u8], counts: &[i32]) -> Option<Vec<u8>> {
    let mut rows = Vec::new();
    let mut bytes = packed.iter().copied();
    for count in counts {
        let mut row = Row::FIRST;
        let count = usize::try_from(*count).ok().filter(|count| *count <= bytes.len())?; // a row has a byte at least
        rows.reserve(count * ROW_SIZE);
        for _ in 0..count {
            let flags = bytes.next()?;
            let mut far = [0; FIELDS];
            for (field, far) in far.iter_mut().enumerate() {
                if flags & (1 << field) != 0 {
                    *far = number(&mut bytes)?;
                }
            }
            row = row.next(&far);
            rows.extend_from_slice(&row.bytes());
        }
    }
    bytes.next().is_none().then_some(rows)
}

#[inline(always)]
fn number(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let (mut value, mut shift) = (0_u64, 0);
    loop {
        let byte = bytes.next()?;
        value |= u64::from(byte & 0x7F).checked_shl(shift)?;
        if byte < 0x80 {
            return Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
        shift += 7;
    }
}
