//! The built-in regions of `thalweg audit`: typical steps, some of which can be captured and some not.

use thalweg::functional::{AttentionOptions, cross_entropy, scaled_dot_product_attention};
use thalweg::module::{Embedding, Forward, Linear, Module};
use thalweg::optim::{Adam, AdamOptions};
use thalweg::random::Generator;
use thalweg::{DType, Device, Result, Stream, Tensor, no_grad};

/// A region that can be run repeatedly.
pub type Region = Box<dyn Fn() -> Result<()>>;

/// A built-in region.
pub struct Example {
    pub name: &'static str,
    /// The example's work, in half a line.
    pub summary: &'static str,
    /// Makes the region, with its weights, on a device.
    pub make: fn(&Device) -> Result<Region>,
}

pub const EXAMPLES: &[Example] = &[
    Example { name: "train", summary: "a training step: forward, backward, Adam", make: train },
    Example {
        name: "train-item",
        summary: "the same, with its batch from the host and its loss read",
        make: train_item,
    },
    Example {
        name: "decode",
        summary: "one token with a cache, position and token on the device",
        make: decode,
    },
    Example {
        name: "decode-host",
        summary: "the same, with position and token on the host",
        make: decode_host,
    },
    Example { name: "streams", summary: "work on side streams and a thread, carelessly", make: streams },
];

const BATCH: usize = 32;
const FEATURES: usize = 64;
const CLASSES: usize = 10;

struct Classifier {
    hidden: Linear,
    output: Linear,
    optimizer: Adam,
}

impl Classifier {
    fn new(device: &Device) -> Result<Self> {
        let mut generator = Generator::new(1);
        let hidden = Linear::new(FEATURES, FEATURES, &mut generator, device)?;
        let output = Linear::new(FEATURES, CLASSES, &mut generator, device)?;
        let parameters = hidden.parameters().into_iter().chain(output.parameters()).collect();
        let optimizer = Adam::new(parameters, AdamOptions::default())?;
        Ok(Self { hidden, output, optimizer })
    }

    fn step(&self, input: &Tensor, classes: &Tensor) -> Result<Tensor> {
        self.optimizer.zero_grad();
        let hidden = self.hidden.forward(input)?.relu()?;
        let loss = cross_entropy(&self.output.forward(&hidden)?, classes)?;
        loss.backward()?;
        self.optimizer.step()?;
        Ok(loss.detach())
    }
}

fn batch() -> (Vec<f32>, Vec<i64>) {
    let mut generator = Generator::new(2);
    let input = (0..BATCH * FEATURES).map(|_| generator.uniform()).collect();
    (
        input,
        (0..BATCH).map(|_| i64::from(generator.below(CLASSES as u32).expect("there are classes"))).collect(),
    )
}

fn train(device: &Device) -> Result<Region> {
    let classifier = Classifier::new(device)?;
    let (input, classes) = batch();
    let input = Tensor::from_slice(&input, &[BATCH, FEATURES], device)?;
    let classes = Tensor::from_slice(&classes, &[BATCH], device)?;
    Ok(Box::new(move || classifier.step(&input, &classes).map(drop)))
}

fn train_item(device: &Device) -> Result<Region> {
    let classifier = Classifier::new(device)?;
    let (input, classes) = batch();
    let device = device.clone();
    Ok(Box::new(move || {
        let input = Tensor::from_slice(&input, &[BATCH, FEATURES], &device)?;
        let classes = Tensor::from_slice(&classes, &[BATCH], &device)?;
        let loss = classifier.step(&input, &classes)?;
        if loss.item::<f32>()? > 1e6 {
            classifier.optimizer.zero_grad();
        }
        device.synchronize()
    }))
}

const WORDS: usize = 100;
const POSITIONS: usize = 32;

/// One layer of attention over a cache of the keys and values so far.
struct Decoder {
    embedding: Embedding,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    keys: Tensor,
    values: Tensor,
    places: Tensor,
}

impl Decoder {
    fn new(device: &Device) -> Result<Self> {
        let generator = &mut Generator::new(3);
        let cache = || Tensor::zeros(&[POSITIONS, FEATURES], DType::F32, device);
        Ok(Self {
            embedding: Embedding::new(WORDS, FEATURES, generator, device)?,
            query: Linear::new(FEATURES, FEATURES, generator, device)?,
            key: Linear::new(FEATURES, FEATURES, generator, device)?,
            value: Linear::new(FEATURES, FEATURES, generator, device)?,
            output: Linear::new(FEATURES, WORDS, generator, device)?,
            keys: cache()?,
            values: cache()?,
            places: Tensor::arange(POSITIONS, 0_i64, 1_i64, DType::I64, device)?,
        })
    }

    /// Returns the token that follows `token`, which is at `position`; each is a tensor with one element.
    fn next(&self, token: &Tensor, position: &Tensor) -> Result<Tensor> {
        let x = self.embedding.forward(token)?;
        self.keys.index_copy_(0, position, &self.key.forward(&x)?)?;
        self.values.index_copy_(0, position, &self.value.forward(&x)?)?;
        let seen = self.places.le(position)?;
        let options = AttentionOptions { attn_mask: Some(&seen), ..AttentionOptions::default() };
        let context =
            scaled_dot_product_attention(&self.query.forward(&x)?, &self.keys, &self.values, options)?;
        self.output.forward(&context)?.argmax(-1)
    }
}

fn decode(device: &Device) -> Result<Region> {
    let decoder = Decoder::new(device)?;
    let token = Tensor::zeros(&[1], DType::I64, device)?;
    let position = Tensor::zeros(&[1], DType::I64, device)?;
    Ok(Box::new(move || {
        no_grad(|| {
            token.copy_(&decoder.next(&token, &position)?)?;
            position.copy_(&position.add_scalar(1_i64)?)
        })
    }))
}

fn decode_host(device: &Device) -> Result<Region> {
    let decoder = Decoder::new(device)?;
    let device = device.clone();
    Ok(Box::new(move || {
        no_grad(|| {
            let mut word = 0_i64;
            let mut chance = Generator::new(4);
            for position in 0..4_i64 {
                let token = Tensor::from_slice(&[word], &[1], &device)?;
                let position = Tensor::from_slice(&[position], &[1], &device)?;
                word = decoder.next(&token, &position)?.item()?;
                if chance.uniform() < 0.1 {
                    break;
                }
            }
            Ok(())
        })
    }))
}

fn streams(device: &Device) -> Result<Region> {
    let x = Tensor::ones(&[FEATURES, FEATURES], DType::F32, device)?;
    let (fork, stranger) = (Stream::new(device)?, Stream::new(device)?);
    let device = device.clone();
    Ok(Box::new(move || {
        let stream = device.current_stream();
        let y = x.matmul(&x)?;
        fork.wait_stream(&stream)?;
        {
            let _current = fork.make_current();
            y.record_stream(&fork);
            y.relu()?;
        }
        {
            let _current = stranger.make_current();
            x.relu()?;
        }
        let helper = std::thread::scope(|scope| scope.spawn(|| x.relu().map(drop)).join());
        helper.expect("an operator does not panic")?;
        // The host waits, so that the next run finds idle streams; the join with the region's stream is missing on purpose.
        fork.synchronize()
    }))
}
