//! Records collected by group, window after window, as Arrow columns (twin: reference/arrow.py).

use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrow::{AROUND_A_BODY, Columns, Recent, nonsense, place};

/// See `store_core.kernel.arrow.Collector`.
#[pyclass]
pub struct Collector {
    wanted: u32,
    /// Of all records that come before all are taken, about.
    expected_bytes: usize,
    collected_bytes: usize,
    groups: Vec<Option<Columns>>,
    recent: Recent,
}

#[pymethods]
impl Collector {
    #[new]
    #[pyo3(signature = (wanted, expected_bytes, /))]
    fn new(wanted: u32, expected_bytes: usize) -> Self {
        Self { wanted, expected_bytes, collected_bytes: 0, groups: Vec::new(), recent: Recent::new() }
    }

    #[pyo3(signature = (window, at, size_bytes, group, /))]
    fn add(
        &mut self,
        py: Python<'_>,
        window: PyReadonlyArray1<'_, u8>,
        at: PyReadonlyArray1<'_, i64>,
        size_bytes: PyReadonlyArray1<'_, i64>,
        group: PyReadonlyArray1<'_, u32>,
    ) -> PyResult<()> {
        let (data, at, size_bytes, group) =
            (window.as_slice()?, at.as_slice()?, size_bytes.as_slice()?, group.as_slice()?);
        if at.len() != size_bytes.len() || at.len() != group.len() {
            return Err(PyValueError::new_err("the columns differ in length"));
        }
        let most = self.groups.len() + group.len();
        if group.iter().any(|group| *group as usize >= most) {
            return Err(PyValueError::new_err("too large a group number"));
        }
        let added = py.detach(|| {
            self.make_room(size_bytes, group);
            for ((at, size), group) in at.iter().zip(size_bytes).zip(group) {
                let columns = self.groups.get_mut(*group as usize)?.as_mut()?;
                columns.add(place(data, *at, *size)?, &mut self.recent)?;
            }
            Some(())
        });
        added.ok_or_else(nonsense)
    }

    #[getter]
    fn size_bytes(&self) -> usize {
        self.groups.iter().flatten().map(Columns::size).sum()
    }

    #[pyo3(signature = (group, /))]
    fn take<'py>(&mut self, py: Python<'py>, group: u32) -> PyResult<Bound<'py, PyDict>> {
        let columns = self.groups.get_mut(group as usize).and_then(Option::take);
        columns.unwrap_or_else(|| Columns::new(0, 0, self.wanted, true)).into_dict(py)
    }
}

impl Collector {
    /// Columns for groups that appear. They are made as long as what is expected lets them become: moving what has been
    /// collected costs more than memory that is asked for and not touched.
    fn make_room(&mut self, size_bytes: &[i64], group: &[u32]) {
        let mut sums: Vec<(usize, usize)> = Vec::new(); // rows and bytes by group
        let mut bytes = 0_usize;
        for (size, group) in size_bytes.iter().zip(group) {
            let group = *group as usize;
            if sums.len() <= group {
                sums.resize(group + 1, (0, 0));
            }
            if let Some((rows, sum)) = sums.get_mut(group) {
                let size = usize::try_from(*size).unwrap_or(0);
                (*rows, *sum) = (*rows + 1, sum.saturating_add(size));
                bytes = bytes.saturating_add(size);
            }
        }
        if self.groups.len() < sums.len() {
            self.groups.resize_with(sums.len(), || None);
        }
        if self.groups.iter().all(Option::is_none) {
            self.collected_bytes = 0;
        }
        let left_bytes = self.expected_bytes.saturating_sub(self.collected_bytes) as f64;
        for (columns, (rows, sum)) in self.groups.iter_mut().zip(sums) {
            if columns.is_none() && rows > 0 {
                let expected = |count: usize| left_bytes / bytes.max(1) as f64 * count as f64 * SLACK;
                let capacity = |count: usize| count.max((expected(count) as usize).min(MOST_EXPECTED_BYTES));
                let bodies = sum.saturating_sub(rows.saturating_mul(AROUND_A_BODY));
                *columns = Some(Columns::new(capacity(rows), capacity(bodies), self.wanted, true));
            }
        }
        self.collected_bytes = self.collected_bytes.saturating_add(bytes);
    }
}

const SLACK: f64 = 1.1;
const MOST_EXPECTED_BYTES: usize = 256 << 20;
