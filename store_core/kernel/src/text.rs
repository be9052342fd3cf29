//! Rows of columns as JSON, CSV or TSV. What each value looks like is defined by rmqctl/output/formats.py, which writes the same rows one by one.

use std::hint::black_box;
use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::layout::*;

/// What stands in front of each value, the kind, numbers, bytes, and which rows are not null.
type Described<'py> = (
    PyBackedBytes,
    u8,
    Vec<PyReadonlyArray1<'py, i64>>,
    Vec<PyReadonlyArray1<'py, u8>>,
    Option<PyReadonlyArray1<'py, u8>>,
);

/// Rows as text; see `store_core.kernel.text.rows_text`. `delimiter` is 0 for JSON.
#[pyfunction]
#[pyo3(signature = (columns, rows, delimiter, tail, /))]
pub fn rows_text<'py>(
    py: Python<'py>,
    columns: Vec<Described<'py>>,
    rows: usize,
    delimiter: u8,
    tail: PyBackedBytes,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let mut known = Vec::with_capacity(columns.len());
    for (lead, kind, numbers, data, valid) in &columns {
        let numbers = numbers.iter().map(|array| array.as_slice()).collect::<Result<Vec<_>, _>>()?;
        let data = data.iter().map(|array| array.as_slice()).collect::<Result<Vec<_>, _>>()?;
        let valid = valid.as_ref().map(|array| array.as_slice()).transpose()?;
        let column = Column { lead: Short::of(lead), kind: *kind, numbers, data, valid };
        if !column.has(rows) {
            return Err(PyValueError::new_err("a column has not what its kind takes"));
        }
        known.push(column);
    }
    let tail: &[u8] = &tail;
    let text = py.detach(|| {
        let mut text = Vec::with_capacity(known.iter().map(|column| column.likely_size(rows)).sum());
        if delimiter == 0 {
            json(&known, rows, tail, &mut text)
        } else {
            csv(&known, rows, delimiter, tail, &mut text)
        }
        text
    });
    Ok(text.into_pyarray(py))
}

struct Column<'a> {
    lead: Short<'a>,
    kind: u8,
    numbers: Vec<&'a [i64]>,
    data: Vec<&'a [u8]>,
    valid: Option<&'a [u8]>,
}

impl<'a> Column<'a> {
    /// Whether there is all that so many rows of this kind take.
    fn has(&self, rows: usize) -> bool {
        let (numbers, data) = match self.kind {
            TEXT_READY | TEXT_BYTES | TEXT_STRING => (2, 1),
            TEXT_INT | TEXT_UINT | TEXT_FLOAT | TEXT_BOOL => (1, 0),
            TEXT_MICROSECONDS | TEXT_NANOSECONDS | TEXT_ZONELESS_MICROSECONDS | TEXT_ZONELESS_NANOSECONDS => (1, 0),
            TEXT_BODY => (3, 1),
            TEXT_ENCODING => (3, 1),
            TEXT_LIST => (2, 1),
            TEXT_MAP => (2, 2),
            TEXT_SAME => (0, 1),
            _ => return false,
        };
        self.data.len() >= data
            && self.numbers.len() >= numbers
            && self.numbers.iter().take(numbers).all(|values| values.len() == rows)
            && self.valid.is_none_or(|valid| valid.len() == rows)
    }

    fn likely_size(&self, rows: usize) -> usize {
        let of_data = if matches!(self.kind, TEXT_SAME | TEXT_ENCODING) {
            0
        } else {
            self.data.iter().map(|data| data.len()).min().unwrap_or(0).min(1 << 22)
        };
        of_data + rows * (self.lead.all.len() + 8)
    }

    #[inline(always)]
    fn is_null(&self, row: usize) -> bool {
        self.valid.is_some_and(|valid| valid.get(row) == Some(&0))
    }

    #[inline(always)]
    fn number(&self, which: usize, row: usize) -> i64 {
        self.numbers.get(which).and_then(|values| values.get(row)).copied().unwrap_or(0)
    }

    #[inline(always)]
    fn place(&self, which: usize, row: usize) -> usize {
        usize::try_from(self.number(which, row)).unwrap_or(usize::MAX)
    }

    /// The bytes of a text whose begin and end are the numbers from `which` on.
    #[inline(always)]
    fn part(&self, data: usize, which: usize, row: usize) -> Part<'a> {
        let (start, stop) = (self.place(which, row), self.place(which + 1, row));
        let from = self.data.get(data).and_then(|data| data.get(start..)).unwrap_or(&[]);
        let length = stop.saturating_sub(start);
        if length <= from.len() { Part { from, length } } else { Part::of(&[]) }
    }

    /// Has the processor fetch what some rows take, column by column: row by row it would wait for each of very many places.
    fn fetch(&self, rows: Range<usize>) {
        let [of_rows, of_items] = match self.kind {
            TEXT_SAME => return,
            TEXT_LIST | TEXT_MAP => [2, self.numbers.len()],
            _ => [self.numbers.len(); 2],
        };
        let last = rows.end.saturating_sub(1);
        let items = self.items(rows.start).start..self.items(last).end;
        for (which, values) in self.numbers.iter().enumerate().take(of_items) {
            let wanted = if which < of_rows { rows.clone() } else { items.clone() };
            touch(values.get(wanted).unwrap_or(&[]));
        }
        let (parts, at) = if of_rows < of_items { (2, items) } else { (0, rows.clone()) };
        for (number, data) in self.data.iter().enumerate() {
            let start = self.place(parts + 2 * number, at.start);
            let stop = self.place(parts + 2 * number + 1, at.end.saturating_sub(1));
            touch(data.get(start..stop.min(start.saturating_add(FETCHED))).unwrap_or(&[]));
        }
    }

    fn items(&self, row: usize) -> Range<usize> {
        let place = |which| usize::try_from(self.number(which, row)).unwrap_or(0);
        place(0)..place(1)
    }

    /// Whether a body is shown as text.
    #[inline(always)]
    fn is_text(&self, row: usize) -> bool {
        self.number(2, row) == 0 && str::from_utf8(self.part(0, 0, row).bytes()).is_ok()
    }

    /// A value that looks the same in all formats and holds nothing that any of them would have to escape.
    #[inline(always)]
    fn plain(&self, row: usize, text: &mut Vec<u8>) -> bool {
        let value = self.number(0, row);
        match self.kind {
            TEXT_INT => text.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
            TEXT_UINT => text.extend_from_slice(itoa::Buffer::new().format(value.cast_unsigned()).as_bytes()),
            TEXT_BOOL => text.extend_from_slice(if value == 0 { b"false" } else { b"true" }),
            _ => return false,
        }
        true
    }

    /// A value between the quotes that JSON puts around it, which holds nothing to escape: no string, list or number.
    #[inline(always)]
    fn unquoted(&self, row: usize, text: &mut Vec<u8>) {
        match self.kind {
            TEXT_BODY => base64(self.part(0, 0, row).bytes(), text),
            TEXT_ENCODING => text.extend_from_slice(if self.is_text(row) { b"utf-8" } else { b"base64" }),
            TEXT_MICROSECONDS | TEXT_ZONELESS_MICROSECONDS => time(self, row, 1000, text),
            TEXT_NANOSECONDS | TEXT_ZONELESS_NANOSECONDS => time(self, row, 1_000_000, text),
            _ => {}
        }
    }
}

/// Rows whose columns are fetched together, so that they stay in the processor's cache; the most bytes of a column; bytes that come at once.
const FETCHED_ROWS: usize = 32;
const FETCHED: usize = 1 << 15;
const LINE: usize = 64;

fn touch<T: Copy>(values: &[T]) {
    for value in values.iter().step_by(LINE / size_of::<T>()).chain(values.last()) {
        black_box(*value);
    }
}

/// Rows by number, fetched before they are asked for.
fn fetched<'a>(columns: &'a [Column<'a>], rows: usize) -> impl Iterator<Item = usize> {
    (0..rows).inspect(move |row| {
        if row % FETCHED_ROWS == 0 {
            columns.iter().for_each(|column| column.fetch(*row..rows.min(row + FETCHED_ROWS)));
        }
    })
}

/// Some bytes of a column's data, with all that follows: so a few can be taken whose number is known when this is compiled.
#[derive(Clone, Copy)]
struct Part<'a> {
    from: &'a [u8],
    length: usize,
}

impl<'a> Part<'a> {
    fn of(all: &'a [u8]) -> Self {
        Self { from: all, length: all.len() }
    }

    #[inline(always)]
    fn bytes(&self) -> &'a [u8] {
        self.from.get(..self.length).unwrap_or(&[])
    }

    /// The stride at a place, and how many of its bytes belong to this part.
    #[inline(always)]
    fn stride(&self, at: usize) -> ([u8; STRIDE], usize) {
        let from = self.from.get(at..).unwrap_or(&[]);
        let count = self.length.saturating_sub(at).min(STRIDE);
        if let Some(stride) = from.first_chunk() {
            return (*stride, count);
        }
        let mut stride = [0; STRIDE];
        stride.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        (stride, count)
    }
}

// -- text

/// Looked at together, so that the processor compares all of them at once.
const STRIDE: usize = 16;
/// The most bytes that one becomes, and room for all that are written at once where fewer count.
const LONGEST: usize = 8;
/// Bytes that are gathered before they are added: it is cleared for each text.
const ROOM: usize = 512;
/// Bytes that are copied whole, whatever their length, which takes no loop.
const SHORT: usize = 48;

/// Adds the first `length` bytes of some.
#[inline(always)]
fn put<const SIZE: usize>(bytes: &[u8; SIZE], length: usize, text: &mut Vec<u8>) {
    text.extend_from_slice(bytes);
    text.truncate(text.len() - (SIZE - length));
}

/// Bytes that are few, mostly.
struct Short<'a> {
    all: &'a [u8],
    start: [u8; SHORT],
}

impl<'a> Short<'a> {
    fn of(all: &'a [u8]) -> Self {
        let mut start = [0; SHORT];
        start.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
        Self { all, start }
    }

    #[inline(always)]
    fn add_to(&self, text: &mut Vec<u8>) {
        if self.all.len() <= SHORT {
            put(&self.start, self.all.len(), text);
        } else {
            text.extend_from_slice(self.all);
        }
    }
}

// -- JSON

fn json(columns: &[Column<'_>], rows: usize, tail: &[u8], text: &mut Vec<u8>) {
    let strings = &Escapes::json();
    for row in fetched(columns, rows) {
        for column in columns {
            column.lead.add_to(text);
            if column.is_null(row) {
                text.extend_from_slice(NULL);
            } else if !column.plain(row, text) {
                json_value(column, row, strings, text);
            }
        }
        text.extend_from_slice(tail);
    }
}

const NULL: &[u8] = b"null";

#[inline(always)]
fn json_value(column: &Column<'_>, row: usize, strings: &Escapes, text: &mut Vec<u8>) {
    match column.kind {
        TEXT_SAME => text.extend_from_slice(column.data.first().unwrap_or(&NULL)),
        TEXT_READY => text.extend_from_slice(column.part(0, 0, row).bytes()),
        TEXT_FLOAT => {
            let value = float(column, row);
            if value.is_finite() { float_text(value, text) } else { text.extend_from_slice(NULL) }
        }
        TEXT_LIST | TEXT_MAP => json_items(column, row, b"\"", strings, text),
        _ => {
            text.push(b'"');
            match column.kind {
                TEXT_STRING => strings.add(column.part(0, 0, row), text),
                TEXT_BYTES => strings.add_bytes(column.part(0, 0, row), text),
                TEXT_BODY if column.is_text(row) => strings.add(column.part(0, 0, row), text),
                _ => column.unquoted(row, text),
            }
            text.push(b'"');
        }
    }
}

/// A list or map, with a quote of one byte or, within a cell in quotes, of two.
fn json_items<const SIZE: usize>(
    column: &Column<'_>,
    row: usize,
    quote: &[u8; SIZE],
    strings: &Escapes,
    text: &mut Vec<u8>,
) {
    let is_map = column.kind == TEXT_MAP;
    text.push(if is_map { b'{' } else { b'[' });
    for (number, item) in column.items(row).enumerate() {
        if number > 0 {
            put(b", ", 2, text);
        }
        put(quote, SIZE, text);
        strings.add(column.part(0, 2, item), text);
        put(quote, SIZE, text);
        if is_map {
            put(b": ", 2, text);
            put(quote, SIZE, text);
            strings.add(column.part(1, 4, item), text);
            put(quote, SIZE, text);
        }
    }
    text.push(if is_map { b'}' } else { b']' });
}

// -- CSV and TSV

/// The forms of strings that a row needs: as they are, within a cell in quotes, and in JSON within one.
struct Forms {
    plain: Escapes,
    quoted: Escapes,
    json: Escapes,
}

fn csv(columns: &[Column<'_>], rows: usize, delimiter: u8, tail: &[u8], text: &mut Vec<u8>) {
    let forms = &Forms { plain: Escapes::plain(), quoted: Escapes::quoted(), json: Escapes::json_quoted() };
    let mut scratch = Vec::new();
    for row in fetched(columns, rows) {
        let start = text.len();
        // Found before the row is written, where it is likely.
        let in_quotes = columns.iter().any(|column| {
            column.kind == TEXT_BYTES
                && !column.is_null(row)
                && memchr::memchr(b'\r', column.part(0, 0, row).bytes()).is_some()
        });
        if !csv_row(columns, row, delimiter, in_quotes, forms, &mut scratch, text) {
            // Readers end a row at a lone carriage return, too, unless it stands in quotes.
            text.truncate(start);
            csv_row(columns, row, delimiter, true, forms, &mut scratch, text);
        }
        if text.len() == start {
            text.extend_from_slice(b"\"\""); // of a single value: an empty line would be no row
        }
        text.extend_from_slice(tail);
    }
}

/// Writes a row. False for one that has to be written with all values in quotes.
fn csv_row(
    columns: &[Column<'_>],
    row: usize,
    delimiter: u8,
    in_quotes: bool,
    forms: &Forms,
    scratch: &mut Vec<u8>,
    text: &mut Vec<u8>,
) -> bool {
    for column in columns {
        column.lead.add_to(text);
        let is_null = column.is_null(row);
        if !in_quotes && (is_null || column.plain(row, text)) {
            continue;
        }
        scratch.clear();
        let is_bytes = column.kind == TEXT_BYTES && !is_null;
        let shown = match column.kind {
            _ if is_null || column.plain(row, scratch) => Part::of(scratch),
            TEXT_BYTES | TEXT_STRING | TEXT_READY => column.part(0, 0, row), // U+FFFD for some of it makes nothing special
            TEXT_BODY if column.is_text(row) => column.part(0, 0, row),
            TEXT_LIST | TEXT_MAP if !column.items(row).is_empty() => {
                text.push(b'"');
                json_items(column, row, b"\"\"", &forms.json, text);
                text.push(b'"');
                continue;
            }
            TEXT_SAME => Part::of(column.data.first().unwrap_or(&NULL)),
            TEXT_LIST | TEXT_MAP | TEXT_FLOAT => {
                if column.kind == TEXT_FLOAT {
                    float_text(float(column, row), scratch);
                } else {
                    json_items(column, row, b"\"", &forms.json, scratch);
                }
                Part::of(scratch)
            }
            _ => {
                let around: &[u8] = if in_quotes { b"\"" } else { b"" };
                text.extend_from_slice(around);
                column.unquoted(row, text);
                text.extend_from_slice(around);
                continue;
            }
        };
        if in_quotes || memchr::memchr3(delimiter, b'"', b'\n', shown.bytes()).is_some() {
            text.push(b'"');
            if is_bytes {
                forms.quoted.add_bytes(shown, text)
            } else {
                forms.quoted.add(shown, text)
            }
            text.push(b'"');
        } else if is_bytes {
            forms.plain.add_bytes(shown, text);
        } else {
            text.extend_from_slice(shown.bytes());
        }
        if !in_quotes && memchr::memchr(b'\r', shown.bytes()).is_some() {
            return false;
        }
    }
    true
}

// -- strings

const REPLACEMENT: [u8; LONGEST] = [0xEF, 0xBF, 0xBD, 0, 0, 0, 0, 0];

/// What is written of a byte: the first of `bytes`.
#[derive(Clone, Copy)]
struct Written {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Written {
    /// Writes all bytes, of which the first count, at a place of some room. Returns the place after them.
    #[inline(always)]
    fn put_at(&self, used: usize, room: &mut [u8]) -> usize {
        if let Some(room) = room.get_mut(used..used + LONGEST) {
            room.copy_from_slice(&self.bytes);
        }
        used + self.length
    }
}

/// What is written of a byte that begins no character, and which bytes after it would make it begin one: so many from the least on.
#[derive(Clone, Copy)]
#[repr(align(32))]
struct First {
    alone: Written,
    least: u8,
    count: u8,
}

impl First {
    #[inline(always)]
    fn goes_on_with(&self, second: u8) -> bool {
        second.wrapping_sub(self.least) < self.count // one comparison: two would be two branches
    }

    /// What is written of the bytes that begin with this one and one that it goes on with, and of how many of them.
    #[inline(always)]
    fn character(&self, byte: u8, raw: &[u8]) -> (Written, usize) {
        let mut bytes = [0; LONGEST];
        bytes.iter_mut().zip(raw.iter().take(4)).for_each(|(to, from)| *to = *from);
        let [_, _, third, fourth, ..] = bytes;
        let follows = |byte| (0x80..0xC0).contains(&byte);
        let there = 2 + usize::from(follows(third)) + usize::from(follows(third) & follows(fourth));
        let length = 1 + following(byte);
        if there >= length { (Written { bytes, length }, length) } else { (self.alone, there) }
    }
}

/// How bytes of strings are written in some format. All that are special lie below `below` or are `marks`.
struct Escapes {
    written: [Written; 256],
    first: [First; 256],
    below: u8,
    marks: [u8; 2],
}

const JSON_MARKS: [u8; 2] = [b'"', b'\\'];

fn in_quotes(byte: u8) -> Vec<u8> {
    vec![byte; 1 + usize::from(byte == b'"')]
}

fn in_json(byte: u8) -> Vec<u8> {
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0C => b'f',
        0..b' ' => return format!("\\u{byte:04x}").into_bytes(),
        _ => return vec![byte],
    };
    vec![b'\\', short]
}

impl Escapes {
    fn of(below: u8, marks: [u8; 2], shown: impl Fn(u8) -> Vec<u8>) -> Self {
        let written = std::array::from_fn(|index| {
            let shown = shown(index as u8);
            let mut bytes = [0; LONGEST];
            bytes.iter_mut().zip(&shown).for_each(|(to, from)| *to = *from);
            Written { bytes, length: shown.len() }
        });
        let mut byte = 0;
        let first = written.map(|written| {
            let (least, count) = seconds(byte);
            let alone = if byte < 0x80 { written } else { Written { bytes: REPLACEMENT, length: 3 } };
            byte = byte.wrapping_add(1);
            First { alone, least, count }
        });
        Self { written, first, below, marks }
    }

    fn plain() -> Self {
        Self::of(0, [0; 2], |byte| vec![byte])
    }

    fn quoted() -> Self {
        Self::of(0, [b'"'; 2], in_quotes)
    }

    fn json() -> Self {
        Self::of(b' ', JSON_MARKS, in_json)
    }

    fn json_quoted() -> Self {
        Self::of(b' ', JSON_MARKS, |byte| in_json(byte).into_iter().flat_map(in_quotes).collect())
    }

    #[inline(always)]
    fn has_none(&self, stride: &[u8; STRIDE]) -> bool {
        let [one, other] = self.marks;
        !stride.iter().fold(false, |found, byte| found | (*byte < self.below) | (*byte == one) | (*byte == other))
    }

    /// Adds a string, which is UTF-8.
    #[inline(always)]
    fn add(&self, string: Part<'_>, text: &mut Vec<u8>) {
        let mut at = 0;
        while at < string.length {
            let (stride, count) = string.stride(at);
            if self.has_none(&stride) {
                put(&stride, count, text);
            } else {
                self.add_each(&stride, count, text);
            }
            at += STRIDE;
        }
    }

    /// Adds the first `count` bytes of a stride.
    #[inline(never)]
    fn add_each(&self, stride: &[u8; STRIDE], count: usize, text: &mut Vec<u8>) {
        let (mut room, mut used) = ([0; STRIDE * LONGEST], 0);
        for byte in stride.iter().take(count) {
            if let Some(written) = self.written.get(usize::from(*byte)) {
                used = written.put_at(used, &mut room);
            }
        }
        text.extend_from_slice(room.get(..used).unwrap_or(&room));
    }

    /// Adds bytes, with U+FFFD for each longest part of what could have become a character, as Java and Python do.
    #[inline(never)]
    fn add_bytes(&self, raw: Part<'_>, text: &mut Vec<u8>) {
        let bytes = raw.bytes();
        if str::from_utf8(bytes).is_ok() {
            self.add(raw, text);
            return;
        }
        let (mut room, mut used) = ([0; ROOM], 0);
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            if used > ROOM - LONGEST {
                text.extend_from_slice(room.get(..used).unwrap_or(&room));
                used = 0;
            }
            let Some(first) = self.first.get(usize::from(*byte)) else { return };
            let second = bytes.get(at + 1).copied().unwrap_or(0);
            // One branch, mostly not taken: of random bytes each could be either.
            if first.goes_on_with(second) {
                let (shown, count) = first.character(*byte, bytes.get(at..).unwrap_or(&[]));
                used = shown.put_at(used, &mut room);
                at += count;
            } else {
                used = first.alone.put_at(used, &mut room);
                at += 1;
            }
        }
        text.extend_from_slice(room.get(..used).unwrap_or(&room));
    }
}

/// The least byte that may come second in a character that begins with this one, and how many may.
fn seconds(first: u8) -> (u8, u8) {
    match first {
        0xE0 => (0xA0, 0x20),
        0xED => (0x80, 0x20),
        0xF0 => (0x90, 0x30),
        0xF4 => (0x80, 0x10),
        0xC2..=0xF3 => (0x80, 0x40),
        _ => (0, 0),
    }
}

/// How many bytes come after the first one of a character.
fn following(first: u8) -> usize {
    1 + usize::from(first >= 0xE0) + usize::from(first >= 0xF0)
}

/// Which of the texts between bounds in `data` are UTF-8; see `store_core.kernel.text.are_text`.
#[pyfunction]
#[pyo3(signature = (bounds, data, /))]
pub fn are_text<'py>(
    py: Python<'py>,
    bounds: PyReadonlyArray1<'py, i32>,
    data: PyReadonlyArray1<'py, u8>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let (bounds, data) = (bounds.as_slice()?, data.as_slice()?);
    let is_text = |from: i32, to: i32| {
        let part = usize::try_from(from).ok().zip(usize::try_from(to).ok());
        part.and_then(|(from, to)| data.get(from..to)).is_some_and(|part| str::from_utf8(part).is_ok())
    };
    let pairs = bounds.iter().zip(bounds.iter().skip(1));
    let are = py.detach(|| pairs.map(|(from, to)| is_text(*from, *to)).collect::<Vec<_>>());
    Ok(are.into_pyarray(py))
}

// -- values

fn base64(body: &[u8], text: &mut Vec<u8>) {
    let start = text.len();
    text.resize(start + body.len().div_ceil(3) * 4, 0);
    if let Some(room) = text.get_mut(start..) {
        // The room is of the very length.
        _ = STANDARD.encode_slice(body, room);
    }
}

fn float(column: &Column<'_>, row: usize) -> f64 {
    f64::from_bits(column.number(0, row).cast_unsigned())
}

/// As Python writes it: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
fn float_text(value: f64, text: &mut Vec<u8>) {
    if !value.is_finite() {
        let word: &[u8] = if value.is_nan() {
            b"nan"
        } else if value < 0.0 {
            b"-inf"
        } else {
            b"inf"
        };
        text.extend_from_slice(word);
        return;
    }
    let shortest = format!("{value:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let power: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&power) {
        text.extend_from_slice(format!("{value:?}").as_bytes());
        return;
    }
    let sign = if power < 0 { '-' } else { '+' };
    text.extend_from_slice(format!("{digits}e{sign}{:02}", power.unsigned_abs()).as_bytes());
}

const SECOND_MS: i64 = 1000;
const DAY_MS: i64 = 86_400 * SECOND_MS;
/// The years 1 to 9999, which Python has dates for.
const FIRST_DAY: i64 = -719_162;
const LAST_DAY: i64 = 2_932_896;

/// ISO 8601 in UTC; of a time of no zone without its `Z`. What no calendar holds stays a number of milliseconds.
fn time(column: &Column<'_>, row: usize, units_a_ms: i64, text: &mut Vec<u8>) {
    let units = column.number(0, row);
    let (ms, rest) = (units.div_euclid(units_a_ms), units.rem_euclid(units_a_ms));
    let (day, ms_of_day) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    if !(FIRST_DAY..=LAST_DAY).contains(&day) {
        text.extend_from_slice(itoa::Buffer::new().format(ms).as_bytes());
        return;
    }
    let (year, month, day) = date(day);
    let seconds = ms_of_day / SECOND_MS;
    digits(year, 4, text);
    for (mark, value) in
        [(b'-', month), (b'-', day), (b'T', seconds / 3600), (b':', seconds / 60 % 60), (b':', seconds % 60)]
    {
        text.push(mark);
        digits(value, 2, text);
    }
    text.push(b'.');
    digits(ms_of_day % SECOND_MS, 3, text);
    if rest != 0 {
        digits(rest, if units_a_ms == 1000 { 3 } else { 6 }, text);
    }
    if column.kind == TEXT_MICROSECONDS || column.kind == TEXT_NANOSECONDS {
        text.push(b'Z');
    }
}

#[inline(always)]
fn digits(value: i64, count: usize, text: &mut Vec<u8>) {
    let mut room = [b'0'; 6];
    let mut rest = value;
    for digit in room.iter_mut().take(count).rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text.extend_from_slice(room.get(..count).unwrap_or(&room));
}

/// Year, month and day of a day counted from 1970-01-01, by periods of 400 years that begin in March, so that a leap day is the last one.
fn date(day: i64) -> (i64, i64, i64) {
    const PERIOD_DAYS: i64 = 146_097;
    const MARCH_OF_YEAR_0: i64 = 719_468; // days before 1970-01-01
    let since = day + MARCH_OF_YEAR_0;
    let (period, of_period) = (since.div_euclid(PERIOD_DAYS), since.rem_euclid(PERIOD_DAYS));
    // Without the leap days, one in 4 years but for the last one of each century; the last century has it.
    let year = (of_period - of_period / 1460 + of_period / 36_524 - of_period / (PERIOD_DAYS - 1)) / 365;
    let of_year = of_period - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153; // five months have 153 days, twice from March on
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (400 * period + year + i64::from(month <= 2), month, of_year - (153 * from_march + 2) / 5 + 1)
}
