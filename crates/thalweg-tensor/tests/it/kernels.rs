//! Every kernel of the operator table compiles, as the planner would request it.
//!
//! Needs NVRTC (the `nvidia-cuda-nvrtc` wheel; no GPU). If it is missing, the tests print a message and do nothing.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use thalweg_conformance::{ARCHITECTURES, compiler_accepts, compiles_everything};
use thalweg_ir::cuda::{OPTIONS, print_foreach, print_unit};
use thalweg_ir::foreach::ForeachKernel;
use thalweg_ir::{DType, Dimension, Kernel, Node, OutputPlace};
use thalweg_ops::optimizer::{OPTIMIZERS, StepForm, count_kernel, step_kernel};
use thalweg_ops::stages::stages;
use thalweg_ops::{
    Iteration, LoopOp, Placement, Signature, Space, elementwise, forward, gradient, kernel, parts, plan,
    structured,
};

/// The number of kernels per translation unit: few enough to locate an error, many enough that starting the compiler does not
/// matter.
const UNIT: usize = 60;

/// Returns the options of the compiler. Kernels of the table may declare what they do not use.
fn options() -> Vec<&'static str> {
    [OPTIONS, &["--disable-warnings"]].concat()
}

/// Row extents, inner extents, and whether operands are transposed: one of every class that the planner knows.
const ELEMENTWISE_SPACES: [(&[u64], bool); 2] = [(&[4096], false), (&[64, 64], true)];
const ROW_SPACES: [(&[u64], &[u64], bool); 5] = [
    (&[100], &[8], false),
    (&[100], &[300], false),
    (&[100], &[5000], false),
    (&[64], &[300], true),
    (&[1 << 16], &[300], true),
];

fn strides(shape: &[u64], transposed: bool) -> SmallVec<[u64; 6]> {
    let mut strides: SmallVec<[u64; 6]> = SmallVec::from_elem(1, shape.len());
    let order: Vec<usize> =
        if transposed { (0..shape.len()).collect() } else { (0..shape.len()).rev().collect() };
    let mut step = 1;
    for dimension in order {
        strides[dimension] = step;
        step *= shape[dimension];
    }
    strides
}

/// Returns the iteration space of a body over these extents.
fn iteration(body: &thalweg_ir::Body, rows: &[u64], inner: &[u64], transposed: bool) -> Iteration {
    let shape: Vec<u64> = rows.iter().chain(inner).copied().collect();
    let full = |transposed| strides(&shape, transposed);
    let strided = |transposed: bool, at_points: bool| {
        let all = if at_points { full(transposed) } else { strides(rows, false) };
        let (row, rest) = all.split_at(rows.len());
        Placement::Strided { rows: row.into(), inner: if at_points { rest.into() } else { SmallVec::new() } }
    };
    // The indices of what is gathered are the same for a row.
    let is_of_rows = |number| body.has_offsets() && body.loads_input(number);
    let inputs = body.inputs.iter().enumerate().map(|(number, input)| match input.kind {
        thalweg_ir::InputKind::Strided if is_of_rows(number) => {
            let mut rows = strides(rows, false);
            *rows.last_mut().expect("it has rows") = 0;
            Placement::Strided { rows, inner: SmallVec::new() }
        }
        thalweg_ir::InputKind::Strided => strided(transposed, true),
        thalweg_ir::InputKind::Gathered => Placement::Gathered(1 << 20),
    });
    let outputs = body.outputs.iter().map(|output| match output.scatter {
        Some(_) => Placement::Gathered(1 << 20),
        None => strided(false, output.place == OutputPlace::Point || inner.is_empty()),
    });
    Iteration {
        rows: rows.into(),
        inner: inner.into(),
        operands: inputs.chain(outputs).collect(),
        alignment_bytes: 256,
        shared_memory_bytes: 227 << 10,
        has_clusters: false,
    }
}

/// Returns the spaces in which an operator is compiled: extents of rows and of inner dimensions, and whether inputs are transposed. They
/// have all dimensions whose coordinates the body reads.
fn spaces(operator: &LoopOp, body: &thalweg_ir::Body) -> Vec<(Vec<u64>, Vec<u64>, bool)> {
    let (mut row_rank, mut inner_rank) = (0, 0);
    for node in &body.nodes {
        match node {
            Node::Index(Dimension::Row(dimension)) => row_rank = row_rank.max(usize::from(*dimension) + 1),
            Node::Index(Dimension::Inner(dimension)) => {
                inner_rank = inner_rank.max(usize::from(*dimension) + 1)
            }
            _ => {}
        }
    }
    let mut spaces = named_spaces(operator);
    for (rows, inner, _) in &mut spaces {
        rows.resize(rows.len().max(row_rank), 3);
        inner.resize(inner.len().max(inner_rank), 3);
    }
    spaces
}

fn named_spaces(operator: &LoopOp) -> Vec<(Vec<u64>, Vec<u64>, bool)> {
    match (operator.space, operator.name) {
        (Space::Elementwise, _) => {
            ELEMENTWISE_SPACES.iter().map(|&(rows, transposed)| (rows.to_vec(), vec![], transposed)).collect()
        }
        (Space::Rows, "causal_softmax") => {
            vec![(vec![6, 9], vec![9], false), (vec![6, 2000], vec![2000], true)]
        }
        (Space::Rows, _) => {
            ROW_SPACES.iter().map(|&(rows, inner, t)| (rows.to_vec(), inner.to_vec(), t)).collect()
        }
        (Space::Coordinates, "arange" | "bernoulli") => {
            vec![(vec![100], vec![], false)]
        }
        (Space::Coordinates, "nll_loss" | "nll_loss_weighted") => {
            vec![(vec![9, 4], vec![], false)]
        }
        (Space::Coordinates, "gather" | "gather_reported") => vec![(vec![3, 5, 64], vec![], false)],
        (Space::Coordinates, "index_copy" | "stack3") => vec![(vec![3, 3, 4], vec![], false)],
        (Space::Coordinates, _) => vec![(vec![8, 3, 9, 9], vec![3, 3], false)],
    }
}

/// The dtypes in which operators are compiled: other loads, stores and casts are compiled with `copy`.
const DTYPES: [DType; 5] = [DType::F32, DType::Bf16, DType::F64, DType::I64, DType::Bool];

fn signatures(operator: &LoopOp) -> Vec<Signature> {
    let mut list = Vec::new();
    let dtypes = if operator.name == "copy" { &DType::ALL[..] } else { &DTYPES };
    for &dtype in dtypes {
        let inputs: Vec<DType> = match operator.name {
            "cross_entropy" | "cross_entropy_smoothed" | "nll_loss" | "mean_over_classes" => {
                vec![dtype, DType::I64]
            }
            "cross_entropy_backward" | "cross_entropy_smoothed_backward" => {
                vec![dtype, DType::I64, dtype.compute(), dtype]
            }
            "nll_loss_weighted" => vec![dtype, DType::I64, dtype],
            "bernoulli" => vec![DType::I64; 2],
            "index_check" => vec![DType::I64],
            "index_copy" => vec![dtype, DType::I64],
            "gather" | "gather_reported" => vec![dtype, DType::I64, dtype],
            "layer_norm_backward" => vec![dtype, dtype, dtype.compute(), dtype.compute(), dtype],
            "layer_norm_backward_add" | "add_layer_norm_backward" => {
                vec![dtype, dtype, dtype.compute(), dtype.compute(), dtype, dtype]
            }
            "rms_norm_backward" | "rms_norm_weight_backward" => vec![dtype, dtype.compute(), dtype],
            "rms_norm_affine_backward" => vec![dtype, dtype.compute(), dtype, dtype],
            "layer_norm_parameters_backward" => vec![dtype, dtype.compute(), dtype.compute(), dtype],
            _ => vec![dtype; operator.input_count],
        };
        for &requested in dtypes {
            list.extend(operator.signature(&inputs, false, Some(requested)));
        }
    }
    list.dedup();
    list
}

/// Adds the kernels of an operator, by name. If there are several classes, each signature is compiled with one of them, in turn (with
/// several, if there are fewer signatures than classes). Each operator then has every class and every dtype, and the complete table
/// has every pair of class and dtype.
fn kernels(number: usize, operator: &'static LoopOp, found: &mut BTreeMap<String, Kernel>) {
    let signatures = signatures(operator);
    let (count, has_turns) = (signatures.len(), !compiles_everything());
    for (turn, signature) in (number..).zip(signatures) {
        let mut bodies =
            vec![(operator.name.to_owned(), forward(operator, &signature).body.as_ref().clone())];
        let floating = |&input: &usize| signature.inputs[input].is_floating_point();
        let wanted = (0..signature.inputs.len()).filter(floating).fold(0, |mask, input| mask | 1 << input);
        let own = matches!(operator.space, Space::Coordinates)
            || operator.name.contains("layer_norm_")
            || operator.name.contains("rms_norm_")
            || operator.name.contains("channel_norm_")
            || matches!(operator.name, "cross_entropy_backward" | "cross_entropy_smoothed_backward");
        if wanted != 0 && !own && signature.outputs[0].is_floating_point() {
            let derived =
                gradient(operator, &signature, wanted).expect("the table's operators are differentiable");
            bodies.push((format!("{}_backward", operator.name), derived.body.as_ref().clone()));
        }
        for (name, body) in bodies {
            let spaces = spaces(operator, &body);
            let step = if has_turns { spaces.len().min(count) } else { 1 };
            for (rows, inner, transposed) in spaces.into_iter().skip(turn % step).step_by(step) {
                let class = plan(&body, &iteration(&body, &rows, &inner, transposed)).class;
                let kernel = kernel(&name, signature.compute, body.clone(), class);
                found.insert(kernel.name.clone(), kernel);
            }
        }
    }
}

#[test]
fn every_kernel_of_the_table_compiles() {
    let mut found = BTreeMap::new();
    let operators = elementwise().chain(parts()).chain(structured::structured());
    operators.enumerate().for_each(|(number, operator)| kernels(number, operator, &mut found));
    println!("{} kernels", found.len());
    assert!(found.len() > 400, "the table has more kernels than {}", found.len());
    let list: Vec<&Kernel> = found.values().collect();
    let units: Vec<_> = list.chunks(UNIT).map(|unit| (unit[0].name.clone(), print_unit(unit))).collect();
    compiler_accepts(&ARCHITECTURES, &units, &options());
}

/// Compiles kernels for a GPU with clusters of blocks.
fn compile(found: &BTreeMap<String, Kernel>) {
    let unit = print_unit(&found.values().collect::<Vec<_>>());
    compiler_accepts(&["sm_90a"], &[("kernels".to_owned(), unit)], &options());
}

#[test]
fn rows_that_stream_compile() {
    let mut found: BTreeMap<String, Kernel> = BTreeMap::new();
    let rows = structured::structured().filter(|operator| operator.space == Space::Rows);
    for (operator, signature) in
        rows.flat_map(|operator| signatures(operator).into_iter().map(move |it| (operator, it)))
    {
        let body = forward(operator, &signature).body.as_ref().clone();
        if body.uses_coordinates() {
            continue;
        }
        let long = iteration(&body, &[100], &[65_536], false);
        let class = plan(&body, &Iteration { has_clusters: true, ..long }).class;
        if class.streamed.is_some() {
            let kernel = kernel(operator.name, signature.compute, body, class);
            found.insert(kernel.name.clone(), kernel);
        }
    }
    assert!(found.len() > 20, "more kernels stream than {}", found.len());
    compile(&found);
}

#[test]
fn the_stages_of_long_rows_compile() {
    let mut found: BTreeMap<String, Kernel> = BTreeMap::new();
    let operators =
        [&structured::VAR_MEAN, &structured::AMAX, &structured::MAX_AND_PLACE, &structured::SMOOTH_L1_LOSS];
    for operator in operators {
        let inputs = vec![DType::Bf16; operator.input_count];
        let signature = operator.signature(&inputs, false, None).expect("it takes bfloat16");
        let mut bodies = vec![(operator.name.to_owned(), operator.id(), operator.body(&signature))];
        if operator.name != "max_and_place" {
            let derived = gradient(operator, &signature, 1).expect("it is differentiable");
            bodies.push((format!("{}_backward", operator.name), derived.id, derived.body.as_ref().clone()));
        }
        for (name, id, body) in bodies {
            let Some(stages) = stages(id, &body) else { continue };
            let levels = stages.levels.iter().flat_map(|level| [Some(&level.part), level.combine.as_ref()]);
            let rest = [stages.rows.as_ref(), stages.points.as_ref()];
            for stage in levels.chain(rest.map(|stage| stage.map(|(stage, _)| stage))).flatten() {
                for (rows, inner, transposed) in [(100, 4096, false), (1 << 16, 300, true)] {
                    let iteration = iteration(&stage.body, &[rows], &[inner], transposed);
                    let class = plan(&stage.body, &iteration).class;
                    let name = format!("{name}_{}", stage.suffix);
                    let kernel = kernel(&name, signature.compute, stage.body.as_ref().clone(), class);
                    found.insert(kernel.name.clone(), kernel);
                }
            }
        }
    }
    assert!(found.len() > 20, "there are more stages than {}", found.len());
    compile(&found);
}

#[test]
fn the_optimizers_kernels_compile() {
    let mut units = Vec::new();
    let mut add = |kernel: &ForeachKernel| units.push((kernel.name.clone(), print_foreach(kernel)));
    let cast = StepForm { cast: Some(DType::Bf16), ..StepForm::default() };
    let by_scalar =
        StepForm { learning_rate: None, has_found_inf: false, writes_gradients: true, ..StepForm::default() };
    for rule in OPTIMIZERS {
        for values in rule.variants() {
            add(&count_kernel(rule, &values));
            for dtypes in [[DType::F32; 2], [DType::Bf16, DType::F32]] {
                add(&step_kernel(rule, &values, dtypes, StepForm::default()));
            }
        }
        let [defaults, _] = rule.variants();
        add(&step_kernel(rule, &defaults, [DType::F32; 2], cast));
        for dtypes in [[DType::F64; 2], [DType::F16; 2]] {
            add(&step_kernel(rule, &defaults, dtypes, by_scalar));
        }
    }
    compiler_accepts(&ARCHITECTURES, &units, &options());
}
