//! Queue entries and the records they point to, as columns (twin: in store_core/kernel/tables.py).

use std::fs::File;
use std::io::{ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::file;
use crate::layout::*;
use crate::record::{i32_at, i64_at};
use crate::records::Columns;
use crate::tasks;

/// So much is read before it is cut: it stays in the nearest cache that has room for it.
const BLOCK: usize = 256 << 10;

/// Which segment's records the entries from a row on point to, how many rows that are, and what their records take.
#[pyfunction]
#[pyo3(signature = (entries, row, starts, ends, most_bytes, /))]
pub fn plan_table(
    entries: &[u8],
    row: usize,
    starts: PyReadonlyArray1<'_, i64>,
    ends: PyReadonlyArray1<'_, i64>,
    most_bytes: i64,
) -> PyResult<(i64, usize, i64)> {
    let spans = Spans { starts: starts.as_slice()?, ends: ends.as_slice()? };
    let mut rows = 0;
    let mut total = 0;
    let mut number = None;
    let mut end_before: Option<i64> = None;
    for entry in Entry::some(entries, row, usize::MAX) {
        if number.is_none_or(|known: Option<usize>| !spans.holds(known, &entry)) {
            if number.is_some() {
                break;
            }
            number = Some(spans.find(&entry));
        }
        if let Some(Some(_)) = number {
            let gap = end_before.and_then(|end| entry.phy_offset.checked_sub(end)).filter(is_near).unwrap_or(0);
            if rows > 0 && total + gap + entry.size_bytes > most_bytes {
                break;
            }
            total += gap + entry.size_bytes;
            end_before = Some(entry.phy_offset + entry.size_bytes);
        }
        rows += 1;
    }
    let number = number.flatten().and_then(|number| i64::try_from(number).ok());
    Ok((number.unwrap_or(-1), rows, total))
}

/// Places in the window, offsets, sizes and tags codes of entries, and the heads of their records.
type Told<'py> = (
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyDict>,
);

/// Entries whose records lie in a window that begins at `start` of the log.
#[pyfunction]
#[pyo3(signature = (entries, row, rows, window, start, /))]
pub fn cut_table<'py>(
    py: Python<'py>,
    entries: &[u8],
    row: usize,
    rows: usize,
    window: PyReadonlyArray1<'py, u8>,
    start: i64,
) -> PyResult<Told<'py>> {
    let window = window.as_slice()?;
    if u32::try_from(window.len()).is_err() {
        return Err(PyValueError::new_err("the window is too long"));
    }
    py.detach(|| {
        let mut table = Table::of(entries, row, rows, |phy_offset| phy_offset.wrapping_sub(start));
        table.columns = table.cut(window);
        table
    })
    .into_told(py)
}

/// Entries whose records lie in a file that begins at `start` of the log: these are read into the buffer, back to back but
/// for small gaps. Gives how much of it is filled, too.
#[pyfunction]
#[pyo3(signature = (entries, row, rows, path, open_flags, noatime, start, buffer, /))]
#[allow(clippy::too_many_arguments)] // as the twin's
pub fn read_table<'py>(
    py: Python<'py>,
    entries: &[u8],
    row: usize,
    rows: usize,
    path: PathBuf,
    open_flags: i32,
    noatime: i32,
    start: i64,
    mut buffer: PyReadwriteArray1<'py, u8>,
) -> PyResult<(Told<'py>, usize)> {
    let buffer = buffer.as_slice_mut()?;
    let (table, filled) = py
        .detach(|| {
            let file = file::open(&path, open_flags, noatime)?;
            let mut table = Table::of(entries, row, rows, |phy_offset| phy_offset.wrapping_sub(start));
            let runs = table.gather();
            table.read(&file, &runs, buffer).map(|filled| (table, filled))
        })
        .map_err(file::as_python_error)?;
    Ok((table.into_told(py)?, filled))
}

struct Entry {
    phy_offset: i64,
    size_bytes: i64,
    tags_code: i64,
}

impl Entry {
    fn some(entries: &[u8], row: usize, rows: usize) -> impl Iterator<Item = Self> {
        let (entries, _) = entries.as_chunks::<QUEUE_ENTRY_SIZE>();
        entries.iter().skip(row).take(rows).map(|entry| Self {
            phy_offset: i64_at(entry, QUEUE_ENTRY_PHY_OFFSET_AT).unwrap_or(0),
            size_bytes: i32_at(entry, QUEUE_ENTRY_SIZE_BYTES_AT).unwrap_or(0).into(),
            tags_code: i64_at(entry, QUEUE_ENTRY_TAGS_CODE_AT).unwrap_or(0),
        })
    }

    /// Where the record ends, if one of this size can be there at all.
    fn end(&self) -> Option<i64> {
        let can_be =
            usize::try_from(self.size_bytes).is_ok_and(|size| (MIN_RECORD_SIZE..=MAX_RECORD_SIZE).contains(&size));
        if can_be { self.phy_offset.checked_add(self.size_bytes) } else { None }
    }
}

fn is_near(gap: &i64) -> bool {
    (0..=NEIGHBOUR_GAP).contains(gap)
}

/// Where segments begin and end in the log.
struct Spans<'a> {
    starts: &'a [i64],
    ends: &'a [i64],
}

impl Spans<'_> {
    /// The segment that holds the whole record; None if none can.
    fn find(&self, entry: &Entry) -> Option<usize> {
        let number = self.starts.partition_point(|start| *start <= entry.phy_offset).checked_sub(1)?;
        (entry.end()? <= *self.ends.get(number)?).then_some(number)
    }

    /// Whether that is what `find` gives.
    fn holds(&self, known: Option<usize>, entry: &Entry) -> bool {
        let Some((number, start)) = known.and_then(|number| Some((number, self.starts.get(number)?))) else {
            return self.find(entry).is_none();
        };
        let behind = self.starts.get(number + 1).copied().unwrap_or(i64::MAX);
        let end = self.ends.get(number).copied().unwrap_or(0);
        (*start..behind).contains(&entry.phy_offset) && entry.end().is_some_and(|stop| stop <= end)
    }
}

/// Neighbours in a file, and where they come to lie.
struct Run {
    file_at: u64,
    begin: usize,
    bytes: usize,
    rows: usize,
}

struct Table {
    at: Vec<i64>,
    phy_offset: Vec<i64>,
    size_bytes: Vec<i64>,
    tags_code: Vec<i64>,
    columns: Columns,
}

impl Table {
    fn of(entries: &[u8], row: usize, rows: usize, place: impl Fn(i64) -> i64) -> Self {
        let column = |of: fn(Entry) -> i64| Entry::some(entries, row, rows).map(of).collect::<Vec<i64>>();
        let phy_offset = column(|entry| entry.phy_offset);
        Self {
            at: phy_offset.iter().map(|phy_offset| place(*phy_offset)).collect(),
            phy_offset,
            size_bytes: column(|entry| entry.size_bytes),
            tags_code: column(|entry| entry.tags_code),
            columns: Columns::default(),
        }
    }

    /// The heads of records that lie in a window.
    fn cut(&self, window: &[u8]) -> Columns {
        let bytes: i64 = self.size_bytes.iter().fold(0, |sum, size| sum.saturating_add((*size).max(0)));
        let share = self.at.len().div_ceil(tasks::worth(usize::try_from(bytes).unwrap_or(0))).max(1);
        let parts = self.at.chunks(share).zip(self.size_bytes.chunks(share)).collect();
        joined(tasks::all(parts, |(at, size_bytes)| {
            let mut columns = Columns::for_rows(at.len());
            columns.cut::<true>(window, 0, at, size_bytes);
            columns
        }))
    }

    /// Turns places in the file into places in a buffer that holds neighbours together.
    fn gather(&mut self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut file_end = 0; // of the record in front
        let mut end = 0; // of it in the buffer
        for (at, size) in self.at.iter_mut().zip(&self.size_bytes) {
            let size = usize::try_from(*size).unwrap_or(0);
            let gap = at.checked_sub(file_end).filter(|gap| !runs.is_empty() && is_near(gap)).unwrap_or(0);
            let is_neighbour = !runs.is_empty() && at.checked_sub(file_end) == Some(gap);
            let begin = end + usize::try_from(gap).unwrap_or(0);
            let bytes = begin - end + size;
            match runs.last_mut() {
                Some(run) if is_neighbour && run.bytes < BLOCK => {
                    run.bytes += bytes;
                    run.rows += 1;
                }
                _ => {
                    let file_at = u64::try_from(*at - gap).unwrap_or(u64::MAX);
                    runs.push(Run { file_at, begin: end, bytes, rows: 1 });
                }
            }
            file_end = at.saturating_add(i64::try_from(size).unwrap_or(i64::MAX));
            *at = i64::try_from(begin).unwrap_or(-1);
            end = begin + size;
        }
        runs
    }

    /// Reads and cuts; gives how much was there, up to the first run that the file does not hold whole.
    fn read(&mut self, file: &File, runs: &[Run], buffer: &mut [u8]) -> Result<usize> {
        let tasks = tasks::worth(runs.iter().map(|run| run.bytes).sum());
        let parts = self.parts(runs, buffer, tasks);
        let mut done = tasks::all(parts, |part| part.read(file)).into_iter().collect::<Result<Vec<_>>>()?;
        let first_short = done.iter().position(|part| part.is_short).map_or(done.len(), |number| number + 1);
        if first_short < done.len() {
            // The file is being cut under us.
            done = self.parts(runs, buffer, 1).into_iter().map(|part| part.read(file)).collect::<Result<Vec<_>>>()?;
        }
        let filled = done.last().map_or(0, |part| part.filled);
        self.columns = joined(done.into_iter().map(|part| part.columns).collect());
        Ok(filled)
    }

    /// Runs side by side with their rows and their parts of the buffer, of about the same size each.
    fn parts<'a>(&'a self, runs: &'a [Run], buffer: &'a mut [u8], count: usize) -> Vec<Part<'a>> {
        let end_of = |run: &Run| run.begin + run.bytes;
        let share = runs.last().map_or(0, end_of).div_ceil(count.max(1));
        let (mut at, mut size_bytes, mut buffer) = (&self.at[..], &self.size_bytes[..], buffer);
        let mut base = 0;
        let mut parts = Vec::new();
        for runs in runs.chunk_by(|run, next| run.begin / share.max(1) == next.begin / share.max(1)) {
            let rows = runs.iter().map(|run| run.rows).sum::<usize>().min(at.len());
            let end = runs.last().map_or(base, end_of);
            let own = buffer.split_off_mut(..(end - base).min(buffer.len())).unwrap_or(&mut []);
            let (own_at, own_size) = (at.split_at(rows), size_bytes.split_at(rows));
            // Made here, as what another thread takes of the system's memory is new to it; the first gets all rows in the end.
            let columns = Columns::for_rows(if parts.is_empty() { self.at.len() } else { rows });
            parts.push(Part { runs, at: own_at.0, size_bytes: own_size.0, buffer: own, base, columns });
            (at, size_bytes) = (own_at.1, own_size.1);
            base = end;
        }
        parts
    }

    fn into_told(self, py: Python<'_>) -> PyResult<Told<'_>> {
        Ok((
            self.at.into_pyarray(py),
            self.phy_offset.into_pyarray(py),
            self.size_bytes.into_pyarray(py),
            self.tags_code.into_pyarray(py),
            self.columns.into_dict(py)?,
        ))
    }
}

fn joined(parts: Vec<Columns>) -> Columns {
    let mut parts = parts.into_iter();
    let mut whole = parts.next().unwrap_or_default();
    parts.for_each(|mut part| whole.append(&mut part));
    whole
}

/// What one thread reads and cuts.
struct Part<'a> {
    runs: &'a [Run],
    at: &'a [i64],
    size_bytes: &'a [i64],
    buffer: &'a mut [u8],
    /// Where this part begins in the whole buffer.
    base: usize,
    columns: Columns,
}

struct Done {
    columns: Columns,
    filled: usize,
    is_short: bool,
}

impl Part<'_> {
    fn read(self, file: &File) -> Result<Done> {
        let base = i64::try_from(self.base).unwrap_or(0);
        let mut done = Done { columns: self.columns, filled: self.base, is_short: false };
        let mut left = (self.at, self.size_bytes);
        let mut rows = 0; // read and not cut
        let mut bytes = 0; // of them
        for (number, run) in self.runs.iter().enumerate() {
            let begin = run.begin - self.base;
            let room = self.buffer.get_mut(begin..begin + run.bytes).unwrap_or(&mut []);
            let count = read_full(file, room, run.file_at)?;
            done.filled = run.begin + count;
            done.is_short = count < run.bytes;
            rows += run.rows;
            bytes += run.bytes;
            let is_last = done.is_short || number + 1 == self.runs.len();
            if is_last {
                rows = left.0.len();
            }
            if is_last || bytes >= BLOCK {
                let (at, size_bytes) =
                    (left.0.split_at(rows.min(left.0.len())), left.1.split_at(rows.min(left.1.len())));
                done.columns.cut::<false>(self.buffer.get(..begin + count).unwrap_or(&[]), base, at.0, size_bytes.0);
                left = (at.1, size_bytes.1);
                (rows, bytes) = (0, 0);
            }
            if is_last {
                break;
            }
        }
        Ok(done)
    }
}

/// As many bytes as there are, at most as many as there is room for.
fn read_full(file: &File, room: &mut [u8], at: u64) -> Result<usize> {
    let mut done = 0;
    while let Some(rest) = room.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let place = u64::try_from(done).ok().and_then(|done| at.checked_add(done));
        match file.read_at(rest, place.unwrap_or(u64::MAX)) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
