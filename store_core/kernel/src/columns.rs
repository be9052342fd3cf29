//! What a call returns: one vector a column, which numpy takes over without a copy.

use std::collections::HashMap;

use numpy::IntoPyArray;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::layout::*;
use crate::properties;

macro_rules! columns {
    ($($name:ident: $type:ty,)*) => {
        /// One frame: an item of each column.
        #[derive(Clone, Copy, Default)]
        pub struct Row {
            $(pub $name: $type,)*
        }

        /// The frames of a window, in log order.
        #[derive(Default)]
        struct Frames {
            $($name: Vec<$type>,)*
        }

        impl Frames {
            fn with_capacity(rows: usize) -> Self {
                Self { $($name: Vec::with_capacity(rows),)* }
            }

            #[inline(always)]
            fn push(&mut self, row: &Row) {
                $(self.$name.push(row.$name);)*
            }

            fn add_to(self, dict: &Bound<'_, PyDict>) -> PyResult<()> {
                $(dict.set_item(stringify!($name), self.$name.into_pyarray(dict.py()))?;)*
                Ok(())
            }
        }
    };
}

columns! {
    kind: u8,
    code: u8,
    phy_offset: i64,
    size_bytes: i64,
    magic: i32,
    body_crc: i32,
    queue_id: i32,
    flag: i32,
    queue_offset: i64,
    own_phy_offset: i64,
    sys_flag: i32,
    born_timestamp_ms: i64,
    store_timestamp_ms: i64,
    reconsume_times: i32,
    prepared_transaction_offset: i64,
    body_at: u32,
    body_length: i32,
    topic_at: u32,
    topic_length: i32,
    properties_at: u32,
    properties_length: i32,
    topic_id: i32,
    tags_code: i64,
    delay_level: i32,
    property_flags: u16,
}

/// Where the walk has come to. With `need_bytes` it can not go on in this window.
#[derive(Clone, Copy)]
pub struct Stop {
    pub at: usize,
    pub state: u8,
    pub need_bytes: usize,
}

impl Stop {
    pub fn at(at: usize, state: u8) -> Self {
        Self { at, state, need_bytes: 0 }
    }
}

/// A topic of the window.
pub struct Topic {
    pub name: Vec<u8>,
    /// Java's hash of the topic and the joint in front of a key, of tags.
    pub key_prefix: u32,
    pub tag_prefix: u32,
    pub is_schedule: bool,
}

const RECENT: usize = 256;

/// The topics of a window, in the order they first appear.
pub struct Topics {
    all: Vec<Topic>,
    ids: HashMap<Vec<u8>, usize>,
    /// Ids by a cheap mark of the name; looked at first.
    recent: [usize; RECENT],
}

impl Topics {
    fn new() -> Self {
        Self { all: Vec::new(), ids: HashMap::new(), recent: [0; RECENT] }
    }

    /// The topic of this name and its id.
    #[inline]
    pub fn get_or_add(&mut self, name: &[u8]) -> (usize, Option<&Topic>) {
        let slot = mark(name);
        let recent = self.recent.get(slot).copied().unwrap_or(0);
        let id = match self.all.get(recent) {
            Some(topic) if topic.name == name => recent,
            _ => self.look_up(name, slot),
        };
        (id, self.all.get(id))
    }

    #[cold]
    fn look_up(&mut self, name: &[u8], slot: usize) -> usize {
        let id = self.ids.get(name).copied().unwrap_or_else(|| self.add(name));
        if let Some(recent) = self.recent.get_mut(slot) {
            *recent = id;
        }
        id
    }

    fn add(&mut self, name: &[u8]) -> usize {
        let id = self.all.len();
        let hash = properties::hash(0, name);
        self.all.push(Topic {
            name: name.to_vec(),
            key_prefix: properties::hash(hash, INDEX_KEY_JOINT),
            tag_prefix: properties::hash(hash, INDEX_TAG_JOINT),
            is_schedule: name == SCHEDULE_TOPIC,
        });
        self.ids.insert(name.to_vec(), id);
        id
    }
}

/// Topics of a broker differ in length and in their last letters.
#[inline]
fn mark(name: &[u8]) -> usize {
    let tail = name.last_chunk::<4>().map_or(0, |tail| u32::from_le_bytes(*tail));
    let mixed = (tail ^ (name.len() as u32).rotate_left(16)).wrapping_mul(0x9E37_79B1);
    (mixed >> 24) as usize
}

/// Everything a call returns.
pub struct Columns {
    frames: Frames,
    pub topics: Topics,
    key_row: Vec<u32>,
    key_hash: Vec<i32>,
    message_count: usize,
    good_rows: usize,
    first: Option<Row>,
    last: Row,
    /// Whether the last row is a run of messages.
    in_run: bool,
}

const TYPICAL_RECORD: usize = 400;

impl Columns {
    pub fn for_window(bytes: usize, flags: u32) -> Self {
        Self::for_rows(if flags & RUNS != 0 { 1 } else { bytes / TYPICAL_RECORD + 1 })
    }

    pub fn for_rows(rows: usize) -> Self {
        Self {
            frames: Frames::with_capacity(rows),
            topics: Topics::new(),
            key_row: Vec::new(),
            key_hash: Vec::new(),
            message_count: 0,
            good_rows: 0,
            first: None,
            last: Row::default(),
            in_run: false,
        }
    }

    pub fn len(&self) -> usize {
        self.frames.kind.len()
    }

    #[inline(always)]
    pub fn add_message(&mut self, row: &Row) {
        self.frames.push(row);
        if self.first.is_none() {
            self.first = Some(*row);
        }
        self.last.kind = MESSAGE;
        self.message_count += 1;
        self.good_rows += usize::from(row.code == OK);
        self.in_run = false;
    }

    /// A message that is told of in one row with its neighbours; they lie back to back.
    #[inline(always)]
    pub fn add_to_run(&mut self, phy_offset: i64, size_bytes: i64) {
        self.message_count += 1;
        if self.in_run {
            if let Some(run_size) = self.frames.size_bytes.last_mut() {
                *run_size += size_bytes;
            }
            return;
        }
        let row = Row { kind: MESSAGE, code: OK, phy_offset, size_bytes, topic_id: -1, ..Row::default() };
        self.frames.push(&row);
        if self.first.is_none() {
            self.first = Some(row);
        }
        self.last.kind = MESSAGE;
        self.good_rows += 1;
        self.in_run = true;
    }

    /// A row that is no message; goes into the last row if that is of the same kind and ends here.
    pub fn add_other(&mut self, kind: u8, code: u8, phy_offset: i64, size_bytes: i64) {
        let follows =
            self.first.is_some() && self.last.phy_offset.checked_add(self.last.size_bytes) == Some(phy_offset);
        if kind != BLANK && self.last.kind == kind && follows {
            self.last.size_bytes += size_bytes;
            if let Some(last_size) = self.frames.size_bytes.last_mut() {
                *last_size = self.last.size_bytes;
            }
            return;
        }
        self.in_run = false;
        self.last = Row { kind, code, phy_offset, size_bytes, topic_id: -1, ..Row::default() };
        self.frames.push(&self.last);
        if self.first.is_none() {
            self.first = Some(self.last);
        }
    }

    #[inline]
    pub fn add_key(&mut self, row: u32, hash: u32) {
        self.key_row.push(row);
        self.key_hash.push(properties::index_hash(hash));
    }

    /// Whether the first row has this kind and starts here.
    pub fn begins_with(&self, kind: u8, phy_offset: i64) -> bool {
        self.first.is_some_and(|first| first.kind == kind && first.phy_offset == phy_offset)
    }

    /// Rows as Python tuples: kind, code, phy_offset, size_bytes, own_phy_offset, queue_id, queue_offset, topic.
    pub fn into_rows<'py>(self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>, usize)> {
        let frames = &self.frames;
        let topics: Vec<_> = self.topics.all.iter().map(|topic| PyBytes::new(py, &topic.name)).collect();
        let (rows, none) = (PyList::empty(py), PyBytes::new(py, b""));
        let place = frames.phy_offset.iter().zip(&frames.size_bytes);
        let queue = frames.queue_id.iter().zip(&frames.queue_offset);
        let what = frames.kind.iter().zip(&frames.code).zip(&frames.topic_id);
        for (((((kind, code), topic), place), queue), own) in what.zip(place).zip(queue).zip(&frames.own_phy_offset) {
            let topic = usize::try_from(*topic).ok().and_then(|id| topics.get(id)).unwrap_or(&none);
            rows.append((*kind, *code, *place.0, *place.1, *own, *queue.0, *queue.1, topic))?;
        }
        Ok((rows, self.message_count))
    }

    pub fn into_dict<'py>(self, py: Python<'py>, stop: Stop, continues: bool) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("odd_count", self.len() - self.good_rows)?;
        self.frames.add_to(&dict)?;
        dict.set_item("key_row", self.key_row.into_pyarray(py))?;
        dict.set_item("key_hash", self.key_hash.into_pyarray(py))?;
        let topics: Vec<_> = self.topics.all.iter().map(|topic| PyBytes::new(py, &topic.name)).collect();
        dict.set_item("topics", topics)?;
        dict.set_item("message_count", self.message_count)?;
        dict.set_item("next_at", stop.at)?;
        dict.set_item("next_state", stop.state)?;
        dict.set_item("need_bytes", stop.need_bytes)?;
        dict.set_item("continues", continues)?;
        Ok(dict)
    }
}
