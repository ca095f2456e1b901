/* What torch's threads do at the same time for a pool (_write_pool.c), by _write_pool_work.c. */

#ifndef TENSORPROBE_WRITE_POOL_H
#define TENSORPROBE_WRITE_POOL_H

#include "_calls.h"

#include "../_measuring.h"

/* Files are written with what POSIX has. */
#if defined(__unix__) || defined(__APPLE__)
#define HAS_WRITE_POOL

#include <sys/uio.h>

/* What compilers call for `#pragma omp parallel`. */
typedef void (*Region)(void (*body)(void *), void *data, unsigned threads, unsigned flags);

/* A file to be written: what stands before the content, the content, what stands after it. */
typedef struct {
    PyObject *path; /* bytes without a zero inside; NULL: it stays undone, with the error that is set */
    int error;
    struct iovec pieces[3];
} Writing;

/* A file that is whole gets another name. */
typedef struct {
    int error;
    PyObject *old, *path; /* as above */
} Naming;

/* An array to be measured and, unless this is NULL, copied. */
typedef struct {
    Measuring *array;
    char *copy;
} Look;

/* Memory to be copied. */
typedef struct {
    char *target;
    const char *source;
    size_t size;
} Copy;

typedef struct {
    Writing *writings;
    Naming *namings;
    Look *looks;
    Copy *copies;
    Py_ssize_t writing_count, naming_count, look_count, copy_count;
    const MeasuringApi *measuring;
    /* What the caller does in Python beside it, once the namings are done. */
    void (*meanwhile)(void *data);
    void *data;
} Work;

/* Do it all, without the interpreter; `region` is NULL where this thread shall do it alone. */
void work_together(Work *work, Region region);

#endif
#endif
