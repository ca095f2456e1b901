/* The usual call of an API function or a module, from torch's question to its record.
 *
 * As FunctionWatcher, Session.watch_call, ModuleWatcher and GradientWatcher.watch do it, which say why.
 */

#include "_calls.h"

/* Of a function, from fast_recorder.py. */
enum { MAYBE_OPERATOR = 1, IS_PYTHON = 2, WRITES_UNSEEN = 4 };

void forget(Call *call)
{
    Py_XDECREF(call->name);
    Py_XDECREF(call->backward);
    Py_XDECREF(call->inputs);
    Py_XDECREF(call->named);
    Py_XDECREF(call->parameters);
    Py_XDECREF(call->edges);
    Py_XDECREF(call->start);
    Py_XDECREF(call->stack);
}

PyObject *number_call(FastRecorder *self, PyObject *key)
{
    PyObject *counter = PyDict_GetItemWithError(self->counters, key);
    if (!counter && PyErr_Occurred())
        return NULL;
    return counter ? PyIter_Next(counter)
                   : PyObject_CallMethodObjArgs(self->recorder, text_next_number, key, NULL);
}

static int begin_call(FastRecorder *self, Call *call, PyObject *full_name)
{
    PyObject *number = number_call(self, full_name);
    if (!number)
        return -1;
    call->name = PyUnicode_FromFormat("%U.%S.forward", full_name, number);
    call->backward = PyUnicode_FromFormat("%U.%S.backward", full_name, number);
    Py_DECREF(number);
    return call->name && call->backward ? 0 : -1;
}

/* Note where the gradients of a call's arguments go. */
int note_edges(FastRecorder *self, Call *call, PyObject *shown, PyObject *shown_named)
{
    PyObject *tensors = tensors_of(self, shown, shown_named);
    PyObject *edges = !tensors                          ? NULL
                      : self->input_edges == Py_None ? take_edges(tensors)
                                                     : PyObject_CallFunctionObjArgs(self->input_edges, tensors, NULL);
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
int describe_before(FastRecorder *self, Call *call, PyObject *shown, PyObject *shown_named, PyObject *parameters)
{
    if (lock_records(self))
        return -1;
    /* The fast recorder has asked: it lets nothing else through. */
    self->is_alone = 1;
    call->inputs = draft_all(self, shown, call->name, "input");
    call->named = call->inputs ? draft_named(self, shown_named, call->name, "kwargs") : NULL;
    if (parameters && call->named)
        call->parameters = draft_named(self, parameters, call->name, "parameters");
    if (unlock_records(self) || !call->named || (parameters && !call->parameters))
        return -1;
    return 0;
}

static int look_before(FastRecorder *self, Call *call, PyObject *shown, PyObject *shown_named, PyObject *frame)
{
    if (describe_before(self, call, shown, shown_named, NULL) || note_beginning(self, call, frame))
        return -1;
    int has_gradients = is_true(PyObject_CallObject(self->is_grad_enabled, NULL));
    return has_gradients > 0 ? note_edges(self, call, shown, shown_named) : has_gradients;
}

/* Tell the gradients on which thread and device calls are made, where that has changed. */
static int note_place(FastRecorder *self, PyObject *outputs)
{
    unsigned long thread = PyThread_get_thread_ident();
    int is_known = self->has_place && thread == self->thread;
    for (Py_ssize_t i = 0; is_known && i < PyList_Size(outputs); i++) {
        long device = (long)number_of(call_method(PyList_GetItem(outputs, i), text_get_device));
        if (PyErr_Occurred())
            return -1;
        is_known = device == self->device;
    }
    if (is_known)
        return 0;
    PyObject *noted = PyObject_CallMethodObjArgs(self->gradients, text_note_place, outputs, NULL);
    Py_XDECREF(noted);
    self->has_place = 0;
    if (!noted)
        return -1;
    self->thread = thread;
    self->device = (long)number_of(call_method(PyList_GetItem(outputs, 0), text_get_device));
    if (PyErr_Occurred())
        return -1;
    self->has_place = PyList_Size(outputs) == 1;
    return 0;
}

int keep_hook(FastRecorder *self, PyObject *node, PyObject *hook)
{
    PyObject *handle = PyObject_CallMethodObjArgs(node, text_register_hook, hook, NULL);
    PyObject *kept = handle ? PyObject_CallFunctionObjArgs(self->add_handle, handle, NULL) : NULL;
    Py_XDECREF(handle);
    Py_XDECREF(kept);
    return kept ? 0 : -1;
}

/* Have a root, a pair of node and places, tell of the call's gradients. */
static int hook_root(FastRecorder *self, Call *call, PyObject *root, PyObject *outputs, PyObject *parent)
{
    PyObject *node = PyTuple_GetItem(root, 0), *places = PyTuple_GetItem(root, 1);
    PyObject *hook = make_root(self, call, parent, places, PyList_Size(outputs));
    if (!hook)
        return -1;
    int failed = keep_hook(self, node, hook);
    Py_DECREF(hook);
    return failed;
}

static PyObject *watch_by_python(FastRecorder *self, Call *call, PyObject *outputs, PyObject *parent)
{
    PyObject *method = PyObject_GetAttr(self->session, text_watch_gradients);
    PyObject *args = PyTuple_Pack(5, call->name, call->edges, call->start, outputs, parent);
    PyObject *named = PyDict_New(), *answer = NULL;
    if (method && args && named &&
        !PyDict_SetItem(named, text_is_sealed, call->is_sealed ? Py_True : Py_False) &&
        !PyDict_SetItem(named, text_is_late, call->is_late ? Py_True : Py_False))
        answer = PyObject_Call(method, args, named);
    Py_XDECREF(method);
    Py_XDECREF(args);
    Py_XDECREF(named);
    return answer;
}

/* Return the tensors whose gradients are a call's: what it returned or, if that is none, wrote into. */
static PyObject *outputs_of(FastRecorder *self, Call *call, PyObject *result)
{
    PyObject *values = values_of(result);
    PyObject *outputs = values ? tensors_of(self, values, NULL) : NULL;
    Py_XDECREF(values);
    if (!outputs || PyList_Size(outputs) || !call->given)
        return outputs;
    Py_DECREF(outputs);
    PyObject *given = tensors_of(self, call->given, call->given_named);
    outputs = given ? PyObject_CallFunctionObjArgs(self->written_tensors, given, call->start, NULL) : NULL;
    Py_XDECREF(given);
    return outputs;
}

static int watch_gradients(FastRecorder *self, Call *call, PyObject *result, PyObject *parent)
{
    int is_active = is_true(PyObject_GetAttr(self->gradients, text_is_active));
    if (is_active <= 0)
        return is_active;
    PyObject *outputs = outputs_of(self, call, result), *root = NULL;
    unsigned long long start = PyLong_AsUnsignedLongLong(call->start);
    int failed = !outputs || PyErr_Occurred();
    if (!failed)
        root = self->opened != Py_None && (call->is_sealed || call->is_late)
                   ? root_of(outputs, call->edges, start, passes_over(self, call->is_sealed))
                   : Py_NewRef(Py_None);
    failed = failed || !root;
    if (!failed && root == Py_None) {
        PyObject *answer = watch_by_python(self, call, outputs, parent);
        failed = !answer;
        Py_XDECREF(answer);
    } else if (!failed && PyTuple_Size(root)) {
        failed = note_place(self, outputs) || hook_root(self, call, root, outputs, parent);
    }
    Py_XDECREF(outputs);
    Py_XDECREF(root);
    return failed ? -1 : 0;
}

int look_after(FastRecorder *self, Call *call, PyObject *result, PyObject *parent)
{
    int failed = add_record(self, call, result, parent);
    if (!failed && call->edges)
        failed = watch_gradients(self, call, result, parent);
    return failed ? -1 : 0;
}

/* Return the name of the module call that is running in this thread, as ModuleWatcher.current does. */
static PyObject *current_module(FastRecorder *self)
{
    if (self->modules == Py_None)
        return Py_NewRef(Py_None);
    PyObject *running = running_here(self), *name = NULL;
    Py_ssize_t depth = running ? PyList_Size(running) : -1;
    if (depth >= 0)
        name = depth ? PyObject_GetAttr(PyList_GetItem(running, depth - 1), text_name) : Py_NewRef(Py_None);
    Py_XDECREF(running);
    return name;
}

/* Forget what is known of tensors, should a function have written into some unseen. */
static int note_run(FastRecorder *self, long flags)
{
    if (!(flags & WRITES_UNSEEN))
        return 0;
    PyObject *forgotten = PyObject_CallMethodObjArgs(self->recorder, text_forget_tensors, NULL);
    Py_XDECREF(forgotten);
    return forgotten ? 0 : -1;
}

/* Record a call that has raised, which stays raised unless an interrupt comes meanwhile. */
static void add_raised(FastRecorder *self, Call *call, long flags)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return;
    PyObject *kind, *value, *trace, *added = NULL;
    PyErr_Fetch(&kind, &value, &trace);
    if (!note_run(self, flags))
        added = PyObject_CallFunctionObjArgs(self->add_raised, self->session, call->name,
                                             call->inputs ? call->inputs : Py_None,
                                             call->named ? call->named : Py_None, NULL);
    if (added) {
        PyErr_Restore(kind, value, trace);
        Py_DECREF(added);
        return;
    }
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

/* Run a function that counts, and record it. */
static PyObject *watch(FastRecorder *self, PyObject *full_name, long flags, PyObject *function, PyObject *args,
                       PyObject *kwargs, PyObject *frame)
{
    Call call = {.is_sealed = 1};
    PyObject *spelled = NULL, *result = NULL, *shown = args, *shown_named = kwargs;
    if (flags & IS_PYTHON && kwargs && PyDict_Size(kwargs)) {
        spelled = PyObject_CallFunctionObjArgs(self->as_spelled, function, args, kwargs, frame, NULL);
        if (!spelled)
            return NULL;
        shown = PyTuple_GetItem(spelled, 0);
        shown_named = PyTuple_GetItem(spelled, 1);
    }
    call.given = shown;
    call.given_named = shown_named;
    int is_lost = begin_call(self, &call, full_name);
    if (!is_lost && look_before(self, &call, shown, shown_named, frame))
        is_lost = report_failure(self, call.name);
    if (!is_lost && !(result = PyObject_Call(function, args, kwargs)))
        add_raised(self, &call, flags);
    if (result)
        is_lost = note_run(self, flags);
    if (result && !is_lost) {
        PyObject *parent = current_module(self);
        if (!parent || look_after(self, &call, result, parent))
            is_lost = report_failure(self, call.name);
        Py_XDECREF(parent);
    }
    if (is_lost)
        Py_CLEAR(result);
    Py_XDECREF(spelled);
    forget(&call);
    return result;
}

int is_usual_moment(FastRecorder *self)
{
    int is_paused = is_true(PyObject_GetAttr(self->session, text_is_paused));
    if (is_paused || PySet_Size(self->inside_custom))
        return is_paused < 0 || PyErr_Occurred() ? -1 : 0;
    long long task = number_of(PyObject_CallObject(self->current_pass, NULL));
    if (task != -1 || PyErr_Occurred())
        return PyErr_Occurred() ? -1 : 0;
    return is_alone(self);
}

/* Whether all types are those of plain tensors. */
static int are_plain(FastRecorder *self, PyObject *types)
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
static PyObject *watch_known(FastRecorder *self, PyObject *known, PyObject *function, PyObject *args,
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
        is_left_out = written == Py_None;
        full_name = written && !is_left_out ? PyObject_GetAttr(written, text_full_name) : NULL;
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

/* Find what is noted of a function; NULL where it is for Python. A function that comes for the first time is
 * noted before it runs, and not by Python that runs it: what torch warns of once would name our line. */
static int find_known(FastRecorder *self, PyObject *function, PyObject **known)
{
    *known = PyDict_GetItemWithError(self->functions, function);
    if (!*known && PyErr_Occurred()) {
        /* What cannot be looked up is nothing that torch itself hands over. */
        PyErr_Clear();
        return 0;
    }
    if (!*known) {
        PyObject *noted = PyObject_CallFunctionObjArgs(self->note, function, NULL);
        Py_XDECREF(noted);
        if (!noted)
            return -1;
        *known = PyDict_GetItemWithError(self->functions, function);
    }
    if (*known == Py_False)
        *known = NULL;
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *answer_torch(PyObject *object, PyObject *given, PyObject *named)
{
    FastRecorder *self = (FastRecorder *)object;
    Py_ssize_t count = PyTuple_Size(given);
    if (!self->slow)
        return PyErr_Format(PyExc_RuntimeError, "this fast recorder is no mode's");
    if (count < 3 || count > 4 || (named && PyDict_Size(named)))
        return PyObject_Call(self->slow, given, named);
    PyObject *function = PyTuple_GetItem(given, 0), *args = PyTuple_GetItem(given, 2);
    PyObject *kwargs = count == 4 ? PyTuple_GetItem(given, 3) : NULL;
    if (kwargs == Py_None)
        kwargs = NULL;
    PyObject *known;
    if (find_known(self, function, &known))
        return NULL;
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
