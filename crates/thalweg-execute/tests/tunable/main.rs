//! The tests of tuning and of precision. They change settings of the process, so they have a process of their own and take turns
//! in it.
//!
//! Time is counted in commands on a controlled machine: an algorithm of the simulated library takes one command per part.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_driver::{
    ComputeFormat, DevicePointer, Driver, GpuCall, LibraryLaunch, MatmulCall, ReductionSchemes, StreamHandle,
};
use thalweg_execute::backends::cuda::matmul::{self as settings, ReducedPrecisionReduction};
use thalweg_execute::backends::{self, Fp32Precision, cuda::BlasLibrary};
use thalweg_execute::execute;
use thalweg_execute::products::{Product, WideProduct};
use thalweg_execute::tunable::{self, OfflineOutcome};
use thalweg_ir::{DType, bf16};
use thalweg_kernels::matmul::{Factor, Matmul};
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_runtime::{Buffer, CaptureOptions, Device, Environment, Graph, Label, Result, Stream};
use thalweg_sim::schedules::Eager;
use thalweg_sim::{SimConfig, SimDriver};

/// A machine whose library by default chooses a slow algorithm, and which records the calls that were made.
#[derive(Debug)]
struct Slow {
    machine: Arc<SimDriver>,
    calls: Mutex<Vec<MatmulCall>>,
}

impl Driver for Slow {
    thalweg_driver::wraps!(machine);

    fn library_async(&self, stream: StreamHandle, launch: &LibraryLaunch<'_>) -> thalweg_driver::Result<()> {
        let GpuCall::Matmul(call) = launch.gpu else { panic!("only products are tuned") };
        self.calls.lock().push(*call);
        let algorithm = match call.algorithm {
            Some(algorithm) => algorithm,
            None => self.machine.matmul_algorithms(0, call, 1)?[0],
        };
        let gpu = GpuCall::Matmul(MatmulCall { algorithm: Some(algorithm), ..*call });
        self.machine.library_async(stream, &LibraryLaunch { gpu: &gpu, ..*launch })
    }
}

/// A device with tuning enabled, and files of its own.
struct Bench {
    driver: Arc<Slow>,
    device: Device,
    folder: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    fn new(machine: Arc<SimDriver>) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock();
        let folder = std::env::temp_dir().join(format!("thalweg-tunable-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let driver = Arc::new(Slow { machine, calls: Mutex::default() });
        let device = Device::all_of(driver.clone(), &Environment::default()).unwrap().remove(0);
        let bench = Self { driver, device, folder, _turn: turn };
        tunable::set_filename(bench.file("results.csv").to_str().unwrap(), false);
        tunable::set_rotating_buffer_size(0);
        tunable::set_max_tuning_iterations(3);
        tunable::tuning_enable(true);
        tunable::enable(true);
        bench
    }

    fn controlled(name: &str) -> Self {
        Self::new(SimDriver::controlled(config(name), Box::new(Eager::new(0))).unwrap())
    }

    fn free(name: &str) -> Self {
        Self::new(SimDriver::new(config(name)).unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn calls(&self) -> Vec<MatmulCall> {
        std::mem::take(&mut self.driver.calls.lock())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        tunable::enable(false);
        tunable::record_untuned_enable(false);
        tunable::set_numerical_check_tolerances(false, 0.0, 0.0);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn config(name: &str) -> SimConfig {
    // Results belong to a device's name, so each test has its own.
    SimConfig { memory_bytes: 64 << 20, workers: 2, name: name.to_owned(), ..SimConfig::default() }
}

/// A product of bf16 whose numbers are exact, and its result.
struct Example {
    product: Matmul,
    buffers: [Buffer; 3],
    expected: Vec<f32>,
}

impl Example {
    fn new(stream: &Stream, m: u64, n: u64, k: u64) -> Self {
        let product = Matmul::contiguous(m, n, k, 1, DType::Bf16);
        let numbers =
            |count: u64, step: u64| (0..count).map(|i| (i * step % 5) as f32 - 2.0).collect::<Vec<_>>();
        let (a, b) = (numbers(m * k, 3), numbers(k * n, 7));
        let at = |row: u64, column: u64| {
            (0..k).map(|i| a[(row * k + i) as usize] * b[(i * n + column) as usize]).sum::<f32>()
        };
        let expected = (0..m).flat_map(|row| (0..n).map(move |column| (row, column)));
        let expected = expected.map(|(row, column)| bf16::from_f32(at(row, column)).to_f32()).collect();
        let upload = |values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
            let buffer = Buffer::new(stream, bytes.len() as u64).unwrap();
            stream.copy_from_host(buffer.pointer(), &bytes, Label::here("upload")).unwrap();
            buffer
        };
        let d = upload(&vec![f32::NAN; (m * n) as usize]);
        Self { product, buffers: [upload(&a), upload(&b), d], expected }
    }

    fn at(&self) -> [DevicePointer; 3] {
        let [a, b, d] = &self.buffers;
        [a.pointer(), b.pointer(), d.pointer()]
    }

    fn run(&self, stream: &Stream) -> Result<()> {
        execute(Product(&self.product), self.at(), stream, Label::here("product"))
    }

    fn check(&self, stream: &Stream) {
        let mut bytes = vec![0; self.expected.len() * 2];
        stream.copy_to_host(&mut bytes, self.buffers[2].pointer(), Label::here("read")).unwrap();
        let found: Vec<f32> =
            bytes.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect();
        assert_eq!(found, self.expected);
    }
}

/// The simulated library's algorithm with the fewest commands.
const FASTEST: &str =
    "Gemm_Cublaslt_id_2_tile_0_stages_0_splitk_1_red_0_swizzle_0_custom_0_inner_0_cluster_0";

#[test]
fn the_fastest_algorithm_is_found_once_and_kept_in_the_file() {
    let bench = Bench::controlled("one result");
    let stream = bench.device.default_stream();
    let product = Example::new(&stream, 8, 16, 4);
    product.run(&stream).unwrap();
    product.check(&stream);
    let results = tunable::get_results(&bench.device);
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].operator, "GemmTunableOp_BFloat16_NN");
    assert_eq!(results[0].parameters, "nn_16_8_4_ld_16_4_16");
    assert_eq!(results[0].solution, FASTEST);
    assert!(results[0].milliseconds > 0.0);
    let tried = bench.calls();
    // The slowest was discarded after three of its runs: fewer than any other had.
    let runs = |split_k: i32| {
        tried.iter().filter(|call| call.algorithm.is_some_and(|a| a.split_k == split_k)).count()
    };
    assert!(0 < runs(8) && runs(8) < runs(1), "{} and {} runs", runs(8), runs(1));
    // The trials had operands of their own: the product itself ran once, with the result.
    let own: Vec<_> = tried.iter().filter(|call| call.d.address == product.at()[2]).collect();
    assert_eq!(own.len(), 1);
    assert_eq!(own[0].algorithm.unwrap().id, 2);

    product.run(&stream).unwrap();
    assert_eq!(bench.calls().len(), 1, "a result is used without another trial");
    let text = fs::read_to_string(bench.file("results.csv")).unwrap();
    assert!(text.contains(&format!("GemmTunableOp_BFloat16_NN,nn_16_8_4_ld_16_4_16,{FASTEST},")), "{text}");
    assert!(text.contains("Validator,CUDA_DEVICE,9.0:one result\n"), "{text}");
}

#[test]
fn a_file_serves_another_device_of_its_kind_and_a_stale_line_is_replaced() {
    let first = Bench::free("a kind");
    let stream = first.device.default_stream();
    let stale = FASTEST.replace("id_2", "id_77");
    let mut text: String = tunable::get_validators(&first.device)
        .iter()
        .map(|(key, value)| format!("Validator,{key},{value}\n"))
        .collect();
    text += &format!("GemmTunableOp_BFloat16_NN,nn_16_8_4_ld_16_4_16,{FASTEST},0.5\n");
    text += &format!("GemmTunableOp_BFloat16_NN,nn_16_9_4_ld_16_4_16,{stale},0.5\n");
    text += "GemmTunableOp_BFloat16_NN,nn_16_7_4_ld_16_4_16,Gemm_Hipblaslt_3,0.5\n";
    fs::write(first.file("results.csv"), text).unwrap();
    tunable::tuning_enable(false);
    // With its result; with one that the library does not run; with one whose line cannot be read.
    let algorithms: Vec<Vec<Option<i32>>> = [8, 9, 7]
        .into_iter()
        .map(|rows| {
            let product = Example::new(&stream, rows, 16, 4);
            product.run(&stream).unwrap();
            product.check(&stream);
            let first_calls = first.calls();
            product.run(&stream).unwrap();
            let calls = first_calls.into_iter().chain(first.calls());
            calls.map(|call| call.algorithm.map(|algorithm| algorithm.id)).collect()
        })
        .collect();
    assert_eq!(algorithms[0], [Some(2), Some(2)]);
    assert_eq!(algorithms[1], [Some(77), None, None], "it is tried once, and then left alone");
    assert_eq!(algorithms[2], [None, None]);
    assert_eq!(tunable::get_results(&first.device).len(), 1, "the line that is stale is gone");
}

#[test]
fn nothing_is_tuned_in_a_capture_and_a_result_is_used_there() {
    let bench = Bench::free("captures");
    let product = Example::new(&bench.device.default_stream(), 8, 16, 4);
    let capture = |product: &Example| {
        let capture = Graph::capture_begin(&bench.device, CaptureOptions::default()).unwrap();
        product.run(capture.stream()).unwrap();
        capture.end().unwrap().instantiate().unwrap()
    };
    let graph = capture(&product);
    assert_eq!(bench.calls().iter().filter(|call| call.algorithm.is_some()).count(), 0);
    assert!(tunable::get_results(&bench.device).is_empty());
    let stream = bench.device.default_stream();
    graph.replay_on(&stream).unwrap();
    product.check(&stream);
    // After it was tuned outside, a capture uses the result, too.
    product.run(&stream).unwrap();
    let [result] = tunable::get_results(&bench.device).try_into().unwrap();
    bench.calls();
    let _graph = capture(&product);
    let [call] = bench.calls().try_into().unwrap();
    assert_eq!(call.algorithm.is_none(), result.solution == "Default");
}

#[test]
fn recorded_products_are_tuned_from_their_file() {
    let bench = Bench::controlled("offline");
    let stream = bench.device.default_stream();
    let untuned = Path::new("tunableop_untuned0.csv");
    assert!(!untuned.exists(), "the test writes this file into its working folder");
    tunable::tuning_enable(false);
    tunable::record_untuned_enable(true);
    for rows in [8, 8, 5] {
        Example::new(&stream, rows, 16, 4).run(&stream).unwrap();
    }
    let text = fs::read_to_string(untuned).unwrap();
    fs::remove_file(untuned).unwrap();
    assert_eq!(
        text,
        "GemmTunableOp_BFloat16_NN,nn_16_8_4_ld_16_4_16\nGemmTunableOp_BFloat16_NN,nn_16_5_4_ld_16_4_16\n"
    );
    assert!(tunable::get_results(&bench.device).is_empty());
    let more = "ScaledGemmTunableOp_Float8_e4m3fn_TN,tn_1_1_1_ld_1_1_1_rw_0_bias_None\n\
                GemmAndBiasTunableOp_Half_TN,tn_6_8_4_ld_4_4_6\n\
                GemmStridedBatchedTunableOp_double_NT,nt_6_8_4_B_3_ld_6_8_6\n";
    fs::write(bench.file("untuned.csv"), text + more).unwrap();
    let mut outcomes = Vec::new();
    let report = &mut |outcome: &OfflineOutcome, done: usize, all: usize| {
        outcomes.push(outcome.clone());
        assert_eq!((done, all), (outcomes.len(), 5));
    };
    tunable::tune_gemm_in_file(&bench.device, &bench.file("untuned.csv"), report).unwrap();
    let tuned = |outcome: &OfflineOutcome| match outcome {
        OfflineOutcome::Tuned(result, default) => {
            result.solution == FASTEST && *default > result.milliseconds
        }
        _ => false,
    };
    let is_tuned: Vec<bool> = outcomes.iter().map(tuned).collect();
    assert_eq!(is_tuned, [true, true, false, true, true], "{outcomes:?}");
    assert!(matches!(&outcomes[2], OfflineOutcome::Skipped(_, why) if why.contains("ScaledGemm")));
    // The program that recorded them finds the results.
    bench.calls();
    Example::new(&stream, 5, 16, 4).run(&stream).unwrap();
    assert_eq!(bench.calls()[0].algorithm.unwrap().id, 2);
    // And so does a second run over the file.
    let mut known = 0;
    let report = &mut |outcome: &OfflineOutcome, _: usize, _: usize| {
        known += usize::from(matches!(outcome, OfflineOutcome::Known(_)));
    };
    tunable::tune_gemm_in_file(&bench.device, &bench.file("untuned.csv"), report).unwrap();
    assert_eq!(known, 4);
}

#[test]
fn threads_find_one_result_and_compute_the_same() {
    let bench = Bench::free("threads");
    let device = &bench.device;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stream = Stream::new(device).unwrap();
                for rows in [8, 5, 8, 3] {
                    let product = Example::new(&stream, rows, 16, 4);
                    product.run(&stream).unwrap();
                    product.check(&stream);
                }
            });
        }
    });
    // All that were called while another was tuned have a result by now, or are tuned at the next call.
    let stream = device.default_stream();
    for rows in [8, 5, 3] {
        Example::new(&stream, rows, 16, 4).run(&stream).unwrap();
    }
    assert_eq!(tunable::get_results(device).len(), 3);
    let text = fs::read_to_string(bench.file("results.csv")).unwrap();
    assert_eq!(text.matches("GemmTunableOp_").count(), 3, "{text}");
}

#[test]
fn a_product_that_is_added_is_tuned_without_being_added_twice() {
    let bench = Bench::free("accumulates");
    tunable::set_numerical_check_tolerances(true, 1e-5, 1e-5);
    let stream = bench.device.default_stream();
    let mut product = Example::new(&stream, 8, 16, 4);
    tunable::enable(false);
    product.run(&stream).unwrap();
    tunable::enable(true);
    // 2 · A · B + the old values.
    product.product.alpha = Factor::new(2.0);
    product.product.beta = Factor::ONE;
    product.expected.iter_mut().for_each(|value| *value *= 3.0);
    product.run(&stream).unwrap();
    product.check(&stream);
    assert_eq!(tunable::get_results(&bench.device).len(), 1);
}

#[test]
fn a_product_into_f32_is_tuned_by_a_name_of_its_own() {
    let bench = Bench::controlled("wide");
    tunable::set_numerical_check_tolerances(true, 1e-5, 1e-5);
    let stream = bench.device.default_stream();
    let product = Example::new(&stream, 8, 16, 4);
    product.run(&stream).unwrap();
    bench.calls();
    let sum = Buffer::new(&stream, 8 * 16 * 4).unwrap();
    let [a, b, _] = product.at();
    let check = |factor: f32| {
        let mut bytes = vec![0; 8 * 16 * 4];
        stream.copy_to_host(&mut bytes, sum.pointer(), Label::here("read")).unwrap();
        let found: Vec<f32> =
            bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect();
        let expected: Vec<f32> = product.expected.iter().map(|value| factor * value).collect();
        assert_eq!(found, expected);
    };
    for beta in [Factor::ZERO, Factor::ONE] {
        let product = Matmul { beta, ..product.product };
        execute(WideProduct(&product), [a, b, sum.pointer()], &stream, Label::here("product")).unwrap();
        check(if beta == Factor::ZERO { 1.0 } else { 2.0 });
    }
    let calls = bench.calls();
    assert!(calls.iter().all(|call| call.output_format != call.format), "trials are of this kind of product");
    let own: Vec<_> = calls.iter().filter(|call| call.d.address == sum.pointer()).collect();
    assert_eq!(own.len(), 2);
    assert!(own.iter().all(|call| call.algorithm.unwrap().id == 2));
    let results = tunable::get_results(&bench.device);
    let names: Vec<&str> = results.iter().map(|result| result.operator.as_str()).collect();
    assert_eq!(names, ["GemmTunableOp_BFloat16_BFloat16_float_NN", "GemmTunableOp_BFloat16_NN"]);
    // From a file that another run recorded.
    let line = "GemmTunableOp_Half_Half_float_TN,tn_6_8_4_ld_4_4_6\n";
    fs::write(bench.file("untuned.csv"), line).unwrap();
    let mut solutions = Vec::new();
    let report = &mut |outcome: &OfflineOutcome, _: usize, _: usize| match outcome {
        OfflineOutcome::Tuned(result, _) => solutions.push(result.solution.clone()),
        other => panic!("{other:?}"),
    };
    tunable::tune_gemm_in_file(&bench.device, &bench.file("untuned.csv"), report).unwrap();
    assert_eq!(solutions, [FASTEST]);
}

#[test]
fn a_small_product_of_f32_has_both_our_kernel_and_the_library_as_candidates() {
    let bench = Bench::controlled("small");
    let stream = bench.device.default_stream();
    let product = Matmul::contiguous(8, 16, 4, 1, DType::F32);
    let buffer = |bytes| Buffer::new(&stream, bytes).unwrap();
    let buffers = [buffer(128), buffer(256), buffer(512)];
    let at = [0, 1, 2].map(|operand: usize| buffers[operand].pointer());
    (0..2).for_each(|operand| {
        let zero = thalweg_driver::FillPattern::U8(0);
        stream.fill(at[operand], zero, buffers[operand].size_bytes(), Label::here("fill")).unwrap();
    });
    execute(Product(&product), at, &stream, Label::here("product")).unwrap();
    let [result] = tunable::get_results(&bench.device).try_into().unwrap();
    assert_eq!(result.solution, "Default", "our kernel is one command, and none is faster");
    assert!(!bench.calls().is_empty(), "the library's algorithms were tried");
    tunable::enable(false);
    backends::cuda::set_preferred_blas_library(BlasLibrary::CublasLt);
    execute(Product(&product), at, &stream, Label::here("product")).unwrap();
    backends::cuda::set_preferred_blas_library(BlasLibrary::Default);
    assert_eq!(bench.calls().len(), 1, "cuBLASLt is preferred");
    execute(Product(&product), at, &stream, Label::here("product")).unwrap();
    assert_eq!(bench.calls().len(), 0, "our kernel is the default");
}

#[test]
fn a_product_by_groups_of_warps_is_a_candidate_and_runs_by_its_name() {
    let bench = Bench::free("groups");
    let stream = bench.device.default_stream();
    let product = Example::new(&stream, 8, 16, 4);
    // Rows of A have 8 bytes, which the copy engine does not support, so the result is stale and the default is used.
    let aligned = Example::new(&stream, 8, 16, 8);
    let mut text: String = tunable::get_validators(&bench.device)
        .iter()
        .map(|(key, value)| format!("Validator,{key},{value}\n"))
        .collect();
    for (k, tiles) in [(4, "wide"), (8, "pair")] {
        text +=
            &format!("GemmTunableOp_BFloat16_NN,nn_16_8_{k}_ld_16_{k}_16,Gemm_Thalweg_groups_{tiles},0.5\n");
    }
    fs::write(bench.file("results.csv"), text).unwrap();
    tunable::tuning_enable(false);
    product.run(&stream).unwrap();
    product.check(&stream);
    assert_eq!(bench.calls().len(), 1, "the library's");
    aligned.run(&stream).unwrap();
    aligned.check(&stream);
    assert_eq!(bench.calls().len(), 0, "our kernel's");
}

#[test]
fn precision_reaches_the_librarys_calls() {
    let bench = Bench::free("precision");
    tunable::enable(false);
    let stream = bench.device.default_stream();
    let buffers = [(); 3].map(|()| Buffer::new(&stream, 64 * 64 * 8).unwrap());
    let zero = thalweg_driver::FillPattern::U8(0);
    buffers.iter().for_each(|buffer| {
        stream.fill(buffer.pointer(), zero, buffer.size_bytes(), Label::here("fill")).unwrap();
    });
    let at = [0, 1, 2].map(|operand: usize| buffers[operand].pointer());
    let queued = |dtype: DType, alpha: f64| {
        let product = Matmul { alpha: Factor::new(alpha), ..Matmul::contiguous(64, 64, 64, 1, dtype) };
        execute(Product(&product), at, &stream, Label::here("product")).unwrap();
        let [call] = bench.calls().try_into().unwrap();
        (call.compute, call.reductions)
    };
    // A factor keeps a product of f32 from our own kernel.
    let single = |expected: ComputeFormat| {
        assert_eq!(queued(DType::F32, 2.0), (expected, ReductionSchemes::ANY));
    };
    single(ComputeFormat::F32);
    backends::set_float32_matmul_precision("high").unwrap();
    assert!(settings::allow_tf32());
    single(ComputeFormat::F32_FAST_TF32);
    assert_eq!(queued(DType::F64, 1.0).0, ComputeFormat::F64);
    assert!(backends::set_float32_matmul_precision("best").is_err());
    settings::set_allow_tf32(false);
    assert_eq!(backends::get_float32_matmul_precision(), "highest");
    single(ComputeFormat::F32);
    settings::set_fp32_precision("bfx9".parse().unwrap());
    single(ComputeFormat::F32_EMULATED_BF16X9);
    // Without a precision of its own it uses the process's.
    settings::set_fp32_precision(Fp32Precision::None);
    backends::set_fp32_precision(Fp32Precision::Tf32).unwrap();
    single(ComputeFormat::F32_FAST_TF32);
    assert!(backends::set_fp32_precision(Fp32Precision::Bfx9).is_err());
    backends::set_fp32_precision(Fp32Precision::None).unwrap();
    single(ComputeFormat::F32);

    let reduction = |allow, allow_split_k| ReducedPrecisionReduction { allow, allow_split_k };
    assert_eq!(queued(DType::Bf16, 1.0), (ComputeFormat::F32, ReductionSchemes::ANY));
    settings::set_allow_bf16_reduced_precision_reduction(reduction(false, true)).unwrap();
    assert_eq!(queued(DType::Bf16, 1.0).1, ReductionSchemes::COMPUTE_TYPE);
    assert_eq!(queued(DType::F16, 1.0).1, ReductionSchemes::ANY);
    settings::set_allow_bf16_reduced_precision_reduction(reduction(false, false)).unwrap();
    assert_eq!(queued(DType::Bf16, 1.0).1, ReductionSchemes::NONE);
    assert!(settings::set_allow_bf16_reduced_precision_reduction(reduction(true, false)).is_err());
    settings::set_allow_bf16_reduced_precision_reduction(reduction(true, true)).unwrap();
    settings::set_allow_fp16_accumulation(true);
    assert_eq!(queued(DType::F16, 1.0).0, ComputeFormat::F16);
    assert_eq!(queued(DType::F16, 0.5).0, ComputeFormat::F32, "factors are 0 or 1");
    assert_eq!(queued(DType::Bf16, 1.0).0, ComputeFormat::F32);
    settings::set_allow_fp16_accumulation(false);
}
