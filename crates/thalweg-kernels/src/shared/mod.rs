//! Functions of CUDA C that several kernels use: a kernel's text names a function at the place where it is inserted. Those of
//! [groups of warps](warp_groups) are printed.

pub(crate) mod cubic;

use thalweg_ir::cuda::with_prelude;

/// Adds the products of eight rows of weights and up to sixteen rows, with the tensor cores; `MMA` is the name of their dtype.
pub(crate) const MULTIPLY_EIGHT: &str = include_str!("multiply_eight.cu");

/// Sums over a block of 256 threads, through shared memory of eight numbers.
pub(crate) const OVER_BLOCK: &str = include_str!("over_block.cu");

/// Sums over the lanes of a warp and the threads of a block, of any number of threads.
pub(crate) const OVER_THREADS: &str = include_str!("over_threads.cu");

/// Conversions between elements and the type in which they are combined, as overloads and templates.
pub(crate) const ELEMENTS: &str = include_str!("elements.cu");

/// Streams weights through shared memory, in pieces of 16 bytes per lane; `WEIGHT` is the type of their elements.
pub(crate) const PIECES: &str = include_str!("pieces.cu");

/// Adds the sums of warps that share eight rows of weights; `ROWS` is the number of rows that the kernel multiplies them by.
pub(crate) const COMBINE: &str = include_str!("combine.cu");

/// Barriers in shared memory.
pub(crate) const BARRIERS: &str = include_str!("barriers.cu");

/// Products of groups of four warps, executed asynchronously.
const WARP_GROUPS: &str = include_str!("warp_groups.cu");

/// Returns a translation unit of these parts, in which a kernel takes a structure `x` and calls one of their functions. The parts are
/// CUDA files with templates: what a unit does not instantiate costs little, and functions that it does not call are allowed.
pub(crate) fn unit(parts: &[&str], name: &str, block: u32, structure: &str, call: &str) -> String {
    let entry = format!(
        "\nextern \"C\" __global__ void __launch_bounds__({block}) {name}(const __grid_constant__ {structure} x) {{\n    {call};\n}}\n"
    );
    let unused = "#pragma nv_diag_suppress 177\n";
    with_prelude(&[unused, &parts.concat(), &entry].concat())
}

/// Returns operands `from` … `to` of an instruction.
pub(crate) fn placeholders(from: u32, to: u32) -> String {
    (from..to).map(|at| format!("%{at}")).collect::<Vec<_>>().join(", ")
}

/// Returns the numbers of an array `x` as operands that an instruction reads and writes.
pub(crate) fn accumulators(count: u32) -> String {
    (0..count).map(|at| format!("\"+f\"(x[{at}])")).collect::<Vec<_>>().join(", ")
}

/// Prints the functions that all kernels of groups of four warps use, and `group_rows`: the product of 64 × 16 and 16 × `columns`
/// elements, both in shared memory, each either as it is read along its terms or transposed.
pub(crate) fn warp_groups(columns: u32, element: &str, [a_transposed, b_transposed]: [bool; 2]) -> String {
    let count = columns / 2;
    format!(
        "{BARRIERS}{WARP_GROUPS}
static __device__ __forceinline__ void group_rows(f32 (&x)[{count}], const u64 a, const u64 b, const u32 adds) {{
    asm volatile(\"{{\\n.reg .pred adds;\\nsetp.ne.b32 adds, %{adds}, 0;\\nwgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{element}.{element} \
{{{list}}}, %{count}, %{b}, adds, 1, 1, {a_transposed}, {b_transposed};\\n}}\"
        : {sums} : \"l\"(a), \"l\"(b), \"r\"(adds));
}}
",
        adds = count + 2,
        b = count + 1,
        list = placeholders(0, count),
        sums = accumulators(count),
        a_transposed = u32::from(a_transposed),
        b_transposed = u32::from(b_transposed),
    )
}
