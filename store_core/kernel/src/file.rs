//! Files that windows are read from.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

/// A cache line. Large allocations begin 16 bytes behind a page; copying to there takes a third longer (measured).
const ALIGNMENT: usize = 64;

/// A file that windows are read from; see `store_core.kernel.file`.
#[pyclass(module = "store_core.kernel._native")]
pub struct FileReader {
    file: Option<File>,
}

#[pymethods]
impl FileReader {
    #[new]
    #[pyo3(signature = (path, open_flags, noatime, /))]
    fn new(path: PathBuf, open_flags: i32, noatime: i32) -> PyResult<Self> {
        Ok(Self { file: Some(open(&path, open_flags, noatime).map_err(as_python_error)?) })
    }

    fn close(&mut self) {
        self.file = None;
    }
}

impl FileReader {
    pub fn open(&self) -> PyResult<&File> {
        self.file.as_ref().ok_or_else(is_closed)
    }
}

/// Where in a buffer to put so many bytes, that what is read behind them begins where the system copies fast.
pub fn start_of(buffer: &[u8], count: usize) -> usize {
    (buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT) + ALIGNMENT - count % ALIGNMENT) % ALIGNMENT
}

/// How many bytes could be read: fewer than fit at the end of the file and where it cannot be read.
pub fn fill(file: &File, place: &mut [u8], at: u64) -> (usize, Option<Error>) {
    let mut done = 0;
    while let Some(rest) = place.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (done, Some(error)),
        }
    }
    (done, None)
}

/// Opens a file as `store_core.storage.files.open_read_only` does.
pub fn open(path: &Path, flags: i32, noatime: i32) -> Result<File> {
    let opened = |flags| OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = match opened(flags | noatime) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => opened(flags)?,
        opened => opened?,
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(Error::from(ErrorKind::InvalidInput)) }
}

/// As Python's own calls raise it: with the number, by which Python picks the class.
pub fn as_python_error(error: Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => PyOSError::new_err((number, error.to_string())),
        None => PyOSError::new_err("not a regular file"),
    }
}

fn is_closed() -> PyErr {
    PyValueError::new_err("the file is closed")
}
