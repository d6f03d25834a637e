//! PyTorch's own kernels.
use super::*;

fn asked(text: String) {
    world(|world| world.asked.borrow_mut().push(text));
    if world(|world| world.throws.get()) {
        resume_unwind(Box::new("an exception of PyTorch's"));
    }
}

pub unsafe extern "C-unwind" fn softmax(
    result: *mut MaybeUninit<u64>,
    input: Handle,
    dimension: i64,
    half_to_float: bool,
) {
    asked(format!("softmax {:?} {dimension} {half_to_float}", implementation(input).sizes));
    // SAFETY: a place for a tensor.
    unsafe { (*result).write(world(|world| world.word(&[7], F32))) };
}

pub unsafe extern "C-unwind" fn softmax_backward(
    result: *mut MaybeUninit<u64>,
    gradient: Handle,
    output: Handle,
    dimension: i64,
    dtype: i8,
) {
    let [gradient, output] = [gradient, output].map(|handle| &implementation(handle).sizes);
    asked(format!("softmax_backward {gradient:?} {output:?} {dimension} {dtype}"));
    // SAFETY: a place for a tensor.
    unsafe { (*result).write(world(|world| world.word(&[7], F32))) };
}

pub unsafe extern "C-unwind" fn norm(
    results: *mut MaybeUninit<u64>,
    input: Handle,
    shape: ArrayRef,
    weight: *const OptionalTensor,
    bias: *const OptionalTensor,
    epsilon: f64,
) {
    let sizes = &implementation(input).sizes;
    // SAFETY: references, as C++ gives them.
    let [weight, bias] = unsafe { [&*weight, &*bias] }.map(|tensor| tensor.is_there);
    asked(format!("norm {sizes:?} {} {weight} {bias} {epsilon}", shape.count));
    // A tuple is stored in reverse order.
    for (place, size) in [3, 2, 1].into_iter().enumerate() {
        // SAFETY: places for three tensors.
        unsafe { (*results.add(place)).write(world(|world| world.word(&[size], F32))) };
    }
}

pub unsafe extern "C-unwind" fn embedding_backward(
    result: *mut MaybeUninit<u64>,
    _gradient: Handle,
    _indices: Handle,
    embeddings: i64,
    padding: i64,
    by_frequency: bool,
) {
    asked(format!("embedding {embeddings} {padding} {by_frequency}"));
    // SAFETY: a place for a tensor.
    unsafe { (*result).write(world(|world| world.word(&[7], F32))) };
}

pub unsafe extern "C-unwind" fn rms(
    results: *mut MaybeUninit<u64>,
    input: Handle,
    shape: ArrayRef,
    weight: *const OptionalTensor,
    epsilon: OptionalNumber,
) {
    let sizes = &implementation(input).sizes;
    // SAFETY: a reference, as C++ gives it.
    let weight = unsafe { &*weight };
    asked(format!("rms {sizes:?} {} {} {}", shape.count, weight.is_there, epsilon.is_there));
    for (place, size) in [2, 1].into_iter().enumerate() {
        // SAFETY: places for two tensors.
        unsafe { (*results.add(place)).write(world(|world| world.word(&[size], F32))) };
    }
}

pub unsafe extern "C-unwind" fn group_norm(
    results: *mut MaybeUninit<u64>,
    input: Handle,
    weight: *const OptionalTensor,
    bias: *const OptionalTensor,
    batch: i64,
    channels: i64,
    plane: i64,
    groups: i64,
    epsilon: f64,
) {
    let sizes = &implementation(input).sizes;
    // SAFETY: references, as C++ gives them.
    let [weight, bias] = unsafe { [&*weight, &*bias] }.map(|tensor| tensor.is_there);
    asked(format!("group {sizes:?} {weight} {bias} {batch} {channels} {plane} {groups} {epsilon}"));
    for (place, size) in [3, 2, 1].into_iter().enumerate() {
        // SAFETY: places for three tensors.
        unsafe { (*results.add(place)).write(world(|world| world.word(&[size], F32))) };
    }
}

pub unsafe extern "C-unwind" fn group_norm_backward(
    results: *mut MaybeUninit<u64>,
    gradient: Handle,
    input: Handle,
    _mean: Handle,
    _deviation: Handle,
    weight: *const OptionalTensor,
    batch: i64,
    channels: i64,
    plane: i64,
    groups: i64,
    Mask(mask): Mask<3>,
) {
    let [gradient, input] = [gradient, input].map(|handle| &implementation(handle).sizes);
    // SAFETY: a reference, as C++ gives it.
    let weight = unsafe { (*weight).is_there };
    asked(format!(
        "group_backward {gradient:?} {input:?} {weight} {batch} {channels} {plane} {groups} {mask:?}"
    ));
    for (place, size) in [3, 2, 1].into_iter().enumerate() {
        // SAFETY: places for three tensors.
        unsafe { (*results.add(place)).write(world(|world| world.word(&[size], F32))) };
    }
}

pub unsafe extern "C-unwind" fn batch_norm(
    results: *mut MaybeUninit<u64>,
    input: Handle,
    weight: *const OptionalTensor,
    bias: *const OptionalTensor,
    mean: *const OptionalTensor,
    variance: *const OptionalTensor,
    training: bool,
    momentum: f64,
    epsilon: f64,
) {
    let sizes = &implementation(input).sizes;
    // SAFETY: references, as C++ gives them.
    let given = [weight, bias, mean, variance].map(|tensor| unsafe { (*tensor).is_there });
    asked(format!("batch {sizes:?} {given:?} {training} {momentum} {epsilon}"));
    for (place, size) in [3, 2, 1].into_iter().enumerate() {
        // SAFETY: places for three tensors.
        unsafe { (*results.add(place)).write(world(|world| world.word(&[size], F32))) };
    }
}

pub unsafe extern "C-unwind" fn batch_norm_backward(
    results: *mut MaybeUninit<u64>,
    gradient: Handle,
    input: Handle,
    weight: *const OptionalTensor,
    mean: *const OptionalTensor,
    variance: *const OptionalTensor,
    batch_mean: *const OptionalTensor,
    deviation: *const OptionalTensor,
    training: bool,
    epsilon: f64,
    Mask(mask): Mask<3>,
) {
    let [gradient, input] = [gradient, input].map(|handle| &implementation(handle).sizes);
    // SAFETY: references, as C++ gives them.
    let given = [weight, mean, variance, batch_mean, deviation].map(|tensor| unsafe { (*tensor).is_there });
    asked(format!("batch_backward {gradient:?} {input:?} {given:?} {training} {epsilon} {mask:?}"));
    for (place, size) in [3, 2, 1].into_iter().enumerate() {
        // SAFETY: places for three tensors.
        unsafe { (*results.add(place)).write(world(|world| world.word(&[size], F32))) };
    }
}

pub unsafe extern "C-unwind" fn rms_backward(
    results: *mut MaybeUninit<u64>,
    _gradient: Handle,
    _input: Handle,
    _shape: ArrayRef,
    _root: Handle,
    _weight: *const OptionalTensor,
    Mask(mask): Mask<2>,
) {
    asked(format!("rms_backward {mask:?}"));
    for (place, size) in [2, 1].into_iter().enumerate() {
        // SAFETY: places for two tensors.
        unsafe { (*results.add(place)).write(world(|world| world.word(&[size], F32))) };
    }
}

pub unsafe extern "C-unwind" fn norm_backward(
    results: *mut MaybeUninit<u64>,
    _gradient: Handle,
    _input: Handle,
    _shape: ArrayRef,
    _mean: Handle,
    _deviation: Handle,
    _weight: *const OptionalTensor,
    _bias: *const OptionalTensor,
    Mask(mask): Mask<3>,
) {
    asked(format!("norm_backward {mask:?}"));
    for (place, size) in [3, 2, 1].into_iter().enumerate() {
        // SAFETY: places for three tensors.
        unsafe { (*results.add(place)).write(world(|world| world.word(&[size], F32))) };
    }
}

fn dimensions(list: ArrayRef) -> Vec<i64> {
    // SAFETY: an array of this length.
    (0..list.count).map(|place| unsafe { *list.first.add(place) }).collect()
}

pub unsafe extern "C-unwind" fn reduce(
    result: *mut MaybeUninit<u64>,
    input: Handle,
    list: ArrayRef,
    keeps: bool,
) {
    asked(format!("reduce {:?} {:?} {keeps}", implementation(input).sizes, dimensions(list)));
    // SAFETY: a place for a tensor.
    unsafe { (*result).write(world(|world| world.word(&[7], F32))) };
}

pub unsafe extern "C-unwind" fn reduce_to(
    result: *mut MaybeUninit<u64>,
    input: Handle,
    list: OptionalArrayRef,
    keeps: bool,
    to: OptionalKind,
) {
    let named = list.is_there.then(|| dimensions(list.list));
    let to = to.is_there.then_some(to.kind);
    asked(format!("reduce {:?} {named:?} {keeps} {to:?}", implementation(input).sizes));
    // SAFETY: a place for a tensor.
    unsafe { (*result).write(world(|world| world.word(&[7], F32))) };
}

pub unsafe extern "C-unwind" fn clone(result: *mut MaybeUninit<u64>, input: Handle, format: OptionalKind) {
    let format = format.is_there.then_some(format.kind);
    asked(format!("clone {:?} {format:?}", implementation(input).sizes));
    // SAFETY: a place for a tensor.
    unsafe { (*result).write(world(|world| world.word(&[7], F32))) };
}

fn adam_of(
    lists: [TensorList; 6],
    rate: String,
    [beta1, beta2, decay, epsilon]: [f64; 4],
    flags: [bool; 2],
    optional: [*const OptionalTensor; 2],
) {
    let counts = lists.map(|list| list.count);
    // SAFETY: references, as C++ gives them.
    let optional = optional.map(|tensor| unsafe { (*tensor).is_there });
    asked(format!("adam {counts:?} {rate} {beta1} {beta2} {decay} {epsilon} {flags:?} {optional:?}"));
}

/// Defines a function that calls PyTorch's Adam kernel, for one kind of learning rate (a number or a tensor).
macro_rules! adam {
    ($name:ident, $rate:ty, $text:expr) => {
        pub unsafe extern "C-unwind" fn $name(
            parameters: TensorList,
            gradients: TensorList,
            firsts: TensorList,
            seconds: TensorList,
            greatest: TensorList,
            steps: TensorList,
            rate: $rate,
            beta1: f64,
            beta2: f64,
            decay: f64,
            epsilon: f64,
            amsgrad: bool,
            maximize: bool,
            scale: *const OptionalTensor,
            found_inf: *const OptionalTensor,
        ) {
            let lists = [parameters, gradients, firsts, seconds, greatest, steps];
            let numbers = [beta1, beta2, decay, epsilon];
            adam_of(lists, $text(rate), numbers, [amsgrad, maximize], [scale, found_inf]);
        }
    };
}

adam!(adam, f64, |rate: f64| rate.to_string());
adam!(adam_by_tensor, Handle, |rate: Handle| format!("{:?}", implementation(rate).sizes));
