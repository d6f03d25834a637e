//! Loops that are compiled once more for processors with wider vectors than every x86-64 processor has, and chosen at run time.
//!
//! This is the only module of the crate with `unsafe`: a function that is compiled for other instructions may be called only where
//! the processor has them.
#![allow(unsafe_code)]

/// A loop. Its `call` must be `#[inline(always)]`, so that it is compiled within the function that is compiled for the processor;
/// that is not guaranteed for a closure.
pub trait Loop {
    /// The result of the loop.
    type Output;

    /// Runs the loop.
    fn call(self) -> Self::Output;

    /// Runs the loop on an x86-64 processor without vectors of 256 bits. Such processors are rare: a loop that is compiled for each
    /// of many functions may call the function through a pointer here, and so be compiled once.
    #[inline(always)]
    fn call_on_old_processors(self) -> Self::Output
    where
        Self: Sized,
    {
        self.call()
    }
}

/// Runs a loop in vectors of 256 bits, if the processor has AVX2 and FMA.
#[inline(always)]
pub fn vectors<L: Loop>(body: L) -> L::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn avx2<L: Loop>(body: L) -> L::Output {
            body.call()
        }

        if has_fma() {
            // SAFETY: `has_fma` has found both instruction sets.
            return unsafe { avx2(body) };
        }
        body.call_on_old_processors()
    }
    #[cfg(not(target_arch = "x86_64"))]
    body.call()
}

/// Runs a loop in vectors of 512 bits, if the processor has AVX-512, or as [`vectors`] does. Compiling a loop a third time is for the
/// few in which products spend their time. Builds with assertions are without it.
#[inline(always)]
pub fn widest_vectors<L: Loop>(body: L) -> L::Output {
    #[cfg(all(target_arch = "x86_64", not(debug_assertions)))]
    {
        #[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512dq,avx512bw,avx512cd")]
        fn avx512<L: Loop>(body: L) -> L::Output {
            body.call()
        }

        if has_avx512() {
            // SAFETY: `has_avx512` has found all of these instruction sets.
            return unsafe { avx512(body) };
        }
    }
    vectors(body)
}

/// Returns whether [`vectors`] can use the instruction for a · b + c, rounded once. Without it, the mathematical library would be
/// called for each element.
#[inline(always)]
pub fn has_fma() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("fma") && std::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    cfg!(target_arch = "aarch64")
}

#[cfg(all(target_arch = "x86_64", not(debug_assertions)))]
#[inline(always)]
fn has_avx512() -> bool {
    has_fma()
        && std::is_x86_feature_detected!("avx512f")
        && std::is_x86_feature_detected!("avx512vl")
        && std::is_x86_feature_detected!("avx512dq")
        && std::is_x86_feature_detected!("avx512bw")
        && std::is_x86_feature_detected!("avx512cd")
}
