//! Rows sorted by their key and packed, so that a scratch file holds a few bytes for each (twin: reference/derive.py).
//!
//! A row is told by what is not as the row before of its key lets expect: a byte with a bit for each such field, then each
//! one's difference, small numbers first (zigzag, 7 bits a byte). A message of a queue that is as its neighbours are takes 5.

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::derive::{ROW_SIZE, Row, nonsense};
use crate::layout::QUEUE_ENTRY_SIZE;

/// A flag byte, and at most 10 bytes a field.
const LARGEST: usize = 1 + 10 * FIELDS;
const FIELDS: usize = 6;
/// The first number of a stretch, how many there are, where the first and the last record lie.
const STRETCH_FIELDS: usize = 4;

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
    let rows = py.detach({
        let (packed, counts) = (packed.as_slice()?, counts.as_slice()?);
        move || {
            let mut rows = Vec::with_capacity(total(packed, counts)?.checked_mul(ROW_SIZE)?);
            unpack(packed, counts, |row| rows.extend_from_slice(&row.bytes()))?;
            Some(rows)
        }
    });
    Ok(rows.ok_or_else(nonsense)?.into_pyarray(py))
}

/// The same rows as an ordinary queue's entries; see `store_core.kernel.derive`.
#[pyfunction]
#[pyo3(signature = (packed, counts, /))]
pub fn unpack_entries<'py>(
    py: Python<'py>,
    packed: PyReadonlyArray1<'py, u8>,
    counts: PyReadonlyArray1<'py, i32>,
) -> PyResult<Bytes<'py>> {
    let entries = py.detach({
        let (packed, counts) = (packed.as_slice()?, counts.as_slice()?);
        move || {
            let mut entries = Vec::with_capacity(total(packed, counts)?.checked_mul(QUEUE_ENTRY_SIZE)?);
            unpack(packed, counts, |row| row.add_entry(&mut entries))?;
            Some(entries)
        }
    });
    Ok(entries.ok_or_else(nonsense)?.into_pyarray(py))
}

/// The same rows as stretches of consecutive numbers; see `store_core.kernel.derive`.
#[pyfunction]
#[pyo3(signature = (packed, counts, /))]
pub fn unpack_stretches<'py>(
    py: Python<'py>,
    packed: PyReadonlyArray1<'py, u8>,
    counts: PyReadonlyArray1<'py, i32>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let stretches = py.detach({
        let (packed, counts) = (packed.as_slice()?, counts.as_slice()?);
        move || {
            let mut stretches: Vec<[i64; STRETCH_FIELDS]> = Vec::new();
            unpack(packed, counts, |row| match stretches.last_mut() {
                Some([first, count, _, last]) if first.wrapping_add(*count) == row.queue_offset => {
                    *count += 1;
                    *last = row.phy_offset;
                }
                _ => stretches.push([row.queue_offset, 1, row.phy_offset, row.phy_offset]),
            })?;
            Some(stretches.into_flattened())
        }
    });
    Ok(stretches.ok_or_else(nonsense)?.into_pyarray(py))
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

    /// Moves a field by how far it is from what was expected.
    #[inline(always)]
    fn add(&mut self, field: u32, far: i64) {
        match field {
            0 => self.phy_offset = self.phy_offset.wrapping_add(far),
            1 => self.queue_offset = self.queue_offset.wrapping_add(far),
            2 => self.tags_code = self.tags_code.wrapping_add(far),
            3 => self.store_timestamp_ms = self.store_timestamp_ms.wrapping_add(far),
            4 => self.size_bytes = self.size_bytes.wrapping_add(far as i32),
            _ => self.batch_size = self.batch_size.wrapping_add(far as i16),
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

/// How many rows there are; None where they cannot be in so many bytes, as each takes one at least.
fn total(packed: &[u8], counts: &[i32]) -> Option<usize> {
    let add = |sum: usize, count: &i32| sum.checked_add(usize::try_from(*count).ok()?);
    counts.iter().try_fold(0, add).filter(|rows| *rows <= packed.len())
}

/// Every row, in order; None where the bytes are not of so many.
#[inline(always)]
fn unpack(packed: &[u8], counts: &[i32], mut take: impl FnMut(&Row)) -> Option<()> {
    let mut left = packed;
    for count in counts {
        let mut row = Row::FIRST;
        for _ in 0..usize::try_from(*count).ok()? {
            let mut flags = byte(&mut left).filter(|flags| flags >> FIELDS == 0)?;
            row.queue_offset = row.queue_offset.wrapping_add(1);
            while flags != 0 {
                row.add(flags.trailing_zeros(), number(&mut left)?);
                flags &= flags - 1;
            }
            take(&row);
        }
    }
    left.is_empty().then_some(())
}

#[inline(always)]
fn byte(left: &mut &[u8]) -> Option<u8> {
    let (byte, behind) = left.split_first()?;
    *left = behind;
    Some(*byte)
}

#[inline(always)]
fn number(left: &mut &[u8]) -> Option<i64> {
    let (mut value, mut shift) = (0_u64, 0);
    loop {
        let byte = byte(left)?;
        value |= u64::from(byte & 0x7F).checked_shl(shift)?;
        if byte < 0x80 {
            return Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
        shift += 7;
    }
}
