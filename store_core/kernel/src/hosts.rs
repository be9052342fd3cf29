//! Host fields as text (twin: codec/hosts.py).

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::layout::*;

const RECENT_HOSTS: usize = 256;

/// Host fields that were turned to text lately: a window has few different ones.
pub struct RecentHosts {
    all: Vec<(Vec<u8>, String)>,
}

impl RecentHosts {
    pub fn new() -> Self {
        Self { all: vec![Default::default(); RECENT_HOSTS] }
    }

    /// The text of a host field of 8 or 20 bytes.
    #[inline]
    pub fn text(&mut self, raw: &[u8]) -> &[u8] {
        let tail = raw.last_chunk::<8>().map_or(0, |tail| u64::from_le_bytes(*tail));
        let slot = (tail.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize;
        match self.all.get_mut(slot) {
            Some((of, text)) => {
                if of.as_slice() != raw {
                    (*of, *text) = (raw.to_vec(), host_text(raw));
                }
                text.as_bytes()
            }
            None => &[],
        }
    }
}

/// `a.b.c.d:port` or `[v6]:port`, v6 as C's `inet_ntop` writes it.
#[cold]
fn host_text(raw: &[u8]) -> String {
    let (address, port) = raw.split_at(raw.len().saturating_sub(HOST_PORT_SIZE));
    let port = port.first_chunk().map_or(0, |port| u32::from_be_bytes(*port));
    if let Ok(v4) = <[u8; 4]>::try_from(address) {
        return format!("{}:{port}", Ipv4Addr::from(v4));
    }
    let v6 = Ipv6Addr::from(address.first_chunk::<16>().copied().unwrap_or_default());
    match v6.segments() {
        // Unlike Rust, C writes the end of such an address as a v4 one, too.
        [0, 0, 0, 0, 0, 0, high, _] if high != 0 => {
            let v4 = address.last_chunk::<4>().copied().unwrap_or_default();
            format!("[::{}]:{port}", Ipv4Addr::from(v4))
        }
        _ => format!("[{v6}]:{port}"),
    }
}
