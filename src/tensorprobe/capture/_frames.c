/* What stands in the frames of Python: where a call was made, and what its caller was given.
 *
 *     stack_key(frame, shown, limit)  -> the codes of a stack and the instruction in each, as bytes; None: a
 *                                        code is not in shown
 *
 * stacks.py has the same meaning, says it in Python, and says why.
 */

#include "_calls.h"

#include <string.h>
#ifndef _WIN32
#include <dlfcn.h>
#endif

/* Functions of Python that its stable interface leaves out; NULL where this Python has none. Attributes
 * say the same, more slowly. */
static PyObject *(*get_back)(PyObject *frame);
static int (*get_instruction)(PyObject *frame);
static PyObject *(*get_variable)(PyObject *frame, PyObject *name);

void begin_frames(void)
{
#ifndef _WIN32
    *(void **)&get_back = dlsym(RTLD_DEFAULT, "PyFrame_GetBack");
    *(void **)&get_instruction = dlsym(RTLD_DEFAULT, "PyFrame_GetLasti");
    *(void **)&get_variable = dlsym(RTLD_DEFAULT, "PyFrame_GetVar");
#endif
}

/* Return the frame below, a new reference; NULL if there is none, or on failure. */
static PyObject *frame_below(PyObject *frame)
{
    if (get_back)
        return get_back(frame);
    PyObject *back = PyObject_GetAttr(frame, text_f_back);
    if (back == Py_None)
        Py_CLEAR(back);
    return back;
}

static long long instruction_in(PyObject *frame)
{
    return get_instruction ? get_instruction(frame) : number_of(PyObject_GetAttr(frame, text_f_lasti));
}

enum { UNKNOWN, SHOWN, HIDDEN, REMEMBERED = 1024 };

/* What a dict says of codes, each at the place of its address. The dict keeps the codes, and only grows
 * or is emptied. */
static struct {
    PyObject *shown;
    Py_ssize_t size;
    void *codes[REMEMBERED];
    char are[REMEMBERED];
} known;

static void trust(PyObject *shown)
{
    Py_ssize_t size = PyDict_Size(shown);
    if (known.shown != shown || size < known.size) {
        Py_XDECREF(known.shown);
        memset(&known, 0, sizeof known);
        known.shown = Py_NewRef(shown);
    }
    known.size = size;
}

/* Whether a code is shown; -1 on failure. */
static int look_up(PyObject *shown, void *code)
{
    size_t at = ((uintptr_t)code >> 6) % REMEMBERED;
    if (known.codes[at] == code)
        return known.are[at];
    PyObject *number = PyLong_FromVoidPtr(code);
    PyObject *found = number ? PyDict_GetItemWithError(shown, number) : NULL;
    Py_XDECREF(number);
    if (!found)
        return PyErr_Occurred() ? -1 : UNKNOWN;
    known.codes[at] = code;
    return known.are[at] = found == Py_None ? HIDDEN : SHOWN;
}

#define DEEPEST 1024

PyObject *key_of_stack(PyObject *frame, PyObject *shown, Py_ssize_t limit)
{
    int64_t key[DEEPEST];
    Py_ssize_t count = 0;
    int is_shown = SHOWN;
    if (limit > DEEPEST)
        limit = DEEPEST;
    trust(shown);
    Py_INCREF(frame);
    while (frame && count + 1 < limit) {
        PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
        /* Its frame keeps it. */
        Py_DECREF(code);
        is_shown = look_up(shown, code);
        if (is_shown == SHOWN) {
            key[count++] = (int64_t)(intptr_t)code;
            key[count++] = instruction_in(frame);
        }
        PyObject *back = is_shown > UNKNOWN ? frame_below(frame) : NULL;
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    if (PyErr_Occurred())
        return NULL;
    if (is_shown == UNKNOWN)
        return Py_NewRef(Py_None);
    return PyBytes_FromStringAndSize((const char *)key, count * (Py_ssize_t)sizeof *key);
}

PyObject *local_of(PyObject *frame, PyObject *name)
{
    PyObject *found = NULL;
    if (get_variable) {
        found = get_variable(frame, name);
    } else {
        PyObject *locals = PyObject_GetAttr(frame, text_f_locals);
        found = locals ? PyObject_GetItem(locals, name) : NULL;
        Py_XDECREF(locals);
    }
    if (!found && (PyErr_ExceptionMatches(PyExc_NameError) || PyErr_ExceptionMatches(PyExc_KeyError)))
        PyErr_Clear();
    return found;
}

static PyObject *stack_key(PyObject *self, PyObject *args)
{
    PyObject *frame, *shown;
    Py_ssize_t limit;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO!n", &frame, &PyDict_Type, &shown, &limit))
        return NULL;
    PyObject *here = (PyObject *)PyEval_GetFrame();
    if (!here || Py_TYPE(frame) != Py_TYPE(here))
        return PyErr_Format(PyExc_TypeError, "wanted a frame");
    return key_of_stack(frame, shown, limit);
}

PyMethodDef frame_methods[] = {
    {"stack_key", stack_key, METH_VARARGS, "Return what tells a call stack from others."},
    {NULL, NULL, 0, NULL},
};
