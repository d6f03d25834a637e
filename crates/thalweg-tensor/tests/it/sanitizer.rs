//! Findings of the sanitizer: of operators on views, of rows that data chooses, and the lines that they name. These tests run
//! only on the simulator.

use thalweg_ir::DType;
use thalweg_nn::functional;
use thalweg_nn::module::{Forward, Linear};
use thalweg_runtime::sim::{Check, Gpu, Problem};
use thalweg_runtime::{CaptureOptions, Graph, Result, Stream};
use thalweg_sanitizer::{Finding, FindingKind};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

fn on<T>(stream: &Stream, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _current = stream.make_current();
    work()
}

#[track_caller]
fn passes(program: impl Fn(&Gpu) -> Result<()>) {
    Check::new().seeds(0..6).run(program);
}

/// Runs a program and returns its first finding, which must be of this kind.
#[track_caller]
fn finds(kind: FindingKind, program: impl Fn(&Gpu) -> Result<()>) -> Finding {
    let failure = Check::new().seeds(0..1).find(program).expect_err("the program has a bug");
    let Problem::Finding(finding) = failure.problem() else { panic!("{failure}") };
    assert_eq!(finding.kind, kind, "{failure}");
    Finding::clone(finding)
}

/// A part of a tensor.
type Part<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;

/// Two streams write parts of one tensor, each after it was made and before it is read.
fn two_writers(gpu: &Gpu, shape: &[usize], parts: [Part<'_>; 2]) -> Result<()> {
    let device = gpu.device();
    let main = device.current_stream();
    let whole = Tensor::zeros(shape, DType::F32, device)?;
    let sides = [Stream::new(device)?, Stream::new(device)?];
    for (side, part) in sides.iter().zip(parts) {
        side.wait_stream(&main)?;
        on(side, || {
            let part = part(&whole)?;
            part.copy_(&Tensor::ones(part.shape(), DType::F32, device)?).map(drop)
        })?;
    }
    sides.iter().try_for_each(|side| main.wait_stream(side))?;
    whole.to_vec::<f32>()?;
    Ok(())
}

#[test]
fn columns_of_many_rows_meet_only_where_they_are_the_same() {
    let columns = |first: usize| move |whole: &Tensor| whole.narrow(1, first, 2);
    passes(|gpu| two_writers(gpu, &[5000, 4], [&columns(0), &columns(2)]));
    let finding = finds(FindingKind::Race, |gpu| two_writers(gpu, &[5000, 4], [&columns(0), &columns(1)]));
    assert!(finding.is_certain, "{finding}");
    assert_eq!(finding.range.1, 4, "one column is in both: {finding}");
}

#[test]
fn blocks_of_three_dimensions_meet_only_where_they_are_the_same() {
    let block = |first: usize| move |whole: &Tensor| whole.narrow(1, 0, 4)?.narrow(2, first, 4);
    passes(|gpu| two_writers(gpu, &[4, 8, 8], [&block(0), &block(4)]));
    let finding = finds(FindingKind::Race, |gpu| two_writers(gpu, &[4, 8, 8], [&block(0), &block(3)]));
    assert!(finding.is_certain, "{finding}");
}

#[test]
fn batch_and_heads_are_split_over_streams() {
    // (batch, tokens, heads, features): half of the heads of half of the batch, each.
    let part =
        |batch: usize, head: usize| move |whole: &Tensor| whole.narrow(0, batch, 2)?.narrow(2, head, 2);
    passes(|gpu| two_writers(gpu, &[4, 6, 4, 8], [&part(0, 0), &part(0, 2)]));
    passes(|gpu| two_writers(gpu, &[4, 6, 4, 8], [&part(0, 1), &part(2, 1)]));
    finds(FindingKind::Race, |gpu| two_writers(gpu, &[4, 6, 4, 8], [&part(0, 0), &part(1, 1)]));
}

#[test]
fn rows_and_columns_of_one_matrix_meet() {
    let row = |whole: &Tensor| whole.narrow(0, 3, 1);
    let column = |whole: &Tensor| whole.narrow(1, 2, 1);
    finds(FindingKind::Race, |gpu| two_writers(gpu, &[64, 8], [&column, &row]));
    let transposed = |whole: &Tensor| whole.transpose(0, 1)?.narrow(0, 5, 2);
    passes(|gpu| two_writers(gpu, &[64, 8], [&column, &transposed]));
}

fn empty(gpu: &Gpu, shape: &[usize]) -> Result<Tensor> {
    Tensor::empty(shape, DType::F32, gpu.device())
}

fn indices(gpu: &Gpu, rows: &[i64]) -> Result<Tensor> {
    Tensor::from_slice(rows, &[rows.len()], gpu.device())
}

#[test]
fn unwritten_memory_is_not_read_through_any_view() {
    let uninitialised = |program: &dyn Fn(&Gpu) -> Result<()>| finds(FindingKind::Uninitialised, program);
    uninitialised(&|gpu| empty(gpu, &[4, 8, 8])?.narrow(1, 0, 4)?.narrow(2, 0, 4)?.exp().map(drop));
    passes(|gpu| {
        let whole = empty(gpu, &[4, 8, 8])?;
        let part = whole.narrow(1, 0, 4)?.narrow(2, 0, 4)?;
        part.copy_(&Tensor::ones(&[4, 4, 4], DType::F32, gpu.device())?)?;
        part.exp().map(drop)
    });
    let column = |gpu: &Gpu, written: usize, read: usize| {
        let whole = empty(gpu, &[5000, 4])?;
        let ones = Tensor::ones(&[5000, 1], DType::F32, gpu.device())?;
        whole.narrow(1, written, 1)?.copy_(&ones)?;
        whole.narrow(1, read, 1)?.exp().map(drop)
    };
    uninitialised(&|gpu| column(gpu, 0, 1));
    passes(|gpu| column(gpu, 1, 1));
}

#[test]
fn a_table_of_which_no_row_was_written_is_not_read() {
    finds(FindingKind::Uninitialised, |gpu| {
        functional::embedding(&indices(gpu, &[1, 2])?, &empty(gpu, &[8, 4])?, None).map(drop)
    });
    passes(|gpu| {
        let table = empty(gpu, &[8, 4])?;
        table.narrow(0, 1, 2)?.copy_(&Tensor::ones(&[2, 4], DType::F32, gpu.device())?)?;
        functional::embedding(&indices(gpu, &[1, 2])?, &table, None).map(drop)
    });
}

#[test]
fn more_rows_are_read_than_index_copy_has_written() {
    let program = |gpu: &Gpu, rows: usize| {
        let whole = empty(gpu, &[8, 4])?;
        let source = Tensor::ones(&[2, 4], DType::F32, gpu.device())?;
        whole.index_copy_(0, &indices(gpu, &[1, 5])?, &source)?;
        whole.narrow(0, 1, rows)?.exp().map(drop)
    };
    finds(FindingKind::Uninitialised, |gpu| program(gpu, 7));
    passes(|gpu| program(gpu, 1));
}

/// Returns the first finding under each of several schedules: as late as possible, as early as possible, alternating, by priorities,
/// at random.
#[track_caller]
fn always_finds(kind: FindingKind, program: impl Fn(&Gpu) -> Result<()>) {
    for seed in 0..8 {
        let check = Check::new().seeds(seed..seed + 1).without_shrinking();
        let failure = check.find(&program).expect_err("the program has a bug");
        let Problem::Finding(finding) = failure.problem() else { panic!("seed {seed}: {failure}") };
        assert!(finding.kind == kind && finding.is_certain, "seed {seed}: {failure}");
    }
}

/// Checks that nothing is found, and that nothing is suspected, under each of those schedules.
#[track_caller]
fn always_passes(program: impl Fn(&Gpu) -> Result<()>) {
    Check::new().seeds(0..8).deny_possible_races().run(program);
}

/// Work on a table.
type Work<'a> = &'a dyn Fn(&Tensor) -> Result<()>;

/// Two streams do work on one table, each after it was made and before it is read.
fn two_on_a_table(gpu: &Gpu, works: [Work<'_>; 2]) -> Result<()> {
    let device = gpu.device();
    let main = device.current_stream();
    let table = Tensor::zeros(&[8, 4], DType::F32, device)?;
    let sides = [Stream::new(device)?, Stream::new(device)?];
    for (side, work) in sides.iter().zip(works) {
        side.wait_stream(&main)?;
        on(side, || work(&table))?;
    }
    sides.iter().try_for_each(|side| main.wait_stream(side))?;
    table.to_vec::<f32>().map(drop)
}

/// Writes rows of a table.
fn copy_rows(table: &Tensor, rows: &[i64]) -> Result<()> {
    let index = Tensor::from_slice(rows, &[rows.len()], table.device())?;
    table.index_copy_(0, &index, &Tensor::ones(&[rows.len(), 4], DType::F32, table.device())?)
}

/// Reads rows of a table.
fn look_up(table: &Tensor, rows: &[i64]) -> Result<()> {
    let index = Tensor::from_slice(rows, &[rows.len()], table.device())?;
    functional::embedding(&index, table, None).map(drop)
}

#[test]
fn rows_that_data_chooses_race_only_where_they_are_the_same() {
    let copy = |rows: &'static [i64]| move |table: &Tensor| copy_rows(table, rows);
    let look_up = |rows: &'static [i64]| move |table: &Tensor| look_up(table, rows);
    let fill = |first: usize| {
        move |table: &Tensor| {
            let ones = Tensor::ones(&[2, 4], DType::F32, table.device())?;
            table.narrow(0, first, 2)?.copy_(&ones).map(drop)
        }
    };
    let race = FindingKind::Race;
    always_passes(|gpu| two_on_a_table(gpu, [&copy(&[1, 5]), &copy(&[0, 6, 2])]));
    always_finds(race, |gpu| two_on_a_table(gpu, [&copy(&[1, 5]), &copy(&[0, 5, 2])]));
    always_passes(|gpu| two_on_a_table(gpu, [&copy(&[1, 5]), &look_up(&[6, 0, 6])]));
    always_finds(race, |gpu| two_on_a_table(gpu, [&copy(&[1, 5]), &look_up(&[6, 1])]));
    always_passes(|gpu| two_on_a_table(gpu, [&look_up(&[1, 5]), &look_up(&[6, 1])]));
    // Together with rows that are known.
    always_passes(|gpu| two_on_a_table(gpu, [&fill(0), &look_up(&[6])]));
    always_finds(race, |gpu| two_on_a_table(gpu, [&fill(0), &look_up(&[6, 1])]));
    always_passes(|gpu| two_on_a_table(gpu, [&look_up(&[6]), &fill(4)]));
    always_finds(race, |gpu| two_on_a_table(gpu, [&look_up(&[6]), &fill(5)]));
}

#[test]
fn a_row_that_index_copy_leaves_out_is_not_read() {
    let program = |gpu: &Gpu, read: i64| {
        let table = empty(gpu, &[8, 4])?;
        copy_rows(&table, &[0, 1, 2, 3, 5, 6, 7])?;
        table.narrow(0, read as usize, 1)?.exp()?;
        look_up(&table, &[read])
    };
    always_finds(FindingKind::Uninitialised, |gpu| program(gpu, 4));
    always_passes(|gpu| program(gpu, 5));
    // By a look-up only, and in a part that was written in another way.
    always_finds(FindingKind::Uninitialised, |gpu| {
        let table = empty(gpu, &[8, 4])?;
        table.narrow(0, 0, 6)?.copy_(&Tensor::ones(&[6, 4], DType::F32, gpu.device())?)?;
        look_up(&table, &[1, 6])
    });
}

#[test]
fn a_reader_of_a_row_that_is_copied_to_has_to_wait() {
    let program = |gpu: &Gpu, read: usize, waits: bool| {
        let device = gpu.device();
        let (main, side) = (device.current_stream(), Stream::new(device)?);
        let table = Tensor::zeros(&[8, 4], DType::F32, device)?;
        side.wait_stream(&main)?;
        copy_rows(&table, &[3])?;
        if waits {
            side.wait_stream(&main)?;
        }
        on(&side, || table.narrow(0, read, 1)?.exp())?.record_stream(&main);
        table.record_stream(&side);
        main.wait_stream(&side)
    };
    always_finds(FindingKind::Race, |gpu| program(gpu, 3, false));
    always_passes(|gpu| program(gpu, 4, false));
    always_passes(|gpu| program(gpu, 3, true));
}

#[test]
fn gradients_of_a_table_and_sums_at_indices_are_ordered() {
    let program = |gpu: &Gpu, waits: bool| {
        let device = gpu.device();
        let (main, side) = (device.current_stream(), Stream::new(device)?);
        let table = Tensor::ones(&[8, 4], DType::F32, device)?.requires_grad_()?;
        let summed = functional::embedding(&indices(gpu, &[1, 5, 1])?, &table, None)?.sum(&[], false)?;
        let at = Tensor::from_slice(&[1i64, 5, 1], &[3, 1], device)?.expand(&[3, 4])?;
        let added = table.detach().scatter_add(0, &at, &Tensor::ones(&[3, 4], DType::F32, device)?)?;
        side.wait_stream(&main)?;
        summed.backward()?;
        let gradient = table.grad().expect("it is a leaf");
        let more = added.scatter_add(0, &at, &Tensor::ones(&[3, 4], DType::F32, device)?)?;
        if waits {
            side.wait_stream(&main)?;
        }
        // Rows 2 and 3 keep their initial values.
        let seen = on(&side, || gradient.narrow(0, 2, 1)?.add(&more.narrow(0, 3, 1)?))?;
        [&gradient, &more].iter().for_each(|tensor| tensor.record_stream(&side));
        main.wait_stream(&side)?;
        assert_eq!(seen.to_vec::<f32>()?, [1.0; 4]);
        Ok(())
    };
    always_passes(|gpu| program(gpu, true));
    let failure = Check::new().seeds(0..1).find(|gpu| program(gpu, false));
    assert!(failure.is_err(), "what the rows began with is written by the other stream, too");
}

#[test]
fn rows_that_will_never_be_known_may_overlap_and_the_report_says_so() {
    // In a graph: each launch may touch other rows.
    let program = |gpu: &Gpu, rows: usize| -> Result<()> {
        let device = gpu.device();
        let (main, side) = (device.current_stream(), Stream::new(device)?);
        let table = Tensor::zeros(&[8, 4], DType::F32, device)?;
        let index = indices(gpu, &[6])?;
        let look_up = || functional::embedding(&index, &table, None);
        let (graph, _rows) = Graph::capture(device, CaptureOptions::default(), look_up)?;
        side.wait_stream(&main)?;
        on(&side, || {
            table.narrow(0, 0, rows)?.copy_(&Tensor::ones(&[rows, 4], DType::F32, device)?).map(drop)
        })?;
        graph.replay()?;
        main.wait_stream(&side)
    };
    let check = || Check::new().seeds(0..1);
    let summary = check().find(|gpu| program(gpu, 2)).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(summary.possible_races, 1, "row 6 is not among the two that are written, and nothing says so");
    let failure = check().deny_possible_races().find(|gpu| program(gpu, 2)).unwrap_err();
    let Problem::Finding(finding) = failure.problem() else { panic!("{failure}") };
    assert!(!finding.is_certain);
    assert!(finds(FindingKind::Race, |gpu| program(gpu, 8)).is_certain, "whatever row it is, it is written");
    let text = finding.to_string();
    assert!(text.contains("which they may both touch") && text.contains("reads some of"), "{text}");
}

#[test]
fn a_backward_kernel_is_named_with_the_call_of_backward() {
    let line = std::cell::Cell::new(0);
    let finding = finds(FindingKind::Race, |gpu| {
        let device = gpu.device();
        let side = Stream::new(device)?;
        side.set_name("side");
        let weight = Tensor::ones(&[64], DType::F32, device)?.requires_grad_()?;
        let squares = weight.square()?;
        let gradient = on(&side, || Tensor::full(&[64], 2.0, DType::F32, device))?;
        line.set(line!() + 1);
        squares.backward_with(&gradient)
    });
    let text = finding.to_string();
    let within = finding.second.within.expect("it is part of the backward pass");
    assert_eq!((within.operator, within.location.expect("known").line), ("backward", line.get()), "{text}");
    assert!(finding.advice.contains("before `backward` at"), "{text}");
    assert!(finding.advice.contains("wait_stream(&side)"), "streams have names: {text}");
}

#[test]
fn a_modules_work_is_of_the_line_that_calls_it() {
    let lines = std::cell::Cell::new([0; 2]);
    let check = |gpu: &Gpu| {
        let device = gpu.device();
        let side = Stream::new(device)?;
        let mut generator = Generator::new(1);
        let layers = [Linear::new(4, 4, &mut generator, device)?, Linear::new(4, 4, &mut generator, device)?];
        let x = on(&side, || Tensor::ones(&[2, 4], DType::F32, device))?;
        let y = on(&side, || Tensor::ones(&[2, 4], DType::F32, device))?;
        lines.set([line!() + 1, line!() + 2]);
        layers[0].forward(&x)?;
        layers[1].forward(&y)?;
        device.synchronize()
    };
    let finding = finds(FindingKind::Race, check);
    let at = finding.second.site.location.expect("known");
    assert_eq!((at.file.ends_with("sanitizer.rs"), at.line), (true, lines.get()[0]), "{finding}");
    let made = &finding.streams.iter().find(|(name, _)| name.starts_with("stream")).expect("it was made").1;
    assert!(made.to_string().contains("`Stream::new` at"), "{finding}");
}

#[test]
fn the_wait_that_was_no_use_is_named() {
    let (early, elsewhere) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    // Before the work that it should be for.
    let finding = finds(FindingKind::Race, |gpu| {
        let device = gpu.device();
        let (main, side) = (device.current_stream(), Stream::new(device)?);
        let x = on(&side, || Tensor::zeros(&[64], DType::F32, device))?;
        early.set(line!() + 1);
        main.wait_stream(&side)?;
        on(&side, || x.copy_(&Tensor::ones(&[64], DType::F32, device)?).map(drop))?;
        x.to_vec::<f32>().map(drop)
    });
    assert!(
        finding.missing.contains(&format!("(by `wait_stream` at {}:{})", file!(), early.get())),
        "{finding}"
    );
    // For another stream.
    let finding = finds(FindingKind::Race, |gpu| {
        let device = gpu.device();
        let (main, side, other) = (device.current_stream(), Stream::new(device)?, Stream::new(device)?);
        let x = on(&side, || Tensor::zeros(&[64], DType::F32, device))?;
        elsewhere.set(line!() + 1);
        main.wait_stream(&other)?;
        x.to_vec::<f32>().map(drop)
    });
    let wait = format!("Its last wait, `wait_stream` at {}:{}, was for stream 2", file!(), elsewhere.get());
    assert!(finding.missing.contains(&wait), "{finding}");
}

#[test]
fn a_drop_is_named_with_its_line() {
    let line = std::cell::Cell::new(0);
    let finding = finds(FindingKind::MissingRecord, |gpu| {
        let device = gpu.device();
        let (main, side) = (device.current_stream(), Stream::new(device)?);
        let x = Tensor::zeros(&[64], DType::F32, device)?;
        side.wait_stream(&main)?;
        let y = on(&side, || x.exp())?;
        line.set(line!() + 1);
        drop(x);
        main.wait_stream(&side)?;
        drop(y);
        Ok(())
    });
    let at = finding.second.site.location.expect("the stack tells it");
    assert!(
        at.file.ends_with("sanitizer.rs") && at.line.abs_diff(line.get()) < 2,
        "line {}: {finding}",
        line.get()
    );
}
