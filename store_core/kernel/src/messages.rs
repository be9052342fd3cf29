//! The messages that a run of queue entries points to (twin: in store_core/kernel/entry_runs.py).

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::layout::*;
use crate::properties;
use crate::record::{self, Check, Head, i32_at, i64_at};

/// Adds the messages of the entries behind those that `found` has; gives what to read next.
#[pyfunction]
#[pyo3(signature = (entries, window, window_phy_offset, found, /))]
pub fn add_messages(
    entries: &[u8],
    window: &[u8],
    window_phy_offset: i64,
    found: &Bound<'_, PyList>,
) -> PyResult<(i64, i64)> {
    let py = found.py();
    let (entries, _) = entries.as_chunks::<QUEUE_ENTRY_SIZE>();
    let entries = entries.get(found.len()..).unwrap_or(&[]);
    let mut topic = (&[] as &[u8], PyString::new(py, ""));
    for (number, entry) in entries.iter().enumerate() {
        let Some((phy_offset, size)) = place(entry) else {
            return Ok((0, 0));
        };
        let at = phy_offset.checked_sub(window_phy_offset).and_then(|at| usize::try_from(at).ok());
        let bytes = usize::try_from(size).unwrap_or(0);
        let Some(record) = at.and_then(|at| window.get(at..at.checked_add(bytes)?)) else {
            return Ok(neighbours(entries.get(number..).unwrap_or(&[]), phy_offset));
        };
        let Check::Record(head) = record::check_record(record, i64::from(size)) else {
            return Ok((0, 0));
        };
        if head.size != bytes || head.sys_flag & BATCH_TO_UNWRAP == BATCH_TO_UNWRAP {
            return Ok((0, 0));
        }
        let raw_topic = record.get(head.topic_at..head.topic_at + head.topic_length).unwrap_or(&[]);
        if raw_topic != topic.0 {
            topic = (raw_topic, text(py, raw_topic));
        }
        found.append(parts(py, phy_offset, record, &head, topic.1.clone())?)?;
    }
    Ok((0, 0))
}

const BATCH_TO_UNWRAP: i32 = FLAG_INNER_BATCH | FLAG_NEED_UNWRAP;

/// In the order of `store_core.codec.record.Message`.
fn parts<'py>(
    py: Python<'py>,
    phy_offset: i64,
    record: &[u8],
    head: &Head,
    topic: Bound<'py, PyString>,
) -> PyResult<Bound<'py, PyTuple>> {
    let bytes = |at: usize, length: usize| PyBytes::new(py, record.get(at..at + length).unwrap_or(&[]));
    let before_body = bytes(0, head.body_at);
    let body = bytes(head.body_at, head.body_length);
    (phy_offset, before_body, body, topic, bytes(head.properties_at, head.properties_length)).into_pyobject(py)
}

/// Where an entry's record lies and how long it is; None where no record can.
fn place(entry: &[u8]) -> Option<(i64, i32)> {
    let phy_offset = i64_at(entry, QUEUE_ENTRY_PHY_OFFSET_AT)?;
    let size = i32_at(entry, QUEUE_ENTRY_SIZE_BYTES_AT)?;
    let bytes = usize::try_from(size).ok().filter(|bytes| (MIN_RECORD_SIZE..=MAX_RECORD_SIZE).contains(bytes));
    (phy_offset >= 0 && phy_offset.checked_add(i64::from(size)).is_some() && bytes.is_some())
        .then_some((phy_offset, size))
}

/// The range of the log that holds the first of these entries' records, and those that follow it closely.
fn neighbours(entries: &[[u8; QUEUE_ENTRY_SIZE]], start: i64) -> (i64, i64) {
    let mut end = start;
    for (phy_offset, size) in entries.iter().map_while(|entry| place(entry)) {
        let next = phy_offset + i64::from(size);
        if end > start && !((0..=NEIGHBOUR_GAP).contains(&(phy_offset - end)) && next - start <= READ_AT_ONCE) {
            break;
        }
        end = next;
    }
    (start, end - start)
}

fn text<'py>(py: Python<'py>, raw: &[u8]) -> Bound<'py, PyString> {
    let mut text = String::new();
    properties::decode_java(raw, |part| text.push_str(part));
    PyString::new(py, &text)
}

/// How many entries at a queue file's start are good; see `store_core.read.entries`.
#[pyfunction]
#[pyo3(signature = (entries, /))]
pub fn good_entries(entries: &[u8]) -> usize {
    let (entries, _) = entries.as_chunks::<QUEUE_ENTRY_SIZE>();
    let is_good = |entry: &&[u8; QUEUE_ENTRY_SIZE]| {
        i64_at(*entry, QUEUE_ENTRY_PHY_OFFSET_AT).is_some_and(|phy_offset| phy_offset >= 0)
            && i32_at(*entry, QUEUE_ENTRY_SIZE_BYTES_AT).is_some_and(|size| size > 0)
    };
    entries.iter().take_while(is_good).count()
}
