/* Numbers about the errors of a candidate whose reference is rounded to the candidate's own type.
 *
 *     bytes -> load: 1024 elements of each side as floats, the reference rounded
 *           -> drop what is not finite -> places, errors, ratios -> Errors
 *
 * They stand beside those of _pair.c, in a second pass, because the errors are held against the
 * size of the whole reference, which the first pass tells. Threads and strides are the caller's
 * business (pair_errors.py). */

#include "_kernel.h"

#include <float.h>
#include <math.h>

#define BLOCK 1024
#define LANES 8
#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef enum { FLOAT32, BFLOAT16, FLOAT16, FLOAT64, TYPE_COUNT } Type;
static const char *const NAMES[TYPE_COUNT] = {"float32", "bfloat16", "float16", "float64"};
static const size_t SIZES[TYPE_COUNT] = {4, 2, 2, 8};

typedef struct {
    double mean_size;          /* of the reference's elements; not 0 */
    double small, small_error; /* a reference below the one must not be off by more than the other */
    uint32_t most_places;      /* errors of more places in the last digit are counted */
} Limits;

typedef struct {
    int64_t count, lean, nonzero, small, small_wrong, places_over;
    uint64_t places;
    uint32_t places_max;
    double worst, relative[LANES];
} Errors;

ALWAYS_INLINE float half_value(uint16_t bits)
{
    float x = float_of_half(bits), magnitude = fabsf(x);
    return magnitude < 65536.0f ? x : magnitude > 65536.0f ? NAN : copysignf(INFINITY, x);
}

#define READ(element, VALUE)                                                                       \
    for (int i = 0; i < n; i++) {                                                                  \
        element x;                                                                                 \
        memcpy(&x, source + (size_t)i * sizeof x, sizeof x);                                       \
        values[i] = VALUE;                                                                         \
    }

ALWAYS_INLINE void load(const char *restrict source, Type type, int n, float *restrict values)
{
    if (type == FLOAT32)
        READ(float, x)
    else if (type == BFLOAT16)
        READ(uint16_t, float_of_brain(x))
    else if (type == FLOAT16)
        READ(uint16_t, half_value(x))
    else
        READ(double, (float)x)
}

/* A pair with something that is not finite becomes two zeros; returns how many. */
ALWAYS_INLINE int drop_nonfinite(float *restrict a, float *restrict b, int n)
{
    int dropped = 0;
    for (int i = 0; i < n; i++) {
        /* The exponent alone tells; NaN compares as nothing does. */
        uint32_t x, y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        int drop = ((x & 0x7F800000) == 0x7F800000) | ((y & 0x7F800000) == 0x7F800000);
        dropped += drop;
        a[i] = drop ? 0.0f : a[i];
        b[i] = drop ? 0.0f : b[i];
    }
    return dropped;
}

/* The place of a number among all of its type, counted from 0; both zeros are one. */
ALWAYS_INLINE int32_t place_of(float x, Type type)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int32_t magnitude = bits & 0x7FFFFFFF, place = magnitude;
    if (type == BFLOAT16)
        place = magnitude >> 16;
    if (type == FLOAT16)
        place = magnitude < 0x38800000 ? (int32_t)(float_of((uint32_t)magnitude) * 0x1p24f)
                                       : (magnitude >> 13) - (112 << 10);
    return bits < 0 ? -place : place;
}

ALWAYS_INLINE void measure_block(Errors *restrict errors, float *restrict a, float *restrict b,
                                 int n, Type type, const Limits *limits)
{
    double ratios[BLOCK], shares[BLOCK];
    uint32_t gaps[BLOCK];
    int dropped = drop_nonfinite(a, b, n);
    int padded = (n + LANES - 1) / LANES * LANES;
    for (int i = n; i < padded; i++)
        a[i] = b[i] = 0.0f;
    int lean = 0, nonzero = 0, small = 0, small_wrong = 0, over = 0;
    for (int i = 0; i < padded; i++) {
        int32_t x = place_of(a[i], type), y = place_of(b[i], type);
        gaps[i] = x > y ? (uint32_t)x - (uint32_t)y : (uint32_t)y - (uint32_t)x;
        lean += (a[i] > b[i]) - (a[i] < b[i]);
        nonzero += b[i] != 0.0f;
    }
    for (int i = 0; i < padded; i++) {
        double y = (double)b[i], error = fabs((double)a[i] - y), size = fabs(y);
        int is_small = size < limits->small;
        small += is_small;
        small_wrong += is_small & (error > limits->small_error);
        shares[i] = error / (size + limits->mean_size);
        /* Nothing is relative to 0. */
        ratios[i] = size > 0.0 ? error / size : 0.0;
    }
    double worst[LANES] = {0}, relative[LANES] = {0};
    for (int i = 0; i < padded; i += LANES)
        for (int k = 0; k < LANES; k++) {
            relative[k] += ratios[i + k];
            worst[k] = shares[i + k] > worst[k] ? shares[i + k] : worst[k];
        }
    uint32_t most = 0;
    uint64_t places = 0;
    for (int i = 0; i < padded; i++) {
        most = gaps[i] > most ? gaps[i] : most;
        places += gaps[i];
        over += gaps[i] > limits->most_places;
    }
    errors->count += n - dropped;
    errors->lean += lean;
    errors->nonzero += nonzero;
    /* Dropped pairs and padding are zeros, which are small. */
    errors->small += small - (limits->small > 0.0 ? dropped + padded - n : 0);
    errors->small_wrong += small_wrong;
    errors->places += places;
    errors->places_over += over;
    errors->places_max = most > errors->places_max ? most : errors->places_max;
    for (int k = 0; k < LANES; k++) {
        errors->relative[k] += relative[k];
        errors->worst = worst[k] > errors->worst ? worst[k] : errors->worst;
    }
}

typedef struct {
    const char *source;
    Type type;
} Side;

ALWAYS_INLINE void measure_type(Errors *errors, const Side *a, const Side *b, Py_ssize_t n,
                                Type type, const Limits *limits)
{
    float left[BLOCK], right[BLOCK];
    for (Py_ssize_t first = 0; first < n; first += BLOCK) {
        int part = n - first < BLOCK ? (int)(n - first) : BLOCK;
        load(a->source + (size_t)first * SIZES[type], type, part, left);
        load(b->source + (size_t)first * SIZES[b->type], b->type, part, right);
        if (type != b->type && type == BFLOAT16)
            for (int i = 0; i < part; i++)
                right[i] = round_to_brain(right[i]);
        if (type != b->type && type == FLOAT16)
            for (int i = 0; i < part; i++)
                right[i] = round_to_half(right[i]);
        measure_block(errors, left, right, part, type, limits);
    }
}

ALWAYS_INLINE void measure_sides(Errors *errors, const Side *a, const Side *b, Py_ssize_t n,
                                 const Limits *limits)
{
    if (a->type == FLOAT32)
        measure_type(errors, a, b, n, FLOAT32, limits);
    else if (a->type == BFLOAT16)
        measure_type(errors, a, b, n, BFLOAT16, limits);
    else
        measure_type(errors, a, b, n, FLOAT16, limits);
}

static void measure_plain(Errors *errors, const Side *a, const Side *b, Py_ssize_t n,
                          const Limits *limits)
{
    measure_sides(errors, a, b, n, limits);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void measure_avx2(Errors *errors, const Side *a,
                                                         const Side *b, Py_ssize_t n,
                                                         const Limits *limits)
{
    measure_sides(errors, a, b, n, limits);
}
#endif

/* The same sums in the same order whichever is chosen. */
static void measure_errors_of(Errors *errors, const Side *a, const Side *b, Py_ssize_t n,
                              const Limits *limits)
{
    FloatMode mode = keep_denormals();
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        measure_avx2(errors, a, b, n, limits);
    else
#endif
        measure_plain(errors, a, b, n, limits);
    restore_mode(mode);
}

/* --- Python -----------------------------------------------------------------------------------
 * Addresses come as integers; the caller keeps the memory alive. */

static int parse_side(PyObject *const *args, Py_ssize_t n, int type_count, Side *side)
{
    side->source = PyLong_AsVoidPtr(args[0]);
    if (PyErr_Occurred())
        return 0;
    if (n > 0 && side->source == NULL) {
        PyErr_Format(PyExc_ValueError, "got %zd elements at address 0", n);
        return 0;
    }
    const char *name = PyUnicode_AsUTF8AndSize(args[1], NULL);
    if (name == NULL)
        return 0;
    for (int type = 0; type < type_count; type++)
        if (strcmp(name, NAMES[type]) == 0) {
            side->type = (Type)type;
            return 1;
        }
    PyErr_Format(PyExc_ValueError, "errors of type '%s' are not measured", name);
    return 0;
}

const char measure_errors_doc[] =
    "measure_errors(address, type, address, type, n, mean_size, small, small_error, places, /)\n"
    "--\n\n"
    "Return the fields of PieceErrors for n elements of a candidate and of its reference, which\n"
    "is rounded to the candidate's type first.";

PyObject *measure_errors(PyObject *self, PyObject *const *args, Py_ssize_t arg_count)
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
    if (!parse_side(args, n, FLOAT64, &a) || !parse_side(args + 2, n, TYPE_COUNT, &b))
        return NULL;
    Limits limits = {PyFloat_AsDouble(args[5]), PyFloat_AsDouble(args[6]),
                     PyFloat_AsDouble(args[7]), (uint32_t)PyLong_AsUnsignedLong(args[8])};
    if (PyErr_Occurred())
        return NULL;
    Errors errors;
    memset(&errors, 0, sizeof errors);
    Py_BEGIN_ALLOW_THREADS
    measure_errors_of(&errors, &a, &b, n, &limits);
    Py_END_ALLOW_THREADS
    double relative = 0.0;
    for (int k = 0; k < LANES; k++)
        relative += errors.relative[k];
    return Py_BuildValue("LLLLLLKIdd", (long long)errors.count, (long long)errors.lean,
                         (long long)errors.nonzero, (long long)errors.small,
                         (long long)errors.small_wrong, (long long)errors.places_over,
                         (unsigned long long)errors.places, (unsigned int)errors.places_max,
                         errors.worst, relative);
}
