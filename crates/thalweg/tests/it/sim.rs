//! The worked example of `docs/simulator.md`: a prefetcher with the typical bug, and without it.

use thalweg::sanitizer::FindingKind;
use thalweg::sim::{Check, Gpu, Problem};
use thalweg::{DType, Result, Stream, Tensor};

/// The way in which the main stream waits for a batch from the copy stream.
#[derive(Clone, Copy, PartialEq)]
enum HandOver {
    /// No synchronisation at all.
    Unordered,
    /// The main stream waits; the memory stays the copy stream's.
    Waits,
    /// The main stream waits, and its use is recorded for the copy stream's memory.
    WaitsAndRecords,
}

/// Loads each batch on a separate stream while the main stream works on the previous one.
fn train(gpu: &Gpu, hand_over: HandOver) -> Result<()> {
    let device = gpu.device();
    let copies = Stream::new(device)?;
    let load = |number: usize| {
        let _current = copies.make_current();
        Tensor::from_slice(&[number as f32; 256], &[256], device)
    };
    let mut total = Tensor::zeros(&[256], DType::F32, device)?;
    let mut next = load(0)?;
    for number in 1..4 {
        let batch = next;
        let main = device.current_stream();
        if hand_over != HandOver::Unordered {
            main.wait_stream(&copies)?;
        }
        total = total.add(&batch.square()?)?;
        if hand_over == HandOver::WaitsAndRecords {
            batch.record_use(&main);
        }
        drop(batch);
        next = load(number)?;
    }
    assert!(hand_over == HandOver::Unordered || total.to_vec::<f32>()?[0] == 5.0);
    Ok(())
}

fn kind(hand_over: HandOver) -> Option<FindingKind> {
    let failure = Check::new().find(|gpu| train(gpu, hand_over)).err()?;
    println!("{failure}\n");
    match failure.problem() {
        Problem::Finding(finding) => Some(finding.kind),
        problem => panic!("{problem}"),
    }
}

#[test]
fn a_prefetcher_must_wait_and_record() {
    assert_eq!(kind(HandOver::Unordered), Some(FindingKind::Race));
    assert_eq!(kind(HandOver::Waits), Some(FindingKind::MissingRecord));
    assert_eq!(kind(HandOver::WaitsAndRecords), None);
}

#[test]
fn a_training_step_is_ordered_under_every_schedule_and_comes_again() {
    use thalweg::module::{Forward, Linear, Module};
    use thalweg::optim::{Adam, AdamOptions};
    use thalweg::random::Generator;
    let program = |gpu: &Gpu| -> Result<()> {
        let device = gpu.device();
        let layer = Linear::new(16, 4, &mut Generator::new(gpu.seed()), device)?;
        let adam = Adam::new(layer.parameters(), AdamOptions::default())?;
        let side = Stream::new(device)?;
        for _ in 0..2 {
            let x = Tensor::ones(&[8, 16], DType::F32, device)?;
            side.wait_stream(&device.current_stream())?;
            let loss = {
                let _current = side.make_current();
                layer.forward(&x)?.square()?.mean(&[], false)?
            };
            x.record_stream(&side);
            device.current_stream().wait_stream(&side)?;
            loss.backward()?;
            adam.step()?;
            adam.zero_grad();
        }
        Ok(())
    };
    let summary = Check::new().seeds(0..20).run(program);
    assert_eq!(Check::new().seeds(0..20).run(program), summary, "the same seeds do the same");
}
