//! Where every byte is, and every number Python knows too.
//!
//! The one place in the crate that knows them; `dict` hands them to the test that compares them with
//! `store_core/layout` and `store_core/kernel/codes.py`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $type = $value;)*

        fn add_numbers(dict: &Bound<'_, PyDict>) -> PyResult<()> {
            $(dict.set_item(stringify!($name), $name)?;)*
            Ok(())
        }
    };
}

macro_rules! texts {
    ($($name:ident = $value:expr;)*) => {
        $(pub const $name: &[u8] = $value;)*

        fn add_texts(dict: &Bound<'_, PyDict>) -> PyResult<()> {
            $(dict.set_item(stringify!($name), PyBytes::new(dict.py(), $name))?;)*
            Ok(())
        }
    };
}

numbers! {
    MAGIC_V1: i32 = -626_843_481;
    MAGIC_V2: i32 = -626_843_477;
    MAGIC_BLANK: i32 = -875_286_124;

    // record.HEAD
    SIZE_AT: usize = 0;
    MAGIC_AT: usize = 4;
    PREFIX_SIZE: usize = 8;
    BODY_CRC_AT: usize = 8;
    QUEUE_ID_AT: usize = 12;
    FLAG_AT: usize = 16;
    QUEUE_OFFSET_AT: usize = 20;
    OWN_PHY_OFFSET_AT: usize = 28;
    SYS_FLAG_AT: usize = 36;
    BORN_TIMESTAMP_AT: usize = 40;
    HEAD_SIZE: usize = 48;
    // Behind the born host: record.STORE_TIME; behind the store host: record.MIDDLE.
    STORE_TIME_SIZE: usize = 8;
    RECONSUME_TIMES_IN_MIDDLE: usize = 0;
    PREPARED_TRANSACTION_OFFSET_IN_MIDDLE: usize = 4;
    BODY_LENGTH_IN_MIDDLE: usize = 12;
    MIDDLE_SIZE: usize = 16;
    HOST_V4_SIZE: usize = 8;
    HOST_V6_SIZE: usize = 20;
    HOST_PORT_SIZE: usize = 4;
    // message_id.OFFSET
    ID_OFFSET_SIZE: usize = 8;
    TOPIC_LENGTH_V1_SIZE: usize = 1;
    TOPIC_LENGTH_V2_SIZE: usize = 2;
    PROPERTIES_LENGTH_SIZE: usize = 2;
    MIN_RECORD_SIZE: usize = 91;
    MAX_RECORD_SIZE: usize = 32 << 20;
    MAX_PROPERTIES_SIZE: usize = 32767;
    LONGEST_V1_TOPIC: usize = 127;
    LONGEST_HEAD: usize = HEAD_SIZE + STORE_TIME_SIZE + MIDDLE_SIZE + 2 * HOST_V6_SIZE;

    CRC_MASK: u32 = 0x7FFF_FFFF;
    TRANSACTION_MASK: i32 = 0xC;
    TRANSACTION_NONE: i32 = 0;
    TRANSACTION_COMMIT: i32 = 0x8;
    TRANSACTION_ROLLBACK: i32 = 0xC;
    FLAG_BORN_HOST_V6: i32 = 0x10;
    FLAG_STORE_HOST_V6: i32 = 0x20;
    FLAG_NEED_UNWRAP: i32 = 0x40;
    FLAG_INNER_BATCH: i32 = 0x80;

    NAME_VALUE_SEPARATOR: u8 = 1;
    PROPERTY_SEPARATOR: u8 = 2;
    // record.PROPERTY_CRC
    PROPERTY_CRC_SEPARATOR_AT: usize = 8;
    PROPERTY_CRC_DIGITS_AT: usize = 9;
    PROPERTY_CRC_END_AT: usize = 19;
    PROPERTY_CRC_SIZE: usize = 20;

    // index.HEADER, index.SLOT, index.ENTRY
    NO_INDEX_ENTRY: i32 = 0;
    INDEX_BEGIN_TIMESTAMP_AT: usize = 0;
    INDEX_END_TIMESTAMP_AT: usize = 8;
    INDEX_COUNT_AT: usize = 36;
    INDEX_HEADER_SIZE: usize = 40;
    INDEX_SLOT_SIZE: usize = 4;
    INDEX_KEY_HASH_AT: usize = 0;
    INDEX_PHY_OFFSET_AT: usize = 4;
    INDEX_SECONDS_AT: usize = 12;
    INDEX_PREVIOUS_AT: usize = 16;
    INDEX_ENTRY_SIZE: usize = 20;

    // queue.ENTRY
    QUEUE_ENTRY_PHY_OFFSET_AT: usize = 0;
    QUEUE_ENTRY_SIZE_BYTES_AT: usize = 8;
    QUEUE_ENTRY_TAGS_CODE_AT: usize = 12;
    QUEUE_ENTRY_SIZE: usize = 20;

    // codes.FrameKind
    MESSAGE: u8 = 0;
    BLANK: u8 = 1;
    DAMAGE: u8 = 2;
    ZEROS: u8 = 3;
    STALE: u8 = 4;

    // codes.FrameCode
    OK: u8 = 0;
    BAD_CRC: u8 = 1;
    OWN_OFFSET: u8 = 2;
    BAD_PROPERTY_CRC: u8 = 3;
    BAD_NUMBER: u8 = 4;
    MAGIC: u8 = 16;
    SIZE: u8 = 17;
    LENGTH_MISMATCH: u8 = 18;
    BLANK_SIZE: u8 = 19;
    RECORD_IMPLAUSIBLE: u8 = 20;
    RESIDUE: u8 = 21;

    // codes.ScanState
    CHAINED: u8 = 0;
    IN_DAMAGE: u8 = 1;
    IN_ZEROS: u8 = 2;
    IN_STALE: u8 = 3;
    IN_BAD_BLANK: u8 = 4;

    // codes.ScanFlag
    CHECK_CRC: u32 = 1;
    INDEX_KEYS: u32 = 2;
    CHECK_PROPERTY_CRC: u32 = 4;
    INDEX_TAGS: u32 = 8;
    NO_PROPERTIES: u32 = 16;
    RUNS: u32 = 32;
    CHECK_NUMBERS: u32 = 64;

    // codes.PropertyFlag
    HAS_KEYS: u16 = 1;
    HAS_UNIQ_KEY: u16 = 2;
    HAS_TAGS: u16 = 4;
    HAS_DELAY: u16 = 8;
    HAS_INNER_MULTI_DISPATCH: u16 = 16;
    HAS_INNER_NUM: u16 = 32;
    HAS_DUP_INFO: u16 = 64;
    HAS_CRC32: u16 = 128;
    HAS_TRAN_MSG: u16 = 256;
    HAS_PARTED_VALUE: u16 = 512;

    // codes.ArrowPart
    WANT_IDS: u32 = 1;
    WANT_HOSTS: u32 = 2;
    WANT_KEYS: u32 = 4;
    WANT_PROPERTIES: u32 = 8;
    WANT_BODIES: u32 = 16;
    WANT_MARKS: u32 = 32;

    // codes.EncodeRefusal
    REFUSED_NOT: u8 = 0;
    REFUSED_SEPARATOR: u8 = 1;
    REFUSED_TOPIC: u8 = 2;
    REFUSED_PROPERTIES: u8 = 3;
    REFUSED_BODY: u8 = 4;
    REFUSED_RECORD: u8 = 5;

    KEY_SEPARATOR: u8 = b' ';
    ZERO_RUN: usize = 512;
    ZERO_FRAME: usize = 8;
    RESYNC: usize = 1024;
    NEIGHBOUR_GAP: i64 = 4096;
    READ_AT_ONCE: i64 = 256 << 10;
    MOST_WORDS: usize = 1 << 16;

    // codes.TextKind
    TEXT_SAME: u8 = 0;
    TEXT_READY: u8 = 1;
    TEXT_INT: u8 = 2;
    TEXT_UINT: u8 = 3;
    TEXT_FLOAT: u8 = 4;
    TEXT_BOOL: u8 = 5;
    TEXT_STRING: u8 = 6;
    TEXT_BYTES: u8 = 7;
    TEXT_BODY: u8 = 8;
    TEXT_ENCODING: u8 = 9;
    TEXT_LIST: u8 = 10;
    TEXT_MAP: u8 = 11;
    TEXT_MICROSECONDS: u8 = 12;
    TEXT_NANOSECONDS: u8 = 13;
    TEXT_ZONELESS_MICROSECONDS: u8 = 14;
    TEXT_ZONELESS_NANOSECONDS: u8 = 15;
}

texts! {
    PROPERTY_KEYS = b"KEYS";
    PROPERTY_UNIQ_KEY = b"UNIQ_KEY";
    PROPERTY_TAGS = b"TAGS";
    PROPERTY_DELAY = b"DELAY";
    PROPERTY_INNER_MULTI_DISPATCH = b"INNER_MULTI_DISPATCH";
    PROPERTY_INNER_NUM = b"INNER_NUM";
    PROPERTY_INNER_BASE = b"INNER_BASE";
    PROPERTY_DUP_INFO = b"DUP_INFO";
    PROPERTY_CRC32 = b"__CRC32#";
    PROPERTY_TRAN_MSG = b"TRAN_MSG";
    PROPERTY_TOMBSTONE = b"RMQCTL_TOMBSTONE";
    SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX";
    INDEX_KEY_JOINT = b"#";
    INDEX_TAG_JOINT = b"#T#";
}

/// What both magics of records begin with.
pub const RECORD_MAGIC_START: [u8; 3] = {
    let [a, b, c, _] = MAGIC_V1.to_be_bytes();
    [a, b, c]
};

/// How long the topic length is in a record of this magic; None: no record's magic.
#[inline]
pub fn topic_length_size(magic: i32) -> Option<usize> {
    match magic {
        MAGIC_V1 => Some(TOPIC_LENGTH_V1_SIZE),
        MAGIC_V2 => Some(TOPIC_LENGTH_V2_SIZE),
        _ => None,
    }
}

/// Bytes of the born and of the store host.
#[inline]
pub fn host_sizes(sys_flag: i32) -> (usize, usize) {
    let size = |flag| if sys_flag & flag != 0 { HOST_V6_SIZE } else { HOST_V4_SIZE };
    (size(FLAG_BORN_HOST_V6), size(FLAG_STORE_HOST_V6))
}

/// All numbers and texts by name.
pub fn dict(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    add_numbers(&dict)?;
    add_texts(&dict)?;
    Ok(dict)
}
