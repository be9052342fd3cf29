//! The variable parts of records as Arrow lays them out: offsets, bytes, validity (twin: twin_arrow.py).

use numpy::{IntoPyArray, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::hosts::RecentHosts;
use crate::layout::{self, *};
use crate::pairs::Pairs;
use crate::properties;
use crate::record::{self, Check, Head};

/// The columns of the records at these places of a window; see `store_core.kernel.arrow.arrow_columns`.
#[pyfunction]
#[pyo3(signature = (window, at, size_bytes, wanted, /))]
pub fn arrow_columns<'py>(
    py: Python<'py>,
    window: PyReadonlyArray1<'py, u8>,
    at: PyReadonlyArray1<'py, i64>,
    size_bytes: PyReadonlyArray1<'py, i64>,
    wanted: u32,
) -> PyResult<Bound<'py, PyDict>> {
    let (data, at, size_bytes) = (window.as_slice()?, at.as_slice()?, size_bytes.as_slice()?);
    if at.len() != size_bytes.len() {
        return Err(PyValueError::new_err("the columns differ in length"));
    }
    let columns = py.detach(|| {
        let most = size_bytes.iter().fold(0_usize, |sum, size| sum.saturating_add(usize::try_from(*size).unwrap_or(0)));
        let mut columns = Columns::new(at.len(), most.min(data.len()), wanted);
        let mut recent = Recent::new();
        for (at, size) in at.iter().zip(size_bytes) {
            columns.add(place(data, *at, *size)?, &mut recent)?;
        }
        Some(columns)
    });
    columns.ok_or_else(nonsense)?.into_dict(py)
}

pub fn nonsense() -> PyErr {
    PyValueError::new_err("no record at one of the places, or too much text")
}

/// The bytes of a place that all lie in the window.
pub fn place(data: &[u8], at: i64, size: i64) -> Option<&[u8]> {
    let at = usize::try_from(at).ok()?;
    data.get(at..at.checked_add(usize::try_from(size).ok()?)?)
}

/// One column of texts or bytes.
struct Texts {
    offsets: Vec<i32>,
    data: Vec<u8>,
}

impl Texts {
    fn new(rows: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self { offsets, data: Vec::with_capacity(bytes) }
    }

    #[inline(always)]
    fn add(&mut self, text: &[u8]) {
        self.data.extend_from_slice(text);
        self.end();
    }

    /// What has been put behind the last text is the next one. Columns that grow too long are refused row by row.
    #[inline(always)]
    fn end(&mut self) {
        self.offsets.push(self.data.len() as i32);
    }

    fn fits(&self) -> bool {
        i32::try_from(self.data.len()).is_ok() && i32::try_from(self.offsets.len()).is_ok()
    }

    fn into_tuple(self, py: Python<'_>, valid: Option<Valid>) -> PyResult<Bound<'_, PyTuple>> {
        let valid = valid.map(|valid| valid.bits.into_pyarray(py));
        (self.offsets.into_pyarray(py), self.data.into_pyarray(py), valid).into_pyobject(py)
    }
}

/// Which rows are not null, a bit a row.
#[derive(Default)]
struct Valid {
    bits: Vec<u8>,
    rows: usize,
}

impl Valid {
    #[inline(always)]
    fn add(&mut self, is_valid: bool) {
        if self.rows.is_multiple_of(8) {
            self.bits.push(0);
        }
        if let Some(last) = self.bits.last_mut() {
            *last |= u8::from(is_valid) << (self.rows % 8);
        }
        self.rows += 1;
    }
}

/// Texts of rows that may have none.
struct Nullable {
    texts: Texts,
    valid: Valid,
}

impl Nullable {
    fn new(rows: usize, bytes: usize) -> Self {
        Self { texts: Texts::new(rows, bytes), valid: Valid::default() }
    }

    #[inline(always)]
    fn add(&mut self, text: &[u8]) {
        self.texts.add(text);
        self.valid.add(!text.is_empty()); // no property has an empty value
    }
}

/// Rows so far.
pub struct Columns {
    wanted: u32,
    offset_msg_id: Texts,
    born_host: Texts,
    store_host: Texts,
    unique_key: Nullable,
    tags: Nullable,
    key_bounds: Vec<i32>,
    keys: Texts,
    pair_bounds: Vec<i32>,
    names: Texts,
    values: Texts,
    body: Texts,
}

/// What is kept from one record to the next, whatever column they go to.
pub struct Recent {
    hosts: RecentHosts,
    pairs: Pairs,
    text: Vec<u8>,
}

impl Recent {
    pub fn new() -> Self {
        Self { hosts: RecentHosts::new(), pairs: Pairs::default(), text: Vec::new() }
    }
}

// Enough for most; what is longer moves its vector.
const TYPICAL_PAIRS: usize = 6;
const TYPICAL_PART: usize = 12;
const TYPICAL_ID: usize = 32;
const TYPICAL_HOST: usize = 20;

impl Columns {
    /// For so many rows, whose records have together so many bytes.
    pub fn new(rows: usize, record_bytes: usize, wanted: u32) -> Self {
        let rows_if = |part: u32| if wanted & part != 0 { rows } else { 0 };
        let [ids, hosts, keys, pairs, bodies] =
            [WANT_IDS, WANT_HOSTS, WANT_KEYS, WANT_PROPERTIES, WANT_BODIES].map(rows_if);
        let pairs_bytes = pairs * TYPICAL_PAIRS * TYPICAL_PART;
        let bounds = |rows| {
            let mut bounds = Vec::with_capacity(rows + 1);
            bounds.push(0);
            bounds
        };
        Self {
            wanted,
            offset_msg_id: Texts::new(ids, ids * TYPICAL_ID),
            born_host: Texts::new(hosts, hosts * TYPICAL_HOST),
            store_host: Texts::new(hosts, hosts * TYPICAL_HOST),
            unique_key: Nullable::new(keys, keys * TYPICAL_ID),
            tags: Nullable::new(keys, keys * TYPICAL_PART),
            key_bounds: bounds(keys),
            keys: Texts::new(keys, keys * TYPICAL_PART),
            pair_bounds: bounds(pairs),
            names: Texts::new(pairs * TYPICAL_PAIRS, pairs_bytes),
            values: Texts::new(pairs * TYPICAL_PAIRS, pairs_bytes),
            body: Texts::new(bodies, if bodies == 0 { 0 } else { record_bytes }),
        }
    }

    /// Take in a row; None if the bytes are no record, or a column becomes too long.
    #[inline]
    pub fn add(&mut self, record: &[u8], recent: &mut Recent) -> Option<()> {
        let Check::Record(head) = record::check_record(record, i64::try_from(record.len()).ok()?) else {
            return None;
        };
        if head.size != record.len() {
            return None;
        }
        if self.wanted & (WANT_IDS | WANT_HOSTS) != 0 {
            self.add_hosts(record, &head, &mut recent.hosts)?;
        }
        if self.wanted & (WANT_PROPERTIES | WANT_KEYS) != 0 {
            self.add_properties(part(record, head.properties_at, head.properties_length)?, recent)?;
        }
        if self.wanted & WANT_BODIES != 0 {
            self.body.add(part(record, head.body_at, head.body_length)?);
        }
        let fits = self.body.fits() && self.names.fits() && self.values.fits() && self.keys.fits();
        (fits && self.unique_key.texts.fits() && self.tags.texts.fits()).then_some(())
    }

    #[inline]
    fn add_hosts(&mut self, record: &[u8], head: &Head, recent: &mut RecentHosts) -> Option<()> {
        let (born_size, store_size) = layout::host_sizes(head.sys_flag);
        let born = part(record, HEAD_SIZE, born_size)?;
        let store = part(record, HEAD_SIZE + born_size + STORE_TIME_SIZE, store_size)?;
        if self.wanted & WANT_IDS != 0 {
            add_hex(&mut self.offset_msg_id.data, store);
            add_hex(&mut self.offset_msg_id.data, &head.own_phy_offset.to_be_bytes());
            self.offset_msg_id.end();
        }
        if self.wanted & WANT_HOSTS != 0 {
            self.born_host.add(recent.text(born));
            self.store_host.add(recent.text(store));
        }
        Some(())
    }

    #[inline]
    fn add_properties(&mut self, raw: &[u8], recent: &mut Recent) -> Option<()> {
        let Recent { pairs, text, .. } = recent;
        let is_utf8 = raw.is_ascii() || str::from_utf8(raw).is_ok();
        if !is_utf8 {
            text.clear();
            properties::decode_java(raw, |part| text.extend_from_slice(part.as_bytes()));
        }
        let text = if is_utf8 { raw } else { text };
        pairs.split(text);
        if self.wanted & WANT_PROPERTIES != 0 {
            for (name, value) in pairs.of(text) {
                self.names.add(name);
                self.values.add(value);
            }
            self.pair_bounds.push(i32::try_from(self.names.offsets.len()).ok()? - 1);
        }
        if self.wanted & WANT_KEYS != 0 {
            let [mut unique_key, mut tags, mut keys]: [&[u8]; 3] = [&[]; 3];
            for (name, value) in pairs.of(text) {
                match name {
                    PROPERTY_UNIQ_KEY => unique_key = value,
                    PROPERTY_TAGS => tags = value,
                    PROPERTY_KEYS => keys = value,
                    _ => {}
                }
            }
            self.unique_key.add(unique_key);
            self.tags.add(tags);
            for key in keys.split(|byte| *byte == KEY_SEPARATOR).filter(|key| !key.is_empty()) {
                self.keys.add(key);
            }
            self.key_bounds.push(i32::try_from(self.keys.offsets.len()).ok()? - 1);
        }
        Some(())
    }

    pub fn into_dict(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let dict = PyDict::new(py);
        if self.wanted & WANT_IDS != 0 {
            dict.set_item("offset_msg_id", self.offset_msg_id.into_tuple(py, None)?)?;
        }
        if self.wanted & WANT_HOSTS != 0 {
            dict.set_item("born_host", self.born_host.into_tuple(py, None)?)?;
            dict.set_item("store_host", self.store_host.into_tuple(py, None)?)?;
        }
        if self.wanted & WANT_KEYS != 0 {
            dict.set_item("unique_key", self.unique_key.texts.into_tuple(py, Some(self.unique_key.valid))?)?;
            dict.set_item("tags", self.tags.texts.into_tuple(py, Some(self.tags.valid))?)?;
            dict.set_item("key_bounds", self.key_bounds.into_pyarray(py))?;
            dict.set_item("keys", self.keys.into_tuple(py, None)?)?;
        }
        if self.wanted & WANT_PROPERTIES != 0 {
            dict.set_item("pair_bounds", self.pair_bounds.into_pyarray(py))?;
            dict.set_item("names", self.names.into_tuple(py, None)?)?;
            dict.set_item("values", self.values.into_tuple(py, None)?)?;
        }
        if self.wanted & WANT_BODIES != 0 {
            dict.set_item("body", self.body.into_tuple(py, None)?)?;
        }
        Ok(dict)
    }
}

#[inline(always)]
fn part(record: &[u8], at: usize, length: usize) -> Option<&[u8]> {
    record.get(at..at.checked_add(length)?)
}

/// Upper-case hex of some bytes, no more than those of a host.
#[inline(always)]
fn add_hex(to: &mut Vec<u8>, bytes: &[u8]) {
    let mut digits = [[0; 2]; HOST_V6_SIZE];
    for (pair, byte) in digits.iter_mut().zip(bytes) {
        *pair = [byte >> 4, byte & 0xF].map(|half| half + if half < 10 { b'0' } else { b'A' - 10 });
    }
    to.extend_from_slice(digits.get(..bytes.len()).unwrap_or(&digits).as_flattened());
}
