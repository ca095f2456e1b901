/* The digits of numbers, as Python prints and reads them.
 *
 * The shortest digits that read back as the same double are found by Schubfach (Raffaello Giulietti,
 * 2020) and laid out as Python's repr does. Digits are read by one multiplication with a power of ten;
 * where its error might matter, Python reads them. Every file that includes this has a table of its
 * own, to be filled by take_powers from what powers_of_ten.py computes.
 */

#ifndef TENSORPROBE_DIGITS_H
#define TENSORPROBE_DIGITS_H

#include <Python.h>

#include <stdint.h>
#include <string.h>

/* --- writing ------------------------------------------------------------------------------------- */

#define LOWEST_POWER (-292)
#define POWERS 617
/* 10^k from k = -292 on, as 128 bits whose highest is set, rounded up; powers_of_ten.py computes them. */
static uint64_t powers[POWERS][2];
static int has_powers = 0;

typedef struct {
    uint64_t digits;
    int exponent;
} Decimal;

static uint64_t high_product(uint64_t a, uint64_t b, uint64_t *low)
{
#ifdef __SIZEOF_INT128__
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    *low = (uint64_t)product;
    return (uint64_t)(product >> 64);
#else
    uint64_t a1 = a >> 32, a0 = (uint32_t)a, b1 = b >> 32, b0 = (uint32_t)b;
    uint64_t p00 = a0 * b0, p01 = a0 * b1, p10 = a1 * b0, p11 = a1 * b1;
    uint64_t middle = (p00 >> 32) + (uint32_t)p01 + (uint32_t)p10;
    *low = (middle << 32) | (uint32_t)p00;
    return p11 + (p01 >> 32) + (p10 >> 32) + (middle >> 32);
#endif
}

/* The upper 64 bits of a product of 192, the last of them 1 if anything was lost. */
static uint64_t round_to_odd(const uint64_t power[2], uint64_t factor)
{
    uint64_t low_low, low;
    uint64_t carried = high_product(power[1], factor, &low_low);
    uint64_t high = high_product(power[0], factor, &low);
    low += carried;
    high += low < carried;
    return high | (low > 1);
}

static int floor_shift(int value, int bits)
{
    return value >= 0 ? value >> bits : -((-value + (1 << bits) - 1) >> bits);
}

static Decimal shortest(uint64_t fraction, int biased)
{
    uint64_t c = biased ? fraction | (UINT64_C(1) << 52) : fraction;
    int q = (biased ? biased : 1) - 1075;
    int is_even = (c & 1) == 0, is_closer_below = fraction == 0 && biased > 1;
    uint64_t below = 4 * c - 2 + is_closer_below, at = 4 * c, above = 4 * c + 2;
    int k = floor_shift(q * 1262611 - (is_closer_below ? 524031 : 0), 22);
    int h = q + floor_shift(-k * 1741647, 19) + 1;
    const uint64_t *power = powers[-k - LOWEST_POWER];
    uint64_t lower = round_to_odd(power, below << h) + !is_even;
    uint64_t middle = round_to_odd(power, at << h);
    uint64_t upper = round_to_odd(power, above << h) - !is_even;
    uint64_t s = middle / 4;
    if (s >= 10) {
        uint64_t tens = s / 10;
        int down_fits = lower <= 40 * tens, up_fits = 40 * tens + 40 <= upper;
        if (down_fits != up_fits)
            return (Decimal){tens + up_fits, k + 1};
    }
    int down_fits = lower <= 4 * s, up_fits = 4 * s + 4 <= upper;
    if (down_fits != up_fits)
        return (Decimal){s + up_fits, k};
    uint64_t half = 4 * s + 2;
    return (Decimal){s + (middle > half || (middle == half && (s & 1))), k};
}

/* Write a finite double as Python's repr does, in at most 25 bytes; return how many. */
static inline size_t write_double(char *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, 8);
    char *start = out;
    if (bits >> 63)
        *out++ = '-';
    bits &= ~(UINT64_C(1) << 63);
    if (bits == 0) {
        memcpy(out, "0.0", 3);
        return (size_t)(out + 3 - start);
    }
    Decimal found = shortest(bits & ((UINT64_C(1) << 52) - 1), (int)(bits >> 52));
    while (found.digits % 10 == 0) {
        found.digits /= 10;
        found.exponent++;
    }
    char digits[20];
    int count = 0;
    for (uint64_t rest = found.digits; rest; rest /= 10)
        digits[sizeof digits - ++count] = (char)('0' + rest % 10);
    const char *first = digits + sizeof digits - count;
    int point = count + found.exponent; /* the point stands after so many digits */
    if (point <= -4 || point > 16) {
        int exponent = point - 1;
        *out++ = first[0];
        if (count > 1) {
            *out++ = '.';
            memcpy(out, first + 1, (size_t)count - 1);
            out += count - 1;
        }
        *out++ = 'e';
        *out++ = exponent < 0 ? '-' : '+';
        exponent = exponent < 0 ? -exponent : exponent;
        if (exponent >= 100)
            *out++ = (char)('0' + exponent / 100);
        *out++ = (char)('0' + exponent / 10 % 10);
        *out++ = (char)('0' + exponent % 10);
    } else if (point <= 0) {
        memcpy(out, "0.000", (size_t)(2 - point));
        out += 2 - point;
        memcpy(out, first, (size_t)count);
        out += count;
    } else if (point >= count) {
        memcpy(out, first, (size_t)count);
        memset(out + count, '0', (size_t)(point - count));
        out += point;
        memcpy(out, ".0", 2);
        out += 2;
    } else {
        memcpy(out, first, (size_t)point);
        out[point] = '.';
        memcpy(out + point + 1, first + point, (size_t)(count - point));
        out += count + 1;
    }
    return (size_t)(out - start);
}

static inline size_t write_whole(char *out, long long value)
{
    char digits[20];
    int count = 0;
    unsigned long long rest = value < 0 ? 0ULL - (unsigned long long)value : (unsigned long long)value;
    do
        digits[sizeof digits - ++count] = (char)('0' + rest % 10);
    while (rest /= 10);
    size_t sign = value < 0;
    if (sign)
        *out = '-';
    memcpy(out + sign, digits + sizeof digits - count, (size_t)count);
    return sign + (size_t)count;
}

static inline int is_finite(double value) { return value - value == 0; }

/* --- reading ------------------------------------------------------------------------------------- */

static inline int leading_zeros(uint64_t value)
{
#if defined(__GNUC__)
    return __builtin_clzll(value);
#else
    int count = 0;
    for (; !(value >> 63); value <<= 1)
        count++;
    return count;
#endif
}

/* digits * 10^exponent, rounded to the nearest double; 0 where that is not certain from here. */
static inline int scale_digits(uint64_t digits, int exponent, double *value)
{
    if (!has_powers || exponent < LOWEST_POWER || exponent >= LOWEST_POWER + POWERS)
        return 0;
    int zeros = leading_zeros(digits);
    const uint64_t *power = powers[exponent - LOWEST_POWER];
    uint64_t lowest, middle, carried = high_product(power[1], digits << zeros, &lowest);
    uint64_t high = high_product(power[0], digits << zeros, &middle);
    middle += carried;
    high += middle < carried;
    /* The table is rounded up: the true product is less than one in `middle` below this one. */
    int shift = high >> 63 ? 11 : 10;
    uint64_t half = UINT64_C(1) << (shift - 1), rest = high & (2 * half - 1);
    if (rest == half && middle <= 1)
        return 0;
    uint64_t rounded = (high >> shift) + (rest >= half);
    /* The power's own exponent is the whole part of log2(10^exponent), less 127. */
    int binary = floor_shift(exponent * 1741647, 19) - 127 - zeros + 128 + shift;
    if (rounded >> 53) {
        rounded >>= 1;
        binary++;
    }
    int biased = binary + 52 + 1023;
    if (biased < 1 || biased > 2046)
        return 0;
    uint64_t bits = (rounded & ((UINT64_C(1) << 52) - 1)) | (uint64_t)biased << 52;
    memcpy(value, &bits, 8);
    return 1;
}

/* Read a number of JSON that has a point or an exponent; return where it ends, or NULL for something
 * else, and for a number that no double can hold. */
static inline const char *read_double(const char *start, double *value)
{
    const char *at = start;
    int is_negative = *at == '-', count = 0, exponent = 0;
    uint64_t digits = 0;
    at += is_negative;
    const char *first = at;
    for (; *at >= '0' && *at <= '9'; at++, count += digits != 0)
        digits = digits * 10 + (uint64_t)(*at - '0');
    if (at == first || (*first == '0' && at - first > 1))
        return NULL;
    if (*at == '.') {
        const char *point = ++at;
        for (; *at >= '0' && *at <= '9'; at++, count += digits != 0)
            digits = digits * 10 + (uint64_t)(*at - '0');
        if (at == point)
            return NULL;
        exponent = at - point > 1000 ? -1000 : (int)(point - at);
    }
    if (*at == 'e' || *at == 'E') {
        int sign = at[1] == '-' ? -1 : 1, power = 0;
        at += at[1] == '-' || at[1] == '+' ? 2 : 1;
        const char *point = at;
        for (; *at >= '0' && *at <= '9'; at++)
            power = power < 10000 ? power * 10 + (*at - '0') : power;
        if (at == point)
            return NULL;
        exponent += sign * power;
    }
    /* Nineteen digits fit into 64 bits. */
    if (digits == 0 && count == 0)
        *value = 0;
    else if (count > 19 || !scale_digits(digits, exponent, value)) {
        char *end;
        *value = PyOS_string_to_double(start, &end, NULL);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            return NULL;
        }
        return end == at && is_finite(*value) ? at : NULL;
    }
    if (is_negative)
        *value = -*value;
    return at;
}

/* --- the table ----------------------------------------------------------------------------------- */

/* Take the table of powers of ten, bytes; returns None as a function of a module does. */
static PyObject *take_powers(PyObject *table)
{
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(table, &bytes, &length))
        return NULL;
    if (length != (Py_ssize_t)sizeof powers) {
        PyErr_SetString(PyExc_ValueError, "the table of powers has another size");
        return NULL;
    }
    memcpy(powers, bytes, sizeof powers);
    has_powers = 1;
    return Py_NewRef(Py_None);
}

#endif
