//! Anomaly mode, and `gradcheck` with wrong gradients.

use thalweg_ir::DType;
use thalweg_runtime::Result;
use thalweg_tensor::autograd::{
    BackwardOptions, GradcheckOptions, detect_anomaly, gradcheck, gradgradcheck, gradients_with,
    is_anomaly_enabled, set_detect_anomaly,
};
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{device, random, tensor, values};

#[track_caller]
fn assert_refused<T>(result: Result<T>, words: &str) -> String {
    let error = result.err().expect("an error");
    assert!(error.is_invalid_argument() && error.to_string().contains(words), "{error}");
    error.to_string()
}

fn point() -> Tensor {
    random(&[2, 2], 3).requires_grad_().unwrap()
}

/// Twice x, with this factor for its gradient: a hook imitates a wrong backward function.
fn doubled(x: &Tensor, factor: f64) -> Result<Vec<Tensor>> {
    let x = x.mul_scalar(1.0)?;
    if x.requires_grad() {
        x.register_hook(move |gradient| gradient.mul_scalar(factor).map(Some))?;
    }
    Ok(vec![x.mul_scalar(2.0)?])
}

#[test]
fn a_right_gradient_passes_and_a_wrong_one_does_not() {
    let options = GradcheckOptions::default();
    let product = |inputs: &[Tensor]| Ok(vec![inputs[0].matmul(&inputs[1])?, inputs[1].sin()?]);
    gradcheck(product, &[point(), point()], options).unwrap();
    gradcheck(product, &[point(), point().detach()], options).unwrap();
    gradgradcheck(product, &[point(), point()], None, options).unwrap();
    gradcheck(|inputs| doubled(&inputs[0], 1.0), &[point()], options).unwrap();
    let error = assert_refused(
        gradcheck(|inputs| doubled(&inputs[0], 1.5), &[point()], options),
        "Jacobian mismatch for output 0 with respect to input 0",
    );
    let analytical =
        "analytical:[[3.0, 0.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0], [0.0, 0.0, 0.0, 3.0]]";
    assert!(error.contains(analytical), "{error}");
    // Within the tolerances, relative or absolute, and just outside.
    let near = |atol: f64, rtol: f64| {
        let options = GradcheckOptions { atol, rtol, ..options };
        gradcheck(|inputs| doubled(&inputs[0], 1.001), &[point()], options)
    };
    near(0.0021, 0.0).unwrap();
    near(1e-8, 0.0011).unwrap();
    assert_refused(near(0.0019, 0.0), "Jacobian mismatch");
    assert_refused(near(1e-8, 0.0009), "Jacobian mismatch");
}

#[test]
fn gradients_that_are_missing_or_change_are_found() {
    let options = GradcheckOptions::default();
    assert_refused(
        gradcheck(|inputs| Ok(vec![inputs[0].detach().mul_scalar(2.0)?]), &[point()], options),
        "Numerical gradient for function expected to be zero",
    );
    let half = |inputs: &[Tensor]| Ok(vec![inputs[0].detach().mul(&inputs[0])?]);
    assert_refused(
        gradcheck(half, &[point()], options),
        "Jacobian mismatch for output 0 with respect to input 0",
    );
    // Its gradient differs from pass to pass, by less than the tolerances of its value.
    let drifting = |inputs: &[Tensor]| {
        let x = inputs[0].mul_scalar(1.0)?;
        let passes = std::sync::atomic::AtomicU32::new(0);
        x.register_hook(move |gradient| {
            let pass = passes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            gradient.mul_scalar(1.0 + f64::from(pass) * 1e-7).map(Some)
        })?;
        Ok(vec![x])
    };
    assert_refused(gradcheck(drifting, &[point()], options), "Backward is not reentrant");
    gradcheck(drifting, &[point()], GradcheckOptions { nondet_tol: 1e-5, ..options }).unwrap();
    // The first gradient is right, and its own gradient is lost.
    let once = |inputs: &[Tensor]| {
        let [x, kept] = [inputs[0].mul_scalar(1.0)?, inputs[0].detach()];
        x.register_hook(move |gradient| gradient.mul(&kept)?.mul_scalar(3.0).map(Some))?;
        let value = no_grad(|| inputs[0].square()?.mul_scalar(1.5)?.sub(&inputs[0]))?;
        Ok(vec![x.add(&value)?])
    };
    gradcheck(once, &[point()], options).unwrap();
    assert_refused(gradgradcheck(once, &[point()], None, options), "Jacobian mismatch");
}

#[test]
fn inputs_that_cannot_be_checked_are_refused() {
    let options = GradcheckOptions::default();
    let same = |inputs: &[Tensor]| Ok(vec![inputs[0].clone()]);
    assert_refused(
        gradcheck(same, &[point().detach()], options),
        "gradcheck expects at least one input tensor to require gradient",
    );
    let wide = random(&[1, 2], 1).requires_grad_().unwrap().expand(&[3, 2]).unwrap();
    assert_refused(gradcheck(same, &[wide], options), "The 0th input has a dimension with stride 0.");
}

/// Returns the line of the call that is the only one of this name in this file.
fn line_of(text: &str) -> String {
    let line =
        include_str!("gradcheck.rs").lines().position(|line| line.contains(text)).expect("it is there");
    format!("gradcheck.rs:{}:", line + 1)
}

#[test]
fn a_nan_in_a_backward_pass_names_the_line_of_the_forward_call() {
    let x = tensor(&[0.0], &[1], DType::F32).requires_grad_().unwrap();
    let run = || {
        let root = x.sqrt()?; // the root
        root.mul_scalar(0.0)?.backward()
    };
    run().unwrap();
    assert!(values(&x.grad().unwrap())[0].is_nan());
    x.zero_grad();
    let words = "Function 'SqrtBackward0' returned nan values in its 0th output.";
    let error = assert_refused(detect_anomaly(run), words);
    assert!(error.contains(&line_of("// the root")), "{error}");
    assert!(x.grad().is_none() && !is_anomaly_enabled());
    set_detect_anomaly(true, false, run).unwrap();
    detect_anomaly(|| set_detect_anomaly(false, true, run)).unwrap();
    // Recorded outside: there is no line.
    let y = x.sqrt().unwrap().mul_scalar(0.0).unwrap();
    assert_refused(detect_anomaly(|| y.backward()), "no forward pass information is available");
}

#[test]
fn a_node_of_every_kind_names_its_line() {
    let x = tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2], DType::F32).requires_grad_().unwrap();
    let line = |run: &dyn Fn() -> Result<Tensor>| {
        let y = detect_anomaly(run).unwrap();
        y.grad_fn().unwrap().register_hook(|_, _| Err(thalweg_runtime::Error::invalid("on purpose")));
        assert_refused(set_detect_anomaly(true, false, || y.sum(&[], false)?.backward()), "on purpose")
    };
    let derived = line(&|| x.exp()); // a loop
    assert!(derived.contains(&line_of("// a loop")), "{derived}");
    let formula = line(&|| x.flip(&[0])); // a formula
    assert!(formula.contains(&line_of("// a formula")), "{formula}");
    let own = line(&|| x.matmul(&x)); // a node of its own
    assert!(own.contains(&line_of("// a node of its own")), "{own}");
    let view = line(&|| x.transpose(0, 1)); // a view
    assert!(view.contains(&line_of("// a view")), "{view}");
    let composite = line(&|| x.logsumexp(&[1], false)); // a composite
    assert!(composite.contains(&line_of("// a composite")), "{composite}");
}

#[test]
fn the_gradient_of_a_gradient_names_the_line_that_induced_it() {
    let x = tensor(&[0.0], &[1], DType::F32).requires_grad_().unwrap();
    let one = Tensor::ones(&[1], DType::F32, &device()).unwrap();
    let error = detect_anomaly(|| -> Result<()> {
        let y = x.pow_scalar(1.5)?; // the power
        let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
        let first = gradients_with(&[y], &[Some(one.clone())], std::slice::from_ref(&x), options)?;
        first[0].clone().expect("it depends on x").mul_scalar(0.0)?.backward()
    });
    let error = assert_refused(error, "returned nan values");
    assert!(
        error.contains("induced by the backward pass of") && error.contains(&line_of("// the power")),
        "{error}"
    );
}
