//! What a query by key asks of its key and of one record (twins: in store_core/kernel/point.py).

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::layout::*;
use crate::properties;
use crate::record::{self, Check, i32_at, i64_at};

/// The hash under which an index holds a key of a topic.
#[pyfunction]
pub fn index_key_hash(topic: &str, key: &str) -> i32 {
    let hash = properties::hash(0, topic.as_bytes());
    properties::index_hash(properties::hash(properties::hash(hash, INDEX_KEY_JOINT), key.as_bytes()))
}

/// Whether a record certainly carries this unique key of a topic; see `store_core.kernel.point`.
#[pyfunction]
pub fn has_unique_key(bytes: &[u8], topic: &str, key: &str) -> bool {
    carries(bytes, topic, key)
}

/// The record at a place of a mapped segment, and whether it certainly carries this unique key of a topic.
#[pyfunction]
#[pyo3(signature = (segment, at, topic, key, /))]
pub fn mapped_record<'py>(
    py: Python<'py>,
    segment: PyReadonlyArray1<'py, u8>,
    at: usize,
    topic: &str,
    key: &str,
) -> PyResult<Option<(Bound<'py, PyBytes>, bool)>> {
    let rest = segment.as_slice()?.get(at..).unwrap_or(&[]);
    let Some(record) = record::prefix(rest).and_then(|(size, magic)| {
        let left = i64::try_from(rest.len()).unwrap_or(i64::MAX);
        let (size, _) = record::check_prefix(size, magic, left).ok()?;
        rest.get(..size)
    }) else {
        return Ok(None);
    };
    Ok(Some((PyBytes::new(py, record), carries(record, topic, key))))
}

fn carries(bytes: &[u8], topic: &str, key: &str) -> bool {
    let Check::Record(head) = record::check_record(bytes, i64::try_from(bytes.len()).unwrap_or(0)) else {
        return false;
    };
    let part = |at: usize, length: usize| bytes.get(at..at + length).unwrap_or(&[]);
    head.size == bytes.len()
        && head.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
        && part(head.topic_at, head.topic_length) == topic.as_bytes()
        && properties::known(part(head.properties_at, head.properties_length)).uniq_key == key.as_bytes()
        && !key.is_empty()
}

/// What a broker takes from an index file for a hash, and the file's begin time; see `store_core.kernel.point`.
#[pyfunction]
#[pyo3(signature = (file, slots, key_hash, begin_ms, end_ms, limit, /))]
pub fn index_offsets(
    file: PyReadonlyArray1<'_, u8>,
    slots: u32,
    key_hash: u32,
    begin_ms: i64,
    end_ms: i64,
    limit: usize,
) -> PyResult<(i64, Vec<i64>)> {
    let file = file.as_slice()?;
    let Some((header, _)) = file.split_at_checked(INDEX_HEADER_SIZE) else {
        return Ok((0, Vec::new()));
    };
    let begin = i64_at(header, INDEX_BEGIN_TIMESTAMP_AT).unwrap_or(0);
    let query = Query { key_hash, begin_ms: i128::from(begin_ms), end_ms: i128::from(end_ms), limit };
    Ok((begin, query.offsets(file, slots, i128::from(begin)).unwrap_or_default()))
}

struct Query {
    key_hash: u32,
    begin_ms: i128, // wide enough for any begin time and any seconds
    end_ms: i128,
    limit: usize,
}

impl Query {
    /// The offsets, newest first; None where the chain does not begin.
    fn offsets(&self, file: &[u8], slots: u32, begin: i128) -> Option<Vec<i64>> {
        let count = i32_at(file, INDEX_COUNT_AT)?;
        if self.begin_ms > i128::from(i64_at(file, INDEX_END_TIMESTAMP_AT)?) || self.end_ms < begin || count <= 1 {
            return None;
        }
        let slot = usize::try_from(self.key_hash.checked_rem(slots)?).ok()?;
        let entries_at = INDEX_HEADER_SIZE + usize::try_from(slots).ok()? * INDEX_SLOT_SIZE;
        let mut number = i32_at(file, INDEX_HEADER_SIZE + slot * INDEX_SLOT_SIZE)?;
        let mut found = Vec::new();
        if number > count {
            return None;
        }
        while number > 0 && found.len() < self.limit {
            let at = entries_at + usize::try_from(number).ok()? * INDEX_ENTRY_SIZE;
            let Some(entry) = file.get(at..at + INDEX_ENTRY_SIZE) else {
                break;
            };
            let seconds = i32_at(entry, INDEX_SECONDS_AT)?;
            let time_ms = begin + i128::from(seconds) * 1000;
            if seconds < 0 {
                break;
            }
            let is_wanted = i32_at(entry, INDEX_KEY_HASH_AT)?.cast_unsigned() == self.key_hash;
            if is_wanted && (self.begin_ms..=self.end_ms).contains(&time_ms) {
                found.push(i64_at(entry, INDEX_PHY_OFFSET_AT)?);
            }
            let previous = i32_at(entry, INDEX_PREVIOUS_AT)?;
            if time_ms < self.begin_ms || previous >= number {
                break;
            }
            number = previous;
        }
        Some(found)
    }
}
