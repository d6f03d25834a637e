//! Correct programs over several streams, under every schedule, with the sanitizer. These run only on the simulator, which
//! chooses the schedules.

use thalweg_ir::DType;
use thalweg_nn::optim::{Adam, AdamOptions, GradientScaler, GradientScalerOptions};
use thalweg_runtime::sim::Check;
use thalweg_runtime::{Device, Result, Stream};
use thalweg_tensor::Tensor;

fn on<T>(stream: &Stream, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _current = stream.make_current();
    work()
}

fn ones(device: &Device) -> Result<Tensor> {
    Tensor::ones(&[256], DType::F32, device)
}

/// Reuses memory at once, if possible: memory that was freed too early is overwritten.
fn churn(device: &Device) -> Result<()> {
    (0..4).try_for_each(|_| Tensor::full(&[256], 1000.0, DType::F32, device).map(drop))
}

#[test]
fn gradients_accumulate_over_two_side_streams() {
    Check::new().seeds(0..300).run(|gpu| -> Result<()> {
        let device = gpu.device();
        let main = device.current_stream();
        let weight = ones(device)?.requires_grad_()?;
        for side in [Stream::new(device)?, Stream::new(device)?] {
            side.wait_stream(&main)?;
            let loss = on(&side, || weight.square()?.sum(&[], false))?;
            main.wait_stream(&side)?;
            loss.backward()?;
            on(&side, || churn(device))?;
        }
        churn(device)?;
        assert_eq!(weight.grad().expect("a leaf").to_vec::<f32>()?, [4.0; 256]);
        Ok(())
    });
}

#[test]
fn what_was_saved_stays_until_backward_has_read_it() {
    Check::new().run(|gpu| -> Result<()> {
        let device = gpu.device();
        let (main, side) = (device.current_stream(), Stream::new(device)?);
        let weight = ones(device)?.requires_grad_()?;
        let factor = Tensor::full(&[256], 3.0, DType::F32, device)?;
        side.wait_stream(&main)?;
        let loss = on(&side, || weight.mul(&factor)?.sum(&[], false))?;
        // The only use that the program knows: the forward pass.
        factor.record_use(&side);
        drop(factor);
        main.wait_stream(&side)?;
        loss.backward()?;
        churn(device)?;
        assert_eq!(weight.grad().expect("a leaf").to_vec::<f32>()?, [3.0; 256]);
        Ok(())
    });
}

#[test]
fn a_write_in_place_is_read_back_across_streams() {
    Check::new().run(|gpu| -> Result<()> {
        let device = gpu.device();
        let (main, side) = (device.current_stream(), Stream::new(device)?);
        let weight = ones(device)?.requires_grad_()?;
        side.wait_stream(&main)?;
        let loss = on(&side, || {
            let whole = Tensor::zeros(&[2, 256], DType::F32, device)?;
            whole.select(0, 1)?.copy_(&weight)?;
            whole.square()?.sum(&[], false)
        })?;
        main.wait_stream(&side)?;
        loss.backward()?;
        churn(device)?;
        assert_eq!(weight.grad().expect("a leaf").to_vec::<f32>()?, [2.0; 256]);
        Ok(())
    });
}

#[test]
fn an_optimizer_may_step_on_another_stream_and_be_dropped() {
    Check::new().run(|gpu| -> Result<()> {
        let device = gpu.device();
        let (main, side) = (device.current_stream(), Stream::new(device)?);
        let weight = ones(device)?.requires_grad_()?;
        let scaler = GradientScaler::new(GradientScalerOptions::default(), device)?;
        let optimizer = Adam::new(vec![weight.clone()], AdamOptions::default())?;
        scaler.scale(&weight.square()?.sum(&[], false)?)?.backward()?;
        side.wait_stream(&main)?;
        on(&side, || {
            scaler.step(&optimizer)?;
            scaler.update()
        })?;
        optimizer.zero_grad();
        drop((optimizer, scaler));
        churn(device)?;
        main.wait_stream(&side)?;
        let after = weight.to_vec::<f32>()?;
        assert!(after.iter().all(|value| (value - 0.999).abs() < 1e-5), "{}", after[0]);
        Ok(())
    });
}
