/* Arrays that are measured by threads without the interpreter: what _kernel.c does for other modules. */

#ifndef TENSORPROBE_MEASURING_H
#define TENSORPROBE_MEASURING_H

#include <Python.h>

typedef struct Measuring Measuring;

typedef struct {
    /* With the interpreter: address, count and type are what `measure` takes; NULL on failure. */
    Measuring *(*begin)(PyObject *address, PyObject *n, PyObject *type);
    /* What `measure` returns, of an array all of whose parts have been looked at. */
    PyObject *(*tell)(Measuring *measuring);
    void (*end)(Measuring *measuring);
    /* Without it: any thread may look at any part, and copy it to the same place of `copy` if that is
     * not NULL; all of them are told in the same order. */
    Py_ssize_t (*count_parts)(const Measuring *measuring);
    void (*run_part)(Measuring *measuring, Py_ssize_t part, char *copy);
} MeasuringApi;

#define MEASURING_NAME "tensorprobe.metrics._kernel.measuring"

#endif
