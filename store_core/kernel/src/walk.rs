//! The walk over a window (twin: reference/scan.py, which explains it).

use crate::columns::{Columns, Row, Stop};
use crate::layout::*;
use crate::properties::{self, Known};
use crate::record::{self, Check, Head};
use crate::resync::{self, Checksums, Magics};

/// A window and what is asked of it.
pub struct Window<'a> {
    /// Ends at the segment's end or in front of it.
    pub data: &'a [u8],
    /// Where `data` begins in what the columns' places count from.
    pub place: usize,
    pub phy_offset: i64,
    pub segment_end: i64,
    pub flags: u32,
}

/// Whether the first row goes on with the last one of the window in front, the walk having begun there.
pub fn continues(columns: &Columns, window_phy_offset: i64, begin: Stop) -> bool {
    let continued = match begin.state {
        IN_DAMAGE | IN_BAD_BLANK => Some(DAMAGE),
        IN_ZEROS => Some(ZEROS),
        IN_STALE => Some(STALE),
        _ => None,
    };
    let start = window_phy_offset.saturating_add(as_i64(begin.at));
    continued.is_some_and(|kind| columns.begins_with(kind, start))
}

/// The rows of this window behind those of the windows in front of it, and where the walk stopped.
///
/// There are no rows of what begins at `to` of the log or behind it.
pub fn scan_on(columns: Columns, window: Window<'_>, at: usize, state: u8, to: i64) -> (Columns, Stop) {
    let mut walk = Walk::new(columns, window, to);
    let mut stop = Stop::at(at, state);
    while stop.at < walk.end && stop.need_bytes == 0 {
        stop = match stop.state {
            CHAINED => walk.frame(stop.at),
            state => walk.region(stop.at, state, RESIDUE),
        };
    }
    if walk.left(stop.at) == 0 {
        stop.state = CHAINED;
    }
    (walk.columns, stop)
}

struct Walk<'a> {
    data: &'a [u8],
    place: usize,
    phy_offset: i64,
    segment_end: i64,
    flags: u32,
    reaches_end: bool,
    /// No rows begin at this index or behind it.
    end: usize,
    /// From this index on the window may cut off a head.
    limit: usize,
    columns: Columns,
    magics: Magics,
    checksums: Checksums,
}

impl<'a> Walk<'a> {
    fn new(columns: Columns, window: Window<'a>, to: i64) -> Self {
        let Window { data, place, phy_offset, segment_end, flags } = window;
        let reaches_end = segment_end - phy_offset == as_i64(data.len());
        Self {
            data,
            place,
            phy_offset,
            segment_end,
            flags,
            reaches_end,
            end: data.len().min(as_usize(to.saturating_sub(phy_offset))),
            limit: if reaches_end { data.len() } else { (data.len() + 1).saturating_sub(LONGEST_HEAD) },
            columns,
            magics: Magics::new(),
            checksums: Checksums::default(),
        }
    }

    // -- where a frame should start

    #[inline]
    fn frame(&mut self, at: usize) -> Stop {
        let left = self.left(at);
        if left < as_i64(PREFIX_SIZE) {
            return self.segment_tail(at, left);
        }
        let bytes = self.from(at);
        match record::check_record(bytes, left) {
            Check::Record(head) => {
                let is_own = head.own_phy_offset == self.phy_offset_of(at);
                if is_own || record::body_crc_holds(bytes, &head) {
                    self.message(at, &head)
                } else {
                    self.region(at, CHAINED, RECORD_IMPLAUSIBLE)
                }
            }
            Check::Shortage(need_bytes) => Stop { at, state: CHAINED, need_bytes },
            Check::Not(code) => match record::prefix(bytes) {
                Some((size, MAGIC_BLANK)) if i64::from(size) == left => self.blank(at),
                Some((_, MAGIC_BLANK)) => self.region(at, CHAINED, BLANK_SIZE),
                _ => self.region(at, CHAINED, code),
            },
        }
    }

    fn segment_tail(&mut self, at: usize, left: i64) -> Stop {
        let tail = self.from(at);
        let end = at + tail.len();
        if as_i64(tail.len()) < left {
            return Stop { at, state: CHAINED, need_bytes: as_usize(left) };
        }
        if tail.iter().any(|byte| *byte != 0) {
            self.add(DAMAGE, SIZE, at, end);
        } else {
            self.add(ZEROS, OK, at, end);
        }
        Stop::at(end, CHAINED)
    }

    fn blank(&mut self, at: usize) -> Stop {
        let end = at + as_usize(self.left(at));
        self.add(BLANK, OK, at, end);
        Stop::at(end, CHAINED)
    }

    #[inline]
    fn message(&mut self, at: usize, head: &Head) -> Stop {
        let end = at + head.size;
        let phy_offset = self.phy_offset_of(at);
        let bytes = self.data.get(at..end).unwrap_or(&[]);
        if at >= self.end {
            return Stop::at(end, CHAINED); // only where a region was searched that begins in front of it
        }
        let code = self.message_code(bytes, head, phy_offset);
        if code == OK && self.flags & RUNS != 0 && !(self.flags & CHECK_NUMBERS != 0 && has_bad_number(bytes, head)) {
            self.columns.add_to_run(phy_offset, as_i64(head.size));
            return Stop::at(end, CHAINED);
        }
        add_record(&mut self.columns, self.flags, bytes, head, self.place + at, phy_offset, code);
        Stop::at(end, CHAINED)
    }

    #[inline(always)]
    fn message_code(&self, bytes: &[u8], head: &Head, phy_offset: i64) -> u8 {
        if self.flags & CHECK_CRC != 0 && !record::body_crc_holds(bytes, head) {
            BAD_CRC
        } else if head.own_phy_offset != phy_offset {
            OWN_OFFSET
        } else if self.flags & CHECK_PROPERTY_CRC != 0 && !record::property_crc_holds(bytes, head) {
            BAD_PROPERTY_CRC
        } else {
            OK
        }
    }

    // -- regions without frames

    /// From `at`, where no frame starts, to the next frame or as far as this window tells.
    ///
    /// `state` says what ends at `at`. With CHAINED a frame should have started there, and `code` says why none did.
    #[cold]
    fn region(&mut self, mut at: usize, mut state: u8, code: u8) -> Stop {
        let mut search_from = at;
        loop {
            let Some(head) = self.next_head(search_from) else {
                (at, state) = self.fill(at, self.limit, state, code, self.reaches_end);
                let left = as_usize(self.left(at));
                let need_bytes = if self.reaches_end { 0 } else { RESYNC.min(left) };
                return Stop { at, state, need_bytes };
            };
            (at, state) = self.fill(at, head, state, code, true);
            if let Some(stop) = self.try_head(head, state) {
                return stop;
            }
            search_from = head + 1;
        }
    }

    /// The next index where a record lies or lay, as far as its head says, or an exact blank.
    fn next_head(&mut self, search_from: usize) -> Option<usize> {
        let mut search_from = search_from;
        while search_from < self.limit {
            let at = self.magics.next(self.data, search_from + MAGIC_AT)? - MAGIC_AT;
            if at >= self.limit {
                return None;
            }
            let (left, bytes) = (self.left(at), self.from(at));
            let is_blank = record::prefix(bytes).is_some_and(|prefix| is_exact_blank(prefix, left));
            if is_blank || record::has_plausible_head(bytes, self.phy_offset_of(at), left) {
                return Some(at);
            }
            search_from = at + 1;
        }
        None
    }

    /// The frame behind a plausible head; None if it is none. Unlike chained records these must prove themselves.
    fn try_head(&mut self, at: usize, state: u8) -> Option<Stop> {
        let (left, bytes) = (self.left(at), self.from(at));
        let head = match record::check_record(bytes, left) {
            Check::Record(head) => head,
            Check::Shortage(need_bytes) => return Some(Stop { at, state, need_bytes }),
            Check::Not(_) if record::prefix(bytes).is_some_and(|(_, magic)| magic == MAGIC_BLANK) => {
                return Some(self.blank(at));
            }
            Check::Not(_) => return None,
        };
        let is_own = head.own_phy_offset == self.phy_offset_of(at);
        // The checksum is only looked at where nothing cheaper decides.
        let behind = if is_own { self.is_frame_behind(at, head.size) } else { Some(false) };
        if behind == Some(true) {
            return Some(self.message(at, &head));
        }
        let crc_holds = self.crc_holds(at, &head);
        match (is_own, crc_holds, behind) {
            (true, true, _) => Some(self.message(at, &head)),
            (false, true, _) => Some(match self.end_of_stale(at, &head) {
                Ok(end) => {
                    self.add(STALE, OK, at, end);
                    Stop::at(end, IN_STALE)
                }
                Err(need_bytes) => Stop { at, state, need_bytes },
            }),
            (true, false, None) => Some(Stop { at, state, need_bytes: head.size + PREFIX_SIZE }),
            _ => None,
        }
    }

    fn crc_holds(&mut self, at: usize, head: &record::Head) -> bool {
        let body_at = at + head.body_at;
        head.body_length == 0
            || self
                .checksums
                .of(self.data, body_at, body_at + head.body_length)
                .is_some_and(|crc| record::is_body_crc(head, crc))
    }

    /// Where a stale record ends: at most where another one lies in its own place, by its checksum. Else how many bytes it takes to say.
    ///
    /// What is behind its body has no checksum, and the page that the stale one came with may end there.
    fn end_of_stale(&mut self, at: usize, head: &record::Head) -> Result<usize, usize> {
        let end = at + head.size;
        let need_bytes = head.size + LONGEST_HEAD;
        if need_bytes > MAX_RECORD_SIZE {
            return Ok(end);
        }
        if at + need_bytes > self.data.len() && !self.reaches_end {
            return Err(need_bytes);
        }
        for other in at + head.body_at + head.body_length..end {
            let (left, bytes) = (self.left(other), self.from(other));
            if !record::has_plausible_head(bytes, self.phy_offset_of(other), left) {
                continue;
            }
            match record::check_record(bytes, left) {
                Check::Shortage(need) if other - at + need <= MAX_RECORD_SIZE => return Err(other - at + need),
                Check::Record(found) => {
                    let is_own = found.own_phy_offset == self.phy_offset_of(other);
                    if is_own && self.crc_holds(other, &found) {
                        return Ok(other);
                    }
                }
                _ => {}
            }
        }
        Ok(end)
    }

    /// Whether a record ends where a frame plausibly starts, or with the segment; None: the window ends too early.
    fn is_frame_behind(&self, at: usize, size: usize) -> Option<bool> {
        let end = at + size;
        let left = self.left(end);
        if left == 0 {
            return Some(true);
        }
        if left < as_i64(PREFIX_SIZE) || size + PREFIX_SIZE > MAX_RECORD_SIZE {
            return Some(false);
        }
        let (size, magic) = record::prefix(self.from(end))?;
        Some(is_exact_blank((size, magic), left) || record::check_prefix(size, magic, left).is_ok())
    }

    /// ZEROS and DAMAGE rows from `at` to `end`; returns where they end and the state there.
    ///
    /// Unless `end` is settled (a head or the segment's end), short zeros in front of it may go on and are left out.
    fn fill(&mut self, mut at: usize, end: usize, mut state: u8, code: u8, is_settled: bool) -> (usize, u8) {
        if at >= end {
            return (at, state);
        }
        if state == IN_BAD_BLANK || code == BLANK_SIZE {
            self.add(DAMAGE, code, at, end);
            return (end, IN_BAD_BLANK);
        }
        while at < end {
            let zeros_end = at + resync::leading_zeros(self.data.get(at..end).unwrap_or(&[]));
            if self.are_zeros(at, zeros_end, state) {
                self.add(ZEROS, OK, at, zeros_end);
                (at, state) = (zeros_end, IN_ZEROS);
            } else if zeros_end == end && !is_settled {
                break;
            } else {
                let damage_end = self.next_zeros(zeros_end, end, is_settled);
                self.add(DAMAGE, if state == CHAINED { code } else { RESIDUE }, at, damage_end);
                (at, state) = (damage_end, IN_DAMAGE);
            }
        }
        (at, state)
    }

    /// Whether the zeros from `at` to `end` are a row of their own and not part of damage.
    fn are_zeros(&self, at: usize, end: usize, state: u8) -> bool {
        let length = end - at;
        if length == 0 {
            return false;
        }
        match state {
            _ if self.left(end) == 0 => true,
            IN_ZEROS => true,
            CHAINED | IN_STALE => length >= ZERO_FRAME,
            _ => length >= ZERO_RUN,
        }
    }

    /// Where the damage ends that begins at `at` or in front of it: at zeros that count, or may, or at `end`.
    fn next_zeros(&self, at: usize, end: usize, is_settled: bool) -> usize {
        let bytes = self.data.get(at..end).unwrap_or(&[]);
        match resync::long_zero_run(bytes) {
            Some(run) => at + run,
            None if is_settled && self.left(end) != 0 => end,
            None => end - resync::trailing_zeros(bytes),
        }
    }

    // -- small things

    #[inline(always)]
    fn from(&self, at: usize) -> &'a [u8] {
        self.data.get(at..).unwrap_or(&[])
    }

    #[inline(always)]
    fn phy_offset_of(&self, at: usize) -> i64 {
        self.phy_offset.saturating_add(as_i64(at))
    }

    /// Bytes from an index of the window to the segment's end.
    #[inline(always)]
    fn left(&self, at: usize) -> i64 {
        self.segment_end.saturating_sub(self.phy_offset_of(at))
    }

    fn add(&mut self, kind: u8, code: u8, at: usize, end: usize) {
        if at >= self.end {
            return;
        }
        self.columns.add_other(kind, code, self.phy_offset_of(at), as_i64(end) - as_i64(at));
    }
}

/// The row of the record `bytes`, which begins at `at` of what places count from, and its keys.
#[inline]
fn add_record(columns: &mut Columns, flags: u32, bytes: &[u8], head: &Head, at: usize, phy_offset: i64, code: u8) {
    let topic = part(bytes, head.topic_at, head.topic_length);
    let (topic_id, topic) = columns.topics.get_or_add(topic);
    let mut row = Row {
        kind: MESSAGE,
        code,
        phy_offset,
        size_bytes: as_i64(head.size),
        magic: head.magic,
        body_crc: head.body_crc,
        queue_id: head.queue_id,
        flag: head.flag,
        queue_offset: head.queue_offset,
        own_phy_offset: head.own_phy_offset,
        sys_flag: head.sys_flag,
        born_timestamp_ms: head.born_timestamp_ms,
        store_timestamp_ms: head.store_timestamp_ms,
        reconsume_times: head.reconsume_times,
        prepared_transaction_offset: head.prepared_transaction_offset,
        // The lengths come out of 32 bits or fewer, and the caller has checked that the places fit.
        body_at: (at + head.body_at) as u32,
        body_length: head.body_length as i32,
        topic_at: (at + head.topic_at) as u32,
        topic_length: head.topic_length as i32,
        properties_at: (at + head.properties_at) as u32,
        properties_length: head.properties_length as i32,
        topic_id: topic_id as i32,
        ..Row::default()
    };
    let checks_numbers = flags & CHECK_NUMBERS != 0 && code != BAD_CRC;
    if flags & NO_PROPERTIES == 0 && head.properties_length > 0 {
        let raw = part(bytes, head.properties_at, head.properties_length);
        let known = properties::known(raw);
        let is_schedule = topic.is_some_and(|topic| topic.is_schedule);
        if checks_numbers && properties::is_bad(is_schedule, known.flags & HAS_INNER_NUM != 0, raw) {
            row.code = BAD_NUMBER;
        }
        row.property_flags = known.flags;
        if flags & CHECK_NUMBERS != 0 && known.has_parted_value() {
            row.property_flags |= HAS_PARTED_VALUE;
        }
        row.tags_code = properties::tags_code(known.tags);
        if let Some(topic) = topic {
            if topic.is_schedule {
                row.delay_level = properties::delay_level(known.delay);
            }
            let prefixes = (topic.key_prefix, topic.tag_prefix);
            if head.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK {
                add_keys(columns, flags, &known, prefixes);
            }
        }
    }
    if flags & NO_PROPERTIES != 0 && checks_numbers && has_bad_number(bytes, head) {
        row.code = BAD_NUMBER;
    }
    columns.add_message(&row);
}

#[inline]
fn add_keys(columns: &mut Columns, flags: u32, known: &Known<'_>, (key_prefix, tag_prefix): (u32, u32)) {
    let row = columns.len() as u32;
    if flags & INDEX_KEYS != 0 {
        if !known.uniq_key.is_empty() {
            columns.add_key(row, properties::hash(key_prefix, known.uniq_key));
        }
        for key in known.keys.split(|byte| *byte == KEY_SEPARATOR).filter(|key| !key.is_empty()) {
            columns.add_key(row, properties::hash(key_prefix, key));
        }
    }
    if flags & INDEX_TAGS != 0 && !known.tags.is_empty() {
        columns.add_key(row, properties::hash(tag_prefix, known.tags));
    }
}

#[inline(always)]
fn has_bad_number(record: &[u8], head: &Head) -> bool {
    let is_schedule = part(record, head.topic_at, head.topic_length) == SCHEDULE_TOPIC;
    let raw = part(record, head.properties_at, head.properties_length);
    properties::is_bad(is_schedule, properties::may_be_batch(raw), raw)
}

#[inline(always)]
fn part(record: &[u8], at: usize, length: usize) -> &[u8] {
    record.get(at..at + length).unwrap_or(&[])
}

fn is_exact_blank((size, magic): (i32, i32), left: i64) -> bool {
    magic == MAGIC_BLANK && i64::from(size) == left
}

/// Sizes in memory always fit.
#[inline(always)]
fn as_i64(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// Of a length that is not negative.
#[inline(always)]
fn as_usize(length: i64) -> usize {
    usize::try_from(length).unwrap_or(0)
}
