//! Work that several threads share.

use std::num::NonZero;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

/// More threads than that wait for memory, not for the processor.
const MOST: usize = 4;
/// What one thread should have to do at least, in bytes that are looked at.
const LEAST_BYTES: usize = 1 << 20;

/// In how many threads so many bytes should be worked on.
pub fn worth(bytes: usize) -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    let processors = *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get));
    (bytes / LEAST_BYTES).clamp(1, processors.min(MOST))
}

/// Works on every part, this thread and others; gives what comes of them in their order.
///
/// Where the system gives no more threads, those there are do all.
pub fn all<P: Send, T: Send>(parts: Vec<P>, work: impl Fn(P) -> T + Sync) -> Vec<T> {
    let count = parts.len();
    if count < 2 {
        return parts.into_iter().map(work).collect();
    }
    let waiting = Mutex::new(parts.into_iter().enumerate());
    let done = Mutex::new(Vec::with_capacity(count));
    let take = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        while let Some((number, part)) = take() {
            let came = work(part);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((number, came));
        }
    };
    thread::scope(|scope| {
        for _ in 1..count {
            if thread::Builder::new().spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, came)| came).collect()
}
