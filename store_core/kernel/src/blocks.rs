//! A file as blocks small enough to stay in the processor's cache, read by a thread ahead of whoever walks them.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};

/// Room in front of a block for what the one before left over.
pub const ROOM: usize = 512 << 10;
/// A cache line. Large allocations begin 16 bytes behind a page; copying to there takes a third longer (measured).
const ALIGNMENT: usize = 64;
/// How many blocks are under way between the two threads.
const UNDER_WAY: usize = 4;

/// Where reading failed: the system's error number, the position in the file, and how many bytes were wanted there.
pub type Failure = (i32, u64, usize);

/// A piece of a file, with room in front. It has no memory until it is filled first.
#[derive(Default)]
pub struct Block {
    bytes: Vec<u8>,
    /// Where in `bytes` what was read begins: behind the room, on a border at which the system copies fast.
    start: usize,
    len: usize,
    /// Nothing more can be read behind it.
    pub is_last: bool,
    pub failure: Option<Failure>,
}

impl Block {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn data(&self) -> &[u8] {
        self.bytes.get(self.start..self.start + self.len).unwrap_or(&[])
    }

    /// The last so many bytes, of it and of what stands in front.
    pub fn last(&self, count: usize) -> &[u8] {
        let end = self.start + self.len;
        self.bytes.get(end.saturating_sub(count)..end).unwrap_or(&[])
    }

    /// Its bytes behind some others, of which there is room for ROOM.
    pub fn behind(&mut self, front: &[u8]) -> &[u8] {
        let start = self.start.saturating_sub(front.len());
        if let Some(place) = self.bytes.get_mut(start..start + front.len()) {
            place.copy_from_slice(front);
        }
        self.bytes.get(start..self.start + self.len).unwrap_or(&[])
    }
}

/// Reads blocks one behind the other, cut where multiples of their size lie in the file.
pub struct Reader<'a> {
    file: &'a File,
    at: u64,
    end: u64,
    block_bytes: usize,
}

impl<'a> Reader<'a> {
    /// From position `at` to `end`, or to where the file ends in front of it.
    pub fn new(file: &'a File, at: u64, end: u64, block_bytes: usize) -> Self {
        Self { file, at, end, block_bytes }
    }

    fn read_into(&mut self, block: &mut Block) {
        if block.bytes.is_empty() {
            block.bytes = vec![0; ROOM + ALIGNMENT + self.block_bytes];
            let behind_room = block.bytes.get(ROOM..).unwrap_or(&[]);
            block.start = ROOM + behind_room.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        }
        let to_multiple = self.block_bytes as u64 - self.at % self.block_bytes as u64;
        let size = usize::try_from(to_multiple.min(self.end.saturating_sub(self.at))).unwrap_or(0);
        let place = block.bytes.get_mut(block.start..block.start + size).unwrap_or(&mut []);
        let (done, error) = fill(self.file, place, self.at);
        block.len = done;
        self.at += done as u64;
        block.failure = error.map(|error| (error.raw_os_error().unwrap_or(0), self.at, size - done));
        if done < size {
            self.end = self.at;
        }
        block.is_last = self.at >= self.end;
    }
}

/// Where in a buffer to put so many bytes, that what is read behind them begins where the system copies fast.
pub fn start_of(buffer: &[u8], count: usize) -> usize {
    (buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT) + ALIGNMENT - count % ALIGNMENT) % ALIGNMENT
}

/// How many bytes could be read: fewer than fit at the end of the file and where it cannot be read.
pub fn fill(file: &File, place: &mut [u8], at: u64) -> (usize, Option<io::Error>) {
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

/// Blocks that wait to be filled again; their memory stays from call to call.
#[derive(Default)]
pub struct Pool(Mutex<Vec<Block>>);

impl Pool {
    fn take(&self) -> Block {
        self.blocks().pop().unwrap_or_default()
    }

    fn keep(&self, block: Block) {
        let mut blocks = self.blocks();
        if blocks.len() < UNDER_WAY {
            blocks.push(block);
        }
    }

    fn blocks(&self) -> MutexGuard<'_, Vec<Block>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The blocks of a file in turn.
pub struct Blocks<'a> {
    reader: Reader<'a>,
    pool: &'a Pool,
    ahead: Option<Ahead>,
}

/// The thread's blocks, and the leave to fill one more.
struct Ahead {
    full: Receiver<Block>,
    leave: SyncSender<()>,
}

impl<'a> Blocks<'a> {
    pub fn new(reader: Reader<'a>, pool: &'a Pool) -> Self {
        Self { reader, pool, ahead: None }
    }

    /// Have a thread read ahead as far as position `to`; where there can be none, whoever asks reads.
    pub fn read_ahead<'scope>(&mut self, scope: &'scope Scope<'scope, '_>, to: u64)
    where
        'a: 'scope,
    {
        let (sender, full) = sync_channel(UNDER_WAY);
        let (leave, may_fill) = sync_channel(UNDER_WAY);
        for _ in 0..UNDER_WAY {
            let _ = leave.try_send(());
        }
        let (mut reader, pool) = (Reader { ..self.reader }, self.pool);
        let read = move || {
            while may_fill.recv().is_ok() {
                let mut block = pool.take();
                reader.read_into(&mut block);
                let is_end = block.is_last || reader.at >= to;
                if let Err(unwanted) = sender.send(block) {
                    return pool.keep(unwanted.0);
                }
                if is_end {
                    return;
                }
            }
        };
        if Builder::new().name("rmqctl-read".into()).spawn_scoped(scope, read).is_ok() {
            self.ahead = Some(Ahead { full, leave });
        }
    }

    /// The next block; an empty one behind the file's last.
    pub fn next(&mut self) -> Block {
        if let Some(ahead) = &self.ahead {
            if let Ok(block) = ahead.full.recv() {
                self.reader.at += block.len as u64;
                if block.is_last {
                    self.reader.end = self.reader.at;
                }
                return block;
            }
            self.ahead = None; // the thread has read all that it was asked for
        }
        let mut block = self.pool.take();
        self.reader.read_into(&mut block);
        block
    }

    /// A block that is done with.
    pub fn give_back(&self, block: Block) {
        self.pool.keep(block);
        if let Some(ahead) = &self.ahead {
            let _ = ahead.leave.try_send(());
        }
    }

    /// Stop reading ahead, and keep what was read in vain.
    pub fn stop(self) {
        if let Some(Ahead { full, leave }) = self.ahead {
            drop(leave);
            full.iter().for_each(|block| self.pool.keep(block));
        }
    }
}
