//! `Display` of [`Tensor`]: the format of PyTorch, with options that have PyTorch's defaults.

use std::fmt;

use thalweg_ir::{DType, Element, c128, with_dtype};
use thalweg_lock::RwLock;
use thalweg_ops::default_dtype;
use thalweg_runtime::{Error, Result, refuse_if};

use crate::autograd::no_grad;
use crate::tensor::Tensor;

/// The options with which tensors are printed (`torch.set_printoptions`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrintOptions {
    /// Digits after the point; at most 1,000.
    pub precision: usize,
    /// The maximum number of elements of a tensor that is printed in full.
    pub threshold: usize,
    /// The number of elements that a shortened dimension keeps at each edge; 1 or more.
    pub edge_items: usize,
    /// The maximum number of characters per line.
    pub line_width: usize,
    /// Whether floats have an exponent; `None` if that depends on their values.
    pub has_exponent: Option<bool>,
}

impl PrintOptions {
    const DEFAULT: Self =
        Self { precision: 4, threshold: 1000, edge_items: 3, line_width: 80, has_exponent: None };
}

impl Default for PrintOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

static OPTIONS: RwLock<PrintOptions> = RwLock::new(PrintOptions::DEFAULT);

/// Returns the options with which this process prints tensors.
pub fn print_options() -> PrintOptions {
    *OPTIONS.read()
}

/// Sets the options with which this process prints tensors.
///
/// # Errors
/// [`Error::is_invalid_argument`] if there are more than 1,000 digits, or no elements at an edge.
pub fn set_print_options(options: PrintOptions) -> Result<()> {
    refuse_if!(
        options.precision > 1000 || options.edge_items == 0,
        "tensors are printed with 0 to 1,000 digits and 1 or more elements at an edge, not with {} and {}",
        options.precision,
        options.edge_items
    );
    *OPTIONS.write() = options;
    Ok(())
}

const PREFIX: &str = "tensor(";

impl fmt::Display for Tensor {
    /// Writes the elements as PyTorch does. Blocks until they are on the host. If they cannot be read, as in a capture, the text
    /// states the reason instead.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Reading would invalidate the capture.
        if matches!(self.device().current_stream().is_capturing(), Ok(true)) {
            return write!(f, "{self:?}: is not read while the stream captures");
        }
        match self.printed() {
            Ok(text) => f.write_str(&text),
            Err(error) => write!(f, "{self:?}: cannot be read: {error}"),
        }
    }
}

impl Tensor {
    fn printed(&self) -> Result<String> {
        let options = print_options();
        let is_meta = self.device().is_meta();
        let mut suffixes = Vec::new();
        suffixes.push(if is_meta { "device='meta'".into() } else { format!("device='{}'", self.device()) });
        if is_meta || (self.elements() == 0 && self.rank() != 1) {
            suffixes.push(format!("size={}", size_text(self.shape())));
        }
        let floats = default_dtype();
        let is_plain = matches!(self.dtype(), DType::I64 | DType::Bool) || self.dtype() == floats.complex();
        let is_default = self.dtype() == floats || is_plain && self.elements() > 0 && !is_meta;
        if !is_default {
            suffixes.push(format!("dtype=torch.{}", self.dtype()));
        }
        match self.requires_grad() {
            true if self.is_leaf() => suffixes.push("requires_grad=True".into()),
            true => suffixes.push(format!("grad_fn=<{}>", self.gradient_name())),
            false => {}
        }
        let body = match self.elements() {
            _ if is_meta => "...".to_owned(),
            0 => "[]".to_owned(),
            _ => {
                let (shown, shape) = self.shown(&options)?;
                let edge = (self.elements() > options.threshold).then_some(options.edge_items);
                let layout = Printed { values: &shown, edge, line_width: options.line_width };
                layout.dimension(&shape, self.shape(), 0, PREFIX.len())
            }
        };
        Ok(with_suffixes(format!("{PREFIX}{body}"), &suffixes, options.line_width))
    }

    /// Returns the elements that are printed, and their shape: those at the edges of a large tensor.
    fn shown(&self, options: &PrintOptions) -> Result<(Numbers, Vec<usize>)> {
        no_grad(|| {
            let mut kept = self.detach();
            if self.elements() > options.threshold {
                let edge = options.edge_items;
                for dimension in 0..self.rank() {
                    let size = self.shape()[dimension];
                    if size > edge.saturating_mul(2) {
                        let at = dimension as i64;
                        let edges = [kept.narrow(at, 0, edge)?, kept.narrow(at, size - edge, edge)?];
                        kept = Tensor::cat(&edges, at)?;
                    }
                }
            }
            let numbers = match self.dtype() {
                DType::Bool => {
                    let values = kept.to_vec::<u8>()?;
                    Numbers::texts(
                        values.iter().map(|&value| if value == 0 { "False" } else { "True" }.to_owned()),
                    )
                }
                dtype if dtype.is_floating_point() => {
                    Numbers::floats(kept.to_dtype(DType::F64)?.to_vec::<f64>()?, options)
                }
                dtype if dtype.is_complex() => {
                    Numbers::complex(&kept.to_dtype(DType::C128)?.to_vec::<c128>()?, options)
                }
                dtype => with_dtype!(dtype,
                    bool => Numbers::texts(std::iter::empty()),
                    integer T => Numbers::texts(kept.to_vec::<T>()?.into_iter().map(|value| value.to_string())),
                    reduced T => Numbers::texts(kept.to_vec::<T>()?.into_iter().map(|value| value.to_f64().to_string())),
                    float T => Numbers::texts(kept.to_vec::<T>()?.into_iter().map(|value| value.to_f64().to_string())),
                ),
            };
            Ok((numbers, kept.shape().to_vec()))
        })
    }
}

fn size_text(shape: &[usize]) -> String {
    let list: Vec<String> = shape.iter().map(usize::to_string).collect();
    format!("({}{})", list.join(", "), if shape.len() == 1 { "," } else { "" })
}

/// Elements as text.
struct Numbers {
    texts: Vec<String>,
    /// The number of characters per element.
    width: usize,
}

impl Numbers {
    fn texts(texts: impl Iterator<Item = String>) -> Self {
        let texts: Vec<String> = texts.collect();
        let width = texts.iter().map(String::len).max().unwrap_or(1);
        Self::aligned(texts, width)
    }

    /// Formats floats in one form: integers with a point, fixed digits, or an exponent where they differ too much.
    fn floats(values: Vec<f64>, options: &PrintOptions) -> Self {
        let finite: Vec<f64> =
            values.iter().copied().filter(|value| value.is_finite() && *value != 0.0).collect();
        let (mut least, mut greatest) = (f64::INFINITY, 0.0f64);
        for value in &finite {
            (least, greatest) = (least.min(value.abs()), greatest.max(value.abs()));
        }
        let is_whole = finite.iter().all(|value| value.fract() == 0.0);
        let is_wide = !finite.is_empty() && (greatest / least > 1000.0 || greatest > 1e8);
        let has_exponent = options.has_exponent.unwrap_or(is_wide || (!is_whole && least < 1e-4));
        let precision = options.precision;
        let text = |value: f64| match value {
            value if value.is_nan() => "nan".to_owned(),
            value if value.is_infinite() => if value > 0.0 { "inf" } else { "-inf" }.to_owned(),
            value if has_exponent => exponent_text(value, precision),
            value if is_whole => format!("{value:.0}."),
            value => format!("{value:.precision$}"),
        };
        let width = finite.iter().map(|&value| text(value).len()).max().unwrap_or(1);
        Self::aligned(values.into_iter().map(text).collect(), width)
    }

    /// Formats complex numbers. All real parts have one form and all imaginary parts another; only the real parts are aligned.
    fn complex(values: &[c128], options: &PrintOptions) -> Self {
        let real = Self::floats(values.iter().map(|value| value.re).collect(), options);
        let imaginary = Self::floats(values.iter().map(|value| value.im).collect(), options);
        let width = real.width + imaginary.width + 1;
        let texts = real.texts.iter().zip(&imaginary.texts).map(|(real, imaginary)| {
            let imaginary = imaginary.trim_start();
            let sign = if imaginary.starts_with('-') { "" } else { "+" };
            format!("{real}{sign}{imaginary}j")
        });
        Self { texts: texts.collect(), width }
    }

    /// Pads texts with leading spaces.
    fn aligned(texts: Vec<String>, width: usize) -> Self {
        Self { texts: texts.into_iter().map(|text| format!("{text:>width$}")).collect(), width }
    }
}

/// Returns a number with an exponent of at least two digits, as C writes it.
fn exponent_text(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').expect("the format has an exponent");
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// The lines of a tensor.
struct Printed<'a> {
    values: &'a Numbers,
    /// The number of elements that a dimension keeps at each edge; `None` if all are shown.
    edge: Option<usize>,
    line_width: usize,
}

impl Printed<'_> {
    fn number(&self, index: usize) -> String {
        self.values.texts[index].clone()
    }

    /// Returns the elements from `first` on, in brackets; `shape` is the part of `whole` that is kept.
    fn dimension(&self, shape: &[usize], whole: &[usize], first: usize, indent: usize) -> String {
        let Some((&extent, inner)) = shape.split_first() else { return self.number(first) };
        // Where elements are left out.
        let gap = self.edge.filter(|edge| whole[0] > edge.saturating_mul(2));
        if inner.is_empty() {
            return self.vector(first, extent, gap, indent);
        }
        let step: usize = inner.iter().product();
        let mut parts = Vec::with_capacity(extent + 1);
        for place in 0..extent {
            if gap == Some(place) {
                parts.push("...".to_owned());
            }
            parts.push(self.dimension(inner, &whole[1..], first + place * step, indent + 1));
        }
        let between = format!(",{}{}", "\n".repeat(inner.len()), " ".repeat(indent + 1));
        format!("[{}]", parts.join(&between))
    }

    fn vector(&self, first: usize, extent: usize, gap: Option<usize>, indent: usize) -> String {
        let mut texts: Vec<String> = (first..first + extent).map(|index| self.number(index)).collect();
        if let Some(gap) = gap {
            texts.insert(gap, " ...".to_owned());
        }
        let per_line = (self.line_width.saturating_sub(indent) / (self.values.width + 2)).max(1);
        let lines: Vec<String> = texts.chunks(per_line).map(|line| line.join(", ")).collect();
        format!("[{}]", lines.join(&format!(",\n{}", " ".repeat(indent + 1))))
    }
}

/// Returns the text followed by the tensor's other properties, on new lines where they do not fit.
fn with_suffixes(mut text: String, suffixes: &[String], line_width: usize) -> String {
    let mut line = text.len() - text.rfind('\n').map_or(0, |end| end) + usize::from(text.contains('\n'));
    for suffix in suffixes {
        if line + suffix.len() + 2 > line_width {
            text.push_str(&format!(",\n{}{suffix}", " ".repeat(PREFIX.len())));
            line = PREFIX.len() + suffix.len();
        } else {
            text.push_str(&format!(", {suffix}"));
            line += suffix.len() + 2;
        }
    }
    text.push(')');
    text
}
