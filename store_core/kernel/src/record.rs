//! One record: is it well formed, and what does its head say (twin: reference/record.py).

use crate::layout::{self, *};

/// A well-formed record. Positions are relative to its first byte; negative lengths that count as 0 are 0.
#[derive(Clone, Copy)]
pub struct Head {
    pub size: usize,
    pub magic: i32,
    pub body_crc: i32,
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub own_phy_offset: i64,
    pub sys_flag: i32,
    pub born_timestamp_ms: i64,
    pub store_timestamp_ms: i64,
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
    pub body_at: usize,
    pub body_length: usize,
    pub topic_at: usize,
    pub topic_length: usize,
    pub properties_at: usize,
    pub properties_length: usize,
}

pub enum Check {
    Record(Head),
    /// A frame code says why not.
    Not(u8),
    /// So many bytes from the record's start are needed to tell.
    Shortage(usize),
}

#[inline(always)]
pub fn i16_at(bytes: &[u8], at: usize) -> Option<i16> {
    bytes.get(at..)?.first_chunk().map(|chunk| i16::from_be_bytes(*chunk))
}

#[inline(always)]
pub fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..)?.first_chunk().map(|chunk| i32::from_be_bytes(*chunk))
}

#[inline(always)]
pub fn i64_at(bytes: &[u8], at: usize) -> Option<i64> {
    bytes.get(at..)?.first_chunk().map(|chunk| i64::from_be_bytes(*chunk))
}

/// The first two words of a frame.
#[inline(always)]
pub fn prefix(bytes: &[u8]) -> Option<(i32, i32)> {
    Some((i32_at(bytes, SIZE_AT)?, i32_at(bytes, MAGIC_AT)?))
}

/// The size and the length of the topic length, if the first two words can be a record's; else a frame code.
#[inline(always)]
pub fn check_prefix(size: i32, magic: i32, left: i64) -> Result<(usize, usize), u8> {
    let topic_length_size = layout::topic_length_size(magic).ok_or(MAGIC)?;
    match usize::try_from(size) {
        Ok(bytes) if (MIN_RECORD_SIZE..=MAX_RECORD_SIZE).contains(&bytes) && i64::from(size) <= left => {
            Ok((bytes, topic_length_size))
        }
        _ => Err(SIZE),
    }
}

/// The record at the start of `bytes`, `left` bytes in front of the segment's end.
#[inline]
pub fn check_record(bytes: &[u8], left: i64) -> Check {
    let Some((size, magic)) = prefix(bytes) else {
        return Check::Shortage(PREFIX_SIZE);
    };
    match check_prefix(size, magic, left) {
        Err(code) => Check::Not(code),
        Ok((size, topic_length_size)) => match bytes.get(..size) {
            None if !may_fill(bytes, size, topic_length_size) => Check::Not(LENGTH_MISMATCH),
            None => Check::Shortage(size),
            Some(record) => match parts(record, magic, topic_length_size) {
                None => Check::Not(LENGTH_MISMATCH),
                Some(head) => Check::Record(head),
            },
        },
    }
}

/// The head of a record that is exactly `record`; None if its parts do not fit into it or do not fill it.
#[inline(always)]
fn parts(record: &[u8], magic: i32, topic_length_size: usize) -> Option<Head> {
    let sys_flag = i32_at(record, SYS_FLAG_AT)?;
    let (born_host, store_host) = layout::host_sizes(sys_flag);
    let store_time_at = HEAD_SIZE + born_host;
    let middle_at = store_time_at + STORE_TIME_SIZE + store_host;
    let body_at = middle_at + MIDDLE_SIZE;
    let body_length = length(i32_at(record, middle_at + BODY_LENGTH_IN_MIDDLE)?);
    let topic_length_at = body_at.checked_add(body_length)?;
    let topic_length = usize::try_from(topic_length(record, topic_length_at, topic_length_size)?).ok()?;
    let topic_at = topic_length_at + topic_length_size;
    let properties_length_at = topic_at + topic_length;
    let properties_length = length(i32::from(i16_at(record, properties_length_at)?));
    let properties_at = properties_length_at + PROPERTIES_LENGTH_SIZE;
    if properties_at + properties_length != record.len() {
        return None;
    }
    Some(Head {
        size: record.len(),
        magic,
        body_crc: i32_at(record, BODY_CRC_AT)?,
        queue_id: i32_at(record, QUEUE_ID_AT)?,
        flag: i32_at(record, FLAG_AT)?,
        queue_offset: i64_at(record, QUEUE_OFFSET_AT)?,
        own_phy_offset: i64_at(record, OWN_PHY_OFFSET_AT)?,
        sys_flag,
        born_timestamp_ms: i64_at(record, BORN_TIMESTAMP_AT)?,
        store_timestamp_ms: i64_at(record, store_time_at)?,
        reconsume_times: i32_at(record, middle_at + RECONSUME_TIMES_IN_MIDDLE)?,
        prepared_transaction_offset: i64_at(record, middle_at + PREPARED_TRANSACTION_OFFSET_IN_MIDDLE)?,
        body_at,
        body_length,
        topic_at,
        topic_length,
        properties_at,
        properties_length,
    })
}

/// Where the body begins and where it ends, as far as the head is there.
#[inline]
pub fn body(bytes: &[u8]) -> Option<(usize, usize)> {
    let (born_host, store_host) = layout::host_sizes(i32_at(bytes, SYS_FLAG_AT)?);
    let middle_at = HEAD_SIZE + born_host + STORE_TIME_SIZE + store_host;
    let body_at = middle_at + MIDDLE_SIZE;
    Some((body_at, body_at.checked_add(length(i32_at(bytes, middle_at + BODY_LENGTH_IN_MIDDLE)?))?))
}

/// Whether the parts of a record may fill its `size`, of which only the front is there: a wrong size is not waited for.
#[cold]
fn may_fill(front: &[u8], size: usize, topic_length_size: usize) -> bool {
    let Some((_, topic_length_at)) = body(front) else {
        return true;
    };
    let topic_at = topic_length_at + topic_length_size;
    if topic_at + PROPERTIES_LENGTH_SIZE > size {
        return false;
    }
    let Some(topic_length) = topic_length(front, topic_length_at, topic_length_size) else {
        return true;
    };
    let Ok(topic_length) = usize::try_from(topic_length) else {
        return false;
    };
    let properties_at = topic_at + topic_length + PROPERTIES_LENGTH_SIZE;
    match i16_at(front, topic_at + topic_length) {
        Some(stored) => properties_at + length(i32::from(stored)) == size,
        None => properties_at <= size,
    }
}

/// The topic's length, which has one byte in front of the topic, or two.
#[inline(always)]
fn topic_length(bytes: &[u8], at: usize, size: usize) -> Option<i16> {
    if size == TOPIC_LENGTH_V1_SIZE { Some(i16::from(i8::from_be_bytes([*bytes.get(at)?]))) } else { i16_at(bytes, at) }
}

/// A length in which negative counts as 0.
#[inline(always)]
fn length(value: i32) -> usize {
    usize::try_from(value).unwrap_or(0)
}

/// Whether the bytes in front of the body could belong to a record that lies here or lay further in front.
pub fn has_plausible_head(bytes: &[u8], phy_offset: i64, left: i64) -> bool {
    let plausible = || {
        let (size, magic) = prefix(bytes)?;
        let (size, topic_length_size) = check_prefix(size, magic, left).ok()?;
        let own_phy_offset = i64_at(bytes, OWN_PHY_OFFSET_AT)?;
        let (body_at, body_end) = body(bytes)?;
        if !(0..=phy_offset).contains(&own_phy_offset) || body_at > size {
            return None;
        }
        Some(body_end.checked_add(topic_length_size + PROPERTIES_LENGTH_SIZE)? <= size)
    };
    plausible().unwrap_or(false)
}

/// The CRC-32 of zlib.
#[inline]
pub fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = libdeflater::Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Whether a checksum over the body is the one the head holds.
#[inline]
pub fn is_body_crc(head: &Head, crc: u32) -> bool {
    i32::try_from(crc & CRC_MASK) == Ok(head.body_crc)
}

/// Whether the body matches its checksum; an empty body has none.
#[inline]
pub fn body_crc_holds(record: &[u8], head: &Head) -> bool {
    head.body_length == 0
        || record
            .get(head.body_at..head.body_at + head.body_length)
            .is_some_and(|body| is_body_crc(head, checksum(body)))
}

/// Whether the property CRC tail matches the record in front of it; a record without a tail passes.
pub fn property_crc_holds(record: &[u8], head: &Head) -> bool {
    if head.properties_length < PROPERTY_CRC_SIZE {
        return true;
    }
    let Some((covered, tail)) = record.split_at_checked(record.len().saturating_sub(PROPERTY_CRC_SIZE)) else {
        return true;
    };
    let (name, rest) = tail.split_at_checked(PROPERTY_CRC_SEPARATOR_AT).unwrap_or((tail, &[]));
    if name != PROPERTY_CRC32 || rest.first() != Some(&NAME_VALUE_SEPARATOR) {
        return true;
    }
    let digits = tail.get(PROPERTY_CRC_DIGITS_AT..PROPERTY_CRC_END_AT).unwrap_or(&[]);
    if tail.get(PROPERTY_CRC_END_AT) != Some(&PROPERTY_SEPARATOR) || !digits.iter().all(u8::is_ascii_digit) {
        return false;
    }
    // Least significant digit first.
    let value = digits.iter().rev().fold(0_u64, |value, digit| value * 10 + u64::from(digit - b'0'));
    u64::from(checksum(covered) & CRC_MASK) == value
}
