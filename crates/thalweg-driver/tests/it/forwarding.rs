//! Drivers around another driver: calls that they do not implement are forwarded to it.

const TRAIT: &str = include_str!("../../src/driver.rs");

/// Returns the methods of the trait: the name, the names of the parameters, and the body if there is one.
fn methods() -> Vec<(String, Vec<String>, Option<String>)> {
    let start = TRAIT.find("pub trait Driver").expect("the trait is here");
    let end = start + TRAIT[start..].find("\n}\n").expect("the trait ends");
    let code: String = TRAIT[start..end]
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{} ", line.trim()))
        .collect();
    code.split(" fn ")
        .skip(1)
        .map(|method| {
            let (name, rest) = method.split_once('(').expect("a method has parameters");
            let (parameters, rest) = rest.split_once(") ->").or_else(|| rest.split_once(')')).unwrap();
            let parameters = parameters.split(", ").skip(1).filter_map(|parameter| parameter.split_once(':'));
            let parameters = parameters.map(|(name, _)| name.trim().to_owned()).collect();
            let body = rest.split_once('{').map(|(_, body)| body.replace(' ', "").replace(",)", ")"));
            (name.to_owned(), parameters, body)
        })
        .collect()
}

#[test]
fn every_call_goes_to_the_driver_inside_unless_it_is_implemented() {
    let methods = methods();
    let has_none: Vec<&str> =
        methods.iter().filter(|(.., body)| body.is_none()).map(|(name, ..)| &**name).collect();
    assert_eq!(has_none, ["name", "version", "device_count"], "what a driver says of itself");
    let mut forwarded = 0;
    for (name, parameters, body) in &methods {
        // Methods about the drivers themselves are forwarded through `Option`.
        let asks = ["inner", "instrument", "reads_accesses"].contains(&&**name);
        let Some(body) = body.as_ref().filter(|_| !asks) else { continue };
        let call = format!("forwarded(self.inner(),\"{name}\")?.{name}({})", parameters.join(","));
        assert!(body.starts_with(&call), "`{name}` does not pass its parameters on:\n{body}\n{call}");
        forwarded += 1;
    }
    assert!(forwarded > 80, "{forwarded} methods were found");
}
