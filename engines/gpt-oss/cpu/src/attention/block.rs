//! Queries against one block of keys and values: two small matrix products with an online softmax between them.
//!
//! Both products have one form. The left side has a row for each query, whose numbers are broadcast; the right side is a
//! matrix that lies so that lanes are neighbours: keys of one dimension, or dimensions of one value. So no sum runs across
//! lanes, and nothing is turned around while it is read (see `kv.rs` for how blocks lie).
//!
//! What is computed for a query does not depend on the other queries of its tile: the same operations in the same order.

use super::lanes::{Lanes, Portable};
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2, Avx512, Pairs};
use super::{Arithmetic, Queries};
use crate::kernel::Isa;
use crate::kv::{BLOCK_TOKENS, HeadBlock, KvFormat};

/// How two numbers, or two pairs of them, are multiplied.
///
/// # Safety
/// As of [`Lanes`]; pointers to words are good for a vector, those of `left` for [`Products::WORDS`].
pub(super) trait Products {
    type L: Lanes;
    type Left: Copy;
    type Right: Copy;
    /// Numbers of the summed dimension in a step.
    const NUMBERS: usize;
    /// Words of the left side in a step.
    const WORDS: usize;

    unsafe fn left(from: *const u32) -> Self::Left;
    unsafe fn right(from: *const u32) -> Self::Right;
    unsafe fn add(sum: <Self::L as Lanes>::V, left: Self::Left, right: Self::Right) -> <Self::L as Lanes>::V;
    /// Writes two vectors of numbers as words of the left side.
    unsafe fn store(to: *mut u32, first: <Self::L as Lanes>::V, second: <Self::L as Lanes>::V);
}

/// Keys and values in f32.
struct Whole<L>(std::marker::PhantomData<L>);
/// Keys and values in bf16, widened as they are read.
struct Widened<L>(std::marker::PhantomData<L>);

impl<L: Lanes> Products for Whole<L> {
    type L = L;
    type Left = L::V;
    type Right = L::V;
    const NUMBERS: usize = 1;
    const WORDS: usize = 1;

    #[inline(always)]
    unsafe fn left(from: *const u32) -> L::V {
        // SAFETY: the trait's own demands, as in everything below.
        unsafe { L::splat(from.cast::<f32>().read()) }
    }

    #[inline(always)]
    unsafe fn right(from: *const u32) -> L::V {
        // SAFETY: as above.
        unsafe { L::load(from.cast()) }
    }

    #[inline(always)]
    unsafe fn add(sum: L::V, left: L::V, right: L::V) -> L::V {
        // SAFETY: as above.
        unsafe { L::multiply_add(left, right, sum) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u32, first: L::V, second: L::V) {
        // SAFETY: as above.
        unsafe {
            L::store(to.cast(), first);
            L::store(to.add(L::N).cast(), second);
        }
    }
}

impl<L: Lanes> Products for Widened<L> {
    type L = L;
    type Left = (L::V, L::V);
    type Right = (L::V, L::V);
    const NUMBERS: usize = 2;
    const WORDS: usize = 2;

    #[inline(always)]
    unsafe fn left(from: *const u32) -> (L::V, L::V) {
        // SAFETY: as above.
        unsafe { (L::splat(from.cast::<f32>().read()), L::splat(from.cast::<f32>().add(1).read())) }
    }

    #[inline(always)]
    unsafe fn right(from: *const u32) -> (L::V, L::V) {
        // SAFETY: as above.
        unsafe { L::halves(from) }
    }

    #[inline(always)]
    unsafe fn add(sum: L::V, left: (L::V, L::V), right: (L::V, L::V)) -> L::V {
        // SAFETY: as above.
        unsafe { L::multiply_add(left.1, right.1, L::multiply_add(left.0, right.0, sum)) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u32, first: L::V, second: L::V) {
        // SAFETY: as above.
        unsafe { Whole::<L>::store(to, first, second) }
    }
}

/// One function for each set of instructions, which everything generic is inlined into.
macro_rules! entries {
    ($($name:ident, $pack:ident, $products:ty $(, $features:literal)?;)*) => {$(
        $(#[target_feature(enable = $features)])?
        fn $name(queries: &mut Queries, block: HeadBlock<'_>, next: HeadBlock<'_>, visible: &[(u32, u32)]) {
            // SAFETY: the features are those the products are made of, and `check` looked at the lengths.
            unsafe { tiles::<$products>(queries, block, next, visible) }
        }

        $(#[target_feature(enable = $features)])?
        fn $pack(numbers: &[f32], words: &mut [u32]) {
            // SAFETY: as above.
            unsafe { pack_row::<$products>(numbers, words) }
        }
    )*};
}

entries! {
    whole_portable, pack_whole_portable, Whole<Portable>;
    widened_portable, pack_widened_portable, Widened<Portable>;
}
#[cfg(target_arch = "x86_64")]
entries! {
    whole_avx2, pack_whole_avx2, Whole<Avx2>, "avx2,fma";
    widened_avx2, pack_widened_avx2, Widened<Avx2>, "avx2,fma";
    whole_avx512, pack_whole_avx512, Whole<Avx512>, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma";
    widened_avx512, pack_widened_avx512, Widened<Avx512>, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma";
    pairs_avx512, pack_pairs_avx512, Pairs, "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma";
}

/// Calls the form of a function that fits: the two portable ones, then those of x86.
macro_rules! dispatch {
    ($arithmetic:expr, $args:tt, $whole:ident, $widened:ident, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident) => {
        match ($arithmetic.isa, $arithmetic.format) {
            (Isa::Scalar | Isa::Neon, KvFormat::F32) => $whole $args,
            (Isa::Scalar | Isa::Neon, KvFormat::Bf16) => $widened $args,
            // SAFETY: an `Arithmetic` is only made for what the processor has.
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, KvFormat::F32) => unsafe { $a $args },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, KvFormat::Bf16) => unsafe { $b $args },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            (_, KvFormat::F32) => unsafe { $c $args },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            (_, KvFormat::Bf16) if $arithmetic.pairs => unsafe { $e $args },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            (_, KvFormat::Bf16) => unsafe { $d $args },
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("an Arithmetic is only made for what the processor has"),
        }
    };
}

/// Adds what one block has to say to all queries. Of query `i` the keys `visible[i].0..visible[i].1` count. `next` is the
/// block that will be read after this one.
///
/// # Panics
/// When lengths do not fit each other.
pub(super) fn attend_block(
    arithmetic: Arithmetic,
    queries: &mut Queries,
    block: HeadBlock<'_>,
    next: HeadBlock<'_>,
    visible: &[(u32, u32)],
) {
    check(arithmetic, queries, block, visible);
    dispatch!(
        arithmetic,
        (queries, block, next, visible),
        whole_portable,
        widened_portable,
        whole_avx2,
        widened_avx2,
        whole_avx512,
        widened_avx512,
        pairs_avx512
    );
}

/// Writes numbers, a multiple of 32, as words of the left side.
pub(super) fn pack(arithmetic: Arithmetic, numbers: &[f32], words: &mut [u32]) {
    assert!(numbers.len().is_multiple_of(32) && words.len() == arithmetic.words(numbers.len()));
    dispatch!(
        arithmetic,
        (numbers, words),
        pack_whole_portable,
        pack_widened_portable,
        pack_whole_avx2,
        pack_widened_avx2,
        pack_whole_avx512,
        pack_widened_avx512,
        pack_pairs_avx512
    );
}

fn check(arithmetic: Arithmetic, queries: &Queries, block: HeadBlock<'_>, visible: &[(u32, u32)]) {
    let count = queries.largest.len();
    let words = arithmetic.format.words(BLOCK_TOKENS * queries.dim);
    assert!(block.keys.len() == words && block.values.len() == words, "a block of another shape");
    assert_eq!(queries.words.len(), count * arithmetic.words(queries.dim));
    assert_eq!(queries.out.len(), count * queries.dim);
    assert!(queries.sums.len() == count && visible.len() == count && queries.dim.is_multiple_of(32));
    assert!(visible.iter().all(|v| v.1 as usize <= BLOCK_TOKENS));
}

#[inline(always)]
unsafe fn pack_row<P: Products>(numbers: &[f32], words: &mut [u32]) {
    let n = P::L::N;
    let mut at = 0;
    while at < numbers.len() {
        // SAFETY: lengths were compared by `pack`, and 32 is a multiple of two vectors.
        unsafe {
            let from = numbers.as_ptr().add(at);
            let to = words.as_mut_ptr().add(at / P::NUMBERS * P::WORDS);
            P::store(to, P::L::load(from), P::L::load(from.add(n)));
        }
        at += 2 * n;
    }
}

#[inline(always)]
unsafe fn tiles<P: Products>(
    queries: &mut Queries,
    block: HeadBlock<'_>,
    next: HeadBlock<'_>,
    visible: &[(u32, u32)],
) {
    let count = visible.len();
    let mut done = 0;
    // Only the first tile asks for the next block.
    let mut next = next;
    // SAFETY: the caller's promise, and every tile lies inside what `check` counted.
    unsafe {
        while P::L::WIDE && done + 8 <= count {
            tile::<P, 8>(queries, done, block, next, &visible[done..done + 8]);
            (done, next) = (done + 8, block);
        }
        while done + 4 <= count {
            tile::<P, 4>(queries, done, block, next, &visible[done..done + 4]);
            (done, next) = (done + 4, block);
        }
        while done < count {
            tile::<P, 1>(queries, done, block, next, &visible[done..done + 1]);
            (done, next) = (done + 1, block);
        }
    }
}

/// Scores, or what became of them, of the queries of a tile.
#[repr(align(64))]
struct Scores<const Q: usize>([[f32; BLOCK_TOKENS]; Q]);

#[inline(always)]
unsafe fn tile<P: Products, const Q: usize>(
    queries: &mut Queries,
    first: usize,
    block: HeadBlock<'_>,
    next: HeadBlock<'_>,
    visible: &[(u32, u32)],
) {
    let n = P::L::N;
    let dim = queries.dim;
    let (mut low, mut high) = (BLOCK_TOKENS, 0);
    for &(start, end) in visible {
        if start < end {
            low = low.min(start as usize);
            high = high.max(end as usize);
        }
    }
    if low >= high {
        return;
    }
    let left_words = dim / P::NUMBERS * P::WORDS;
    // SAFETY: `check` made sure that there are `first + Q` queries of these lengths and a whole block; scores have
    // BLOCK_TOKENS of each query, a multiple of two vectors.
    unsafe {
        let mut scores = Scores::<Q>([[f32::NEG_INFINITY; BLOCK_TOKENS]; Q]);
        let left = queries.words.as_ptr().add(first * left_words);
        let ahead = next.keys.as_ptr() as isize - block.keys.as_ptr() as isize;
        let mut key = low / (2 * n) * (2 * n);
        while key < high {
            let mut sums = [[P::L::splat(0.0); 2]; Q];
            let right = block.keys.as_ptr().add(key);
            product::<P, Q, 2>(&mut sums, left, left_words, right, BLOCK_TOKENS, dim / P::NUMBERS, ahead);
            for q in 0..Q {
                P::L::store(scores.0[q].as_mut_ptr().add(key), sums[q][0]);
                P::L::store(scores.0[q].as_mut_ptr().add(key + n), sums[q][1]);
            }
            key += 2 * n;
        }
        for q in 0..Q {
            // What is not visible is anybody's, and may be no number at all.
            let (start, end) = (visible[q].0 as usize, visible[q].1 as usize);
            scores.0[q][..start].fill(f32::NEG_INFINITY);
            scores.0[q][end..].fill(f32::NEG_INFINITY);
        }
        let mut factors = [0.0f32; 16];
        softmax::<P, Q>(queries, first, &mut scores, &mut factors);
        let ahead = next.values.as_ptr() as isize - block.values.as_ptr() as isize;
        let steps = (low / P::NUMBERS, high.div_ceil(P::NUMBERS));
        if Q.is_multiple_of(4) {
            let mut q = 0;
            while q < Q {
                values::<P, 4>(
                    queries,
                    first + q,
                    &raw const scores.0[q],
                    &factors[q..],
                    block,
                    steps,
                    ahead,
                );
                q += 4;
            }
        } else {
            values::<P, Q>(queries, first, &raw const scores.0[0], &factors, block, steps, ahead);
        }
    }
}

/// `sums[q][v] += left[q] * right[.., v]`; lines of the right side that are `ahead` bytes away are asked for.
#[inline(always)]
unsafe fn product<P: Products, const Q: usize, const V: usize>(
    sums: &mut [[<P::L as Lanes>::V; V]; Q],
    left: *const u32,
    left_stride: usize,
    right: *const u32,
    right_stride: usize,
    steps: usize,
    ahead: isize,
) {
    for step in 0..steps {
        // SAFETY: the caller has `steps` steps of Q rows on the left and of V vectors on the right.
        unsafe {
            let right = right.add(step * right_stride);
            let mut vectors = [P::right(right); V];
            P::L::prefetch(right.wrapping_byte_offset(ahead));
            for v in 1..V {
                vectors[v] = P::right(right.add(v * P::L::N));
                P::L::prefetch(right.add(v * P::L::N).wrapping_byte_offset(ahead));
            }
            for q in 0..Q {
                let number = P::left(left.add(q * left_stride + step * P::WORDS));
                for v in 0..V {
                    sums[q][v] = P::add(sums[q][v], number, vectors[v]);
                }
            }
        }
    }
}

/// Turns scores into weights, as words of the left side, and sets `factors`, by which what was added up so far shrinks.
#[inline(always)]
unsafe fn softmax<P: Products, const Q: usize>(
    queries: &mut Queries,
    first: usize,
    scores: &mut Scores<Q>,
    factors: &mut [f32; 16],
) {
    let n = P::L::N;
    // SAFETY: vectors lie inside the arrays, whose lengths are multiples of two vectors.
    unsafe {
        for q in 0..Q {
            let row = scores.0[q].as_ptr();
            let mut largest = P::L::load(row);
            let mut key = n;
            while key < BLOCK_TOKENS {
                largest = P::L::larger(largest, P::L::load(row.add(key)));
                key += n;
            }
            let before = queries.largest[first + q];
            let largest = P::L::largest(largest);
            let largest = if largest > before { largest } else { before };
            queries.largest[first + q] = largest;
            factors[q] = before - largest;
        }
        let mut at = 0;
        while at < Q {
            P::L::store(factors.as_mut_ptr().add(at), P::L::exp(P::L::load(factors.as_ptr().add(at))));
            at += n;
        }
        for q in 0..Q {
            let row = scores.0[q].as_mut_ptr();
            let largest = P::L::splat(queries.largest[first + q]);
            let mut sum = P::L::splat(0.0);
            let mut key = 0;
            while key < BLOCK_TOKENS {
                let one = P::L::exp(P::L::subtract(P::L::load(row.add(key)), largest));
                let two = P::L::exp(P::L::subtract(P::L::load(row.add(key + n)), largest));
                sum = P::L::add(sum, P::L::add(one, two));
                // In place: words take no more room than the numbers did.
                P::store(row.cast::<u32>().add(key / P::NUMBERS * P::WORDS), one, two);
                key += 2 * n;
            }
            queries.sums[first + q] = queries.sums[first + q] * factors[q] + P::L::sum(sum);
        }
    }
}

/// Adds weighted values to what Q queries have so far.
#[inline(always)]
unsafe fn values<P: Products, const Q: usize>(
    queries: &mut Queries,
    first: usize,
    weights: *const [f32; BLOCK_TOKENS],
    factors: &[f32],
    block: HeadBlock<'_>,
    steps: (usize, usize),
    ahead: isize,
) {
    let dim = queries.dim;
    // SAFETY: there are Q queries from `first` on, `dim` is a multiple of two vectors.
    unsafe {
        let out = queries.out.as_mut_ptr().add(first * dim);
        let mut column = 0;
        while P::L::WIDE && column + 4 * P::L::N <= dim {
            value_columns::<P, Q, 4>(out, dim, column, weights, factors, block, steps, ahead);
            column += 4 * P::L::N;
        }
        while column < dim {
            value_columns::<P, Q, 2>(out, dim, column, weights, factors, block, steps, ahead);
            column += 2 * P::L::N;
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "it is the inner part of one function, for two widths")]
#[inline(always)]
unsafe fn value_columns<P: Products, const Q: usize, const V: usize>(
    out: *mut f32,
    dim: usize,
    column: usize,
    weights: *const [f32; BLOCK_TOKENS],
    factors: &[f32],
    block: HeadBlock<'_>,
    steps: (usize, usize),
    ahead: isize,
) {
    let n = P::L::N;
    // SAFETY: as the caller says.
    unsafe {
        let mut sums = [[P::L::splat(0.0); V]; Q];
        for q in 0..Q {
            let factor = P::L::splat(factors[q]);
            for v in 0..V {
                let at = out.add(q * dim + column + v * n);
                sums[q][v] = P::L::multiply(P::L::load(at), factor);
            }
        }
        let left = weights.cast::<u32>().add(steps.0 * P::WORDS);
        let right = block.values.as_ptr().add(steps.0 * dim + column);
        product::<P, Q, V>(&mut sums, left, BLOCK_TOKENS, right, dim, steps.1 - steps.0, ahead);
        for q in 0..Q {
            for v in 0..V {
                P::L::store(out.add(q * dim + column + v * n), sums[q][v]);
            }
        }
    }
}
