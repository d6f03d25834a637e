//! Operators that must repeat their bits. The mode is per process, so one test sets it.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;
use thalweg_tensor::deterministic::{
    DeterministicDebugMode, alert_not_deterministic, are_deterministic_algorithms_enabled,
    deterministic_debug_mode, is_deterministic_algorithms_warn_only_enabled, set_fill_uninitialized_memory,
    use_deterministic_algorithms,
};

use crate::support::device;

/// Held by a test that sets whether operators must repeat their bits, which is per process.
pub static DETERMINISTIC: thalweg_lock::Mutex<()> = thalweg_lock::Mutex::new(());

#[test]
fn memory_is_filled_and_operators_without_a_deterministic_form_are_refused() {
    let _guard = DETERMINISTIC.lock();
    let device = device();
    let first = |dtype| Tensor::empty(&[3], dtype, &device).unwrap();
    alert_not_deterministic("own").unwrap();
    use_deterministic_algorithms(true, false);
    assert_eq!(deterministic_debug_mode(), DeterministicDebugMode::Error);
    for dtype in [DType::F64, DType::Bf16] {
        let values = first(dtype).to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
        assert!(values.iter().all(|value| value.is_nan()), "{dtype}: {values:?}");
    }
    assert_eq!(first(DType::I64).to_vec::<i64>().unwrap(), [i64::MAX; 3]);
    assert_eq!(first(DType::I32).to_vec::<i32>().unwrap(), [i32::MAX; 3]);
    assert_eq!(first(DType::U8).to_vec::<u8>().unwrap(), [u8::MAX; 3]);
    let refused = alert_not_deterministic("own_histogram").unwrap_err();
    assert!(refused.is_invalid_argument());
    assert!(
        refused.to_string().contains("own_histogram does not have a deterministic implementation"),
        "{refused}"
    );
    use_deterministic_algorithms(true, true);
    assert!(is_deterministic_algorithms_warn_only_enabled());
    alert_not_deterministic("own_histogram").unwrap();
    set_fill_uninitialized_memory(false);
    // The contents are not known, but the call must work.
    assert_eq!(first(DType::F32).elements(), 3);
    set_fill_uninitialized_memory(true);
    use_deterministic_algorithms(false, false);
    assert!(!are_deterministic_algorithms_enabled());
}
