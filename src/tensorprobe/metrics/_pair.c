/* Numbers about two arrays in one pass over both.
 *
 *     bytes -> load: 2048 elements of each side as floats or doubles, where they are not so already
 *           -> measure_narrow or measure_wide of _pair_lanes.h -> Block -> add_block -> Pair
 *           -> clean, and once more, where something is not finite
 *
 * Floats are widened to double before anything is computed of them. Threads, strides and complex
 * numbers are the caller's business (pair.py); pair_numpy.py has the same meaning in numpy. */

#include "_kernel.h"

#include <float.h>
#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define BLOCK 2048
/* So many elements take less time than letting another thread of Python in, and waiting for it. */
#define FEW 8192
#define GROUP 8
#define EPSILON 0x1p-52
#define THRESHOLD_COUNT 4

/* Keep them equal to those of pair_numpy.py. */
static const double THRESHOLDS[THRESHOLD_COUNT] = {1e-4, 1e-3, 5e-3, 1e-2};

/* A relative error of floats taken in float is rounded twice, by 2^-24 each. What is not nearer to
 * a threshold than NEAR is on the right side of it; a block with anything nearer, or one that may
 * hold a new maximum, is measured exactly.
 *
 * Elements of at most 11 significant bits are short. Near a threshold k / 10000, k at most 100,
 * both are multiples of one power of two, so that their relative error is a fraction D / B with
 * B < 2^12. It is the threshold itself, which double rounds to the same number and which is not
 * within, or off by more than 1 / (k B), that is, 2^-19: nothing else comes near. */
#define NEAR 0x1p-21
#define EACH(factor)                                                                               \
    {(float)(1e-4 * (factor)), (float)(1e-3 * (factor)), (float)(5e-3 * (factor)),                 \
     (float)(1e-2 * (factor))}
static const float SURELY[THRESHOLD_COUNT] = EACH(1.0 - NEAR);
static const float PERHAPS[THRESHOLD_COUNT] = EACH(1.0 + NEAR);

typedef struct {
    double a, b, difference; /* what each is multiplied by before it is squared */
} Scales;

typedef struct {
    double dot, a_squares, b_squares, squares, max_abs, max_relative, a_peak, b_peak;
    int64_t within[THRESHOLD_COUNT], unequal;
    int64_t doubtful; /* how many are near to a threshold and not counted as within it */
    int finite;       /* 0: NaN or infinities are among the elements, and the rest means nothing */
} Block;

/* What is read next. Processors fetch memory ahead by themselves only to the end of a page, and
 * a block is that long: they are told. */
typedef struct {
    const char *a, *b;
    size_t a_size, b_size; /* of an element */
} Ahead;

/* --- variants: the inner loops for each set of instructions -----------------------------------
 * AVX2 is chosen when the module runs, on any x86-64. It comes near to what two cores can read from
 * memory, so wider vectors would add code and no speed. */

#define JOIN(name, variant) name##_##variant

#define LANES 2
#define FLOAT_LANES 4
#define WIDEN(narrow) __builtin_convertvector(narrow, Doubles)
#define ADD_PRODUCT(x, y, sum) ((x) * (y) + (sum))
#define VARIANT(name) JOIN(name, plain)
/* Of NaN the answer is worthless: blocks that have any are measured again without them. */
#define MAX(x, y) ((Doubles)(((Flags)(x) & ((x) > (y))) | ((Flags)(y) & ~((x) > (y)))))
#define FLOAT_MAX(x, y)                                                                            \
    ((Floats)(((FloatFlags)(x) & ((x) > (y))) | ((FloatFlags)(y) & ~((x) > (y)))))
#define ANY(flags) (((Flags)(flags))[0] | ((Flags)(flags))[1])
#include "_pair_lanes.h"

#if defined(__x86_64__)
#define HAVE_AVX2

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define LANES 4
#define FLOAT_LANES 8
#define FLOAT_MAX(x, y) ((Floats)_mm256_max_ps((__m256)(x), (__m256)(y)))
#define ANY(flags) (!_mm256_testz_si256((__m256i)(flags), (__m256i)(flags)))
#define WIDEN(narrow) ((Doubles)_mm256_cvtps_pd((__m128)(narrow)))
#define ADD_PRODUCT(x, y, sum)                                                                     \
    ((Doubles)_mm256_fmadd_pd((__m256d)(x), (__m256d)(y), (__m256d)(sum)))
#define VARIANT(name) JOIN(name, avx2)
#define MAX(x, y) ((Doubles)_mm256_max_pd((__m256d)(x), (__m256d)(y)))
#include "_pair_lanes.h"

static void half_avx2(const char *source, int n, float *values)
{
    int i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(values + i,
                         _mm256_cvtph_ps(_mm_loadu_si128((const void *)(source + 2 * i))));
    if (i < n) {
        uint16_t rest[8] = {0};
        float wide[8];
        memcpy(rest, source + 2 * i, (size_t)(n - i) * 2);
        _mm256_storeu_ps(wide, _mm256_cvtph_ps(_mm_loadu_si128((const void *)rest)));
        memcpy(values + i, wide, (size_t)(n - i) * sizeof *wide);
    }
}

static void brain_avx2(const char *restrict source, int n, float *restrict values)
{
    for (int i = 0; i < n; i++) {
        uint16_t x;
        memcpy(&x, source + 2 * (size_t)i, sizeof x);
        values[i] = float_of_brain(x);
    }
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif

/* --- load: up to BLOCK elements of one type, at any address -----------------------------------*/

typedef void (*LoadNarrow)(const char *source, int n, float *values);
typedef void (*LoadWide)(const char *source, int n, double *values);

#define LOAD(name, element, value, VALUE)                                                          \
    static void load_##name(const char *restrict source, int n, value *restrict values)            \
    {                                                                                              \
        for (int i = 0; i < n; i++) {                                                              \
            element x;                                                                             \
            memcpy(&x, source + (size_t)i * sizeof x, sizeof x);                                   \
            values[i] = VALUE(x);                                                                  \
        }                                                                                          \
    }

#define SAME(x) (x)
#define AS_FLOAT32(x) ((float)(x))
#define AS_BFLOAT16(x) round_to_brain((float)(x))
#define AS_FLOAT16(x) round_to_half((float)(x))
#define IS_TRUE(x) ((x) != 0)

LOAD(float32, float, float, SAME)
LOAD(bfloat16, uint16_t, float, float_of_brain)
LOAD(int16, int16_t, float, SAME)
LOAD(int8, int8_t, float, SAME)
LOAD(uint16, uint16_t, float, SAME)
LOAD(uint8, uint8_t, float, SAME)
LOAD(bool, uint8_t, float, IS_TRUE)
LOAD(float32_as_bfloat16, float, float, AS_BFLOAT16)
LOAD(float32_as_float16, float, float, AS_FLOAT16)
LOAD(float64_as_bfloat16, double, float, AS_BFLOAT16)
LOAD(float64_as_float16, double, float, AS_FLOAT16)
LOAD(float64_as_float32, double, float, AS_FLOAT32)
LOAD(float64, double, double, SAME)
LOAD(int64, int64_t, double, double_of_int64)
LOAD(int32, int32_t, double, SAME)
LOAD(uint64, uint64_t, double, double_of_uint64)
LOAD(uint32, uint32_t, double, SAME)

#if defined(__aarch64__)
LOAD(float16, __fp16, float, SAME)
#else
LOAD(half, uint16_t, float, float_of_half)

static void load_float16(const char *source, int n, float *values)
{
    load_half(source, n, values);
    for (int i = 0; i < n; i++) {
        float x = values[i], magnitude = fabsf(x);
        values[i] = magnitude < 65536.0f ? x : magnitude > 65536.0f ? NAN : copysignf(INFINITY, x);
    }
}
#endif

typedef struct {
    const char *name;
    size_t size;
    LoadNarrow narrow; /* one of both is NULL */
    LoadWide wide;
    enum { OTHER, SHORT, SIGNED64, UNSIGNED64 } kind;
} Type;

static const Type TYPES[] = {
    {"float32", 4, load_float32, NULL, OTHER},
    {"bfloat16", 2, load_bfloat16, NULL, SHORT},
    {"float16", 2, load_float16, NULL, SHORT},
    {"float64", 8, NULL, load_float64, OTHER},
    {"int64", 8, NULL, load_int64, SIGNED64},
    {"int32", 4, NULL, load_int32, OTHER},
    {"int16", 2, load_int16, NULL, OTHER},
    {"int8", 1, load_int8, NULL, SHORT},
    {"uint64", 8, NULL, load_uint64, UNSIGNED64},
    {"uint32", 4, NULL, load_uint32, OTHER},
    {"uint16", 2, load_uint16, NULL, OTHER},
    {"uint8", 1, load_uint8, NULL, SHORT},
    {"bool", 1, load_bool, NULL, SHORT},
    /* Rounded while they are read: no copy of a reference in the candidate's type is needed. */
    {"float32 as bfloat16", 4, load_float32_as_bfloat16, NULL, SHORT},
    {"float32 as float16", 4, load_float32_as_float16, NULL, SHORT},
    {"float64 as bfloat16", 8, load_float64_as_bfloat16, NULL, SHORT},
    {"float64 as float16", 8, load_float64_as_float16, NULL, SHORT},
    {"float64 as float32", 8, load_float64_as_float32, NULL, OTHER},
};

typedef void (*MeasureFloats)(const float *a, const float *b, int n, const Ahead *ahead,
                              float *ratios, Block *out);

typedef struct {
    const char *name;
    MeasureFloats measure_narrow, measure_short;
    double (*find_ratio)(const float *a, const float *b, int n, const float *ratios, float limit);
    double (*find_error)(const float *a, const float *b, int n, float limit);
    void (*find_ratios)(const float *a, const float *b, int n, Block *out);
    void (*measure_wide)(const double *a, const double *b, int n, const Scales *scales, Block *out);
    LoadNarrow load_float16, load_bfloat16;
} Variant;

static const Variant VARIANTS[] = {
#if defined(HAVE_AVX2)
    {"avx2", measure_narrow_avx2, measure_short_avx2, find_ratio_avx2, find_error_avx2,
     find_ratios_avx2, measure_wide_avx2, half_avx2, brain_avx2},
#endif
    {"plain", measure_narrow_plain, measure_short_plain, find_ratio_plain, find_error_plain,
     find_ratios_plain, measure_wide_plain, load_float16, load_bfloat16},
};
#define VARIANT_COUNT ((int)(sizeof VARIANTS / sizeof *VARIANTS))

static int has_variant(const Variant *variant)
{
#if defined(HAVE_AVX2)
    __builtin_cpu_init();
    /* Every processor with AVX2 converts float16, too; compilers cannot ask all about it. */
    if (variant == &VARIANTS[0])
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    (void)variant;
    return 1;
}

/* --- sides ------------------------------------------------------------------------------------*/

typedef struct {
    const char *source;
    const Type *type;
    const float *table; /* of 256 values for 8-bit floats, else NULL */
} Side;

static void load_narrow(const Side *side, Py_ssize_t first, int n, const Variant *variant,
                        float *values)
{
    const char *source = side->source + (size_t)first * side->type->size;
    if (side->table)
        for (int i = 0; i < n; i++)
            values[i] = side->table[(unsigned char)source[i]];
    else if (side->type->narrow == load_float16)
        variant->load_float16(source, n, values);
    else if (side->type->narrow == load_bfloat16)
        variant->load_bfloat16(source, n, values);
    else
        side->type->narrow(source, n, values);
}

static void load_wide(const Side *side, Py_ssize_t first, int n, const Variant *variant,
                      double *values)
{
    if (side->type->wide) {
        side->type->wide(side->source + (size_t)first * side->type->size, n, values);
        return;
    }
    float narrow[BLOCK];
    load_narrow(side, first, n, variant, narrow);
    for (int i = 0; i < n; i++)
        values[i] = (double)narrow[i];
}

/* --- the pair ---------------------------------------------------------------------------------*/

/* A sum that remembers what rounding took from it (Neumaier). */
typedef struct {
    double total, lost;
} Sum;

static void add_to(Sum *sum, double value)
{
    double total = sum->total + value;
    if (fabs(sum->total) >= fabs(value))
        sum->lost += (sum->total - total) + value;
    else
        sum->lost += (value - total) + sum->total;
    sum->total = total;
}

static double total_of(Sum sum)
{
    double total = sum.total + sum.lost;
    return isnan(total) ? sum.total : total; /* inf - inf in what was lost */
}

typedef struct {
    Sum dot, a_squares, b_squares, squares;
    double max_abs, max_relative, a_peak, b_peak;
    int64_t max_abs_index, within[THRESHOLD_COUNT], unequal;
    int64_t nan_mismatch, inf_mismatch, opposite, a_special, b_special;
} Pair;

/* Count pairs that are not finite and make two zeros of each; return how many of them disagree. */
#define CLEAN(name, value, LIMIT)                                                                  \
    static int clean_##name(Pair *pair, value *a, value *b, int n)                                 \
    {                                                                                              \
        int a_special = 0, b_special = 0, nan_mismatch = 0, inf_mismatch = 0;                      \
        int opposite = 0;                                                                          \
        for (int i = 0; i < n; i++) {                                                              \
            value x = a[i], y = b[i];                                                              \
            int x_nan = x != x, y_nan = y != y;                                                    \
            int x_infinite = (x > LIMIT) | (x < -LIMIT), y_infinite = (y > LIMIT) | (y < -LIMIT);  \
            int one_nan = x_nan ^ y_nan;                                                           \
            int other = (x_infinite | y_infinite) & (x != y) & !x_nan & !y_nan;                    \
            int drop = x_nan | y_nan | x_infinite | y_infinite;                                    \
            a_special += x_nan | x_infinite;                                                       \
            b_special += y_nan | y_infinite;                                                       \
            nan_mismatch += one_nan;                                                               \
            inf_mismatch += other;                                                                 \
            opposite += other & x_infinite & y_infinite;                                           \
            a[i] = drop ? 0 : x;                                                                   \
            b[i] = drop ? 0 : y;                                                                   \
        }                                                                                          \
        pair->a_special += a_special;                                                              \
        pair->b_special += b_special;                                                              \
        pair->nan_mismatch += nan_mismatch;                                                        \
        pair->inf_mismatch += inf_mismatch;                                                        \
        pair->opposite += opposite;                                                                \
        return nan_mismatch + inf_mismatch;                                                        \
    }

CLEAN(narrow, float, FLT_MAX)
CLEAN(wide, double, DBL_MAX)

/* 64-bit integers may differ where their doubles do not. */
static int64_t count_unequal_integers(const Side *a, const Side *b, Py_ssize_t first, int n)
{
    int64_t unequal = 0;
    int mixed = a->type->kind != b->type->kind;
    for (int i = 0; i < n; i++) {
        uint64_t x, y;
        memcpy(&x, a->source + ((size_t)first + (size_t)i) * 8, 8);
        memcpy(&y, b->source + ((size_t)first + (size_t)i) * 8, 8);
        unequal += (x != y) | (mixed & (int)(x >> 63)); /* a negative number, or one past 2^63 */
    }
    return unequal;
}

static void add_block(Pair *pair, const Block *block, int padding, int mismatches)
{
    add_to(&pair->dot, block->dot);
    add_to(&pair->a_squares, block->a_squares);
    add_to(&pair->b_squares, block->b_squares);
    add_to(&pair->squares, block->squares);
    pair->max_relative = fmax(pair->max_relative, block->max_relative);
    pair->a_peak = fmax(pair->a_peak, block->a_peak);
    pair->b_peak = fmax(pair->b_peak, block->b_peak);
    for (int t = 0; t < THRESHOLD_COUNT; t++)
        pair->within[t] += block->within[t] - padding - mismatches;
    pair->unequal += block->unequal + mismatches;
}

/* Pad with pairs of zeros, which change no sum and no maximum. */
#define PAD(values, n, padded)                                                                     \
    for (int i = (n); i < (padded); i++)                                                           \
        (values)[i] = 0;

/* The largest error grows rarely: only then its place is looked for. Should somebody write to the
 * memory meanwhile, it may be gone: the search ends with the block. */
#define NOTE_WORST(a, b)                                                                           \
    if (block.max_abs > pair->max_abs) {                                                           \
        int place = 0;                                                                             \
        while (place < n - 1 && fabs((double)(a)[place] - (double)(b)[place]) != block.max_abs)    \
            place++;                                                                               \
        pair->max_abs = block.max_abs;                                                             \
        pair->max_abs_index = (int64_t)first + place;                                              \
    }

/* Whole groups of aligned floats are read where they are. */
static int is_readable(const Side *side)
{
    return side->type->narrow == load_float32 && (uintptr_t)side->source % sizeof(float) == 0;
}

static void measure_narrow_block(Pair *pair, const Side *a, const Side *b, Py_ssize_t first, int n,
                                 const Variant *variant)
{
    float left[BLOCK], right[BLOCK], ratios[BLOCK];
    const float *x = left, *y = right;
    int padded = (n + GROUP - 1) / GROUP * GROUP;
    if (padded == n && is_readable(a))
        x = (const float *)(const void *)a->source + first;
    else
        load_narrow(a, first, n, variant, left);
    if (padded == n && is_readable(b))
        y = (const float *)(const void *)b->source + first;
    else
        load_narrow(b, first, n, variant, right);
    PAD(left, n, padded)
    PAD(right, n, padded)
    int is_short = a->type->kind == SHORT && b->type->kind == SHORT;
    size_t next = (size_t)first + BLOCK;
    Ahead ahead = {a->source + next * a->type->size, b->source + next * b->type->size,
                   a->type->size, b->type->size};
    MeasureFloats measure = is_short ? variant->measure_short : variant->measure_narrow;
    Block block;
    int mismatches = 0;
    measure(x, y, padded, &ahead, ratios, &block);
    if (!block.finite) {
        memmove(left, x, (size_t)n * sizeof *left);
        memmove(right, y, (size_t)n * sizeof *right);
        x = left;
        y = right;
        mismatches = clean_narrow(pair, left, right, n);
        measure(x, y, padded, &ahead, ratios, &block);
    }
    double least = block.max_relative * (1.0 - NEAR), most = block.max_relative * (1.0 + NEAR);
    double known = pair->max_relative * (1.0 - NEAR);
    /* Where a difference is more than float holds, its ratio says nothing about the largest. */
    if (block.doubtful || isinf(block.max_relative))
        variant->find_ratios(x, y, padded, &block);
    else if (block.unequal && most >= pair->max_relative)
        block.max_relative = variant->find_ratio(x, y, padded, ratios, (float)fmax(least, known));
    else
        block.max_relative = 0.0;
    if (block.unequal && block.max_abs >= (float)pair->max_abs)
        block.max_abs = variant->find_error(x, y, padded, (float)block.max_abs);
    else
        block.max_abs = 0.0;
    add_block(pair, &block, padded - n, mismatches);
    NOTE_WORST(x, y)
}

static void measure_wide_block(Pair *pair, const Side *a, const Side *b, Py_ssize_t first, int n,
                               const Variant *variant, const Scales *scales)
{
    double left[BLOCK], right[BLOCK];
    int padded = (n + GROUP - 1) / GROUP * GROUP;
    load_wide(a, first, n, variant, left);
    load_wide(b, first, n, variant, right);
    PAD(left, n, padded)
    PAD(right, n, padded)
    Block block;
    int mismatches = 0;
    variant->measure_wide(left, right, padded, scales, &block);
    if (!block.finite) {
        mismatches = clean_wide(pair, left, right, n);
        variant->measure_wide(left, right, padded, scales, &block);
    }
    if (a->type->kind >= SIGNED64 && b->type->kind >= SIGNED64)
        block.unequal = count_unequal_integers(a, b, first, n);
    add_block(pair, &block, padded - n, mismatches);
    NOTE_WORST(left, right)
}

static void measure_sides(Pair *pair, const Side *a, const Side *b, Py_ssize_t n,
                          const Variant *variant, const Scales *scales)
{
    FloatMode mode = keep_denormals();
    int narrow = a->type->narrow && b->type->narrow;
    for (Py_ssize_t first = 0; first < n; first += BLOCK) {
        int part = n - first < BLOCK ? (int)(n - first) : BLOCK;
        if (narrow)
            measure_narrow_block(pair, a, b, first, part, variant);
        else
            measure_wide_block(pair, a, b, first, part, variant, scales);
    }
    restore_mode(mode);
}

/* --- Python -----------------------------------------------------------------------------------
 * Addresses come as integers; the caller keeps the memory alive. */

static int parse_side(PyObject *const *args, Py_ssize_t n, Side *side)
{
    static const Type TABLE = {"table", 1, load_uint8, NULL, SHORT};
    side->source = PyLong_AsVoidPtr(args[0]);
    if (PyErr_Occurred())
        return 0;
    if (n > 0 && side->source == NULL) {
        PyErr_Format(PyExc_ValueError, "got %zd elements at address 0", n);
        return 0;
    }
    side->table = NULL;
    if (PyLong_Check(args[1])) {
        side->type = &TABLE;
        side->table = PyLong_AsVoidPtr(args[1]);
        if (!PyErr_Occurred() && side->table == NULL)
            PyErr_SetString(PyExc_ValueError, "wanted a table of 256 floats, got address 0");
        return !PyErr_Occurred();
    }
    const char *text = PyUnicode_AsUTF8AndSize(args[1], NULL);
    if (text == NULL)
        return 0;
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(TYPES[i].name, text) == 0) {
            side->type = &TYPES[i];
            return 1;
        }
    PyErr_Format(PyExc_ValueError, "the kernel has no element type '%s'", text);
    return 0;
}

static const Variant *parse_variant(PyObject *name)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    if (text == NULL)
        return NULL;
    for (int i = 0; i < VARIANT_COUNT; i++)
        if (has_variant(&VARIANTS[i]) && (*text == '\0' || strcmp(VARIANTS[i].name, text) == 0))
            return &VARIANTS[i];
    PyErr_Format(PyExc_ValueError, "this machine has no variant '%s'", text);
    return NULL;
}

const char measure_pair_doc[] =
    "measure_pair(address, type, address, type, n, scale, scale, scale, variant, /)\n--\n\n"
    "Return the fields of PiecePair for n elements of a candidate and of a reference.\n\n"
    "A type is a name, or the address of the 256 floats that 8-bit elements stand for. The scales\n"
    "multiply the candidate, the reference and the difference. The variant '' is the fastest.";

PyObject *measure_pair(PyObject *self, PyObject *const *args, Py_ssize_t arg_count)
{
    (void)self;
    if (!check_argument_count(arg_count, 9))
        return NULL;
    Py_ssize_t n = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred())
        return NULL;
    if (n < 0) {
        PyErr_Format(PyExc_ValueError, "got %zd elements", n);
        return NULL;
    }
    Side a, b;
    if (!parse_side(args, n, &a) || !parse_side(args + 2, n, &b))
        return NULL;
    double numbers[3];
    for (int i = 0; i < 3; i++) {
        numbers[i] = PyFloat_AsDouble(args[5 + i]);
        if (PyErr_Occurred())
            return NULL;
    }
    Scales scales = {numbers[0], numbers[1], numbers[2]};
    const Variant *variant = parse_variant(args[8]);
    if (variant == NULL)
        return NULL;
    Pair pair;
    memset(&pair, 0, sizeof pair);
    pair.max_abs_index = -1;
    if (n <= FEW) {
        measure_sides(&pair, &a, &b, n, variant, &scales);
    } else {
        Py_BEGIN_ALLOW_THREADS
        measure_sides(&pair, &a, &b, n, variant, &scales);
        Py_END_ALLOW_THREADS
    }
    return Py_BuildValue(
        "dddddLd(LLLL)LLLLLLdd", total_of(pair.dot), total_of(pair.a_squares),
        total_of(pair.b_squares), total_of(pair.squares), pair.max_abs,
        (long long)pair.max_abs_index, pair.max_relative, (long long)pair.within[0],
        (long long)pair.within[1], (long long)pair.within[2], (long long)pair.within[3],
        (long long)pair.unequal, (long long)pair.nan_mismatch, (long long)pair.inf_mismatch,
        (long long)pair.opposite, (long long)pair.a_special, (long long)pair.b_special,
        pair.a_peak, pair.b_peak);
}

const char pair_variants_doc[] =
    "pair_variants()\n--\n\n"
    "Return the variants that this machine can run, the fastest first.";

PyObject *pair_variants(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    PyObject *names = PyList_New(0);
    for (int i = 0; names != NULL && i < VARIANT_COUNT; i++) {
        if (!has_variant(&VARIANTS[i]))
            continue;
        PyObject *name = PyUnicode_FromString(VARIANTS[i].name);
        if (name == NULL || PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}
