/* Launch a kernel that is loaded already, through the CUDA driver and nothing else.
 *
 *     fits(function, "PiPPi")        does the kernel take these arguments, and pointers behind them?
 *     launch(function, threads, shared, "PiPPi", programs, stream, address, count, ...)
 *     Rows(...)                      the rows of one table, and ask(tensor): the usual tensor's numbers
 *
 * 'P' and 'l' stand for 64 bits, 'i' for 32. Triton's own launcher asks the driver about each
 * pointer and calls back into Python; a captured step launches a thousand kernels. The driver is
 * found when it is asked for: this file builds and loads on machines that have none.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stdint.h>
#include <structmember.h>
#include <string.h>

#include "../_sides.h"

#define MOST_ARGUMENTS 16
/* Kernels of Triton end in pointers to scratch memory, which ours do not use. */
#define MOST_HIDDEN 4

typedef int (*LaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            void *, void **, void **);
typedef int (*GetParameter)(void *, size_t, size_t *, size_t *);

static LaunchKernel launch_kernel;
static GetParameter get_parameter;

static int find_driver(void)
{
    static int is_looked_for = 0;
    if (!is_looked_for) {
        is_looked_for = 1;
        void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
        if (driver) {
            launch_kernel = (LaunchKernel)dlsym(driver, "cuLaunchKernel");
            get_parameter = (GetParameter)dlsym(driver, "cuFuncGetParamInfo");
        }
    }
    return launch_kernel && get_parameter;
}

static PyObject *fits(PyObject *self, PyObject *args)
{
    unsigned long long function;
    const char *kinds;
    (void)self;
    if (!PyArg_ParseTuple(args, "Ks", &function, &kinds))
        return NULL;
    if (!find_driver() || strlen(kinds) > MOST_ARGUMENTS)
        Py_RETURN_FALSE;
    size_t offset, size, count = strlen(kinds), number = 0;
    for (; number < count + MOST_HIDDEN + 1; number++) {
        if (get_parameter((void *)(uintptr_t)function, number, &offset, &size))
            break;
        size_t wanted = number < count && kinds[number] == 'i' ? 4 : 8;
        if (size != wanted)
            Py_RETURN_FALSE;
    }
    return PyBool_FromLong(number >= count && number <= count + MOST_HIDDEN);
}

static PyObject *launch(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    enum { FUNCTION, THREADS, SHARED, KINDS, PROGRAMS, STREAM, FIRST };
    uint64_t values[MOST_ARGUMENTS + MOST_HIDDEN] = {0};
    void *addresses[MOST_ARGUMENTS + MOST_HIDDEN];
    (void)self;
    if (given < FIRST) {
        PyErr_SetString(PyExc_TypeError, "wanted function, threads, shared, kinds, programs, stream");
        return NULL;
    }
    Py_ssize_t count;
    const char *kinds = PyUnicode_AsUTF8AndSize(args[KINDS], &count);
    if (!kinds)
        return NULL;
    if (count != given - FIRST || count > MOST_ARGUMENTS || !find_driver()) {
        PyErr_SetString(PyExc_TypeError, "another number of arguments than of kinds, or no driver");
        return NULL;
    }
    uint64_t head[FIRST] = {0};
    for (int place = 0; place < FIRST; place++)
        if (place != KINDS)
            head[place] = PyLong_AsUnsignedLongLongMask(args[place]);
    for (Py_ssize_t place = 0; place < count; place++)
        values[place] = PyLong_AsUnsignedLongLongMask(args[FIRST + place]);
    if (PyErr_Occurred())
        return NULL;
    /* A little-endian number of 32 bits is the beginning of the one of 64. */
    for (int place = 0; place < MOST_ARGUMENTS + MOST_HIDDEN; place++)
        addresses[place] = &values[place];
    int failure;
    /* A full queue makes the driver wait. */
    Py_BEGIN_ALLOW_THREADS
    failure = launch_kernel((void *)(uintptr_t)head[FUNCTION], (unsigned)head[PROGRAMS], 1, 1,
                            (unsigned)head[THREADS], 1, 1, (unsigned)head[SHARED],
                            (void *)(uintptr_t)head[STREAM], addresses, NULL);
    Py_END_ALLOW_THREADS
    if (failure)
        return PyErr_Format(PyExc_RuntimeError, "the CUDA driver refused a launch: error %d", failure);
    Py_RETURN_NONE;
}

/* Where the numbers of one device's tensors go, a row each; triton_statistics.py has the meaning. */
typedef struct {
    PyObject_HEAD
    /* By dtype: (function, threads, shared, whether they are truths); and of the kernel for pieces. */
    PyObject *ways, *piece_ways;
    /* Who waits for the rows since the last batch, and how many elements each is of. */
    PyObject *waiting, *counts;
    PyObject *measured_class, *current_stream, *current_device;
    /* NULL where torch has none; what it lies in. */
    Exchange *exchange;
    PyObject *capsule;
    uint64_t extremes, sums, stream;
    Py_ssize_t next, rows, share, most_programs, alignment, largest;
    /* The kernel for pieces takes those of a multiple of `piece` elements, `even` multiples apart. */
    Py_ssize_t piece, even;
    long device;
    /* Whether the current stream has been this one since somebody looked. */
    int has_stream;
    /* Whether there is an exchange. */
    int has_exchange;
} Rows;

#define TEXTS(X)                                                                                     \
    X(numel) X(get_device) X(ndim) X(dtype) X(is_contiguous) X(is_neg) X(data_ptr)    \
    X(numbers)
#define DECLARE(text) static PyObject *text_##text;
TEXTS(DECLARE)

/* Turn an answer, which is taken over, into a number; -1 on failure. */
static long long number_of(PyObject *answer)
{
    long long number = answer ? PyLong_AsLongLong(answer) : -1;
    Py_XDECREF(answer);
    return number;
}

static long long ask_method(PyObject *tensor, PyObject *method)
{
    return number_of(PyObject_CallMethodObjArgs(tensor, method, NULL));
}

/* Whether a method answers so, True or False. */
static int answers(PyObject *tensor, PyObject *method, PyObject *wanted)
{
    PyObject *answer = PyObject_CallMethodObjArgs(tensor, method, NULL);
    Py_XDECREF(answer);
    return answer == wanted;
}

/* Whether the tables are written by the stream that is noted, on the device that is current. */
static int is_in_place(Rows *self)
{
    if (!self->has_stream)
        return 0;
    if (self->exchange && self->exchange->current_stream) {
        void *current;
        if (self->exchange->current_stream(ON_CUDA, (int32_t)self->device, &current))
            return -1;
        if ((uint64_t)(uintptr_t)current != self->stream)
            return 0;
        return number_of(PyObject_CallObject(self->current_device, NULL)) == self->device;
    }
    PyObject *index = PyLong_FromLong(self->device);
    PyObject *answer = index ? PyObject_CallFunctionObjArgs(self->current_stream, index, NULL) : NULL;
    uint64_t stream = answer ? PyLong_AsUnsignedLongLongMask(answer) : 0;
    Py_XDECREF(index);
    Py_XDECREF(answer);
    if (PyErr_Occurred())
        return -1;
    if (stream != self->stream)
        return 0;
    return number_of(PyObject_CallObject(self->current_device, NULL)) == self->device;
}

/* Where the elements of a tensor lie: one behind the other, or in pieces of this length, the beginnings
 * of which are so many elements apart. */
typedef struct {
    uint64_t address;
    long long count;
    int64_t length, distance;
    /* Whether the tensor has no dimensions. */
    int is_single;
} Lying;

/* Return how the kernel for a tensor's dtype is launched, borrowed. */
static PyObject *way_for_dtype(PyObject *ways, PyObject *tensor)
{
    PyObject *dtype = PyObject_GetAttr(tensor, text_dtype);
    PyObject *way = dtype ? PyDict_GetItemWithError(ways, dtype) : NULL;
    Py_XDECREF(dtype);
    return way;
}

static int is_straight(const Shown *shown)
{
    int64_t behind = 1;
    for (int32_t i = shown->dimensions - 1; i >= 0; i--) {
        if (shown->shape[i] != 1 && shown->strides && shown->strides[i] != behind)
            return 0;
        behind *= shown->shape[i];
    }
    return 1;
}

/* Find out where elements lie that are not one behind the other; 0: nowhere that a kernel takes. */
static int find_pieces(Rows *self, const Shown *shown, Lying *lying)
{
    Side sides[MOST_SIDES];
    int count = shown->dimensions <= MOST_SIDES ? merge_sides(shown, sides) : 0;
    /* Numbers have no order: a permuted tensor is read as it lies in memory. */
    if (count == 1)
        return sides[0].stride == 1;
    if (count != 2 || sides[0].stride != 1 || sides[0].size % self->piece ||
        sides[1].stride % self->even || sides[1].stride > INT32_MAX)
        return 0;
    lying->length = sides[0].size;
    lying->distance = sides[1].stride;
    return 1;
}

/* Return the way for a tensor that says where it is, and note that; or NULL. */
static PyObject *way_for_shown(Rows *self, PyObject *tensor, Lying *lying)
{
    Shown shown;
    if (self->exchange->show(tensor, &shown)) {
        /* Nothing that DLPack can say: Python finds out what it is. */
        PyErr_Clear();
        return NULL;
    }
    if (shown.device_type != ON_CUDA || shown.device != self->device || shown.dimensions < 0)
        return NULL;
    lying->count = 1;
    for (int32_t i = 0; i < shown.dimensions; i++)
        lying->count *= shown.shape[i];
    lying->is_single = !shown.dimensions;
    if ((lying->is_single && shown.code == TRUTHS) ||
        (lying->count && !is_straight(&shown) && !find_pieces(self, &shown, lying)))
        return NULL;
    lying->address = (uint64_t)(uintptr_t)shown.data + shown.offset;
    /* Memory of a tensor that negates does not hold its numbers. */
    if (!answers(tensor, text_is_neg, Py_False))
        return NULL;
    return way_for_dtype(lying->length ? self->piece_ways : self->ways, tensor);
}

/* The same by asking the tensor one question after the other. */
static PyObject *way_for(Rows *self, PyObject *tensor, Lying *lying)
{
    if (self->exchange)
        return way_for_shown(self, tensor, lying);
    if (ask_method(tensor, text_get_device) != self->device ||
        number_of(PyObject_GetAttr(tensor, text_ndim)) <= 0)
        return NULL;
    PyObject *way = way_for_dtype(self->ways, tensor);
    if (!way)
        return NULL;
    int is_usual = answers(tensor, text_is_contiguous, Py_True) && answers(tensor, text_is_neg, Py_False);
    lying->count = is_usual ? ask_method(tensor, text_numel) : 0;
    lying->address = lying->count > 0 ? (uint64_t)ask_method(tensor, text_data_ptr) : 0;
    return is_usual ? way : NULL;
}

static int launch_row(Rows *self, PyObject *way, const Lying *lying)
{
    uint64_t function = PyLong_AsUnsignedLongLongMask(PyTuple_GetItem(way, 0));
    unsigned threads = (unsigned)PyLong_AsUnsignedLongMask(PyTuple_GetItem(way, 1));
    unsigned shared = (unsigned)PyLong_AsUnsignedLongMask(PyTuple_GetItem(way, 2));
    if (PyErr_Occurred())
        return -1;
    /* Without pieces the last two are pointers that are not used. */
    uint64_t values[7 + MOST_HIDDEN] = {lying->address, (uint64_t)lying->count, self->extremes,
                                        self->sums,     (uint64_t)self->next,   (uint64_t)lying->length,
                                        (uint64_t)lying->distance};
    void *addresses[7 + MOST_HIDDEN];
    for (int place = 0; place < 7 + MOST_HIDDEN; place++)
        addresses[place] = &values[place];
    Py_ssize_t programs = ((Py_ssize_t)lying->count + self->share - 1) / self->share;
    if (programs > self->most_programs)
        programs = self->most_programs;
    int failure;
    Py_BEGIN_ALLOW_THREADS
    failure = launch_kernel((void *)(uintptr_t)function, (unsigned)programs, 1, 1, threads, 1, 1, shared,
                            (void *)(uintptr_t)self->stream, addresses, NULL);
    Py_END_ALLOW_THREADS
    return failure ? -1 : 0;
}

/* Return an object of the class that waits, as its constructor makes it with None. */
static PyObject *make_waiting(Rows *self)
{
    newfunc make = (newfunc)PyType_GetSlot((PyTypeObject *)self->measured_class, Py_tp_new);
    PyObject *nothing = PyTuple_New(0);
    PyObject *made = nothing ? make((PyTypeObject *)self->measured_class, nothing, NULL) : NULL;
    Py_XDECREF(nothing);
    if (made && PyObject_SetAttr(made, text_numbers, Py_None))
        Py_CLEAR(made);
    return made;
}

/* What is noted of the elements of a row, as triton_statistics.py's read_rows has it; -2 on failure. */
static long long noted_count(PyObject *way, const Lying *lying)
{
    PyObject *are_truths = PyTuple_GetItem(way, 3);
    if (!are_truths)
        return -2;
    return are_truths == Py_True ? -1 : lying->is_single ? 0 : lying->count;
}

/* Measure a usual tensor into the next row and return who waits for it; None: ask Python. */
static PyObject *ask(PyObject *object, PyObject *tensor)
{
    Rows *self = (Rows *)object;
    Lying lying = {0};
    PyObject *way = NULL;
    if (self->next < self->rows && find_driver())
        way = way_for(self, tensor, &lying);
    int is_usual = way && !PyErr_Occurred() && lying.count > 0 && lying.count <= self->largest &&
                   lying.address && !(lying.address % (uint64_t)self->alignment);
    if (is_usual)
        is_usual = is_in_place(self);
    if (is_usual <= 0)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    long long noted = noted_count(way, &lying);
    if (noted < -1 || launch_row(self, way, &lying))
        /* Whatever the driver has against it, Python asks it in another way. */
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *measured = make_waiting(self);
    PyObject *size = measured ? PyLong_FromLongLong(noted) : NULL;
    if (!size || PyList_Append(self->waiting, measured) || PyList_Append(self->counts, size))
        Py_CLEAR(measured);
    Py_XDECREF(size);
    self->next++;
    return measured;
}

/* Note the stream that is current now and may write the tables. */
static PyObject *set_stream(PyObject *object, PyObject *stream)
{
    Rows *self = (Rows *)object;
    self->has_stream = stream != Py_None;
    self->stream = self->has_stream ? PyLong_AsUnsignedLongLongMask(stream) : 0;
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *make_rows(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *ways, *piece_ways, *measured_class, *current_stream, *current_device, *capsule;
    unsigned long long extremes, sums;
    Py_ssize_t rows, share, most_programs, alignment, largest, piece, even;
    long device;
    if ((kwargs && PyDict_Size(kwargs)) ||
        !PyArg_ParseTuple(args, "O!O!O!OOOlKKnnnnnnn", &PyDict_Type, &ways, &PyDict_Type, &piece_ways,
                          &PyType_Type, &measured_class, &current_stream, &current_device, &capsule,
                          &device, &extremes, &sums, &rows, &share, &most_programs, &alignment,
                          &largest, &piece, &even))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "no named arguments");
    if (share < 1 || alignment < 1 || piece < 1 || even < 1)
        return PyErr_Format(PyExc_ValueError, "wanted shares and pieces of at least one element");
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Rows *self = (Rows *)allocate(type, 0);
    if (!self)
        return NULL;
    self->ways = Py_NewRef(ways);
    self->piece_ways = Py_NewRef(piece_ways);
    self->measured_class = Py_NewRef(measured_class);
    self->current_stream = Py_NewRef(current_stream);
    self->current_device = Py_NewRef(current_device);
    self->capsule = Py_NewRef(capsule);
    self->exchange = open_exchange(capsule);
    self->has_exchange = self->exchange != NULL;
    self->waiting = PyList_New(0);
    self->counts = PyList_New(0);
    self->device = device;
    self->extremes = extremes;
    self->sums = sums;
    self->rows = rows;
    self->share = share;
    self->most_programs = most_programs;
    self->alignment = alignment;
    self->largest = largest;
    self->piece = piece;
    self->even = even;
    if (!self->waiting || !self->counts) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void free_rows(PyObject *object)
{
    Rows *self = (Rows *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->ways);
    Py_XDECREF(self->piece_ways);
    Py_XDECREF(self->measured_class);
    Py_XDECREF(self->current_stream);
    Py_XDECREF(self->current_device);
    Py_XDECREF(self->capsule);
    Py_XDECREF(self->waiting);
    Py_XDECREF(self->counts);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* Add a row that Python has measured. */
static PyObject *add(PyObject *object, PyObject *args)
{
    Rows *self = (Rows *)object;
    PyObject *measured, *count;
    if (!PyArg_ParseTuple(args, "OO", &measured, &count) || PyList_Append(self->waiting, measured) ||
        PyList_Append(self->counts, count))
        return NULL;
    self->next++;
    Py_RETURN_NONE;
}

/* Return who waits and how many elements each is of, and begin anew. */
static PyObject *take(PyObject *object, PyObject *nothing)
{
    Rows *self = (Rows *)object;
    PyObject *waiting = PyList_New(0), *counts = PyList_New(0);
    (void)nothing;
    PyObject *taken = waiting && counts ? PyTuple_Pack(2, self->waiting, self->counts) : NULL;
    if (!taken) {
        Py_XDECREF(waiting);
        Py_XDECREF(counts);
        return NULL;
    }
    Py_DECREF(self->waiting);
    Py_DECREF(self->counts);
    self->waiting = waiting;
    self->counts = counts;
    self->has_stream = 0;
    return taken;
}

static PyMethodDef row_methods[] = {
    {"ask", ask, METH_O, "Measure a usual tensor; None: it is not, and nothing is done."},
    {"add", add, METH_VARARGS, "Add a row that was measured elsewhere."},
    {"set_stream", set_stream, METH_O, "Note the stream that writes from now on."},
    {"take", take, METH_NOARGS, "Return those that wait and their counts, and forget them."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef row_members[] = {
    {"next", T_PYSSIZET, offsetof(Rows, next), READONLY, "The row for the next tensor."},
    {"has_exchange", T_INT, offsetof(Rows, has_exchange), READONLY,
     "Whether a tensor is asked by DLPack's exchange, which knows plain ones alone."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot row_slots[] = {
    {Py_tp_new, make_rows},         {Py_tp_dealloc, free_rows},
    {Py_tp_methods, row_methods},   {Py_tp_members, row_members},
    {Py_tp_doc, "The rows of one table on a device."}, {0, NULL},
};

static PyType_Spec row_spec = {
    "tensorprobe.summary._launch.Rows", sizeof(Rows), 0, Py_TPFLAGS_DEFAULT, row_slots,
};

static PyMethodDef methods[] = {
    {"fits", fits, METH_VARARGS, "Whether a kernel takes arguments of these kinds."},
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, "Launch a kernel."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_launch", "Kernels through the CUDA driver.", -1, methods, NULL, NULL, NULL,
    NULL,
};

PyMODINIT_FUNC PyInit__launch(void)
{
#define INTERN(text)                                                                                 \
    if (!(text_##text = PyUnicode_InternFromString(#text)))                                          \
        return NULL;
    TEXTS(INTERN)
    PyObject *made = PyModule_Create(&module);
    PyObject *rows_class = made ? PyType_FromSpec(&row_spec) : NULL;
    if (made && (!rows_class || PyModule_AddObjectRef(made, "Rows", rows_class)))
        Py_CLEAR(made);
    Py_XDECREF(rows_class);
    return made;
}
