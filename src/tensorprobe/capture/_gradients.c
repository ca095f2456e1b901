/* The gradients of a usual call, taken when its only root runs.
 *
 * As GradientWatcher does it, which says why.
 */

#include "_calls.h"

/* Change a gradient, which is not taken over, on its way to what it is recorded as. */
static PyObject *changed(PyObject *gradient, PyObject *change)
{
    return change == Py_None ? Py_NewRef(gradient) : PyObject_CallFunctionObjArgs(change, gradient, NULL);
}

static PyObject *list_of_none(Py_ssize_t count)
{
    PyObject *list = count < 0 ? NULL : PyList_New(count);
    for (Py_ssize_t i = 0; list && i < count; i++)
        if (PyList_SetItem(list, i, Py_NewRef(Py_None)))
            Py_CLEAR(list);
    return list;
}

/* Put gradients in the places of outputs: pairs of a number, a place and a change. */
static int place_outputs(PyObject *places, PyObject *gradients, PyObject *found)
{
    for (Py_ssize_t i = 0; i < PyList_Size(places); i++) {
        PyObject *one = PyList_GetItem(places, i);
        PyObject *gradient = PyTuple_GetItem(gradients, PyLong_AsSsize_t(PyTuple_GetItem(one, 0)));
        if (!gradient)
            return -1;
        if (gradient == Py_None)
            continue;
        PyObject *whole = changed(gradient, PyTuple_GetItem(one, 2));
        if (!whole || PyList_SetItem(found, PyLong_AsSsize_t(PyTuple_GetItem(one, 1)), whole))
            return -1;
    }
    return 0;
}

/* Add a gradient to what has come in of an input. */
static int add_part(PyObject *found, Py_ssize_t position, PyObject *part)
{
    PyObject *before = PyList_GetItem(found, position), *sum = NULL;
    if (!before)
        return -1;
    if (before == Py_None)
        return PyList_SetItem(found, position, Py_NewRef(part));
    PyObject *alone = call_method(before, text_detach);
    sum = alone ? PyNumber_Add(alone, part) : NULL;
    Py_XDECREF(alone);
    return sum ? PyList_SetItem(found, position, sum) : -1;
}

/* Put gradients in the places of inputs: a number, places and a change. */
static int place_inputs(PyObject *places, PyObject *gradients, PyObject *found)
{
    for (Py_ssize_t i = 0; i < PyList_Size(places); i++) {
        PyObject *one = PyList_GetItem(places, i), *positions = PyTuple_GetItem(one, 1);
        PyObject *gradient = PyTuple_GetItem(gradients, PyLong_AsSsize_t(PyTuple_GetItem(one, 0)));
        if (!gradient)
            return -1;
        if (gradient == Py_None)
            continue;
        PyObject *part = changed(gradient, PyTuple_GetItem(one, 2));
        int failed = !part;
        for (Py_ssize_t k = 0; !failed && k < PyList_Size(positions); k++)
            failed = add_part(found, PyLong_AsSsize_t(PyList_GetItem(positions, k)), part);
        Py_XDECREF(part);
        if (failed)
            return -1;
    }
    return 0;
}

static PyObject *parent_of(Gate *self, PyObject *hook)
{
    PyObject *parent = PyObject_GetAttr(hook, text_parent);
    if (!parent || parent == Py_None)
        return parent;
    PyObject *above = PyObject_CallFunctionObjArgs(self->backward_of, parent, NULL);
    Py_DECREF(parent);
    return above;
}

/* Record the gradients of a call that has come in whole. */
static int add_gradients(Gate *self, PyObject *hook, PyObject *of_outputs, PyObject *of_inputs)
{
    PyObject *into = draft_all(self, of_outputs), *out = into ? draft_all(self, of_inputs) : NULL;
    PyObject *name = PyObject_GetAttr(hook, text_name), *parent = parent_of(self, hook);
    PyObject *nothing = PyTuple_New(0);
    int failed = !out || !name || !parent || !nothing;
    if (!failed)
        failed = queue_record(self, make_record(self, name, into, NULL, NULL, out, Py_None, nothing, parent));
    Py_XDECREF(into);
    Py_XDECREF(out);
    Py_XDECREF(name);
    Py_XDECREF(parent);
    Py_XDECREF(nothing);
    return failed ? -1 : 0;
}

/* Set where gradients leave from the root that is running, if no other node of its call hands any
 * over: a list, or NULL for none. 1 if that is so, 0 if not, -1 on failure. */
static int find_own_places(Gate *self, PyObject *hook, PyObject *node, PyObject **places)
{
    PyObject *edges = PyObject_GetAttr(hook, text_edges), *begin = PyObject_GetAttr(hook, text_start);
    PyObject *leaving = PyDict_New(), *incoming = PyDict_New();
    unsigned long long start = begin ? PyLong_AsUnsignedLongLong(begin) : 0;
    int failed = !edges || !begin || !leaving || !incoming || PyErr_Occurred() ||
                 leave_from(node, edges, start, leaving, incoming);
    if (!failed && PyDict_Size(incoming) > 1) {
        PyObject *roots = PyTuple_Pack(1, node), *passed = NULL;
        if (roots)
            passed = PyObject_CallFunctionObjArgs(self->pass_over_shapes, roots, leaving, incoming, NULL);
        failed = !passed;
        Py_XDECREF(roots);
        Py_XDECREF(passed);
    }
    *places = failed ? NULL : PyDict_GetItemWithError(leaving, node);
    Py_XINCREF(*places);
    int is_single = failed || PyErr_Occurred() ? -1 : PyDict_Size(leaving) == (*places ? 1 : 0);
    Py_XDECREF(edges);
    Py_XDECREF(begin);
    Py_XDECREF(leaving);
    Py_XDECREF(incoming);
    return is_single;
}

/* Whether a call that has some of its gradients is over, now that this node runs; -1 on failure. The
 * newest comes last. */
static int ends_another(PyObject *opened, PyObject *node)
{
    Py_ssize_t count = PyList_Size(opened);
    if (count <= 0)
        return (int)count;
    PyObject *start = PyObject_GetAttr(PyList_GetItem(opened, count - 1), text_start);
    PyObject *number = start ? call_method(node, text__sequence_nr) : NULL;
    int is_newer = number ? PyObject_RichCompareBool(start, number, Py_GT) : -1;
    Py_XDECREF(start);
    Py_XDECREF(number);
    return is_newer;
}

/* Whether a pass is at work that takes nothing but reading; -1 on failure. */
static int is_plain_pass(Gate *self, PyObject *node)
{
    int is_active = is_true(PyObject_GetAttr(self->gradients, text_is_active));
    if (is_active <= 0)
        return is_active;
    int has_gradients = is_true(PyObject_CallObject(self->is_grad_enabled, NULL));
    if (has_gradients)
        return has_gradients < 0 ? -1 : 0;
    PyObject *task = PyObject_CallObject(self->current_pass, NULL);
    PyObject *opened = task ? PyDict_GetItemWithError(self->opened, task) : NULL;
    int ends = PyErr_Occurred() ? -1 : opened ? ends_another(opened, node) : 0;
    Py_XDECREF(task);
    return ends ? (ends < 0 ? -1 : 0) : is_alone(self);
}

/* Record the gradients of the root that is running: 1 if that was all, 0 if it takes Python. */
static int take_gradients(Gate *self, PyObject *hook, PyObject *into, PyObject *out_of)
{
    PyObject *node = PyObject_CallObject(self->current_node, NULL), *own = NULL;
    int is_usual = node ? is_plain_pass(self, node) : -1;
    if (is_usual > 0)
        is_usual = find_own_places(self, hook, node, &own);
    Py_XDECREF(node);
    if (is_usual > 0) {
        PyObject *places = PyObject_GetAttr(hook, text_outputs), *edges = PyObject_GetAttr(hook, text_edges);
        long long outputs = number_of(PyObject_GetAttr(hook, text_count));
        long long inputs = edges ? number_of(PyObject_GetAttr(edges, text_count)) : -1;
        PyObject *of_outputs = list_of_none(outputs), *of_inputs = list_of_none(inputs);
        int failed = !places || !of_outputs || !of_inputs || place_outputs(places, out_of, of_outputs) ||
                     (own && place_inputs(own, into, of_inputs));
        /* From here on the call counts as recorded, whatever becomes of its record. */
        failed = failed || give(hook, text_hook, PyObject_GetAttr(self->gradients, text_pass_over)) ||
                 add_gradients(self, hook, of_outputs, of_inputs);
        Py_XDECREF(places);
        Py_XDECREF(edges);
        Py_XDECREF(of_outputs);
        Py_XDECREF(of_inputs);
        is_usual = failed ? -1 : 1;
    }
    Py_XDECREF(own);
    return is_usual;
}

PyObject *on_root(PyObject *object, PyObject *args)
{
    Gate *self = (Gate *)object;
    PyObject *hook, *into, *out_of;
    if (!PyArg_ParseTuple(args, "OO!O!", &hook, &PyTuple_Type, &into, &PyTuple_Type, &out_of))
        return NULL;
    PyObject *guard = PyObject_CallObject(self->without_functions, NULL);
    PyObject *entered = guard ? call_method(guard, text___enter__) : NULL;
    int is_done = -1;
    if (entered && !lock_records(self)) {
        is_done = take_gradients(self, hook, into, out_of);
        if (unlock_records(self))
            is_done = -1;
    }
    if (entered) {
        PyObject *kind, *value, *trace;
        PyErr_Fetch(&kind, &value, &trace);
        PyObject *left =
            PyObject_CallMethodObjArgs(guard, text___exit__, Py_None, Py_None, Py_None, NULL);
        Py_XDECREF(left);
        if (kind)
            PyErr_Restore(kind, value, trace);
    }
    Py_XDECREF(guard);
    Py_XDECREF(entered);
    return is_done < 0 || PyErr_Occurred() ? NULL : PyBool_FromLong(is_done);
}
