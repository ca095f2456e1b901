/* Which elements of memory a tensor shows, in no order, as summary/layout.py's merge_layout has it. */

#ifndef TENSORPROBE_SIDES_H
#define TENSORPROBE_SIDES_H

#include "_exchange.h"

typedef struct {
    int64_t stride, size;
} Side;

enum { MOST_SIDES = 16 };

static inline int is_before(const Side *one, const Side *other)
{
    return one->stride != other->stride ? one->stride < other->stride : one->size < other->size;
}

/* Merge what a tensor of at most MOST_SIDES dimensions says of itself; returns how many sides. */
static inline int merge_sides(const Shown *shown, Side *sides)
{
    int count = 0, merged = 0;
    for (int32_t i = 0; i < shown->dimensions; i++) {
        Side side = {shown->strides[i], shown->shape[i]};
        if (side.size == 1)
            continue;
        int place = count++;
        for (; place && is_before(&side, &sides[place - 1]); place--)
            sides[place] = sides[place - 1];
        sides[place] = side;
    }
    for (int i = 0; i < count; i++) {
        if (merged && sides[merged - 1].stride * sides[merged - 1].size == sides[i].stride)
            sides[merged - 1].size *= sides[i].size;
        else
            sides[merged++] = sides[i];
    }
    return merged;
}

#endif
