//! The walk over a segment's file: blocks go from the file through the processor's cache into the walk, none to Python.
//!
//! It knows the file as far as reading it takes; what frames are is told by the same walk as everywhere (twin:
//! reference/file.py).

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::blocks::{Blocks, Failure, Pool, ROOM, Reader};
use crate::columns::Columns;
use crate::layout::*;
use crate::walk::{self, Window};

/// Where rows are that many, they are handed over.
const MOST_ROWS: usize = 4096;
/// Heads that claim very large records are not each looked at with a reading of their own.
const BEHIND_A_LARGE_RECORD: usize = 16 << 20;

/// Rows, messages, where to go on, in which state, whether the file can tell no more, where reading failed.
type Told<'py> = (Bound<'py, PyList>, usize, i64, u8, bool, Option<Failure>);

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

/// A segment's file; see `store_core.kernel.file`.
#[pyclass(module = "store_core.kernel._native")]
pub struct FileWalk {
    file: Option<File>,
    span: Span,
    block_bytes: usize,
    reads_ahead: bool,
    pool: Pool,
}

/// Where the file lies in the log, and where what may be read of it ends.
#[derive(Clone, Copy)]
struct Span {
    start: i64,
    readable_end: i64,
    segment_end: i64,
}

/// What is asked of one walk.
struct Asked {
    at: i64,
    to: i64,
    state: u8,
    flags: u32,
    time: Duration,
}

struct Walked {
    columns: Columns,
    at: i64,
    state: u8,
    is_over: bool,
    failure: Option<Failure>,
}

#[pymethods]
impl FileWalk {
    #[new]
    #[pyo3(signature = (path, open_flags, noatime, phy_offset, readable_end, segment_end, block_bytes, reads_ahead, /))]
    #[allow(clippy::too_many_arguments)] // as the twin's
    fn new(
        path: PathBuf,
        open_flags: i32,
        noatime: i32,
        phy_offset: i64,
        readable_end: i64,
        segment_end: i64,
        block_bytes: usize,
        reads_ahead: bool,
    ) -> PyResult<Self> {
        if phy_offset < 0 || readable_end < phy_offset || segment_end < phy_offset || block_bytes == 0 {
            return Err(nonsense());
        }
        let file = open(&path, open_flags, noatime).map_err(as_python_error)?;
        let span = Span { start: phy_offset, readable_end: readable_end.min(segment_end), segment_end };
        Ok(Self { file: Some(file), span, block_bytes, reads_ahead, pool: Pool::default() })
    }

    #[pyo3(signature = (at, to, state, flags, seconds, /))]
    fn walk<'py>(&self, py: Python<'py>, at: i64, to: i64, state: u8, flags: u32, seconds: f64) -> PyResult<Told<'py>> {
        let file = self.file.as_ref().ok_or_else(is_closed)?;
        let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        if at < self.span.start || at > self.span.segment_end || state > IN_BAD_BLANK {
            return Err(nonsense());
        }
        let asked = Asked { at, to: to.min(self.span.segment_end), state, flags: flags | RUNS | NO_PROPERTIES, time };
        let walked = py.detach(|| self.walk_file(file, &asked));
        let (rows, messages) = walked.columns.into_rows(py)?;
        Ok((rows, messages, walked.at, walked.state, walked.is_over, walked.failure))
    }

    fn close(&mut self) {
        self.file = None;
        self.pool = Pool::default();
    }
}

impl FileWalk {
    fn walk_file(&self, file: &File, asked: &Asked) -> Walked {
        let position = |at: i64| u64::try_from(at.saturating_sub(self.span.start)).unwrap_or(0);
        let reader = Reader::new(file, position(asked.at), position(self.span.readable_end), self.block_bytes);
        let mut blocks = Blocks::new(reader, &self.pool);
        if !self.reads_ahead {
            return self.walk_blocks(&mut blocks, asked);
        }
        thread::scope(|scope| {
            let mut blocks = blocks;
            blocks.read_ahead(scope, position(asked.to));
            let walked = self.walk_blocks(&mut blocks, asked);
            blocks.stop();
            walked
        })
    }

    /// Walks window after window, each a block behind what the one before left over.
    fn walk_blocks(&self, blocks: &mut Blocks<'_>, asked: &Asked) -> Walked {
        let started = Instant::now();
        let mut rest: Vec<u8> = Vec::new();
        let mut need_bytes = 0;
        let mut walked = Walked {
            columns: Columns::for_rows(1),
            at: asked.at,
            state: asked.state,
            is_over: asked.at >= asked.to,
            failure: None,
        };
        while !walked.is_over {
            let mut block = blocks.next();
            let is_long = rest.len() > ROOM || need_bytes > rest.len() + block.len();
            if is_long {
                rest.extend_from_slice(block.data());
                while rest.len() < need_bytes && !block.is_last {
                    blocks.give_back(block);
                    block = blocks.next();
                    rest.extend_from_slice(block.data());
                }
            }
            let (is_last, failure) = (block.is_last, block.failure);
            let data = if is_long { &rest[..] } else { block.behind(&rest) };
            let len = data.len();
            let before = walked.state;
            let (phy_offset, segment_end) = (walked.at, self.span.segment_end);
            let window = Window { data, place: 0, phy_offset, segment_end, flags: asked.flags };
            let (columns, stop) = walk::scan_on(walked.columns, window, 0, before, asked.to);
            let used = stop.at.min(len);
            if is_long {
                rest.drain(..used);
            } else {
                rest.clear();
                rest.extend_from_slice(block.last(len - used));
            }
            blocks.give_back(block);
            walked = Walked {
                columns,
                at: walked.at.saturating_add(i64::try_from(stop.at).unwrap_or(i64::MAX)),
                state: stop.state,
                is_over: false,
                failure,
            };
            let left = usize::try_from(self.span.segment_end.saturating_sub(walked.at)).unwrap_or(0);
            let stands = stop.at == 0;
            walked.is_over = stands && (is_last || len >= MAX_RECORD_SIZE.min(left));
            need_bytes =
                if stands { stop.need_bytes.max(2 * len).min(MAX_RECORD_SIZE).min(left) } else { stop.need_bytes };
            if need_bytes > self.block_bytes {
                need_bytes += need_bytes.min(BEHIND_A_LARGE_RECORD);
            }
            let is_enough = walked.columns.len() >= MOST_ROWS || started.elapsed() >= asked.time;
            // There may be a hole to skip.
            let zeros_begin = walked.state == IN_ZEROS && before != IN_ZEROS && !is_last;
            if failure.is_some() || walked.at >= asked.to || (is_enough || zeros_begin) && !stands {
                break;
            }
        }
        walked
    }
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

fn nonsense() -> PyErr {
    PyValueError::new_err("the file's place in the log, its end, the position in it or the state makes no sense")
}
