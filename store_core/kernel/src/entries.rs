//! What many queue entries tell together, for who follows a broker's start (twin: reference/entries.py).

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::layout::{QUEUE_ENTRY_PHY_OFFSET_AT, QUEUE_ENTRY_SIZE, QUEUE_ENTRY_SIZE_BYTES_AT};
use crate::record::{i32_at, i64_at};

type Ints<'py> = Bound<'py, PyArray1<i64>>;

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

/// Far apart for neighbours, so that sums of them tell sets of numbers apart.
#[inline(always)]
fn hash(value: i64) -> u64 {
    let mut mixed = value.cast_unsigned();
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
