//! The UCI handwritten digits.

use std::io::Read;

/// Pixels of an image.
const PIXELS: usize = 64;

/// One image with its digit.
#[derive(Clone)]
pub struct Sample {
    /// Row-major, scaled from 0…16 to 0…1.
    pub pixels: [f32; PIXELS],
    pub digit: i64,
}

/// The images, split once and for all: every fifth is for the evaluation.
pub struct Digits {
    pub training: Vec<Sample>,
    pub evaluation: Vec<Sample>,
}

/// Unpacks the file that is part of the program: a line an image, 64 pixels and the digit, separated by commas.
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
    Digits { training, evaluation }
}
