/* What recording a plain tensor needs, for the many that need nothing else.
 *
 *     find_pending_tensor(drafts, tensor)           -> its PendingTensor, if nobody has written into it since; else None
 *     is_plain(tensor)                     -> whether it holds strided numbers that can be looked at
 *     make_pending_tensor(tensor, measured, checked) -> a PendingTensor
 *
 * A step looks at thousands of tensors. pending_tensors.py and host.py have the same meaning, say it in Python,
 * and say why.
 */

#include "_calls.h"

/* From pending_tensors.py and host.py. */
static PyObject *pending_tensor_class, *plain_types, *plain_dtypes, *strided, *is_wrapped;
static PyObject *no_version, *parameter_class;
/* NULL where torch has none; what it lies in. */
static Exchange *exchange;
static PyObject *capsule;

int show_tensor(PyObject *tensor, Shown *shown)
{
    if (!exchange)
        return 0;
    if (!exchange->show(tensor, shown))
        return 1;
    /* Nothing that DLPack can say. */
    PyErr_Clear();
    return 0;
}

/* Whether an attribute of one object is what that of another is; -1 on failure, after which nothing
 * else may be asked: an answer would take the place of the error. */
static int is_equal(PyObject *one, PyObject *attribute, PyObject *other, PyObject *its_attribute)
{
    PyObject *then = PyObject_GetAttr(one, attribute);
    PyObject *now = then ? PyObject_GetAttr(other, its_attribute) : NULL;
    int is_so = now ? PyObject_RichCompareBool(then, now, Py_EQ) : -1;
    Py_XDECREF(then);
    Py_XDECREF(now);
    return is_so;
}

/* Whether a tensor, if it is a parameter, has the memory that it had; -1 on failure. */
static int has_its_memory(PyObject *draft, PyObject *tensor)
{
    PyObject *then = PyObject_GetAttr(draft, text_memory);
    if (!then || then == Py_None) {
        Py_XDECREF(then);
        return then ? 1 : -1;
    }
    PyObject *now = call_method(tensor, text_data_ptr);
    int is_so = now ? PyObject_RichCompareBool(then, now, Py_EQ) : -1;
    Py_DECREF(then);
    Py_XDECREF(now);
    return is_so > 0 ? is_equal(draft, text_shape, tensor, text_shape) : is_so;
}

PyObject *find_pending_tensor(PyObject *drafts, PyObject *wanted)
{
    PyObject *key = PyLong_FromVoidPtr(wanted);
    PyObject *known = key ? PyDict_GetItemWithError(drafts, key) : NULL;
    Py_XDECREF(key);
    if (!known)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *draft = PyTuple_GetItem(known, 0), *reference = PyTuple_GetItem(known, 1);
    Py_XINCREF(draft);
    PyObject *tensor = draft && reference ? PyObject_CallObject(reference, NULL) : NULL;
    PyObject *found = NULL;
    if (tensor == wanted) {
        int is_same = is_equal(draft, text_version, tensor, text__version);
        if (is_same > 0)
            is_same = is_equal(draft, text_dtype, tensor, text_dtype);
        if (is_same > 0)
            is_same = has_its_memory(draft, tensor);
        if (is_same >= 0)
            found = Py_NewRef(is_same ? draft : Py_None);
    } else if (tensor) {
        found = Py_NewRef(Py_None);
    }
    Py_XDECREF(tensor);
    Py_XDECREF(draft);
    return found;
}

int remember_pending_tensor(PyObject *drafts, PyObject *tensor, PyObject *draft)
{
    PyObject *key = PyLong_FromVoidPtr(tensor), *reference = PyWeakref_NewRef(tensor, NULL);
    PyObject *known = key && reference ? PyTuple_Pack(2, draft, reference) : NULL;
    int failed = !known || PyDict_SetItem(drafts, key, known);
    Py_XDECREF(key);
    Py_XDECREF(reference);
    Py_XDECREF(known);
    return failed ? -1 : 0;
}

static PyObject *find(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 2 || !PyDict_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "wanted the drafts and a tensor");
        return NULL;
    }
    return find_pending_tensor(args[0], args[1]);
}

/* Whether a set holds what is asked for, which is taken over. */
static int holds(PyObject *set, PyObject *item)
{
    int is_in = item ? PySet_Contains(set, item) : -1;
    Py_XDECREF(item);
    return is_in;
}

int looks_plain(PyObject *tensor)
{
    Shown shown;
    int is_so = PySet_Contains(plain_types, (PyObject *)Py_TYPE(tensor));
    if (is_so <= 0)
        return is_so;
    if (show_tensor(tensor, &shown) && shown.data)
        return holds(plain_dtypes, PyObject_GetAttr(tensor, text_dtype));
    PyObject *layout = PyObject_GetAttr(tensor, text_layout);
    Py_XDECREF(layout);
    if (layout != strided)
        return layout ? 0 : -1;
    if ((is_so = holds(plain_dtypes, PyObject_GetAttr(tensor, text_dtype))) <= 0)
        return is_so;
    if ((is_so = is_true(PyObject_GetAttr(tensor, text_is_nested))))
        return is_so < 0 ? -1 : 0;
    if ((is_so = is_true(PyObject_GetAttr(tensor, text_is_meta))))
        return is_so < 0 ? -1 : 0;
    if ((is_so = is_true(PyObject_CallFunctionObjArgs(is_wrapped, tensor, NULL))))
        return is_so < 0 ? -1 : 0;
    is_so = is_true(call_method(tensor, text_data_ptr));
    if (is_so < 0 && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        /* A batch of gradients has no memory of its own. */
        PyErr_Clear();
        return 0;
    }
    if (is_so)
        return is_so;
    is_so = is_true(call_method(tensor, text_numel));
    return is_so < 0 ? -1 : !is_so;
}

static PyObject *is_plain(PyObject *self, PyObject *tensor)
{
    (void)self;
    int is_so = looks_plain(tensor);
    return is_so < 0 ? NULL : PyBool_FromLong(is_so);
}

/* An inference tensor has no version and says so by an error. */
static PyObject *version_of(PyObject *tensor)
{
    PyObject *version = PyObject_GetAttr(tensor, text__version);
    if (version || !PyErr_ExceptionMatches(PyExc_RuntimeError))
        return version;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    int is_inference = is_true(call_method(tensor, text_is_inference));
    if (!is_inference) {
        /* Then it is an error. */
        PyErr_Restore(kind, value, trace);
        return NULL;
    }
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return is_inference > 0 ? Py_NewRef(no_version) : NULL;
}

/* Return where a parameter lies; None of others. */
static PyObject *address_of(PyObject *tensor)
{
    return (PyObject *)Py_TYPE(tensor) == parameter_class ? call_method(tensor, text_data_ptr)
                                                          : Py_NewRef(Py_None);
}

PyObject *make_pending_tensor(PyObject *tensor, PyObject *measured, PyObject *checked)
{
    PyObject *draft = pending_tensor_class ? make_empty(pending_tensor_class) : NULL;
    if (draft && (PyObject_SetAttr(draft, text_measured, measured) ||
                  PyObject_SetAttr(draft, text_checked, checked) ||
                  PyObject_SetAttr(draft, text_file, Py_None) ||
                  PyObject_SetAttr(draft, text__text, Py_None) ||
                  give(draft, text_dtype, PyObject_GetAttr(tensor, text_dtype)) ||
                  give(draft, text_shape, PyObject_GetAttr(tensor, text_shape)) ||
                  give(draft, text_requires_grad, PyObject_GetAttr(tensor, text_requires_grad)) ||
                  give(draft, text_memory, address_of(tensor)) ||
                  give(draft, text_version, version_of(tensor))))
        Py_CLEAR(draft);
    return draft;
}

static PyObject *make(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 3 || !pending_tensor_class) {
        PyErr_SetString(PyExc_TypeError, "wanted set_up, and then a tensor and its numbers");
        return NULL;
    }
    return make_pending_tensor(args[0], args[1], args[2]);
}

static PyObject *set_up(PyObject *self, PyObject *args)
{
    PyObject **kept[] = {&pending_tensor_class, &plain_types, &plain_dtypes,    &strided,
                         &is_wrapped,  &no_version,  &parameter_class, &capsule};
    (void)self;
    PyObject *done = keep_given(args, kept, 8);
    exchange = done ? open_exchange(capsule) : exchange;
    return done;
}

PyMethodDef draft_methods[] = {
    {"set_up_pending_tensors", set_up, METH_VARARGS, "Take the classes and sets of pending_tensors.py and host.py."},
    {"find_pending_tensor", (PyCFunction)(void (*)(void))find, METH_FASTCALL, "Return the draft of a tensor, or None."},
    {"is_plain", is_plain, METH_O, "Whether a tensor holds strided numbers."},
    {"make_pending_tensor", (PyCFunction)(void (*)(void))make, METH_FASTCALL, "Make a draft."},
    {NULL, NULL, 0, NULL},
};
