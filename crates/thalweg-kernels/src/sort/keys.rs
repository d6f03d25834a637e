//! [`Keys`]: unsigned integers in the order of a dtype's numbers.

use thalweg_ir::DType;

/// The mapping of elements to keys, which have the width of the element. Elements that come first have smaller keys, and equal
/// elements have equal keys. All NaNs have one key, above every number, and zeros of both signs have one.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    /// The sign bit.
    pub sign: u64,
    /// The bits of infinity; `None` for integers.
    pub infinity: Option<u64>,
    /// Whether the greatest comes first.
    descending: bool,
}

impl Keys {
    pub fn new(dtype: DType, descending: bool) -> Self {
        let infinity = match dtype {
            DType::F16 => Some(0x7c00),
            DType::Bf16 => Some(0x7f80),
            DType::F32 => Some(0x7f80_0000),
            DType::F64 => Some(0x7ff0_0000_0000_0000),
            _ => None,
        };
        Self { sign: 1 << (8 * dtype.size_bytes() - 1), infinity, descending }
    }

    /// Returns a mask of all bits of an element.
    pub fn mask(&self) -> u64 {
        self.sign | (self.sign - 1)
    }

    /// Returns the key of an element's bits.
    pub fn of(&self, bits: u64) -> u64 {
        let magnitude = bits & (self.sign - 1);
        let key = match self.infinity {
            None => bits ^ self.sign,
            Some(infinity) if magnitude > infinity => self.mask(),
            Some(_) if bits & self.sign != 0 && magnitude != 0 => !bits & self.mask(),
            Some(_) => magnitude | self.sign,
        };
        if self.descending { !key & self.mask() } else { key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_order_of_numbers() {
        let numbers = [f32::NEG_INFINITY, f32::MIN, -1.5, -1e-45, 0.0, 1e-45, 1.0, f32::MAX, f32::INFINITY];
        let keys = Keys::new(DType::F32, false);
        let all: Vec<u64> = numbers.iter().map(|x| keys.of(x.to_bits().into())).collect();
        assert!(all.is_sorted_by(|a, b| a < b), "{all:x?}");
        assert_eq!(keys.of((-0.0f32).to_bits().into()), all[4]);
        for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)] {
            assert_eq!(keys.of(nan.to_bits().into()), 0xffff_ffff);
        }
        let falling = Keys::new(DType::F32, true);
        assert!(numbers.iter().map(|x| falling.of(x.to_bits().into())).is_sorted_by(|a, b| a > b));
        let integers = Keys::new(DType::I64, false);
        assert!([i64::MIN, -1, 0, 1, i64::MAX].map(|x| integers.of(x as u64)).is_sorted_by(|a, b| a < b));
    }
}
