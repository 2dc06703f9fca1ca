//! Random mutations of inputs. The same seed gives the same mutations.

/// Numbers that programs often handle wrongly.
const NUMBERS: [u64; 14] = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    1 << 40,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// Bytes that have a meaning in the formats.
const BYTES: &[u8] = b"{}[]\",:\\\n\r\t'=%@/?&0123456789-+.eEtfn\0\x01\xEF\xFE\xFF";

pub(crate) struct FuzzRandom(u64);

impl FuzzRandom {
    pub(crate) fn new(seed: u64) -> FuzzRandom {
        FuzzRandom(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end.max(1)
    }

    /// Returns one of the seeds, changed in one to four places.
    pub(crate) fn mutated(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut input = seeds[self.below(seeds.len())].clone();
        for _ in 0..=self.below(4) {
            self.mutate(&mut input, seeds);
        }
        input
    }

    fn mutate(&mut self, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        match self.below(9) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.next() as u8,
            2 => input.insert(at, BYTES[self.below(BYTES.len())]),
            3 if at < input.len() => {
                input.remove(at);
            }
            4 => input.truncate(at),
            5 => self.overwrite_number(input, at),
            6 => self.replace_by_varint(input, at),
            7 => {
                let end = at + self.below(input.len() + 1 - at);
                let part = input[at..end].to_vec();
                input.splice(at..at, part);
            }
            8 => {
                let other = &seeds[self.below(seeds.len())];
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => {}
        }
    }

    /// Overwrites 1 to 8 bytes with a number, in either byte order.
    fn overwrite_number(&mut self, input: &mut [u8], at: usize) {
        let number = NUMBERS[self.below(NUMBERS.len())];
        let len = 1 << self.below(4);
        let mut bytes = number.to_le_bytes()[..len].to_vec();
        if self.below(2) == 0 {
            bytes.reverse();
        }
        for (slot, byte) in input[at..].iter_mut().zip(bytes) {
            *slot = byte;
        }
    }

    /// Replaces one byte by a number in the form that Thrift uses (a varint).
    fn replace_by_varint(&mut self, input: &mut Vec<u8>, at: usize) {
        let mut number = NUMBERS[self.below(NUMBERS.len())];
        let mut bytes = Vec::new();
        while number > 0x7F {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        input.splice(at..(at + 1).min(input.len()), bytes);
    }
}
