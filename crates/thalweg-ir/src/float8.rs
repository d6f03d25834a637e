//! Floats of 8 bits, which are stored and cast only. The casts follow PyTorch's functions in `c10/util/Float8_e4m3fn.h` and
//! `Float8_e5m2.h`: to nearest, ties to even, without saturation.

use bytemuck::{Pod, Zeroable};

/// A float with 1 bit of sign, 4 of exponent and 3 of fraction, without infinities (`float8_e4m3fn`): the greatest number is 448,
/// and values that round beyond it become NaN.
#[derive(Clone, Copy, Default, Debug, Pod, Zeroable)]
#[repr(transparent)]
#[expect(non_camel_case_types, reason = "named as Rust's floats are")]
pub struct f8e4m3(u8);

/// A float with 1 bit of sign, 5 of exponent and 2 of fraction (`float8_e5m2`): the upper half of a 16-bit float. The greatest number
/// is 57344.
#[derive(Clone, Copy, Default, Debug, Pod, Zeroable)]
#[repr(transparent)]
#[expect(non_camel_case_types, reason = "named as Rust's floats are")]
pub struct f8e5m2(u8);

/// The number of bits of an f32's fraction, and the bias of its exponent.
const F32_FRACTION: u32 = 23;
const F32_BIAS: u32 = 127;

/// Rounds the magnitude of a finite f32 to a float with `fraction` bits of fraction and this bias. A magnitude that is too large
/// for the exponent overflows into the bits above it.
const fn rounded(magnitude: u32, fraction: u32, bias: u32) -> u8 {
    let least_normal = (F32_BIAS + 1 - bias) << F32_FRACTION;
    if magnitude < least_normal {
        // In the sum, the last bit of the fraction has the value of the smallest number that is not 0.
        let aligned = (F32_BIAS + 1 - bias + F32_FRACTION - fraction) << F32_FRACTION;
        return ((f32::from_bits(magnitude) + f32::from_bits(aligned)).to_bits() - aligned) as u8;
    }
    let shift = F32_FRACTION - fraction;
    let half_even = (1 << (shift - 1)) - 1 + (magnitude >> shift & 1);
    ((magnitude + half_even - ((F32_BIAS - bias) << F32_FRACTION)) >> shift) as u8
}

macro_rules! float8 {
    ($type:ident, $max:literal) => {
        impl $type {
            /// The greatest number.
            pub const MAX: Self = Self($max);
            /// The lowest number.
            pub const MIN: Self = Self($max | 0x80);

            /// Returns the float with these bits.
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// Returns the bits.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// Returns the value, rounded to an f32 and then to this type, as PyTorch does.
            pub const fn from_f64(value: f64) -> Self {
                Self::from_f32(value as f32)
            }

            /// Returns the value.
            pub const fn to_f64(self) -> f64 {
                self.to_f32() as f64
            }
        }

        impl PartialEq for $type {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }
    };
}

float8!(f8e4m3, 0x7e);
float8!(f8e5m2, 0x7b);

impl f8e4m3 {
    /// Returns the nearest value, ties to even; NaN if it is beyond the greatest number.
    pub const fn from_f32(value: f32) -> Self {
        let (bits, sign) = (value.to_bits(), (value.to_bits() >> 24) as u8 & 0x80);
        let magnitude = bits & 0x7fff_ffff;
        // 480 is the first magnitude that does not fit even into the code of NaN.
        Self(sign | if magnitude >= 480.0_f32.to_bits() { 0x7f } else { rounded(magnitude, 3, 7) })
    }

    /// Returns the value.
    pub const fn to_f32(self) -> f32 {
        let (sign, magnitude) = ((self.0 as u32 & 0x80) << 24, self.0 as u32 & 0x7f);
        let value = match magnitude {
            0x7f => f32::NAN.to_bits(),
            0..8 => (magnitude as f32 / 512.0).to_bits(),
            _ => (magnitude << 20) + ((F32_BIAS - 7) << F32_FRACTION),
        };
        f32::from_bits(sign | value)
    }
}

impl f8e5m2 {
    /// Returns the nearest value, ties to even; an infinity if it is beyond the greatest number.
    pub const fn from_f32(value: f32) -> Self {
        let (bits, sign) = (value.to_bits(), (value.to_bits() >> 24) as u8 & 0x80);
        let magnitude = bits & 0x7fff_ffff;
        let rounded = match magnitude {
            _ if magnitude > f32::INFINITY.to_bits() => 0x7f,
            _ if magnitude >= 65536.0_f32.to_bits() => 0x7c,
            _ => rounded(magnitude, 2, 15),
        };
        Self(sign | rounded)
    }

    /// Returns the value.
    pub const fn to_f32(self) -> f32 {
        half::f16::from_bits((self.0 as u16) << 8).to_f32_const()
    }
}

#[cfg(test)]
mod tests {
    use super::{f8e4m3, f8e5m2};

    /// Checks a cast to 8 bits, with the inverse cast, against the nearest of all codes.
    fn check(from: impl Fn(f32) -> u8, to: impl Fn(u8) -> f32, greatest: u8, beyond: u8) {
        let numbers: Vec<(u8, f64)> = (0..=greatest).map(|bits| (bits, f64::from(to(bits)))).collect();
        assert!(numbers.is_sorted_by(|a, b| a.1 < b.1), "codes of magnitudes grow with them");
        // A value half a step above the greatest number is a tie: it rounds up only if that number's code is odd.
        let last = numbers[numbers.len() - 1].1;
        let step = last - numbers[numbers.len() - 2].1;
        let nearest = |value: f64| {
            let magnitude = value.abs();
            if magnitude > last + step / 2.0 || (magnitude == last + step / 2.0 && greatest % 2 == 1) {
                return beyond;
            }
            let distance = |&&(bits, number): &&(u8, f64)| ((number - magnitude).abs(), bits % 2);
            let best = numbers.iter().min_by(|a, b| distance(a).partial_cmp(&distance(b)).expect("numbers"));
            best.expect("there are numbers").0
        };
        let halves = numbers.windows(2).map(|pair| (pair[0].1 + pair[1].1) / 2.0).chain([last + step / 2.0]);
        let points = numbers.iter().map(|&(_, number)| number).chain(halves).chain([1e-30, 1e30]);
        for point in points.map(|point| point as f32).collect::<Vec<_>>() {
            for value in [point.next_down().max(0.0), point, point.next_up()] {
                for (value, sign) in [(value, 0), (-value, 0x80)] {
                    let expected = nearest(f64::from(value)) | sign;
                    assert_eq!(from(value), expected, "{value:e}: {expected:#x}");
                }
            }
        }
        for sign in [0, 0x80] {
            for bits in (0..=greatest).map(|bits| bits | sign) {
                assert_eq!(from(to(bits)), bits, "{bits:#x} is itself");
            }
        }
    }

    #[test]
    fn e4m3_is_the_nearest_and_nan_beyond() {
        check(|value| f8e4m3::from_f32(value).to_bits(), |bits| f8e4m3::from_bits(bits).to_f32(), 0x7e, 0x7f);
        assert_eq!(f8e4m3::MAX.to_f32(), 448.0);
        for value in [f32::NAN, f32::INFINITY] {
            assert_eq!([value, -value].map(|value| f8e4m3::from_f32(value).to_bits()), [0x7f, 0xff]);
        }
        assert!(f8e4m3::from_bits(0xff).to_f32().is_nan());
    }

    #[test]
    fn e5m2_is_the_nearest_and_infinite_beyond() {
        check(|value| f8e5m2::from_f32(value).to_bits(), |bits| f8e5m2::from_bits(bits).to_f32(), 0x7b, 0x7c);
        assert_eq!(f8e5m2::MAX.to_f32(), 57344.0);
        assert_eq!(f8e5m2::from_f32(f32::NAN).to_bits(), 0x7f);
        assert_eq!(
            [f32::INFINITY, f32::NEG_INFINITY].map(|value| f8e5m2::from_f32(value).to_bits()),
            [0x7c, 0xfc]
        );
        assert_eq!(f8e5m2::from_bits(0xfc).to_f32(), f32::NEG_INFINITY);
    }
}
