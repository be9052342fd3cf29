//! What a query by key asks of its key and of one record (twins: in store_core/kernel/point.py).

use pyo3::prelude::*;

use crate::layout::*;
use crate::properties;
use crate::record::{self, Check};

/// The hash under which an index holds a key of a topic.
#[pyfunction]
pub fn index_key_hash(topic: &str, key: &str) -> i32 {
    let hash = properties::hash(0, topic.as_bytes());
    properties::index_hash(properties::hash(properties::hash(hash, INDEX_KEY_JOINT), key.as_bytes()))
}

/// Whether a record certainly carries this unique key of a topic; see `store_core.kernel.point`.
#[pyfunction]
pub fn has_unique_key(bytes: &[u8], topic: &str, key: &str) -> bool {
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
