/* What a node of the autograd graph calls in a backward pass, for the calls that have one such node.
 *
 *     Hook(watcher, call, number, outputs, inputs)    called with the gradients of inputs and outputs
 *
 * gradients.py has the same meaning and says why. Whatever is not usual is handed to its
 * `GradientWatcher.on_backward`: calls with several nodes, a second pass, views that were written into,
 * dispatch modes, a backward pass that is itself recorded.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* From gradients.py. */
static PyObject *current_pass, *no_pass, *count_modes, *is_grad_enabled, *without_functions;

#define TEXTS(X)                                                                                     \
    X(on_backward) X(_on_failure) X(_is_active) X(_open) X(nodes) X(missing) X(task) X(views)        \
    X(of_outputs) X(of_inputs) X(done) X(name) X(parent) X(detach) X(__enter__) X(__exit__)
#define DECLARE(text) static PyObject *text_##text;
TEXTS(DECLARE)

typedef struct {
    PyObject_HEAD
    PyObject *watcher, *call, *number, *outputs, *inputs;
} Hook;

/* Whether an answer, which is taken over, is true; -1 on failure. */
static int is_true(PyObject *answer)
{
    int is_so = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return is_so;
}

/* Whether an attribute equals a value; -1 on failure. */
static int equals(PyObject *object, PyObject *attribute, PyObject *value)
{
    PyObject *found = PyObject_GetAttr(object, attribute);
    int is_so = found ? PyObject_RichCompareBool(found, value, Py_EQ) : -1;
    Py_XDECREF(found);
    return is_so;
}

/* Whether an attribute counts as true. */
static int has(PyObject *object, PyObject *attribute)
{
    return is_true(PyObject_GetAttr(object, attribute));
}

/* Whether other calls have some of their gradients in this pass; they may have to be ended first. */
static int has_open_calls(PyObject *watcher, PyObject *task)
{
    PyObject *by_pass = PyObject_GetAttr(watcher, text__open);
    PyObject *opened = by_pass ? PyDict_GetItemWithError(by_pass, task) : NULL;
    int is_so = opened ? PyObject_IsTrue(opened) : PyErr_Occurred() ? -1 : 0;
    Py_XDECREF(by_pass);
    return is_so;
}

/* Whether one node's gradients are all that there is to know, and nobody must be asked. */
static int is_usual(Hook *hook, PyObject *task, PyObject *out_of)
{
    PyObject *one = PyLong_FromLong(1);
    int is_so = one ? equals(hook->call, text_nodes, one) : -1;
    Py_XDECREF(one);
    if (is_so > 0)
        is_so = equals(hook->call, text_task, no_pass);
    if (is_so <= 0 || (is_so = has(hook->watcher, text__is_active)) <= 0)
        return is_so;
    int is_other = has_open_calls(hook->watcher, task);
    if (!is_other)
        is_other = has(hook->call, text_views);
    if (!is_other)
        is_other = is_true(PyObject_CallObject(count_modes, NULL));
    if (!is_other)
        is_other = is_true(PyObject_CallObject(is_grad_enabled, NULL));
    if (is_other)
        return is_other < 0 ? -1 : 0;
    Py_ssize_t count = PySequence_Size(hook->outputs);
    for (Py_ssize_t i = 0; count > 1 && i < count; i++) {
        /* An output without a gradient may say something of the next one. */
        PyObject *output = PySequence_GetItem(hook->outputs, i);
        Py_ssize_t number = output ? PyLong_AsSsize_t(PyTuple_GetItem(output, 0)) : -1;
        Py_XDECREF(output);
        PyObject *gradient = number < 0 ? NULL : PyTuple_GetItem(out_of, number);
        if (!gradient || gradient == Py_None)
            return gradient ? 0 : -1;
    }
    return count < 0 ? -1 : 1;
}

/* Return a gradient after its change, if there is one; a new reference. */
static PyObject *changed(PyObject *gradient, PyObject *change)
{
    return change == Py_None ? Py_NewRef(gradient) : PyObject_CallFunctionObjArgs(change, gradient, NULL);
}

static int collect_outputs(Hook *hook, PyObject *out_of, PyObject *found)
{
    Py_ssize_t count = PySequence_Size(hook->outputs);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *output = PySequence_GetItem(hook->outputs, i);
        if (!output)
            return -1;
        PyObject *gradient = PyTuple_GetItem(out_of, PyLong_AsSsize_t(PyTuple_GetItem(output, 0)));
        Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GetItem(output, 1));
        PyObject *before = gradient ? PyList_GetItem(found, position) : NULL;
        int failed = !before;
        if (before == Py_None && gradient != Py_None) {
            PyObject *made = changed(gradient, PyTuple_GetItem(output, 2));
            failed = !made || PyList_SetItem(found, position, made);
        }
        Py_DECREF(output);
        if (failed)
            return -1;
    }
    return 0;
}

/* Add a gradient to those of one input. */
static int add_part(PyObject *found, Py_ssize_t position, PyObject *gradient)
{
    PyObject *before = PyList_GetItem(found, position);
    if (!before)
        return -1;
    if (before == Py_None)
        return PyList_SetItem(found, position, Py_NewRef(gradient));
    PyObject *detached = PyObject_CallMethodObjArgs(before, text_detach, NULL);
    PyObject *sum = detached ? PyNumber_Add(detached, gradient) : NULL;
    Py_XDECREF(detached);
    return sum ? PyList_SetItem(found, position, sum) : -1;
}

static int collect_inputs(Hook *hook, PyObject *into, PyObject *found)
{
    Py_ssize_t count = PySequence_Size(hook->inputs);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *input = PySequence_GetItem(hook->inputs, i);
        if (!input)
            return -1;
        PyObject *given = PyTuple_GetItem(into, PyLong_AsSsize_t(PyTuple_GetItem(input, 0)));
        int failed = !given;
        if (given && given != Py_None) {
            PyObject *positions = PyTuple_GetItem(input, 1);
            PyObject *gradient = changed(given, PyTuple_GetItem(input, 2));
            Py_ssize_t places = gradient ? PyList_Size(positions) : -1;
            failed = places < 0;
            for (Py_ssize_t place = 0; !failed && place < places; place++)
                failed = add_part(found, PyLong_AsSsize_t(PyList_GetItem(positions, place)), gradient);
            Py_XDECREF(gradient);
        }
        Py_DECREF(input);
        if (failed)
            return -1;
    }
    return 0;
}

/* Take an attribute out of a call, and leave something else there. */
static PyObject *take_out(PyObject *call, PyObject *attribute, PyObject *instead)
{
    PyObject *value = PyObject_GetAttr(call, attribute);
    if (value && PyObject_SetAttr(call, attribute, instead))
        Py_CLEAR(value);
    return value;
}

static int collect_and_tell(Hook *hook, PyObject *task, PyObject *into, PyObject *out_of)
{
    PyObject *call = hook->call, *zero = PyLong_FromLong(0);
    int failed = !zero || PyObject_SetAttr(call, text_task, task) ||
                 PyObject_SetAttr(call, text_missing, zero);
    Py_XDECREF(zero);
    PyObject *of_outputs = failed ? NULL : take_out(call, text_of_outputs, Py_None);
    PyObject *of_inputs = of_outputs ? take_out(call, text_of_inputs, Py_None) : NULL;
    PyObject *done = of_inputs ? take_out(call, text_done, Py_None) : NULL;
    failed = !done || collect_outputs(hook, out_of, of_outputs) || collect_inputs(hook, into, of_inputs);
    if (!failed && done != Py_None) {
        PyObject *name = PyObject_GetAttr(call, text_name), *parent = PyObject_GetAttr(call, text_parent);
        PyObject *told = name && parent
                             ? PyObject_CallFunctionObjArgs(done, name, parent, of_outputs, of_inputs, NULL)
                             : NULL;
        failed = !told;
        Py_XDECREF(name);
        Py_XDECREF(parent);
        Py_XDECREF(told);
    }
    Py_XDECREF(of_outputs);
    Py_XDECREF(of_inputs);
    Py_XDECREF(done);
    return failed ? -1 : 0;
}

/* Tell of the exception that is set, as Python's `except Exception` would; 0 if that worked. */
static int tell_failure(Hook *hook)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *name = PyObject_GetAttr(hook->call, text_name);
    PyObject *tell = name ? PyObject_GetAttr(hook->watcher, text__on_failure) : NULL;
    PyObject *told = tell ? PyObject_CallFunctionObjArgs(tell, name, value, NULL) : NULL;
    int failed = !told;
    Py_XDECREF(name);
    Py_XDECREF(tell);
    Py_XDECREF(told);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return failed;
}

/* Do the usual: no function mode sees what is done with the gradients. */
static PyObject *hand_over(Hook *hook, PyObject *task, PyObject *into, PyObject *out_of)
{
    PyObject *guard = PyObject_CallObject(without_functions, NULL);
    PyObject *entered = guard ? PyObject_CallMethodObjArgs(guard, text___enter__, NULL) : NULL;
    int failed = !entered || collect_and_tell(hook, task, into, out_of);
    if (entered) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyObject *left =
            PyObject_CallMethodObjArgs(guard, text___exit__, Py_None, Py_None, Py_None, NULL);
        failed = failed || !left;
        Py_XDECREF(left);
        if (type)
            PyErr_Restore(type, value, trace);
    }
    Py_XDECREF(entered);
    Py_XDECREF(guard);
    if (failed && tell_failure(hook))
        return NULL;
    return Py_NewRef(Py_None);
}

static PyObject *call_hook(PyObject *self, PyObject *args, PyObject *kwargs)
{
    Hook *hook = (Hook *)self;
    PyObject *into, *out_of;
    if (kwargs && PyDict_Size(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "a hook takes no named arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &into, &PyTuple_Type, &out_of))
        return NULL;
    if (!hook->call || !hook->watcher)
        /* The collector has taken it apart. */
        return Py_NewRef(Py_None);
    PyObject *task = PyObject_CallObject(current_pass, NULL), *answer = NULL;
    int usual = task ? is_usual(hook, task, out_of) : -1;
    if (usual > 0)
        answer = hand_over(hook, task, into, out_of);
    else if (!usual)
        answer = PyObject_CallMethodObjArgs(hook->watcher, text_on_backward, self, into, out_of, NULL);
    else if (!tell_failure(hook))
        answer = Py_NewRef(Py_None);
    Py_XDECREF(task);
    return answer;
}

static PyObject *make_hook(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *given[5];
    if (kwargs && PyDict_Size(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "a hook takes no named arguments");
        return NULL;
    }
    if (!current_pass) {
        PyErr_SetString(PyExc_TypeError, "wanted set_up first");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OOOOO", given, given + 1, given + 2, given + 3, given + 4))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Hook *hook = (Hook *)allocate(type, 0);
    if (!hook)
        return NULL;
    hook->watcher = Py_NewRef(given[0]);
    hook->call = Py_NewRef(given[1]);
    hook->number = Py_NewRef(given[2]);
    hook->outputs = Py_NewRef(given[3]);
    hook->inputs = Py_NewRef(given[4]);
    return (PyObject *)hook;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Hook *hook = (Hook *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(hook->watcher);
    Py_VISIT(hook->call);
    Py_VISIT(hook->number);
    Py_VISIT(hook->outputs);
    Py_VISIT(hook->inputs);
    return 0;
}

static int clear(PyObject *self)
{
    Hook *hook = (Hook *)self;
    Py_CLEAR(hook->watcher);
    Py_CLEAR(hook->call);
    Py_CLEAR(hook->number);
    Py_CLEAR(hook->outputs);
    Py_CLEAR(hook->inputs);
    return 0;
}

static void deallocate(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"call", T_OBJECT_EX, offsetof(Hook, call), READONLY, "The call whose node this is."},
    {"number", T_OBJECT_EX, offsetof(Hook, number), READONLY, "The node's sequence number."},
    {"outputs", T_OBJECT_EX, offsetof(Hook, outputs), READONLY, "The outputs whose gradients come in."},
    {"inputs", T_OBJECT_EX, offsetof(Hook, inputs), READONLY, "The inputs whose gradients leave."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, make_hook},        {Py_tp_call, call_hook}, {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},          {Py_tp_dealloc, deallocate}, {Py_tp_members, members},
    {Py_tp_doc, "What a node calls in a backward pass."}, {0, NULL},
};

static PyType_Spec spec = {
    "tensorprobe.capture._hooks.Hook", sizeof(Hook), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots,
};

static PyObject *set_up(PyObject *self, PyObject *args)
{
    PyObject *given[5];
    PyObject **kept[] = {&current_pass, &no_pass, &count_modes, &is_grad_enabled, &without_functions};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOO", given, given + 1, given + 2, given + 3, given + 4))
        return NULL;
    for (int i = 0; i < 5; i++) {
        Py_XDECREF(*kept[i]);
        *kept[i] = Py_NewRef(given[i]);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, "Take the functions of torch that gradients.py asks."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_hooks", "What a node calls in a backward pass.", -1, methods, NULL, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC PyInit__hooks(void)
{
#define INTERN(text)                                                                                 \
    if (!(text_##text = PyUnicode_InternFromString(#text)))                                          \
        return NULL;
    TEXTS(INTERN)
    PyObject *made = PyModule_Create(&module);
    PyObject *hook_class = made ? PyType_FromSpec(&spec) : NULL;
    if (made && (!hook_class || PyModule_AddObjectRef(made, "Hook", hook_class)))
        Py_CLEAR(made);
    Py_XDECREF(hook_class);
    return made;
}
