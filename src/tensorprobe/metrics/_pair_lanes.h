/* The inner loops of _pair.c, in vectors of LANES doubles. _pair.c includes this file once for each
 * set of instructions, with LANES, VARIANT(name) and MAX(x, y) defined.
 *
 * Every variant keeps GROUP partial sums, element i in sum i % GROUP, and folds them in the same
 * order: equal data give equal bits on every machine. Nothing is fused, nothing waits for the last
 * step, and no branch depends on the data. */

#define VECTORS (GROUP / LANES)

typedef double VARIANT(Doubles) __attribute__((vector_size(8 * LANES)));
typedef int64_t VARIANT(Flags) __attribute__((vector_size(8 * LANES)));
typedef float VARIANT(Floats) __attribute__((vector_size(4 * LANES)));
#define Doubles VARIANT(Doubles)
#define Flags VARIANT(Flags)
#define Floats VARIANT(Floats)

static inline Doubles VARIANT(widen)(const float *source)
{
    Floats narrow;
    memcpy(&narrow, source, sizeof narrow);
    return __builtin_convertvector(narrow, Doubles);
}

static inline Doubles VARIANT(read)(const double *source)
{
    Doubles wide;
    memcpy(&wide, source, sizeof wide);
    return wide;
}

static inline Doubles VARIANT(magnitude)(Doubles x) { return (Doubles)((Flags)x & INT64_MAX); }

static inline double VARIANT(fold)(const Doubles *sums)
{
    double lanes[GROUP];
    memcpy(lanes, sums, sizeof lanes);
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

static inline double VARIANT(largest)(const Doubles *peaks)
{
    double lanes[GROUP], peak = 0.0;
    memcpy(lanes, peaks, sizeof lanes);
    for (int i = 0; i < GROUP; i++)
        peak = lanes[i] > peak ? lanes[i] : peak;
    return peak;
}

/* Flags are -1 where they hold, so that counts grow below zero. */
static inline int64_t VARIANT(count)(const Flags *flags)
{
    int64_t lanes[GROUP], total = 0;
    memcpy(lanes, flags, sizeof lanes);
    for (int i = 0; i < GROUP; i++)
        total -= lanes[i];
    return total;
}

/* `n` is a multiple of GROUP. */
static void VARIANT(measure_narrow)(const float *a, const float *b, int n, Block *out)
{
    Doubles dot[VECTORS] = {{0}}, a_squares[VECTORS] = {{0}}, b_squares[VECTORS] = {{0}};
    Doubles squares[VECTORS] = {{0}}, error[VECTORS] = {{0}}, ratio[VECTORS] = {{0}};
    Flags unequal[VECTORS] = {{0}}, zero[VECTORS] = {{0}}, both_zero[VECTORS] = {{0}};
    Flags within[THRESHOLD_COUNT][VECTORS] = {{{0}}};
    const Doubles epsilon = (Doubles){0} + EPSILON;
    for (int i = 0; i < n; i += GROUP) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            Doubles x = VARIANT(widen)(a + i + v * LANES), y = VARIANT(widen)(b + i + v * LANES);
            Doubles difference = x - y;
            dot[v] += x * y;
            a_squares[v] += x * x;
            b_squares[v] += y * y;
            squares[v] += difference * difference;
            Doubles d = VARIANT(magnitude)(difference), size = VARIANT(magnitude)(y);
            Flags none = y == 0.0, differs = difference != 0.0;
            size = (Doubles)((Flags)size | (none & (Flags)epsilon));
            Doubles r = d / size;
            error[v] = MAX(error[v], d);
            ratio[v] = MAX(ratio[v], r);
            unequal[v] += differs;
            zero[v] += none;
            both_zero[v] += none & ~differs;
            within[0][v] += r < THRESHOLDS[0];
            within[1][v] += r < THRESHOLDS[1];
            within[2][v] += r < THRESHOLDS[2];
            within[3][v] += r < THRESHOLDS[3];
        }
    }
    out->dot = VARIANT(fold)(dot);
    out->a_squares = VARIANT(fold)(a_squares);
    out->b_squares = VARIANT(fold)(b_squares);
    out->squares = VARIANT(fold)(squares);
    out->max_abs = VARIANT(largest)(error);
    out->max_relative = VARIANT(largest)(ratio);
    out->a_peak = out->b_peak = 0.0;
    out->unequal = VARIANT(count)(unequal);
    out->zero = VARIANT(count)(zero);
    out->both_zero = VARIANT(count)(both_zero);
    for (int t = 0; t < THRESHOLD_COUNT; t++)
        out->within[t] = VARIANT(count)(within[t]);
    double proof = out->a_squares + out->b_squares;
    out->finite = proof <= DBL_MAX; /* no square of a float leaves the range of double */
}

/* The same for doubles, which may need a scale, and whose squares prove nothing. */
static void VARIANT(measure_wide)(const double *a, const double *b, int n, const Scales *scales,
                                  Block *out)
{
    Doubles dot[VECTORS] = {{0}}, a_squares[VECTORS] = {{0}}, b_squares[VECTORS] = {{0}};
    Doubles squares[VECTORS] = {{0}}, error[VECTORS] = {{0}}, ratio[VECTORS] = {{0}};
    Doubles a_peak[VECTORS] = {{0}}, b_peak[VECTORS] = {{0}}, proof[VECTORS] = {{0}};
    Flags unequal[VECTORS] = {{0}}, zero[VECTORS] = {{0}}, both_zero[VECTORS] = {{0}};
    Flags within[THRESHOLD_COUNT][VECTORS] = {{{0}}};
    const Doubles epsilon = (Doubles){0} + EPSILON;
    for (int i = 0; i < n; i += GROUP) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            Doubles x = VARIANT(read)(a + i + v * LANES), y = VARIANT(read)(b + i + v * LANES);
            Doubles difference = x - y;
            Doubles d = VARIANT(magnitude)(difference), size = VARIANT(magnitude)(y);
            proof[v] += x * 0.0 + y * 0.0;
            a_peak[v] = MAX(a_peak[v], VARIANT(magnitude)(x));
            b_peak[v] = MAX(b_peak[v], size);
            Flags none = y == 0.0, differs = difference != 0.0;
            size = (Doubles)((Flags)size | (none & (Flags)epsilon));
            Doubles r = d / size;
            error[v] = MAX(error[v], d);
            ratio[v] = MAX(ratio[v], r);
            unequal[v] += differs;
            zero[v] += none;
            both_zero[v] += none & ~differs;
            within[0][v] += r < THRESHOLDS[0];
            within[1][v] += r < THRESHOLDS[1];
            within[2][v] += r < THRESHOLDS[2];
            within[3][v] += r < THRESHOLDS[3];
            x *= scales->a;
            y *= scales->b;
            difference *= scales->difference;
            dot[v] += x * y;
            a_squares[v] += x * x;
            b_squares[v] += y * y;
            squares[v] += difference * difference;
        }
    }
    out->dot = VARIANT(fold)(dot);
    out->a_squares = VARIANT(fold)(a_squares);
    out->b_squares = VARIANT(fold)(b_squares);
    out->squares = VARIANT(fold)(squares);
    out->max_abs = VARIANT(largest)(error);
    out->max_relative = VARIANT(largest)(ratio);
    out->a_peak = VARIANT(largest)(a_peak);
    out->b_peak = VARIANT(largest)(b_peak);
    out->unequal = VARIANT(count)(unequal);
    out->zero = VARIANT(count)(zero);
    out->both_zero = VARIANT(count)(both_zero);
    for (int t = 0; t < THRESHOLD_COUNT; t++)
        out->within[t] = VARIANT(count)(within[t]);
    double sum = VARIANT(fold)(proof);
    out->finite = sum == 0.0;
}

#undef VECTORS
#undef Doubles
#undef Flags
#undef Floats
