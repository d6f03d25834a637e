//! Parts of units that are printed, because their instructions have many operands. The functions that kernels share are files of
//! CUDA C++ in this folder.

pub(crate) mod cubic;

use thalweg_ir::DType;

/// Returns operands `from` … `to` of an instruction.
fn placeholders(from: u32, to: u32) -> String {
    (from..to).map(|at| format!("%{at}")).collect::<Vec<_>>().join(", ")
}

/// Returns the numbers of an array `x` as operands that an instruction reads and writes.
fn accumulators(count: u32) -> String {
    (0..count).map(|at| format!("\"+f\"(x[{at}])")).collect::<Vec<_>>().join(", ")
}

/// Prints `group_rows`: the product of 64 × 16 and 16 × `columns` elements, both in shared memory, each either as it is read along its
/// terms or transposed.
pub(crate) fn group_rows(columns: u32, dtype: DType, transposed: [bool; 2]) -> String {
    let (count, element) = (columns / 2, dtype.short_name());
    let [a_transposed, b_transposed] = transposed.map(u32::from);
    format!(
        "DEVICE void group_rows(f32 (&x)[{count}], const u64 a, const u64 b, const u32 adds) {{
    asm volatile(\"{{\\n.reg .pred adds;\\nsetp.ne.b32 adds, %{adds}, 0;\\nwgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{element}.{element} \
{{{list}}}, %{count}, %{b}, adds, 1, 1, {a_transposed}, {b_transposed};\\n}}\"
        : {sums} : \"l\"(a), \"l\"(b), \"r\"(adds));
}}
",
        adds = count + 2,
        b = count + 1,
        list = placeholders(0, count),
        sums = accumulators(count),
    )
}

/// Prints `group_registers`: the product of 64 × 16 elements in registers and 16 × `columns` in shared memory.
pub(crate) fn group_registers(columns: u32, dtype: DType) -> String {
    let (count, element) = (columns / 2, dtype.short_name());
    format!(
        "DEVICE void group_registers(f32 (&x)[{count}], const u32 a0, const u32 a1, const u32 a2, const u32 a3, const u64 b) {{
    asm volatile(\"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{element}.{element} {{{list}}}, {{{left}}}, %{b}, 1, 1, 1, 1;\"
        : {sums} : \"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"l\"(b));
}}
",
        list = placeholders(0, count),
        left = placeholders(count, count + 4),
        b = count + 4,
        sums = accumulators(count),
    )
}
