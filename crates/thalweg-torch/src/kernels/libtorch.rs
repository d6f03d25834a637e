//! libtorch's stable C interface: the functions that this crate uses, found in the library that the process has loaded.
//!
//! The declarations are `torch/csrc/inductor/aoti_torch/c/shim.h` and `torch/csrc/stable/c/shim.h`; PyTorch keeps them stable for
//! two years. Only [`check`](Libtorch::check) throws, which is its purpose. All others return an error code, and PyTorch logs the
//! reason.
//!
//! A kernel gets its arguments on a *stack* of words and writes its results there. A tensor is an owning handle in both
//! directions; the code that takes a list or an optional value off the stack destroys that object.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;

use smallvec::SmallVec;
use thalweg_ir::DType;

use crate::status::{Error, Result};
use thalweg_runtime::{invalid, refuse, refuse_if};

/// `AtenTensorHandle`: a pointer to an `at::Tensor` on the heap.
pub(crate) type Handle = *mut c_void;

/// The type of a kernel that PyTorch calls: the stack, the number of arguments, the number of results.
pub(crate) type Boxed = unsafe extern "C-unwind" fn(*mut u64, u64, u64);

/// `TORCH_VERSION_2_10_0`: the version of the interface that this module uses. The formats of lists and strings on the stack are
/// those of this version.
const INTERFACE: u64 = 2 << 56 | 10 << 48;

/// The sizes, or strides, of a tensor.
pub(crate) type Sizes = SmallVec<[i64; 6]>;

type Get<T> = unsafe extern "C" fn(Handle, *mut T) -> i32;
type EmptyStrided = unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> i32;
type InitImpl = unsafe extern "C" fn(*const c_char, *const c_char, *const c_char, u32, *mut Handle) -> i32;
type Check = unsafe extern "C-unwind" fn(bool, *const c_char, *const c_char, u32, *const c_char);

/// The functions, and PyTorch's numbers for dtypes.
#[derive(Clone)]
pub(crate) struct Libtorch {
    pub(crate) init_impl: InitImpl,
    pub(crate) library_impl: unsafe extern "C" fn(Handle, *const c_char, Boxed, u64) -> i32,
    pub(crate) delete_library: unsafe extern "C" fn(Handle) -> i32,
    pub(crate) delete_tensor: unsafe extern "C" fn(Handle) -> i32,
    pub(crate) new_tensor: unsafe extern "C" fn(*mut Handle) -> i32,
    pub(crate) empty_strided: EmptyStrided,
    pub(crate) zero: unsafe extern "C" fn(Handle) -> i32,
    /// Returns the address for reading: copy-on-write memory stays shared.
    pub(crate) data_pointer: Get<*mut c_void>,
    /// Returns the address for writing.
    pub(crate) mutable_data_pointer: Get<*mut c_void>,
    pub(crate) dim: Get<i64>,
    pub(crate) sizes: Get<*mut i64>,
    pub(crate) strides: Get<*mut i64>,
    pub(crate) dtype: Get<i32>,
    pub(crate) device_kind: Get<i32>,
    pub(crate) device_index: Get<i32>,
    pub(crate) is_contiguous: Get<bool>,
    pub(crate) list_size: Get<usize>,
    pub(crate) list_item: unsafe extern "C" fn(Handle, usize, *mut u64) -> i32,
    pub(crate) delete_list: unsafe extern "C" fn(Handle) -> i32,
    /// C++'s `operator delete`, for optional values.
    pub(crate) delete: unsafe extern "C" fn(*mut c_void),
    /// Throws if the condition is false.
    pub(crate) check: Check,
    /// The current stream of a device; `None` if PyTorch's CUDA library is not used.
    pub(crate) current_stream: Option<unsafe extern "C" fn(i32, *mut *mut c_void) -> i32>,
    /// PyTorch's numbers of the dtypes that kernels here support.
    pub(crate) dtypes: [(i32, DType); 4],
    /// PyTorch's number of the kind of device.
    pub(crate) device_type: i32,
    /// The word of an undefined `at::Tensor`.
    pub(crate) undefined: u64,
}

/// A shared library that the process has loaded.
pub(crate) struct Loaded(*mut c_void);

impl Loaded {
    /// Returns a loaded library of PyTorch's folder.
    ///
    /// # Errors
    /// If the process has not loaded it: it is not loaded here, since a second copy would not share the first one's state.
    pub(crate) fn find(folder: &str, name: &str) -> Result<Self> {
        let file = Path::new(folder).join(name);
        let text = CString::new(file.as_os_str().as_encoded_bytes())
            .map_err(|_| invalid!("the folder of PyTorch's libraries has a zero in its name"))?;
        // SAFETY: a text that ends with a zero; a library that is loaded already runs no code of its own.
        let library = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        match library.is_null() {
            false => Ok(Self(library)),
            true => Err(invalid!("{} is not loaded: import torch first", file.display())),
        }
    }

    /// Returns a function of the library, or of one of its dependencies.
    ///
    /// # Errors
    /// If there is no function of this name.
    ///
    /// # Safety
    /// `F` is a function pointer of the symbol's type.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> Result<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "a function pointer is asked for") };
        let text = CString::new(name).map_err(|_| invalid!("a symbol's name has a zero"))?;
        // SAFETY: a library that stays loaded, and a text that ends with a zero.
        let found = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        refuse_if!(found.is_null(), "this PyTorch has no `{name}`");
        // SAFETY: the caller's promise; the sizes are equal.
        Ok(unsafe { std::mem::transmute_copy(&found) })
    }
}

impl Libtorch {
    /// Finds the functions in PyTorch's libraries.
    ///
    /// # Errors
    /// If a function is missing, because PyTorch is older than 2.10; the error names it.
    pub(crate) fn find(cpu: &Loaded, cuda: Option<&Loaded>) -> Result<Self> {
        // SAFETY: the types are those of the headers that the module names.
        unsafe {
            let number = |name: &str| -> Result<i32> {
                let function: unsafe extern "C" fn() -> i32 = cpu.function(name)?;
                Ok(function())
            };
            let device = if cuda.is_some() { "cuda" } else { "cpu" };
            let mut torch = Self {
                init_impl: cpu.function("aoti_torch_library_init_impl")?,
                library_impl: cpu.function("torch_library_impl")?,
                delete_library: cpu.function("aoti_torch_delete_library_object")?,
                delete_tensor: cpu.function("aoti_torch_delete_tensor_object")?,
                new_tensor: cpu.function("aoti_torch_new_uninitialized_tensor")?,
                empty_strided: cpu.function("aoti_torch_empty_strided")?,
                zero: cpu.function("aoti_torch_zero_")?,
                data_pointer: cpu.function("torch_get_const_data_ptr")?,
                mutable_data_pointer: cpu.function("torch_get_mutable_data_ptr")?,
                dim: cpu.function("aoti_torch_get_dim")?,
                sizes: cpu.function("aoti_torch_get_sizes")?,
                strides: cpu.function("aoti_torch_get_strides")?,
                dtype: cpu.function("aoti_torch_get_dtype")?,
                device_kind: cpu.function("aoti_torch_get_device_type")?,
                device_index: cpu.function("aoti_torch_get_device_index")?,
                is_contiguous: cpu.function("aoti_torch_is_contiguous")?,
                list_size: cpu.function("torch_list_size")?,
                list_item: cpu.function("torch_list_get_item")?,
                delete_list: cpu.function("torch_delete_list")?,
                delete: cpu.function("_ZdlPv")?,
                check: cpu.function("aoti_torch_check")?,
                current_stream: match cuda {
                    Some(cuda) => Some(cuda.function("aoti_torch_get_current_cuda_stream")?),
                    None => None,
                },
                dtypes: [
                    (number("aoti_torch_dtype_float32")?, DType::F32),
                    (number("aoti_torch_dtype_float16")?, DType::F16),
                    (number("aoti_torch_dtype_bfloat16")?, DType::Bf16),
                    (number("aoti_torch_dtype_int64")?, DType::I64),
                ],
                device_type: number(&format!("aoti_torch_device_type_{device}"))?,
                undefined: 0,
            };
            let mut handle = std::ptr::null_mut();
            if (torch.new_tensor)(&raw mut handle) != 0 {
                refuse!("PyTorch has no memory for a tensor's handle");
            }
            let undefined = Tensor { torch: &torch, handle }.word();
            torch.undefined = undefined;
            Ok(torch)
        }
    }

    /// Returns the dtype of PyTorch's number; `None` for one that no kernel here supports.
    pub(crate) fn dtype_of(&self, number: i32) -> Option<DType> {
        self.dtypes.iter().find(|(known, _)| *known == number).map(|(_, dtype)| *dtype)
    }

    fn number_of(&self, dtype: DType) -> Option<i32> {
        self.dtypes.iter().find(|(_, known)| *known == dtype).map(|(number, _)| *number)
    }

    /// Creates a contiguous tensor on a device; `None` if PyTorch is out of memory.
    pub(crate) fn empty(&self, sizes: &[i64], dtype: DType, device: i32) -> Option<Tensor<'_>> {
        let mut strides: Sizes = SmallVec::from_elem(1, sizes.len());
        for dimension in (1..sizes.len()).rev() {
            strides[dimension - 1] = strides[dimension] * sizes[dimension].max(1);
        }
        let (number, mut handle) = (self.number_of(dtype)?, std::ptr::null_mut());
        let rank = sizes.len() as i64;
        // SAFETY: sizes and strides have this number of dimensions, and there is a place for the handle.
        let status = unsafe {
            let (sizes, strides) = (sizes.as_ptr(), strides.as_ptr());
            (self.empty_strided)(rank, sizes, strides, number, self.device_type, device, &raw mut handle)
        };
        (status == 0).then(|| Tensor { torch: self, handle })
    }

    /// Sets all elements to 0, and returns whether that succeeded.
    pub(crate) fn zero(&self, tensor: &Tensor<'_>) -> bool {
        // SAFETY: a handle of a tensor.
        unsafe { (self.zero)(tensor.handle()) == 0 }
    }

    /// Registers a kernel for an operator of a namespace at a dispatch key, until the result is dropped.
    ///
    /// # Errors
    /// If PyTorch rejects it.
    pub(crate) fn register(
        &self,
        namespace: &CStr,
        operator: &str,
        key: &CStr,
        kernel: Boxed,
    ) -> Result<Registration> {
        let name = CString::new(operator).map_err(|_| invalid!("an operator's name has a zero"))?;
        let mut library = std::ptr::null_mut();
        // SAFETY: texts that end with a zero, and a place for the handle.
        let status = unsafe {
            (self.init_impl)(namespace.as_ptr(), key.as_ptr(), c"thalweg_torch".as_ptr(), 0, &raw mut library)
        };
        let to_error = || invalid!("PyTorch takes no kernel for `{operator}` of {namespace:?} at {key:?}");
        if status != 0 {
            return Err(to_error());
        }
        let registration = Registration { library, delete: self.delete_library };
        // SAFETY: the library was just made; the kernel is a function of this one, which stays loaded.
        match unsafe { (self.library_impl)(library, name.as_ptr(), kernel, INTERFACE) } {
            0 => Ok(registration),
            _ => Err(to_error()),
        }
    }

    /// Throws PyTorch's exception with this message.
    pub(crate) fn throw(&self, message: &CStr) -> ! {
        // SAFETY: texts that end with a zero. The exception passes only through frames that allow unwinding.
        unsafe { (self.check)(false, c"thalweg_torch".as_ptr(), c"kernels".as_ptr(), 0, message.as_ptr()) };
        unreachable!("a condition that does not hold was let pass")
    }
}

/// A registered kernel. Dropping it unregisters it, so that PyTorch's own kernel is called again.
pub(crate) struct Registration {
    library: Handle,
    delete: unsafe extern "C" fn(Handle) -> i32,
}

// SAFETY: PyTorch's dispatcher has its own lock.
unsafe impl Send for Registration {}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: PyTorch made it, and it is released once.
        unsafe { (self.delete)(self.library) };
    }
}

/// A tensor with an owning handle, which is released on drop.
pub(crate) struct Tensor<'t> {
    torch: &'t Libtorch,
    handle: Handle,
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is owned, and released once.
        unsafe { (self.torch.delete_tensor)(self.handle) };
    }
}

impl<'t> Tensor<'t> {
    /// Creates a tensor from the word of an `at::Tensor`, whose reference it takes over; `None` if PyTorch is out of memory.
    pub(crate) fn of_word(torch: &'t Libtorch, word: u64) -> Option<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for the handle. A new tensor is undefined and counts no reference, so it may be overwritten.
        unsafe {
            if (torch.new_tensor)(&raw mut handle) != 0 {
                return None;
            }
            handle.cast::<u64>().write(word);
        }
        Some(Self { torch, handle })
    }

    /// Returns the handle: the address of an `at::Tensor`.
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Returns the word of the `at::Tensor`, whose reference this tensor keeps.
    pub(crate) fn word(&self) -> u64 {
        // SAFETY: an `at::Tensor` is one pointer.
        unsafe { self.handle.cast::<u64>().read() }
    }

    /// Passes the handle's ownership to the stack.
    pub(crate) fn into_word_of_stack(self) -> u64 {
        std::mem::ManuallyDrop::new(self).handle as u64
    }

    fn get<T: Default>(&self, read: Get<T>) -> Option<T> {
        let mut value = T::default();
        // SAFETY: a handle of a tensor, and a place for the answer.
        (unsafe { read(self.handle, &raw mut value) } == 0).then_some(value)
    }

    /// Returns the number of dimensions; `None` if PyTorch returns an error.
    pub(crate) fn rank(&self) -> Option<i64> {
        self.get(self.torch.dim)
    }

    /// Returns the sizes; `None` if PyTorch returns an error.
    pub(crate) fn sizes(&self) -> Option<Sizes> {
        self.of_dimensions(self.torch.sizes)
    }

    /// Returns the strides; `None` if PyTorch returns an error.
    pub(crate) fn strides(&self) -> Option<Sizes> {
        self.of_dimensions(self.torch.strides)
    }

    /// Returns whether the tensor has these sizes.
    pub(crate) fn has_sizes(&self, sizes: &[i64]) -> bool {
        self.numbers(self.torch.sizes).is_some_and(|own| own == sizes)
    }

    fn of_dimensions(&self, read: Get<*mut i64>) -> Option<Sizes> {
        self.numbers(read).map(Sizes::from_slice)
    }

    fn numbers(&self, read: Get<*mut i64>) -> Option<&[i64]> {
        let rank = usize::try_from(self.rank()?).ok()?;
        if rank == 0 {
            return Some(&[]);
        }
        let mut numbers = std::ptr::null_mut();
        // SAFETY: a handle of a tensor, and a place for the result: an array of this length, which lives as long as the tensor.
        unsafe {
            let status = read(self.handle, &raw mut numbers);
            (status == 0 && !numbers.is_null()).then(|| std::slice::from_raw_parts(numbers, rank))
        }
    }

    /// Returns the dtype; `None` for one that no kernel here supports.
    pub(crate) fn dtype(&self) -> Option<DType> {
        self.torch.dtype_of(self.get(self.torch.dtype)?)
    }

    /// Returns the number of the device; `None` if the tensor is undefined or on a kind of device that kernels do not run on.
    pub(crate) fn device(&self) -> Option<i32> {
        if self.word() == self.torch.undefined {
            return None;
        }
        let kind = self.get(self.torch.device_kind)?;
        if kind == self.torch.device_type { self.get(self.torch.device_index) } else { None }
    }

    /// Returns whether the tensor is contiguous.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.get(self.torch.is_contiguous).unwrap_or(false)
    }

    /// Returns the address of the first element, for reading, or for writing to a tensor that was just made; `None` if PyTorch
    /// returns an error.
    pub(crate) fn address(&self) -> Option<u64> {
        self.address_by(self.torch.data_pointer)
    }

    /// Returns the address of the first element for writing to a tensor of the caller's; `None` if PyTorch returns an error.
    pub(crate) fn address_to_write(&self) -> Option<u64> {
        self.address_by(self.torch.mutable_data_pointer)
    }

    fn address_by(&self, get: Get<*mut c_void>) -> Option<u64> {
        let mut address = std::ptr::null_mut();
        // SAFETY: a handle of a tensor, and a place for the answer.
        let status = unsafe { get(self.handle, &raw mut address) };
        (status == 0 && !address.is_null()).then_some(address as u64)
    }
}

/// The stack of a call: the arguments are taken off it, and the results put on it.
pub(crate) struct Stack<'t> {
    torch: &'t Libtorch,
    words: *mut u64,
}

impl<'t> Stack<'t> {
    /// Wraps a stack of PyTorch's.
    ///
    /// # Safety
    /// The stack has a word for everything that is taken or put, of the type that is taken, and each is taken once.
    pub(crate) unsafe fn new(torch: &'t Libtorch, words: *mut u64) -> Self {
        Self { torch, words }
    }

    /// Returns an argument's word: a number, or a boolean as 0 or 1.
    pub(crate) fn word(&self, place: usize) -> u64 {
        // SAFETY: there is such an argument.
        unsafe { self.words.add(place).read() }
    }

    /// Takes a 32-bit number, such as a dtype, off the stack.
    pub(crate) fn int32(&self, place: usize) -> i32 {
        self.word(place) as u32 as i32
    }

    /// Returns a boolean.
    pub(crate) fn bool(&self, place: usize) -> bool {
        self.word(place) as u8 != 0
    }

    /// Takes a tensor off the stack.
    pub(crate) fn tensor(&self, place: usize) -> Tensor<'t> {
        Tensor { torch: self.torch, handle: self.word(place) as Handle }
    }

    /// Takes the word of an optional value off the stack.
    pub(crate) fn optional_word(&self, place: usize) -> Option<u64> {
        let value = self.word(place) as *mut u64;
        if value.is_null() {
            return None;
        }
        // SAFETY: an optional value that is present is an object with the value's word.
        unsafe {
            let word = value.read();
            (self.torch.delete)(value.cast());
            Some(word)
        }
    }

    /// Takes an optional tensor off the stack.
    pub(crate) fn optional_tensor(&self, place: usize) -> Option<Tensor<'t>> {
        self.optional_word(place).map(|word| Tensor { torch: self.torch, handle: word as Handle })
    }

    /// Takes a list of booleans off the stack.
    pub(crate) fn mask<const N: usize>(&self, place: usize) -> [bool; N] {
        let wanted = self.list(place);
        std::array::from_fn(|place| wanted.get(place).is_some_and(|&word| word as u8 != 0))
    }

    /// Takes a list off the stack, and returns its words.
    pub(crate) fn list(&self, place: usize) -> SmallVec<[u64; 6]> {
        self.list_of(self.word(place))
    }

    /// Takes a list of tensors off the stack.
    pub(crate) fn tensors(&self, place: usize) -> Vec<Tensor<'t>> {
        let handles = self.list_of(self.word(place));
        handles.into_iter().map(|word| Tensor { torch: self.torch, handle: word as Handle }).collect()
    }

    /// Takes an optional list off the stack.
    pub(crate) fn optional_list(&self, place: usize) -> Option<SmallVec<[u64; 6]>> {
        self.optional_word(place).map(|word| self.list_of(word))
    }

    fn list_of(&self, word: u64) -> SmallVec<[u64; 6]> {
        let list = word as Handle;
        let (mut count, mut items) = (0, SmallVec::<[u64; 6]>::new());
        // SAFETY: a list, which is destroyed once, and places for the answers.
        unsafe {
            if (self.torch.list_size)(list, &raw mut count) == 0 {
                items.reserve_exact(count);
                for item in 0..count {
                    let mut word = 0;
                    (self.torch.list_item)(list, item, &raw mut word);
                    items.push(word);
                }
            }
            (self.torch.delete_list)(list);
        }
        items
    }

    /// Puts a result on the stack.
    pub(crate) fn put(&self, place: usize, result: Tensor<'_>) {
        // SAFETY: there is a place for each result.
        unsafe { self.words.add(place).write(result.into_word_of_stack()) };
    }
}
