//! What many queue entries tell together, for who follows a broker's start (twin: reference/entries.py).

use std::fs::File;
use std::io::{ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::file;
use crate::layout::{QUEUE_ENTRY_PHY_OFFSET_AT, QUEUE_ENTRY_SIZE, QUEUE_ENTRY_SIZE_BYTES_AT};
use crate::record::{i32_at, i64_at};

type Ints<'py> = Bound<'py, PyArray1<i64>>;
/// Segment, sum, records, highest end.
type Part = (usize, u64, i64, i64);
/// How many, log offset of the first, of the last, the last one's size.
type Told = (usize, i64, i64, i64, Vec<Part>);

/// Read at a time: stays in the processor's cache.
const ENTRIES_A_BLOCK: usize = 12 << 10;

fn checked(width: usize) -> PyResult<usize> {
    // Entries of batch queues are longer, and begin in the same way.
    if width < QUEUE_ENTRY_SIZE {
        return Err(PyValueError::new_err("an entry can not be that short"));
    }
    Ok(width)
}

/// Log offset and size that an entry tells of.
#[inline(always)]
fn place(entry: &[u8]) -> (i64, i64) {
    let phy_offset = i64_at(entry, QUEUE_ENTRY_PHY_OFFSET_AT).unwrap_or(0);
    (phy_offset, i32_at(entry, QUEUE_ENTRY_SIZE_BYTES_AT).unwrap_or(0).into())
}

/// How many entries in front can be; see `store_core.kernel.entries`.
#[pyfunction]
#[pyo3(signature = (entries, width, below, highest, room, /))]
pub fn good_run(
    py: Python<'_>,
    entries: PyReadonlyArray1<'_, u8>,
    width: usize,
    below: u64,
    mut highest: i64,
    room: usize,
) -> PyResult<(usize, i64, Vec<usize>)> {
    let (entries, width) = (entries.as_slice()?, checked(width)?);
    Ok(py.detach(|| {
        let mut falling = Vec::new();
        let mut count = 0;
        for entry in entries.chunks_exact(width) {
            let (phy_offset, size_bytes) = place(entry);
            if phy_offset < 0 || phy_offset as u64 >= below || size_bytes <= 0 {
                break;
            }
            if phy_offset >= highest {
                highest = phy_offset;
            } else if falling.len() < room {
                falling.push(count);
            }
            count += 1;
        }
        (count, highest, falling)
    }))
}

/// Sums by which entries show that they follow each other; see `store_core.kernel.entries`.
#[pyfunction]
#[pyo3(signature = (entries, width, starts, ends, most_bytes, /))]
pub fn chain_sums<'py>(
    py: Python<'py>,
    entries: PyReadonlyArray1<'py, u8>,
    width: usize,
    starts: PyReadonlyArray1<'py, i64>,
    ends: PyReadonlyArray1<'py, i64>,
    most_bytes: i64,
) -> PyResult<(Bound<'py, PyArray1<u64>>, Ints<'py>, Ints<'py>)> {
    let (entries, width) = (entries.as_slice()?, checked(width)?);
    let (starts, ends) = (starts.as_slice()?, ends.as_slice()?);
    let (sums, counts, last) = py.detach(|| {
        let mut sums = vec![0_u64; starts.len()];
        let (mut counts, mut last) = (vec![0_i64; starts.len()], vec![0_i64; starts.len()]);
        for entry in entries.chunks_exact(width) {
            let (begin, size_bytes) = place(entry);
            let segment = starts.partition_point(|start| *start <= begin).wrapping_sub(1);
            let (Some(sum), Some(end)) = (sums.get_mut(segment), ends.get(segment)) else { continue };
            let (Some(count), Some(last)) = (counts.get_mut(segment), last.get_mut(segment)) else { continue };
            if size_bytes <= 0 || size_bytes > most_bytes || begin >= *end {
                continue;
            }
            let stop = begin.wrapping_add(size_bytes);
            *sum = sum.wrapping_add(hash(begin)).wrapping_sub(hash(stop));
            *count += 1;
            *last = (*last).max(stop);
        }
        (sums, counts, last)
    });
    Ok((sums.into_pyarray(py), counts.into_pyarray(py), last.into_pyarray(py)))
}

/// The entries in front of a queue's file, if each points behind the one before; see `store_core.kernel.entry_runs`.
#[pyfunction]
#[pyo3(signature = (path, open_flags, noatime, starts, ends, most_bytes, /))]
pub fn read_run(
    py: Python<'_>,
    path: PathBuf,
    open_flags: i32,
    noatime: i32,
    starts: Vec<i64>,
    ends: Vec<i64>,
    most_bytes: i64,
) -> PyResult<Option<Told>> {
    py.detach(|| {
        let file = file::open(&path, open_flags, noatime)?;
        let mut block = vec![0_u8; ENTRIES_A_BLOCK * QUEUE_ENTRY_SIZE];
        let mut run = Run { starts: &starts, ends: &ends, most_bytes, ..Run::default() };
        let mut at = 0;
        loop {
            let len = fill(&file, &mut block, at)?;
            at += len as u64;
            if !run.add(block.get(..len).unwrap_or_default()) || len < block.len() {
                break;
            }
        }
        run.close_part();
        Ok(run.rises.then_some((run.count, run.first, run.last, run.last_size, run.parts)))
    })
    .map_err(file::as_python_error)
}

/// As much as there is, up to a whole block.
fn fill(file: &File, block: &mut [u8], at: u64) -> Result<usize> {
    let mut len = 0;
    while let Some(room) = block.get_mut(len..).filter(|room| !room.is_empty()) {
        match file.read_at(room, at + len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// What `read_run` has seen so far.
struct Run<'a> {
    starts: &'a [i64],
    ends: &'a [i64],
    most_bytes: i64,
    count: usize,
    first: i64,
    last: i64,
    last_size: i64,
    rises: bool,
    segment: usize,
    /// The part of the log that `segment` is, up to the next one's start.
    from: i64,
    below: i64,
    end: i64,
    part: Part,
    parts: Vec<Part>,
}

impl Default for Run<'_> {
    fn default() -> Self {
        Self {
            starts: &[],
            ends: &[],
            most_bytes: 0,
            count: 0,
            first: -1,
            last: -1,
            last_size: 0,
            rises: true,
            segment: usize::MAX,
            from: 0,
            below: 0,
            end: 0,
            part: (usize::MAX, 0, 0, 0),
            parts: Vec::new(),
        }
    }
}

impl Run<'_> {
    /// Whether all of these go on with the run.
    fn add(&mut self, entries: &[u8]) -> bool {
        for entry in entries.chunks_exact(QUEUE_ENTRY_SIZE) {
            let (begin, size_bytes) = place(entry);
            if begin < 0 || size_bytes <= 0 {
                return false;
            }
            if begin < self.last {
                self.rises = false;
                return false;
            }
            if self.count == 0 {
                self.first = begin;
            }
            self.count += 1;
            (self.last, self.last_size) = (begin, size_bytes);
            if begin < self.from || begin >= self.below {
                self.open_part(begin);
            }
            if begin >= self.end || size_bytes > self.most_bytes {
                continue;
            }
            let stop = begin.wrapping_add(size_bytes);
            let (_, sum, records, last) = &mut self.part;
            *sum = sum.wrapping_add(hash(begin)).wrapping_sub(hash(stop));
            *records += 1;
            *last = (*last).max(stop);
        }
        true
    }

    /// Goes on in the segment that an offset lies in, or lies behind.
    fn open_part(&mut self, begin: i64) {
        self.close_part();
        self.segment = self.starts.partition_point(|start| *start <= begin).wrapping_sub(1);
        let next = self.starts.get(self.segment.wrapping_add(1));
        self.below = next.copied().unwrap_or(i64::MAX);
        self.from = self.starts.get(self.segment).copied().unwrap_or(0);
        self.end = self.ends.get(self.segment).copied().unwrap_or(0);
    }

    fn close_part(&mut self) {
        let (_, sum, records, last) = self.part;
        if records > 0 {
            self.parts.push((self.segment, sum, records, last));
        }
        self.part = (usize::MAX, 0, 0, 0);
    }
}

/// Far apart for neighbours, so that sums of them tell sets of numbers apart.
#[inline(always)]
fn hash(value: i64) -> u64 {
    let mut mixed = value.cast_unsigned();
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
