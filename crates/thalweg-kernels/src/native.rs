//! [`NativeKernel`]: everything that a launch needs from a native kernel, and the types of its arguments and ranges; [`Native`]: the
//! launches of a description without addresses.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{Access, DevicePointer, HostKernel, LaunchMode};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

/// The arguments of a launch: 8-byte words, passed to the kernel as one structure by value.
pub type Words = SmallVec<[u64; 24]>;

/// The ranges that a launch touches.
pub type Accesses = SmallVec<[Access; 8]>;

/// The function through which a host function reports an index that is out of range: the slot that its launch's last word
/// contains, the index, the extent.
pub type ReportIndex = Arc<dyn Fn(u64, i64, i64) + Send + Sync>;

/// A launch of a kernel that is written as CUDA C, with the same computation as a host function.
pub trait NativeKernel {
    /// Returns the name of the entry point. Two kernels with the same name are the same kernel.
    fn name(&self) -> &str;

    /// Returns the translation unit, to be compiled with [`OPTIONS`](thalweg_ir::cuda::OPTIONS). Its entry point takes
    /// [`words`](Self::words) as one structure by value.
    fn source(&self) -> String;

    /// Returns the host function, which reads the same words.
    fn host(&self) -> Arc<dyn HostKernel>;

    /// Returns the host function of a kernel that [reports indices](Self::reports_indices).
    fn host_reporting(&self, report: ReportIndex) -> Arc<dyn HostKernel> {
        let _ = report;
        self.host()
    }

    /// Returns whether the kernel reports indices that are out of range. If so, one more word follows its [`words`](Self::words)
    /// and contains the destination: on a GPU, the address of two int64 that receive the index and the extent plus one.
    fn reports_indices(&self) -> bool {
        false
    }

    /// Checks that the description can be executed.
    ///
    /// # Errors
    /// A sentence that names the unsupported part.
    fn check(&self) -> Result<(), Fault>;

    /// Returns the grid and the blocks of the launch; `None` if there is nothing to compute.
    fn launch_shape(&self) -> Option<LaunchShape>;

    /// Returns the bytes of dynamic shared memory of a block.
    fn shared_memory_bytes(&self) -> u32 {
        0
    }

    /// Returns when the kernel may begin, and whether its blocks wait for each other.
    fn mode(&self) -> LaunchMode {
        LaunchMode::InOrder
    }

    /// Returns the arguments.
    fn words(&self) -> Words;

    /// Returns the ranges that the launch touches. The caller removes empty ones.
    fn accesses(&self) -> Accesses;
}

/// A description with the addresses of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed<K, A> {
    /// The kernel.
    pub kernel: K,
    /// The addresses at which the operands begin.
    pub at: A,
}

/// A description of native kernels without addresses: of one launch over its operands, or of several that also share scratch memory.
pub trait Native<Operands> {
    /// Returns the bytes of scratch memory.
    fn scratch_bytes(&self) -> u64 {
        0
    }

    /// Returns the launches, in order, for operands and scratch memory at these addresses.
    fn launches(self, operands: Operands, scratch: DevicePointer) -> impl Iterator<Item = impl NativeKernel>;
}

/// A description of one launch.
impl<K, A> Native<A> for K
where
    Placed<K, A>: NativeKernel,
{
    fn launches(self, operands: A, _: DevicePointer) -> impl Iterator<Item = impl NativeKernel> {
        std::iter::once(Placed { kernel: self, at: operands })
    }
}

/// Returns a launch of blocks of these threads along x, as many as a grid may have; `None` for none.
pub(crate) fn along_x(blocks: u64, threads: impl Into<u64>) -> Option<LaunchShape> {
    let shape =
        LaunchShape { grid: [blocks.min((1 << 31) - 1) as u32, 1, 1], block: [threads.into() as u32, 1, 1] };
    (blocks > 0).then_some(shape)
}

/// Defines the methods of a [`NativeKernel`] that a row of three has: the name, the source, the host function. With `words` the
/// arguments are the addresses and the description. A host function that `reports` indices has a [`ReportIndex`] as its second argument.
macro_rules! native {
    ($self:ident: $name:expr, $source:expr, reports $host:expr $(, $words:ident)?) => {
        fn host(&$self) -> std::sync::Arc<dyn thalweg_driver::HostKernel> {
            $self.host_reporting(std::sync::Arc::new(|_, _, _| ()))
        }

        fn host_reporting(
            &$self,
            report: $crate::native::ReportIndex,
        ) -> std::sync::Arc<dyn thalweg_driver::HostKernel> {
            std::sync::Arc::new(move |launch: &thalweg_driver::HostLaunch<'_>| $host(launch, &report))
        }

        fn reports_indices(&$self) -> bool {
            true
        }

        $crate::native::native! { named $self: $name, $source $(, $words)? }
    };
    ($self:ident: $name:expr, $source:expr, $host:path $(, $words:ident)?) => {
        fn host(&$self) -> std::sync::Arc<dyn thalweg_driver::HostKernel> {
            std::sync::Arc::new($host)
        }

        $crate::native::native! { named $self: $name, $source $(, $words)? }
    };
    (named $self:ident: $name:expr, $source:expr $(, $words:ident)?) => {
        fn name(&$self) -> &str {
            $name
        }

        fn source(&$self) -> String {
            $source
        }

        $(fn $words(&$self) -> $crate::native::Words {
            $crate::arguments::pack(&$self.at, &$self.kernel)
        })?
    };
}
pub(crate) use native;
