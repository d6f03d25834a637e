//! A reader of JSON objects whose members are no objects, strict enough to refuse what is no JSON.

use std::collections::BTreeMap;

/// A member's value.
#[derive(Clone, PartialEq, Debug)]
pub enum Member {
    Null,
    Truth(bool),
    Number(f64),
    Text(String),
}

/// Reads one line that is one object.
pub fn object(line: &str) -> Result<BTreeMap<String, Member>, String> {
    let mut rest = line.strip_prefix('{').ok_or("it does not begin with {")?;
    let mut members = BTreeMap::new();
    loop {
        let key = string(&mut rest)?;
        rest = rest.strip_prefix(':').ok_or("no colon behind a key")?;
        let member = value(&mut rest)?;
        if members.insert(key.clone(), member).is_some() {
            return Err(format!("{key} is there twice"));
        }
        match rest.split_at_checked(1) {
            Some((",", more)) => rest = more,
            Some(("}", "")) => return Ok(members),
            _ => return Err(format!("neither a comma nor the end at: {rest}")),
        }
    }
}

fn value(rest: &mut &str) -> Result<Member, String> {
    if rest.starts_with('"') {
        return string(rest).map(Member::Text);
    }
    let end = rest.find([',', '}']).ok_or("a value does not end")?;
    let (word, more) = rest.split_at(end);
    *rest = more;
    match word {
        "null" => Ok(Member::Null),
        "true" => Ok(Member::Truth(true)),
        "false" => Ok(Member::Truth(false)),
        _ if word.ends_with('.') || word.contains(['i', 'N', 'n']) => Err(format!("{word} is no number")),
        _ => word.parse().map(Member::Number).map_err(|_| format!("{word} is no number")),
    }
}

fn string(rest: &mut &str) -> Result<String, String> {
    let mut characters = rest.strip_prefix('"').ok_or_else(|| format!("no string at: {rest}"))?.chars();
    let mut out = String::new();
    loop {
        match characters.next().ok_or("a string does not end")? {
            '"' => break,
            '\\' => match characters.next() {
                Some('u') => {
                    let digits: String = characters.by_ref().take(4).collect();
                    let number = u32::from_str_radix(&digits, 16).map_err(|error| error.to_string())?;
                    out.push(char::from_u32(number).ok_or("half of a surrogate pair")?);
                }
                Some(character @ ('"' | '\\')) => out.push(character),
                other => return Err(format!("unknown escape {other:?}")),
            },
            control if u32::from(control) < 0x20 => return Err("a control character in a string".to_owned()),
            other => out.push(other),
        }
    }
    *rest = characters.as_str();
    Ok(out)
}

#[test]
fn what_is_no_json_is_refused() {
    assert_eq!(object(r#"{"a":1.5,"b":"c\"","d":null}"#).map(|members| members.len()), Ok(3));
    for line in [
        "",
        "{}x",
        r#"{"a":1"#,
        r#"{"a" 1}"#,
        r#"{"a":inf}"#,
        r#"{"a":NaN}"#,
        r#"{"a":1,"a":2}"#,
        r#"{"a":"}"#,
    ] {
        assert!(object(line).is_err(), "{line}");
    }
}
