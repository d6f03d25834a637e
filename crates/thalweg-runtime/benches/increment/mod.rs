//! `x + 1` over a contiguous buffer: the kernel that the benches launch if any kernel will do.

use smallvec::smallvec;
use thalweg_ir::{BodyBuilder, Class, DType, Geometry, Kernel, OperandGeometry, OutputPlace};
use thalweg_runtime::{Buffer, KernelKey, Label, LaunchKey, PreparedLaunch, Result, Stream};

const CLASS: Class = Class { contiguous: true, narrow_index: true, ..Class::new(1, 0) };

/// The names of a kernel and its launch, and the shape of its launches.
pub struct Increment {
    key: KernelKey,
    name: LaunchKey,
    geometry: Geometry,
}

impl Increment {
    /// Creates the kernel for `elements` elements of `f32`.
    pub fn new(elements: u64) -> Self {
        let operand = OperandGeometry::Strided { row_strides: smallvec![1], inner_strides: smallvec![] };
        let geometry = Geometry {
            row_shape: smallvec![elements],
            inner_shape: smallvec![],
            operands: vec![operand.clone(), operand],
        };
        let key = KernelKey { body: 0, dtypes: smallvec![DType::F32], class: CLASS };
        Self { key, name: smallvec![elements], geometry }
    }

    /// Looks up the launch and queues it, as an operator does.
    pub fn launch(&self, stream: &Stream, data: &Buffer, label: Label) -> Result<()> {
        let device = stream.device();
        let prepared = device.prepared_launch(&self.name, || {
            PreparedLaunch::new(device, device.kernel(&self.key, increment)?, &self.geometry)
        })?;
        let data = [data.pointer()];
        stream.launch(&prepared, &data, &data, &[], label)
    }
}

fn increment() -> Kernel {
    let builder = BodyBuilder::new();
    builder.output(builder.input(DType::F32) + 1.0, DType::F32, OutputPlace::Point);
    Kernel { name: "increment".to_owned(), body: builder.finish(), class: CLASS }
}
