//! The meaning of the environment variables.

use std::path::PathBuf;

use thalweg_runtime::Environment;

fn of(variables: &[(&str, &str)]) -> Environment {
    Environment::from_variables(|name| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn an_empty_environment_asks_for_nothing() {
    let environment = of(&[]);
    assert!(!environment.launch_blocking && !environment.nvml_based_check);
    assert_eq!(environment.device, None);
    assert_eq!(environment.cache_directory, None);
    assert_eq!((environment.sim_devices, environment.sim_memory_bytes), (None, None));
    assert!(environment.mistakes.is_empty());
}

#[test]
fn flags_are_on_when_they_are_1() {
    for (value, is_on) in [("1", true), ("0", false), ("", false), ("true", false), ("2", false)] {
        let environment = of(&[("CUDA_LAUNCH_BLOCKING", value), ("PYTORCH_NVML_BASED_CUDA_CHECK", value)]);
        assert_eq!(environment.launch_blocking, is_on, "{value:?}");
        assert_eq!(environment.nvml_based_check, is_on, "{value:?}");
    }
}

#[test]
fn the_cache_directory_is_the_first_that_is_named() {
    let (own, xdg, home) = (("THALWEG_CACHE_DIR", "/own"), ("XDG_CACHE_HOME", "/xdg"), ("HOME", "/home/me"));
    let expect = |variables: &[(&str, &str)], expected: Option<&str>| {
        assert_eq!(of(variables).cache_directory, expected.map(PathBuf::from), "{variables:?}");
    };
    expect(&[own, xdg, home], Some("/own"));
    expect(&[xdg, home], Some("/xdg/thalweg"));
    expect(&[home], Some("/home/me/.cache/thalweg"));
    expect(&[("XDG_CACHE_HOME", ""), home], Some("/home/me/.cache/thalweg"));
    expect(&[("XDG_CACHE_HOME", "relative"), home], Some("/home/me/.cache/thalweg"));
    expect(&[("THALWEG_CACHE_DIR", ""), xdg, home], None);
    expect(&[("HOME", "")], None);
    expect(&[("HOME", "relative")], None);
}

#[test]
fn folders_of_precompiled_kernels_are_a_list() {
    let folders = |value| of(&[("THALWEG_PRECOMPILED_KERNELS", value)]).precompiled_directories;
    let beside_the_program = folders("");
    let expected = |names: &[&str]| -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).chain(beside_the_program.clone()).collect()
    };
    assert_eq!(folders("/one"), expected(&["/one"]));
    assert_eq!(folders("/one:/two"), expected(&["/one", "/two"]));
    assert_eq!(folders(":/one:"), expected(&["/one"]));
}

#[test]
fn numbers_that_are_none_are_mistakes() {
    let environment = of(&[("THALWEG_SIM_DEVICES", "2"), ("THALWEG_SIM_MEMORY_BYTES", "1073741824")]);
    assert_eq!((environment.sim_devices, environment.sim_memory_bytes), (Some(2), Some(1 << 30)));
    assert!(environment.mistakes.is_empty());
    let environment = of(&[("THALWEG_SIM_DEVICES", "two"), ("THALWEG_SIM_MEMORY_BYTES", "4 GiB")]);
    assert_eq!((environment.sim_devices, environment.sim_memory_bytes), (None, None));
    assert_eq!(environment.mistakes.len(), 2);
    assert!(environment.mistakes[0].contains("THALWEG_SIM_DEVICES=two"), "{:?}", environment.mistakes);
    assert!(environment.mistakes[1].contains("THALWEG_SIM_MEMORY_BYTES=4 GiB"), "{:?}", environment.mistakes);
    assert!(of(&[("THALWEG_SIM_DEVICES", "")]).mistakes.is_empty());
}
