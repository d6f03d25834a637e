// The definitions for an editor or a compiler that reads a kernel's file alone: those of a kernel of float32, or, if the file defines
// HALF, of bfloat16.
#pragma once
#include "../../thalweg-ir/src/cuda/prelude.cuh"

// Included files may contain functions that a kernel does not call.
#pragma nv_diag_suppress 177

#define NAME kernel
typedef f32 Sum;
#ifdef HALF
typedef bf16 Element;
#define LOAD f32_from_bf16
#define STORE bf16_from_f32
#define ELEMENT_NAME "bf16"
#else
typedef f32 Element;
#define LOAD f32
#define STORE f32
#define ELEMENT_NAME "f32"
#endif

// A unit contains the instructions of these products, whose operands are printed by the generator.
template <u32 COUNT> DEVICE void group_rows(f32 (&)[COUNT], u64, u64, u32) {}
template <u32 COUNT> DEVICE void group_registers(f32 (&)[COUNT], u32, u32, u32, u32, u64) {}
