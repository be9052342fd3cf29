//! The variable parts of records as Arrow lays them out: offsets, bytes, validity (twin: reference/arrow.py).

use std::collections::HashMap;

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
        let mut columns = Columns::new(at.len(), most.min(data.len()), wanted, false);
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

    fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    #[inline(always)]
    fn get(&self, number: i32) -> Option<&[u8]> {
        let number = usize::try_from(number).ok()?;
        let (start, end) = (*self.offsets.get(number)?, *self.offsets.get(number + 1)?);
        self.data.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }

    fn size(&self) -> usize {
        self.data.len() + size_of_val(self.offsets.as_slice())
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

/// A column of texts that recur: as such, or each once with a number a row, unless there turn out to be too many of them.
struct Recurring {
    texts: Texts,
    words: Option<Words>,
}

struct Words {
    numbers: Vec<i32>,
    known: HashMap<Vec<u8>, i32>,
    /// Numbers by a cheap mark of the text; looked at first.
    recent: [i32; RECENT_WORDS],
}

const RECENT_WORDS: usize = 256;
/// The number of a null, as long as rows are added.
const NONE: i32 = -1;

impl Recurring {
    fn new(rows: usize, bytes: usize, in_words: bool) -> Self {
        if !in_words {
            return Self { texts: Texts::new(rows, bytes), words: None };
        }
        let words = Words { numbers: Vec::with_capacity(rows), known: HashMap::new(), recent: [0; RECENT_WORDS] };
        Self { texts: Texts::new(0, 0), words: Some(words) }
    }

    #[inline(always)]
    fn add(&mut self, text: &[u8]) {
        match &mut self.words {
            None => self.texts.add(text),
            Some(words) => {
                words.add(text, &mut self.texts);
                if self.texts.len() > MOST_WORDS {
                    self.spell_out();
                }
            }
        }
    }

    /// Goes on without words.
    #[cold]
    fn spell_out(&mut self) {
        let Some(words) = self.words.take() else { return };
        let mut texts = Texts::new(words.numbers.len(), self.texts.data.len());
        for number in words.numbers {
            texts.add(self.texts.get(number).unwrap_or(&[]));
        }
        self.texts = texts;
    }

    /// Of a row that is null.
    #[inline(always)]
    fn add_none(&mut self) {
        match &mut self.words {
            None => self.texts.add(&[]),
            Some(words) => words.numbers.push(NONE),
        }
    }

    fn size(&self) -> usize {
        self.texts.size() + self.words.as_ref().map_or(0, |words| size_of_val(words.numbers.as_slice()))
    }

    fn into_tuple(self, py: Python<'_>, valid: Option<Valid>) -> PyResult<Bound<'_, PyTuple>> {
        let Some(words) = self.words else {
            return self.texts.into_tuple(py, valid);
        };
        let valid = valid.map(|valid| valid.bits.into_pyarray(py));
        let mut numbers = words.numbers;
        numbers.iter_mut().for_each(|number| *number = (*number).max(0));
        (numbers.into_pyarray(py), self.texts.into_tuple(py, None)?, valid).into_pyobject(py)
    }
}

impl Words {
    #[inline(always)]
    fn add(&mut self, text: &[u8], texts: &mut Texts) {
        let (first, last) = (text.first().copied().unwrap_or(0), text.last().copied().unwrap_or(0));
        let mixed = text.len() as u32 ^ u32::from(first).rotate_left(8) ^ u32::from(last).rotate_left(16);
        let slot = (mixed.wrapping_mul(0x9E37_79B1) >> 24) as usize;
        let recent = self.recent.get(slot).copied().unwrap_or(0);
        let number = if texts.get(recent) == Some(text) { recent } else { self.look_up(text, texts, slot) };
        self.numbers.push(number);
    }

    #[cold]
    fn look_up(&mut self, text: &[u8], texts: &mut Texts, slot: usize) -> i32 {
        let number = match self.known.get(text) {
            Some(number) => *number,
            None => {
                let number = texts.len() as i32; // columns that grow too long are refused row by row
                texts.add(text);
                self.known.insert(text.to_vec(), number);
                number
            }
        };
        if let Some(recent) = self.recent.get_mut(slot) {
            *recent = number;
        }
        number
    }
}

/// Texts of rows that may have none.
struct Nullable {
    texts: Recurring,
    valid: Valid,
}

impl Nullable {
    fn new(rows: usize, bytes: usize, in_words: bool) -> Self {
        Self { texts: Recurring::new(rows, bytes, in_words), valid: Valid::default() }
    }

    #[inline(always)]
    fn add(&mut self, text: &[u8]) {
        let is_valid = !text.is_empty(); // no property has an empty value
        if is_valid {
            self.texts.add(text);
        } else {
            self.texts.add_none();
        }
        self.valid.add(is_valid);
    }
}

/// Rows so far.
pub struct Columns {
    wanted: u32,
    offset_msg_id: Texts,
    born_host: Recurring,
    store_host: Recurring,
    unique_key: Nullable,
    tags: Nullable,
    key_bounds: Vec<i32>,
    keys: Texts,
    pair_bounds: Vec<i32>,
    names: Recurring,
    values: Texts,
    body: Texts,
    tags_code: Vec<i64>,
    tombstone: Valid,
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
/// Of a record, about, and rather less: of what is long, most is body.
pub const AROUND_A_BODY: usize = MIN_RECORD_SIZE + TYPICAL_PAIRS * TYPICAL_PART;

impl Columns {
    /// For so many rows, whose bodies have together so many bytes. `in_words`: what recurs is there once.
    pub fn new(rows: usize, body_bytes: usize, wanted: u32, in_words: bool) -> Self {
        let rows_if = |part: u32| if wanted & part != 0 { rows } else { 0 };
        let [ids, hosts, keys, pairs, bodies, marks] =
            [WANT_IDS, WANT_HOSTS, WANT_KEYS, WANT_PROPERTIES, WANT_BODIES, WANT_MARKS].map(rows_if);
        let pairs_bytes = pairs * TYPICAL_PAIRS * TYPICAL_PART;
        let bounds = |rows| {
            let mut bounds = Vec::with_capacity(rows + 1);
            bounds.push(0);
            bounds
        };
        Self {
            wanted,
            offset_msg_id: Texts::new(ids, ids * TYPICAL_ID),
            born_host: Recurring::new(hosts, hosts * TYPICAL_HOST, in_words),
            store_host: Recurring::new(hosts, hosts * TYPICAL_HOST, in_words),
            unique_key: Nullable::new(keys, keys * TYPICAL_ID, false),
            tags: Nullable::new(keys, keys * TYPICAL_PART, in_words),
            key_bounds: bounds(keys),
            keys: Texts::new(keys, keys * TYPICAL_PART),
            pair_bounds: bounds(pairs),
            names: Recurring::new(pairs * TYPICAL_PAIRS, pairs_bytes, in_words),
            values: Texts::new(pairs * TYPICAL_PAIRS, pairs_bytes),
            body: Texts::new(bodies, if bodies == 0 { 0 } else { body_bytes }),
            tags_code: Vec::with_capacity(marks),
            tombstone: Valid::default(),
        }
    }

    /// Take in a row; None if the bytes are no record, or a column becomes too long.
    #[inline]
    pub fn add(&mut self, record: &[u8], recent: &mut Recent) -> Option<()> {
        if self.wanted & WANT_BODIES != 0 {
            // In front of what lies behind it, as the processor fetches what is read in order (measured: a seventh of the time).
            let (start, end) = record::body(record)?;
            self.body.add(record.get(start..end)?);
        }
        let Check::Record(head) = record::check_record(record, i64::try_from(record.len()).ok()?) else {
            return None;
        };
        if head.size != record.len() {
            return None;
        }
        if self.wanted & (WANT_IDS | WANT_HOSTS) != 0 {
            self.add_hosts(record, &head, &mut recent.hosts)?;
        }
        if self.wanted & (WANT_PROPERTIES | WANT_KEYS | WANT_MARKS) != 0 {
            let is_rollback = head.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK;
            self.add_properties(part(record, head.properties_at, head.properties_length)?, is_rollback, recent)?;
        }
        let fits = self.body.fits() && self.names.texts.fits() && self.values.fits() && self.keys.fits();
        (fits && self.unique_key.texts.texts.fits() && self.tags.texts.texts.fits()).then_some(())
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
    fn add_properties(&mut self, raw: &[u8], is_rollback: bool, recent: &mut Recent) -> Option<()> {
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
            self.pair_bounds.push(i32::try_from(self.values.len()).ok()?);
        }
        if self.wanted & (WANT_KEYS | WANT_MARKS) != 0 {
            let [mut unique_key, mut tags, mut keys]: [&[u8]; 3] = [&[]; 3];
            let mut has_mark = false;
            for (name, value) in pairs.of(text) {
                match name {
                    PROPERTY_UNIQ_KEY => unique_key = value,
                    PROPERTY_TAGS => tags = value,
                    PROPERTY_KEYS => keys = value,
                    PROPERTY_TOMBSTONE => has_mark = true,
                    _ => {}
                }
            }
            if self.wanted & WANT_MARKS != 0 {
                self.tags_code.push(properties::tags_code(tags));
                let is_nameless = unique_key.is_empty() && tags.is_empty() && keys.is_empty();
                self.tombstone.add(has_mark && is_nameless && !is_rollback);
            }
            if self.wanted & WANT_KEYS == 0 {
                return Some(());
            }
            self.unique_key.add(unique_key);
            self.tags.add(tags);
            for key in keys.split(|byte| *byte == KEY_SEPARATOR).filter(|key| !key.is_empty()) {
                self.keys.add(key);
            }
            self.key_bounds.push(i32::try_from(self.keys.len()).ok()?);
        }
        Some(())
    }

    /// Bytes that the texts take, with what says where each of them ends.
    pub fn size(&self) -> usize {
        let texts = [&self.offset_msg_id, &self.unique_key.texts.texts, &self.keys, &self.values, &self.body];
        let recurring = [&self.born_host, &self.store_host, &self.tags.texts, &self.names];
        let marks = size_of_val(self.tags_code.as_slice()) + self.tombstone.bits.len();
        texts.map(Texts::size).iter().sum::<usize>() + recurring.map(Recurring::size).iter().sum::<usize>() + marks
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
        if self.wanted & WANT_MARKS != 0 {
            dict.set_item("tags_code", self.tags_code.into_pyarray(py))?;
            dict.set_item("tombstone", self.tombstone.bits.into_pyarray(py))?;
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
