/* What the compiled files share: the floating-point mode and the value of any element. */

#ifndef TENSORPROBE_KERNEL_H
#define TENSORPROBE_KERNEL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* Without fused multiply-add equal data give equal bits on every machine. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

/* --- floating-point mode ----------------------------------------------------------------------
 * torch.set_flush_denormal(True) makes the processor read denormals as zeros. Statistics are about
 * the data, so the mode is put aside while we count. */

#if defined(__SSE2__)
#include <xmmintrin.h>
typedef unsigned int FloatMode;
static inline FloatMode keep_denormals(void)
{
    FloatMode before = _mm_getcsr();
    _mm_setcsr(before & ~0x8040u); /* flush-to-zero, denormals-are-zero */
    return before;
}
static inline void restore_mode(FloatMode before) { _mm_setcsr(before); }
#elif defined(__aarch64__)
typedef uint64_t FloatMode;
static inline void restore_mode(FloatMode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
static inline FloatMode keep_denormals(void)
{
    FloatMode before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    restore_mode(before & ~((uint64_t)1 << 24)); /* FZ */
    return before;
}
#else
typedef int FloatMode;
static inline FloatMode keep_denormals(void) { return 0; }
static inline void restore_mode(FloatMode before) { (void)before; }
#endif

/* --- values: any element as a double ----------------------------------------------------------*/

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float float_of_brain(uint16_t bits) { return float_of((uint32_t)bits << 16); }

static inline double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* float16 by arithmetic, since not every processor has a conversion and a branch would not
 * vectorise. The exponent moves from bias 15 to bias 127. A denormal m * 2^-24 now reads
 * x = 2^-15 * (1 + m / 2^10), and 2x - 2^-14 is what it should be; all other x are at least 2^-14,
 * so that `below` is 0 for them. Infinities come out as 65536, NaN as more: see load_float16. */
static inline float float_of_half(uint16_t half)
{
    int32_t magnitude = (half & 0x7FFF) << 13;
    float x = float_of((uint32_t)(magnitude + (112 << 23)));
    float below = x - 0x1p-14f;
    below = below < 0.0f ? below : 0.0f;
    x += below;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return float_of(bits | ((uint32_t)(int16_t)half & 0x80000000));
}

/* Rounding to the nearest number of a narrower type, to the even one of two, without a branch. NaN
 * stays NaN, and what is too large becomes infinite. */
static inline float round_to_brain(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000;
    return float_of(x != x ? bits : rounded);
}

/* Numbers below 2^-14 are multiples of 2^-24, as all floats between 0.5 and 1 are. */
static inline float round_to_half(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits & 0x80000000, magnitude = bits & 0x7FFFFFFF;
    float small = (float_of(magnitude) + 0.5f) - 0.5f;
    uint32_t normal = (magnitude + 0xFFF + ((magnitude >> 13) & 1)) & 0xFFFFE000;
    uint32_t denormal;
    memcpy(&denormal, &small, sizeof denormal);
    normal = normal >= 0x47800000 ? 0x7F800000 : normal; /* 65536 */
    uint32_t rounded = magnitude < 0x38800000 ? denormal : normal; /* 2^-14 */
    return float_of(magnitude > 0x7F800000 ? bits : rounded | sign);
}

/* 64-bit integers, for which vector units have no conversion before AVX-512: the halves are made
 * the mantissas of 2^52 and 2^84, and the last addition alone rounds. */
static inline double double_of_uint64(uint64_t x)
{
    double low = double_of((x & 0xFFFFFFFF) | 0x4330000000000000);
    double high = double_of((x >> 32) | 0x4530000000000000);
    return (high - (0x1p84 + 0x1p52)) + low;
}

static inline double double_of_int64(int64_t x)
{
    double low = double_of(((uint64_t)x & 0xFFFFFFFF) | 0x4330000000000000);
    double high = double_of(((uint64_t)x >> 32) ^ 0x4530000080000000);
    return (high - (0x1p84 + 0x1p63 + 0x1p52)) + low;
}

/* --- Python: what the other files add to the module --------------------------------------------*/

int check_argument_count(Py_ssize_t got, Py_ssize_t wanted);
PyObject *measure_pair(PyObject *self, PyObject *const *args, Py_ssize_t arg_count);
PyObject *pair_variants(PyObject *self, PyObject *unused);
PyObject *measure_errors(PyObject *self, PyObject *const *args, Py_ssize_t arg_count);
extern const char measure_pair_doc[], pair_variants_doc[], measure_errors_doc[];

#endif
