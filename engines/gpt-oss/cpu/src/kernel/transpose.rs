//! Turns a square of words with AVX-512.

use std::arch::x86_64::*;

/// Words of a vector.
const WORDS: usize = 16;

/// 16 rows of 16 words: word j of row i becomes word i of row j.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transpose(rows: [__m512i; WORDS]) -> [__m512i; WORDS] {
    let mut pairs = [_mm512_setzero_si512(); WORDS];
    for i in 0..WORDS / 2 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    // Vector 4 i + j has, in each quarter q, word 4 q + j of rows 4 i to 4 i + 3.
    let mut fours = [_mm512_setzero_si512(); WORDS];
    for i in 0..WORDS / 4 {
        for j in 0..2 {
            fours[4 * i + 2 * j] = _mm512_unpacklo_epi64(pairs[4 * i + j], pairs[4 * i + 2 + j]);
            fours[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[4 * i + j], pairs[4 * i + 2 + j]);
        }
    }
    let mut out = [_mm512_setzero_si512(); WORDS];
    for j in 0..WORDS / 4 {
        // Quarters 0 and 2, then 1 and 3, of rows 0 to 7 and of rows 8 to 15.
        let even_low = _mm512_shuffle_i32x4::<0b10_00_10_00>(fours[j], fours[4 + j]);
        let odd_low = _mm512_shuffle_i32x4::<0b11_01_11_01>(fours[j], fours[4 + j]);
        let even_high = _mm512_shuffle_i32x4::<0b10_00_10_00>(fours[8 + j], fours[12 + j]);
        let odd_high = _mm512_shuffle_i32x4::<0b11_01_11_01>(fours[8 + j], fours[12 + j]);
        out[j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(even_low, even_high);
        out[4 + j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(odd_low, odd_high);
        out[8 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(even_low, even_high);
        out[12 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(odd_low, odd_high);
    }
    out
}
