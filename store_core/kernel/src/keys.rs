//! Queries by key over mapped files: the chains of the index, the records they name, and whether those carry the key
//! (twin: in store_core/kernel/keys.py).

use std::hint::black_box;

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyTuple, PyType};

use crate::layout::*;
use crate::messages;
use crate::point::{self, Kind};
use crate::record::{self, Check, Head, i32_at, i64_at};

/// Most records lie in so many lines of the processor's cache.
const LINES_AT_ONCE: usize = 10;
const LINE: usize = 64;

/// An index and a log, both mapped; see `store_core.kernel.keys`.
#[pyclass(module = "store_core.kernel._native", frozen)]
pub struct KeyFinder {
    files: Vec<Py<PyArray1<u8>>>,
    slots: u32,
    segments: Vec<Segment>,
    map_segment: Py<PyAny>,
    message_type: Py<PyType>,
}

struct Segment {
    phy_offset: i64,
    end: i64,
    bytes: PyOnceLock<Py<PyArray1<u8>>>,
}

#[pymethods]
impl KeyFinder {
    #[new]
    #[pyo3(signature = (files, slots, segments, map_segment, message_type, /))]
    fn new(
        files: Vec<Py<PyArray1<u8>>>,
        slots: u32,
        segments: Vec<(i64, i64)>,
        map_segment: Py<PyAny>,
        message_type: Py<PyType>,
    ) -> Self {
        let segments =
            segments.into_iter().map(|(phy_offset, end)| Segment { phy_offset, end, bytes: PyOnceLock::new() });
        Self { files, slots, segments: segments.collect(), map_segment, message_type }
    }

    #[pyo3(signature = (query, /))]
    fn records<'py>(&self, query: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyList>> {
        let py = query.py();
        self.find(query, |found| {
            let record = PyBytes::new(py, found.record);
            Ok((found.phy_offset, record).into_pyobject(py)?.into_any())
        })
    }

    #[pyo3(signature = (query, /))]
    fn messages<'py>(&self, query: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyList>> {
        self.find(query, |found| self.message(query.py(), found))
    }
}

/// A well-formed record that an index names.
struct Found<'a> {
    phy_offset: i64,
    record: &'a [u8],
    head: Head,
}

impl KeyFinder {
    fn find<'py>(
        &self,
        query: &Bound<'py, PyTuple>,
        make: impl Fn(&Found<'_>) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = query.py();
        let (topic, key, kind, begin_ms, end_ms, limit): (PyBackedStr, PyBackedStr, PyBackedStr, i64, i64, usize) =
            query.extract()?;
        let asked = Asked::new(&topic, &key, &kind, begin_ms, end_ms, limit)?;
        let mut places = self.places(py, &asked)?;
        if places.len() > 1 {
            places.sort_by_key(|place| place.phy_offset);
            places.dedup_by_key(|place| place.phy_offset);
        }
        let told = PyList::empty(py);
        for place in &places {
            let rest = place.rest()?;
            let left = i64::try_from(rest.len()).unwrap_or(i64::MAX);
            let Check::Record(head) = record::check_record(rest, left) else {
                continue;
            };
            let record = rest.get(..head.size).unwrap_or(&[]);
            let found = Found { phy_offset: place.phy_offset, record, head };
            if point::carries(record, &head, asked.topic, asked.key, asked.kind)
                || query.call_method1("carried_by", (self.message(py, &found)?,))?.is_truthy()?
            {
                told.append(make(&found)?)?;
            }
        }
        Ok(told)
    }

    fn message<'py>(&self, py: Python<'py>, found: &Found<'_>) -> PyResult<Bound<'py, PyAny>> {
        let parts = messages::whole(py, found.phy_offset, found.record, &found.head)?;
        self.message_type.bind(py).call1((parts,))
    }

    /// Where records with the hash lie, newest first: of all files as many as are asked for.
    fn places<'py>(&self, py: Python<'py>, asked: &Asked<'_>) -> PyResult<Vec<Place<'py>>> {
        let mut found = Vec::new();
        let mut left = asked.limit;
        for file in &self.files {
            let file = file.bind(py).try_readonly()?;
            let mut failed = None;
            let begin = asked.walk(file.as_slice()?, self.slots, left, |phy_offset| {
                left -= 1;
                match self.place(py, phy_offset) {
                    Ok(place) => found.extend(place),
                    Err(error) => failed = Some(error),
                }
            });
            if let Some(error) = failed {
                return Err(error);
            }
            if begin < asked.begin_ms || left == 0 {
                break;
            }
        }
        Ok(found)
    }

    fn place<'py>(&self, py: Python<'py>, phy_offset: i64) -> PyResult<Option<Place<'py>>> {
        let behind = self.segments.partition_point(|segment| segment.phy_offset <= phy_offset);
        let Some((number, segment)) = behind.checked_sub(1).and_then(|n| Some((n, self.segments.get(n)?))) else {
            return Ok(None);
        };
        if phy_offset >= segment.end {
            return Ok(None);
        }
        let bytes = segment
            .bytes
            .get_or_try_init(py, || Ok::<_, PyErr>(self.map_segment.bind(py).call1((number,))?.extract()?))?;
        let at = usize::try_from(phy_offset - segment.phy_offset).unwrap_or(usize::MAX);
        let place = Place { phy_offset, segment: bytes.bind(py).try_readonly()?, at };
        place.fetch()?;
        Ok(Some(place))
    }
}

struct Place<'py> {
    phy_offset: i64,
    segment: PyReadonlyArray1<'py, u8>,
    at: usize,
}

impl Place<'_> {
    fn rest(&self) -> PyResult<&[u8]> {
        Ok(self.segment.as_slice()?.get(self.at..).unwrap_or(&[]))
    }

    /// Has the processor fetch the record while the chain is followed further.
    fn fetch(&self) -> PyResult<()> {
        let lines = self.rest()?.iter().step_by(LINE).take(LINES_AT_ONCE);
        black_box(lines.fold(0, |sum, byte| sum ^ byte));
        Ok(())
    }
}

struct Asked<'a> {
    topic: &'a str,
    key: &'a str,
    kind: Kind,
    key_hash: u32,
    begin_ms: i128, // wide enough for any begin time and any seconds
    end_ms: i128,
    limit: usize,
}

impl<'a> Asked<'a> {
    fn new(topic: &'a str, key: &'a str, kind: &str, begin_ms: i64, end_ms: i64, limit: usize) -> PyResult<Self> {
        let key_hash = point::index_key_hash(topic, key).cast_unsigned();
        let (kind, begin_ms, end_ms) = (Kind::of(kind)?, i128::from(begin_ms), i128::from(end_ms));
        Ok(Self { topic, key, kind, key_hash, begin_ms, end_ms, limit })
    }

    /// Tells each offset, newest first, `most` at most; gives the file's begin time. See `store_core.kernel.point`.
    fn walk(&self, file: &[u8], slots: u32, most: usize, tell: impl FnMut(i64)) -> i128 {
        let begin = file.get(..INDEX_HEADER_SIZE).and_then(|header| i64_at(header, INDEX_BEGIN_TIMESTAMP_AT));
        let begin = i128::from(begin.unwrap_or(0));
        self.walk_chain(file, slots, begin, most, tell);
        begin
    }

    /// None where the chain does not begin.
    fn walk_chain(&self, file: &[u8], slots: u32, begin: i128, most: usize, mut tell: impl FnMut(i64)) -> Option<()> {
        let count = i32_at(file, INDEX_COUNT_AT)?;
        if self.begin_ms > i128::from(i64_at(file, INDEX_END_TIMESTAMP_AT)?) || self.end_ms < begin || count <= 1 {
            return None;
        }
        let slot = usize::try_from(self.key_hash.checked_rem(slots)?).ok()?;
        let entries_at = INDEX_HEADER_SIZE + usize::try_from(slots).ok()? * INDEX_SLOT_SIZE;
        let mut number = i32_at(file, INDEX_HEADER_SIZE + slot * INDEX_SLOT_SIZE)?;
        if number > count {
            return None;
        }
        let mut told = 0;
        while number > 0 && told < most {
            let at = entries_at + usize::try_from(number).ok()? * INDEX_ENTRY_SIZE;
            let entry = file.get(at..at + INDEX_ENTRY_SIZE)?;
            let seconds = i32_at(entry, INDEX_SECONDS_AT)?;
            let time_ms = begin + i128::from(seconds) * 1000;
            if seconds < 0 {
                break;
            }
            let is_wanted = i32_at(entry, INDEX_KEY_HASH_AT)?.cast_unsigned() == self.key_hash;
            if is_wanted && (self.begin_ms..=self.end_ms).contains(&time_ms) {
                tell(i64_at(entry, INDEX_PHY_OFFSET_AT)?);
                told += 1;
            }
            let previous = i32_at(entry, INDEX_PREVIOUS_AT)?;
            if time_ms < self.begin_ms || previous >= number {
                break;
            }
            number = previous;
        }
        Some(())
    }
}
