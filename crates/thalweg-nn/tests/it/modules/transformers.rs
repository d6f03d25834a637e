//! Layers of transformers, as the samples call them.

use serde_json::Value;
use thalweg_nn::module::{
    AttentionMasks, EncoderDecoder, Module, TransformerDecoderLayer, TransformerEncoder,
    TransformerEncoderLayer, TransformerLayerOptions,
};
use thalweg_runtime::{Device, Result};
use thalweg_tensor::random::Generator;

use super::{Arguments, Built, Inputs, of, three};

fn options(a: &Arguments<'_>) -> TransformerLayerOptions {
    let activation = a.get("activation").and_then(Value::as_str).unwrap_or("relu");
    TransformerLayerOptions {
        dim_feedforward: a.size("dim_feedforward"),
        gelu: activation.contains("gelu"),
        batch_first: a.flag("batch_first", false),
        norm_first: a.flag("norm_first", false),
        bias: a.flag("bias", true),
        ..TransformerLayerOptions::default()
    }
}

/// Returns the masks by name.
fn masks<'a>(inputs: &'a Inputs<'_>, attn_mask: &str, key_padding_mask: &str) -> AttentionMasks<'a> {
    AttentionMasks {
        key_padding_mask: inputs.named.get(key_padding_mask),
        attn_mask: inputs.named.get(attn_mask),
    }
}

fn encoder_layer(a: &Arguments<'_>, g: &mut Generator, d: &Device) -> Result<TransformerEncoderLayer> {
    TransformerEncoderLayer::new(a.size("d_model"), a.size("nhead"), options(a), g, d)
}

/// Returns the module of a sample.
pub fn build(name: &str, a: &Arguments<'_>, g: &mut Generator, d: &Device) -> Result<Built> {
    Ok(match name {
        "TransformerEncoderLayer" => three(encoder_layer(a, g, d)?, |module, inputs| {
            let masks = masks(inputs, "src_mask", "src_key_padding_mask");
            Ok(vec![of::<TransformerEncoderLayer>(module).forward_masked(inputs.at(0), masks)?])
        }),
        "TransformerEncoder" => {
            let of_layer = Arguments(a.0["encoder_layer"].as_object().expect("the options of a layer"));
            let layers =
                (0..a.size("num_layers")).map(|_| encoder_layer(&of_layer, g, d)).collect::<Result<_>>()?;
            three(TransformerEncoder { layers, norm: None }, |module, inputs| {
                let masks = masks(inputs, "mask", "src_key_padding_mask");
                Ok(vec![of::<TransformerEncoder>(module).forward_masked(inputs.at(0), masks)?])
            })
        }
        "TransformerDecoderLayer" => {
            let layer = TransformerDecoderLayer::new(a.size("d_model"), a.size("nhead"), options(a), g, d)?;
            three(layer, |module, inputs| {
                let own = masks(inputs, "tgt_mask", "tgt_key_padding_mask");
                let memory = masks(inputs, "memory_mask", "memory_key_padding_mask");
                let layer = of::<TransformerDecoderLayer>(module);
                Ok(vec![layer.forward(inputs.at(0), inputs.at(1), own, memory)?])
            })
        }
        _ => {
            let sizes = [a.size("d_model"), a.size("nhead")];
            let layers = [a.size("num_encoder_layers"), a.size("num_decoder_layers")];
            three(EncoderDecoder::new(sizes, layers, &options(a), g, d)?, |module, inputs| {
                let source = masks(inputs, "src_mask", "src_key_padding_mask");
                let target = masks(inputs, "tgt_mask", "tgt_key_padding_mask");
                let memory = masks(inputs, "memory_mask", "memory_key_padding_mask");
                let both = of::<EncoderDecoder>(module);
                Ok(vec![both.forward(inputs.at(0), inputs.at(1), source, target, memory)?])
            })
        }
    })
}

/// Checks that the error of a layer names the expected shape.
#[test]
fn layers_of_transformers_refuse_what_does_not_fit() {
    let (g, d) = (&mut Generator::new(0), &crate::support::device());
    let options = TransformerLayerOptions { dim_feedforward: 8, ..TransformerLayerOptions::default() };
    let error = TransformerEncoderLayer::new(4, 3, options.clone(), g, d).unwrap_err();
    assert!(error.to_string().contains("embed_dim must be divisible by num_heads"), "{error}");
    let layer = TransformerEncoderLayer::new(4, 2, options.clone(), g, d).unwrap();
    let zeros = |shape: &[usize]| thalweg_tensor::Tensor::zeros(shape, thalweg_ir::DType::F32, d).unwrap();
    for shape in [&[4][..], &[2, 2, 2, 4], &[3, 2, 5]] {
        let error = layer.forward_masked(&zeros(shape), AttentionMasks::default()).unwrap_err();
        assert!(error.is_invalid_argument(), "{shape:?}: {error}");
    }
    let (mask, x) = (zeros(&[2, 2]), zeros(&[3, 1, 4]));
    let masks = AttentionMasks { attn_mask: Some(&mask), ..AttentionMasks::default() };
    let error = layer.forward_masked(&x, masks).unwrap_err();
    assert!(error.to_string().contains("attn_mask is [2, 2], but should be [3, 3]"), "{error}");
    let both = EncoderDecoder::new([4, 2], [1, 1], &options, g, d).unwrap();
    let none = AttentionMasks::default();
    let error = both.forward(&x, &zeros(&[3, 1, 6]), none, none, none).unwrap_err();
    assert!(error.to_string().contains("must be equal to d_model"), "{error}");
    assert_eq!(both.parameters().len(), 12 + 18 + 4, "an encoder's layer, a decoder's, and two norms");
}
