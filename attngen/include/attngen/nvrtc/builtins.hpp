// The compiler's built-in functions that device code uses and NVRTC doesn't know by their usual names.
#pragma once

#define __builtin_inff() __builtin_bit_cast(float, 0x7f800000)
#define __builtin_nanf(text) __builtin_bit_cast(float, 0x7fc00000)
#define __builtin_fmaf(a, b, c) ::fmaf(a, b, c)
