/* The gradients of a module's parameters.
 *
 * As ModuleWatcher does it, which says why.
 */

#include "_calls.h"

/* What a parameter calls in a backward pass: it is that of this name, of so many of its module. */
typedef struct {
    PyObject_HEAD
    Gate *gate;
    PyObject *base, *key;
    Py_ssize_t count;
} ParameterHook;

static PyObject *parameter_hook_class;

/* Hook one parameter, unless that has been done. */
static int hook_parameter(Gate *self, PyObject *parameter, PyObject *base, PyObject *key, Py_ssize_t count)
{
    PyObject *hooks = PyObject_GetAttr(parameter, text__backward_hooks);
    if (hooks == Py_None) {
        Py_DECREF(hooks);
        hooks = PyObject_CallObject(self->ordered_dict, NULL);
        if (hooks && PyObject_SetAttr(parameter, text__backward_hooks, hooks))
            Py_CLEAR(hooks);
    }
    PyObject *number = hooks ? PyLong_FromVoidPtr(hooks) : NULL;
    PyObject *place = number ? PyTuple_Pack(3, base, key, number) : NULL;
    int is_known = place ? PySet_Contains(self->hooked, place) : -1;
    int failed = is_known < 0;
    if (!is_known) {
        allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)parameter_hook_class, Py_tp_alloc);
        ParameterHook *hook = (ParameterHook *)allocate((PyTypeObject *)parameter_hook_class, 0);
        if (hook) {
            hook->gate = (Gate *)Py_NewRef(self);
            hook->base = Py_NewRef(base);
            hook->key = Py_NewRef(key);
            hook->count = count;
        }
        PyObject *both = hook ? PyTuple_Pack(2, hooks, hook) : NULL;
        failed = !both || PySet_Add(self->hooked, place) || PyList_Append(self->parameter_hooks, both) ||
                 PyObject_SetItem(hooks, (PyObject *)hook, (PyObject *)hook);
        Py_XDECREF(both);
        Py_XDECREF(hook);
    }
    Py_XDECREF(place);
    Py_XDECREF(number);
    Py_XDECREF(hooks);
    return failed ? -1 : 0;
}

/* Hook those parameters that get a gradient, as ModuleWatcher._hook_parameters does. */
static int hook_wanted(Gate *self, PyObject *own, PyObject *base)
{
    PyObject *wanted = PyDict_New(), *key, *parameter;
    Py_ssize_t at = 0;
    int failed = !wanted;
    while (!failed && PyDict_Next(own, &at, &key, &parameter)) {
        int gets_one = is_true(PyObject_GetAttr(parameter, text_requires_grad));
        failed = gets_one < 0 || (gets_one && PyDict_SetItem(wanted, key, parameter));
    }
    at = 0;
    while (!failed && PyDict_Next(wanted, &at, &key, &parameter))
        failed = hook_parameter(self, parameter, base, key, PyDict_Size(wanted));
    Py_XDECREF(wanted);
    return failed ? -1 : 0;
}

int hook_parameters(Gate *self, PyObject *own, PyObject *path, PyObject *class_name)
{
    PyObject *base = PyObject_CallFunctionObjArgs(self->gradients_of, path, class_name, NULL);
    if (!base || lock(self->modules_lock)) {
        Py_XDECREF(base);
        return -1;
    }
    /* While this call was looked at: nobody would take the hooks away again. */
    int is_closed = is_true(PyObject_GetAttr(self->modules, text__is_closed));
    int failed = is_closed ? is_closed < 0 : hook_wanted(self, own, base);
    failed = unlock(self->modules_lock) || failed;
    Py_DECREF(base);
    return failed ? -1 : 0;
}

/* Put what has come of a module's gradients at the end of the recorder's line. */
static int add_parameter_gradients(Gate *self, PyObject *base, PyObject *gathered)
{
    /* A signal's handler that stops the capture takes them away from who is at it. */
    int is_there = PyDict_Contains(self->parameter_gradients, base);
    if (is_there <= 0)
        return is_there;
    Py_INCREF(gathered);
    PyObject *nothing = PyTuple_New(0);
    int failed = !nothing || PyDict_DelItem(self->parameter_gradients, base) || lock_records(self);
    if (!failed) {
        failed = queue_record(self, make_record(self, PyTuple_GetItem(gathered, 0), NULL, NULL,
                                                PyTuple_GetItem(gathered, 1), NULL, Py_None, nothing, Py_None));
        failed = unlock_records(self) || failed;
    }
    Py_XDECREF(nothing);
    Py_DECREF(gathered);
    return failed ? -1 : 0;
}

/* Return (name of the record, gradients by parameter) that a gradient belongs to. */
static PyObject *gathered_for(Gate *self, PyObject *base, PyObject *key)
{
    PyObject *gathered = PyDict_GetItemWithError(self->parameter_gradients, base);
    if (gathered) {
        int is_there = PyDict_Contains(PyTuple_GetItem(gathered, 1), key);
        if (!is_there)
            return Py_NewRef(gathered);
        /* The next backward pass has come, and the last lacked some parameters. */
        if (is_there < 0 || add_parameter_gradients(self, base, gathered))
            return NULL;
    }
    PyObject *number = PyErr_Occurred() ? NULL : number_call(self, base), *arrived = PyDict_New();
    PyObject *name = NULL, *made = NULL;
    int is_first = number ? !PyObject_IsTrue(number) : 0;
    if (number)
        name = is_first ? Py_NewRef(base) : PyUnicode_FromFormat("%U.%S", base, number);
    made = name && arrived ? PyTuple_Pack(2, name, arrived) : NULL;
    if (made && PyDict_SetItem(self->parameter_gradients, base, made))
        Py_CLEAR(made);
    Py_XDECREF(number);
    Py_XDECREF(arrived);
    Py_XDECREF(name);
    return made;
}

static int take_parameter_gradient(ParameterHook *hook, PyObject *gradient)
{
    Gate *self = hook->gate;
    PyObject *gathered = gathered_for(self, hook->base, hook->key);
    PyObject *values = gathered ? PyDict_New() : NULL, *drafts = NULL;
    if (values && !PyDict_SetItem(values, hook->key, gradient) && !lock_records(self)) {
        drafts = draft_named(self, values, PyTuple_GetItem(gathered, 0), NULL);
        if (unlock_records(self))
            Py_CLEAR(drafts);
    }
    PyObject *arrived = drafts ? PyTuple_GetItem(gathered, 1) : NULL;
    int failed = !drafts || PyDict_Update(arrived, drafts);
    if (!failed && PyDict_Size(arrived) == hook->count)
        failed = add_parameter_gradients(self, hook->base, gathered);
    Py_XDECREF(gathered);
    Py_XDECREF(values);
    Py_XDECREF(drafts);
    return failed ? -1 : 0;
}

static PyObject *call_parameter_hook(PyObject *object, PyObject *given, PyObject *named)
{
    ParameterHook *hook = (ParameterHook *)object;
    Gate *self = hook->gate;
    PyObject *gradient;
    (void)named;
    if (!PyArg_ParseTuple(given, "O", &gradient))
        return NULL;
    PyObject *guard = begin_own(self);
    int failed = !guard || lock(self->modules_lock);
    if (!failed) {
        failed = take_parameter_gradient(hook, gradient);
        failed = unlock(self->modules_lock) || failed;
    }
    failed = (guard && end_own(guard)) || failed;
    if (failed && report_failure(self, hook->base))
        return NULL;
    Py_RETURN_NONE;
}

static int visit_parameter_hook(PyObject *object, visitproc visit, void *arg)
{
    ParameterHook *hook = (ParameterHook *)object;
    Py_VISIT(hook->gate);
    Py_VISIT(hook->base);
    Py_VISIT(hook->key);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int clear_parameter_hook(PyObject *object)
{
    ParameterHook *hook = (ParameterHook *)object;
    Py_CLEAR(hook->gate);
    Py_CLEAR(hook->base);
    Py_CLEAR(hook->key);
    return 0;
}

static PyType_Slot parameter_hook_slots[] = {
    {Py_tp_dealloc, free_with_parts},          {Py_tp_traverse, visit_parameter_hook},
    {Py_tp_clear, clear_parameter_hook}, {Py_tp_call, call_parameter_hook},
    {Py_tp_doc, "What a parameter calls in a backward pass."}, {0, NULL},
};

static PyType_Spec parameter_hook_spec = {
    "tensorprobe.capture._calls.ParameterHook", sizeof(ParameterHook), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, parameter_hook_slots,
};

int begin_parameters(void)
{
    parameter_hook_class = PyType_FromSpec(&parameter_hook_spec);
    return parameter_hook_class ? 0 : -1;
}
