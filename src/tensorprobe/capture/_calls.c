/* The usual API call, from torch's question to its record, and its gradients.
 *
 *     Gate(parts)                            records the calls of one step
 *     gate.watch(mode, slow, functions, …)   is from now on what torch asks in place of a mode
 *     gate(function, types, args, kwargs)    runs a function and records it
 *     gate.on_root(hook, into, out_of)       records a call's gradients; False: it takes Python
 *     gate.draft_all(values)                 describes values; and draft_named(values)
 *     gate.enter_module(args, kwargs, parameters)
 *                                            -> what `_Running` begins with; None: it takes Python
 *     gate.leave_module(running, output, is_sealed)
 *                                            records a module's call; False: it takes Python
 *
 * FunctionWatcher.__torch_function__, Session.watch_call, Recorder and GradientWatcher have the same
 * meaning, say it in Python, and say why; whatever is not usual is left to them before anything has
 * been done. A captured step on a GPU waits for what the host does here.
 */

#include "_calls.h"

#include <structmember.h>

/* What the gate uses of the session's parts, by the names that gate.py gives them. */
#define PARTS(X)                                                                                     \
    X(session) X(modules) X(recorder) X(gradients) X(statistics) X(checksums) X(drafts) X(owners) X(memory_class) X(merge) X(known_ints) X(counters) \
    X(pending_class) X(add_pending) X(lock) X(hook_class) X(done) X(add_handle) X(stacks) X(codes)   \
    X(read_stack) X(inside_custom) X(tensor_class) X(parameter_class) X(no_name) X(as_spelled)       \
    X(describe) X(tensors_in) X(is_grad_enabled) X(next_sequence_number) X(current_pass)             \
    X(current_node) X(count_dispatch_modes) X(is_transforming) X(monotonic) X(pass_over_shapes)      \
    X(without_functions) X(backward_of) X(opened)
/* What torch asks about is known only where the gate is a mode's. */
#define MODE_PARTS(X) X(mode) X(slow) X(functions) X(as_written) X(is_machinery)
/* What is asked of them. */
#define TEXTS(X)                                                                                     \
    X(is_paused) X(_threads) X(__dict__) X(running) X(fail) X(next_number) X(forget_tensors) X(_draft_tensor) X(_look)       \
    X(_unlooked) X(_looked) X(_ask_quickly) X(ask) X(_unsent) X(send) X(asked) X(_line) X(delivered)          \
    X(watch_gradients) X(note_place) X(acquire) X(release) X(full_name) X(requires_grad) X(_base)    \
    X(numel) X(dtype) X(data_ptr) X(is_contiguous) X(is_conj) X(is_neg) X(get_device) X(register_hook) \
    X(name) X(inputs) X(kwargs) X(outputs) X(parameters) X(saved) X(is_recompute) X(defaults)        \
    X(stack) X(parent) X(files) X(measured) X(checked) X(watcher) X(start) X(count)     \
    X(edges) X(done) X(hook) X(is_sealed) X(is_active) X(version) X(_version) X(alive)         \
    X(numbers) X(stride) X(shape) X(detach) X(pass_over) X(__enter__) X(__exit__)
#define DECLARE(text) static PyObject *text_##text;
TEXTS(DECLARE)
static PyObject *text_statistics, *text_checksums;

typedef struct {
    PyObject_HEAD
#define FIELD(part) PyObject *part;
    PARTS(FIELD)
    /* The mode, for torch to find; what answers where a call is not usual; by function, None if its
     * calls do not count, else (api, full name, FLAGS); two questions about a call. */
    MODE_PARTS(FIELD)
    Py_ssize_t deepest, many, batch;
    int with_checksums;
    Py_ssize_t together, together_on_device;
    double longest_wait, longest_wait_on_device;
    int is_distributed;
    /* Where the last call was made that is known to the gradients. */
    unsigned long thread;
    long device;
    int has_place;
    /* Whether whoever holds the lock has asked whether it is alone. */
    int is_alone;
} Gate;

/* Of a function, from gate.py. */
enum { MAYBE_OPERATOR = 1, IS_PYTHON = 2, WRITES_UNSEEN = 4 };

PyObject *make_empty(PyObject *its_class)
{
    newfunc make = (newfunc)PyType_GetSlot((PyTypeObject *)its_class, Py_tp_new);
    PyObject *nothing = PyTuple_New(0);
    PyObject *made = nothing ? make((PyTypeObject *)its_class, nothing, NULL) : NULL;
    Py_XDECREF(nothing);
    return made;
}

int give(PyObject *object, PyObject *attribute, PyObject *value)
{
    int failed = !value || PyObject_SetAttr(object, attribute, value);
    Py_XDECREF(value);
    return failed;
}

/* Whether an answer, which is taken over, is true; -1 on failure. */
static int is_true(PyObject *answer)
{
    int is_so = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return is_so;
}

/* Turn an answer, which is taken over, into a number; -1 on failure, or if it is that. */
static long long number_of(PyObject *answer)
{
    long long number = answer ? PyLong_AsLongLong(answer) : -1;
    Py_XDECREF(answer);
    return number;
}

static PyObject *call(PyObject *object, PyObject *method)
{
    return PyObject_CallMethodObjArgs(object, method, NULL);
}

static int asks(PyObject *object, PyObject *method)
{
    return is_true(call(object, method));
}

/* Whether no mode or transform would see what a tensor is read with; -1 on failure. */
static int is_alone(Gate *self)
{
    int modes = is_true(PyObject_CallObject(self->count_dispatch_modes, NULL));
    if (modes)
        return modes < 0 ? -1 : 0;
    int transforms = is_true(PyObject_CallObject(self->is_transforming, NULL));
    return transforms < 0 ? -1 : !transforms;
}

/* --- numbers of tensors ------------------------------------------------------------------------ */

/* Add one to a number that an object holds, and return it; -1 on failure. */
static long long increase(PyObject *object, PyObject *attribute)
{
    long long number = number_of(PyObject_GetAttr(object, attribute)) + 1;
    return PyErr_Occurred() || give(object, attribute, PyLong_FromLongLong(number)) ? -1 : number;
}

/* Count one that was asked for, as a DeliveryQueue does. */
static int count_asked(Gate *self)
{
    long long unsent = increase(self->statistics, text__unsent);
    if (unsent < 0 || increase(self->statistics, text_asked) < 0)
        return -1;
    if (unsent < self->batch)
        return 0;
    PyObject *sent = call(self->statistics, text_send);
    Py_XDECREF(sent);
    return sent ? 0 : -1;
}

static PyObject *measure(Gate *self, PyObject *tensor)
{
    PyObject *quickly = PyObject_GetAttr(self->statistics, text__ask_quickly);
    PyObject *measured = NULL;
    if (quickly && quickly != Py_None) {
        measured = PyObject_CallFunctionObjArgs(quickly, tensor, NULL);
        if (measured && measured != Py_None) {
            Py_DECREF(quickly);
            if (count_asked(self))
                Py_CLEAR(measured);
            return measured;
        }
        Py_XDECREF(measured);
        if (!measured) {
            Py_DECREF(quickly);
            return NULL;
        }
    }
    Py_XDECREF(quickly);
    return quickly ? PyObject_CallMethodObjArgs(self->statistics, text_ask, tensor, NULL) : NULL;
}

static PyObject *draft_by_python(Gate *self, PyObject *tensor)
{
    return PyObject_CallMethodObjArgs(self->recorder, text__draft_tensor, tensor, self->no_name, NULL);
}

/* Return where a view lies in memory, as DraftTable does for numbers without an order; None: ask it. */
static PyObject *place_of(Gate *self, PyObject *view)
{
    int is_changed = asks(view, text_is_conj);
    if (!is_changed)
        is_changed = asks(view, text_is_neg);
    if (is_changed)
        return is_changed < 0 ? NULL : Py_NewRef(Py_None);
    int is_straight = asks(view, text_is_contiguous);
    if (is_straight < 0)
        return NULL;
    PyObject *address = call(view, text_data_ptr), *dtype = PyObject_GetAttr(view, text_dtype);
    PyObject *shown = NULL, *place = NULL;
    if (address && dtype && !is_straight) {
        PyObject *strides = call(view, text_stride), *shape = PyObject_GetAttr(view, text_shape);
        shown = strides && shape ? PyObject_CallFunctionObjArgs(self->merge, strides, shape, NULL) : NULL;
        Py_XDECREF(strides);
        Py_XDECREF(shape);
        /* All of it is there, in another order. */
        if (shown && PyTuple_Size(shown) == 1)
            is_straight = PyLong_AsLong(PyTuple_GetItem(PyTuple_GetItem(shown, 0), 0)) == 1;
        if (is_straight)
            Py_CLEAR(shown);
    }
    if (is_straight && !PyErr_Occurred())
        shown = call(view, text_numel);
    if (address && dtype && shown)
        place = PyTuple_Pack(3, address, dtype, shown);
    Py_XDECREF(address);
    Py_XDECREF(dtype);
    Py_XDECREF(shown);
    return place;
}

/* Return the numbers of parts of an owner's memory by their places, a new reference; or NULL. */
static PyObject *numbers_of(Gate *self, PyObject *owner)
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

/* Return what was measured of the memory that a view shows, or measure it; None: by Python. */
static PyObject *measure_view(Gate *self, PyObject *view, PyObject *owner)
{
    PyObject *place = place_of(self, view), *known = place ? find_draft(self->drafts, owner) : NULL;
    if (!known || place == Py_None) {
        Py_XDECREF(known);
        Py_XDECREF(place);
        return known ? Py_NewRef(Py_None) : NULL;
    }
    PyObject *measured = NULL;
    if (known != Py_None) {
        PyObject *whole = place_of(self, owner);
        if (whole && PyObject_RichCompareBool(place, whole, Py_EQ) > 0)
            measured = PyObject_GetAttr(known, text_measured);
        Py_XDECREF(whole);
    }
    Py_DECREF(known);
    if (!measured && !PyErr_Occurred()) {
        PyObject *numbers = numbers_of(self, owner);
        PyObject *found = numbers ? PyDict_GetItemWithError(numbers, place) : NULL;
        measured = found ? Py_XNewRef(PyTuple_GetItem(found, 0)) : NULL;
        if (numbers && !found && !PyErr_Occurred()) {
            measured = measure(self, view);
            PyObject *both = measured ? PyTuple_Pack(2, measured, Py_None) : NULL;
            if (!both || PyDict_SetItem(numbers, place, both))
                Py_CLEAR(measured);
            Py_XDECREF(both);
        }
        Py_XDECREF(numbers);
    }
    Py_DECREF(place);
    return measured;
}

/* Remember the draft of a tensor, unless nobody knows when that changes. */
static int keep_draft(Gate *self, PyObject *tensor, PyObject *draft)
{
    long long version = number_of(PyObject_GetAttr(draft, text_version));
    if (version < 0)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *key = PyLong_FromVoidPtr(tensor);
    int failed = !key || PyDict_SetItem(self->drafts, key, draft);
    Py_XDECREF(key);
    return failed;
}

/* Return the draft of a tensor that none is known of; by Python, unless it is plain. */
static PyObject *draft_new(Gate *self, PyObject *tensor)
{
    int is_usual = PyDict_Size(self->drafts) < self->many ? (self->is_alone ? 1 : is_alone(self)) : 0;
    if (is_usual > 0)
        is_usual = looks_plain(tensor);
    if (is_usual <= 0)
        return is_usual < 0 ? NULL : draft_by_python(self, tensor);
    PyObject *owner = PyObject_GetAttr(tensor, text__base), *measured = NULL, *checked = NULL;
    if (owner && owner == Py_None && self->with_checksums)
        checked = PyObject_CallMethodObjArgs(self->checksums, text_ask, tensor, NULL);
    else if (owner)
        checked = Py_NewRef(Py_None);
    if (checked && owner == Py_None)
        measured = measure(self, tensor);
    else if (checked)
        /* What a checksum is of has an order. */
        measured = self->with_checksums ? Py_NewRef(Py_None) : measure_view(self, tensor, owner);
    Py_XDECREF(owner);
    if (!measured || measured == Py_None) {
        Py_XDECREF(measured);
        Py_XDECREF(checked);
        return measured ? draft_by_python(self, tensor) : NULL;
    }
    PyObject *draft = make_draft(tensor, measured, checked);
    Py_DECREF(measured);
    Py_DECREF(checked);
    if (draft && keep_draft(self, tensor, draft))
        Py_CLEAR(draft);
    return draft;
}

static PyObject *draft_tensor(Gate *self, PyObject *tensor)
{
    PyObject *known = find_draft(self->drafts, tensor);
    if (!known || known == Py_None) {
        Py_XDECREF(known);
        return known ? draft_new(self, tensor) : NULL;
    }
    PyObject *then = PyObject_GetAttr(known, text_requires_grad);
    PyObject *now = PyObject_GetAttr(tensor, text_requires_grad);
    int is_same = then && now ? then == now : -1;
    Py_XDECREF(then);
    Py_XDECREF(now);
    if (is_same > 0)
        return known;
    Py_DECREF(known);
    return is_same < 0 ? NULL : draft_by_python(self, tensor);
}

static int is_tensor(Gate *self, PyObject *value)
{
    PyObject *kind = (PyObject *)Py_TYPE(value);
    return kind == self->tensor_class || kind == self->parameter_class;
}

static PyObject *draft_value(Gate *self, PyObject *value)
{
    if (is_tensor(self, value))
        return draft_tensor(self, value);
    if (value == Py_None)
        return Py_NewRef(Py_None);
    if (PyLong_CheckExact(value)) {
        PyObject *known = PyDict_GetItemWithError(self->known_ints, value);
        if (known || PyErr_Occurred())
            return Py_XNewRef(known);
    }
    return PyObject_CallFunctionObjArgs(self->describe, value, NULL);
}

/* Describe the values of a tuple or a list. */
static PyObject *draft_all(Gate *self, PyObject *values)
{
    int is_list = PyList_CheckExact(values);
    Py_ssize_t count = is_list ? PyList_Size(values) : PyTuple_Size(values);
    PyObject *drafts = count < 0 ? NULL : PyTuple_New(count);
    for (Py_ssize_t i = 0; drafts && i < count; i++) {
        PyObject *value = is_list ? PyList_GetItem(values, i) : PyTuple_GetItem(values, i);
        PyObject *draft = value ? draft_value(self, value) : NULL;
        if (!draft || PyTuple_SetItem(drafts, i, draft))
            Py_CLEAR(drafts);
    }
    return drafts;
}

static PyObject *draft_named(Gate *self, PyObject *values)
{
    PyObject *drafts = PyDict_New(), *key, *value;
    Py_ssize_t at = 0;
    while (drafts && values && PyDict_Next(values, &at, &key, &value)) {
        PyObject *draft = draft_value(self, value);
        if (!draft || PyDict_SetItem(drafts, key, draft))
            Py_CLEAR(drafts);
        Py_XDECREF(draft);
    }
    return drafts;
}

/* --- tensors in values ------------------------------------------------------------------------- */

static int collect(Gate *self, PyObject *value, PyObject *tensors)
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
static PyObject *tensors_of(Gate *self, PyObject *values, PyObject *named)
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

/* --- one call ---------------------------------------------------------------------------------- */

/* One call, between its beginning and its record; everything is owned. */
typedef struct {
    PyObject *name, *backward, *inputs, *named, *parameters, *edges, *start;
    int is_sealed;
} Call;

static void forget(Call *call)
{
    Py_XDECREF(call->name);
    Py_XDECREF(call->backward);
    Py_XDECREF(call->inputs);
    Py_XDECREF(call->named);
    Py_XDECREF(call->parameters);
    Py_XDECREF(call->edges);
    Py_XDECREF(call->start);
}

static int lock(Gate *self)
{
    PyObject *answer = call(self->lock, text_acquire);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

/* Release the lock, whatever has been raised meanwhile. */
static int unlock(Gate *self)
{
    self->is_alone = 0;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *answer = call(self->lock, text_release);
    Py_XDECREF(answer);
    if (kind)
        PyErr_Restore(kind, value, trace);
    return PyErr_Occurred() ? -1 : 0;
}

/* Count a failure of ours; the user's call goes on. An interrupt is no failure: -1. */
static int report(Gate *self, PyObject *name)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    PyObject *told = PyObject_CallMethodObjArgs(self->recorder, text_fail, name, value, NULL);
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_XDECREF(told);
    return told ? 0 : -1;
}

static int begin(Gate *self, Call *call, PyObject *full_name)
{
    PyObject *counter = PyDict_GetItemWithError(self->counters, full_name);
    if (!counter && PyErr_Occurred())
        return -1;
    PyObject *number =
        counter ? PyIter_Next(counter)
                : PyObject_CallMethodObjArgs(self->recorder, text_next_number, full_name, NULL);
    if (!number)
        return -1;
    call->name = PyUnicode_FromFormat("%U.%S.forward", full_name, number);
    call->backward = PyUnicode_FromFormat("%U.%S.backward", full_name, number);
    Py_DECREF(number);
    return call->name && call->backward ? 0 : -1;
}

/* Note where the gradients of a call's arguments go. */
static int note_edges(Gate *self, Call *call, PyObject *shown, PyObject *shown_named)
{
    PyObject *tensors = tensors_of(self, shown, shown_named);
    PyObject *edges = tensors ? take_edges(tensors) : NULL;
    Py_XDECREF(tensors);
    call->start = edges ? PyObject_CallObject(self->next_sequence_number, NULL) : NULL;
    if (!call->start) {
        Py_XDECREF(edges);
        return -1;
    }
    call->edges = edges;
    return 0;
}

/* Describe the arguments of a call, and a module's parameters. */
static int describe_before(Gate *self, Call *call, PyObject *shown, PyObject *shown_named,
                       PyObject *parameters)
{
    if (lock(self))
        return -1;
    /* The gate has asked: it lets nothing else through. */
    self->is_alone = 1;
    call->inputs = draft_all(self, shown);
    call->named = call->inputs ? draft_named(self, shown_named) : NULL;
    if (parameters && call->named)
        call->parameters = draft_named(self, parameters);
    if (unlock(self) || !call->named || (parameters && !call->parameters))
        return -1;
    return 0;
}

static int look_before(Gate *self, Call *call, PyObject *shown, PyObject *shown_named)
{
    if (describe_before(self, call, shown, shown_named, NULL))
        return -1;
    int has_gradients = is_true(PyObject_CallObject(self->is_grad_enabled, NULL));
    return has_gradients > 0 ? note_edges(self, call, shown, shown_named) : has_gradients;
}

static PyObject *stack_of(Gate *self, PyObject *frame)
{
    PyObject *key = key_of_stack(frame, self->codes, self->deepest);
    PyObject *stack = key && key != Py_None ? PyDict_GetItemWithError(self->stacks, key) : NULL;
    Py_XINCREF(stack);
    int is_new = key && !stack && !PyErr_Occurred();
    Py_XDECREF(key);
    return is_new ? PyObject_CallObject(self->read_stack, NULL) : stack;
}

/* Whether numbers of a queue are still on a device; -1 on failure. */
static int is_waiting(PyObject *queue)
{
    long long asked = number_of(PyObject_GetAttr(queue, text_asked));
    PyObject *line = PyObject_GetAttr(queue, text__line);
    long long delivered = line ? number_of(PyObject_GetAttr(line, text_delivered)) : -1;
    Py_XDECREF(line);
    return PyErr_Occurred() ? -1 : asked > delivered;
}

/* Whether records need not be looked at yet, which are so many now; -1 on failure. */
static int may_wait(Gate *self, Py_ssize_t unlooked)
{
    PyObject *answer = PyObject_CallObject(self->monotonic, NULL);
    PyObject *looked = PyObject_GetAttr(self->recorder, text__looked);
    double waited = answer && looked ? PyFloat_AsDouble(answer) - PyFloat_AsDouble(looked) : 0;
    Py_XDECREF(answer);
    Py_XDECREF(looked);
    if (PyErr_Occurred())
        return -1;
    if (unlooked < self->together && waited < self->longest_wait)
        return 1;
    if (unlooked >= self->together_on_device || waited >= self->longest_wait_on_device)
        return 0;
    int waits = is_waiting(self->statistics);
    return waits ? waits : is_waiting(self->checksums);
}

/* Put a record, which is taken over, at the end of the recorder's line. */
static int queue(Gate *self, PyObject *record)
{
    PyObject *added = record ? PyObject_CallFunctionObjArgs(self->add_pending, record, NULL) : NULL;
    Py_XDECREF(record);
    Py_XDECREF(added);
    if (!added)
        return -1;
    long long unlooked = increase(self->recorder, text__unlooked);
    if (unlooked < 0)
        return -1;
    int waits = may_wait(self, (Py_ssize_t)unlooked);
    if (waits)
        return waits < 0 ? -1 : 0;
    PyObject *looked = call(self->recorder, text__look);
    Py_XDECREF(looked);
    return looked ? 0 : -1;
}

/* What is not there is NULL. */
static PyObject *make_record(Gate *self, PyObject *name, PyObject *inputs, PyObject *named,
                             PyObject *parameters, PyObject *outputs, PyObject *is_recompute,
                             PyObject *stack, PyObject *parent)
{
    PyObject *record = make_empty(self->pending_class), *none = PyLong_FromLong(0);
    if (record && none &&
        (PyObject_SetAttr(record, text_name, name) ||
         PyObject_SetAttr(record, text_inputs, inputs ? inputs : Py_None) ||
         PyObject_SetAttr(record, text_kwargs, named ? named : Py_None) ||
         PyObject_SetAttr(record, text_outputs, outputs) ||
         PyObject_SetAttr(record, text_parameters, parameters ? parameters : Py_None) ||
         PyObject_SetAttr(record, text_saved, Py_None) ||
         PyObject_SetAttr(record, text_is_recompute, is_recompute) ||
         PyObject_SetAttr(record, text_defaults, Py_None) ||
         PyObject_SetAttr(record, text_stack, stack) || PyObject_SetAttr(record, text_parent, parent) ||
         give(record, text_statistics, PyObject_GetAttr(self->statistics, text_asked)) ||
         give(record, text_checksums, PyObject_GetAttr(self->checksums, text_asked)) ||
         PyObject_SetAttr(record, text_files, none)))
        Py_CLEAR(record);
    Py_XDECREF(none);
    return record;
}

static int add_record(Gate *self, Call *call, PyObject *result, PyObject *frame, PyObject *parent)
{
    PyObject *values = PyTuple_CheckExact(result) ? Py_NewRef(result) : PyTuple_Pack(1, result);
    PyObject *outputs = NULL, *stack = NULL;
    int failed = !values || lock(self);
    if (!failed) {
        self->is_alone = 1;
        outputs = draft_all(self, values);
        stack = outputs ? stack_of(self, frame) : NULL;
        failed = !stack || queue(self, make_record(self, call->name, call->inputs, call->named,
                                                   call->parameters, outputs, Py_False, stack, parent));
        failed = unlock(self) || failed;
    }
    Py_XDECREF(values);
    Py_XDECREF(outputs);
    Py_XDECREF(stack);
    return failed ? -1 : 0;
}

/* Tell the gradients on which thread and device calls are made, where that has changed. */
static int note_place(Gate *self, PyObject *outputs)
{
    unsigned long thread = PyThread_get_thread_ident();
    int is_known = self->has_place && thread == self->thread;
    for (Py_ssize_t i = 0; is_known && i < PyList_Size(outputs); i++) {
        long device = (long)number_of(call(PyList_GetItem(outputs, i), text_get_device));
        if (PyErr_Occurred())
            return -1;
        is_known = device == self->device;
    }
    if (is_known)
        return 0;
    PyObject *noted = PyObject_CallMethodObjArgs(self->gradients, text_note_place, outputs, NULL);
    Py_XDECREF(noted);
    self->thread = thread;
    self->device = (long)number_of(call(PyList_GetItem(outputs, 0), text_get_device));
    self->has_place = PyList_Size(outputs) == 1;
    return PyErr_Occurred() ? -1 : 0;
}

/* Have a root, a pair of node and places, tell of the call's gradients. */
static int hook_root(Gate *self, Call *call, PyObject *root, PyObject *outputs, PyObject *parent)
{
    PyObject *node = PyTuple_GetItem(root, 0), *places = PyTuple_GetItem(root, 1);
    PyObject *hook = make_empty(self->hook_class);
    if (!hook || PyObject_SetAttr(hook, text_watcher, self->gradients) ||
        PyObject_SetAttr(hook, text_name, call->backward) || PyObject_SetAttr(hook, text_parent, parent) ||
        PyObject_SetAttr(hook, text_start, call->start) ||
        give(hook, text_count, PyLong_FromSsize_t(PyList_Size(outputs))) ||
        PyObject_SetAttr(hook, text_edges, call->edges) || PyObject_SetAttr(hook, text_done, self->done) ||
        PyObject_SetAttr(hook, text_outputs, places) || PyObject_SetAttr(hook, text_hook, Py_None)) {
        Py_XDECREF(hook);
        return -1;
    }
    PyObject *handle = PyObject_CallMethodObjArgs(node, text_register_hook, hook, NULL);
    PyObject *kept = handle ? PyObject_CallFunctionObjArgs(self->add_handle, handle, NULL) : NULL;
    Py_DECREF(hook);
    Py_XDECREF(handle);
    Py_XDECREF(kept);
    return kept ? 0 : -1;
}

static PyObject *watch_by_python(Gate *self, Call *call, PyObject *outputs, PyObject *parent)
{
    PyObject *method = PyObject_GetAttr(self->session, text_watch_gradients);
    PyObject *args = PyTuple_Pack(5, call->name, call->edges, call->start, outputs, parent);
    PyObject *named = PyDict_New(), *answer = NULL;
    if (method && args && named &&
        !PyDict_SetItem(named, text_is_sealed, call->is_sealed ? Py_True : Py_False))
        answer = PyObject_Call(method, args, named);
    Py_XDECREF(method);
    Py_XDECREF(args);
    Py_XDECREF(named);
    return answer;
}

static int watch_gradients(Gate *self, Call *call, PyObject *result, PyObject *parent)
{
    int is_active = is_true(PyObject_GetAttr(self->gradients, text_is_active));
    if (is_active <= 0)
        return is_active;
    PyObject *values = PyTuple_CheckExact(result) ? Py_NewRef(result) : PyTuple_Pack(1, result);
    PyObject *outputs = values ? tensors_of(self, values, NULL) : NULL, *root = NULL;
    unsigned long long start = PyLong_AsUnsignedLongLong(call->start);
    int failed = !outputs || PyErr_Occurred();
    if (!failed)
        root = call->is_sealed ? root_of(outputs, call->edges, start, 1) : Py_NewRef(Py_None);
    failed = failed || !root;
    if (!failed && root == Py_None) {
        PyObject *answer = watch_by_python(self, call, outputs, parent);
        failed = !answer;
        Py_XDECREF(answer);
    } else if (!failed && PyTuple_Size(root)) {
        failed = note_place(self, outputs) || hook_root(self, call, root, outputs, parent);
    }
    Py_XDECREF(values);
    Py_XDECREF(outputs);
    Py_XDECREF(root);
    return failed ? -1 : 0;
}

static int look_after(Gate *self, Call *call, PyObject *result, PyObject *frame, PyObject *parent)
{
    int failed = add_record(self, call, result, frame, parent);
    if (!failed && call->edges)
        failed = watch_gradients(self, call, result, parent);
    return failed ? -1 : 0;
}

/* Return the name of the module call that is running in this thread, as ModuleWatcher.current does. */
static PyObject *current_module(Gate *self)
{
    if (self->modules == Py_None)
        return Py_NewRef(Py_None);
    PyObject *threads = PyObject_GetAttr(self->modules, text__threads);
    PyObject *own = threads ? PyObject_GetAttr(threads, text___dict__) : NULL, *name = NULL;
    PyObject *running = own ? PyDict_GetItemWithError(own, text_running) : NULL;
    Py_ssize_t depth = running ? PyList_Size(running) : 0;
    if (depth > 0)
        name = PyObject_GetAttr(PyList_GetItem(running, depth - 1), text_name);
    else if (!PyErr_Occurred())
        name = Py_NewRef(Py_None);
    Py_XDECREF(threads);
    Py_XDECREF(own);
    return name;
}

/* Run a function that counts, and record it. */
static PyObject *watch(Gate *self, PyObject *full_name, long flags, PyObject *function, PyObject *args,
                       PyObject *kwargs, PyObject *frame)
{
    Call call = {NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1};
    PyObject *spelled = NULL, *result = NULL, *shown = args, *shown_named = kwargs;
    if (flags & IS_PYTHON && kwargs && PyDict_Size(kwargs)) {
        spelled = PyObject_CallFunctionObjArgs(self->as_spelled, function, args, kwargs, frame, NULL);
        if (!spelled)
            return NULL;
        shown = PyTuple_GetItem(spelled, 0);
        shown_named = PyTuple_GetItem(spelled, 1);
    }
    int is_lost = begin(self, &call, full_name);
    if (!is_lost && look_before(self, &call, shown, shown_named))
        is_lost = report(self, call.name);
    if (!is_lost)
        result = PyObject_Call(function, args, kwargs);
    if (result && flags & WRITES_UNSEEN) {
        PyObject *forgotten = PyObject_CallMethodObjArgs(self->recorder, text_forget_tensors, NULL);
        Py_XDECREF(forgotten);
        is_lost = !forgotten;
    }
    if (result && !is_lost) {
        PyObject *parent = current_module(self);
        if (!parent || look_after(self, &call, result, frame, parent))
            is_lost = report(self, call.name);
        Py_XDECREF(parent);
    }
    if (is_lost)
        Py_CLEAR(result);
    Py_XDECREF(spelled);
    forget(&call);
    return result;
}

/* Whether no backward pass, mode, transform or record of another kind is at work; -1 on failure. */
static int is_usual_moment(Gate *self)
{
    int is_paused = is_true(PyObject_GetAttr(self->session, text_is_paused));
    if (is_paused || PySet_Size(self->inside_custom))
        return is_paused < 0 || PyErr_Occurred() ? -1 : 0;
    long long task = number_of(PyObject_CallObject(self->current_pass, NULL));
    if (task != -1 || PyErr_Occurred())
        return PyErr_Occurred() ? -1 : 0;
    return is_alone(self);
}

/* --- gradients --------------------------------------------------------------------------------- */

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
    PyObject *alone = call(before, text_detach);
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
        failed = queue(self, make_record(self, name, into, NULL, NULL, out, Py_None, nothing, parent));
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

/* Whether a pass is at work that takes nothing but reading; -1 on failure. */
static int is_plain_pass(Gate *self)
{
    int is_active = is_true(PyObject_GetAttr(self->gradients, text_is_active));
    if (is_active <= 0)
        return is_active;
    int has_gradients = is_true(PyObject_CallObject(self->is_grad_enabled, NULL));
    if (has_gradients)
        return has_gradients < 0 ? -1 : 0;
    PyObject *task = PyObject_CallObject(self->current_pass, NULL);
    PyObject *opened = task ? PyDict_GetItemWithError(self->opened, task) : NULL;
    int is_quiet = !PyErr_Occurred() && (!opened || !PyList_Size(opened));
    Py_XDECREF(task);
    if (PyErr_Occurred())
        return -1;
    return is_quiet ? is_alone(self) : 0;
}

/* Record the gradients of the root that is running: 1 if that was all, 0 if it takes Python. */
static int take_gradients(Gate *self, PyObject *hook, PyObject *into, PyObject *out_of)
{
    int is_usual = is_plain_pass(self);
    if (is_usual <= 0)
        return is_usual;
    PyObject *node = PyObject_CallObject(self->current_node, NULL), *own = NULL;
    is_usual = node ? find_own_places(self, hook, node, &own) : -1;
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

static PyObject *on_root(PyObject *object, PyObject *args)
{
    Gate *self = (Gate *)object;
    PyObject *hook, *into, *out_of;
    if (!PyArg_ParseTuple(args, "OO!O!", &hook, &PyTuple_Type, &into, &PyTuple_Type, &out_of))
        return NULL;
    PyObject *guard = PyObject_CallObject(self->without_functions, NULL);
    PyObject *entered = guard ? call(guard, text___enter__) : NULL;
    int is_done = -1;
    if (entered && !lock(self)) {
        is_done = take_gradients(self, hook, into, out_of);
        if (unlock(self))
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

/* --- the gate ---------------------------------------------------------------------------------- */

static PyObject *enter_module(PyObject *object, PyObject *args)
{
    Gate *self = (Gate *)object;
    PyObject *given, *named, *parameters, *entered = NULL;
    Call call = {NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0};
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &given, &PyDict_Type, &named, &PyDict_Type,
                          &parameters))
        return NULL;
    int is_usual = is_usual_moment(self);
    if (is_usual <= 0)
        return is_usual < 0 ? NULL : Py_NewRef(Py_None);
    /* Gradients may be turned on inside. */
    if (!describe_before(self, &call, given, named, parameters) && !note_edges(self, &call, given, named))
        entered = PyTuple_Pack(5, call.inputs, call.named, call.parameters, call.edges, call.start);
    forget(&call);
    return entered;
}

/* Take an attribute of a module's running call; 0 if it was there. */
static int take_from(PyObject *running, PyObject *attribute, PyObject **value)
{
    *value = PyObject_GetAttr(running, attribute);
    return !*value;
}

static PyObject *leave_module(PyObject *object, PyObject *args)
{
    Gate *self = (Gate *)object;
    PyObject *running, *output, *parent = NULL;
    Call call = {NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0};
    if (!PyArg_ParseTuple(args, "OOp", &running, &output, &call.is_sealed))
        return NULL;
    /* The items of a named tuple are outputs, too. */
    int is_usual = PyTuple_Check(output) && !PyTuple_CheckExact(output) ? 0 : is_usual_moment(self);
    if (is_usual <= 0)
        return is_usual < 0 ? NULL : Py_NewRef(Py_False);
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    Py_XINCREF(frame);
    int failed = !frame || take_from(running, text_name, &call.name) ||
                 take_from(running, text_inputs, &call.inputs) ||
                 take_from(running, text_kwargs, &call.named) ||
                 take_from(running, text_parameters, &call.parameters) ||
                 take_from(running, text_edges, &call.edges) ||
                 take_from(running, text_start, &call.start) || take_from(running, text_parent, &parent);
    if (!failed) {
        call.backward = PyObject_CallFunctionObjArgs(self->backward_of, call.name, NULL);
        failed = !call.backward || look_after(self, &call, output, frame, parent);
    }
    Py_XDECREF(frame);
    Py_XDECREF(parent);
    forget(&call);
    return failed ? NULL : Py_NewRef(Py_True);
}

static PyObject *draft_with_lock(PyObject *object, PyObject *values, PyObject *(*draft)(Gate *, PyObject *))
{
    Gate *self = (Gate *)object;
    if (lock(self))
        return NULL;
    PyObject *drafts = draft(self, values);
    if (unlock(self))
        Py_CLEAR(drafts);
    return drafts;
}

static PyObject *draft_all_of(PyObject *object, PyObject *values)
{
    if (!PyTuple_CheckExact(values) && !PyList_CheckExact(values))
        return PyErr_Format(PyExc_TypeError, "wanted a tuple or a list");
    return draft_with_lock(object, values, draft_all);
}

static PyObject *draft_named_of(PyObject *object, PyObject *values)
{
    if (!PyDict_Check(values))
        return PyErr_Format(PyExc_TypeError, "wanted a dict");
    return draft_with_lock(object, values, draft_named);
}

/* Whether all types are those of plain tensors. */
static int are_plain(Gate *self, PyObject *types)
{
    Py_ssize_t count = PyTuple_CheckExact(types) ? PyTuple_Size(types) : 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *kind = PyTuple_CheckExact(types) ? PyTuple_GetItem(types, i) : NULL;
        if (kind != self->tensor_class && kind != self->parameter_class)
            return 0;
    }
    return 1;
}

/* Watch a call of a known function as it was written: `a + b` is another API than `a.add(b)`. */
static PyObject *watch_known(Gate *self, PyObject *known, PyObject *function, PyObject *args,
                             PyObject *kwargs)
{
    PyObject *api = PyTuple_GetItem(known, 0), *full_name = PyTuple_GetItem(known, 1);
    long flags = PyLong_AsLong(PyTuple_GetItem(known, 2));
    PyObject *frame = (PyObject *)PyEval_GetFrame(), *result = NULL;
    if (!frame)
        return PyErr_Format(PyExc_RuntimeError, "no frame of Python makes this call");
    Py_INCREF(frame);
    int is_left_out = 0;
    if (self->is_distributed)
        is_left_out = is_true(PyObject_CallFunctionObjArgs(self->is_machinery, frame, NULL));
    Py_INCREF(full_name);
    if (!is_left_out && flags & MAYBE_OPERATOR) {
        PyObject *written = PyObject_CallFunctionObjArgs(self->as_written, api, args, frame, NULL);
        Py_DECREF(full_name);
        full_name = written ? PyObject_GetAttr(written, text_full_name) : NULL;
        Py_XDECREF(written);
    }
    if (is_left_out > 0)
        result = PyObject_Call(function, args, kwargs);
    else if (!is_left_out && full_name)
        result = watch(self, full_name, flags, function, args, kwargs, frame);
    Py_XDECREF(full_name);
    Py_DECREF(frame);
    return result;
}

static PyObject *answer(PyObject *object, PyObject *given, PyObject *named)
{
    Gate *self = (Gate *)object;
    Py_ssize_t count = PyTuple_Size(given);
    if (!self->slow)
        return PyErr_Format(PyExc_RuntimeError, "this gate is no mode's");
    if (count < 3 || count > 4 || (named && PyDict_Size(named)))
        return PyObject_Call(self->slow, given, named);
    PyObject *function = PyTuple_GetItem(given, 0), *args = PyTuple_GetItem(given, 2);
    PyObject *kwargs = count == 4 ? PyTuple_GetItem(given, 3) : NULL;
    if (kwargs == Py_None)
        kwargs = NULL;
    PyObject *known = PyDict_GetItemWithError(self->functions, function);
    /* What cannot be looked up is nothing that torch itself hands over. */
    if (!known)
        PyErr_Clear();
    int is_usual = known && PyTuple_CheckExact(args) && (!kwargs || PyDict_CheckExact(kwargs)) &&
                   are_plain(self, PyTuple_GetItem(given, 1));
    if (is_usual && known == Py_None)
        return PyObject_Call(function, args, kwargs);
    if (is_usual)
        is_usual = is_usual_moment(self);
    if (is_usual <= 0)
        return is_usual < 0 ? NULL : PyObject_Call(self->slow, given, named);
    Py_INCREF(known);
    PyObject *result = watch_known(self, known, function, args, kwargs);
    Py_DECREF(known);
    return result;
}

static int clear_gate(PyObject *object)
{
    Gate *self = (Gate *)object;
#define CLEAR(part) Py_CLEAR(self->part);
    PARTS(CLEAR)
    MODE_PARTS(CLEAR)
    return 0;
}

static int visit_gate(PyObject *object, visitproc visit, void *arg)
{
    Gate *self = (Gate *)object;
#define VISIT(part) Py_VISIT(self->part);
    PARTS(VISIT)
    MODE_PARTS(VISIT)
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static void free_gate(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear_gate(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* Take a part, or a number, out of what was handed over; 0 if it was there. */
static int take_part(PyObject *parts, const char *name, PyObject **part)
{
    PyObject *found = PyDict_GetItemString(parts, name);
    if (!found) {
        PyErr_Format(PyExc_KeyError, "%s", name);
        return -1;
    }
    *part = Py_NewRef(found);
    return 0;
}

static int take_number(PyObject *parts, const char *name, double *number)
{
    PyObject *found = NULL;
    if (take_part(parts, name, &found))
        return -1;
    *number = PyFloat_AsDouble(found);
    Py_DECREF(found);
    return PyErr_Occurred() ? -1 : 0;
}

static int take_parts(Gate *self, PyObject *parts)
{
    double deepest, many, batch, together, together_on_device, with_checksums;
#define TAKE(part)                                                                                   \
    if (take_part(parts, #part, &self->part))                                                        \
        return -1;
    PARTS(TAKE)
    if (take_number(parts, "deepest", &deepest) || take_number(parts, "many", &many) ||
        take_number(parts, "together", &together) || take_number(parts, "batch", &batch) ||
        take_number(parts, "with_checksums", &with_checksums) ||
        take_number(parts, "together_on_device", &together_on_device) ||
        take_number(parts, "longest_wait", &self->longest_wait) ||
        take_number(parts, "longest_wait_on_device", &self->longest_wait_on_device))
        return -1;
    self->with_checksums = with_checksums != 0;
    self->deepest = (Py_ssize_t)deepest;
    self->many = (Py_ssize_t)many;
    self->batch = (Py_ssize_t)batch;
    self->together = (Py_ssize_t)together;
    self->together_on_device = (Py_ssize_t)together_on_device;
    return 0;
}

static PyObject *make_gate(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *parts;
    if ((kwargs && PyDict_Size(kwargs)) || !PyArg_ParseTuple(args, "O!", &PyDict_Type, &parts))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "no named arguments");
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Gate *self = (Gate *)allocate(type, 0);
    if (!self)
        return NULL;
    if (take_parts(self, parts)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *watch_mode(PyObject *object, PyObject *args)
{
    Gate *self = (Gate *)object;
    PyObject *mode, *slow, *functions, *as_written, *is_machinery;
    if (!PyArg_ParseTuple(args, "OOO!OOp", &mode, &slow, &PyDict_Type, &functions, &as_written,
                          &is_machinery, &self->is_distributed))
        return NULL;
#define KEEP(part)                                                                                   \
    Py_XDECREF(self->part);                                                                          \
    self->part = Py_NewRef(part);
    MODE_PARTS(KEEP)
    Py_RETURN_NONE;
}

static PyMethodDef gate_methods[] = {
    {"watch", watch_mode, METH_VARARGS, "Be what torch asks in place of a mode."},
    {"on_root", on_root, METH_VARARGS, "Record the gradients of the root that runs; False: it takes Python."},
    {"enter_module", enter_module, METH_VARARGS, "Describe what a module is given; None: it takes Python."},
    {"leave_module", leave_module, METH_VARARGS, "Record a module's call; False: it takes Python."},
    {"draft_all", draft_all_of, METH_O, "Describe the values of a tuple or a list."},
    {"draft_named", draft_named_of, METH_O, "Describe the values of a dict."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef gate_members[] = {
    {"__self__", T_OBJECT, offsetof(Gate, mode), READONLY, "The mode whose method this is."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot gate_slots[] = {
    {Py_tp_new, make_gate},         {Py_tp_dealloc, free_gate}, {Py_tp_traverse, visit_gate},
    {Py_tp_clear, clear_gate},      {Py_tp_call, answer},       {Py_tp_members, gate_members},
    {Py_tp_methods, gate_methods},
    {Py_tp_doc, "What torch asks in place of a mode's own method."}, {0, NULL},
};

static PyType_Spec gate_spec = {
    "tensorprobe.capture._calls.Gate", sizeof(Gate), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, gate_slots,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_calls", "The usual call of a captured step.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__calls(void)
{
#define INTERN(text)                                                                                 \
    if (!(text_##text = PyUnicode_InternFromString(#text)))                                          \
        return NULL;
    TEXTS(INTERN)
    INTERN(statistics)
    INTERN(checksums)
    if (begin_drafts() || begin_graph())
        return NULL;
    PyObject *made = PyModule_Create(&module);
    PyObject *gate_class = made ? PyType_FromSpec(&gate_spec) : NULL;
    if (made && (!gate_class || PyModule_AddObjectRef(made, "Gate", gate_class) ||
                 PyModule_AddFunctions(made, draft_methods) || PyModule_AddFunctions(made, graph_methods)))
        Py_CLEAR(made);
    Py_XDECREF(gate_class);
    return made;
}
