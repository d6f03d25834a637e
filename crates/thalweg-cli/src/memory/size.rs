//! Sizes, shares and counts, as people write them.

/// Returns a size with three significant digits or more: `8.76 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = 0;
    // If rounding would print 1024.0, the next unit is used.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 10.0 { 2 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Returns a difference of sizes, with its sign.
pub fn change(bytes: i128) -> String {
    let sign = if bytes < 0 { "-" } else { "+" };
    format!("{sign}{}", size(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX)))
}

/// Returns a share, in percent.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

/// Returns a number with separators of thousands: `1,234`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The smallest memory of a GPU that anything can be replayed on: one segment of the allocator.
const LEAST_GPU: u64 = 2 << 20;

/// Reads `24GiB`, `24GB`, `1.5 MiB`, `512B` or, in bytes, `512`. A size of 0 bytes is an error.
pub fn parse(text: &str) -> Result<u64, &'static str> {
    bytes(text.trim()).ok_or("write a size with its unit, such as 24GiB or 24GB, or in bytes")
}

/// Reads the memory of a GPU, as [`parse`] reads a size.
pub fn parse_gpu(text: &str) -> Result<u64, String> {
    let bytes = parse(text)?;
    if bytes < LEAST_GPU {
        return Err(format!(
            "that is {}, less than the smallest segment of the allocator, {}: write the size with its unit, such as 24GiB",
            size(bytes),
            size(LEAST_GPU)
        ));
    }
    Ok(bytes)
}

fn bytes(text: &str) -> Option<u64> {
    let unit_at = text.find(|character: char| character.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = (text[..unit_at].trim(), text[unit_at..].to_ascii_lowercase());
    let scale: u64 = match unit.as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).filter(|bytes| *bytes > 0);
    }
    let value = number.parse::<f64>().ok()? * scale as f64;
    (value >= 1.0 && value < u64::MAX as f64).then_some(value as u64)
}

/// Reads `2%`. A number without the sign could be a fraction.
pub fn parse_percent(text: &str) -> Result<f64, &'static str> {
    let number = text.trim().strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let share = number.map(|percent| percent / 100.0).filter(|share| share.is_finite() && *share >= 0.0);
    share.ok_or("write percents with their sign, such as 2%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_and_read() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (9_401_532_416, "8.76 GiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        for (text, bytes) in [
            ("24GiB", 24 << 30),
            ("1.5 MiB", 3 << 19),
            ("85017493504B", 85_017_493_504),
            ("2gb", 2_000_000_000),
            ("85017493504", 85_017_493_504),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "GiB", "0", "-1", "0GiB", "0.0B", "-1GiB", "1 parsec", "nanGiB", "infGB", "99999999999TiB"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse_gpu("2MiB"), Ok(2 << 20));
        for text in ["24", "1B", "0.0000001GiB", "2047KiB"] {
            assert!(parse_gpu(text).unwrap_err().contains("24GiB"), "{text}");
        }
    }

    #[test]
    fn shares_and_counts_are_written_and_read() {
        assert_eq!((share(1, 8), share(1, 0)), ("12.5 %".into(), "-".into()));
        assert_eq!([1, 999, 1000, 1_234_567].map(count), ["1", "999", "1,000", "1,234,567"]);
        for text in ["2", "0.5", "x", "nan%", "-1%", "inf%"] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
        assert_eq!([parse_percent("2%"), parse_percent("0 %")], [Ok(0.02), Ok(0.0)]);
        assert_eq!([change(-2048), change(1)], ["-2.00 KiB", "+1 B"]);
    }
}
