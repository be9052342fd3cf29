//! The compiled kernel of rmqctl: cuts a window of the log into frames and returns them as columns.
//!
//! What it does is defined by its readable twin, the modules of reference/; tests compare the two. The bytes are
//! hostile: no length is trusted, every slice is checked, and there is no unsafe code.

#![forbid(unsafe_code)]

mod arrow;
mod collect;
mod columns;
mod derive;
mod encode;
mod entries;
mod file;
mod hosts;
mod layout;
mod messages;
mod packed;
mod pairs;
mod point;
mod properties;
mod record;
mod resync;
mod scan;
mod text;
mod walk;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("LAYOUT", layout::dict(module.py())?)?;
    module.add_class::<file::FileReader>()?;
    module.add_class::<collect::Collector>()?;
    module.add_class::<scan::WindowScan>()?;
    module.add_function(wrap_pyfunction!(arrow::arrow_columns, module)?)?;
    module.add_function(wrap_pyfunction!(derive::chain_entries, module)?)?;
    module.add_function(wrap_pyfunction!(derive::index_entries, module)?)?;
    module.add_function(wrap_pyfunction!(derive::dispatch_rows, module)?)?;
    module.add_function(wrap_pyfunction!(encode::encode_record, module)?)?;
    module.add_function(wrap_pyfunction!(encode::encode_records, module)?)?;
    module.add_function(wrap_pyfunction!(entries::chain_sums, module)?)?;
    module.add_function(wrap_pyfunction!(entries::good_run, module)?)?;
    module.add_function(wrap_pyfunction!(messages::good_entries, module)?)?;
    module.add_function(wrap_pyfunction!(messages::add_messages, module)?)?;
    module.add_function(wrap_pyfunction!(packed::pack_rows, module)?)?;
    module.add_function(wrap_pyfunction!(packed::unpack_rows, module)?)?;
    module.add_function(wrap_pyfunction!(packed::unpack_entries, module)?)?;
    module.add_function(wrap_pyfunction!(packed::unpack_stretches, module)?)?;
    module.add_function(wrap_pyfunction!(point::carries_key, module)?)?;
    module.add_function(wrap_pyfunction!(point::index_key_hash, module)?)?;
    module.add_function(wrap_pyfunction!(text::are_text, module)?)?;
    module.add_function(wrap_pyfunction!(text::rows_text, module)?)?;
    Ok(())
}
