/* A fast recorder: the parts that the calls of one step are recorded with, and what Python asks of it.
 *
 *     FastRecorder(parts)                            records the calls of one step
 *     fast_recorder.watch(mode, slow, functions, …)   is from now on what torch asks in place of a mode
 *     fast_recorder(function, types, args, kwargs)    runs a function and records it (_calls.c)
 *     fast_recorder.watch_modules(parts)              -> what torch calls before and after each module (_modules.c)
 *     fast_recorder.on_root(hook, into, out_of)       takes the gradients of a call's root; False: it takes Python
 *     fast_recorder.on_node(hook, into, out_of)       the same for a node behind it (_gradients.c)
 *     fast_recorder.draft_all(values, name)           describes values (_values.c); and draft_named(values, name)
 *
 * FunctionWatcher.__torch_function__, Session.watch_call, ModuleWatcher, Recorder and GradientWatcher have
 * the same meaning, say it in Python, and say why; whatever is not usual is left to them before anything
 * has been done. A captured step on a GPU waits for what the host does here.
 */

#include "_calls.h"

#include <structmember.h>

#define DEFINE(text) PyObject *text_##text;
TEXTS(DEFINE)

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
int is_true(PyObject *answer)
{
    int is_so = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return is_so;
}

/* Turn an answer, which is taken over, into a number; -1 on failure, or if it is that. */
long long number_of(PyObject *answer)
{
    long long number = answer ? PyLong_AsLongLong(answer) : -1;
    Py_XDECREF(answer);
    return number;
}

PyObject *call_method(PyObject *object, PyObject *method)
{
    return PyObject_CallMethodObjArgs(object, method, NULL);
}

int asks(PyObject *object, PyObject *method)
{
    return is_true(call_method(object, method));
}

/* Add one to a number that an object holds, and return it; -1 on failure. */
long long increase(PyObject *object, PyObject *attribute)
{
    long long number = number_of(PyObject_GetAttr(object, attribute)) + 1;
    return PyErr_Occurred() || give(object, attribute, PyLong_FromLongLong(number)) ? -1 : number;
}

/* Whether no mode or transform would see what a tensor is read with; -1 on failure. */
int is_alone(FastRecorder *self)
{
    int modes = is_true(PyObject_CallObject(self->count_dispatch_modes, NULL));
    if (modes)
        return modes < 0 ? -1 : 0;
    int transforms = is_true(PyObject_CallObject(self->is_transforming, NULL));
    return transforms < 0 ? -1 : !transforms;
}

int passes_over(FastRecorder *self, int is_sealed)
{
    return is_sealed && self->keep == Py_None;
}

int lock(PyObject *lock)
{
    PyObject *answer = call_method(lock, text_acquire);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

int unlock(PyObject *lock)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *answer = call_method(lock, text_release);
    Py_XDECREF(answer);
    if (kind)
        PyErr_Restore(kind, value, trace);
    return PyErr_Occurred() ? -1 : 0;
}

int lock_records(FastRecorder *self)
{
    return lock(self->lock);
}

/* Measure and write what is kept of values. What was raised before stays raised, but not in place of an
 * interrupt: that waits until files are written. */
static void finish_values(FastRecorder *self)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    int failed = pool_finish((HostWritePool *)self->pool);
    if (kind && (!failed || PyErr_ExceptionMatches(PyExc_Exception)))
        PyErr_Restore(kind, value, trace);
    else {
        Py_XDECREF(kind);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    }
}

int unlock_records(FastRecorder *self)
{
    self->is_alone = 0;
    if (self->pool != Py_None)
        finish_values(self);
    return unlock(self->lock);
}

PyObject *begin_own(FastRecorder *self)
{
    PyObject *guard = PyObject_CallObject(self->without_functions, NULL);
    PyObject *entered = guard ? call_method(guard, text___enter__) : NULL;
    if (!entered)
        Py_CLEAR(guard);
    Py_XDECREF(entered);
    return guard;
}

int end_own(PyObject *guard)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *left = PyObject_CallMethodObjArgs(guard, text___exit__, Py_None, Py_None, Py_None, NULL);
    Py_XDECREF(left);
    Py_DECREF(guard);
    if (kind)
        PyErr_Restore(kind, value, trace);
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *backward_name(FastRecorder *self, PyObject *name)
{
    PyObject *known = PyDict_GetItemWithError(self->backward_names, name);
    if (known || PyErr_Occurred())
        return Py_XNewRef(known);
    known = PyObject_CallFunctionObjArgs(self->backward_of, name, NULL);
    if (known && PyDict_SetItem(self->backward_names, name, known))
        Py_CLEAR(known);
    return known;
}

/* Count a failure of ours; the user's call goes on. An interrupt is no failure: -1; nor is what else a
 * signal's handler raised, which the recorder tells by its traceback and lets go on. */
int report_failure(FastRecorder *self, PyObject *name)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    if (trace)
        PyException_SetTraceback(value, trace);
    PyObject *told = PyObject_CallMethodObjArgs(self->recorder, text_fail, name, value, NULL);
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_XDECREF(told);
    return told ? 0 : -1;
}

typedef PyObject *(*Describe)(FastRecorder *, PyObject *, PyObject *, const char *);

static PyObject *draft_with_lock(PyObject *object, PyObject *values, PyObject *name, Describe describe)
{
    FastRecorder *self = (FastRecorder *)object;
    if (lock_records(self))
        return NULL;
    PyObject *drafts = describe(self, values, name, NULL);
    if (unlock_records(self))
        Py_CLEAR(drafts);
    return drafts;
}

static PyObject *draft_all_of(PyObject *object, PyObject *args)
{
    PyObject *values, *name;
    if (!PyArg_ParseTuple(args, "OU", &values, &name))
        return NULL;
    if (!PyTuple_CheckExact(values) && !PyList_CheckExact(values))
        return PyErr_Format(PyExc_TypeError, "wanted a tuple or a list");
    return draft_with_lock(object, values, name, draft_all);
}

static PyObject *draft_named_of(PyObject *object, PyObject *args)
{
    PyObject *values, *name;
    if (!PyArg_ParseTuple(args, "O!U", &PyDict_Type, &values, &name))
        return NULL;
    return draft_with_lock(object, values, name, draft_named);
}

static int clear_fast_recorder(PyObject *object)
{
    FastRecorder *self = (FastRecorder *)object;
    PARTS(CLEAR)
    MODULE_PARTS(CLEAR)
    MODE_PARTS(CLEAR)
    Py_CLEAR(self->backward_names);
    return 0;
}

static int visit_fast_recorder(PyObject *object, visitproc visit, void *arg)
{
    FastRecorder *self = (FastRecorder *)object;
    PARTS(VISIT)
    MODULE_PARTS(VISIT)
    MODE_PARTS(VISIT)
    Py_VISIT(self->backward_names);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

/* Free an object by what its type says of its parts. */
void free_with_parts(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    inquiry clear = (inquiry)PyType_GetSlot(type, Py_tp_clear);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    PyObject_GC_UnTrack(object);
    clear(object);
    release(object);
    Py_DECREF(type);
}

PyObject *keep_given(PyObject *args, PyObject **const *kept, Py_ssize_t count)
{
    if (PyTuple_Size(args) != count)
        return PyErr_Format(PyExc_TypeError, "wanted %zd objects", count);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_XDECREF(*kept[i]);
        *kept[i] = Py_NewRef(PyTuple_GetItem(args, i));
    }
    Py_RETURN_NONE;
}

int take_part(PyObject *parts, const char *name, PyObject **part)
{
    PyObject *found = PyDict_GetItemString(parts, name);
    if (!found) {
        PyErr_Format(PyExc_KeyError, "%s", name);
        return -1;
    }
    *part = Py_NewRef(found);
    return 0;
}

/* The same for a number. */
static int take_number(PyObject *parts, const char *name, double *number)
{
    PyObject *found = NULL;
    if (take_part(parts, name, &found))
        return -1;
    *number = PyFloat_AsDouble(found);
    Py_DECREF(found);
    return PyErr_Occurred() ? -1 : 0;
}

static int take_parts(FastRecorder *self, PyObject *parts)
{
    double deepest, many, batch, with_checksums;
#define TAKE(part)                                                                                   \
    if (take_part(parts, #part, &self->part))                                                        \
        return -1;
    PARTS(TAKE)
    if (take_number(parts, "deepest", &deepest) || take_number(parts, "many", &many) ||
        take_number(parts, "batch", &batch) || take_number(parts, "with_checksums", &with_checksums))
        return -1;
    self->with_checksums = with_checksums != 0;
    self->deepest = (Py_ssize_t)deepest;
    self->many = (Py_ssize_t)many;
    self->batch = (Py_ssize_t)batch;
    return 0;
}

static PyObject *make_fast_recorder(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *parts;
    if ((kwargs && PyDict_Size(kwargs)) || !PyArg_ParseTuple(args, "O!", &PyDict_Type, &parts))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "no named arguments");
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    FastRecorder *self = (FastRecorder *)allocate(type, 0);
    if (!self)
        return NULL;
    self->backward_names = PyDict_New();
    if (!self->backward_names || take_parts(self, parts)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *watch_mode(PyObject *object, PyObject *args)
{
    FastRecorder *self = (FastRecorder *)object;
    PyObject *mode, *slow, *functions, *note, *as_written, *is_machinery;
    if (!PyArg_ParseTuple(args, "OOO!OOOp", &mode, &slow, &PyDict_Type, &functions, &note, &as_written,
                          &is_machinery, &self->is_distributed))
        return NULL;
#define KEEP(part)                                                                                   \
    Py_XDECREF(self->part);                                                                          \
    self->part = Py_NewRef(part);
    MODE_PARTS(KEEP)
    Py_RETURN_NONE;
}

static PyMethodDef fast_recorder_methods[] = {
    {"watch", watch_mode, METH_VARARGS, "Be what torch asks in place of a mode."},
    {"watch_modules", watch_modules, METH_O, "Return what torch calls before and after each module."},
    {"on_root", on_root, METH_VARARGS, "Record the gradients of the root that runs; False: it takes Python."},
    {"on_node", on_node, METH_VARARGS, "The same for a node behind the root."},
    {"draft_all", draft_all_of, METH_VARARGS, "Describe the values of a tuple or a list."},
    {"draft_named", draft_named_of, METH_VARARGS, "Describe the values of a dict."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef fast_recorder_members[] = {
    {"__self__", T_OBJECT, offsetof(FastRecorder, mode), READONLY, "The mode whose method this is."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot fast_recorder_slots[] = {
    {Py_tp_new, make_fast_recorder},         {Py_tp_dealloc, free_with_parts}, {Py_tp_traverse, visit_fast_recorder},
    {Py_tp_clear, clear_fast_recorder},      {Py_tp_call, answer_torch},       {Py_tp_members, fast_recorder_members},
    {Py_tp_methods, fast_recorder_methods},
    {Py_tp_doc, "What torch asks in place of a mode's own method."}, {0, NULL},
};

static PyType_Spec fast_recorder_spec = {
    "tensorprobe.capture._calls.FastRecorder", sizeof(FastRecorder), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, fast_recorder_slots,
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
    if (begin_graph() || begin_modules() || begin_gradients())
        return NULL;
    begin_frames();
    PyObject *made = PyModule_Create(&module);
    PyObject *fast_recorder_class = made ? PyType_FromSpec(&fast_recorder_spec) : NULL;
    if (made && (!fast_recorder_class || PyModule_AddObjectRef(made, "FastRecorder", fast_recorder_class) ||
                 PyModule_AddFunctions(made, draft_methods) || PyModule_AddFunctions(made, graph_methods) ||
                 PyModule_AddFunctions(made, frame_methods) || begin_pool(made)))
        Py_CLEAR(made);
    Py_XDECREF(fast_recorder_class);
    return made;
}
