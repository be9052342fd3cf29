//! The variable parts of records as Arrow lays them out: offsets, bytes, validity (twin: twin_arrow.py).

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use numpy::{IntoPyArray, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::layout::{self, *};
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
        let mut columns = Columns::new(at.len(), wanted);
        for (at, size) in at.iter().zip(size_bytes) {
            columns.add(place(data, *at, *size)?)?;
        }
        Some(columns)
    });
    columns.ok_or_else(|| PyValueError::new_err("no record at one of the places, or too much text"))?.into_dict(py)
}

/// The bytes of a place that all lie in the window.
fn place(data: &[u8], at: i64, size: i64) -> Option<&[u8]> {
    let at = usize::try_from(at).ok()?;
    data.get(at..at.checked_add(usize::try_from(size).ok()?)?)
}

/// One column of texts or bytes.
struct Texts {
    offsets: Vec<i32>,
    data: Vec<u8>,
}

impl Texts {
    fn new(rows: usize, typical_bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self { offsets, data: Vec::with_capacity(rows * typical_bytes) }
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
        if self.rows % 8 == 0 {
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
    fn new(rows: usize, typical_bytes: usize) -> Self {
        Self { texts: Texts::new(rows, typical_bytes), valid: Valid::default() }
    }

    #[inline(always)]
    fn add(&mut self, text: &[u8]) {
        self.texts.add(text);
        self.valid.add(!text.is_empty()); // no property has an empty value
    }
}

struct Columns {
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
    recent: RecentHosts,
    pairs: Pairs,
    text: Vec<u8>,
}

// Enough for most; what is longer moves its vector.
const TYPICAL_PAIRS: usize = 6;
const TYPICAL_PART: usize = 12;
const TYPICAL_KEY: usize = 32;
const TYPICAL_HOST: usize = 20;
const TYPICAL_BODY: usize = 256;

impl Columns {
    fn new(rows: usize, wanted: u32) -> Self {
        let rows_if = |part: u32| if wanted & part != 0 { rows } else { 0 };
        let (hosts, keys, pairs) = (rows_if(WANT_HOSTS), rows_if(WANT_KEYS), rows_if(WANT_PROPERTIES));
        let bounds = |rows| {
            let mut bounds = Vec::with_capacity(rows + 1);
            bounds.push(0);
            bounds
        };
        Self {
            wanted,
            offset_msg_id: Texts::new(rows_if(WANT_IDS), 2 * (HOST_V4_SIZE + ID_OFFSET_SIZE)),
            born_host: Texts::new(hosts, TYPICAL_HOST),
            store_host: Texts::new(hosts, TYPICAL_HOST),
            unique_key: Nullable::new(keys, TYPICAL_KEY),
            tags: Nullable::new(keys, TYPICAL_PART),
            key_bounds: bounds(keys),
            keys: Texts::new(keys, TYPICAL_PART),
            pair_bounds: bounds(pairs),
            names: Texts::new(pairs * TYPICAL_PAIRS, TYPICAL_PART),
            values: Texts::new(pairs * TYPICAL_PAIRS, TYPICAL_PART),
            body: Texts::new(rows_if(WANT_BODIES), TYPICAL_BODY),
            recent: RecentHosts::new(),
            pairs: Pairs::default(),
            text: Vec::new(),
        }
    }

    /// Take in a row; None if the bytes are no record, or a column becomes too long.
    #[inline]
    fn add(&mut self, record: &[u8]) -> Option<()> {
        let Check::Record(head) = record::check_record(record, i64::try_from(record.len()).ok()?) else {
            return None;
        };
        if head.size != record.len() {
            return None;
        }
        if self.wanted & (WANT_IDS | WANT_HOSTS) != 0 {
            self.add_hosts(record, &head)?;
        }
        if self.wanted & (WANT_PROPERTIES | WANT_KEYS) != 0 {
            self.add_properties(part(record, head.properties_at, head.properties_length)?)?;
        }
        if self.wanted & WANT_BODIES != 0 {
            self.body.add(part(record, head.body_at, head.body_length)?);
        }
        let fits = self.body.fits() && self.names.fits() && self.values.fits() && self.keys.fits();
        (fits && self.unique_key.texts.fits() && self.tags.texts.fits()).then_some(())
    }

    #[inline]
    fn add_hosts(&mut self, record: &[u8], head: &Head) -> Option<()> {
        let (born_size, store_size) = layout::host_sizes(head.sys_flag);
        let born = part(record, HEAD_SIZE, born_size)?;
        let store = part(record, HEAD_SIZE + born_size + STORE_TIME_SIZE, store_size)?;
        if self.wanted & WANT_IDS != 0 {
            add_hex(&mut self.offset_msg_id.data, store);
            add_hex(&mut self.offset_msg_id.data, &head.own_phy_offset.to_be_bytes());
            self.offset_msg_id.end();
        }
        if self.wanted & WANT_HOSTS != 0 {
            self.born_host.add(self.recent.text(born));
            self.store_host.add(self.recent.text(store));
        }
        Some(())
    }

    #[inline]
    fn add_properties(&mut self, raw: &[u8]) -> Option<()> {
        let is_utf8 = raw.is_ascii() || str::from_utf8(raw).is_ok();
        if !is_utf8 {
            self.text.clear();
            properties::decode_java(raw, |text| self.text.extend_from_slice(text.as_bytes()));
        }
        let text = if is_utf8 { raw } else { &self.text };
        self.pairs.split(text);
        if self.wanted & WANT_PROPERTIES != 0 {
            for (name, value) in self.pairs.of(text) {
                self.names.add(name);
                self.values.add(value);
            }
            self.pair_bounds.push(i32::try_from(self.names.offsets.len()).ok()? - 1);
        }
        if self.wanted & WANT_KEYS != 0 {
            let [mut unique_key, mut tags, mut keys]: [&[u8]; 3] = [&[]; 3];
            for (name, value) in self.pairs.of(text) {
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

    fn into_dict(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
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

/// Where a property lies in its string: name [start, middle), value [middle + 1, end).
#[derive(Clone, Copy)]
struct Pair {
    start: usize,
    middle: usize,
    end: usize,
}

/// The properties of one string, none of them twice.
#[derive(Default)]
struct Pairs {
    all: Vec<Pair>,
    /// A bit for each mark of a name that is there.
    marks: u64,
}

// From so many on, earlier names are looked up in a map.
const MANY_PAIRS: usize = 64;

impl Pairs {
    #[inline]
    fn split(&mut self, text: &[u8]) {
        self.all.clear();
        self.marks = 0;
        let (mut start, mut middle) = (0, None);
        for at in memchr::memchr2_iter(NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, text) {
            if text.get(at) == Some(&PROPERTY_SEPARATOR) {
                self.close(text, start, middle, at);
                (start, middle) = (at + 1, None);
            } else if middle.is_none() {
                middle = Some(at);
            }
        }
        self.close(text, start, middle, text.len());
        if self.all.len() >= MANY_PAIRS {
            self.keep_last_of_name(text);
        }
    }

    /// A segment ends: a pair if it has a name and a value. Of two of a name the last counts, in the first one's place.
    #[inline(always)]
    fn close(&mut self, text: &[u8], start: usize, middle: Option<usize>, end: usize) {
        let Some(middle) = middle else { return };
        if middle == start || middle + 1 == end {
            return;
        }
        let pair = Pair { start, middle, end };
        let mark = mark(pair.name(text));
        if self.marks & mark != 0 && self.all.len() < MANY_PAIRS {
            let same = |other: &&mut Pair| other.name(text) == pair.name(text);
            if let Some(earlier) = self.all.iter_mut().find(same) {
                *earlier = pair;
                return;
            }
        }
        self.marks |= mark;
        self.all.push(pair);
    }

    #[cold]
    fn keep_last_of_name(&mut self, text: &[u8]) {
        let mut kept: Vec<Pair> = Vec::with_capacity(self.all.len());
        let mut places = HashMap::with_capacity(self.all.len());
        for pair in &self.all {
            let place = *places.entry(pair.name(text)).or_insert(kept.len());
            match kept.get_mut(place) {
                Some(earlier) => *earlier = *pair,
                None => kept.push(*pair),
            }
        }
        self.all = kept;
    }

    #[inline(always)]
    fn of<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.all.iter().map(|pair| (pair.name(text), pair.value(text)))
    }
}

impl Pair {
    #[inline(always)]
    fn name<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.start..self.middle).unwrap_or(&[])
    }

    #[inline(always)]
    fn value<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.middle + 1..self.end).unwrap_or(&[])
    }
}

/// One of 64 bits: names of one record seldom share one, and equal names always do.
#[inline(always)]
fn mark(name: &[u8]) -> u64 {
    let (first, last) = (name.first().copied().unwrap_or(0), name.last().copied().unwrap_or(0));
    let mixed = name.len() as u32 ^ u32::from(first).rotate_left(8) ^ u32::from(last).rotate_left(16);
    1 << (mixed.wrapping_mul(0x9E37_79B1) >> 26)
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Upper-case hex of some bytes.
#[inline(always)]
fn add_hex(to: &mut Vec<u8>, bytes: &[u8]) {
    let digit = |value: u8| HEX.get(usize::from(value)).copied().unwrap_or(0);
    to.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xF)]));
}

const RECENT_HOSTS: usize = 256;

/// Host fields that were turned to text lately: a window has few different ones.
struct RecentHosts {
    all: Vec<(Vec<u8>, String)>,
}

impl RecentHosts {
    fn new() -> Self {
        Self { all: vec![Default::default(); RECENT_HOSTS] }
    }

    #[inline]
    fn text(&mut self, raw: &[u8]) -> &[u8] {
        let tail = raw.last_chunk::<8>().map_or(0, |tail| u64::from_le_bytes(*tail));
        let slot = (tail.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize;
        match self.all.get_mut(slot) {
            Some((of, text)) => {
                if of.as_slice() != raw {
                    (*of, *text) = (raw.to_vec(), host_text(raw));
                }
                text.as_bytes()
            }
            None => &[],
        }
    }
}

/// `a.b.c.d:port` or `[v6]:port`, v6 as C's `inet_ntop` writes it.
#[cold]
fn host_text(raw: &[u8]) -> String {
    let (address, port) = raw.split_at(raw.len().saturating_sub(HOST_PORT_SIZE));
    let port = port.first_chunk().map_or(0, |port| u32::from_be_bytes(*port));
    if let Some(v4) = address.as_array::<4>() {
        return format!("{}:{port}", Ipv4Addr::from(*v4));
    }
    let v6 = Ipv6Addr::from(address.first_chunk::<16>().copied().unwrap_or_default());
    match v6.segments() {
        // Unlike Rust, C writes the end of such an address as a v4 one, too.
        [0, 0, 0, 0, 0, 0, high, _] if high != 0 => {
            let v4 = address.last_chunk::<4>().copied().unwrap_or_default();
            format!("[::{}]:{port}", Ipv4Addr::from(v4))
        }
        _ => format!("[{v6}]:{port}"),
    }
}
