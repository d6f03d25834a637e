//! Operators whose entry defines no method of `Tensor`, with the reason.

use thalweg_tensor::dispatch::operators;

/// Operators of ATen without a method, each with the reason.
const WITHOUT: &str = include_str!("../goldens/without_method.txt");

/// Prefixes of names that are parts of others, or kernels for ATen's internal use.
const INTERNAL: [&str; 3] = ["_", "native_", "cudnn_"];

fn is_internal(name: &str) -> bool {
    name.contains("::") || INTERNAL.iter().any(|prefix| name.starts_with(prefix))
}

#[test]
fn operators_without_a_method_are_listed_with_the_reason() {
    let base = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let all = operators();
    let with: Vec<String> =
        all.iter().filter(|operator| operator.method().is_some()).map(|o| base(o.name())).collect();
    let mut found: Vec<&str> = (all.iter())
        .filter(|operator| operator.method().is_none() && !is_internal(operator.name()))
        // In-place and `out=` forms are defined when any test calls them.
        .filter(|operator| {
            let writes = operator.schema().is_mutable();
            !writes && !with.contains(&base(operator.name()))
        })
        .map(|operator| operator.name())
        .collect();
    found.sort_unstable();
    found.dedup();
    let mut listed = Vec::new();
    for line in WITHOUT.lines() {
        let (name, reason) = line.split_once(": ").unwrap_or_else(|| panic!("`{line}` has no reason"));
        assert!(reason.len() > 3, "{line}");
        listed.push(name);
    }
    if std::env::var_os("THALWEG_METHODS_PRINT").is_some() {
        found.iter().filter(|name| !listed.contains(name)).for_each(|name| println!("NEW {name}"));
    }
    assert_eq!(found, listed);
}
