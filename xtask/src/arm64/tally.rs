//! Counts instructions from the emulator's log.
//!
//! The emulator translates code block by block. Asked for `in_asm`, it lists the instructions of a block when it translates it; asked for
//! `exec` and `nochain`, it notes each execution of a block. A block is left only at its end (but by a fault, of which these programs have
//! none), so executions times lengths is the exact number of instructions.

use std::collections::HashMap;
use std::io::BufRead;

/// Instructions seen so far.
#[derive(Default)]
pub struct Tally {
    pub instructions: u64,
    pub executions: u64,
    /// Executions of blocks that were never listed: would make the count too small.
    pub unknown: u64,
    /// The length of the block last translated at a program counter.
    listed: HashMap<u64, u64>,
    /// Lengths by the address of the translation, and the program counter they are for.
    known: HashMap<u64, (u64, u64)>,
    /// First and last address of the block being listed.
    listing: Option<(u64, u64)>,
}

impl Tally {
    /// Reads a log to its end.
    pub fn read(&mut self, mut log: impl BufRead) -> std::io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            if log.read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            self.line(&line);
        }
    }

    /// `Trace 0: 0x7f… [cs/pc/flags/cflags] name` for an execution; `0x…:  d503201f  nop` for an instruction of a block.
    fn line(&mut self, line: &[u8]) {
        if let Some(rest) = line.strip_prefix(b"Trace ") {
            if let Some((host, pc)) = trace(rest) {
                self.finish();
                self.execute(host, pc);
            }
        } else if line.starts_with(b"0x") {
            if let Some((address, _)) = hex(&line[2..]) {
                let first = self.listing.map_or(address, |(first, _)| first);
                self.listing = Some((first, address));
            }
        } else {
            self.finish();
        }
    }

    /// The block being listed is complete.
    fn finish(&mut self) {
        if let Some((first, last)) = self.listing.take() {
            // Unknown instructions may be listed byte by byte: addresses count, not lines.
            self.listed.insert(first, (last / 4).saturating_sub(first / 4) + 1);
        }
    }

    fn execute(&mut self, host: u64, pc: u64) {
        self.executions += 1;
        // A block that has just been listed is the one that runs now; translations of the same address may differ in length.
        if let Some(length) = self.listed.remove(&pc) {
            self.known.insert(host, (pc, length));
        }
        match self.known.get(&host) {
            Some(&(at, length)) if at == pc => self.instructions += length,
            _ => self.unknown += 1,
        }
    }
}

/// Address of the translation, and program counter.
fn trace(rest: &[u8]) -> Option<(u64, u64)> {
    let at = rest.iter().position(|&b| b == b'x')?;
    let (host, rest) = hex(&rest[at + 1..])?;
    let at = rest.iter().position(|&b| b == b'/')?;
    let (pc, _) = hex(&rest[at + 1..])?;
    Some((host, pc))
}

/// The hexadecimal number at the start, and what follows.
fn hex(text: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    let mut digits = 0;
    for &b in text {
        let digit = match b {
            b'0'..=b'9' => b - b'0',
            b'a'..=b'f' => b - b'a' + 10,
            _ => break,
        };
        value = value << 4 | u64::from(digit);
        digits += 1;
    }
    (digits > 0).then(|| (value, &text[digits..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "----------------
IN: main
0x0000005500000a40:
OBJD-T: 00000000
----------------
IN: main
0x0000005500000a40:  d503201f  nop
0x0000005500000a44:  d503201f  nop
0x0000005500000a48:  d65f03c0  ret

Trace 0: 0x7f0100 [00000000/0000005500000a40/00000000/ff000000] main
Trace 0: 0x7f0100 [00000000/0000005500000a40/00000000/ff000000] main
----------------
IN: next
0x0000005500000a4c:  4e81e040  .byte
Trace 1: 0x7f0200 [00000000/0000005500000a4c/00000000/ff000000] next
Trace 0: 0x7f0100 [00000000/0000005500000a40/00000000/ff000000] main
Trace 0: 0x7f0300 [00000000/0000005500000b00/00000000/ff000000] never listed
";

    #[test]
    fn executions_times_lengths() {
        let mut tally = Tally::default();
        tally.read(LOG.as_bytes()).unwrap();
        assert_eq!((tally.instructions, tally.executions, tally.unknown), (3 + 3 + 1 + 3, 5, 1));
    }
}
