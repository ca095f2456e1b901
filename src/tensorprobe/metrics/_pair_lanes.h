/* The inner loops of _pair.c. It includes this file once for each set of instructions, with
 *
 *     VARIANT(name)            the name with the variant's suffix
 *     LANES, FLOAT_LANES       how many doubles and how many floats one vector holds
 *     MAX, FLOAT_MAX           the larger of two vectors' lanes
 *     ANY(flags)               whether one of the FLOAT_LANES flags holds
 *     WIDEN(floats)            LANES floats as doubles
 *     ADD_PRODUCT(x, y, sum)   x * y + sum, where x * y is exact, so that it may be fused
 *
 * Every variant keeps GROUP partial sums, element i in sum i % GROUP, and folds them in the same
 * order: equal data give equal bits on every machine. No branch depends on the data, and no step
 * waits long for the last. `n` is a multiple of GROUP everywhere. */

#define VECTORS (GROUP / LANES)
#define FLOAT_VECTORS (GROUP / FLOAT_LANES)

typedef double VARIANT(Doubles) __attribute__((vector_size(8 * LANES)));
typedef int64_t VARIANT(Flags) __attribute__((vector_size(8 * LANES)));
typedef float VARIANT(Halves) __attribute__((vector_size(4 * LANES)));
typedef float VARIANT(Floats) __attribute__((vector_size(4 * FLOAT_LANES)));
typedef int32_t VARIANT(FloatFlags) __attribute__((vector_size(4 * FLOAT_LANES)));
#define Doubles VARIANT(Doubles)
#define Flags VARIANT(Flags)
#define Halves VARIANT(Halves)
#define Floats VARIANT(Floats)
#define FloatFlags VARIANT(FloatFlags)

static inline Doubles VARIANT(widen)(const float *source)
{
    Halves narrow;
    memcpy(&narrow, source, sizeof narrow);
    return WIDEN(narrow);
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

static inline float VARIANT(largest_float)(const Floats *peaks)
{
    float lanes[GROUP], peak = 0.0f;
    memcpy(lanes, peaks, sizeof lanes);
    for (int i = 0; i < GROUP; i++)
        peak = lanes[i] > peak ? lanes[i] : peak;
    return peak;
}

static inline int64_t VARIANT(count_floats)(const FloatFlags *flags)
{
    int32_t lanes[GROUP], total = 0;
    memcpy(lanes, flags, sizeof lanes);
    for (int i = 0; i < GROUP; i++)
        total -= lanes[i];
    return total;
}

/* Sums are of doubles. Errors are of floats, twice as many at a time, and therefore near: see
 * NEAR in _pair.c, also for what is short. */
static inline __attribute__((always_inline)) void
VARIANT(measure_floats)(const float *restrict a, const float *restrict b, int n, int is_short,
                        const Ahead *ahead, float *restrict ratios, Block *restrict out)
{
    Doubles dot[VECTORS] = {{0}}, a_squares[VECTORS] = {{0}}, b_squares[VECTORS] = {{0}};
    Doubles squares[VECTORS] = {{0}};
    Floats error[FLOAT_VECTORS] = {{0}};
    const Floats epsilon = (Floats){0} + (float)EPSILON;
    /* Division is slow and has a unit of its own: it goes on while the sums are added. */
    for (int i = 0; i < n; i += GROUP) {
        __builtin_prefetch(ahead->a + (size_t)i * ahead->a_size);
        __builtin_prefetch(ahead->b + (size_t)i * ahead->b_size);
#pragma GCC unroll 4
        for (int v = 0; v < FLOAT_VECTORS; v++) {
            Floats x, y;
            memcpy(&x, a + i + v * FLOAT_LANES, sizeof x);
            memcpy(&y, b + i + v * FLOAT_LANES, sizeof y);
            Floats d = (Floats)((FloatFlags)(x - y) & INT32_MAX);
            FloatFlags none = y == 0.0f;
            Floats size = (Floats)(((FloatFlags)y & INT32_MAX) | (none & (FloatFlags)epsilon));
            Floats r = d / size;
            memcpy(ratios + i + v * FLOAT_LANES, &r, sizeof r);
            error[v] = FLOAT_MAX(error[v], d);
        }
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            Doubles x = VARIANT(widen)(a + i + v * LANES), y = VARIANT(widen)(b + i + v * LANES);
            Doubles difference = x - y;
            dot[v] = ADD_PRODUCT(x, y, dot[v]);
            a_squares[v] = ADD_PRODUCT(x, x, a_squares[v]);
            b_squares[v] = ADD_PRODUCT(y, y, b_squares[v]);
            squares[v] += difference * difference;
        }
    }
    Floats ratio[FLOAT_VECTORS] = {{0}};
    FloatFlags unequal[FLOAT_VECTORS] = {{0}}, perhaps[FLOAT_VECTORS] = {{0}};
    FloatFlags within[THRESHOLD_COUNT][FLOAT_VECTORS] = {{{0}}};
    for (int i = 0; i < n; i += GROUP) {
#pragma GCC unroll 4
        for (int v = 0; v < FLOAT_VECTORS; v++) {
            Floats r;
            memcpy(&r, ratios + i + v * FLOAT_LANES, sizeof r);
            ratio[v] = FLOAT_MAX(ratio[v], r);
            unequal[v] += r != 0.0f; /* floats that differ do so by 2^-25 of either at least */
            within[0][v] += r < SURELY[0];
            within[1][v] += r < SURELY[1];
            within[2][v] += r < SURELY[2];
            within[3][v] += r < SURELY[3];
            if (!is_short) {
                perhaps[v] += r < PERHAPS[0];
                perhaps[v] += r < PERHAPS[1];
                perhaps[v] += r < PERHAPS[2];
                perhaps[v] += r < PERHAPS[3];
            }
        }
    }
    out->dot = VARIANT(fold)(dot);
    out->a_squares = VARIANT(fold)(a_squares);
    out->b_squares = VARIANT(fold)(b_squares);
    out->squares = VARIANT(fold)(squares);
    out->max_abs = VARIANT(largest_float)(error);
    out->max_relative = VARIANT(largest_float)(ratio);
    out->a_peak = out->b_peak = 0.0;
    out->unequal = VARIANT(count_floats)(unequal);
    out->doubtful = 0;
    for (int t = 0; t < THRESHOLD_COUNT; t++) {
        out->within[t] = VARIANT(count_floats)(within[t]);
        out->doubtful -= out->within[t];
    }
    out->doubtful = is_short ? 0 : out->doubtful + VARIANT(count_floats)(perhaps);
    double proof = out->a_squares + out->b_squares;
    out->finite = proof <= DBL_MAX; /* no square of a float leaves the range of double */
}

static void VARIANT(measure_narrow)(const float *a, const float *b, int n, const Ahead *ahead,
                                    float *ratios, Block *out)
{
    VARIANT(measure_floats)(a, b, n, 0, ahead, ratios, out);
}

static void VARIANT(measure_short)(const float *a, const float *b, int n, const Ahead *ahead,
                                    float *ratios, Block *out)
{
    VARIANT(measure_floats)(a, b, n, 1, ahead, ratios, out);
}

/* Return the largest error exactly, knowing that its near value is not below `limit`. */
static double VARIANT(find_error)(const float *a, const float *b, int n, float limit)
{
    Doubles error[VECTORS] = {{0}};
    for (int i = 0; i < n; i += FLOAT_LANES) {
        Floats x, y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        Floats near = (Floats)((FloatFlags)(x - y) & INT32_MAX);
        if (ANY(near >= limit))
            for (int k = 0; k < FLOAT_LANES; k += LANES) {
                Doubles difference = VARIANT(widen)(a + i + k) - VARIANT(widen)(b + i + k);
                error[0] = MAX(error[0], VARIANT(magnitude)(difference));
            }
    }
    return VARIANT(largest)(error);
}

static inline Doubles VARIANT(take_ratio)(Doubles x, Doubles y)
{
    const Doubles epsilon = (Doubles){0} + EPSILON;
    Flags none = y == 0.0;
    Doubles size = (Doubles)((Flags)VARIANT(magnitude)(y) | (none & (Flags)epsilon));
    return VARIANT(magnitude)(x - y) / size;
}

/* Return the largest relative error exactly, knowing that its near value is not below `limit`. */
static double VARIANT(find_ratio)(const float *a, const float *b, int n, const float *ratios,
                                  float limit)
{
    Doubles ratio[VECTORS] = {{0}};
    for (int i = 0; i < n; i += FLOAT_LANES) {
        Floats near;
        memcpy(&near, ratios + i, sizeof near);
        if (ANY(near >= limit))
            for (int k = 0; k < FLOAT_LANES; k += LANES) {
                Doubles x = VARIANT(widen)(a + i + k), y = VARIANT(widen)(b + i + k);
                ratio[0] = MAX(ratio[0], VARIANT(take_ratio)(x, y));
            }
    }
    return VARIANT(largest)(ratio);
}

/* Take all relative errors exactly. */
static void VARIANT(find_ratios)(const float *a, const float *b, int n, Block *out)
{
    Doubles ratio[VECTORS] = {{0}};
    Flags within[THRESHOLD_COUNT][VECTORS] = {{{0}}};
    for (int i = 0; i < n; i += GROUP)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            Doubles x = VARIANT(widen)(a + i + v * LANES), y = VARIANT(widen)(b + i + v * LANES);
            Doubles r = VARIANT(take_ratio)(x, y);
            ratio[v] = MAX(ratio[v], r);
            within[0][v] += r < THRESHOLDS[0];
            within[1][v] += r < THRESHOLDS[1];
            within[2][v] += r < THRESHOLDS[2];
            within[3][v] += r < THRESHOLDS[3];
        }
    out->max_relative = VARIANT(largest)(ratio);
    for (int t = 0; t < THRESHOLD_COUNT; t++)
        out->within[t] = VARIANT(count)(within[t]);
}

/* All of it for doubles, which may need a scale, and whose squares prove nothing. */
static void VARIANT(measure_wide)(const double *restrict a, const double *restrict b, int n,
                                  const Scales *scales, Block *restrict out)
{
    Doubles dot[VECTORS] = {{0}}, a_squares[VECTORS] = {{0}}, b_squares[VECTORS] = {{0}};
    Doubles squares[VECTORS] = {{0}}, error[VECTORS] = {{0}}, ratio[VECTORS] = {{0}};
    Doubles a_peak[VECTORS] = {{0}}, b_peak[VECTORS] = {{0}}, proof[VECTORS] = {{0}};
    Flags unequal[VECTORS] = {{0}};
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
            Flags none = y == 0.0;
            size = (Doubles)((Flags)size | (none & (Flags)epsilon));
            Doubles r = d / size;
            error[v] = MAX(error[v], d);
            ratio[v] = MAX(ratio[v], r);
            unequal[v] += difference != 0.0;
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
    for (int t = 0; t < THRESHOLD_COUNT; t++)
        out->within[t] = VARIANT(count)(within[t]);
    double sum = VARIANT(fold)(proof);
    out->finite = sum == 0.0;
    out->doubtful = 0;
}

#undef VECTORS
#undef FLOAT_VECTORS
#undef Doubles
#undef Flags
#undef Halves
#undef Floats
#undef FloatFlags
#undef VARIANT
#undef LANES
#undef FLOAT_LANES
#undef MAX
#undef FLOAT_MAX
#undef ANY
#undef WIDEN
#undef ADD_PRODUCT
