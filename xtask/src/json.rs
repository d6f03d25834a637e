//! A small reader of JSON: enough for the messages of Cargo, which are well-formed.

/// A value. What nobody here asks for (numbers, truth values) is not told apart.
#[derive(Clone, PartialEq, Debug)]
pub enum Json {
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
    Other,
}

impl Json {
    /// Reads a text that is one value; `None` where it is not JSON.
    pub fn parse(text: &str) -> Option<Self> {
        let mut reader = Reader { rest: text };
        let value = reader.value()?;
        reader.skip_blanks();
        reader.rest.is_empty().then_some(value)
    }

    /// The member of a name, where this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The elements, where this is a list.
    pub fn list(&self) -> &[Self] {
        if let Self::List(elements) = self { elements } else { &[] }
    }

    /// The text, where this is one.
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, expected: char) -> Option<()> {
        self.skip_blanks();
        self.rest = self.rest.strip_prefix(expected)?;
        Some(())
    }

    fn value(&mut self) -> Option<Json> {
        self.skip_blanks();
        match self.rest.chars().next()? {
            '"' => self.string().map(Json::Text),
            '[' => self.elements('[', ']', Self::value).map(Json::List),
            '{' => self.elements('{', '}', Self::member).map(Json::Object),
            _ => {
                let end = self.rest.find([',', ']', '}']).unwrap_or(self.rest.len());
                let (word, rest) = self.rest.split_at(end);
                self.rest = rest;
                let word = word.trim();
                let known = matches!(word, "null" | "true" | "false") || word.parse::<f64>().is_ok();
                known.then_some(Json::Other)
            }
        }
    }

    fn member(&mut self) -> Option<(String, Json)> {
        self.skip_blanks();
        let key = self.string()?;
        self.take(':')?;
        Some((key, self.value()?))
    }

    fn elements<T>(&mut self, open: char, close: char, one: fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        self.take(open)?;
        let mut elements = Vec::new();
        if self.take(close).is_some() {
            return Some(elements);
        }
        loop {
            elements.push(one(self)?);
            if self.take(',').is_none() {
                self.take(close)?;
                return Some(elements);
            }
        }
    }

    fn string(&mut self) -> Option<String> {
        let mut characters = self.rest.strip_prefix('"')?.chars();
        let mut out = String::new();
        loop {
            match characters.next()? {
                '"' => break,
                '\\' => out.push(match characters.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'u' => {
                        let digits: String = characters.by_ref().take(4).collect();
                        // Halves of surrogate pairs are in no path that is asked for.
                        char::from_u32(u32::from_str_radix(&digits, 16).ok()?).unwrap_or('\u{fffd}')
                    }
                    other => other,
                }),
                other => out.push(other),
            }
        }
        self.rest = characters.as_str();
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_cargo_is_read() {
        let line = r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"it","test":true},
            "features":[],"executable":"/a \"b\"/it-0f","fresh":false,"n":-1.5e3,"empty":{}}"#;
        let message = Json::parse(line).expect("it is JSON");
        assert_eq!(message.get("executable").and_then(Json::text), Some("/a \"b\"/it-0f"));
        let kinds = message.get("target").and_then(|target| target.get("kind")).map(Json::list);
        assert_eq!(kinds, Some(&[Json::Text("test".into())][..]));
        assert_eq!(message.get("features"), Some(&Json::List(Vec::new())));
        assert_eq!(message.get("nothing"), None);
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in ["", "{", "{\"a\":1", "[1,]", "{\"a\" 1}", "\"a", "nul", "{} {}", "[1 2]"] {
            assert_eq!(Json::parse(text), None, "{text}");
        }
    }
}
