//! The UCI handwritten digits.

use std::io::Read;

use thalweg::data::{Dataset, Field, SampleField};
use thalweg::{DType, Result};

/// Pixels of an image.
const PIXELS: usize = 64;

/// One image with its digit.
#[derive(Clone)]
pub struct Sample {
    /// The pixels, row-major, scaled from 0…16 to 0…1.
    pub pixels: [f32; PIXELS],
    pub digit: i64,
}

/// Images with their digits: batches (count, 1, 8, 8) of f32, and (count) of i64.
#[derive(Clone)]
pub struct Images(pub Vec<Sample>);

impl Dataset for Images {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field { shape: vec![1, 8, 8], dtype: DType::F32 }, Field { shape: vec![], dtype: DType::I64 }]
    }

    fn read(&self, index: usize, fields: &mut [SampleField<'_>]) -> Result<()> {
        fields[0].put(&self.0[index].pixels)?;
        fields[1].put(&[self.0[index].digit])
    }
}

/// The images in a fixed split: every fifth is for the evaluation.
pub struct Digits {
    pub training: Images,
    pub evaluation: Images,
}

/// Unpacks the file that is part of the program: one line per image, with 64 pixels and the digit, separated by commas.
pub fn load() -> Digits {
    const FILE: &[u8] = include_bytes!("../../data/digits.csv.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(FILE)
        .read_to_string(&mut text)
        .expect("the file in the repository is whole");
    let (mut training, mut evaluation) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let mut numbers =
            line.split(',').map(|number| number.parse::<u8>().expect("the file holds small numbers"));
        let mut pixels = [0.0; PIXELS];
        pixels.fill_with(|| f32::from(numbers.next().expect("64 pixels per line")) / 16.0);
        let digit = i64::from(numbers.next().expect("a digit behind the pixels"));
        let part = if index % 5 == 4 { &mut evaluation } else { &mut training };
        part.push(Sample { pixels, digit });
    }
    Digits { training: Images(training), evaluation: Images(evaluation) }
}
