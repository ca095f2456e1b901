/* Statistics and histograms of one array in one pass over its memory.
 *
 *     bytes -> load: 1024 elements as floats or doubles, their extremes -> sum -> Statistics
 *                                                                        -> bin_block -> counts
 *
 * Every element type fits into float or double without loss, but for the 64-bit integers; so
 * extremes and zeros are taken from the elements themselves. Sums are of doubles, over a block that
 * stays in the L1 cache. Threads, strides and dtypes that C lacks are the caller's business
 * (statistics.py); statistics_numpy.py has the same meaning in numpy.
 *
 * The loops are plain C that compilers vectorise. Sums are taken in the same order on every
 * machine, without fused multiply-add: equal data give equal bits everywhere.
 *
 * Numbers about two arrays are in _pair.c and _errors.c; all these files make one module. Others have
 * arrays measured by several threads through what _measuring.h says.
 */

#include "_kernel.h"

#include "../_measuring.h"

#include <float.h>
#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* One build, the best instructions of the processor at hand. The choice needs the ifuncs of glibc;
 * elsewhere (musl, macOS, ARM, whose vectors are always there) the plain build does the work, and
 * so it does with -DCLONES= */
#if !defined(CLONES) && defined(__has_attribute) && defined(__x86_64__) && defined(__GLIBC__)
#if __has_attribute(target_clones)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
#ifndef CLONES
#define CLONES
#endif

#define BLOCK 1024
#define ROWS 8
#define COLUMNS (BLOCK / ROWS)

/* --- ranks: any element as an integer in the same order ---------------------------------------
 * Integer maxima vectorise and do not depend on the order of reading, not even for -0.0 and 0.0.
 * Negative floats have the bits of their magnitude inverted; doing it twice undoes it. */

static inline int16_t order16(uint16_t x) { return (int16_t)(x ^ (((int16_t)x >> 15) & 0x7FFF)); }
static inline int32_t order32(uint32_t x)
{
    return (int32_t)(x ^ (uint32_t)(((int32_t)x >> 31) & INT32_MAX));
}
static inline int64_t order64(uint64_t x)
{
    return (int64_t)(x ^ (uint64_t)(((int64_t)x >> 63) & INT64_MAX));
}

static int64_t rank_of_double(double x) { return order64(bits_of(x)); }
static int64_t rank_of_uint64(uint64_t x) { return (int64_t)(x ^ ((uint64_t)1 << 63)); }
static double double_of_rank(int64_t rank) { return double_of((uint64_t)order64((uint64_t)rank)); }
static uint64_t uint64_of_rank(int64_t rank) { return (uint64_t)rank ^ ((uint64_t)1 << 63); }

/* --- load: up to BLOCK elements of one type, at any address -----------------------------------
 * Write their values; return the ranks of the largest and the smallest (NaN and infinities have
 * one, too) and the number of zeros, counted in a type as wide as the element so that the loop
 * stays narrow. */

typedef union {
    float narrow[BLOCK]; /* for types that fit: half the way to the cache and back */
    double wide[BLOCK];
} Values;

typedef struct {
    int64_t max, min, zeros;
} Extremes;

typedef Extremes (*Load)(const char *source, int n, Values *values);

#define LOAD(name, element, form, order, counter, ORDER, RANK, IS_ZERO, VALUE)                     \
    CLONES static Extremes load_##name(const char *restrict source, int n,                         \
                                       Values *restrict values)                                    \
    {                                                                                              \
        element x;                                                                                 \
        memcpy(&x, source, sizeof x);                                                              \
        order max = ORDER(x), min = max;                                                           \
        counter zeros = 0;                                                                         \
        for (int i = 0; i < n; i++) {                                                              \
            memcpy(&x, source + (size_t)i * sizeof x, sizeof x);                                   \
            order place = ORDER(x);                                                                \
            max = place > max ? place : max;                                                       \
            min = place < min ? place : min;                                                       \
            zeros += IS_ZERO(x);                                                                   \
            values->form[i] = VALUE(x);                                                            \
        }                                                                                          \
        return (Extremes){RANK(max), RANK(min), zeros};                                            \
    }

#define SAME(x) (x)
#define IS_ZERO(x) ((x) == 0)
#define IS_TRUE(x) ((uint8_t)((x) != 0))
#define IS_ZERO16(x) ((uint16_t)((x) << 1) == 0)
#define IS_ZERO_FLOAT(x) ((x) << 1 == 0)
#define HALF_RANK(place) rank_of_double(float_of_half((uint16_t)order16((uint16_t)(place))))
#define BRAIN_RANK(place) rank_of_double(float_of_brain((uint16_t)order16((uint16_t)(place))))
#define FLOAT32_RANK(place) rank_of_double(float_of((uint32_t)order32((uint32_t)(place))))

LOAD(float64, uint64_t, wide, int64_t, int64_t, order64, SAME, IS_ZERO_FLOAT, double_of)
LOAD(float32, uint32_t, narrow, int32_t, int32_t, order32, FLOAT32_RANK, IS_ZERO_FLOAT, float_of)
LOAD(half, uint16_t, narrow, int16_t, int16_t, order16, HALF_RANK, IS_ZERO16, float_of_half)
LOAD(bfloat16, uint16_t, narrow, int16_t, int16_t, order16, BRAIN_RANK, IS_ZERO16, float_of_brain)
LOAD(int64, int64_t, wide, int64_t, int64_t, SAME, SAME, IS_ZERO, double_of_int64)
LOAD(int32, int32_t, wide, int32_t, int32_t, SAME, SAME, IS_ZERO, SAME)
LOAD(int16, int16_t, narrow, int16_t, int16_t, SAME, SAME, IS_ZERO, SAME)
LOAD(int8, int8_t, narrow, int8_t, int16_t, SAME, SAME, IS_ZERO, SAME)
LOAD(uint64, uint64_t, wide, uint64_t, uint64_t, SAME, rank_of_uint64, IS_ZERO, double_of_uint64)
LOAD(uint32, uint32_t, wide, uint32_t, uint32_t, SAME, SAME, IS_ZERO, SAME)
LOAD(uint16, uint16_t, narrow, uint16_t, uint16_t, SAME, SAME, IS_ZERO, SAME)
LOAD(uint8, uint8_t, narrow, uint8_t, int16_t, SAME, SAME, IS_ZERO, SAME)
LOAD(bool, uint8_t, narrow, uint8_t, int16_t, IS_TRUE, SAME, IS_ZERO, IS_TRUE)

#if defined(__x86_64__)
/* The same with the processor's own conversion, which also knows infinities and NaN. */
__attribute__((target("avx2,f16c"))) static Extremes convert_half(const char *source, int n,
                                                                  Values *values)
{
    __m256i max = _mm256_set1_epi16(INT16_MIN), min = _mm256_set1_epi16(INT16_MAX);
    __m256i zeros = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 16) {
        __m256i x;
        if (n - i >= 16)
            x = _mm256_loadu_si256((const void *)(source + 2 * (size_t)i));
        else {
            /* Fill up with the last element, whose zeros are taken back below. */
            uint16_t tail[16];
            for (int k = 0; k < 16; k++)
                memcpy(&tail[k], source + 2 * (size_t)(i + k < n ? i + k : n - 1), 2);
            x = _mm256_loadu_si256((const void *)tail);
        }
        __m256i sign = _mm256_srli_epi16(_mm256_srai_epi16(x, 15), 1);
        __m256i place = _mm256_xor_si256(x, sign);
        max = _mm256_max_epi16(max, place);
        min = _mm256_min_epi16(min, place);
        zeros = _mm256_sub_epi16(
            zeros, _mm256_cmpeq_epi16(_mm256_slli_epi16(x, 1), _mm256_setzero_si256()));
        float wide[16];
        float *to = n - i >= 16 ? values->narrow + i : wide;
        _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm256_castsi256_si128(x)));
        _mm256_storeu_ps(to + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
        if (n - i < 16)
            memcpy(values->narrow + i, wide, (size_t)(n - i) * sizeof *wide);
    }
    int16_t tops[16], bottoms[16], counts[16];
    _mm256_storeu_si256((void *)tops, max);
    _mm256_storeu_si256((void *)bottoms, min);
    _mm256_storeu_si256((void *)counts, zeros);
    int16_t top = tops[0], bottom = bottoms[0];
    int64_t zero_count = 0;
    for (int k = 0; k < 16; k++) {
        top = tops[k] > top ? tops[k] : top;
        bottom = bottoms[k] < bottom ? bottoms[k] : bottom;
        zero_count += counts[k];
    }
    uint16_t last;
    memcpy(&last, source + 2 * (size_t)(n - 1), sizeof last);
    if (IS_ZERO16(last))
        zero_count -= (16 - n % 16) % 16;
    return (Extremes){HALF_RANK(top), HALF_RANK(bottom), zero_count};
}
#endif

/* The extremes tell whether there is anything to mend. */
static Extremes load_float16(const char *source, int n, Values *values)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return convert_half(source, n, values);
#endif
    Extremes extremes = load_half(source, n, values);
    if (extremes.max >= rank_of_double(65536.0) || extremes.min <= rank_of_double(-65536.0))
        for (int i = 0; i < n; i++) {
            float x = values->narrow[i];
            if (fabsf(x) >= 65536.0f)
                values->narrow[i] = fabsf(x) > 65536.0f ? NAN : copysignf(INFINITY, x);
        }
    return extremes;
}

/* From the end, for both forms share their memory. */
static void widen(Values *values, int n)
{
    for (int i = n - 1; i >= 0; i--)
        values->wide[i] = (double)values->narrow[i];
}

/* --- sum: a block's values and their squares ---------------------------------------------------
 * A running sum would have to wait for itself. So a block is read as ROWS rows, added up column by
 * column, and the columns are folded in halves: no step waits for the last, and rounding errors
 * grow with log(n) only. */

typedef struct {
    double values, squares;
} Sums;

static inline void add_arrays(double *restrict to, const double *restrict from, int n)
{
    for (int k = 0; k < n; k++)
        to[k] += from[k];
}

static inline double fold(double *columns, int length)
{
    for (; length > 8; length -= length / 2)
        add_arrays(columns, columns + length - length / 2, length / 2);
    double sum = 0.0;
    for (int k = 0; k < length; k++)
        sum += columns[k];
    return sum;
}

#define SUM(form)                                                                                  \
    CLONES static Sums sum_##form(const Values *values, int n)                                     \
    {                                                                                              \
        double sums[COLUMNS], squares[COLUMNS];                                                    \
        int columns = n / ROWS;                                                                    \
        for (int k = 0; k < columns; k++) {                                                        \
            double x = values->form[k], sum = x, square = x * x;                                   \
            for (int row = 1; row < ROWS; row++) {                                                 \
                x = values->form[row * columns + k];                                               \
                sum += x;                                                                          \
                square += x * x;                                                                   \
            }                                                                                      \
            sums[k] = sum;                                                                         \
            squares[k] = square;                                                                   \
        }                                                                                          \
        Sums total = {fold(sums, columns), fold(squares, columns)};                                \
        for (int i = columns * ROWS; i < n; i++) {                                                 \
            double x = values->form[i];                                                            \
            total.values += x;                                                                     \
            total.squares += x * x;                                                                \
        }                                                                                          \
        return total;                                                                              \
    }

SUM(narrow)
SUM(wide)

/* --- the types --------------------------------------------------------------------------------*/

typedef struct {
    const char *name;
    size_t size;
    Load load;
    enum { NARROW, WIDE } form;
    enum { REAL, SIGNED, UNSIGNED } rank;
} Type;

static const Type TYPES[] = {
    {"float64", 8, load_float64, WIDE, REAL},
    {"float32", 4, load_float32, NARROW, REAL},
    {"float16", 2, load_float16, NARROW, REAL},
    {"bfloat16", 2, load_bfloat16, NARROW, REAL},
    {"int64", 8, load_int64, WIDE, SIGNED},
    {"int32", 4, load_int32, WIDE, SIGNED},
    {"int16", 2, load_int16, NARROW, SIGNED},
    {"int8", 1, load_int8, NARROW, SIGNED},
    {"uint64", 8, load_uint64, WIDE, UNSIGNED},
    {"uint32", 4, load_uint32, WIDE, SIGNED},
    {"uint16", 2, load_uint16, NARROW, SIGNED},
    {"uint8", 1, load_uint8, NARROW, SIGNED},
    {"bool", 1, load_bool, NARROW, SIGNED},
};

/* --- statistics -------------------------------------------------------------------------------*/

/* Squares leave the range of double long before the elements do. A block whose largest magnitude
 * is extreme is summed in another unit, exact because it is a power of two. Keep UNITS equal to
 * UNITS in statistics_numpy.py. */
enum { SMALL, PLAIN, BIG, UNIT_COUNT };
static const double UNITS[UNIT_COUNT] = {0x1p-600, 1.0, 0x1p600};
static const double SMALL_LIMIT = 0x1p-480;
static const double BIG_LIMIT = 0x1p480;

/* A sum that remembers what rounding took from it (Neumaier). */
typedef struct {
    double total, lost;
} Sum;

typedef struct {
    int64_t nans, positive_infinities, negative_infinities, zeros;
    int64_t finite;   /* none: max and min mean nothing */
    int64_t max, min; /* ranks */
    Sum sums[UNIT_COUNT], squares[UNIT_COUNT];
} Statistics;

static void add_to(Sum *sum, double value)
{
    double total = sum->total + value;
    if (fabs(sum->total) >= fabs(value))
        sum->lost += (sum->total - total) + value;
    else
        sum->lost += (value - total) + sum->total;
    sum->total = total;
}

static double find_peak(Extremes extremes)
{
    double max = fabs(double_of_rank(extremes.max)), min = fabs(double_of_rank(extremes.min));
    return max > min ? max : min;
}

/* What is found in one block, whatever was found before it. */
typedef struct {
    int64_t nans, positive_infinities, negative_infinities;
    int finite, unit;
    Extremes extremes;
    Sums sums;
} Block;

static void add_block(Statistics *statistics, const Block *block)
{
    statistics->nans += block->nans;
    statistics->positive_infinities += block->positive_infinities;
    statistics->negative_infinities += block->negative_infinities;
    if (block->finite == 0)
        return;
    if (statistics->finite == 0 || block->extremes.max > statistics->max)
        statistics->max = block->extremes.max;
    if (statistics->finite == 0 || block->extremes.min < statistics->min)
        statistics->min = block->extremes.min;
    statistics->finite += block->finite;
    statistics->zeros += block->extremes.zeros;
    add_to(&statistics->sums[block->unit], block->sums.values);
    add_to(&statistics->squares[block->unit], block->sums.squares);
}

/* Count what is not finite and move the finite elements together. */
static int drop_nonfinite(Block *block, double *values, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        double x = values[i];
        block->nans += x != x;
        block->positive_infinities += x > DBL_MAX;
        block->negative_infinities += x < -DBL_MAX;
        values[kept] = x;
        kept += fabs(x) <= DBL_MAX;
    }
    return kept;
}

static Extremes find_extremes(const double *values, int n)
{
    double max = n ? values[0] : 0.0, min = max;
    int64_t zeros = 0;
    for (int i = 0; i < n; i++) {
        max = values[i] > max ? values[i] : max;
        min = values[i] < min ? values[i] : min;
        zeros += values[i] == 0.0;
    }
    return (Extremes){rank_of_double(max), rank_of_double(min), zeros};
}

/* Sum as if nothing were special. A finite sum of squares proves that nothing was, unless it is so
 * large or so small that squares may have been lost; only such a block is looked at closely. */
static Block look_at_block(const char *source, int n, const Type *type)
{
    Values values;
    Block block = {.finite = n, .unit = PLAIN};
    block.extremes = type->load(source, n, &values);
    /* Processors fetch memory ahead by themselves only to the end of a page, and a block of wide
     * elements is that long: the next one comes while this one is summed. */
    if (type->size >= 4)
        for (size_t ahead = 0, size = (size_t)n * type->size; ahead < size; ahead += 64)
            __builtin_prefetch(source + size + ahead);
    block.sums = type->form == WIDE ? sum_wide(&values, n) : sum_narrow(&values, n);
    double largest_square = BIG_LIMIT * BIG_LIMIT, smallest_square = SMALL_LIMIT * SMALL_LIMIT;
    int plain = block.sums.squares >= smallest_square && block.sums.squares <= largest_square;
    if (plain || block.extremes.zeros == n)
        return block;
    /* Only floating-point types get here, so the ranks are those of doubles. */
    if (type->form == NARROW)
        widen(&values, n);
    n = block.finite = drop_nonfinite(&block, values.wide, n);
    block.extremes = find_extremes(values.wide, n);
    double peak = find_peak(block.extremes);
    block.unit = peak > BIG_LIMIT ? BIG : peak < SMALL_LIMIT ? SMALL : PLAIN;
    for (int i = 0; i < n; i++)
        values.wide[i] /= UNITS[block.unit];
    block.sums = sum_wide(&values, n);
    return block;
}

static Py_ssize_t count_blocks(Py_ssize_t n) { return n / BLOCK + (n % BLOCK != 0); }

/* Look at the block of this number of n elements. */
static Block look_at(const char *source, Py_ssize_t n, const Type *type, Py_ssize_t number)
{
    Py_ssize_t left = n - number * BLOCK;
    return look_at_block(source + (size_t)(number * BLOCK) * type->size,
                         left < BLOCK ? (int)left : BLOCK, type);
}

static void measure_elements(const char *source, Py_ssize_t n, const Type *type, Statistics *out)
{
    FloatMode mode = keep_denormals();
    for (Py_ssize_t number = 0; number < count_blocks(n); number++) {
        Block block = look_at(source, n, type, number);
        add_block(out, &block);
    }
    restore_mode(mode);
}

/* --- histogram --------------------------------------------------------------------------------*/

typedef struct {
    double low, high, bins;
} Range;

/* Write each element's bin; `bins` stands for none. NaN fails both comparisons, inf one. Keep
 * the arithmetic equal to bin_values in statistics_numpy.py, so that both agree at every edge. */
CLONES static void bin_block(const double *values, int n, const Range *range, int32_t *numbers)
{
    double low = range->low, high = range->high, bins = range->bins;
    double unit = high - low > DBL_MAX ? 0.5 : 1.0; /* a width past double's range: use halves */
    double start = low * unit, width = high * unit - low * unit;
    double wide = width > 0.0 ? width : 1.0; /* low == high: all of it is bin 0 */
    for (int i = 0; i < n; i++) {
        double x = values[i];
        double place = (x * unit - start) / wide * bins;
        place = place < bins - 1.0 ? place : bins - 1.0; /* the last bin holds its upper edge */
        place = x >= low ? place : bins;
        place = x <= high ? place : bins;
        numbers[i] = (int32_t)place;
    }
}

static void bin_elements(const char *source, Py_ssize_t n, const Type *type, const Range *range,
                         int64_t *counts)
{
    Values values;
    int32_t numbers[BLOCK];
    int32_t bins = (int32_t)range->bins;
    FloatMode mode = keep_denormals();
    for (Py_ssize_t done = 0; done < n; done += BLOCK) {
        int part = n - done < BLOCK ? (int)(n - done) : BLOCK;
        type->load(source + (size_t)done * type->size, part, &values);
        if (type->form == NARROW)
            widen(&values, part);
        bin_block(values.wide, part, range, numbers);
        for (int i = 0; i < part; i++)
            if (numbers[i] < bins)
                counts[numbers[i]]++;
    }
    restore_mode(mode);
}

/* --- bytes -----------------------------------------------------------------------------------
 * Equal neighbours would wait for each other's increment: four tables take turns. */
static void count_byte_values(const unsigned char *source, Py_ssize_t n, int64_t *counts)
{
    int64_t tables[4][256] = {{0}};
    for (Py_ssize_t i = 0; i < n; i++)
        tables[i % 4][source[i]]++;
    for (int value = 0; value < 256; value++)
        counts[value] += tables[0][value] + tables[1][value] + tables[2][value] + tables[3][value];
}

/* --- Python -----------------------------------------------------------------------------------
 * Addresses come as integers; the caller keeps the memory alive. */

static int parse_source(PyObject *const *args, const char **source, Py_ssize_t *n)
{
    *source = PyLong_AsVoidPtr(args[0]);
    if (PyErr_Occurred())
        return 0;
    *n = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred())
        return 0;
    if (*n < 0 || (*n > 0 && *source == NULL)) {
        PyErr_Format(PyExc_ValueError, "got %zd elements at address %p", *n, (const void *)*source);
        return 0;
    }
    return 1;
}

static const Type *parse_type(PyObject *name)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    if (text == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(TYPES[i].name, text) == 0)
            return &TYPES[i];
    PyErr_Format(PyExc_ValueError, "the kernel has no element type '%s'", text);
    return NULL;
}

int check_argument_count(Py_ssize_t got, Py_ssize_t wanted)
{
    if (got != wanted)
        PyErr_Format(PyExc_TypeError, "got %zd arguments, wanted %zd", got, wanted);
    return got == wanted;
}

static PyObject *build_extreme(const Statistics *statistics, const Type *type, int64_t rank)
{
    if (statistics->finite == 0)
        Py_RETURN_NONE;
    if (type->rank == UNSIGNED)
        return PyLong_FromUnsignedLongLong(uint64_of_rank(rank));
    if (type->rank == SIGNED)
        return PyLong_FromLongLong(rank);
    return PyFloat_FromDouble(double_of_rank(rank) + 0.0); /* -0.0 becomes 0.0 */
}

struct Measuring {
    const char *source;
    Py_ssize_t n;
    const Type *type;
    Statistics got;
    /* What several threads have found, to be added up in order; NULL where one does it all. */
    Block *blocks;
};

/* So many blocks are one part. */
#define TOGETHER 64

static int parse_measuring(PyObject *const *args, Measuring *measuring)
{
    memset(measuring, 0, sizeof *measuring);
    return parse_source(args, &measuring->source, &measuring->n) &&
           (measuring->type = parse_type(args[2])) != NULL;
}

static Py_ssize_t count_parts(const Measuring *measuring)
{
    Py_ssize_t parts = (count_blocks(measuring->n) + TOGETHER - 1) / TOGETHER;
    return parts ? parts : 1;
}

static Measuring *begin_measuring(PyObject *address, PyObject *n, PyObject *type)
{
    PyObject *const args[] = {address, n, type};
    Measuring *measuring = PyMem_Malloc(sizeof *measuring);
    if (measuring == NULL)
        PyErr_NoMemory();
    else if (!parse_measuring(args, measuring)) {
        PyMem_Free(measuring);
        measuring = NULL;
    }
    if (measuring != NULL && count_parts(measuring) > 1) {
        size_t size = (size_t)count_blocks(measuring->n) * sizeof *measuring->blocks;
        if ((measuring->blocks = PyMem_Malloc(size)) == NULL) {
            PyErr_NoMemory();
            PyMem_Free(measuring);
            measuring = NULL;
        }
    }
    return measuring;
}

/* Copy some of the elements, now that they are in the cache. */
static void copy_elements(const Measuring *measuring, Py_ssize_t first, Py_ssize_t count, char *copy)
{
    size_t size = measuring->type->size, left = (size_t)(measuring->n - first), at = (size_t)first * size;
    if (copy != NULL)
        memcpy(copy + at, measuring->source + at, (left < (size_t)count ? left : (size_t)count) * size);
}

static void run_part(Measuring *measuring, Py_ssize_t part, char *copy)
{
    if (measuring->blocks == NULL) {
        measure_elements(measuring->source, measuring->n, measuring->type, &measuring->got);
        copy_elements(measuring, 0, measuring->n, copy);
        return;
    }
    Py_ssize_t end = (part + 1) * TOGETHER, count = count_blocks(measuring->n);
    FloatMode mode = keep_denormals();
    for (Py_ssize_t number = part * TOGETHER; number < (end < count ? end : count); number++) {
        measuring->blocks[number] =
            look_at(measuring->source, measuring->n, measuring->type, number);
        copy_elements(measuring, number * BLOCK, BLOCK, copy);
    }
    restore_mode(mode);
}

static PyObject *tell_measuring(const Measuring *measuring)
{
    const Statistics *got = &measuring->got;
    const Type *type = measuring->type;
    double sums[UNIT_COUNT], squares[UNIT_COUNT];
    for (int unit = 0; unit < UNIT_COUNT; unit++) {
        sums[unit] = got->sums[unit].total + got->sums[unit].lost;
        squares[unit] = got->squares[unit].total + got->squares[unit].lost;
    }
    return Py_BuildValue("LLLLNN(ddd)(ddd)", (long long)got->nans,
                         (long long)got->positive_infinities, (long long)got->negative_infinities,
                         (long long)got->zeros, build_extreme(got, type, got->max),
                         build_extreme(got, type, got->min), sums[SMALL], sums[PLAIN], sums[BIG],
                         squares[SMALL], squares[PLAIN], squares[BIG]);
}

static PyObject *tell_parts(Measuring *measuring)
{
    if (measuring->blocks != NULL) {
        FloatMode mode = keep_denormals();
        for (Py_ssize_t number = 0; number < count_blocks(measuring->n); number++)
            add_block(&measuring->got, &measuring->blocks[number]);
        restore_mode(mode);
    }
    return tell_measuring(measuring);
}

static void end_measuring(Measuring *measuring)
{
    if (measuring != NULL)
        PyMem_Free(measuring->blocks);
    PyMem_Free(measuring);
}

PyDoc_STRVAR(measure_doc,
             "measure(address, n, type, /)\n--\n\n"
             "Return nans, +infinities, -infinities, zeros, max, min, sums, squares.\n\n"
             "max and min are over the finite elements, None without any. The sums come in three\n"
             "parts, of elements in units of 2**-600, 1 and 2**600.");

static PyObject *measure(PyObject *self, PyObject *const *args, Py_ssize_t arg_count)
{
    (void)self;
    Measuring measuring;
    if (!check_argument_count(arg_count, 3) || !parse_measuring(args, &measuring))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    measure_elements(measuring.source, measuring.n, measuring.type, &measuring.got);
    Py_END_ALLOW_THREADS
    return tell_measuring(&measuring);
}

PyDoc_STRVAR(histogram_doc,
             "histogram(address, n, type, low, high, bins, counts, /)\n--\n\n"
             "Add the elements in [low, high] to the `bins` int64 at the address `counts`.");

static PyObject *histogram(PyObject *self, PyObject *const *args, Py_ssize_t arg_count)
{
    (void)self;
    const char *source;
    Py_ssize_t n;
    const Type *type;
    if (!check_argument_count(arg_count, 7) || !parse_source(args, &source, &n) ||
        !(type = parse_type(args[2])))
        return NULL;
    Range range;
    range.low = PyFloat_AsDouble(args[3]);
    if (PyErr_Occurred())
        return NULL;
    range.high = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred())
        return NULL;
    long bins = PyLong_AsLong(args[5]);
    if (PyErr_Occurred())
        return NULL;
    int64_t *counts = PyLong_AsVoidPtr(args[6]);
    if (PyErr_Occurred())
        return NULL;
    if (counts == NULL || bins < 1 || bins >= INT32_MAX || !isfinite(range.low) ||
        !isfinite(range.high) || range.low > range.high) {
        PyErr_SetString(PyExc_ValueError,
                        "wanted finite low <= high, 1 <= bins < 2**31 - 1 and room for the counts");
        return NULL;
    }
    range.bins = (double)bins;
    Py_BEGIN_ALLOW_THREADS
    bin_elements(source, n, type, &range, counts);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyDoc_STRVAR(count_bytes_doc,
             "count_bytes(address, n, counts, /)\n--\n\n"
             "Add how often each byte value occurs to the 256 int64 at the address `counts`.");

static PyObject *count_bytes(PyObject *self, PyObject *const *args, Py_ssize_t arg_count)
{
    (void)self;
    const char *source;
    Py_ssize_t n;
    if (!check_argument_count(arg_count, 3) || !parse_source(args, &source, &n))
        return NULL;
    int64_t *counts = PyLong_AsVoidPtr(args[2]);
    if (PyErr_Occurred())
        return NULL;
    if (counts == NULL) {
        PyErr_SetString(PyExc_ValueError, "wanted room for the counts, got address 0");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    count_byte_values((const unsigned char *)source, n, counts);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"measure", (PyCFunction)(void (*)(void))measure, METH_FASTCALL, measure_doc},
    {"histogram", (PyCFunction)(void (*)(void))histogram, METH_FASTCALL, histogram_doc},
    {"count_bytes", (PyCFunction)(void (*)(void))count_bytes, METH_FASTCALL, count_bytes_doc},
    {"measure_pair", (PyCFunction)(void (*)(void))measure_pair, METH_FASTCALL, measure_pair_doc},
    {"measure_errors", (PyCFunction)(void (*)(void))measure_errors, METH_FASTCALL,
     measure_errors_doc},
    {"pair_variants", pair_variants, METH_NOARGS, pair_variants_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_kernel",
    .m_doc = "Numbers of arrays; tensorprobe.metrics.statistics and .pair are the ways in.",
    .m_size = 0,
    .m_methods = METHODS,
};

static const MeasuringApi MEASURING = {begin_measuring, tell_parts, end_measuring, count_parts, run_part};

PyMODINIT_FUNC PyInit__kernel(void)
{
    PyObject *made = PyModule_Create(&MODULE);
    PyObject *capsule = made ? PyCapsule_New((void *)&MEASURING, MEASURING_NAME, NULL) : NULL;
    if (made && (!capsule || PyModule_AddObjectRef(made, "measuring", capsule)))
        Py_CLEAR(made);
    Py_XDECREF(capsule);
    return made;
}
