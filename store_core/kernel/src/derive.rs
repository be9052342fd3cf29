//! What follows from columns: queue entries by queue, and index entries with their chains (twin: reference/derive.py).

use std::collections::HashMap;
use std::hint::black_box;

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::layout::{
    BAD_CRC, INDEX_ENTRY_SIZE, MESSAGE, NO_INDEX_ENTRY, TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE,
};

/// Index slots that are asked for at once.
const SLOTS_AT_ONCE: usize = 64;

type Bytes<'py> = Bound<'py, PyArray1<u8>>;
type Numbers<'py> = Bound<'py, PyArray1<i32>>;

pub fn nonsense() -> PyErr {
    PyValueError::new_err("the columns do not fit each other")
}

/// Hangs an entry on its slot; gives the one it follows.
#[inline(always)]
fn hang(slots: &mut [i32], slot: usize, entry: i32) -> Option<i32> {
    slots.get_mut(slot).map(|newest| std::mem::replace(newest, entry))
}

/// What entries `first`, `first` + 1, … follow; see `store_core.kernel.derive`.
#[pyfunction]
#[pyo3(signature = (slots, slot, first, /))]
pub fn chain_entries<'py>(
    py: Python<'py>,
    mut slots: PyReadwriteArray1<'py, i32>,
    slot: PyReadonlyArray1<'py, i64>,
    first: i32,
) -> PyResult<(Numbers<'py>, usize)> {
    let (table, slot) = (slots.as_slice_mut()?, slot.as_slice()?);
    let chained = py.detach(|| {
        let mut empty = 0;
        let mut entry = first;
        let mut previous = Vec::with_capacity(slot.len());
        for slot in slot {
            let before = hang(table, usize::try_from(*slot).ok()?, entry)?;
            empty += usize::from(before == NO_INDEX_ENTRY);
            previous.push(before);
            entry = entry.checked_add(1)?;
        }
        Some((previous, empty))
    });
    let (previous, empty) = chained.ok_or_else(nonsense)?;
    Ok((previous.into_pyarray(py), empty))
}

/// Index entries as a file holds them; see `store_core.kernel.derive`.
#[pyfunction]
#[pyo3(signature = (slots, key_row, key_hash, phy_offset, store_timestamp_ms, first, begin_timestamp_ms, /))]
#[allow(clippy::too_many_arguments)] // one for each column
pub fn index_entries<'py>(
    py: Python<'py>,
    mut slots: PyReadwriteArray1<'py, i32>,
    key_row: PyReadonlyArray1<'py, u32>,
    key_hash: PyReadonlyArray1<'py, i32>,
    phy_offset: PyReadonlyArray1<'py, i64>,
    store_timestamp_ms: PyReadonlyArray1<'py, i64>,
    first: i32,
    begin_timestamp_ms: i64,
) -> PyResult<(Bytes<'py>, usize)> {
    let (table, rows, hashes) = (slots.as_slice_mut()?, key_row.as_slice()?, key_hash.as_slice()?);
    let (phy_offset, stored) = (phy_offset.as_slice()?, store_timestamp_ms.as_slice()?);
    if rows.len() != hashes.len() {
        return Err(nonsense());
    }
    let made = py.detach(|| {
        let count = u32::try_from(table.len()).ok().filter(|count| *count > 0)?;
        let mut empty = 0;
        let mut entry = first;
        let mut entries = Vec::with_capacity(rows.len().checked_mul(INDEX_ENTRY_SIZE)?);
        let mut slots = [0; SLOTS_AT_ONCE];
        for (rows, hashes) in rows.chunks(SLOTS_AT_ONCE).zip(hashes.chunks(SLOTS_AT_ONCE)) {
            // The slots lie anywhere in memory: asked for together, they are waited for together.
            for (slot, hash) in slots.iter_mut().zip(hashes) {
                *slot = (u32::try_from(*hash).ok()? % count) as usize;
            }
            black_box(slots.iter().fold(0, |all, slot| all | table.get(*slot).copied().unwrap_or(0)));
            for ((row, hash), slot) in rows.iter().zip(hashes).zip(&slots) {
                let (at, time) = (*phy_offset.get(*row as usize)?, *stored.get(*row as usize)?);
                let before = hang(table, *slot, entry)?;
                empty += usize::from(before == NO_INDEX_ENTRY);
                entries.extend_from_slice(&hash.to_be_bytes());
                entries.extend_from_slice(&at.to_be_bytes());
                entries.extend_from_slice(&seconds(time, begin_timestamp_ms).to_be_bytes());
                entries.extend_from_slice(&before.to_be_bytes());
                entry = entry.checked_add(1)?;
            }
        }
        Some((entries, empty))
    });
    let (entries, empty) = made.ok_or_else(nonsense)?;
    Ok((entries.into_pyarray(py), empty))
}

/// Whole seconds behind a begin time, as an entry stores them.
#[inline(always)]
fn seconds(stored: i64, begin: i64) -> i32 {
    if begin <= 0 {
        return 0;
    }
    i32::try_from((stored.saturating_sub(begin) / 1000).max(0)).unwrap_or(i32::MAX)
}

/// Bytes of a row that `dispatch_rows` gives: four times 8, 4, 2.
pub const ROW_SIZE: usize = 38;

/// What an entry in a queue is made of, in memory and in scratch files only: in the processor's byte order.
pub struct Row {
    pub queue_offset: i64,
    pub phy_offset: i64,
    pub tags_code: i64,
    pub store_timestamp_ms: i64,
    pub size_bytes: i32,
    pub batch_size: i16,
}

impl Row {
    #[inline(always)]
    pub fn of(bytes: &[u8; ROW_SIZE]) -> Self {
        let long = |at: usize| i64::from_ne_bytes(part(bytes, at));
        Self {
            queue_offset: long(0),
            phy_offset: long(8),
            tags_code: long(16),
            store_timestamp_ms: long(24),
            size_bytes: i32::from_ne_bytes(part(bytes, 32)),
            batch_size: i16::from_ne_bytes(part(bytes, 36)),
        }
    }

    #[inline(always)]
    pub fn bytes(&self) -> [u8; ROW_SIZE] {
        let mut row = [0; ROW_SIZE];
        row[..8].copy_from_slice(&self.queue_offset.to_ne_bytes());
        row[8..16].copy_from_slice(&self.phy_offset.to_ne_bytes());
        row[16..24].copy_from_slice(&self.tags_code.to_ne_bytes());
        row[24..32].copy_from_slice(&self.store_timestamp_ms.to_ne_bytes());
        row[32..36].copy_from_slice(&self.size_bytes.to_ne_bytes());
        row[36..].copy_from_slice(&self.batch_size.to_ne_bytes());
        row
    }

    /// Adds the entry of an ordinary queue as its files hold it (store format 6.1).
    #[inline(always)]
    pub fn add_entry(&self, entries: &mut Vec<u8>) {
        entries.extend_from_slice(&self.phy_offset.to_be_bytes());
        entries.extend_from_slice(&self.size_bytes.to_be_bytes());
        entries.extend_from_slice(&self.tags_code.to_be_bytes());
    }
}

/// The bytes of a field; all of them lie in the row.
#[inline(always)]
fn part<const SIZE: usize>(row: &[u8; ROW_SIZE], at: usize) -> [u8; SIZE] {
    row.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; SIZE])
}

/// Places of the rows with an entry, which pair each has, the pairs, the entries.
type Dispatched<'py> = (Bound<'py, PyArray1<u32>>, Numbers<'py>, Vec<(i32, i32)>, Bytes<'py>);

/// The messages that get an entry in their queue, and what it is made of; see `store_core.kernel.derive`.
#[pyfunction]
#[pyo3(signature = (kind, code, sys_flag, topic_id, queue_id, queue_offset, phy_offset, tags_code, store_timestamp_ms, size_bytes, include_bad_crc, /))]
#[allow(clippy::too_many_arguments)] // one for each column
pub fn dispatch_rows<'py>(
    py: Python<'py>,
    kind: PyReadonlyArray1<'py, u8>,
    code: PyReadonlyArray1<'py, u8>,
    sys_flag: PyReadonlyArray1<'py, i32>,
    topic_id: PyReadonlyArray1<'py, i32>,
    queue_id: PyReadonlyArray1<'py, i32>,
    queue_offset: PyReadonlyArray1<'py, i64>,
    phy_offset: PyReadonlyArray1<'py, i64>,
    tags_code: PyReadonlyArray1<'py, i64>,
    store_timestamp_ms: PyReadonlyArray1<'py, i64>,
    size_bytes: PyReadonlyArray1<'py, i64>,
    include_bad_crc: bool,
) -> PyResult<Dispatched<'py>> {
    let (kind, code, sys_flag) = (kind.as_slice()?, code.as_slice()?, sys_flag.as_slice()?);
    let (topic_id, queue_id) = (topic_id.as_slice()?, queue_id.as_slice()?);
    let (queue_offset, phy_offset) = (queue_offset.as_slice()?, phy_offset.as_slice()?);
    let (tags_code, stored) = (tags_code.as_slice()?, store_timestamp_ms.as_slice()?);
    let size_bytes = size_bytes.as_slice()?;
    let len = kind.len();
    let lengths = [code.len(), sys_flag.len(), topic_id.len(), queue_id.len(), queue_offset.len()];
    let others = [phy_offset.len(), tags_code.len(), stored.len(), size_bytes.len()];
    if lengths.into_iter().chain(others).any(|other| other != len) || u32::try_from(len).is_err() {
        return Err(nonsense());
    }
    let (picked, numbers, pairs, rows) = py.detach(|| {
        let mut pairs = Pairs::default();
        let mut picked = Vec::with_capacity(len);
        let mut numbers = Vec::with_capacity(len);
        let mut rows = Vec::with_capacity(len.saturating_mul(ROW_SIZE));
        let heads = kind.iter().zip(code).zip(sys_flag).zip(topic_id).zip(queue_id);
        let places = queue_offset.iter().zip(phy_offset).zip(tags_code).zip(stored).zip(size_bytes);
        for (at, (head, place)) in heads.zip(places).enumerate() {
            let ((((kind, code), sys_flag), topic), queue) = head;
            let ((((number, phy_offset), tags_code), stored), size) = place;
            let transaction = sys_flag & TRANSACTION_MASK;
            let has_entry = transaction == TRANSACTION_NONE || transaction == TRANSACTION_COMMIT;
            if *kind != MESSAGE || !has_entry || (*code == BAD_CRC && !include_bad_crc) {
                continue;
            }
            picked.push(at as u32); // the length has been checked
            numbers.push(pairs.number(*topic, *queue));
            let row = Row {
                queue_offset: *number,
                phy_offset: *phy_offset,
                tags_code: *tags_code,
                store_timestamp_ms: *stored,
                size_bytes: *size as i32, // a message is at most 32 MiB long
                batch_size: 1,
            };
            rows.extend_from_slice(&row.bytes());
        }
        (picked, numbers, pairs.all, rows)
    });
    Ok((picked.into_pyarray(py), numbers.into_pyarray(py), pairs, rows.into_pyarray(py)))
}

const RECENT: usize = 1024;

/// Distinct pairs in the order they first appear.
struct Pairs {
    all: Vec<(i32, i32)>,
    ids: HashMap<(i32, i32), i32>,
    /// Ids by a cheap mark of the pair; looked at first.
    recent: Vec<i32>,
}

impl Default for Pairs {
    fn default() -> Self {
        Self { all: Vec::new(), ids: HashMap::new(), recent: vec![-1; RECENT] }
    }
}

impl Pairs {
    #[inline(always)]
    fn number(&mut self, topic: i32, queue: i32) -> i32 {
        let mark = (topic as u32).wrapping_mul(0x9E37_79B1).wrapping_add(queue as u32) as usize % RECENT;
        let known = self.recent.get(mark).copied().unwrap_or(-1);
        match usize::try_from(known).ok().and_then(|id| self.all.get(id)) {
            Some(pair) if *pair == (topic, queue) => known,
            _ => self.look_up(topic, queue, mark),
        }
    }

    #[cold]
    fn look_up(&mut self, topic: i32, queue: i32, mark: usize) -> i32 {
        let next = i32::try_from(self.all.len()).unwrap_or(i32::MAX);
        let id = *self.ids.entry((topic, queue)).or_insert(next);
        if id == next {
            self.all.push((topic, queue));
        }
        if let Some(recent) = self.recent.get_mut(mark) {
            *recent = id;
        }
        id
    }
}
