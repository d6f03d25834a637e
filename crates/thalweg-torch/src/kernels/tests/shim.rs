//! The functions of the stable interface.
use super::*;

pub unsafe extern "C" fn init_impl(
    namespace: *const c_char,
    key: *const c_char,
    _file: *const c_char,
    _line: u32,
    library: *mut Handle,
) -> i32 {
    // SAFETY: texts and a place.
    unsafe {
        assert_eq!(CStr::from_ptr(key), c"CUDA");
        assert!([c"aten", c"thalweg"].contains(&CStr::from_ptr(namespace)));
        *library = world(|world| world.handle(0));
    }
    0
}

pub unsafe extern "C" fn library_impl(
    _library: Handle,
    name: *const c_char,
    kernel: Boxed,
    _version: u64,
) -> i32 {
    // SAFETY: a text.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned();
    world(|world| world.registered.borrow_mut().push((name, kernel as usize)));
    0
}

pub unsafe extern "C" fn delete_handle(handle: Handle) -> i32 {
    // SAFETY: a handle of the test's.
    drop(unsafe { Box::from_raw(handle.cast::<u64>()) });
    world(|world| world.count(-1));
    0
}

pub unsafe extern "C" fn new_tensor(handle: *mut Handle) -> i32 {
    // SAFETY: a place.
    unsafe { *handle = world(|world| world.handle(0)) };
    0
}

pub unsafe extern "C" fn empty_strided(
    rank: i64,
    sizes: *const i64,
    strides: *const i64,
    dtype: i32,
    _device_type: i32,
    device: i32,
    handle: *mut Handle,
) -> i32 {
    // SAFETY: an array of this length.
    let [sizes, strides] =
        [sizes, strides].map(|list| unsafe { std::slice::from_raw_parts(list, rank as usize) });
    let expected = (0..sizes.len()).map(|dimension| sizes[dimension + 1..].iter().product());
    assert_eq!(strides, expected.collect::<Vec<i64>>(), "a new tensor is contiguous");
    assert_eq!(device, 0);
    if world(|world| world.is_out_of_memory.get()) {
        return 1;
    }
    // SAFETY: a place.
    unsafe { *handle = world(|world| world.handle(world.word(sizes, dtype))) };
    0
}

pub unsafe extern "C" fn data_pointer(handle: Handle, pointer: *mut *mut c_void) -> i32 {
    // SAFETY: a place.
    unsafe { *pointer = implementation(handle).address as *mut c_void };
    0
}

pub unsafe extern "C" fn dim(handle: Handle, rank: *mut i64) -> i32 {
    // SAFETY: a place.
    unsafe { *rank = implementation(handle).sizes.len() as i64 };
    0
}

pub unsafe extern "C" fn sizes(handle: Handle, sizes: *mut *mut i64) -> i32 {
    // SAFETY: a place.
    unsafe { *sizes = implementation(handle).sizes.as_ptr().cast_mut() };
    0
}

pub unsafe extern "C" fn strides(handle: Handle, strides: *mut *mut i64) -> i32 {
    // SAFETY: a place.
    unsafe { *strides = implementation(handle).strides.as_ptr().cast_mut() };
    0
}

pub unsafe extern "C" fn dtype(handle: Handle, dtype: *mut i32) -> i32 {
    // SAFETY: a place.
    unsafe { *dtype = implementation(handle).dtype };
    0
}

pub unsafe extern "C" fn zero(handle: Handle) -> i32 {
    let Implementation { sizes, address, .. } = implementation(handle);
    let zeros = vec![0; sizes.iter().product::<i64>() as usize * 4];
    let address = DevicePointer::new(*address);
    world(|world| world.stream.copy_from_host(address, &zeros, Label::here("zero")).unwrap());
    0
}

pub unsafe extern "C" fn device_kind(handle: Handle, kind: *mut i32) -> i32 {
    // SAFETY: a place.
    unsafe { *kind = i32::from(!implementation(handle).is_on_host) };
    0
}

pub unsafe extern "C" fn device_index(_handle: Handle, device: *mut i32) -> i32 {
    // SAFETY: a place.
    unsafe { *device = 0 };
    0
}

pub unsafe extern "C" fn is_contiguous(handle: Handle, is: *mut bool) -> i32 {
    // SAFETY: a place.
    unsafe { *is = implementation(handle).is_contiguous };
    0
}

pub unsafe extern "C" fn list_size(list: Handle, count: *mut usize) -> i32 {
    // SAFETY: a list of the test's, and a place.
    unsafe { *count = (*list.cast::<Vec<u64>>()).len() };
    0
}

pub unsafe extern "C" fn list_item(list: Handle, index: usize, item: *mut u64) -> i32 {
    // SAFETY: as above.
    unsafe { *item = (&*list.cast::<Vec<u64>>())[index] };
    0
}

pub unsafe extern "C" fn delete_list(list: Handle) -> i32 {
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(list.cast::<Vec<u64>>()) });
    world(|world| world.count(-1));
    0
}

pub unsafe extern "C" fn delete(value: *mut c_void) {
    // SAFETY: an optional value of the test's.
    drop(unsafe { Box::from_raw(value.cast::<u64>()) });
    world(|world| world.count(-1));
}

pub unsafe extern "C-unwind" fn check(
    _condition: bool,
    _function: *const c_char,
    _file: *const c_char,
    _line: u32,
    _message: *const c_char,
) {
    unreachable!("nothing here is to be thrown");
}

pub unsafe extern "C" fn current_stream(_device: i32, stream: *mut *mut c_void) -> i32 {
    // SAFETY: a place.
    unsafe { *stream = std::ptr::null_mut() };
    0
}
