//! Philox4x32-10, the counter-based generator that CUDA's libraries and PyTorch use (Salmon et al., "Parallel random numbers:
//! as easy as 1, 2, 3", SC 2011).
//!
//! A block of four words is a function of a counter of 128 bits and a key of 64. As in cuRAND, the key is the seed, the upper
//! half of the counter is the number of a *subsequence* (cuRAND uses one per thread), and the lower half counts blocks. A random
//! word is therefore a function of (seed, subsequence, position) and needs no state. Words may be drawn in any order, so every
//! point of a kernel draws its own.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Returns the block of a counter under a key.
#[inline(always)] // into the loops of the host executor, where the processor computes several blocks at a time
pub fn block(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    block_of_rounds::<10>(counter, key)
}

/// Returns the block of a counter under a key, with a different number of rounds. Seven is the smallest number of rounds whose
/// results pass the statistical tests that ten rounds pass.
#[inline(always)]
pub fn block_of_rounds<const ROUNDS: usize>(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        // Written out: without optimization a function over an array takes most of the time of a test that draws.
        let low = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let high = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (high >> 32) as u32 ^ counter[1] ^ key[0],
            high as u32,
            (low >> 32) as u32 ^ counter[3] ^ key[1],
            low as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

/// Returns the word at a position of a subsequence: the draw with that number after `curand_init(seed, subsequence, 0)`.
#[inline(always)]
pub fn word(seed: u64, subsequence: u64, position: u64) -> u32 {
    let halves = |value: u64| [value as u32, (value >> 32) as u32];
    let ([low, high], [thread_low, thread_high]) = (halves(position / 4), halves(subsequence));
    let [first, second, third, fourth] = block([low, high, thread_low, thread_high], halves(seed));
    // Selects, which vector units have; an index into the block would be one load for each.
    let (place, even) = (position % 4, if position & 2 == 0 { first } else { third });
    let odd = if place & 2 == 0 { second } else { fourth };
    if place & 1 == 0 { even } else { odd }
}

#[cfg(test)]
mod tests {
    use super::{block, block_of_rounds, word};

    #[test]
    fn known_answers() {
        // The reference implementation's known-answer tests for philox4x32-10 (Random123, kat_vectors).
        assert_eq!(block([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(block([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            block([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn known_answers_of_seven_rounds() {
        let block = block_of_rounds::<7>;
        assert_eq!(block([0; 4], [0; 2]), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
        assert_eq!(block([u32::MAX; 4], [u32::MAX; 2]), [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]);
        assert_eq!(
            block([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a]
        );
    }

    #[test]
    fn a_word_is_one_of_its_block() {
        let (seed, subsequence) = (0x299f_31d0_a409_3822, 0x0370_7344_1319_8a2e);
        let expected =
            block([0x243f_6a88, 0x05a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        let first = 0x05a3_08d3_243f_6a88 * 4;
        assert_eq!([0, 1, 2, 3].map(|place| word(seed, subsequence, first + place)), expected);
    }
}
