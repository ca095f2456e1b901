/* Launch a kernel that is loaded already, through the CUDA driver and nothing else.
 *
 *     fits(function, "PiPPi")        does the kernel take these arguments, and pointers behind them?
 *     launch(function, threads, shared, "PiPPi", programs, stream, address, count, ...)
 *
 * 'P' and 'l' stand for 64 bits, 'i' for 32. Triton's own launcher asks the driver about each
 * pointer and calls back into Python; a captured step launches a thousand kernels. The driver is
 * found when it is asked for: this file builds and loads on machines that have none.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

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
    return PyModule_Create(&module);
}
