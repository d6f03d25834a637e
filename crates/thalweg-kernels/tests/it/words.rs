//! The words of launches, checked against the structures in the CUDA code through which the kernels read them.

use std::collections::BTreeMap;

use thalweg_driver::DevicePointer;
use thalweg_ir::DType;
use thalweg_kernels::alignments::Alignments;
use thalweg_kernels::compact::{self, Compact};
use thalweg_kernels::decompose::{Decompose, Method};
use thalweg_kernels::extremum_columns::{self, ColumnsStep, ExtremumColumns};
use thalweg_kernels::extremum_place::ExtremumPlace;
use thalweg_kernels::gather::GatherRows;
use thalweg_kernels::histogram::Histogram;
use thalweg_kernels::matmul::quantized::{Quantization, QuantizedMatmul};
use thalweg_kernels::pad_rows::PadRows;
use thalweg_kernels::pool::{Pool, PoolPass};
use thalweg_kernels::random::{Distribution, Draw};
use thalweg_kernels::scan::{self, Scan, ScanOp, ScanStep};
use thalweg_kernels::scatter::atomic::ScatterAtomic;
use thalweg_kernels::scatter::few::ScatterFew;
use thalweg_kernels::scatter::last::LastIndices;
use thalweg_kernels::scatter::rows::ScatterRows;
use thalweg_kernels::scatter::segments::Segments;
use thalweg_kernels::scatter::tile::ScatterTile;
use thalweg_kernels::scatter::{Combine, ScatterReduce};
use thalweg_kernels::search::Search;
use thalweg_kernels::sort::{
    IndexStep, LongStep, LongWork, Select, SelectOne, Sort, SortIndices, Step, Work,
};
use thalweg_kernels::special::{Function, Special};
use thalweg_kernels::{NativeKernel, Placed};

/// Different addresses at multiples of 16.
fn at<const N: usize>() -> [DevicePointer; N] {
    std::array::from_fn(|place| DevicePointer::new(0x1000 * (place as u64 + 1)))
}

/// Returns the fields of a structure of words, with the number of words of each.
fn fields(source: &str) -> Vec<(String, usize)> {
    let inside = source.split_once("struct arguments {").expect("the source has a structure").1;
    let inside = inside.split_once("};").expect("it ends").0;
    let field = |line: &str| {
        let name = line.rsplit([' ', '*']).next().unwrap().to_owned();
        let (name, count) = name.split_once('[').map_or((name.as_str(), "1"), |(name, count)| (name, count));
        (name.to_owned(), count.trim_end_matches(']').parse().unwrap())
    };
    inside.split(';').map(str::trim).filter(|line| !line.is_empty()).map(field).collect()
}

/// Compares the words of a launch, by the names of the structure's fields, with the expected ones.
#[track_caller]
fn check(kernel: &dyn NativeKernel, expected: &[(&str, &[u64])]) {
    let mut words = kernel.words().to_vec();
    words.extend(kernel.reports_indices().then_some(0));
    let mut rest = words.as_slice();
    let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (name, count) in fields(&kernel.source()) {
        let (own, others) = rest.split_at(count);
        rest = others;
        found.insert(name, own.to_vec());
    }
    assert!(rest.is_empty(), "{}: {} words are in no field", kernel.name(), rest.len());
    for (name, expected) in expected {
        assert_eq!(found.get(*name).map(Vec::as_slice), Some(*expected), "{} of {}", name, kernel.name());
    }
}

#[test]
fn rows_are_read_as_they_are_written() {
    let dtype = DType::F32;
    let search = Search { rows: 3, length: 5, count: 7, right: true, dtype };
    check(
        &Placed { kernel: search, at: at::<3>() },
        &[("places", &[0x3000]), ("rows", &[3]), ("length", &[5]), ("count", &[7]), ("right", &[1])],
    );
    let ways = Alignments { times: 3, batch: 5, states: 7, is_gradient: true };
    check(
        &Placed { kernel: ways, at: at::<7>() },
        &[("result", &[0x7000]), ("times", &[3]), ("batch", &[5]), ("states", &[7]), ("is_gradient", &[1])],
    );
    let scan = Scan { op: ScanOp::Max, outer: 3, length: 16, inner: 1, reversed: true, dtype };
    check(
        &Placed { kernel: ScanStep { scan, phase: scan::Phase::Rows }, at: at::<4>() },
        &[
            ("result", &[0x3000]),
            ("totals", &[0x4000]),
            ("parts", &[1]),
            ("outer", &[3]),
            ("length", &[16]),
            ("reversed", &[1]),
            ("op", &[3]),
            ("warps", &[1]),
            ("vectors", &[1]),
        ],
    );
    let place = ExtremumPlace { rows: 3, length: 5, smallest: true, dtype };
    check(
        &Placed { kernel: place, at: at::<2>() },
        &[("places", &[0x2000]), ("length", &[5]), ("smallest", &[1])],
    );
    let phase = extremum_columns::Phase::Places;
    let columns = ExtremumColumns { sizes: [2, 1 << 20, 64], smallest: true, dtype };
    check(
        &Placed { kernel: ColumnsStep { columns, phase }, at: at::<2>() },
        &[("to", &[0x2000]), ("outer", &[2]), ("inner", &[64]), ("smallest", &[1]), ("phase", &[1])],
    );
    let sort = Sort { outer: 2, length: 9000, inner: 3, descending: true, dtype };
    check(
        &Placed { kernel: Select { sort, count: 7 }, at: at::<3>() },
        &[("places", &[0x3000]), ("outer", &[2]), ("inner", &[3]), ("flags", &[1]), ("count", &[7])],
    );
    check(
        &Placed { kernel: Step { sort, work: Work::Count(2) }, at: at::<4>() },
        &[
            ("values", &[0x2000]),
            ("length", &[9000]),
            ("flags", &[1]),
            ("digit", &[2]),
            ("work", &[1]),
            ("tiles", &[3]),
            ("digits", &[4]),
        ],
    );
}

#[test]
fn primitives_are_read_as_they_are_written() {
    let dtype = DType::F32;
    let sort = Sort { outer: 2, length: 9000, inner: 3, descending: true, dtype };
    let indices = SortIndices { count: 9000, stride: 3, limit: 300 };
    check(
        &Placed { kernel: IndexStep { sort: indices, work: Work::Place(1) }, at: at::<4>() },
        &[
            ("places", &[0x3000]),
            ("length", &[9000]),
            ("inner", &[3]),
            ("limit", &[300]),
            ("digits", &[2]),
            ("digit", &[1]),
            ("work", &[3]),
        ],
    );
    let one = SelectOne { sort, place: 4, takes_nan: true };
    check(&Placed { kernel: one, at: at::<3>() }, &[("flags", &[3]), ("count", &[5]), ("places", &[0x3000])]);
    let long = LongStep { select: one, work: LongWork::Find(1) };
    check(
        &Placed { kernel: long, at: at::<5>() },
        &[("above", &[21]), ("shift", &[10]), ("state", &[0x5000])],
    );
    let compact = Compact { work: compact::Work::Coordinates, limit: 8, rank: 2, ..Compact::count(9000) };
    check(
        &Placed { kernel: compact, at: at::<5>() },
        &[
            ("result", &[0x5000]),
            ("elements", &[9000]),
            ("part", &[4096]),
            ("parts", &[3]),
            ("limit", &[8]),
            ("rank", &[2]),
        ],
    );
    let histogram = Histogram { elements: 9, bins: 100, bounds: [1.0, 3.0], dtype };
    check(
        &Placed { kernel: histogram, at: at::<2>() },
        &[("counts", &[0x2000]), ("bins", &[100]), ("width", &[2.0_f64.to_bits()]), ("copies", &[32])],
    );
}

#[test]
fn indices_are_read_as_they_are_written() {
    let (sizes, dtype, combine) = ([2, 3, 5, 7], DType::F32, Combine::Max);
    let (index_strides, source_strides) = ([11, 12, 13], [14, 15, 16]);
    let strides: [(&str, &[u64]); 3] =
        [("source_strides", &[14, 15, 16]), ("combine", &[3]), ("inner", &[7])];
    let kernel = ScatterReduce { sizes, index_strides, source_strides, dtype, combine };
    check(&Placed { kernel, at: at::<3>() }, &[&strides[..], &[("index_strides", &[11, 12, 13])]].concat());
    let kernel = ScatterTile { sizes, index_strides, source_strides, dtype, combine, from_zeros: true };
    let tile: [(&str, &[u64]); 3] = [("from_zeros", &[1]), ("columns", &[7]), ("places", &[3])];
    check(&Placed { kernel, at: at::<4>() }, &[&strides[..], &tile].concat());
    let kernel = ScatterRows { sizes, index_stride: 11, source_strides, dtype };
    check(
        &Placed { kernel, at: at::<4>() },
        &[("source_strides", &[14, 15, 16]), ("inner", &[7]), ("index_stride", &[11]), ("last", &[0x2000])],
    );
    let kernel = ScatterAtomic {
        sizes,
        index_strides,
        source_strides,
        dtype,
        keeps_dtype: false,
        combine: Combine::Max,
    };
    check(
        &Placed { kernel, at: at::<3>() },
        &[("result", &[0x3000]), ("index_strides", &[11, 12, 13]), ("source_strides", &[14, 15, 16])],
    );
    let kernel = Segments {
        sizes: [2, 3, 70, 7],
        source_strides,
        source_rows: 70,
        through_stride: 17,
        skipped: 9,
        combine,
        from_zeros: true,
        is_later: false,
        dtype,
    };
    check(
        &Placed { kernel, at: at::<7>() },
        &[
            ("next_rows", &[0x7000]),
            ("through", &[0x3000]),
            ("through_stride", &[17]),
            ("count", &[70]),
            ("source_strides", &[14, 15, 16]),
            ("skipped", &[9]),
            ("combine", &[3]),
            ("from_zeros", &[1]),
            ("lanes", &[8]),
        ],
    );
    let last = LastIndices { count: 3, rows: 5, stride: 7 };
    check(&Placed { kernel: last, at: at::<2>() }, &[("last", &[0x2000]), ("rows", &[5]), ("stride", &[7])]);
    let gather = GatherRows { sizes: [2, 3, 5, 16], index_stride: 7, fill: 9, vectors: 4 };
    check(
        &Placed { kernel: gather, at: at::<3>() },
        &[("row_bytes", &[16]), ("index_stride", &[7]), ("fill", &[9]), ("vectors", &[4])],
    );
    let pad = PadRows { rows: 3, row_bytes: 6, source_distance: 8, target_rows: 5, target_row_bytes: 16 };
    check(
        &Placed { kernel: pad, at: at::<2>() },
        &[("rows", &[3]), ("row_bytes", &[6]), ("source_distance", &[8]), ("target_row_bytes", &[16])],
    );
}

#[test]
fn few_rows_are_read_as_they_are_written() {
    let dtype = DType::F32;
    let few = ScatterFew {
        sizes: [2, 5, 3, 7],
        index_stride: 4,
        source_strides: [21, 7, 1],
        skipped: u64::MAX,
        combine: Combine::Max,
        from_zeros: true,
        dtype,
    };
    check(
        &Placed { kernel: few, at: at::<3>() },
        &[
            ("result", &[0x3000]),
            ("extent", &[5]),
            ("inner", &[7]),
            ("skipped", &[u64::MAX]),
            ("from_zeros", &[1]),
        ],
    );
}

#[test]
fn other_sizes_are_read_as_they_are_written() {
    let dtype = DType::F32;
    let pool = Pool {
        pass: PoolPass::Greatest,
        planes: 2,
        inner: 6,
        extents: [1, 8, 9],
        windows: [1, 4, 5],
        kernel: [1, 2, 3],
        stride: [1, 2, 2],
        padding: [0, 1, 1],
        dilation: [1, 1, 2],
        counts_padding: true,
        divisor: -3,
        dtype,
    };
    check(
        &Placed { kernel: pool, at: at::<3>() },
        &[
            ("inner", &[6]),
            ("windows", &[1, 4, 5]),
            ("dilation", &[1, 1, 2]),
            ("counts_padding", &[1]),
            ("divisor", &[(-3_i64).cast_unsigned()]),
            ("pass", &[2]),
        ],
    );
    let [seed, offset, source, result, mask] = at();
    let draw =
        Draw { distribution: Distribution::Normal, elements: 64, threads: 32, numbers: [1.0, 2.0], dtype };
    check(
        &Placed { kernel: draw, at: [seed, offset, source, result, mask] },
        &[
            ("mask", &[0x5000]),
            ("threads", &[32]),
            ("second", &[2.0_f64.to_bits()]),
            ("distribution", &[1]),
            ("vector", &[1]),
        ],
    );
    let special = Special { function: Function::Zeta, elements: 9, strides: [0, 1], dtype };
    check(
        &Placed { kernel: special, at: at::<3>() },
        &[("elements", &[9]), ("strides", &[0, 1]), ("function", &[2])],
    );
    let decompose =
        Decompose { method: Method::Reflectors, batch: 2, rows: 5, columns: 4, width: 3, flags: 6 };
    check(
        &Placed { kernel: decompose, at: at::<3>() },
        &[("columns", &[4]), ("width", &[3]), ("flags", &[6]), ("method", &[5])],
    );
    let quantized =
        QuantizedMatmul { sizes: [3, 5, 128], quantization: Quantization::Int4 { group: 64 }, dtype };
    check(
        &Placed { kernel: quantized, at: at::<4>() },
        &[("result", &[0x4000]), ("n", &[5]), ("k", &[128]), ("group", &[64]), ("split", &[1])],
    );
}
