/* What a call is given and what it returns: drafts of its values, each tensor measured once.
 *
 * As Recorder and PendingTensorTable do it, which say why.
 */

#include "_calls.h"

#include "../_sides.h"

/* Count one that was asked for, as a DeliveryQueue does. */
static int count_asked(FastRecorder *self)
{
    long long unsent = increase(self->statistics, text__unsent);
    if (unsent < 0 || increase(self->statistics, text_asked) < 0)
        return -1;
    if (unsent < self->batch)
        return 0;
    PyObject *sent = call_method(self->statistics, text_send);
    Py_XDECREF(sent);
    return sent ? 0 : -1;
}

/* Measure a tensor like those before by what an attribute of the queue holds; None: it is another. */
static PyObject *measure_by(FastRecorder *self, PyObject *attribute, PyObject *tensor)
{
    PyObject *quickly = PyObject_GetAttr(self->statistics, attribute);
    if (!quickly || quickly == Py_None)
        return quickly;
    PyObject *measured = PyObject_CallFunctionObjArgs(quickly, tensor, NULL);
    Py_DECREF(quickly);
    if (measured && measured != Py_None && count_asked(self))
        Py_CLEAR(measured);
    return measured;
}

static PyObject *measure(FastRecorder *self, PyObject *tensor)
{
    PyObject *measured = measure_by(self, text__ask_quickly, tensor);
    if (measured != Py_None)
        return measured;
    Py_DECREF(measured);
    return PyObject_CallMethodObjArgs(self->statistics, text_ask, tensor, NULL);
}

static PyObject *text_of(const Place *place)
{
    const char *part = place->part ? place->part : "", *dot = place->part ? "." : "";
    return place->key ? PyUnicode_FromFormat("%U%s%s.%S", place->name, dot, part, place->key)
                      : PyUnicode_FromFormat("%U%s%s.%zd", place->name, dot, part, place->index);
}

/* Return where a value stands, as Python's functions take it. */
static PyObject *path_of(FastRecorder *self, const Place *place)
{
    if (self->keep == Py_None)
        return Py_NewRef(self->no_name);
    PyObject *text = text_of(place), *path = text ? PyTuple_Pack(1, text) : NULL;
    Py_XDECREF(text);
    return path;
}

/* The draft of a tensor, by the recorder. */
static PyObject *draft_by_python(FastRecorder *self, PyObject *tensor, const Place *place)
{
    PyObject *path = path_of(self, place), *draft = NULL;
    if (path)
        draft = PyObject_CallMethodObjArgs(self->recorder, text__draft_tensor, tensor, path, NULL);
    Py_XDECREF(path);
    return draft;
}

static PyObject *sides_as_tuple(const Side *sides, int count)
{
    PyObject *layout = PyTuple_New(count);
    for (int i = 0; layout && i < count; i++) {
        PyObject *side = Py_BuildValue("LL", (long long)sides[i].stride, (long long)sides[i].size);
        if (!side || PyTuple_SetItem(layout, i, side))
            Py_CLEAR(layout);
    }
    return layout;
}

/* Return a range, of parts that are taken over. */
static PyObject *make_address_range(PyObject *address, PyObject *dtype, PyObject *shown)
{
    PyObject *range = address && dtype && shown ? PyTuple_Pack(3, address, dtype, shown) : NULL;
    Py_XDECREF(address);
    Py_XDECREF(dtype);
    Py_XDECREF(shown);
    return range;
}

/* Return where a tensor lies in memory, by what it says of itself. */
static PyObject *address_range_of_shown(PyObject *view, const Shown *shown)
{
    Side sides[MOST_SIDES];
    int64_t elements = 1;
    for (int32_t i = 0; i < shown->dimensions; i++)
        elements *= shown->shape[i];
    int count = elements > 1 ? merge_sides(shown, sides) : 0;
    /* All of it is there, perhaps in another order. */
    int is_straight = !count || (count == 1 && sides[0].stride == 1);
    return make_address_range(PyLong_FromVoidPtr((char *)shown->data + shown->offset),
                      PyObject_GetAttr(view, text_dtype),
                      is_straight ? PyLong_FromLongLong(elements) : sides_as_tuple(sides, count));
}

/* Return where a view lies in memory, as PendingTensorTable does for numbers without an order; None: ask it. */
static PyObject *address_range_of(FastRecorder *self, PyObject *view)
{
    Shown shown;
    int is_shown = show_tensor(view, &shown) && shown.strides && shown.dimensions <= MOST_SIDES;
    int is_changed = asks(view, text_is_neg);
    if (!is_changed && (!is_shown || shown.code == COMPLEX))
        is_changed = asks(view, text_is_conj);
    if (is_changed)
        return is_changed < 0 ? NULL : Py_NewRef(Py_None);
    if (is_shown)
        return address_range_of_shown(view, &shown);
    int is_straight = asks(view, text_is_contiguous);
    if (is_straight < 0)
        return NULL;
    PyObject *layout = NULL;
    if (!is_straight) {
        PyObject *strides = call_method(view, text_stride), *shape = PyObject_GetAttr(view, text_shape);
        layout = strides && shape ? PyObject_CallFunctionObjArgs(self->merge, strides, shape, NULL) : NULL;
        Py_XDECREF(strides);
        Py_XDECREF(shape);
        if (!layout)
            return NULL;
        if (PyTuple_Size(layout) == 1)
            is_straight = PyLong_AsLong(PyTuple_GetItem(PyTuple_GetItem(layout, 0), 0)) == 1;
        if (is_straight)
            Py_CLEAR(layout);
    }
    return make_address_range(call_method(view, text_data_ptr), PyObject_GetAttr(view, text_dtype),
                      layout ? layout : call_method(view, text_numel));
}

/* Return the numbers of parts of an owner's memory by their places, a new reference; or NULL. */
static PyObject *numbers_of(FastRecorder *self, PyObject *owner)
{
    PyObject *key = PyLong_FromVoidPtr(owner);
    PyObject *memory = key ? PyDict_GetItemWithError(self->owners, key) : NULL, *made = NULL;
    if (memory) {
        PyObject *reference = PyObject_GetAttr(memory, text_alive);
        PyObject *alive = reference ? PyObject_CallObject(reference, NULL) : NULL;
        PyObject *then = PyObject_GetAttr(memory, text_version), *now = PyObject_GetAttr(owner, text__version);
        int is_same = then && now ? PyObject_RichCompareBool(then, now, Py_EQ) : 0;
        if (alive != owner || !is_same)
            memory = NULL;
        Py_XDECREF(reference);
        Py_XDECREF(alive);
        Py_XDECREF(then);
        Py_XDECREF(now);
    }
    if (!memory && key && !PyErr_Occurred()) {
        memory = made = PyObject_CallFunctionObjArgs(self->memory_class, owner, NULL);
        if (made && PyDict_SetItem(self->owners, key, made))
            memory = NULL;
    }
    PyObject *numbers = memory && !PyErr_Occurred() ? PyObject_GetAttr(memory, text_numbers) : NULL;
    Py_XDECREF(key);
    Py_XDECREF(made);
    return numbers;
}

/* What was measured of the memory that a view shows, or else is measured now; None: by Python. */
static PyObject *measure_view(FastRecorder *self, PyObject *view, PyObject *owner)
{
    PyObject *range = address_range_of(self, view), *known = range ? find_pending_tensor(self->drafts, owner) : NULL;
    if (!known || range == Py_None) {
        Py_XDECREF(known);
        Py_XDECREF(range);
        return known ? Py_NewRef(Py_None) : NULL;
    }
    PyObject *measured = NULL;
    if (known != Py_None) {
        PyObject *whole = address_range_of(self, owner);
        if (whole && PyObject_RichCompareBool(range, whole, Py_EQ) > 0)
            measured = PyObject_GetAttr(known, text_measured);
        Py_XDECREF(whole);
    }
    Py_DECREF(known);
    if (!measured && !PyErr_Occurred()) {
        PyObject *numbers = numbers_of(self, owner);
        PyObject *found = numbers ? PyDict_GetItemWithError(numbers, range) : NULL;
        measured = found ? Py_XNewRef(PyTuple_GetItem(found, 0)) : NULL;
        if (numbers && !found && !PyErr_Occurred()) {
            measured = measure(self, view);
            PyObject *both = measured ? PyTuple_Pack(2, measured, Py_None) : NULL;
            /* What cannot be remembered is measured again next time. */
            if (measured && (!both || PyDict_SetItem(numbers, range, both)))
                PyErr_Clear();
            Py_XDECREF(both);
        }
        Py_XDECREF(numbers);
    }
    Py_DECREF(range);
    return measured;
}

/* Remember the draft of a tensor, unless nobody knows when that changes. */
static int keep_draft(FastRecorder *self, PyObject *tensor, PyObject *draft)
{
    long long version = number_of(PyObject_GetAttr(draft, text_version));
    if (version < 0)
        return PyErr_Occurred() ? -1 : 0;
    return remember_pending_tensor(self->drafts, tensor, draft);
}

/* Make the draft of a tensor and remember it. */
static PyObject *draft_measured(FastRecorder *self, PyObject *tensor, PyObject *measured, PyObject *checked)
{
    PyObject *draft = make_pending_tensor(tensor, measured, checked);
    if (draft && keep_draft(self, tensor, draft))
        Py_CLEAR(draft);
    return draft;
}

/* Return the draft of a tensor that none is known of; by Python, unless it is plain. */
static PyObject *draft_new(FastRecorder *self, PyObject *tensor, const Place *place)
{
    int is_usual = PyDict_Size(self->drafts) < self->many ? (self->is_alone ? 1 : is_alone(self)) : 0;
    PyObject *owner = is_usual > 0 ? PyObject_GetAttr(tensor, text__base) : NULL, *measured = NULL;
    if (owner == Py_None && !self->with_checksums) {
        measured = measure_by(self, text__ask_unseen, tensor);
        if (measured != Py_None) {
            PyObject *draft = measured ? draft_measured(self, tensor, measured, Py_None) : NULL;
            Py_DECREF(owner);
            Py_XDECREF(measured);
            return draft;
        }
        Py_CLEAR(measured);
    }
    if (owner)
        is_usual = looks_plain(tensor);
    if (is_usual <= 0 || !owner) {
        Py_XDECREF(owner);
        return is_usual < 0 || PyErr_Occurred() ? NULL : draft_by_python(self, tensor, place);
    }
    PyObject *checked = NULL;
    if (owner == Py_None && self->with_checksums)
        checked = PyObject_CallMethodObjArgs(self->checksums, text_ask, tensor, NULL);
    else
        checked = Py_NewRef(Py_None);
    if (checked && owner == Py_None)
        measured = measure(self, tensor);
    else if (checked)
        /* What a checksum is of has an order. */
        measured = self->with_checksums ? Py_NewRef(Py_None) : measure_view(self, tensor, owner);
    Py_DECREF(owner);
    if (!measured || measured == Py_None) {
        Py_XDECREF(measured);
        Py_XDECREF(checked);
        return measured ? draft_by_python(self, tensor, place) : NULL;
    }
    PyObject *draft = draft_measured(self, tensor, measured, checked);
    Py_DECREF(measured);
    Py_DECREF(checked);
    return draft;
}

/* Draft a tensor whose data are kept. */
static PyObject *draft_kept(FastRecorder *self, PyObject *tensor, const Place *place)
{
    int alone = self->is_alone ? 1 : is_alone(self);
    if (alone <= 0)
        return alone < 0 ? NULL : draft_by_python(self, tensor, place);
    PyObject *name = text_of(place);
    PyObject *draft = name ? PyObject_CallFunctionObjArgs(self->keep, tensor, name, NULL) : NULL;
    Py_XDECREF(name);
    return draft;
}

static PyObject *draft_tensor(FastRecorder *self, PyObject *tensor, const Place *place)
{
    if (self->keep != Py_None)
        return draft_kept(self, tensor, place);
    PyObject *known = find_pending_tensor(self->drafts, tensor);
    if (!known || known == Py_None) {
        Py_XDECREF(known);
        return known ? draft_new(self, tensor, place) : NULL;
    }
    PyObject *then = PyObject_GetAttr(known, text_requires_grad);
    PyObject *now = PyObject_GetAttr(tensor, text_requires_grad);
    int is_same = then && now ? then == now : -1;
    Py_XDECREF(then);
    Py_XDECREF(now);
    if (is_same > 0)
        return known;
    Py_DECREF(known);
    return is_same < 0 ? NULL : draft_by_python(self, tensor, place);
}

static int is_tensor(FastRecorder *self, PyObject *value)
{
    PyObject *kind = (PyObject *)Py_TYPE(value);
    return kind == self->tensor_class || kind == self->parameter_class;
}

static PyObject *draft_value(FastRecorder *self, PyObject *value, const Place *place)
{
    if (is_tensor(self, value))
        return draft_tensor(self, value, place);
    if (value == Py_None)
        return Py_NewRef(Py_None);
    if (PyLong_CheckExact(value)) {
        PyObject *known = PyDict_GetItemWithError(self->known_ints, value);
        if (known || PyErr_Occurred())
            return Py_XNewRef(known);
    }
    PyObject *path = path_of(self, place);
    PyObject *described = path ? PyObject_CallFunctionObjArgs(self->describe, value, path, NULL) : NULL;
    Py_XDECREF(path);
    return described;
}

/* Describe the values of a tuple or a list. */
PyObject *draft_all(FastRecorder *self, PyObject *values, PyObject *name, const char *part)
{
    int is_list = PyList_CheckExact(values);
    Py_ssize_t count = is_list ? PyList_Size(values) : PyTuple_Size(values);
    PyObject *drafts = count < 0 ? NULL : PyTuple_New(count);
    for (Py_ssize_t i = 0; drafts && i < count; i++) {
        PyObject *value = is_list ? PyList_GetItem(values, i) : PyTuple_GetItem(values, i);
        Place place = {.name = name, .part = part, .index = i};
        /* Another thread may take it out of the list meanwhile. */
        Py_XINCREF(value);
        PyObject *draft = value ? draft_value(self, value, &place) : NULL;
        Py_XDECREF(value);
        if (!draft || PyTuple_SetItem(drafts, i, draft))
            Py_CLEAR(drafts);
    }
    return drafts;
}

PyObject *draft_named(FastRecorder *self, PyObject *values, PyObject *name, const char *part)
{
    PyObject *drafts = PyDict_New(), *key, *value;
    Py_ssize_t at = 0;
    while (drafts && values && PyDict_Next(values, &at, &key, &value)) {
        Place place = {.name = name, .part = part, .key = key};
        Py_INCREF(key);
        Py_INCREF(value);
        PyObject *draft = draft_value(self, value, &place);
        if (!draft || PyDict_SetItem(drafts, key, draft))
            Py_CLEAR(drafts);
        Py_XDECREF(draft);
        Py_DECREF(value);
        Py_DECREF(key);
    }
    return drafts;
}

static int collect(FastRecorder *self, PyObject *value, PyObject *tensors)
{
    if (is_tensor(self, value))
        return PyList_Append(tensors, value);
    if (value == Py_None || PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyBool_Check(value) ||
        PyUnicode_CheckExact(value))
        return 0;
    PyObject *inside = PyObject_CallFunctionObjArgs(self->tensors_in, value, NULL);
    Py_ssize_t end = PyList_Size(tensors);
    int failed = !inside || PyList_SetSlice(tensors, end, end, inside);
    Py_XDECREF(inside);
    return failed;
}

/* Return the tensors in values in order, and by name. */
PyObject *tensors_of(FastRecorder *self, PyObject *values, PyObject *named)
{
    PyObject *tensors = PyList_New(0), *key, *value;
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; tensors && i < PyTuple_Size(values); i++)
        if (collect(self, PyTuple_GetItem(values, i), tensors))
            Py_CLEAR(tensors);
    while (tensors && named && PyDict_Next(named, &at, &key, &value))
        if (collect(self, value, tensors))
            Py_CLEAR(tensors);
    return tensors;
}

PyObject *values_of(PyObject *result)
{
    if (PyTuple_CheckExact(result))
        return Py_NewRef(result);
    if (PyTuple_Check(result) && PyObject_HasAttr((PyObject *)Py_TYPE(result), text_n_sequence_fields))
        return PySequence_Tuple(result);
    return PyTuple_Pack(1, result);
}
