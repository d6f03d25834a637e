"""Short names of dtypes, as in PyTorch's logs."""

from .. import _core

dtype_abbrs = {
    getattr(_core, name): short for name, short in (
        ("bfloat16", "bf16"), ("float64", "f64"), ("float32", "f32"), ("float16", "f16"), ("complex64", "c64"), ("complex128", "c128"),
        ("int8", "i8"), ("int16", "i16"), ("int32", "i32"), ("int64", "i64"), ("uint8", "u8"), ("uint16", "u16"), ("bool", "b8"),
        ("float8_e4m3fn", "f8e4m3fn"), ("float8_e5m2", "f8e5m2"))}
