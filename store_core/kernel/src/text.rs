//! Rows of columns as JSON, CSV or TSV. What each value looks like is defined by rmqctl/output/formats.py, which writes the same rows one by one.

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
        let column = Column { lead, kind: *kind, numbers, data, valid };
        if !column.has(rows) {
            return Err(PyValueError::new_err("a column has not what its kind takes"));
        }
        known.push(column);
    }
    let tail: &[u8] = &tail;
    let text = py.detach(|| {
        let mut text = Vec::with_capacity(known.iter().map(|column| column.data_size()).sum::<usize>() + rows * 64);
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
    lead: &'a [u8],
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

    fn data_size(&self) -> usize {
        if matches!(self.kind, TEXT_SAME | TEXT_ENCODING) {
            0
        } else {
            self.data.iter().map(|data| data.len()).min().unwrap_or(0).min(1 << 22)
        }
    }

    #[inline(always)]
    fn is_null(&self, row: usize) -> bool {
        self.valid.is_some_and(|valid| valid.get(row) == Some(&0))
    }

    #[inline(always)]
    fn number(&self, which: usize, row: usize) -> i64 {
        self.numbers.get(which).and_then(|values| values.get(row)).copied().unwrap_or(0)
    }

    /// The bytes of a text whose begin and end are the numbers from `which` on.
    #[inline(always)]
    fn part(&self, data: usize, which: usize, row: usize) -> &'a [u8] {
        let place = |which| usize::try_from(self.number(which, row)).unwrap_or(usize::MAX);
        self.data.get(data).and_then(|data| data.get(place(which)..place(which + 1))).unwrap_or(&[])
    }

    fn items(&self, row: usize) -> std::ops::Range<usize> {
        let place = |which| usize::try_from(self.number(which, row)).unwrap_or(0);
        place(0)..place(1)
    }

    /// A body's bytes, and whether they are shown as text.
    #[inline(always)]
    fn body(&self, row: usize) -> (&'a [u8], bool) {
        let body = self.part(0, 0, row);
        (body, self.number(2, row) == 0 && str::from_utf8(body).is_ok())
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
}

// -- JSON

fn json(columns: &[Column<'_>], rows: usize, tail: &[u8], text: &mut Vec<u8>) {
    let forms = &Forms::new();
    let mut scratch = Vec::new();
    for row in 0..rows {
        for column in columns {
            text.extend_from_slice(column.lead);
            if column.is_null(row) {
                text.extend_from_slice(NULL);
            } else if !column.plain(row, text) {
                json_value(column, row, forms, &mut scratch, text);
            }
        }
        text.extend_from_slice(tail);
    }
}

const NULL: &[u8] = b"null";

#[inline(always)]
fn json_value(column: &Column<'_>, row: usize, forms: &Forms, scratch: &mut Vec<u8>, text: &mut Vec<u8>) {
    match column.kind {
        TEXT_SAME => text.extend_from_slice(column.data.first().unwrap_or(&NULL)),
        TEXT_READY => text.extend_from_slice(column.part(0, 0, row)),
        TEXT_STRING => json_string(column.part(0, 0, row), &forms.json, text),
        TEXT_BYTES => {
            text.push(b'"');
            forms.json.add_bytes(column.part(0, 0, row), text);
            text.push(b'"');
        }
        TEXT_BODY => match column.body(row) {
            (body, true) => json_string(body, &forms.json, text),
            (body, false) => {
                text.push(b'"');
                base64(body, text);
                text.push(b'"');
            }
        },
        TEXT_FLOAT => {
            let value = float(column, row);
            if value.is_finite() { float_text(value, text) } else { text.extend_from_slice(NULL) }
        }
        TEXT_LIST | TEXT_MAP => json_items(column, row, &forms.json, text),
        _ => {
            scratch.clear();
            cell(column, row, forms, scratch);
            text.push(b'"');
            text.extend_from_slice(scratch);
            text.push(b'"');
        }
    }
}

fn json_items(column: &Column<'_>, row: usize, escapes: &Escapes, text: &mut Vec<u8>) {
    let is_map = column.kind == TEXT_MAP;
    text.push(if is_map { b'{' } else { b'[' });
    let mut lead: &[u8] = b"";
    for item in column.items(row) {
        text.extend_from_slice(lead);
        json_string(column.part(0, 2, item), escapes, text);
        if is_map {
            text.extend_from_slice(b": ");
            json_string(column.part(1, 4, item), escapes, text);
        }
        lead = b", ";
    }
    text.push(if is_map { b'}' } else { b']' });
}

/// A string, which is UTF-8, in quotes.
#[inline]
fn json_string(string: &[u8], escapes: &Escapes, text: &mut Vec<u8>) {
    text.push(b'"');
    escapes.add(string, text);
    text.push(b'"');
}

// -- CSV and TSV

fn csv(columns: &[Column<'_>], rows: usize, delimiter: u8, tail: &[u8], text: &mut Vec<u8>) {
    let forms = &Forms::new();
    let mut scratch = Vec::new();
    for row in 0..rows {
        let start = text.len();
        // Found before the row is written, where it is likely.
        let in_quotes = columns.iter().any(|column| {
            column.kind == TEXT_BYTES && !column.is_null(row) && memchr::memchr(b'\r', column.part(0, 0, row)).is_some()
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
        text.extend_from_slice(column.lead);
        let is_null = column.is_null(row);
        if !in_quotes && (is_null || column.plain(row, text)) {
            continue;
        }
        scratch.clear();
        let is_bytes = column.kind == TEXT_BYTES && !is_null;
        let shown = if is_bytes || (column.kind == TEXT_STRING && !is_null) {
            column.part(0, 0, row) // not copied: U+FFFD for some of it makes nothing special
        } else {
            if !is_null && !column.plain(row, scratch) {
                cell(column, row, forms, scratch);
            }
            scratch.as_slice()
        };
        if in_quotes || memchr::memchr3(delimiter, b'"', b'\n', shown).is_some() {
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
            text.extend_from_slice(shown);
        }
        if !in_quotes && memchr::memchr(b'\r', shown).is_some() {
            return false;
        }
    }
    true
}

/// A value that is no number and no truth value, as it stands in a cell.
fn cell(column: &Column<'_>, row: usize, forms: &Forms, text: &mut Vec<u8>) {
    match column.kind {
        TEXT_SAME => text.extend_from_slice(column.data.first().unwrap_or(&NULL)),
        TEXT_READY | TEXT_STRING => text.extend_from_slice(column.part(0, 0, row)),
        TEXT_BYTES => forms.plain.add_bytes(column.part(0, 0, row), text),
        TEXT_BODY => match column.body(row) {
            (body, true) => text.extend_from_slice(body),
            (body, false) => base64(body, text),
        },
        TEXT_ENCODING => text.extend_from_slice(if column.body(row).1 { b"utf-8" } else { b"base64" }),
        TEXT_FLOAT => float_text(float(column, row), text),
        TEXT_LIST | TEXT_MAP => json_items(column, row, &forms.json, text),
        TEXT_MICROSECONDS | TEXT_ZONELESS_MICROSECONDS => time(column, row, 1000, text),
        TEXT_NANOSECONDS | TEXT_ZONELESS_NANOSECONDS => time(column, row, 1_000_000, text),
        _ => {}
    }
}

// -- strings

/// Looked at together, so that the processor compares all of them at once.
const STRIDE: usize = 16;
/// The most bytes that one becomes, and room for all that are written at once where fewer count.
const LONGEST: usize = 8;
/// Bytes that are gathered before they are added, of a stride and of a text: it is cleared each time.
const STRIDE_ROOM: usize = STRIDE * LONGEST;
const TEXT_ROOM: usize = 512;
const REPLACEMENT: [u8; LONGEST] = [0xEF, 0xBF, 0xBD, 0, 0, 0, 0, 0];

/// What is written of a byte: the first of `bytes`.
#[derive(Clone, Copy)]
struct Written {
    bytes: [u8; LONGEST],
    length: usize,
}

/// What is written of a byte that begins no character, and which bytes after it would make it begin one.
#[derive(Clone, Copy)]
struct First {
    alone: Written,
    least: u8,
    most: u8,
}

/// How bytes of strings are written in some format. All that are special lie below `below` or are `marks`.
struct Escapes {
    written: [Written; 256],
    first: [First; 256],
    below: u8,
    marks: [u8; 2],
}

/// The forms of strings that a row needs: as they are, within a cell in quotes, and in JSON.
struct Forms {
    plain: Escapes,
    quoted: Escapes,
    json: Escapes,
}

impl Forms {
    fn new() -> Self {
        Self {
            plain: Escapes::of(0, [0; 2], |byte| vec![byte]),
            quoted: Escapes::of(0, [b'"'; 2], |byte| if byte == b'"' { vec![byte; 2] } else { vec![byte] }),
            json: Escapes::of(b' ', [b'"', b'\\'], in_json),
        }
    }
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
            let (least, most) = seconds(byte);
            let alone = if byte < 0x80 { written } else { Written { bytes: REPLACEMENT, length: 3 } };
            byte = byte.wrapping_add(1);
            First { alone, least, most }
        });
        Self { written, first, below, marks }
    }

    #[inline(always)]
    fn has_none(&self, bytes: &[u8]) -> bool {
        let [one, other] = self.marks;
        !bytes.iter().fold(false, |found, byte| found | (*byte < self.below || *byte == one || *byte == other))
    }

    /// Adds a string, which is UTF-8.
    #[inline]
    fn add(&self, string: &[u8], text: &mut Vec<u8>) {
        let (strides, rest) = string.as_chunks::<STRIDE>();
        let mut plain = 0; // before this stride all are written
        for (number, stride) in strides.iter().enumerate() {
            if !self.has_none(stride) {
                text.extend_from_slice(strides.get(plain..number).unwrap_or(&[]).as_flattened());
                self.add_each(stride, text);
                plain = number + 1;
            }
        }
        text.extend_from_slice(strides.get(plain..).unwrap_or(&[]).as_flattened());
        if self.has_none(rest) {
            text.extend_from_slice(rest);
        } else {
            self.add_each(rest, text);
        }
    }

    /// Adds a stride or less.
    #[inline]
    fn add_each(&self, bytes: &[u8], text: &mut Vec<u8>) {
        let mut gathered = Gathered::<STRIDE_ROOM>::new(text);
        for byte in bytes {
            if let Some(written) = self.written.get(usize::from(*byte)) {
                gathered.add(written);
            }
        }
        gathered.empty();
    }

    /// Adds bytes, with U+FFFD for each longest part of what could have become a character, as Java and Python do.
    #[inline]
    fn add_bytes(&self, raw: &[u8], text: &mut Vec<u8>) {
        if str::from_utf8(raw).is_ok() {
            self.add(raw, text);
            return;
        }
        let mut gathered = Gathered::<TEXT_ROOM>::new(text);
        let mut at = 0;
        while let Some(byte) = raw.get(at) {
            let Some(first) = self.first.get(usize::from(*byte)) else { return };
            let second = raw.get(at + 1).copied().unwrap_or(0);
            // One branch, mostly not taken: of random bytes each could be either.
            if (first.least <= second) & (second <= first.most) {
                let rest = raw.get(at + 1..).unwrap_or(&[]);
                let more = following(*byte);
                let there = 1 + rest.iter().take(more).skip(1).take_while(|byte| (0x80..0xC0).contains(*byte)).count();
                let mut shown = first.alone;
                if there == more {
                    shown = Written { bytes: [*byte; LONGEST], length: 1 + more };
                    shown.bytes.iter_mut().skip(1).zip(rest.iter().take(more)).for_each(|(to, from)| *to = *from);
                }
                gathered.add(&shown);
                at += 1 + there;
            } else {
                gathered.add(&first.alone);
                at += 1;
            }
        }
        gathered.empty();
    }
}

/// The least and the largest byte that may come second in a character that begins with this one; where none does, none is.
fn seconds(first: u8) -> (u8, u8) {
    match first {
        0xE0 => (0xA0, 0xBF),
        0xED => (0x80, 0x9F),
        0xF0 => (0x90, 0xBF),
        0xF4 => (0x80, 0x8F),
        0xC2..=0xF3 => (0x80, 0xBF),
        _ => (0xFF, 0),
    }
}

/// How many bytes come after the first one of a character.
fn following(first: u8) -> usize {
    1 + usize::from(first >= 0xE0) + usize::from(first >= 0xF0)
}

/// Short pieces that go to a text together: each is copied whole, whatever its length, which takes no loop.
struct Gathered<'a, const ROOM: usize> {
    text: &'a mut Vec<u8>,
    room: [u8; ROOM],
    used: usize,
}

impl<'a, const ROOM: usize> Gathered<'a, ROOM> {
    #[inline(always)]
    fn new(text: &'a mut Vec<u8>) -> Self {
        Self { text, room: [0; ROOM], used: 0 }
    }

    #[inline(always)]
    fn add(&mut self, written: &Written) {
        if self.used + LONGEST > ROOM {
            self.empty();
        }
        if let Some(room) = self.room.get_mut(self.used..self.used + LONGEST) {
            room.copy_from_slice(&written.bytes);
        }
        self.used += written.length;
    }

    #[inline(always)]
    fn empty(&mut self) {
        self.text.extend_from_slice(self.room.get(..self.used).unwrap_or(&self.room));
        self.used = 0;
    }
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
