//! The compiled kernel of rmqctl: cuts a window of the log into frames and returns them as columns.
//!
//! What it does is defined by its readable twin, twin.py and its neighbours; tests compare the two. The bytes are
//! hostile: no length is trusted, every slice is checked, and there is no unsafe code.

#![forbid(unsafe_code)]

mod arrow;
mod blocks;
mod collect;
mod columns;
mod derive;
mod entries;
mod file;
mod hosts;
mod keys;
mod layout;
mod messages;
mod packed;
mod pairs;
mod point;
mod properties;
mod record;
mod records;
mod resync;
mod tables;
mod tasks;
mod walk;

use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The columns of a window by name; see `store_core.kernel.scan_window`.
#[pyfunction]
#[pyo3(signature = (window, window_phy_offset, at, segment_end_phy_offset, state, flags, /))]
fn scan_window<'py>(
    py: Python<'py>,
    window: PyReadonlyArray1<'py, u8>,
    window_phy_offset: i64,
    at: i64,
    segment_end_phy_offset: i64,
    state: i64,
    flags: u32,
) -> PyResult<Bound<'py, PyDict>> {
    let data = window.as_slice()?;
    let nonsense = || PyValueError::new_err("the window's position, the index in it or the state makes no sense");
    let at = usize::try_from(at).map_err(|_| nonsense())?;
    let left = segment_end_phy_offset.checked_sub(window_phy_offset).ok_or_else(nonsense)?;
    let left = usize::try_from(left).map_err(|_| nonsense())?;
    let state = u8::try_from(state).map_err(|_| nonsense())?;
    if window_phy_offset < 0 || state > layout::IN_BAD_BLANK || u32::try_from(data.len()).is_err() {
        return Err(nonsense());
    }
    let window = walk::Window {
        data: data.get(..left).unwrap_or(data),
        phy_offset: window_phy_offset,
        segment_end: segment_end_phy_offset,
        flags,
    };
    let (columns, stop, continues) = py.detach(|| walk::scan(window, at, state));
    columns.into_dict(py, stop, continues)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("LAYOUT", layout::dict(module.py())?)?;
    module.add_class::<file::FileWalk>()?;
    module.add_class::<collect::Collector>()?;
    module.add_class::<keys::KeyFinder>()?;
    module.add_function(wrap_pyfunction!(arrow::arrow_columns, module)?)?;
    module.add_function(wrap_pyfunction!(tables::cut_table, module)?)?;
    module.add_function(wrap_pyfunction!(tables::plan_table, module)?)?;
    module.add_function(wrap_pyfunction!(tables::read_table, module)?)?;
    module.add_function(wrap_pyfunction!(derive::chain_entries, module)?)?;
    module.add_function(wrap_pyfunction!(derive::index_entries, module)?)?;
    module.add_function(wrap_pyfunction!(derive::dispatch_rows, module)?)?;
    module.add_function(wrap_pyfunction!(entries::chain_sums, module)?)?;
    module.add_function(wrap_pyfunction!(entries::good_run, module)?)?;
    module.add_function(wrap_pyfunction!(entries::read_run, module)?)?;
    module.add_function(wrap_pyfunction!(messages::add_mapped_messages, module)?)?;
    module.add_function(wrap_pyfunction!(messages::good_entries, module)?)?;
    module.add_function(wrap_pyfunction!(messages::add_messages, module)?)?;
    module.add_function(wrap_pyfunction!(packed::pack_rows, module)?)?;
    module.add_function(wrap_pyfunction!(packed::unpack_rows, module)?)?;
    module.add_function(wrap_pyfunction!(packed::unpack_entries, module)?)?;
    module.add_function(wrap_pyfunction!(packed::unpack_stretches, module)?)?;
    module.add_function(wrap_pyfunction!(point::carries_key, module)?)?;
    module.add_function(wrap_pyfunction!(point::index_key_hash, module)?)?;
    module.add_function(wrap_pyfunction!(scan_window, module)?)
}
