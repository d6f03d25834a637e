// The arguments of the output of a depthwise convolution, and of the gradient of its input.
#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

struct arguments {
    // The input, or the gradient of the output.
    const Element* read;
    const Element* weight;
    Element* result;
    // A number for each channel of the output, or null.
    const Element* bias;
    u64 images;
    u64 channels;
    u64 input[2];
    u64 output[2];
    u64 padding[2];
    u64 output_strides[4];
    u64 input_strides[4];
    u64 channels_last;
    u64 kernel[2];
    u64 stride;
    u64 dtype;
    u64 pass;
};
