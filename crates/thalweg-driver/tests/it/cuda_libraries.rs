//! The CUDA driver on any machine that runs the tests: most have no GPU, and some have no compiler.

use std::path::PathBuf;
use std::sync::Arc;

use thalweg_driver::cuda::{
    Architecture, AvailabilityReason, CompileOptions, CudaDriver, Library, Nvrtc, SearchEnvironment,
    availability, availability_with, locate,
};
use thalweg_driver::{Code, ComputeCapability, Driver};

const SOURCE: &str = r#"
extern "C" __global__ void scale(float *target, const float *source, float factor, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) target[i] = source[i] * factor + 1.0f;
}
"#;

/// Returns the compiler; otherwise prints why the test is skipped.
fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::load(&SearchEnvironment::from_process()) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            assert_eq!(error.code(), Code::LibraryMissing, "{error}");
            println!("skipped: {error}");
            None
        }
    }
}

#[test]
fn opening_without_a_driver_says_where_it_was_looked_for() {
    match CudaDriver::open() {
        Ok(driver) => {
            assert!(driver.device_count() > 0);
            assert!(Arc::ptr_eq(&driver, &CudaDriver::open().expect("it was open")), "one driver a process");
        }
        Err(error) if error.is_library_missing() => {
            let text = error.to_string();
            for part in ["cuInit", "libcuda.so.1", "install the driver", "THALWEG_CUDA_LIBRARY"] {
                assert!(text.contains(part), "{part} is not in: {text}");
            }
            assert_eq!(CudaDriver::open().expect_err("still missing").code(), Code::LibraryMissing);
        }
        Err(error) => {
            assert!(matches!(error.code(), Code::NoDevice | Code::StubLibrary | Code::Unknown), "{error}");
        }
    }
}

#[test]
fn availability_agrees_with_the_driver() {
    let available = availability();
    match CudaDriver::open() {
        Ok(driver) if available.reason == AvailabilityReason::Counted => {
            assert_eq!(available.device_count, driver.device_count(), "{available}");
        }
        Ok(_) => println!("skipped: {available}"),
        Err(_) => assert!(!available.is_available(), "{available}"),
    }
}

#[test]
fn a_search_that_finds_no_driver_is_a_reason() {
    let missing = PathBuf::from("/nonexistent/libcuda.so.1");
    let environment =
        SearchEnvironment { overrides: vec![(Library::Driver, missing)], ..SearchEnvironment::default() };
    if locate(Library::Driver, &environment).found.is_some() {
        println!("skipped: the driver is loaded in this process already");
        return;
    }
    let available = availability_with(&environment, None);
    assert_eq!(available.device_count, 0);
    let AvailabilityReason::DriverMissing(text) = available.reason else { panic!("{available}") };
    assert!(text.contains("/nonexistent/libcuda.so.1"), "{text}");
}

#[test]
fn every_library_has_a_report_that_can_be_read() {
    for library in Library::ALL {
        let report = locate(library, &SearchEnvironment::from_process());
        let text = report.to_string();
        assert!(text.starts_with(library.name()), "{text}");
        match &report.found {
            Some(found) => assert!(found.path.is_absolute(), "{text}"),
            None => assert!(!report.tried.is_empty() && text.contains(library.variable()), "{text}"),
        }
    }
}

#[test]
fn a_kernel_is_compiled_for_each_generation() {
    let Some(nvrtc) = nvrtc() else { return };
    assert!(nvrtc.version().major >= 12, "{nvrtc:?}");
    let known = nvrtc.architectures().expect("the compiler says what it compiles for");
    for (major, minor) in [(8, 0), (9, 0), (10, 0)] {
        let capability = ComputeCapability { major, minor };
        if !known.contains(&capability) {
            println!("skipped: NVRTC {} does not compile for {capability}", nvrtc.version());
            continue;
        }
        let compiled =
            nvrtc.compile(SOURCE, "scale.cu", &CompileOptions::new(capability)).expect("it compiles");
        assert_eq!(compiled.cubin[..4], *b"\x7fELF");
        let names = String::from_utf8_lossy(&compiled.cubin);
        assert!(names.contains("scale"), "the kernel's name is in the cubin");
        assert_eq!(compiled.log, "");
    }
}

#[test]
fn options_reach_the_compiler() {
    let Some(nvrtc) = nvrtc() else { return };
    let named = CompileOptions::new("sm_90a");
    assert_eq!(named.architecture, Architecture::Named("sm_90a".to_owned()));
    let fused = nvrtc.compile(SOURCE, "scale.cu", &named).expect("it compiles").cubin;
    let apart = CompileOptions { fmad: false, ..named.clone() };
    assert_ne!(nvrtc.compile(SOURCE, "scale.cu", &apart).expect("it compiles").cubin, fused);
    let source = "extern \"C\" __global__ void f(int *x) { *x = VALUE; }";
    let defined = CompileOptions { extra: vec!["-DVALUE=7".to_owned()], ..named };
    nvrtc.compile(source, "f.cu", &defined).expect("the option defines VALUE");
}

#[test]
fn errors_of_the_compiler_carry_its_log() {
    let Some(nvrtc) = nvrtc() else { return };
    let options = CompileOptions::new("sm_90");
    let error =
        nvrtc.compile("__global__ void f() { undeclared = 1; }", "wrong.cu", &options).expect_err("wrong");
    assert_eq!(error.code(), Code::Compilation);
    let text = error.to_string();
    for part in ["wrong.cu(1)", "undeclared", "--gpu-architecture=sm_90"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    let error =
        nvrtc.compile(SOURCE, "scale.cu", &CompileOptions::new("sm_1")).expect_err("no such generation");
    assert_eq!(error.code(), Code::Compilation, "{error}");
    let error = nvrtc.compile("void f() {}\0", "nul.cu", &options).expect_err("a 0 byte");
    assert!(error.to_string().contains("0 byte at 11"), "{error}");
    let error =
        nvrtc.compile(SOURCE, "scale.cu", &CompileOptions::new("compute_90")).expect_err("no machine code");
    assert_eq!(error.code(), Code::Compilation, "{error}");
}

#[test]
fn the_compiler_is_used_by_several_threads_at_once() {
    let Some(nvrtc) = nvrtc() else { return };
    let options = CompileOptions::new("sm_90");
    let expected = nvrtc.compile(SOURCE, "scale.cu", &options).expect("it compiles").cubin;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let cubin = nvrtc.compile(SOURCE, "scale.cu", &options).expect("it compiles").cubin;
                assert_eq!(cubin, expected, "the same source and options give the same code");
            });
        }
    });
}
