/* CRC-32 as zlib has it, with the multiplications without carry that processors offer.
 *
 *     bytes -> fold_wide (vectors of 256 or 512 bits) -> a block that stands for all before it
 *           -> fold (4 lanes of 128 bits) -> 16 bytes -> tables, 8 bytes at a time -> checksum
 *
 * A message is a polynomial over GF(2), and its checksum what is left when it is divided by P.
 * Multiplying a lane by x^distance mod P moves it that many bits on without changing what is left;
 * added to what lies there, it needs no more looking at. So each loop turns its input into fewer
 * bytes of the same remainder, and the next loop goes on with these as if they were the message.
 *
 * All factors are computed when the module is loaded, and every way is tried against the tables
 * there: one that gives another checksum is not used. Threads are the caller's business (crc32.py).
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#define POLYNOMIAL 0xEDB88320u

/* --- tables: any processor -------------------------------------------------------------------- */

static uint32_t TABLES[8][256];

static uint32_t times_x(uint32_t a) { return a & 1 ? a >> 1 ^ POLYNOMIAL : a >> 1; }

static void fill_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++)
            state = times_x(state);
        TABLES[0][byte] = state;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = TABLES[table - 1][byte];
            TABLES[table][byte] = TABLES[0][before & 255] ^ before >> 8;
        }
}

static inline uint32_t load_word(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
           (uint32_t)data[3] << 24;
}

static uint32_t by_tables(uint32_t state, const uint8_t *data, size_t n)
{
    for (; n >= 8; data += 8, n -= 8) {
        uint32_t low = load_word(data) ^ state, high = load_word(data + 4);
        state = TABLES[7][low & 255] ^ TABLES[6][low >> 8 & 255] ^ TABLES[5][low >> 16 & 255] ^
                TABLES[4][low >> 24] ^ TABLES[3][high & 255] ^ TABLES[2][high >> 8 & 255] ^
                TABLES[1][high >> 16 & 255] ^ TABLES[0][high >> 24];
    }
    for (; n; data++, n--)
        state = TABLES[0][(state ^ *data) & 255] ^ state >> 8;
    return state;
}

/* --- polynomials mod P: bit 31 is x^0, bit 0 is x^31 ------------------------------------------ */

static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a; a <<= 1, b = times_x(b))
        if (a & 0x80000000u)
            product ^= b;
    return product;
}

static uint32_t power_of_x(uint64_t exponent)
{
    uint32_t power = 0x80000000u, square = 0x40000000u;
    for (; exponent; exponent >>= 1, square = multiply(square, square))
        if (exponent & 1)
            power = multiply(power, square);
    return power;
}

/* --- lanes of 128 bits ------------------------------------------------------------------------
 * A lane's first half in memory is of the higher powers. The product of two reversed numbers comes
 * out one bit lower than the reversed product, hence the 1 that the exponents lack. */

typedef struct {
    uint64_t first, second;
} Factors;

static Factors factors_for(unsigned bytes)
{
    unsigned distance = 8 * bytes;
    Factors factors = {(uint64_t)power_of_x(distance + 63) << 32,
                       (uint64_t)power_of_x(distance - 1) << 32};
    return factors;
}

/* How far a lane moves on: to the next lane, or over as many bytes as a loop takes at a time. */
static Factors ONE_LANE, NARROW_BLOCK, BLOCK_256, BLOCK_512;

#if defined(__GNUC__) && defined(__x86_64__)
#define HAS_LANES 1
#include <immintrin.h>
#define LANES __attribute__((target("pclmul,sse2")))
typedef __m128i Lane;

LANES static inline Lane load_lane(const void *at) { return _mm_loadu_si128(at); }
LANES static inline void store_lane(void *at, Lane lane) { _mm_storeu_si128(at, lane); }
LANES static inline Lane add(Lane a, Lane b) { return _mm_xor_si128(a, b); }
LANES static inline Lane lane_of(uint32_t state) { return _mm_cvtsi32_si128((int)state); }
LANES static inline Lane move_on(Lane lane, Lane factors, Lane next)
{
    Lane first = _mm_clmulepi64_si128(lane, factors, 0x00);
    Lane second = _mm_clmulepi64_si128(lane, factors, 0x11);
    return add(add(first, second), next);
}
static int has_lanes(void) { return __builtin_cpu_supports("pclmul"); }

#elif defined(__GNUC__) && defined(__aarch64__) && !defined(__AARCH64EB__) &&                      \
    (defined(__linux__) || defined(__APPLE__))
#define HAS_LANES 1
#include <arm_neon.h>
#if defined(__clang__)
#define LANES __attribute__((target("aes")))
#else
#define LANES __attribute__((target("+crypto")))
#endif
typedef uint64x2_t Lane;

LANES static inline Lane load_lane(const void *at)
{
    return vreinterpretq_u64_u8(vld1q_u8(at));
}
LANES static inline void store_lane(void *at, Lane lane)
{
    vst1q_u8(at, vreinterpretq_u8_u64(lane));
}
LANES static inline Lane add(Lane a, Lane b) { return veorq_u64(a, b); }
LANES static inline Lane lane_of(uint32_t state)
{
    return vsetq_lane_u64(state, vdupq_n_u64(0), 0);
}
LANES static inline Lane move_on(Lane lane, Lane factors, Lane next)
{
    poly128_t first =
        vmull_p64((poly64_t)vgetq_lane_u64(lane, 0), (poly64_t)vgetq_lane_u64(factors, 0));
    poly128_t second = vmull_high_p64(vreinterpretq_p64_u64(lane), vreinterpretq_p64_u64(factors));
    return add(add(vreinterpretq_u64_p128(first), vreinterpretq_u64_p128(second)), next);
}
#if defined(__linux__)
#include <sys/auxv.h>
static int has_lanes(void) { return (getauxval(AT_HWCAP) & 1 << 4) != 0; /* PMULL */ }
#else
static int has_lanes(void) { return 1; }
#endif
#endif

#ifdef HAS_LANES
#define LANE sizeof(Lane)
#define NARROW (4 * LANE)

/* Take `block_size` bytes, a multiple of NARROW, and then `n` from elsewhere. A state is added to
 * the first bytes of a message, which is all that it does. */
LANES static uint32_t fold(uint32_t state, const uint8_t *block, size_t block_size,
                           const uint8_t *data, size_t n)
{
    Lane far = load_lane(&NARROW_BLOCK), near = load_lane(&ONE_LANE);
    Lane a = add(load_lane(block), lane_of(state)), b = load_lane(block + LANE);
    Lane c = load_lane(block + 2 * LANE), d = load_lane(block + 3 * LANE);
    const uint8_t *at = block + NARROW;
    size_t left = block_size - NARROW;
    for (int part = 0; part < 2; part++, at = data, left = n)
        for (; left >= NARROW; at += NARROW, left -= NARROW) {
            a = move_on(a, far, load_lane(at));
            b = move_on(b, far, load_lane(at + LANE));
            c = move_on(c, far, load_lane(at + 2 * LANE));
            d = move_on(d, far, load_lane(at + 3 * LANE));
        }
    at = data + n / NARROW * NARROW;
    left = n % NARROW;
    Lane lane = move_on(move_on(move_on(a, near, b), near, c), near, d);
    for (; left >= LANE; at += LANE, left -= LANE)
        lane = move_on(lane, near, load_lane(at));
    uint8_t rest[LANE];
    store_lane(rest, lane);
    return by_tables(by_tables(0, rest, LANE), at, left);
}

static uint32_t by_lanes(uint32_t state, const uint8_t *data, size_t n)
{
    if (n < NARROW)
        return by_tables(state, data, n);
    return fold(state, data, NARROW, data + NARROW, n - NARROW);
}
#endif

/* --- vectors of two and four lanes ------------------------------------------------------------ */

#if defined(__x86_64__) && (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 9))
#define HAS_VECTORS 1

#define VECTORS_256 __attribute__((target("avx2,pclmul,vpclmulqdq")))
#define VECTORS_512 __attribute__((target("avx512f,pclmul,vpclmulqdq")))

VECTORS_256 static inline __m256i load_256(const void *at) { return _mm256_loadu_si256(at); }
VECTORS_256 static inline void store_256(void *at, __m256i v) { _mm256_storeu_si256(at, v); }
VECTORS_256 static inline __m256i first_of_256(int x)
{
    return _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, x);
}
VECTORS_256 static inline __m256i add_256(__m256i a, __m256i b) { return _mm256_xor_si256(a, b); }
VECTORS_256 static inline __m256i repeat_256(Lane lane)
{
    return _mm256_broadcastsi128_si256(lane);
}
VECTORS_256 static inline __m256i move_on_256(__m256i v, __m256i factors, __m256i next)
{
    __m256i first = _mm256_clmulepi64_epi128(v, factors, 0x00);
    __m256i second = _mm256_clmulepi64_epi128(v, factors, 0x11);
    return add_256(add_256(first, second), next);
}

VECTORS_512 static inline __m512i load_512(const void *at) { return _mm512_loadu_si512(at); }
VECTORS_512 static inline void store_512(void *at, __m512i v) { _mm512_storeu_si512(at, v); }
VECTORS_512 static inline __m512i first_of_512(int x)
{
    return _mm512_maskz_set1_epi32(1, x);
}
VECTORS_512 static inline __m512i add_512(__m512i a, __m512i b) { return _mm512_xor_si512(a, b); }
VECTORS_512 static inline __m512i repeat_512(Lane lane) { return _mm512_broadcast_i32x4(lane); }
VECTORS_512 static inline __m512i move_on_512(__m512i v, __m512i factors, __m512i next)
{
    __m512i first = _mm512_clmulepi64_epi128(v, factors, 0x00);
    __m512i second = _mm512_clmulepi64_epi128(v, factors, 0x11);
    return _mm512_ternarylogic_epi64(first, second, next, 0x96); /* the sum of three */
}

#define DEFINE_BY_VECTORS(BITS, VECTOR)                                                            \
    VECTORS_##BITS static uint32_t by_vectors_##BITS(uint32_t state, const uint8_t *data,          \
                                                     size_t n)                                     \
    {                                                                                              \
        enum { WIDTH = BITS / 8, WIDE = 4 * WIDTH };                                               \
        if (n < 2 * WIDE)                                                                          \
            return by_lanes(state, data, n);                                                       \
        uint8_t block[WIDE];                                                                       \
        VECTOR factors = repeat_##BITS(load_lane(&BLOCK_##BITS));                                  \
        VECTOR a = add_##BITS(load_##BITS(data), first_of_##BITS((int)state));                     \
        VECTOR b = load_##BITS(data + WIDTH), c = load_##BITS(data + 2 * WIDTH);                   \
        VECTOR d = load_##BITS(data + 3 * WIDTH);                                                  \
        for (data += WIDE, n -= WIDE; n >= WIDE; data += WIDE, n -= WIDE) {                        \
            a = move_on_##BITS(a, factors, load_##BITS(data));                                     \
            b = move_on_##BITS(b, factors, load_##BITS(data + WIDTH));                             \
            c = move_on_##BITS(c, factors, load_##BITS(data + 2 * WIDTH));                         \
            d = move_on_##BITS(d, factors, load_##BITS(data + 3 * WIDTH));                         \
        }                                                                                          \
        store_##BITS(block, a);                                                                    \
        store_##BITS(block + WIDTH, b);                                                            \
        store_##BITS(block + 2 * WIDTH, c);                                                        \
        store_##BITS(block + 3 * WIDTH, d);                                                        \
        _mm256_zeroupper(); /* else the plain instructions of fold wait for these */               \
        return fold(0, block, WIDE, data, n);                                                      \
    }

DEFINE_BY_VECTORS(256, __m256i)
DEFINE_BY_VECTORS(512, __m512i)

static int has_vectors_256(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq");
}
static int has_vectors_512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}
#endif

/* --- the ways of this processor --------------------------------------------------------------- */

typedef uint32_t (*Way)(uint32_t, const uint8_t *, size_t);

static struct {
    const char *name;
    Way way;
} WAYS[4];
static int WAY_COUNT;

#define TRIAL 3000

static void add_way(const char *name, Way way)
{
    uint8_t trial[TRIAL];
    uint32_t noise = 1;
    for (int i = 0; i < TRIAL; i++, noise = noise * 1664525u + 1013904223u)
        trial[i] = (uint8_t)(noise >> 24);
    for (size_t n = 1; n < TRIAL; n += n / 8 + 1)
        if (way(~(uint32_t)n, trial, n) != by_tables(~(uint32_t)n, trial, n))
            return;
    WAYS[WAY_COUNT].name = name;
    WAYS[WAY_COUNT++].way = way;
}

/* The slowest first. */
static void find_ways(void)
{
    fill_tables();
    ONE_LANE = factors_for(16);
    NARROW_BLOCK = factors_for(4 * 16);
    BLOCK_256 = factors_for(4 * 32);
    BLOCK_512 = factors_for(4 * 64);
    WAY_COUNT = 0;
    add_way("tables", by_tables);
#ifdef HAS_LANES
    if (has_lanes())
        add_way("lanes of 128 bits", by_lanes);
#endif
#ifdef HAS_VECTORS
    if (has_lanes() && has_vectors_256())
        add_way("vectors of 256 bits", by_vectors_256);
    if (has_lanes() && has_vectors_512())
        add_way("vectors of 512 bits", by_vectors_512);
#endif
}

/* --- Python ----------------------------------------------------------------------------------- */

static int parse_checksum(PyObject *arg, uint32_t *checksum)
{
    unsigned long value = PyLong_AsUnsignedLongMask(arg);
    *checksum = (uint32_t)value;
    return !PyErr_Occurred();
}

static int parse_length(PyObject *arg, Py_ssize_t *length)
{
    *length = PyLong_AsSsize_t(arg);
    if (PyErr_Occurred())
        return 0;
    if (*length < 0)
        PyErr_Format(PyExc_ValueError, "got %zd bytes", *length);
    return *length >= 0;
}

PyDoc_STRVAR(crc32_doc, "crc32(address, length, value=0, way=-1, /)\n--\n\n"
                        "Return zlib's checksum of `length` bytes, going on from `value`.\n\n"
                        "`way` chooses among `ways`, for tests; the last is the fastest.");

/* What the interpreter needs to let another thread run costs more than this many bytes. */
#define SMALL 4096

static PyObject *crc32(PyObject *self, PyObject *const *args, Py_ssize_t arg_count)
{
    (void)self;
    if (arg_count < 2 || arg_count > 4)
        return PyErr_Format(PyExc_TypeError, "got %zd arguments, wanted 2 to 4", arg_count);
    const uint8_t *data = PyLong_AsVoidPtr(args[0]);
    Py_ssize_t n;
    uint32_t value = 0;
    if (PyErr_Occurred() || !parse_length(args[1], &n) ||
        (arg_count > 2 && !parse_checksum(args[2], &value)))
        return NULL;
    if (n > 0 && data == NULL)
        return PyErr_Format(PyExc_ValueError, "got %zd bytes at address 0", n);
    long choice = arg_count > 3 ? PyLong_AsLong(args[3]) : -1;
    if (PyErr_Occurred())
        return NULL;
    if (choice < -1 || choice >= WAY_COUNT)
        return PyErr_Format(PyExc_ValueError, "there is no way %ld", choice);
    Way way = WAYS[choice < 0 ? WAY_COUNT - 1 : choice].way;
    if (n <= SMALL) {
        value = ~way(~value, data, (size_t)n);
    } else {
        Py_BEGIN_ALLOW_THREADS
        value = ~way(~value, data, (size_t)n);
        Py_END_ALLOW_THREADS
    }
    return PyLong_FromUnsignedLong(value);
}

PyDoc_STRVAR(combine_doc, "combine(first, second, length, /)\n--\n\n"
                          "Return the checksum of two pieces in a row from those of each.\n\n"
                          "`length` is that of the second piece in bytes.");

static PyObject *combine(PyObject *self, PyObject *const *args, Py_ssize_t arg_count)
{
    (void)self;
    if (arg_count != 3)
        return PyErr_Format(PyExc_TypeError, "got %zd arguments, wanted 3", arg_count);
    uint32_t first, second;
    Py_ssize_t length;
    if (!parse_checksum(args[0], &first) || !parse_checksum(args[1], &second) ||
        !parse_length(args[2], &length))
        return NULL;
    return PyLong_FromUnsignedLong(multiply(power_of_x(8 * (uint64_t)length), first) ^ second);
}

static PyMethodDef METHODS[] = {
    {"crc32", (PyCFunction)(void (*)(void))crc32, METH_FASTCALL, crc32_doc},
    {"combine", (PyCFunction)(void (*)(void))combine, METH_FASTCALL, combine_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_crc32",
    .m_doc = "CRC-32 of memory; tensorprobe.system.crc32 is the way in.",
    .m_size = 0,
    .m_methods = METHODS,
};

PyMODINIT_FUNC PyInit__crc32(void)
{
    find_ways();
    PyObject *module = PyModule_Create(&MODULE);
    PyObject *ways = module == NULL ? NULL : PyTuple_New(WAY_COUNT);
    for (int i = 0; ways != NULL && i < WAY_COUNT; i++) {
        PyObject *name = PyUnicode_FromString(WAYS[i].name);
        if (name == NULL || PyTuple_SetItem(ways, i, name) < 0)
            Py_CLEAR(ways);
    }
    if (ways == NULL || PyModule_AddObjectRef(module, "ways", ways) < 0)
        Py_CLEAR(module);
    Py_XDECREF(ways);
    return module;
}
