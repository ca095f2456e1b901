/* What a tensor says of itself in one call, by DLPack's exchange: DLTensor and DLPackExchangeAPI. */

#ifndef TENSORPROBE_EXCHANGE_H
#define TENSORPROBE_EXCHANGE_H

#include <Python.h>
#include <stdint.h>

typedef struct {
    void *data;
    int32_t device_type, device;
    int32_t dimensions;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset;
} Shown;

typedef struct {
    uint32_t major, minor;
    void *previous;
    void *allocate, *from_object, *to_object;
    int (*show)(void *, Shown *);
    int (*current_stream)(int32_t, int32_t, void **);
} Exchange;

#define EXCHANGE_NAME "dlpack_exchange_api"
#define EXCHANGE_MAJOR 1
enum { ON_CUDA = 2 };
/* Kinds of numbers. Memory may hold the negative of any, and the conjugate of the first: nobody says so. */
enum { COMPLEX = 5, TRUTHS = 6 };

/* Return what a capsule of torch holds; NULL if it is none, or of another time. */
static inline Exchange *open_exchange(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, EXCHANGE_NAME))
        return NULL;
    Exchange *exchange = PyCapsule_GetPointer(capsule, EXCHANGE_NAME);
    return exchange->major == EXCHANGE_MAJOR && exchange->show ? exchange : NULL;
}

#endif
