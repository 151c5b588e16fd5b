//! How codes of a few bits lie in the bytes of a block, and how they get there.

/// Nibbles: the low halves of N bytes, then their high ones, and again.
pub fn nibbles<const N: usize>(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.as_chunks::<N>().0.iter().zip(codes.chunks_exact_mut(2 * N)) {
        let (low, high) = codes.split_at_mut(N);
        low.iter_mut().zip(bytes).for_each(|(code, byte)| *code = byte & 15);
        high.iter_mut().zip(bytes).for_each(|(code, byte)| *code = byte >> 4);
    }
}

/// The inverse of [`nibbles`], over zeros. Upper bits of codes are cut off.
pub fn set_nibbles<const N: usize>(bytes: &mut [u8], codes: &[u8]) {
    for (bytes, codes) in bytes.as_chunks_mut::<N>().0.iter_mut().zip(codes.chunks_exact(2 * N)) {
        let (low, high) = codes.split_at(N);
        bytes.iter_mut().zip(low.iter().zip(high)).for_each(|(byte, (low, high))| *byte = low & 15 | high << 4);
    }
}

/// Pairs of bits, added to the codes as their bits `to` and `to` + 1: the lowest of 32 bytes, then the next, and again.
pub fn pairs(bytes: &[u8], codes: &mut [u8], to: u32) {
    for (bytes, codes) in bytes.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<128>().0) {
        for (run, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            codes.iter_mut().zip(bytes).for_each(|(code, byte)| *code |= (byte >> (2 * run) & 3) << to);
        }
    }
}

/// The inverse of [`pairs`], over zeros.
pub fn set_pairs(bytes: &mut [u8], codes: &[u8], to: u32) {
    for (bytes, codes) in bytes.as_chunks_mut::<32>().0.iter_mut().zip(codes.as_chunks::<128>().0) {
        for (run, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            bytes.iter_mut().zip(codes).for_each(|(byte, code)| *byte |= (code >> to & 3) << (2 * run));
        }
    }
}

/// Single bits, added to the codes as their bit `to`: the lowest of N bytes, then the next.
pub fn ones<const N: usize>(bytes: &[u8], codes: &mut [u8], to: u32) {
    for (run, codes) in codes.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        codes.iter_mut().zip(bytes).for_each(|(code, byte)| *code |= (byte >> run & 1) << to);
    }
}

/// The inverse of [`ones`], over zeros.
pub fn set_ones<const N: usize>(bytes: &mut [u8], codes: &[u8], to: u32) {
    for (run, codes) in codes.as_chunks::<N>().0.iter().enumerate() {
        bytes.iter_mut().zip(codes).for_each(|(byte, code)| *byte |= (code >> to & 1) << run);
    }
}

/// Number `i` of 16 bits.
pub fn word(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

/// Nibble `i`, the low half of a byte first.
pub fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 2] >> (4 * (i % 2)) & 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_a_round_trip() {
        let codes: [u8; 256] = std::array::from_fn(|i| (i * 37 + i / 16) as u8 & 63);
        let (mut low, mut high, mut back) = ([0; 128], [0; 64], [0; 256]);
        set_nibbles::<32>(&mut low, &codes);
        set_pairs(&mut high, &codes, 4);
        nibbles::<32>(&low, &mut back);
        pairs(&high, &mut back, 4);
        assert_eq!(back, codes);
        let (mut bits, mut back) = ([0; 32], [0; 256]);
        set_ones::<32>(&mut bits, &codes, 3);
        ones::<32>(&bits, &mut back, 3);
        assert_eq!(back, codes.map(|code| code & 8));
    }
}
