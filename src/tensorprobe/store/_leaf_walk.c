/* The leaves of one call from its parsed JSON.
 *
 *     {"input_args": [...], "input_kwargs": {...}, "parameters": {...}, "output": [...]}
 *         -> CallLeaves(name, [Leaf, ...], is_recompute)
 *
 * A large dump has a million leaves, nearly all of them tensors with statistics, plain numbers and
 * texts, or nothing. Those are read here. Whatever else a call holds makes the answer None, and
 * leaf_walk.py, which has the same meaning and says it in Python, reads the call.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

enum { TYPE, DTYPE, SHAPE, MAX, MIN, MEAN, NORM, REQUIRES_GRAD, MD5, DATA_NAME, KEYS };
static const char *const key_texts[KEYS] = {
    "type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad", "md5", "data_name",
};
static PyObject *keys[KEYS];
static PyObject *value_key, *input_args, *input, *input_kwargs, *parameters, *output, *is_recompute;
static PyObject *kwargs_prefix, *parameters_prefix, *tensor_kind, *none_kind, *no_shape;
/* From leaf_walk.py: the classes, and the places of the first arguments and results. */
static PyObject *leaf_class, *call_class, *input_places, *output_places;

typedef enum { FAILED = -1, UNUSUAL = 0, DONE = 1 } Outcome;

static PyObject *make(PyObject *type, PyObject *fields)
{
    /* A NamedTuple's own constructor is Python; that of its base is not. */
    static newfunc new_tuple = NULL;
    if (!new_tuple)
        new_tuple = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *arguments = fields ? PyTuple_Pack(1, fields) : NULL;
    PyObject *made = arguments ? new_tuple((PyTypeObject *)type, arguments, NULL) : NULL;
    Py_XDECREF(arguments);
    Py_XDECREF(fields);
    return made;
}

/* Append a leaf that takes over nothing. */
static Outcome add(PyObject *leaves, PyObject *place, PyObject *kind, PyObject *dtype, PyObject *shape,
                   PyObject *const statistics[4], PyObject *grad, PyObject *checksum, PyObject *name)
{
    PyObject *leaf = make(leaf_class, PyTuple_Pack(12, place, kind, dtype, shape, statistics[0],
                                                   statistics[1], statistics[2], statistics[3], grad,
                                                   checksum, name, Py_None));
    if (!leaf)
        return FAILED;
    int failed = PyList_Append(leaves, leaf);
    Py_DECREF(leaf);
    return failed ? FAILED : DONE;
}

static int is_number(PyObject *value)
{
    return Py_IS_TYPE(value, &PyFloat_Type) || Py_IS_TYPE(value, &PyLong_Type) || value == Py_None ||
           value == Py_True || value == Py_False;
}

static int is_text_or_none(PyObject *value)
{
    return value == Py_None || Py_IS_TYPE(value, &PyUnicode_Type);
}

static Outcome add_tensor(PyObject *leaves, PyObject *place, PyObject *raw, PyObject *shapes)
{
    PyObject *found[KEYS];
    Py_ssize_t count = 1; /* the type was seen */
    for (int key = DTYPE; key < KEYS; key++) {
        found[key] = PyDict_GetItemWithError(raw, keys[key]);
        if (found[key])
            count++;
        else if (PyErr_Occurred())
            return FAILED;
        else
            found[key] = Py_None;
    }
    if (count != PyDict_Size(raw) || !Py_IS_TYPE(found[DTYPE], &PyUnicode_Type) ||
        !Py_IS_TYPE(found[SHAPE], &PyList_Type))
        return UNUSUAL;
    for (int key = MAX; key <= NORM; key++)
        if (!is_number(found[key]))
            return UNUSUAL;
    PyObject *grad = found[REQUIRES_GRAD], *name = found[DATA_NAME];
    if (grad != Py_None && grad != Py_True && grad != Py_False)
        return UNUSUAL;
    if (!is_text_or_none(found[MD5]) || !is_text_or_none(name) ||
        (name != Py_None && PyUnicode_GetLength(name) == 0))
        return UNUSUAL;
    PyObject *sizes = PyList_AsTuple(found[SHAPE]);
    if (!sizes)
        return FAILED;
    PyObject *shape = PyDict_GetItemWithError(shapes, sizes);
    Py_DECREF(sizes);
    if (!shape) {
        /* A list of lists has no hash; Python says what is wrong with it. */
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError))
            return FAILED;
        PyErr_Clear();
        return UNUSUAL;
    }
    return add(leaves, place, tensor_kind, found[DTYPE], shape, found + MAX, grad, found[MD5], name);
}

static Outcome add_scalar(PyObject *leaves, PyObject *place, PyObject *raw, PyObject *type_name)
{
    PyObject *value = PyDict_GetItemWithError(raw, value_key);
    if (!value)
        return PyErr_Occurred() ? FAILED : UNUSUAL;
    PyTypeObject *wanted = NULL;
    if (!PyUnicode_CompareWithASCIIString(type_name, "int"))
        wanted = &PyLong_Type;
    else if (!PyUnicode_CompareWithASCIIString(type_name, "float"))
        wanted = &PyFloat_Type;
    else if (!PyUnicode_CompareWithASCIIString(type_name, "bool"))
        wanted = &PyBool_Type;
    else if (!PyUnicode_CompareWithASCIIString(type_name, "str"))
        wanted = &PyUnicode_Type;
    if (!wanted || !Py_IS_TYPE(value, wanted))
        return UNUSUAL;
    PyObject *const four[4] = {value, value, value, value};
    return add(leaves, place, type_name, type_name, no_shape, four, Py_None, Py_None, Py_None);
}

static Outcome add_value(PyObject *leaves, PyObject *place, PyObject *raw, PyObject *shapes)
{
    if (raw == Py_None) {
        PyObject *const four[4] = {Py_None, Py_None, Py_None, Py_None};
        return add(leaves, place, none_kind, none_kind, no_shape, four, Py_None, Py_None, Py_None);
    }
    if (!Py_IS_TYPE(raw, &PyDict_Type))
        return UNUSUAL;
    PyObject *type_name = PyDict_GetItemWithError(raw, keys[TYPE]);
    if (!type_name)
        return PyErr_Occurred() ? FAILED : UNUSUAL;
    if (!Py_IS_TYPE(type_name, &PyUnicode_Type))
        return UNUSUAL;
    if (!PyUnicode_CompareWithASCIIString(type_name, "torch.Tensor"))
        return add_tensor(leaves, place, raw, shapes);
    return PyDict_Size(raw) == 2 ? add_scalar(leaves, place, raw, type_name) : UNUSUAL;
}

/* Add the values of a list section, which may be absent. */
static Outcome add_list(PyObject *leaves, PyObject *places, PyObject *section, PyObject *shapes)
{
    if (!section)
        return PyErr_Occurred() ? FAILED : DONE;
    if (section == Py_None)
        return DONE;
    if (!Py_IS_TYPE(section, &PyList_Type) || PyList_Size(section) > PyTuple_Size(places))
        return UNUSUAL;
    Outcome outcome = DONE;
    for (Py_ssize_t index = 0; index < PyList_Size(section) && outcome == DONE; index++)
        outcome = add_value(leaves, PyTuple_GetItem(places, index), PyList_GetItem(section, index), shapes);
    return outcome;
}

static Outcome add_dict(PyObject *leaves, PyObject *prefix, PyObject *section, PyObject *shapes)
{
    if (!section)
        return PyErr_Occurred() ? FAILED : DONE;
    if (section == Py_None)
        return DONE;
    if (!Py_IS_TYPE(section, &PyDict_Type))
        return UNUSUAL;
    Outcome outcome = DONE;
    Py_ssize_t position = 0;
    PyObject *key, *value;
    while (outcome == DONE && PyDict_Next(section, &position, &key, &value)) {
        PyObject *place = PyUnicode_Concat(prefix, key);
        if (!place)
            return FAILED;
        outcome = add_value(leaves, place, value, shapes);
        Py_DECREF(place);
    }
    return outcome;
}

static PyObject *call_leaves(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *name, *raw, *shapes;
    if (!PyArg_ParseTuple(arguments, "UO!O!", &name, &PyDict_Type, &raw, &PyDict_Type, &shapes))
        return NULL;
    if (!leaf_class)
        return Py_NewRef(Py_None);
    PyObject *leaves = PyList_New(0);
    if (!leaves)
        return NULL;
    PyObject *inputs = PyDict_GetItemWithError(raw, input_args);
    if (!inputs && !PyErr_Occurred())
        inputs = PyDict_GetItemWithError(raw, input);
    Outcome outcome = add_list(leaves, input_places, inputs, shapes);
    if (outcome == DONE)
        outcome = add_dict(leaves, kwargs_prefix, PyDict_GetItemWithError(raw, input_kwargs), shapes);
    if (outcome == DONE)
        outcome =
            add_dict(leaves, parameters_prefix, PyDict_GetItemWithError(raw, parameters), shapes);
    if (outcome == DONE)
        outcome = add_list(leaves, output_places, PyDict_GetItemWithError(raw, output), shapes);
    PyObject *again = NULL;
    if (outcome == DONE) {
        again = PyDict_GetItemWithError(raw, is_recompute);
        if (!again && PyErr_Occurred())
            outcome = FAILED;
        else if (again != Py_True && again != Py_False)
            again = Py_None;
    }
    PyObject *made = NULL;
    if (outcome == DONE)
        made = make(call_class, PyTuple_Pack(3, name, leaves, again));
    else if (outcome == UNUSUAL)
        made = Py_NewRef(Py_None);
    Py_DECREF(leaves);
    return made;
}

static PyObject *set_up(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *leaf, *call, *inputs, *outputs;
    if (!PyArg_ParseTuple(arguments, "OOO!O!", &leaf, &call, &PyTuple_Type, &inputs, &PyTuple_Type,
                          &outputs))
        return NULL;
    if (!PyType_Check(leaf) || !PyType_IsSubtype((PyTypeObject *)leaf, &PyTuple_Type) ||
        !PyType_Check(call) || !PyType_IsSubtype((PyTypeObject *)call, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "wanted two named tuples");
        return NULL;
    }
    leaf_class = Py_NewRef(leaf);
    call_class = Py_NewRef(call);
    input_places = Py_NewRef(inputs);
    output_places = Py_NewRef(outputs);
    return Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"call_leaves", call_leaves, METH_VARARGS, "The CallLeaves of (name, raw, shapes), or None."},
    {"set_up", set_up, METH_VARARGS, "Take the classes and the first places."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_leaf_walk", "The leaves of parsed calls.", -1, methods,
    NULL,                  NULL,         NULL,                          NULL,
};

static int intern(PyObject **slot, const char *text)
{
    *slot = PyUnicode_InternFromString(text);
    return *slot != NULL;
}

PyMODINIT_FUNC PyInit__leaf_walk(void)
{
    for (int key = 0; key < KEYS; key++)
        if (!intern(&keys[key], key_texts[key]))
            return NULL;
    if (!intern(&value_key, "value") || !intern(&input_args, "input_args") || !intern(&input, "input") ||
        !intern(&input_kwargs, "input_kwargs") || !intern(&parameters, "parameters") ||
        !intern(&output, "output") || !intern(&is_recompute, "is_recompute") ||
        !intern(&kwargs_prefix, "kwargs.") || !intern(&parameters_prefix, "parameters.") ||
        !intern(&tensor_kind, "tensor") || !intern(&none_kind, "none"))
        return NULL;
    no_shape = PyTuple_New(0);
    return no_shape ? PyModule_Create(&definition) : NULL;
}
