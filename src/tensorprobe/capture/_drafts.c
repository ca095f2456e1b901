/* What recording a plain tensor needs, for the many that need nothing else.
 *
 *     find(drafts, tensor)           -> its Draft, if nobody has written into it since; else None
 *     is_plain(tensor)               -> whether it holds strided numbers that can be looked at
 *     make(tensor, measured, checked) -> a Draft
 *     draft_all(values, table, ask, check, hindered, slowly, describe, name) -> a tuple of drafts
 *     stack_key(frame, shown, limit) -> (id of code, place, ...), or None: a code that is not in shown
 *
 * A step looks at thousands of tensors. drafts.py, host.py and stacks.py have the same meaning, say it
 * in Python, and say why.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* From drafts.py and host.py. */
static PyObject *draft_class, *make_reference, *plain_types, *plain_dtypes, *strided, *is_wrapped;
static PyObject *no_version, *merge_layout;

#define TEXTS(X)                                                                                     \
    X(alive) X(version) X(_version) X(measured) X(checked) X(dtype) X(shape) X(requires_grad) X(file) \
    X(_text) X(is_inference) X(layout) X(is_nested) X(is_meta) X(data_ptr) X(numel) X(f_code) X(f_lasti) \
    X(f_back) X(_base) X(is_contiguous) X(is_conj) X(is_neg) X(stride) X(_drafts) X(_owners) X(_limit)  \
    X(_is_ordered) X(numbers)
#define DECLARE(text) static PyObject *text_##text;
TEXTS(DECLARE)

static PyObject *call(PyObject *object, PyObject *method)
{
    return PyObject_CallMethodObjArgs(object, method, NULL);
}

/* Whether an answer, which is taken over, is true; -1 on failure. */
static int is_true(PyObject *answer)
{
    int is_so = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return is_so;
}

/* Whether what a reference refers to is alive, the tensor itself, and of the version that is noted. */
static int is_unchanged(PyObject *noted, PyObject *tensor)
{
    PyObject *reference = PyObject_GetAttr(noted, text_alive);
    PyObject *alive = reference ? PyObject_CallObject(reference, NULL) : NULL;
    int is_so = alive ? alive == tensor : -1;
    if (is_so > 0) {
        PyObject *then = PyObject_GetAttr(noted, text_version);
        PyObject *now = PyObject_GetAttr(tensor, text__version);
        is_so = then && now ? PyObject_RichCompareBool(then, now, Py_EQ) : -1;
        Py_XDECREF(then);
        Py_XDECREF(now);
    }
    Py_XDECREF(reference);
    Py_XDECREF(alive);
    return is_so;
}

/* Return what is noted under a tensor's id, if that still holds; NULL without an error if not. */
static PyObject *look_up(PyObject *notes, PyObject *tensor)
{
    PyObject *key = PyLong_FromVoidPtr(tensor);
    PyObject *noted = key ? PyDict_GetItemWithError(notes, key) : NULL;
    Py_XDECREF(key);
    if (!noted)
        return NULL;
    Py_INCREF(noted);
    if (is_unchanged(noted, tensor) <= 0)
        Py_CLEAR(noted);
    return noted;
}

static PyObject *found_or_none(PyObject *found)
{
    return found || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

static PyObject *find(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 2 || !PyDict_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "wanted the drafts and a tensor");
        return NULL;
    }
    return found_or_none(look_up(args[0], args[1]));
}

/* Whether a set holds what is asked for, which is taken over. */
static int holds(PyObject *set, PyObject *item)
{
    int is_in = item ? PySet_Contains(set, item) : -1;
    Py_XDECREF(item);
    return is_in;
}

static int looks_plain(PyObject *tensor)
{
    int is_so = PySet_Contains(plain_types, (PyObject *)Py_TYPE(tensor));
    if (is_so <= 0)
        return is_so;
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
    if ((is_so = is_true(call(tensor, text_data_ptr))))
        return is_so;
    is_so = is_true(call(tensor, text_numel));
    return is_so < 0 ? -1 : !is_so;
}

static PyObject *is_plain(PyObject *self, PyObject *tensor)
{
    (void)self;
    int is_so = looks_plain(tensor);
    return is_so < 0 ? NULL : PyBool_FromLong(is_so);
}

/* Give a draft what is taken over; 0 if that worked. */
static int give(PyObject *draft, PyObject *attribute, PyObject *value)
{
    int failed = !value || PyObject_SetAttr(draft, attribute, value);
    Py_XDECREF(value);
    return failed;
}

static PyObject *version_of(PyObject *tensor)
{
    int is_inference = is_true(call(tensor, text_is_inference));
    if (is_inference < 0)
        return NULL;
    return is_inference ? Py_NewRef(no_version) : PyObject_GetAttr(tensor, text__version);
}

static PyObject *make_draft(PyObject *tensor, PyObject *measured, PyObject *checked)
{
    PyObject *nothing = PyTuple_New(0);
    newfunc make_object = (newfunc)PyType_GetSlot((PyTypeObject *)draft_class, Py_tp_new);
    PyObject *draft = nothing ? make_object((PyTypeObject *)draft_class, nothing, NULL) : NULL;
    Py_XDECREF(nothing);
    if (draft && (PyObject_SetAttr(draft, text_measured, measured) ||
                  PyObject_SetAttr(draft, text_checked, checked) ||
                  PyObject_SetAttr(draft, text_file, Py_None) ||
                  PyObject_SetAttr(draft, text__text, Py_None) ||
                  give(draft, text_dtype, PyObject_GetAttr(tensor, text_dtype)) ||
                  give(draft, text_shape, PyObject_GetAttr(tensor, text_shape)) ||
                  give(draft, text_requires_grad, PyObject_GetAttr(tensor, text_requires_grad)) ||
                  give(draft, text_alive, PyObject_CallFunctionObjArgs(make_reference, tensor, NULL)) ||
                  give(draft, text_version, version_of(tensor))))
        Py_CLEAR(draft);
    return draft;
}

static PyObject *make(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 3 || !draft_class) {
        PyErr_SetString(PyExc_TypeError, "wanted set_up, and then a tensor and its numbers");
        return NULL;
    }
    return make_draft(args[0], args[1], args[2]);
}

/* Where a view lies, as drafts.py says it; NULL without an error where memory does not say it. */
static PyObject *place_of(PyObject *view, int is_ordered)
{
    int is_other = is_true(call(view, text_is_conj));
    if (!is_other)
        is_other = is_true(call(view, text_is_neg));
    int is_whole = is_other ? 0 : is_true(call(view, text_is_contiguous));
    if (is_other || is_whole < 0)
        return NULL;
    PyObject *strides = NULL, *shape = NULL, *layout = NULL, *place = NULL;
    PyObject *address = call(view, text_data_ptr), *dtype = PyObject_GetAttr(view, text_dtype);
    if (!is_whole) {
        strides = call(view, text_stride);
        shape = PyObject_GetAttr(view, text_shape);
        if (strides && shape && !is_ordered)
            layout = PyObject_CallFunctionObjArgs(merge_layout, strides, shape, NULL);
        if (layout && PyTuple_Size(layout) == 1) {
            /* All of it may be there, in another order. */
            PyObject *pair = PyTuple_GetItem(layout, 0);
            is_whole = pair && PyLong_AsLong(PyTuple_GetItem(pair, 0)) == 1;
        }
    }
    if (address && dtype && !PyErr_Occurred()) {
        if (is_whole) {
            PyObject *count = call(view, text_numel);
            place = count ? PyTuple_Pack(3, address, dtype, count) : NULL;
            Py_XDECREF(count);
        } else if (is_ordered) {
            place = PyTuple_Pack(4, address, dtype, shape, strides);
        } else {
            place = PyTuple_Pack(3, address, dtype, layout);
        }
    }
    Py_XDECREF(address);
    Py_XDECREF(dtype);
    Py_XDECREF(strides);
    Py_XDECREF(shape);
    Py_XDECREF(layout);
    return place;
}

/* Whether an attribute or a method's answer is the same for two tensors; -1 on failure. */
static int is_alike(PyObject *one, PyObject *other)
{
    int is_so = one && other ? PyObject_RichCompareBool(one, other, Py_EQ) : -1;
    Py_XDECREF(one);
    Py_XDECREF(other);
    return is_so;
}

/* The numbers of the memory that a view shows, (measured, checked); NULL without an error if unknown. */
static PyObject *numbers_of_view(PyObject *table, PyObject *drafts, PyObject *view, PyObject *owner,
                                 int is_ordered)
{
    PyObject *numbers = NULL, *place = place_of(view, is_ordered);
    PyObject *draft = place ? look_up(drafts, owner) : NULL;
    if (draft) {
        int is_all = is_alike(call(view, text_numel), call(owner, text_numel));
        if (is_all > 0)
            is_all = is_alike(PyObject_GetAttr(view, text_dtype), PyObject_GetAttr(owner, text_dtype));
        PyObject *whole = is_all > 0 ? place_of(owner, is_ordered) : NULL;
        if (whole && PyObject_RichCompareBool(place, whole, Py_EQ) > 0) {
            PyObject *measured = PyObject_GetAttr(draft, text_measured);
            PyObject *checked = PyObject_GetAttr(draft, text_checked);
            numbers = measured && checked ? PyTuple_Pack(2, measured, checked) : NULL;
            Py_XDECREF(measured);
            Py_XDECREF(checked);
        }
        Py_XDECREF(whole);
        Py_DECREF(draft);
    }
    PyObject *owners = numbers || !place || PyErr_Occurred() ? NULL : PyObject_GetAttr(table, text__owners);
    PyObject *memory = owners ? look_up(owners, owner) : NULL;
    PyObject *known = memory ? PyObject_GetAttr(memory, text_numbers) : NULL;
    if (known) {
        numbers = PyDict_GetItemWithError(known, place);
        Py_XINCREF(numbers);
    }
    Py_XDECREF(known);
    Py_XDECREF(memory);
    Py_XDECREF(owners);
    Py_XDECREF(place);
    return numbers;
}

/* Whom to ask for what is not known: of drafts.py, recorder.py and describe.py. */
typedef struct {
    PyObject *table, *drafts, *ask, *check;
    int is_ordered;
} Sources;

static PyObject *measure(const Sources *from, PyObject *tensor)
{
    PyObject *checked = from->check == Py_None ? Py_NewRef(Py_None)
                                               : PyObject_CallFunctionObjArgs(from->check, tensor, NULL);
    PyObject *measured = checked ? PyObject_CallFunctionObjArgs(from->ask, tensor, NULL) : NULL;
    PyObject *numbers = measured ? PyTuple_Pack(2, measured, checked) : NULL;
    Py_XDECREF(checked);
    Py_XDECREF(measured);
    return numbers;
}

/* Whether the table has room; else Python makes some. */
static int has_room(const Sources *from)
{
    PyObject *limit = PyObject_GetAttr(from->table, text__limit);
    Py_ssize_t most = limit ? PyLong_AsSsize_t(limit) : -1;
    Py_XDECREF(limit);
    return most < 0 ? -1 : PyDict_Size(from->drafts) < most;
}

static int keep(const Sources *from, PyObject *tensor, PyObject *draft)
{
    PyObject *version = PyObject_GetAttr(draft, text_version);
    Py_XDECREF(version);
    if (!version || version == no_version)
        return version ? 0 : -1;
    PyObject *key = PyLong_FromVoidPtr(tensor);
    int failed = !key || PyDict_SetItem(from->drafts, key, draft);
    Py_XDECREF(key);
    return failed;
}

/* The draft of a tensor that was not drafted before; NULL without an error: Python knows better. */
static PyObject *draft_new(const Sources *from, PyObject *tensor)
{
    int is_usual = looks_plain(tensor);
    if (is_usual > 0)
        is_usual = has_room(from);
    PyObject *owner = is_usual > 0 ? PyObject_GetAttr(tensor, text__base) : NULL;
    if (!owner)
        return NULL;
    PyObject *numbers = owner == Py_None
                            ? measure(from, tensor)
                            : numbers_of_view(from->table, from->drafts, tensor, owner, from->is_ordered);
    Py_DECREF(owner);
    if (!numbers)
        return NULL;
    PyObject *draft = make_draft(tensor, PyTuple_GetItem(numbers, 0), PyTuple_GetItem(numbers, 1));
    Py_DECREF(numbers);
    if (draft && keep(from, tensor, draft))
        Py_CLEAR(draft);
    return draft;
}

/* Whether something stands between us and tensors, one of which is true: modes, transforms. */
static int is_hindered(PyObject *questions)
{
    int is_so = 0;
    for (Py_ssize_t i = 0; !is_so && i < PyTuple_Size(questions); i++)
        is_so = is_true(PyObject_CallObject(PyTuple_GetItem(questions, i), NULL));
    return is_so;
}

static PyObject *draft_tensor(const Sources *from, PyObject *tensor, PyObject *questions)
{
    PyObject *known = look_up(from->drafts, tensor);
    if (known) {
        int is_same = is_alike(PyObject_GetAttr(known, text_requires_grad),
                               PyObject_GetAttr(tensor, text_requires_grad));
        if (is_same <= 0)
            Py_CLEAR(known);
        return known;
    }
    if (PyErr_Occurred() || is_hindered(questions))
        return NULL;
    return draft_new(from, tensor);
}

static PyObject *draft_all(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    enum { VALUES, TABLE, ASK, CHECK, HINDERED, SLOWLY, DESCRIBE, NO_NAME, ARGUMENTS };
    (void)self;
    if (given != ARGUMENTS || !draft_class || !PyTuple_Check(args[HINDERED])) {
        PyErr_SetString(PyExc_TypeError, "wanted set_up, and then values and whom to ask about them");
        return NULL;
    }
    PyObject *values = PySequence_Tuple(args[VALUES]);
    Py_ssize_t count = values ? PyTuple_Size(values) : 0;
    PyObject *all = values ? PyTuple_New(count) : NULL;
    PyObject *ordered = all ? PyObject_GetAttr(args[TABLE], text__is_ordered) : NULL;
    PyObject *drafts = ordered ? PyObject_GetAttr(args[TABLE], text__drafts) : NULL;
    Sources from = {args[TABLE], drafts, args[ASK], args[CHECK], ordered == Py_True};
    for (Py_ssize_t i = 0; drafts && i < count; i++) {
        PyObject *value = PyTuple_GetItem(values, i), *draft = NULL;
        int is_tensor = PySet_Contains(plain_types, (PyObject *)Py_TYPE(value));
        if (value == Py_None)
            draft = Py_NewRef(Py_None);
        else if (is_tensor > 0)
            draft = draft_tensor(&from, value, args[HINDERED]);
        if (!draft && !PyErr_Occurred())
            draft = is_tensor ? PyObject_CallFunctionObjArgs(args[SLOWLY], value, args[NO_NAME], NULL)
                              : PyObject_CallFunctionObjArgs(args[DESCRIBE], value, args[SLOWLY],
                                                             args[NO_NAME], NULL);
        if (!draft || PyTuple_SetItem(all, i, draft)) {
            Py_CLEAR(all);
            break;
        }
    }
    if (!drafts)
        Py_CLEAR(all);
    Py_XDECREF(values);
    Py_XDECREF(ordered);
    Py_XDECREF(drafts);
    return all;
}

/* Add a code and the place in it to the key, if the code is shown; 0 if that worked, 1 if unknown. */
static int add_place(PyObject *key, PyObject *frame, PyObject *shown)
{
    PyObject *code = PyObject_GetAttr(frame, text_f_code);
    PyObject *number = code ? PyLong_FromVoidPtr(code) : NULL;
    PyObject *known = number ? PyDict_GetItemWithError(shown, number) : NULL;
    int outcome = known ? 0 : PyErr_Occurred() ? -1 : 1;
    if (known && known != Py_None) {
        PyObject *place = PyObject_GetAttr(frame, text_f_lasti);
        outcome = !place || PyList_Append(key, number) || PyList_Append(key, place) ? -1 : 0;
        Py_XDECREF(place);
    }
    Py_XDECREF(number);
    Py_XDECREF(code);
    return outcome;
}

static PyObject *stack_key(PyObject *self, PyObject *args)
{
    PyObject *frame, *shown;
    Py_ssize_t limit;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO!n", &frame, &PyDict_Type, &shown, &limit))
        return NULL;
    PyObject *key = PyList_New(0);
    int outcome = key ? 0 : -1;
    Py_INCREF(frame);
    while (!outcome && frame != Py_None && PyList_Size(key) < limit) {
        outcome = add_place(key, frame, shown);
        PyObject *back = outcome ? NULL : PyObject_GetAttr(frame, text_f_back);
        if (!outcome && !back)
            outcome = -1;
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    PyObject *places = outcome ? NULL : PyList_AsTuple(key);
    Py_XDECREF(key);
    return outcome == 1 ? Py_NewRef(Py_None) : places;
}

static PyObject *set_up(PyObject *self, PyObject *args)
{
    PyObject *given[8];
    PyObject **kept[] = {&draft_class, &make_reference, &plain_types, &plain_dtypes,
                         &strided,     &is_wrapped,     &no_version,  &merge_layout};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOOOO", given, given + 1, given + 2, given + 3, given + 4, given + 5,
                          given + 6, given + 7))
        return NULL;
    for (int i = 0; i < 8; i++) {
        Py_XDECREF(*kept[i]);
        *kept[i] = Py_NewRef(given[i]);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, "Take the classes and sets of drafts.py and host.py."},
    {"find", (PyCFunction)(void (*)(void))find, METH_FASTCALL, "Return the draft of a tensor, or None."},
    {"is_plain", is_plain, METH_O, "Whether a tensor holds strided numbers."},
    {"make", (PyCFunction)(void (*)(void))make, METH_FASTCALL, "Make a draft."},
    {"draft_all", (PyCFunction)(void (*)(void))draft_all, METH_FASTCALL, "Make the drafts of values."},
    {"stack_key", stack_key, METH_VARARGS, "Return what tells a call stack from others."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_drafts", "What recording a plain tensor needs.", -1, methods, NULL, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC PyInit__drafts(void)
{
#define INTERN(text)                                                                                 \
    if (!(text_##text = PyUnicode_InternFromString(#text)))                                          \
        return NULL;
    TEXTS(INTERN)
    return PyModule_Create(&module);
}
