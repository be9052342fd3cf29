//! What a query by key asks of its key and of one record (twins: in store_core/kernel/point.py).

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::layout::*;
use crate::properties;
use crate::record::{self, Check, Head};

/// The hash under which an index holds a key of a topic.
#[pyfunction]
pub fn index_key_hash(topic: &str, key: &str) -> i32 {
    let hash = properties::hash(0, topic.as_bytes());
    properties::index_hash(properties::hash(properties::hash(hash, INDEX_KEY_JOINT), key.as_bytes()))
}

/// Which of a record's keys are meant.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Any,
    Key,
    Unique,
}

impl Kind {
    pub fn of(word: &str) -> PyResult<Self> {
        match word {
            "any" => Ok(Self::Any),
            "key" => Ok(Self::Key),
            "unique" => Ok(Self::Unique),
            _ => Err(PyValueError::new_err("a key is any, key or unique")),
        }
    }
}

/// Whether a record certainly carries this key of a topic; see `store_core.kernel.point`.
#[pyfunction]
#[pyo3(signature = (bytes, topic, key, kind, /))]
pub fn carries_key(bytes: &[u8], topic: &str, key: &str, kind: &str) -> PyResult<bool> {
    let kind = Kind::of(kind)?;
    Ok(match record::check_record(bytes, i64::try_from(bytes.len()).unwrap_or(0)) {
        Check::Record(head) => head.size == bytes.len() && carries(bytes, &head, topic, key, kind),
        _ => false,
    })
}

/// Whether the record with this head certainly carries the key.
#[inline]
pub fn carries(record: &[u8], head: &Head, topic: &str, key: &str, kind: Kind) -> bool {
    let part = |at: usize, length: usize| record.get(at..at + length).unwrap_or(&[]);
    if key.is_empty()
        || head.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK
        || part(head.topic_at, head.topic_length) != topic.as_bytes()
    {
        return false;
    }
    let known = properties::known(part(head.properties_at, head.properties_length));
    let key = key.as_bytes();
    kind != Kind::Key && known.uniq_key == key
        || kind != Kind::Unique && known.keys.split(|byte| *byte == KEY_SEPARATOR).any(|word| word == key)
}
