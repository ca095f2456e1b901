/* Measure arrays, write files and give others second names at the same time, with the threads torch
 * computes with.
 *
 *     caller:        second names -> what Python has to do beside it -> files -> copies -> arrays
 *     other threads: files -> copies -> arrays
 *
 * Why torch's threads: between two operations they wait without leaving their cores, so a thread of
 * our own would share a core with one that does nothing. They are reached through the function that
 * compilers call for `#pragma omp parallel`. One file is not written by two threads: the system lets
 * only one of them in. A file has a hidden name until it is whole, as new_file.py has it.
 */

#include "_kernel.h"

#if defined(HAS_TEAMWORK)

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Below so many bytes the team takes longer to come together than to do the work. */
#define WORTH_A_TEAM (1 << 16)

/* Not every system takes twice as much in one call. */
#define MOST_AT_ONCE ((size_t)1 << 30)

typedef void (*Region)(void (*body)(void *), void *data, unsigned threads, unsigned flags);

typedef struct {
    PyObject *path; /* bytes without a zero inside */
    int error;
    struct iovec pieces[3]; /* what stands before the content, the content, what stands after it */
} Writing;

/* Other processes may have made files of these names, on other machines too. */
#define MOST_ATTEMPTS 1000
/* What such a name takes, beside its folder. */
#define HIDDEN_ROOM 64
static unsigned long hidden_count;

/* Memory is copied in pieces that several threads share. */
#define COPIED_AT_ONCE ((size_t)1 << 18)

typedef struct {
    char *target;
    const char *source;
    size_t size;
} Copy;

/* A file that is whole gets another name. */
typedef struct {
    int error;
    PyObject *old, *path; /* bytes without a zero inside */
} Naming;

typedef struct {
    Writing *writings;
    Naming *namings;
    Measuring **measurings;
    Copy *copies;
    Py_ssize_t writing_count, naming_count, measuring_count, copy_count;
    /* Of an array several threads may measure parts. */
    Py_ssize_t part_count;
    Py_ssize_t next_file, next_part, next_copy;
    size_t bytes;
    /* What the caller does in Python, and what it needs for that. */
    PyObject *meanwhile;
    unsigned long caller;
    PyThreadState *state;
} Work;

/* Write all pieces; returns the number of the error, 0 without any. */
static int write_pieces(int descriptor, struct iovec *piece, struct iovec *end)
{
    for (;;) {
        while (piece < end && piece->iov_len == 0)
            piece++;
        if (piece == end)
            return 0;
        int count = 0;
        while (piece + count < end && piece[count].iov_len <= MOST_AT_ONCE)
            count++;
        ssize_t written = count ? writev(descriptor, piece, count)
                                : write(descriptor, piece->iov_base, MOST_AT_ONCE);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? errno : EIO;
        for (size_t left = (size_t)written; left > 0;) {
            size_t part = left < piece->iov_len ? left : piece->iov_len;
            piece->iov_base = (char *)piece->iov_base + part;
            piece->iov_len -= part;
            left -= part;
            if (piece->iov_len == 0)
                piece++;
        }
    }
}

/* Make a hidden file beside `path`, whose name is put into `hidden`; returns its descriptor, or -1. */
static int open_hidden(const char *path, char *hidden)
{
    const char *slash = strrchr(path, '/');
    size_t folder = slash == NULL ? 0 : (size_t)(slash - path) + 1;
    memcpy(hidden, path, folder);
    for (int attempt = 0; attempt < MOST_ATTEMPTS; attempt++) {
        unsigned long number = __atomic_fetch_add(&hidden_count, 1, __ATOMIC_RELAXED);
        snprintf(hidden + folder, HIDDEN_ROOM, ".tmp-%ld-t%lu", (long)getpid(), number);
        int descriptor = open(hidden, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0 || (errno != EEXIST && errno != EINTR))
            return descriptor;
    }
    return -1;
}

static int write_hidden(const Writing *writing, const char *path, char *hidden)
{
    struct iovec pieces[3];
    memcpy(pieces, writing->pieces, sizeof pieces);
    int descriptor = open_hidden(path, hidden);
    if (descriptor < 0)
        return errno;
    int error = write_pieces(descriptor, pieces, pieces + 3);
    /* Whatever close says, the descriptor is gone. */
    if (close(descriptor) && errno != EINTR && !error)
        error = errno;
    if (!error && rename(hidden, path))
        error = errno;
    if (error)
        unlink(hidden);
    return error;
}

static void run_writing(Writing *writing)
{
    const char *path = PyBytes_AsString(writing->path);
    char *hidden = malloc(strlen(path) + HIDDEN_ROOM);
    writing->error = hidden == NULL ? ENOMEM : write_hidden(writing, path, hidden);
    free(hidden);
}

static void run_namings(Naming *namings, Py_ssize_t count)
{
    for (Naming *naming = namings; naming < namings + count; naming++) {
        const char *old = PyBytes_AsString(naming->old), *path = PyBytes_AsString(naming->path);
        naming->error = link(old, path) ? errno : 0;
    }
}

static PyObject *tell_errors(const int *first, size_t distance, Py_ssize_t count)
{
    PyObject *errors = PyList_New(count);
    for (Py_ssize_t i = 0; errors != NULL && i < count; i++) {
        int number = *(const int *)((const char *)first + (size_t)i * distance);
        PyObject *error = PyLong_FromLong(number);
        if (error == NULL || PyList_SetItem(errors, i, error) < 0)
            Py_CLEAR(errors);
    }
    return errors;
}

static int take_file(Work *work)
{
    Py_ssize_t next = __atomic_fetch_add(&work->next_file, 1, __ATOMIC_RELAXED);
    if (next < work->writing_count)
        run_writing(&work->writings[next]);
    return next < work->writing_count;
}

static int take_copy(Work *work)
{
    Py_ssize_t next = __atomic_fetch_add(&work->next_copy, 1, __ATOMIC_RELAXED);
    if (next < work->copy_count)
        memcpy(work->copies[next].target, work->copies[next].source, work->copies[next].size);
    return next < work->copy_count;
}

static int take_part(Work *work)
{
    Py_ssize_t next = __atomic_fetch_add(&work->next_part, 1, __ATOMIC_RELAXED), part = next;
    if (next >= work->part_count)
        return 0;
    Measuring **measuring = work->measurings;
    while (part >= count_parts(*measuring))
        part -= count_parts(*measuring++);
    run_part(*measuring, part);
    return 1;
}

/* Should it fail, that is seen once all are done. */
static void call_meanwhile(Work *work)
{
    PyEval_RestoreThread(work->state);
    PyObject *named =
        tell_errors(&work->namings->error, sizeof *work->namings, work->naming_count);
    PyObject *answer =
        named == NULL ? NULL : PyObject_CallFunctionObjArgs(work->meanwhile, named, NULL);
    Py_XDECREF(answer);
    Py_XDECREF(named);
    work->state = PyEval_SaveThread();
}

/* What every thread of the team does. */
static void take_jobs(void *data)
{
    Work *work = data;
    if (PyThread_get_thread_ident() == work->caller) {
        run_namings(work->namings, work->naming_count);
        call_meanwhile(work);
    }
    while (take_file(work) || take_copy(work) || take_part(work))
        ;
}

static int parse_writing(PyObject *fields, Work *work, Writing *writing)
{
    PyObject *header, *address, *trailer;
    Py_ssize_t size, length;
    char *text;
    if (!PyArg_ParseTuple(fields, "O&SOnS", PyUnicode_FSConverter, &writing->path, &header, &address,
                          &size, &trailer))
        return 0;
    void *content = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred())
        return 0;
    if (size < 0 || (size > 0 && content == NULL)) {
        PyErr_Format(PyExc_ValueError, "got %zd bytes at address %p", size, content);
        return 0;
    }
    /* The caller's list holds the header and the trailer. */
    if (PyBytes_AsStringAndSize(header, &text, &length) < 0)
        return 0;
    writing->pieces[0] = (struct iovec){text, (size_t)length};
    writing->pieces[1] = (struct iovec){content, (size_t)size};
    if (PyBytes_AsStringAndSize(trailer, &text, &length) < 0)
        return 0;
    writing->pieces[2] = (struct iovec){text, (size_t)length};
    writing->error = 0;
    work->bytes += (size_t)size;
    return 1;
}

/* Parse (target, source, size) into pieces; `pieces` NULL only counts them. -1: that is wrong. */
static Py_ssize_t parse_copy(PyObject *fields, Work *work, Copy *pieces)
{
    PyObject *to, *from;
    Py_ssize_t size, count = 0;
    if (!PyArg_ParseTuple(fields, "OOn", &to, &from, &size))
        return -1;
    char *target = PyLong_AsVoidPtr(to), *source = PyLong_AsVoidPtr(from);
    if (PyErr_Occurred())
        return -1;
    if (size < 0 || (size > 0 && (target == NULL || source == NULL))) {
        PyErr_Format(PyExc_ValueError, "got %zd bytes from %p to %p", size, source, target);
        return -1;
    }
    for (size_t at = 0; at < (size_t)size; at += COPIED_AT_ONCE, count++) {
        size_t left = (size_t)size - at;
        if (pieces != NULL)
            pieces[count] = (Copy){target + at, source + at, left < COPIED_AT_ONCE ? left : COPIED_AT_ONCE};
    }
    if (pieces == NULL)
        work->bytes += (size_t)size;
    return count;
}

static int parse_copies(PyObject *copies, Work *work)
{
    Py_ssize_t given = PyList_Size(copies);
    for (int is_counted = 0; is_counted < 2; is_counted++) {
        Py_ssize_t total = 0;
        for (Py_ssize_t i = 0; i < given; i++) {
            PyObject *fields = PyList_GetItem(copies, i);
            Copy *pieces = is_counted ? work->copies + total : NULL;
            Py_ssize_t count = fields == NULL ? -1 : parse_copy(fields, work, pieces);
            if (count < 0)
                return 0;
            total += count;
        }
        if (!is_counted && (work->copies = PyMem_Calloc((size_t)total, sizeof(Copy))) == NULL) {
            PyErr_NoMemory();
            return 0;
        }
        work->copy_count = total;
    }
    return given >= 0;
}

static int parse_naming(PyObject *fields, Naming *naming)
{
    return PyArg_ParseTuple(fields, "O&O&", PyUnicode_FSConverter, &naming->old, PyUnicode_FSConverter,
                            &naming->path);
}

static int parse_work(PyObject *measurings, PyObject *writings, PyObject *copies, PyObject *namings,
                      Work *work)
{
    if (!parse_copies(copies, work))
        return 0;
    for (Py_ssize_t i = 0; i < work->writing_count; i++) {
        PyObject *fields = PyList_GetItem(writings, i);
        if (fields == NULL || !parse_writing(fields, work, &work->writings[i]))
            return 0;
    }
    for (Py_ssize_t i = 0; i < work->naming_count; i++) {
        PyObject *fields = PyList_GetItem(namings, i);
        if (fields == NULL || !parse_naming(fields, &work->namings[i]))
            return 0;
    }
    for (Py_ssize_t i = 0; i < work->measuring_count; i++) {
        PyObject *fields = PyList_GetItem(measurings, i), *address, *n, *type;
        if (fields == NULL || !PyArg_ParseTuple(fields, "OOO", &address, &n, &type) ||
            !(work->measurings[i] = begin_measuring(address, n, type)))
            return 0;
        Py_ssize_t parts = count_parts(work->measurings[i]);
        work->part_count += parts;
        work->bytes += parts > 1 ? WORTH_A_TEAM : 0;
    }
    return 1;
}

static PyObject *tell_measurings(Work *work)
{
    PyObject *found = PyList_New(work->measuring_count);
    for (Py_ssize_t i = 0; found != NULL && i < work->measuring_count; i++) {
        PyObject *one = tell_parts(work->measurings[i]);
        if (one == NULL || PyList_SetItem(found, i, one) < 0)
            Py_CLEAR(found);
    }
    return found;
}

static PyObject *tell_work(Work *work)
{
    PyObject *found = tell_measurings(work);
    PyObject *written =
        tell_errors(&work->writings->error, sizeof *work->writings, work->writing_count);
    if (found != NULL && written != NULL)
        return Py_BuildValue("NN", found, written);
    Py_XDECREF(found);
    Py_XDECREF(written);
    return NULL;
}

const char measure_and_write_doc[] =
    "measure_and_write(region, measurings, writings, copies, namings, meanwhile, /)\n--\n\n"
    "Do at the same time: measure arrays, a list of what `measure` takes; write files, a list of\n"
    "(path, header, address of the content, its size, trailer); copy memory, a list of (target,\n"
    "source, size); and give files that are whole second names, a list of (path, second path). The\n"
    "caller does the last first, and calls `meanwhile` with a list of error numbers, 0 where it was\n"
    "done. Returns what `measure` would, and the error numbers of writing.\n\n"
    "`region` is the address of GOMP_parallel, or 0 where one thread shall do it all.";

PyObject *measure_and_write(PyObject *self, PyObject *const *args, Py_ssize_t arg_count)
{
    (void)self;
    if (!check_argument_count(arg_count, 6))
        return NULL;
    Region region = (Region)PyLong_AsVoidPtr(args[0]);
    if (PyErr_Occurred())
        return NULL;
    Work work = {.measuring_count = PyList_Size(args[1]),
                 .writing_count = PyList_Size(args[2]),
                 .naming_count = PyList_Size(args[4]),
                 .meanwhile = args[5],
                 .caller = PyThread_get_thread_ident()};
    if (PyErr_Occurred())
        return NULL;
    work.writings = PyMem_Calloc((size_t)work.writing_count, sizeof *work.writings);
    work.namings = PyMem_Calloc((size_t)work.naming_count, sizeof *work.namings);
    work.measurings = PyMem_Calloc((size_t)work.measuring_count, sizeof *work.measurings);
    PyObject *told = NULL;
    if (work.writings == NULL || work.namings == NULL || work.measurings == NULL)
        PyErr_NoMemory();
    else if (parse_work(args[1], args[2], args[3], args[4], &work)) {
        work.state = PyEval_SaveThread();
        /* As many threads as torch uses: for another number the team would be made anew. */
        if (region != NULL && work.bytes >= WORTH_A_TEAM)
            region(take_jobs, &work, 0, 0);
        else
            take_jobs(&work);
        PyEval_RestoreThread(work.state);
        told = PyErr_Occurred() ? NULL : tell_work(&work);
    }
    for (Py_ssize_t i = 0; work.measurings != NULL && i < work.measuring_count; i++)
        end_measuring(work.measurings[i]);
    for (Py_ssize_t i = 0; work.writings != NULL && i < work.writing_count; i++)
        Py_XDECREF(work.writings[i].path);
    for (Py_ssize_t i = 0; work.namings != NULL && i < work.naming_count; i++) {
        Py_XDECREF(work.namings[i].old);
        Py_XDECREF(work.namings[i].path);
    }
    PyMem_Free(work.copies);
    PyMem_Free(work.measurings);
    PyMem_Free(work.namings);
    PyMem_Free(work.writings);
    return told;
}

#endif
