//! Messages as the bytes of a record, with the fields of its queue entry and its index hashes (twin: reference/encode.py).

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::derive::nonsense;
use crate::layout::*;
use crate::properties::{self, Known};
use crate::record::checksum;

/// What a release and its settings decide: final separator, property CRC, first size of the properties' hash map (0: they are
/// in order), tags in the index.
type Rules = (bool, bool, u32, bool);

/// The numbers of one message: queue id, flag, queue offset, physical offset, sys flag, born time, store time, reconsume
/// times, prepared transaction offset.
type Numbers = (i32, i32, i64, i64, i32, i64, i64, i32, i64);

struct Topic<'a> {
    text: &'a str,
    magic: i32,
    /// Java's hash of the topic, with which each key text begins.
    hash: u32,
}

impl<'a> Topic<'a> {
    fn of(text: &'a str) -> Self {
        let is_long = text.len() > LONGEST_V1_TOPIC && text.encode_utf16().count() > LONGEST_V1_TOPIC;
        Self { text, magic: if is_long { MAGIC_V2 } else { MAGIC_V1 }, hash: properties::hash(0, text.as_bytes()) }
    }

    fn length_size(&self) -> usize {
        if self.magic == MAGIC_V2 { TOPIC_LENGTH_V2_SIZE } else { TOPIC_LENGTH_V1_SIZE }
    }

    fn fits(&self) -> bool {
        self.text.len() >> (8 * self.length_size() - 1) == 0
    }
}

struct Pair<'a> {
    name: &'a [u8],
    value: &'a [u8],
    arrival: usize,
}

/// Why a message has no record, as codes.EncodeRefusal.
type Refusal = u8;

/// Leaves the last value of each name at the place of its first, and puts them in the order of a Java hash map.
fn arrange(pairs: &mut Vec<Pair<'_>>, map_size: u32) {
    if pairs.len() > 1 {
        // Stable, so that equal names stay in the order of arrival.
        pairs.sort_by(|a, b| a.name.cmp(b.name));
        pairs.dedup_by(|later, earlier| {
            let same = later.name == earlier.name;
            if same {
                earlier.value = later.value;
            }
            same
        });
        pairs.sort_unstable_by_key(|pair| pair.arrival);
    }
    if map_size == 0 {
        return;
    }
    let mut places = map_size;
    while pairs.len() > (places as usize).saturating_mul(3) / 4 {
        places = places.saturating_mul(2);
    }
    pairs.sort_by_cached_key(|pair| {
        let hash = properties::hash(0, pair.name);
        (hash ^ hash >> 16) & places.saturating_sub(1)
    });
}

/// Writes the property string into `text`; gives what the store needs of it.
fn join<'a>(pairs: &[Pair<'a>], rules: Rules, text: &mut Vec<u8>) -> Result<Known<'a>, Refusal> {
    let mut known = Known::default();
    for pair in pairs {
        let parts_name = |byte: &u8| *byte == NAME_VALUE_SEPARATOR || *byte == PROPERTY_SEPARATOR;
        if pair.name.iter().any(parts_name) || memchr::memchr(PROPERTY_SEPARATOR, pair.value).is_some() {
            return Err(REFUSED_SEPARATOR);
        }
        match pair.name {
            PROPERTY_UNIQ_KEY => known.uniq_key = pair.value,
            PROPERTY_KEYS => known.keys = pair.value,
            PROPERTY_TAGS => known.tags = pair.value,
            _ => {}
        }
        text.extend_from_slice(pair.name);
        text.push(NAME_VALUE_SEPARATOR);
        text.extend_from_slice(pair.value);
        text.push(PROPERTY_SEPARATOR);
    }
    if !rules.0 {
        text.pop();
    }
    Ok(known)
}

/// The hashes of a record's key texts, in the broker's order.
fn add_hashes(topic: &Topic<'_>, known: &Known<'_>, with_tags: bool, mut add: impl FnMut(i32)) {
    let start = properties::hash(topic.hash, INDEX_KEY_JOINT);
    let mut add_key = |key: &[u8]| {
        if !key.is_empty() {
            add(properties::index_hash(properties::hash(start, key)));
        }
    };
    add_key(known.uniq_key);
    known.keys.split(|byte| *byte == KEY_SEPARATOR).for_each(&mut add_key);
    if with_tags && !known.tags.is_empty() {
        add(properties::index_hash(properties::hash(properties::hash(topic.hash, INDEX_TAG_JOINT), known.tags)));
    }
}

struct Record<'a> {
    topic: &'a Topic<'a>,
    numbers: Numbers,
    born_host: &'a [u8],
    store_host: &'a [u8],
    body: &'a [u8],
    properties: &'a [u8],
    property_crc: bool,
}

impl Record<'_> {
    /// Whether the property string gets a separator before the CRC, and how long it all is.
    fn properties_length(&self) -> (bool, usize) {
        if !self.property_crc {
            return (false, self.properties.len());
        }
        let closes = self.properties.last().is_some_and(|last| *last != PROPERTY_SEPARATOR);
        (closes, self.properties.len() + usize::from(closes) + PROPERTY_CRC_SIZE)
    }

    /// The whole record's length, or why there is no record.
    fn size(&self) -> Result<usize, Refusal> {
        let (_, properties_length) = self.properties_length();
        if !self.topic.fits() {
            return Err(REFUSED_TOPIC);
        }
        if properties_length > MAX_PROPERTIES_SIZE {
            return Err(REFUSED_PROPERTIES);
        }
        let hosts = self.born_host.len() + self.store_host.len();
        let lengths = self.topic.length_size() + PROPERTIES_LENGTH_SIZE;
        let size = HEAD_SIZE + STORE_TIME_SIZE + MIDDLE_SIZE + hosts + lengths + self.topic.text.len();
        let size = size.saturating_add(properties_length).saturating_add(self.body.len());
        if i32::try_from(size).is_ok() { Ok(size) } else { Err(REFUSED_RECORD) }
    }

    fn write(&self, size: usize, out: &mut Vec<u8>) {
        let start = out.len();
        let (queue_id, flag, queue_offset, phy_offset, sys_flag, born, stored, reconsume, prepared) = self.numbers;
        let host_flag = |host: &[u8], flag| if host.len() == HOST_V6_SIZE { flag } else { 0 };
        let sys_flag = sys_flag & !(FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6)
            | host_flag(self.born_host, FLAG_BORN_HOST_V6)
            | host_flag(self.store_host, FLAG_STORE_HOST_V6);
        out.reserve(size);
        out.extend_from_slice(&(size as u32).to_be_bytes());
        out.extend_from_slice(&self.topic.magic.to_be_bytes());
        out.extend_from_slice(&(checksum(self.body) & CRC_MASK).to_be_bytes());
        out.extend_from_slice(&queue_id.to_be_bytes());
        out.extend_from_slice(&flag.to_be_bytes());
        out.extend_from_slice(&queue_offset.to_be_bytes());
        out.extend_from_slice(&phy_offset.to_be_bytes());
        out.extend_from_slice(&sys_flag.to_be_bytes());
        out.extend_from_slice(&born.to_be_bytes());
        out.extend_from_slice(self.born_host);
        out.extend_from_slice(&stored.to_be_bytes());
        out.extend_from_slice(self.store_host);
        out.extend_from_slice(&reconsume.to_be_bytes());
        out.extend_from_slice(&prepared.to_be_bytes());
        out.extend_from_slice(&(self.body.len() as u32).to_be_bytes());
        out.extend_from_slice(self.body);
        let length = (self.topic.text.len() as u16).to_be_bytes();
        out.extend_from_slice(length.get(length.len() - self.topic.length_size()..).unwrap_or(&length));
        out.extend_from_slice(self.topic.text.as_bytes());
        let (closes, properties_length) = self.properties_length();
        out.extend_from_slice(&(properties_length as u16).to_be_bytes());
        out.extend_from_slice(self.properties);
        if closes {
            out.push(PROPERTY_SEPARATOR);
        }
        if self.property_crc {
            let mut value = checksum(out.get(start..).unwrap_or(&[])) & CRC_MASK;
            out.extend_from_slice(PROPERTY_CRC32);
            out.push(NAME_VALUE_SEPARATOR);
            for _ in PROPERTY_CRC_DIGITS_AT..PROPERTY_CRC_END_AT {
                out.push(b'0' + (value % 10) as u8); // the least significant digit first
                value /= 10;
            }
            out.push(PROPERTY_SEPARATOR);
        }
    }
}

fn refused(refusal: Refusal) -> PyErr {
    PyValueError::new_err(match refusal {
        REFUSED_SEPARATOR => "a property holds a separator character",
        REFUSED_TOPIC => "the topic does not fit",
        REFUSED_PROPERTIES => "the properties do not fit",
        _ => "the record does not fit",
    })
}

fn is_host(host: &[u8]) -> bool {
    host.len() == HOST_V4_SIZE || host.len() == HOST_V6_SIZE
}

/// A record's bytes, its tags code and its index hashes; see `store_core.kernel.encode`.
#[pyfunction]
#[pyo3(signature = (topic, body, pairs, numbers, born_host, store_host, rules, /))]
#[allow(clippy::too_many_arguments)] // the parts of a message
pub fn encode_record<'py>(
    py: Python<'py>,
    topic: &str,
    body: &[u8],
    pairs: &Bound<'py, PyDict>,
    numbers: Numbers,
    born_host: &[u8],
    store_host: &[u8],
    rules: Rules,
) -> PyResult<(Bound<'py, PyBytes>, i64, Vec<i32>)> {
    if !is_host(born_host) || !is_host(store_host) {
        return Err(PyValueError::new_err("a host has 8 or 20 bytes"));
    }
    let topic = Topic::of(topic);
    let items: Vec<(Bound<'_, PyString>, Bound<'_, PyString>)> =
        pairs.iter().map(|(name, value)| Ok((name.cast_into()?, value.cast_into()?))).collect::<PyResult<_>>()?;
    let mut pairs = Vec::with_capacity(items.len());
    for (arrival, (name, value)) in items.iter().enumerate() {
        pairs.push(Pair { name: name.to_str()?.as_bytes(), value: value.to_str()?.as_bytes(), arrival });
    }
    arrange(&mut pairs, rules.2);
    let mut text = Vec::new();
    let known = join(&pairs, rules, &mut text).map_err(refused)?;
    let record =
        Record { topic: &topic, numbers, born_host, store_host, body, properties: &text, property_crc: rules.1 };
    let size = record.size().map_err(refused)?;
    let mut out = Vec::new();
    record.write(size, &mut out);
    let mut hashes = Vec::new();
    if numbers.4 & TRANSACTION_MASK != TRANSACTION_ROLLBACK {
        add_hashes(&topic, &known, rules.3, |hash| hashes.push(hash));
    }
    Ok((PyBytes::new(py, &out), properties::tags_code(known.tags), hashes))
}

/// A column of bytes: row i is `data[bounds[i]..bounds[i + 1]]`.
type Texts<'py> = (PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, u8>);

#[derive(Clone, Copy)]
struct Column<'a> {
    bounds: &'a [i64],
    data: &'a [u8],
}

impl<'a> Column<'a> {
    fn of(texts: &'a Texts<'_>) -> PyResult<Self> {
        Ok(Self { bounds: texts.0.as_slice()?, data: texts.1.as_slice()? })
    }

    fn range(&self, row: usize) -> Option<(usize, usize)> {
        let (start, end) = (*self.bounds.get(row)?, *self.bounds.get(row.checked_add(1)?)?);
        Some((usize::try_from(start).ok()?, usize::try_from(end).ok()?))
    }

    fn get(&self, row: usize) -> Option<&'a [u8]> {
        let (start, end) = self.range(row)?;
        self.data.get(start..end)
    }
}

/// Where the records go: physical offset of the first, room to the segment's end, bytes after which the call ends, store time,
/// longest body, longest record.
type Place = (i64, i64, i64, i64, i64, i64);

/// Columns by row: queue (a number in `queues`), host (a number in `hosts`), flag, sys flag, born time, reconsume times.
type Heads<'py> = (
    PyReadonlyArray1<'py, i32>,
    PyReadonlyArray1<'py, i32>,
    PyReadonlyArray1<'py, i32>,
    PyReadonlyArray1<'py, i32>,
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, i32>,
);

#[derive(Default)]
struct Encoded {
    data: Vec<u8>,
    refusal: Vec<u8>,
    size: Vec<i32>,
    queue_offset: Vec<i64>,
    tags_code: Vec<i64>,
    key_row: Vec<u32>,
    key_hash: Vec<i32>,
}

struct Batch<'a> {
    queues: &'a [(Topic<'a>, i32)],
    hosts: &'a [Vec<u8>],
    queue: &'a [i32],
    host: &'a [i32],
    flag: &'a [i32],
    sys_flag: &'a [i32],
    born: &'a [i64],
    reconsume: &'a [i32],
    bodies: Column<'a>,
    pair_bounds: Column<'a>,
    names: Column<'a>,
    values: Column<'a>,
    added: &'a [(Vec<u8>, Vec<u8>)],
    store_host: &'a [u8],
    place: Place,
    rules: Rules,
}

impl Batch<'_> {
    /// Encodes rows from `first` on until the room or the wanted bytes are used up. None: the columns do not fit each other.
    fn encode(&self, first: usize, next_queue_offset: &mut [i64]) -> Option<Encoded> {
        let (phy_offset, room, most_bytes, store_ms, longest_body, longest_record) = self.place;
        let (room, most_bytes) = (usize::try_from(room).ok()?, usize::try_from(most_bytes).ok()?);
        let mut found = Encoded::default();
        let (mut pairs, mut text) = (Vec::new(), Vec::new());
        for row in first..self.queue.len() {
            if found.data.len() >= most_bytes {
                break;
            }
            let queue = usize::try_from(*self.queue.get(row)?).ok()?;
            let (topic, queue_id) = self.queues.get(queue)?;
            let next = next_queue_offset.get_mut(queue)?;
            let body = self.bodies.get(row)?;
            let sys_flag = *self.sys_flag.get(row)?;
            let at = phy_offset.checked_add(i64::try_from(found.data.len()).ok()?)?;
            let numbers = (
                *queue_id,
                *self.flag.get(row)?,
                *next,
                at,
                sys_flag,
                *self.born.get(row)?,
                store_ms,
                *self.reconsume.get(row)?,
                0,
            );
            self.pairs(row, &mut pairs)?;
            text.clear();
            let made = join(&pairs, self.rules, &mut text).and_then(|known| {
                let record = Record {
                    topic,
                    numbers,
                    born_host: self.hosts.get(*self.host.get(row).unwrap_or(&-1) as usize).map_or(&[], Vec::as_slice),
                    store_host: self.store_host,
                    body,
                    properties: &text,
                    property_crc: self.rules.1,
                };
                let size = record.size()?;
                if body.len() as i64 > longest_body {
                    return Err(REFUSED_BODY);
                }
                if size as i64 > longest_record {
                    return Err(REFUSED_RECORD);
                }
                Ok((known, record, size))
            });
            let (known, record, size) = match made {
                Ok(made) => made,
                Err(refusal) => {
                    found.add_row(refusal, 0, *next, 0);
                    continue;
                }
            };
            if !is_host(record.born_host) {
                return None;
            }
            if found.data.len() + size + PREFIX_SIZE > room {
                break;
            }
            record.write(size, &mut found.data);
            if sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK {
                let number = u32::try_from(found.size.len()).ok()?;
                add_hashes(topic, &known, self.rules.3, |hash| {
                    found.key_row.push(number);
                    found.key_hash.push(hash);
                });
            }
            found.add_row(REFUSED_NOT, i32::try_from(size).ok()?, *next, properties::tags_code(known.tags));
            *next = next.checked_add(1)?;
        }
        Some(found)
    }

    /// Puts the properties of a row into `pairs`.
    fn pairs<'b>(&'b self, row: usize, pairs: &mut Vec<Pair<'b>>) -> Option<()> {
        let (start, end) = self.pair_bounds.range(row)?;
        pairs.clear();
        for number in start..end {
            pairs.push(Pair { name: self.names.get(number)?, value: self.values.get(number)?, arrival: pairs.len() });
        }
        for (name, value) in self.added {
            pairs.push(Pair { name, value, arrival: pairs.len() });
        }
        arrange(pairs, self.rules.2);
        Some(())
    }
}

impl Encoded {
    fn add_row(&mut self, refusal: Refusal, size: i32, queue_offset: i64, tags_code: i64) {
        self.refusal.push(refusal);
        self.size.push(size);
        self.queue_offset.push(queue_offset);
        self.tags_code.push(tags_code);
    }
}

type Longs<'py> = Bound<'py, PyArray1<i64>>;
type Ints<'py> = Bound<'py, PyArray1<i32>>;
/// Records, refusals, sizes, queue offsets, tags codes; row and hash of each index key.
type Columns<'py> = (
    Bound<'py, PyArray1<u8>>,
    Bound<'py, PyArray1<u8>>,
    Ints<'py>,
    Longs<'py>,
    Longs<'py>,
    Bound<'py, PyArray1<u32>>,
    Ints<'py>,
);

/// Records of a batch; see `store_core.kernel.encode`.
#[pyfunction]
#[pyo3(signature = (queues, next_queue_offset, hosts, heads, bodies, pair_bounds, names, values, added, first, place, store_host, rules, /))]
#[allow(clippy::too_many_arguments)] // one for each column
pub fn encode_records<'py>(
    py: Python<'py>,
    queues: Vec<(String, i32)>,
    mut next_queue_offset: PyReadwriteArray1<'py, i64>,
    hosts: Vec<Vec<u8>>,
    heads: Heads<'py>,
    bodies: Texts<'py>,
    pair_bounds: PyReadonlyArray1<'py, i64>,
    names: Texts<'py>,
    values: Texts<'py>,
    added: Vec<(Vec<u8>, Vec<u8>)>,
    first: usize,
    place: Place,
    store_host: Vec<u8>,
    rules: Rules,
) -> PyResult<Columns<'py>> {
    if !is_host(&store_host) {
        return Err(PyValueError::new_err("a host has 8 or 20 bytes"));
    }
    let queues: Vec<(Topic<'_>, i32)> = queues.iter().map(|(topic, id)| (Topic::of(topic), *id)).collect();
    let batch = Batch {
        queues: &queues,
        hosts: &hosts,
        queue: heads.0.as_slice()?,
        host: heads.1.as_slice()?,
        flag: heads.2.as_slice()?,
        sys_flag: heads.3.as_slice()?,
        born: heads.4.as_slice()?,
        reconsume: heads.5.as_slice()?,
        bodies: Column::of(&bodies)?,
        pair_bounds: Column { bounds: pair_bounds.as_slice()?, data: &[] },
        names: Column::of(&names)?,
        values: Column::of(&values)?,
        added: &added,
        store_host: &store_host,
        place,
        rules,
    };
    let next = next_queue_offset.as_slice_mut()?;
    let found = py.detach(|| batch.encode(first, next)).ok_or_else(nonsense)?;
    Ok((
        found.data.into_pyarray(py),
        found.refusal.into_pyarray(py),
        found.size.into_pyarray(py),
        found.queue_offset.into_pyarray(py),
        found.tags_code.into_pyarray(py),
        found.key_row.into_pyarray(py),
        found.key_hash.into_pyarray(py),
    ))
}
