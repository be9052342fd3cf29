//! The heads of records at known places, as columns (twin: in store_core/kernel/tables.py).

use std::hint::black_box;

use numpy::IntoPyArray;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::layout::{self, *};
use crate::record::{self, Check, Head, i32_at};

/// So many records are looked at together: their heads and what stands behind their bodies fit into the nearest cache.
const GROUP: usize = 64;
/// Where the last part of a head begins, most often.
const MIDDLE_AT: i64 = (HEAD_SIZE + STORE_TIME_SIZE + 2 * HOST_V4_SIZE) as i64;

macro_rules! columns {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        #[derive(Default)]
        pub struct Columns {
            good: Vec<bool>,
            $($name: Vec<$type>,)*
        }

        /// A group's rows; those that are not good are zeros.
        struct Group {
            good: [bool; GROUP],
            $($name: [$type; GROUP],)*
        }

        impl Group {
            fn new() -> Self {
                Self { good: [false; GROUP], $($name: [0; GROUP],)* }
            }

            #[inline(always)]
            fn set(&mut self, row: usize, at: u32, head: Option<&Head>) {
                if let Some(good) = self.good.get_mut(row) {
                    *good = head.is_some();
                }
                $(if let Some(value) = self.$name.get_mut(row) {
                    let of_head: fn(u32, &Head) -> $type = $value;
                    *value = head.map_or(0, |head| of_head(at, head));
                })*
            }
        }

        impl Columns {
            pub fn for_rows(rows: usize) -> Self {
                Self { good: Vec::with_capacity(rows), $($name: Vec::with_capacity(rows),)* }
            }

            pub fn append(&mut self, other: &mut Self) {
                self.good.append(&mut other.good);
                $(self.$name.append(&mut other.$name);)*
            }

            fn add(&mut self, group: &Group, rows: usize) {
                self.good.extend_from_slice(group.good.get(..rows).unwrap_or(&[]));
                $(self.$name.extend_from_slice(group.$name.get(..rows).unwrap_or(&[]));)*
            }

            pub fn into_dict(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
                let dict = PyDict::new(py);
                dict.set_item("good", self.good.into_pyarray(py))?;
                $(dict.set_item(stringify!($name), self.$name.into_pyarray(py))?;)*
                Ok(dict)
            }
        }
    };
}

// Windows are shorter than 4 GiB and records than 32 MiB, so that nothing is cut off.
columns! {
    magic: i32 = |_, head| head.magic;
    body_crc: i32 = |_, head| head.body_crc;
    queue_id: i32 = |_, head| head.queue_id;
    flag: i32 = |_, head| head.flag;
    queue_offset: i64 = |_, head| head.queue_offset;
    own_phy_offset: i64 = |_, head| head.own_phy_offset;
    sys_flag: i32 = |_, head| head.sys_flag;
    born_timestamp_ms: i64 = |_, head| head.born_timestamp_ms;
    store_timestamp_ms: i64 = |_, head| head.store_timestamp_ms;
    reconsume_times: i32 = |_, head| head.reconsume_times;
    prepared_transaction_offset: i64 = |_, head| head.prepared_transaction_offset;
    body_at: u32 = |at, head| at + head.body_at as u32;
    body_length: i32 = |_, head| head.body_length as i32;
    topic_at: u32 = |at, head| at + head.topic_at as u32;
    topic_length: i32 = |_, head| head.topic_length as i32;
    properties_at: u32 = |at, head| at + head.properties_at as u32;
    properties_length: i32 = |_, head| head.properties_length as i32;
}

impl Columns {
    /// Adds the heads of the records at these places of a window, of which `data` is what lies from `base` on: zeros where none
    /// of exactly that size stands. `FAR`: the window is not in the processor's cache.
    pub fn cut<const FAR: bool>(&mut self, data: &[u8], base: i64, at: &[i64], size_bytes: &[i64]) {
        let mut group = Group::new();
        for (at, size_bytes) in at.chunks(GROUP).zip(size_bytes.chunks(GROUP)) {
            if FAR {
                fetch(data, base, at);
            }
            for (row, (at, size)) in at.iter().zip(size_bytes).enumerate() {
                let head = head(data, at.wrapping_sub(base), *size);
                group.set(row, u32::try_from(*at).unwrap_or(0), head.as_ref());
            }
            self.add(&group, at.len());
        }
    }
}

/// The head of a well-formed record of exactly this size.
#[inline(always)]
fn head(data: &[u8], at: i64, size: i64) -> Option<Head> {
    let at = usize::try_from(at).ok()?;
    let bytes = data.get(at..at.checked_add(usize::try_from(size).ok()?)?)?;
    match record::check_record(bytes, size) {
        Check::Record(head) if head.size == bytes.len() => Some(head),
        _ => None,
    }
}

/// Has the processor fetch what of these records will be looked at, one while it waits for the other.
#[inline(always)]
fn fetch(data: &[u8], base: i64, at: &[i64]) {
    let byte = |at: i64| usize::try_from(at).ok().and_then(|at| data.get(at)).copied().unwrap_or(0);
    let places = || at.iter().map(|at| at.wrapping_sub(base));
    black_box(places().fold(0, |sum, at| sum ^ byte(at) ^ byte(at.wrapping_add(MIDDLE_AT))));
    black_box(places().fold(0, |sum, at| sum ^ byte_behind_body(data, at).unwrap_or(0)));
}

#[inline(always)]
fn byte_behind_body(data: &[u8], at: i64) -> Option<u8> {
    let record = data.get(usize::try_from(at).ok()?..)?;
    let (born_host, store_host) = layout::host_sizes(i32_at(record, SYS_FLAG_AT)?);
    let body_at = HEAD_SIZE + born_host + STORE_TIME_SIZE + store_host + MIDDLE_SIZE;
    let body_length = i32_at(record, body_at - MIDDLE_SIZE + BODY_LENGTH_IN_MIDDLE)?;
    record.get(body_at.checked_add(usize::try_from(body_length).ok()?)?).copied()
}
