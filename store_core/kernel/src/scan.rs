//! The walk over a window as Python asks for it, who may have it begin before all of the window is there.

use std::io::Error;

use numpy::{PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::columns::{Columns, Stop};
use crate::file::{self, FileReader};
use crate::layout::IN_BAD_BLANK;
use crate::walk::{self, Window};

/// What is read at once: it stays in a processor's own cache until it has been walked.
const PART: usize = 128 << 10;

/// Rows, messages, and where the walk stopped.
type Rows<'py> = (Bound<'py, PyList>, usize, usize, u8, usize);

/// See `store_core.kernel.WindowScan`.
#[pyclass(module = "store_core.kernel._native")]
pub struct WindowScan {
    phy_offset: i64,
    segment_end: i64,
    flags: u32,
    /// What begins at this offset or after it gets no row.
    to: i64,
    /// Where the walk began, and in which state.
    begin: Stop,
    stop: Stop,
    /// None once they have been taken.
    columns: Option<Columns>,
}

#[pymethods]
impl WindowScan {
    #[new]
    #[pyo3(signature = (window_phy_offset, at, segment_end_phy_offset, state, flags, size_bytes, to=i64::MAX, /))]
    #[allow(clippy::too_many_arguments)] // as the twin's
    fn new(
        window_phy_offset: i64,
        at: i64,
        segment_end_phy_offset: i64,
        state: i64,
        flags: u32,
        size_bytes: usize,
        to: i64,
    ) -> PyResult<Self> {
        let at = usize::try_from(at).map_err(|_| nonsense())?;
        let state = u8::try_from(state).map_err(|_| nonsense())?;
        let is_possible = window_phy_offset >= 0 && segment_end_phy_offset >= window_phy_offset;
        if !is_possible || state > IN_BAD_BLANK || u32::try_from(size_bytes).is_err() {
            return Err(nonsense());
        }
        let begin = Stop::at(at, state);
        let columns = Columns::for_window(size_bytes.saturating_sub(at), flags);
        let (phy_offset, segment_end) = (window_phy_offset, segment_end_phy_offset);
        Ok(Self { phy_offset, segment_end, flags, to, begin, stop: begin, columns: Some(columns) })
    }

    #[pyo3(signature = (window, /))]
    fn go_on(&mut self, py: Python<'_>, window: PyReadonlyArray1<'_, u8>) -> PyResult<()> {
        let data = window.as_slice()?;
        self.check(data)?;
        py.detach(|| self.walk(data, 0));
        Ok(())
    }

    /// How much of the window is there then, and the number of the system's error if it is not all that could be.
    #[pyo3(signature = (file, window, have, position, /))]
    fn read_on(
        &mut self,
        py: Python<'_>,
        file: PyRef<'_, FileReader>,
        mut window: PyReadwriteArray1<'_, u8>,
        have: usize,
        position: u64,
    ) -> PyResult<(usize, i32)> {
        let (file, data) = (file.open()?, window.as_slice_mut()?);
        self.check(data)?;
        Ok(py.detach(|| {
            let mut have = have.min(data.len());
            loop {
                let end = data.len().min(have.saturating_add(PART));
                let part = data.get_mut(have..end).unwrap_or(&mut []);
                let wanted = part.len();
                let (done, error) = file::fill(file, part, position.saturating_add(have as u64));
                have += done;
                self.walk(data.get(..have).unwrap_or(&[]), 0);
                if done < wanted || have == data.len() {
                    return (have, number_of(error));
                }
            }
        }))
    }

    /// As `read_on` from the window's begin, but nothing stays of the window.
    #[pyo3(signature = (file, size_bytes, position, /))]
    fn read_through(
        &mut self,
        py: Python<'_>,
        file: PyRef<'_, FileReader>,
        size_bytes: usize,
        position: u64,
    ) -> PyResult<(usize, i32)> {
        let file = file.open()?;
        if self.columns.is_none() || u32::try_from(size_bytes).is_err() {
            return Err(nonsense());
        }
        Ok(py.detach(|| {
            // Of the window, `have` bytes from `begin` on are still needed; they stand in front of what is read next.
            let mut room = vec![0; 2 * PART];
            let (mut start, mut begin, mut have) = (0, 0, 0);
            loop {
                let wanted = PART.min(size_bytes - begin - have);
                if room.len() < start + have + wanted {
                    room.resize(start + have + wanted, 0); // a long record
                }
                let part = room.get_mut(start + have..start + have + wanted).unwrap_or(&mut []);
                let (done, error) = file::fill(file, part, position.saturating_add((begin + have) as u64));
                have += done;
                self.walk(room.get(start..start + have).unwrap_or(&[]), begin);
                if done < wanted || begin + have == size_bytes {
                    return (begin + have, number_of(error));
                }
                let used = have.min(self.stop.at - begin);
                if used == 0 {
                    continue; // nothing of a long record is done with
                }
                let rest = start + used..start + have;
                (begin, have) = (begin + used, have - used);
                start = file::start_of(&room, have);
                if room.len() < start + have {
                    room.resize(start + have, 0);
                }
                room.copy_within(rest, start);
            }
        }))
    }

    fn take<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = self.columns.take().ok_or_else(nonsense)?;
        let continues = walk::continues(&columns, self.phy_offset, self.begin);
        columns.into_dict(py, self.stop, continues)
    }

    /// The same for whoever needs few columns and no numpy: rows, messages, and where to go on.
    fn rows<'py>(&mut self, py: Python<'py>) -> PyResult<Rows<'py>> {
        let (rows, messages) = self.columns.take().ok_or_else(nonsense)?.into_rows(py)?;
        Ok((rows, messages, self.stop.at, self.stop.state, self.stop.need_bytes))
    }
}

impl WindowScan {
    fn check(&self, data: &[u8]) -> PyResult<()> {
        let is_there = self.columns.is_some() && u32::try_from(data.len()).is_ok();
        is_there.then_some(()).ok_or_else(nonsense)
    }

    /// Goes on as far as `data` tells, which lies at `place` of the window and not behind where the walk stands.
    fn walk(&mut self, data: &[u8], place: usize) {
        let Some(columns) = self.columns.take() else { return };
        let phy_offset = self.phy_offset.saturating_add(i64::try_from(place).unwrap_or(i64::MAX));
        let left = usize::try_from(self.segment_end.saturating_sub(phy_offset)).unwrap_or(0);
        let data = data.get(..left).unwrap_or(data);
        let window = Window { data, place, phy_offset, segment_end: self.segment_end, flags: self.flags };
        let (columns, stop) = walk::scan_on(columns, window, self.stop.at - place, self.stop.state, self.to);
        (self.columns, self.stop) = (Some(columns), Stop { at: place + stop.at, ..stop });
    }
}

fn number_of(error: Option<Error>) -> i32 {
    error.map_or(0, |error| error.raw_os_error().unwrap_or(0))
}

fn nonsense() -> PyErr {
    PyValueError::new_err("the window's position, the index in it or the state makes no sense")
}
