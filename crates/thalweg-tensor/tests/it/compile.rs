//! Compiled functions: which loops become one kernel, and that results stay the same.

use thalweg_ir::DType;
use thalweg_runtime::sim::Check;
use thalweg_runtime::{CaptureOptions, Device, Environment, Event, Graph, Result, Stream};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::compile::{
    Counters, compile, compiled, counters, excluded, is_compiling, set_recomputed_bytes,
};
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{self, device, on_own_device, values};

/// Runs a function eagerly and twice compiled, compares the bits, and returns the numbers of loops and of kernels of a call.
fn measured(inputs: &[Tensor], function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>) -> (u64, u64) {
    let expected: Vec<Vec<u64>> = function(inputs).unwrap().iter().map(bits).collect();
    let compiled = compile(function);
    let mut difference = Counters::default();
    for _ in 0..2 {
        let before = counters();
        let results = compiled.call(inputs).unwrap();
        let after = counters();
        difference.loops = after.loops - before.loops;
        difference.kernels = after.kernels - before.kernels;
        difference.programs = after.programs - before.programs;
        assert_eq!(results.iter().map(bits).collect::<Vec<_>>(), expected);
    }
    assert_eq!(difference.programs, 0, "the second call finds the programs of the first");
    (difference.loops, difference.kernels)
}

/// Returns the bits of a tensor's elements; all NaNs are one.
fn bits(tensor: &Tensor) -> Vec<u64> {
    values(tensor).into_iter().map(|value| if value.is_nan() { 1 } else { value.to_bits() }).collect()
}

fn random(shape: &[usize], seed: u64) -> Tensor {
    support::random(shape, seed).to_dtype(DType::F32).unwrap()
}

fn half(shape: &[usize], seed: u64) -> Tensor {
    random(shape, seed).to_dtype(DType::Bf16).unwrap()
}

#[test]
fn a_chain_of_points_is_one_kernel() {
    let inputs = [random(&[64, 96], 1), random(&[96], 2)];
    let chain = |x: &[Tensor]| Ok(vec![x[0].mul_scalar(2.0)?.add(&x[1])?.tanh()?.mul(&x[0])?]);
    assert_eq!(measured(&inputs, chain), (4, 1));
    // Rounded to 16 bits between the loops, as in memory.
    let inputs = [half(&[64, 96], 1), half(&[96], 2)];
    assert_eq!(measured(&inputs, chain), (4, 1));
    // Transposed, and through views.
    let turned = |x: &[Tensor]| {
        let y = x[0].transpose(0, 1)?.exp()?;
        Ok(vec![y.reshape(&[96 * 64])?.mul_scalar(3.0)?.reshape(&[96, 64])?.add(&y)?])
    };
    assert_eq!(measured(&inputs, turned).1, 1);
}

#[test]
fn what_is_kept_is_written_and_what_is_not_read_is_left_out() {
    let inputs = [random(&[40, 50], 3)];
    let kept = |x: &[Tensor]| {
        let y = x[0].exp()?;
        let _unread = x[0].sin()?;
        Ok(vec![y.add_scalar(1.0)?, y])
    };
    assert_eq!(measured(&inputs, kept), (3, 1));
}

#[test]
fn reductions_join_what_they_read_and_what_reads_them() {
    for x in [random(&[64, 100], 4), half(&[64, 128], 5), random(&[33, 7], 6), random(&[16, 2000], 7)] {
        let softmax = |x: &[Tensor]| {
            let greatest = x[0].amax(&[1], true)?;
            let e = x[0].sub(&greatest)?.exp()?;
            Ok(vec![e.div(&e.sum(&[1], true)?)?])
        };
        let (loops, kernels) = measured(std::slice::from_ref(&x), softmax);
        println!("softmax of {:?} {}: {loops} loops, {kernels} kernels", x.shape(), x.dtype());
        assert!(kernels < loops);
        let norm = |x: &[Tensor]| {
            let centred = x[0].sub(&x[0].mean(&[1], true)?)?;
            let variance = centred.mul(&centred)?.mean(&[1], true)?;
            Ok(vec![centred.mul(&variance.add_scalar(1e-5)?.rsqrt()?)?])
        };
        let (loops, kernels) = measured(std::slice::from_ref(&x), norm);
        println!("norm of {:?} {}: {loops} loops, {kernels} kernels", x.shape(), x.dtype());
        assert!(kernels < loops);
        let residual = |x: &[Tensor]| {
            let sum = x[0].add(&x[0].mul_scalar(0.5)?)?;
            Ok(vec![sum.softmax(-1)?.mul_scalar(2.0)?, sum])
        };
        let (loops, kernels) = measured(std::slice::from_ref(&x), residual);
        println!("residual of {:?} {}: {loops} loops, {kernels} kernels", x.shape(), x.dtype());
    }
}

#[test]
fn sums_of_rows_that_begin_within_a_vector_keep_their_order() {
    for (rows, points) in [(4, 97), (3, 1001), (7, 35)] {
        // The rows of what is summed begin at other places of a vector than those of what it is computed from.
        let inputs = [random(&[points], 51), half(&[rows, 1], 52), random(&[rows, points + 3], 53)];
        measured(&inputs, |x| Ok(vec![x[0].sub(&x[1])?.sum(&[1], true)?]));
        measured(&inputs, |x| Ok(vec![x[0].mul(&x[2].narrow(1, 0, x[0].elements())?)?.mean(&[1], false)?]));
        measured(&inputs, |x| Ok(vec![x[0].add(&x[1])?.softmax(-1)?.mul(&x[0])?.sum(&[-1], false)?]));
    }
}

#[test]
fn writes_in_place_are_seen_by_what_comes_later() {
    let inputs = [random(&[30, 20], 8)];
    let in_place = |x: &[Tensor]| {
        let y = x[0].mul_scalar(1.0)?;
        let before = y.exp()?;
        y.add_(&x[0])?;
        y.narrow(0, 3, 10)?.mul_scalar_(4.0)?;
        let after = y.exp()?;
        y.transpose(0, 1)?.copy_(&before.transpose(0, 1)?)?;
        Ok(vec![before, after, y])
    };
    measured(&inputs, in_place);
    // A write over an input remains, and is complete when the call returns.
    let x = random(&[100], 9);
    let expected: Vec<f64> = values(&x).iter().map(|x| f64::from((*x as f32 + 1.0) * 2.0)).collect();
    compiled(|| {
        x.add_scalar_(1.0)?;
        x.mul_scalar_(2.0).map(drop)
    })
    .unwrap();
    assert_eq!(values(&x), expected);
}

#[test]
fn the_host_reads_what_was_computed() {
    let inputs = [random(&[64], 10)];
    let branching = |x: &[Tensor]| {
        let y = x[0].mul_scalar(3.0)?.sum(&[], false)?;
        let z = if y.item::<f32>()? > 0.0 { x[0].exp()? } else { x[0].neg()? };
        Ok(vec![z.add_scalar(1.0)?, y])
    };
    let (_, kernels) = measured(&inputs, branching);
    assert!(kernels >= 2);
}

#[test]
fn other_kernels_and_parts_that_are_excluded_end_a_segment() {
    let inputs = [random(&[32, 32], 11), random(&[32, 32], 12)];
    let product = |x: &[Tensor]| Ok(vec![x[0].exp()?.matmul(&x[1])?.add_scalar(1.0)?.relu()?]);
    assert_eq!(measured(&inputs, product), (3, 2));
    assert!(!is_compiling());
    let before = counters();
    compiled(|| {
        assert!(is_compiling());
        let y = inputs[0].exp()?;
        let z = excluded(|| {
            assert!(!is_compiling());
            y.add_scalar(1.0)
        })?;
        z.exp()
    })
    .unwrap();
    assert_eq!(counters().loops - before.loops, 2);
}

/// Runs a function as [`measured`] does, and returns the numbers of kernels, and of loops that waited while another command ran.
fn passing(inputs: &[Tensor], function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>) -> (u64, u64) {
    let before = counters().passed;
    let (_, kernels) = measured(inputs, function);
    (kernels, (counters().passed - before) / 2)
}

#[test]
fn loops_wait_while_kernels_run_that_have_nothing_to_do_with_them() {
    let inputs = [random(&[32, 48], 41), random(&[48, 64], 42), random(&[48, 64], 43)];
    // What the first product gives is activated where the second one is read.
    let gated = |x: &[Tensor]| Ok(vec![x[0].matmul(&x[1])?.silu()?.mul(&x[0].matmul(&x[2])?)?]);
    assert_eq!(passing(&inputs, gated), (1, 1));
    // The second product reads what the loops write, so they run before, and only they.
    let chained = |x: &[Tensor]| {
        let gate = x[0].matmul(&x[1])?.silu()?;
        let turned = x[2].mul_scalar(2.0)?;
        Ok(vec![gate.mul(&x[0].matmul(&turned)?)?])
    };
    assert_eq!(passing(&inputs, chained), (2, 1));
    // A loop that reads what the product only reads may wait; one that reads what a kernel writes over may not.
    let shared = |x: &[Tensor]| {
        let y = x[0].exp()?;
        let z = x[0].matmul(&x[1])?;
        Ok(vec![y.mul(&y)?.sum(&[1], true)?.add(&z)?, y])
    };
    assert_eq!(passing(&inputs, shared).1, 1);
    let written_over = |x: &[Tensor]| {
        let (own, index) = (x[0].mul_scalar(1.0)?, Tensor::arange(32, 0, 1, DType::I64, x[0].device())?);
        let former = own.matmul(&x[1])?;
        let doubled = own.mul_scalar(2.0)?;
        own.index_add_(0, &index, &x[0])?;
        Ok(vec![doubled.add_scalar(1.0)?, own, former])
    };
    measured(&inputs, written_over);
}

#[test]
fn what_waits_takes_no_more_memory_than_its_results() {
    on_own_device(|| {
        let device = device();
        let (x, weight) = (random(&[256, 256], 44), random(&[256, 256], 45));
        let peak = |is_compiled: bool| {
            device.synchronize().unwrap();
            device.allocator().reset_peak_memory_stats();
            let work = || {
                let mut sums = Vec::new();
                for _ in 0..6 {
                    // A small result of large memory that dies: it does not wait for the end.
                    sums.push(x.matmul(&weight)?.sum(&[], false)?);
                }
                Ok(sums)
            };
            let sums = if is_compiled { compiled(work) } else { work() }.unwrap();
            device.synchronize().unwrap();
            drop(sums);
            device.max_memory_allocated() - device.memory_allocated()
        };
        let (eager, compiled) = (peak(false), peak(true));
        assert!(compiled <= eager + 256 * 256 * 4, "{compiled} bytes compiled, {eager} eager");
    });
}

#[test]
fn gradients_are_compiled_with_what_recorded_them() {
    let weight = random(&[48], 13).requires_grad_().unwrap();
    let x = random(&[20, 48], 14);
    let loss = |x: &Tensor| x.mul(&weight)?.tanh()?.mul_scalar(0.5)?.exp()?.sum(&[], false);
    loss(&x).unwrap().backward().unwrap();
    let expected = bits(&weight.grad().unwrap());
    weight.zero_grad();
    let y = compiled(|| loss(&x)).unwrap();
    let before = counters();
    y.backward().unwrap();
    let after = counters();
    assert_eq!(bits(&weight.grad().unwrap()), expected);
    let (loops, kernels) = (after.loops - before.loops, after.kernels - before.kernels);
    assert!(kernels < loops, "{loops} loops, {kernels} kernels");
}

#[test]
fn a_step_of_training_has_the_bits_of_the_eager_one() {
    let run = |is_compiled: bool| -> Result<Vec<u64>> {
        let weight = random(&[24, 24], 15).requires_grad_()?;
        let bias = random(&[24], 16).requires_grad_()?;
        for step in 0..3 {
            let x = random(&[16, 24], 17 + step);
            let step = || {
                let loss = x.matmul(&weight)?.add(&bias)?.gelu()?.softmax(-1)?.log()?.mean(&[], false)?;
                loss.backward()?;
                for parameter in [&weight, &bias] {
                    let gradient = parameter.grad().expect("it was used");
                    no_grad(|| parameter.sub_(&gradient.mul_scalar(0.1)?).map(drop))?;
                    parameter.zero_grad();
                }
                loss.item::<f32>()
            };
            if is_compiled {
                compiled(step)?
            } else {
                step()?
            };
        }
        Ok([bits(&weight), bits(&bias)].concat())
    };
    assert_eq!(run(true).unwrap(), run(false).unwrap());
}

#[test]
fn streams_events_and_records_of_use_come_after_the_loops() {
    on_own_device(|| {
        let device = device();
        let (own, side) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
        let x = random(&[1000], 20);
        device.synchronize().unwrap();
        let y = compiled(|| {
            let _own = own.make_current();
            let y = x.exp()?.add_scalar(1.0)?;
            let ready = Event::new();
            ready.record(&own)?;
            side.wait_event(&ready)?;
            let _side = side.make_current();
            y.record_use(&side);
            let z = y.mul_scalar(2.0)?.add(&y)?;
            own.wait_stream(&side)?;
            Ok(z)
        })
        .unwrap();
        device.synchronize().unwrap();
        let expected: Vec<f64> = values(&x)
            .iter()
            .map(|x| f64::from((*x as f32).exp() + 1.0))
            .map(|y| f64::from(y as f32 * 2.0 + y as f32))
            .collect();
        let found = values(&y);
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5 * b.abs()));
    });
}

#[test]
fn streams_that_load_compute_and_store_have_no_race() {
    Check::new().seeds(0..20).run(|gpu| {
        let device = gpu.device();
        let work = || -> Result<Vec<Tensor>> {
            let [load, own, store] = [(); 3].map(|()| Stream::new(device).unwrap());
            let weight = Tensor::full(&[8, 8], 0.5, DType::F32, device)?;
            [&load, &own, &store]
                .into_iter()
                .try_for_each(|stream| stream.wait_stream(&device.current_stream()))?;
            let mut stored = Vec::new();
            for step in 0..3 {
                let loaded = {
                    let _load = load.make_current();
                    Tensor::full(&[8, 8], f64::from(step), DType::F32, device)?.add_scalar(1.0)?
                };
                own.wait_stream(&load)?;
                let computed = {
                    let _own = own.make_current();
                    let gate = loaded.matmul(&weight)?.tanh()?;
                    gate.mul(&loaded.exp()?.matmul(&weight)?)?
                };
                loaded.record_use(&own);
                store.wait_stream(&own)?;
                {
                    let _store = store.make_current();
                    stored.push(computed.mul_scalar(2.0)?.add_scalar(1.0)?);
                }
                computed.record_use(&store);
            }
            device.current_stream().wait_stream(&store)?;
            Ok(stored)
        };
        let stored = compiled(work).unwrap();
        assert_eq!(stored.iter().map(values).collect::<Vec<_>>().len(), 3);
        device.synchronize().unwrap();
    });
}

#[test]
fn a_compiled_function_is_captured_and_its_kernels_are_replayed() {
    on_own_device(|| {
        let device = device();
        let (x, total) = (random(&[64], 25), random(&[64], 26));
        let start = values(&total);
        let own = Stream::new(&device).unwrap();
        device.synchronize().unwrap();
        let _own = own.make_current();
        let before = counters();
        let (graph, y) = Graph::capture(&device, CaptureOptions::default(), || {
            compiled(|| {
                total.add_(&x)?;
                x.exp()?.add(&total)?.mul_scalar(2.0)
            })
        })
        .unwrap();
        assert_eq!(counters().kernels - before.kernels, 1);
        for _ in 0..3 {
            graph.replay().unwrap();
        }
        own.synchronize().unwrap();
        let (total, y) = (values(&total), values(&y));
        for (place, x) in values(&x).into_iter().enumerate() {
            assert!((total[place] - (start[place] + 3.0 * x)).abs() < 1e-5);
            assert!((y[place] - 2.0 * (x.exp() + total[place])).abs() < 1e-4);
        }
    });
}

#[test]
fn temporary_memory_is_never_allocated_and_the_peak_is_no_higher() {
    on_own_device(|| {
        let device = device();
        let x = random(&[1 << 16], 21);
        let peak = |is_compiled: bool| {
            device.synchronize().unwrap();
            device.allocator().reset_peak_memory_stats();
            let work = || {
                let mut y = x.exp()?;
                for _ in 0..6 {
                    y = y.mul_scalar(1.01)?.add(&x)?;
                }
                Ok(y)
            };
            let y = if is_compiled { compiled(work) } else { work() }.unwrap();
            device.synchronize().unwrap();
            drop(y);
            device.max_memory_allocated() - device.memory_allocated()
        };
        let (eager, compiled) = (peak(false), peak(true));
        assert!(compiled <= eager / 2, "{compiled} bytes compiled, {eager} eager");
    });
}

#[test]
fn the_peak_is_known_before_and_is_what_is_measured() {
    type Function = fn(&Tensor) -> Result<Vec<Tensor>>;
    let functions: [Function; 4] = [
        |x| Ok(vec![x.exp()?.mul_scalar(2.0)?]),
        |x| Ok(vec![x.exp()?, x.sin()?.sum(&[0], true)?]),
        // What is between kernels is in the arena: columns of what was computed, and rows of it.
        |x| {
            let y = x.exp()?.softmax(0)?;
            let z = y.transpose(0, 1)?.softmax(0)?.mul(&y.sum(&[1], false)?)?;
            Ok(vec![z])
        },
        |x| {
            let (rows, columns) = (x.softmax(1)?, x.softmax(0)?);
            Ok(vec![rows.mul(&columns)?.softmax(0)?.add(&rows)?])
        },
    ];
    on_own_device(|| {
        let device = device();
        let x = random(&[48, 56], 27);
        let requested = |which: &str| {
            let name = format!("requested_bytes.all.{which}");
            let stats = device.allocator().memory_stats();
            stats.into_iter().find(|(known, _)| *known == name).expect("it is counted").1 as u64
        };
        let mut has_arena = false;
        for function in functions {
            for _ in 0..2 {
                device.synchronize().unwrap();
                device.allocator().reset_peak_memory_stats();
                let (before, segments) = (requested("current"), counters().segments);
                let results = compiled(|| function(&x)).unwrap();
                has_arena |= counters().planned_bytes > results[0].storage_bytes();
                if counters().segments == segments + 1 {
                    assert_eq!(requested("peak") - before, counters().planned_bytes);
                }
            }
        }
        assert!(has_arena);
    });
}

#[test]
fn what_is_computed_twice_is_computed_once() {
    let inputs = [random(&[30, 40], 28)];
    let before = counters().repeated;
    let twice = |x: &[Tensor]| {
        let one = x[0].mul_scalar(2.0)?.exp()?;
        let other = x[0].mul_scalar(2.0)?.exp()?;
        Ok(vec![one.mul(&other)?])
    };
    assert_eq!(measured(&inputs, twice).1, 1);
    assert_eq!(counters().repeated - before, 4, "two loops of two calls");
    // Other numbers, and drawn ones, are other computations.
    let other = |x: &[Tensor]| Ok(vec![x[0].mul_scalar(2.0)?.sub(&x[0].mul_scalar(3.0)?)?]);
    measured(&inputs, other);
    assert_eq!(counters().repeated - before, 4);
}

#[test]
fn a_new_size_is_planned_and_an_old_one_is_found() {
    let function = compile(|x: &[Tensor]| Ok(vec![x[0].exp()?.add_scalar(1.0)?.mul(&x[0])?]));
    let call = |rows: usize| {
        let before = counters().programs;
        let x = random(&[rows, 8], 22);
        let result = function.call(std::slice::from_ref(&x)).unwrap();
        let expected = x.exp().unwrap().add_scalar(1.0).unwrap().mul(&x).unwrap();
        assert_eq!(bits(&result[0]), bits(&expected));
        counters().programs - before
    };
    assert_eq!([3, 5, 3, 0, 1, 5, 0].map(call), [1, 1, 0, 1, 1, 0, 0]);
}

#[test]
fn kernels_that_are_compiled_at_the_same_time_run_in_their_order() {
    // Kernels that write what the next one reads, a reduction of few long rows, and two that are the same.
    let function = |x: &Tensor| {
        let part = |number: usize| x.narrow(0, 16 * number, 16);
        let y = part(0)?.exp()?.add(&part(1)?)?.cumsum(0)?.mul(&part(2)?)?;
        let total = x.reshape(&[64 * 1024])?.square()?.sum(&[], false)?;
        part(3)?.copy_(&y.softmax(-1)?.div(&total)?)?;
        Ok::<_, thalweg_runtime::Error>(vec![
            y.transpose(0, 1)?.tanh()?.sum(&[0], false)?,
            x.mul_scalar(2.0)?,
            total,
        ])
    };
    let run = |threads: usize| {
        let driver = SimDriver::new(SimConfig { devices: 1, ..SimConfig::default() }).unwrap();
        let environment = Environment { compile_threads: threads, ..Environment::default() };
        let device = Device::all_of(driver, &environment).unwrap().remove(0);
        let numbers: Vec<f32> = (0..64 * 1024).map(|place| (place % 97) as f32 / 50.0 - 1.0).collect();
        let x = Tensor::from_slice(&numbers, &[64, 1024], &device).unwrap();
        let results = compiled(|| function(&x)).unwrap();
        results.iter().chain([&x]).map(bits).collect::<Vec<_>>()
    };
    let alone = run(1);
    assert!([2, 8, 32].into_iter().all(|threads| run(threads) == alone));
}

#[test]
fn a_call_that_fails_leaves_a_state_that_works() {
    let (x, y) = (random(&[4], 23), random(&[3], 24));
    let failed = compile(|inputs: &[Tensor]| {
        inputs[0].add_scalar_(1.0)?;
        Ok(vec![inputs[0].exp()?.add(&inputs[1])?])
    });
    let before = values(&x);
    failed.call(&[x.clone(), y]).unwrap_err();
    assert_eq!(values(&x), before.iter().map(|x| f64::from(*x as f32 + 1.0)).collect::<Vec<_>>());
    assert!(!is_compiling());
}

/// Returns a layer with a norm, two products and an activation between them, twice.
fn layers(x: &Tensor, weights: &[Tensor; 4]) -> Result<Tensor> {
    let [scale, shift, up, down] = weights;
    let mut x = x.add(x)?;
    for _ in 0..2 {
        let inner = x.layer_norm(&[32], Some(scale), Some(shift), 1e-5)?.matmul(up)?;
        x = x.add(&inner.gelu()?.matmul(down)?)?;
    }
    Ok(x)
}

#[test]
fn saved_results_that_loops_compute_again_are_not_kept() {
    on_own_device(|| {
        let device = device();
        let x = random(&[96, 32], 41).requires_grad_().unwrap();
        let weights = [([32].as_slice(), 42), (&[32], 43), (&[32, 128], 44), (&[128, 32], 45)]
            .map(|(shape, seed)| random(shape, seed).requires_grad_().unwrap());
        let step = |recomputed: Option<u64>, writes: bool| {
            set_recomputed_bytes(recomputed);
            let before = counters().recomputed;
            let y = compiled(|| layers(&x, &weights)).unwrap();
            device.synchronize().unwrap();
            let kept = device.memory_allocated();
            if writes {
                // A parameter that is not saved is read by what is computed again: that comes before.
                no_grad(|| weights[1].add_scalar_(1.0)).unwrap();
            }
            let outcome = y.sum(&[], false).and_then(|loss| loss.backward());
            let leaves = weights.iter().chain([&x]);
            let gradients: Vec<_> = leaves.filter_map(|leaf| leaf.grad().map(|grad| bits(&grad))).collect();
            if writes {
                no_grad(|| weights[1].sub_scalar_(1.0)).unwrap();
            }
            weights.iter().chain([&x]).for_each(|leaf| leaf.set_grad(None).unwrap());
            set_recomputed_bytes(None);
            (outcome.is_ok(), gradients, kept, counters().recomputed - before)
        };
        for writes in [false, true] {
            let (kept_all, kept_few) = (step(Some(u64::MAX), writes), step(Some(1024), writes));
            assert_eq!((kept_all.0, &kept_all.1), (kept_few.0, &kept_few.1), "writes: {writes}");
            assert_eq!(kept_all.3, 0);
            // The outputs of two norms and two activations.
            assert!(kept_few.3 >= 4, "{} results are computed again", kept_few.3);
        }
    });
}

#[test]
fn results_that_a_kernel_completes_are_not_computed_again_from_their_start() {
    on_own_device(|| {
        let device = device();
        let x = random(&[64, 32], 51).requires_grad_().unwrap();
        let targets: Vec<i64> = (0..64).map(|row| row * 7 % 16).collect();
        let targets = Tensor::from_slice(&targets, &[64], &device).unwrap();
        // A loop fills the sums with zeros, and a kernel adds to them. What is saved is a function of the sums.
        let sums = || {
            let zeros = Tensor::zeros(&[16, 32], DType::F32, &device)?;
            zeros.index_add(0, &targets, &x)?.silu()?.matmul(&x.detach().t()?)
        };
        let step = |recomputed: u64| {
            set_recomputed_bytes(Some(recomputed));
            let loss = compiled(sums).unwrap();
            compiled(|| loss.sum(&[], false)).unwrap().backward().unwrap();
            set_recomputed_bytes(None);
            let gradient = bits(&x.grad().unwrap());
            x.set_grad(None).unwrap();
            gradient
        };
        assert_eq!(step(u64::MAX), step(0));
    });
}
