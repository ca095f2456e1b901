/* What becomes of a gradient between a node and what it is recorded as.
 *
 *     changed(gradient, change)           -> the gradient after one of graph_edges.py's changes
 *     pass_over(root, leaving, incoming)  asks the neighbours of nodes that only reshape
 *
 * As graph_edges.py does it, which says why.
 */

#include "_calls.h"

/* From graph_edges.py: the classes of changes, a function that is one, and the nodes that only reshape. */
static PyObject *cut_class, *reshape_class, *changes_class, *transpose, *size_class, *reshaping_names;

PyObject *make_named(PyObject *its_class, PyObject *fields)
{
    /* A NamedTuple's own constructor is Python; that of its base is not. */
    newfunc new_tuple = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *arguments = fields ? PyTuple_Pack(1, fields) : NULL;
    PyObject *made = arguments ? new_tuple((PyTypeObject *)its_class, arguments, NULL) : NULL;
    Py_XDECREF(arguments);
    Py_XDECREF(fields);
    return made;
}

PyObject *make_cut(PyObject *fields)
{
    return make_named(cut_class, fields);
}

/* Whether a tuple holds these numbers. */
static int holds_numbers(PyObject *tuple, const int64_t *numbers, int32_t count)
{
    if (PyTuple_Size(tuple) != count)
        return 0;
    for (int32_t i = 0; i < count; i++)
        if (PyLong_AsLongLong(PyTuple_GetItem(tuple, i)) != numbers[i])
            return 0;
    return 1;
}

/* Cut a view's gradient out of its base's; NULL without an error if it lies in memory in another way. */
static PyObject *cut_out(PyObject *gradient, PyObject *cut)
{
    Shown shown;
    if (!show_tensor(gradient, &shown) || !shown.strides ||
        !holds_numbers(PyTuple_GetItem(cut, 4), shown.strides, shown.dimensions))
        return NULL;
    long long begin = number_of(call_method(gradient, text_storage_offset));
    long long offset = PyErr_Occurred() ? 0 : PyLong_AsLongLong(PyTuple_GetItem(cut, 2));
    PyObject *place = PyErr_Occurred() ? NULL : PyLong_FromLongLong(begin + offset), *part = NULL;
    if (place)
        part = PyObject_CallMethodObjArgs(gradient, text_as_strided, PyTuple_GetItem(cut, 0),
                                          PyTuple_GetItem(cut, 1), place, NULL);
    Py_XDECREF(place);
    return part;
}

/* Give as many elements another shape; NULL without an error if there are more. */
static PyObject *reshaped(PyObject *gradient, PyObject *size)
{
    Shown shown;
    int64_t there = 1, wanted = 1;
    if (!show_tensor(gradient, &shown))
        return NULL;
    for (int32_t i = 0; i < shown.dimensions; i++)
        there *= shown.shape[i];
    for (Py_ssize_t i = 0; i < PyTuple_Size(size); i++)
        wanted *= PyLong_AsLongLong(PyTuple_GetItem(size, i));
    if (PyErr_Occurred() || there != wanted)
        return NULL;
    return PyObject_CallMethodObjArgs(gradient, text_reshape, size, NULL);
}

PyObject *changed(PyObject *gradient, PyObject *change)
{
    PyObject *kind = (PyObject *)Py_TYPE(change), *found = NULL;
    if (change == Py_None)
        return Py_NewRef(gradient);
    if (change == transpose)
        return call_method(gradient, text_t);
    if (kind == changes_class) {
        PyObject *half = changed(gradient, PyTuple_GetItem(change, 0));
        found = half ? changed(half, PyTuple_GetItem(change, 1)) : NULL;
        Py_XDECREF(half);
        return found;
    }
    if (kind == cut_class)
        found = cut_out(gradient, change);
    else if (kind == reshape_class)
        found = reshaped(gradient, PyTuple_GetItem(change, 0));
    return found || PyErr_Occurred() ? found : PyObject_CallFunctionObjArgs(change, gradient, NULL);
}

/* Return what a node does to a gradient, if that is another shape and nothing else; else None. */
static PyObject *change_of_shape(PyObject *node)
{
    PyObject *name = PyObject_GetAttr((PyObject *)Py_TYPE(node), text___name__);
    int is_transposing = name ? PyUnicode_Compare(name, text_TBackward0) == 0 : 0;
    int is_reshaping = name && !is_transposing ? PySet_Contains(reshaping_names, name) : 0;
    Py_XDECREF(name);
    if (!name || is_reshaping < 0)
        return NULL;
    if (!is_reshaping)
        return Py_NewRef(is_transposing ? transpose : Py_None);
    PyObject *sizes = PyObject_GetAttr(node, text__saved_self_sym_sizes);
    PyObject *size = sizes ? PyObject_CallFunctionObjArgs(size_class, sizes, NULL) : NULL;
    PyObject *made = size ? make_named(reshape_class, PyTuple_Pack(1, size)) : NULL;
    Py_XDECREF(sizes);
    Py_XDECREF(size);
    return made;
}

/* Hand the only place of a node on to its neighbour: 1 if that was done, 0 if it stays, -1 on failure. */
static int hand_on(PyObject *node, PyObject *before, PyObject *leaving)
{
    PyObject *change = before && before != Py_None ? change_of_shape(node) : Py_NewRef(Py_None);
    if (!change || change == Py_None) {
        Py_XDECREF(change);
        return change ? 0 : -1;
    }
    PyObject *place = PyList_GetItem(PyDict_GetItemWithError(leaving, node), 0);
    PyObject *further = place ? PyTuple_GetItem(place, 2) : NULL, *whole = NULL, *moved = NULL;
    if (further)
        whole = further == Py_None ? Py_NewRef(change)
                                   : make_named(changes_class, PyTuple_Pack(2, change, further));
    if (whole)
        moved = PyTuple_Pack(3, PyTuple_GetItem(before, 1), PyTuple_GetItem(place, 1), whole);
    int failed = !moved || PyDict_DelItem(leaving, node) ||
                 append_to(leaving, PyTuple_GetItem(before, 0), Py_NewRef(moved));
    Py_XDECREF(moved);
    Py_XDECREF(whole);
    Py_DECREF(change);
    return failed ? -1 : 1;
}

int pass_over(PyObject *root, PyObject *leaving, PyObject *incoming)
{
    PyObject *nodes = PyDict_Keys(leaving);
    int failed = !nodes;
    for (Py_ssize_t i = 0; !failed && i < PyList_Size(nodes); i++) {
        PyObject *node = PyList_GetItem(nodes, i);
        for (int outcome = 1; outcome > 0 && node != root;) {
            PyObject *places = PyDict_GetItemWithError(leaving, node);
            PyObject *before = places ? PyDict_GetItemWithError(incoming, node) : NULL;
            outcome = PyErr_Occurred() ? -1 : places && PyList_Size(places) == 1;
            if (outcome > 0)
                outcome = hand_on(node, before, leaving);
            failed = outcome < 0;
            if (outcome > 0)
                node = PyTuple_GetItem(before, 0);
        }
    }
    Py_XDECREF(nodes);
    return failed ? -1 : 0;
}

static PyObject *set_up(PyObject *self, PyObject *args)
{
    PyObject **kept[] = {&cut_class, &reshape_class, &changes_class, &transpose, &size_class,
                         &reshaping_names};
    (void)self;
    return keep_given(args, kept, 6);
}

static PyObject *change_for_python(PyObject *self, PyObject *args)
{
    PyObject *gradient, *change;
    (void)self;
    return PyArg_ParseTuple(args, "OO", &gradient, &change) ? changed(gradient, change) : NULL;
}

static PyObject *pass_over_for_python(PyObject *self, PyObject *args)
{
    PyObject *root, *leaving, *incoming;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO!O!", &root, &PyDict_Type, &leaving, &PyDict_Type, &incoming) ||
        pass_over(root, leaving, incoming))
        return NULL;
    Py_RETURN_NONE;
}

PyMethodDef shape_methods[] = {
    {"set_up_shapes", set_up, METH_VARARGS, "Take the classes of graph_edges.py."},
    {"changed", change_for_python, METH_VARARGS, "Return a gradient after a change."},
    {"pass_over", pass_over_for_python, METH_VARARGS, "Ask the neighbours of nodes behind one root."},
    {NULL, NULL, 0, NULL},
};
