/* The usual call of a module.
 *
 *     fast_recorder.watch_modules(parts)  -> (before, after), what torch calls before and after every module
 *
 * As ModuleWatcher does it, which says why, and does whatever is not usual: of its parts `before` and
 * `after` are its own hooks.
 */

#include "_calls.h"

#include <structmember.h>

/* What `kind_of` in modules.py tells of a class. */
enum { CLASS_NAME, IS_SHARDED, SEALED_FORWARD };

/* What torch calls; `slow` is what it would call if nothing were compiled. */
typedef struct {
    PyObject_HEAD
    FastRecorder *fast_recorder;
    PyObject *watcher, *slow;
    int is_after;
} ModuleHook;

static PyObject *module_hook_class;

/* Return what is known of a module's class, borrowed. */
static PyObject *kind_of(FastRecorder *self, PyObject *module)
{
    PyObject *type = (PyObject *)Py_TYPE(module);
    PyObject *kind = PyDict_GetItemWithError(self->kinds, type);
    if (kind || PyErr_Occurred())
        return kind;
    kind = PyObject_CallFunctionObjArgs(self->kind_of, type, NULL);
    int failed = !kind || PyDict_SetItem(self->kinds, type, kind);
    /* The dict has it. */
    Py_XDECREF(kind);
    return failed ? NULL : kind;
}

/* Whether a dict among a module's attributes is there and empty; -1 on failure. */
static int is_empty(PyObject *attributes, PyObject *name)
{
    PyObject *dict = PyDict_GetItemWithError(attributes, name);
    return dict && PyDict_Check(dict) ? !PyDict_Size(dict) : PyErr_Occurred() ? -1 : 0;
}

/* Whether nobody gets hold of a tensor from inside a module, as is_sealed says; -1 on failure. */
static int looks_sealed(PyObject *module, PyObject *kind)
{
    PyObject *known = PyTuple_GetItem(kind, SEALED_FORWARD);
    if (known == Py_None)
        return 0;
    PyObject *forward = PyObject_GetAttr((PyObject *)Py_TYPE(module), text_forward);
    PyObject *attributes = forward ? PyObject_GetAttr(module, text___dict__) : NULL;
    int is_so = attributes ? forward == known : -1;
    if (is_so > 0) {
        int is_own = PyDict_Contains(attributes, text_forward);
        is_so = is_own ? (is_own < 0 ? -1 : 0) : is_empty(attributes, text__modules);
    }
    if (is_so > 0)
        is_so = is_empty(attributes, text__forward_pre_hooks);
    if (is_so > 0)
        is_so = is_empty(attributes, text__forward_hooks);
    Py_XDECREF(forward);
    Py_XDECREF(attributes);
    return is_so;
}

PyObject *running_here(FastRecorder *self)
{
    PyObject *threads = PyObject_GetAttr(self->modules, text__threads);
    PyObject *own = threads ? PyObject_GetAttr(threads, text___dict__) : NULL;
    PyObject *running = own ? PyDict_GetItemWithError(own, text_running) : NULL;
    Py_XINCREF(running);
    if (own && !running && !PyErr_Occurred()) {
        running = PyList_New(0);
        if (running && PyDict_SetItem(own, text_running, running))
            Py_CLEAR(running);
    }
    Py_XDECREF(threads);
    Py_XDECREF(own);
    return running;
}

/* Return the name of a module's next call, `Module.fc.Linear.forward.0`, and set its path, a new
 * reference; None if it has no path yet. */
static PyObject *name_call(FastRecorder *self, PyObject *module, PyObject *class_name, PyObject **path)
{
    PyObject *key = PyLong_FromVoidPtr(module);
    PyObject *known = key ? PyDict_GetItemWithError(self->paths, key) : NULL;
    Py_XDECREF(key);
    if (!known)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *alive = PyObject_CallObject(PyTuple_GetItem(known, 1), NULL);
    Py_XDECREF(alive);
    if (alive != module)
        return alive ? Py_NewRef(Py_None) : NULL;
    *path = Py_NewRef(PyTuple_GetItem(known, 0));
    PyObject *text = PyUnicode_GetLength(*path) ? PyUnicode_FromFormat("Module.%U.%U", *path, class_name)
                                                : PyUnicode_FromFormat("Module.%U", class_name);
    PyObject *number = text ? number_call(self, text) : NULL;
    PyObject *name = number ? PyUnicode_FromFormat("%U.forward.%S", text, number) : NULL;
    Py_XDECREF(text);
    Py_XDECREF(number);
    return name;
}

/* Return the keyword arguments of the call that a hook is told of, as _keywords_beside does. */
static PyObject *keywords_beside(PyObject *args)
{
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    if (!frame)
        return PyDict_New();
    Py_INCREF(frame);
    PyObject *beside = local_of(frame, text_args);
    PyObject *found = beside == args ? local_of(frame, text_kwargs) : NULL;
    Py_DECREF(frame);
    Py_XDECREF(beside);
    if (found && PyDict_CheckExact(found))
        return found;
    Py_XDECREF(found);
    return PyErr_Occurred() ? NULL : PyDict_New();
}

/* Return a module's own parameters, without those that are None; None if some are of another kind. */
static PyObject *parameters_of(FastRecorder *self, PyObject *module)
{
    PyObject *all = PyObject_GetAttr(module, text__parameters), *own = NULL, *key, *value;
    Py_ssize_t at = 0;
    int is_usual = all && PyDict_Check(all);
    if (is_usual)
        own = PyDict_New();
    while (own && is_usual && PyDict_Next(all, &at, &key, &value)) {
        if (value == Py_None)
            continue;
        is_usual = (PyObject *)Py_TYPE(value) == self->parameter_class;
        if (is_usual && PyDict_SetItem(own, key, value))
            Py_CLEAR(own);
    }
    Py_XDECREF(all);
    if (PyErr_Occurred() || is_usual)
        return own;
    Py_XDECREF(own);
    return Py_NewRef(Py_None);
}

/* Hook those of a module's parameters that get a gradient. */
static int hook_parameters(FastRecorder *self, PyObject *own, PyObject *path, PyObject *class_name)
{
    if (!PyDict_Size(own))
        return 0;
    PyObject *done = PyObject_CallFunctionObjArgs(self->hook_parameters, own, path, class_name, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int add_running(FastRecorder *self, PyObject *running, PyObject *module, Call *call)
{
    Py_ssize_t depth = PyList_Size(running);
    PyObject *around = depth > 0 ? PyList_GetItem(running, depth - 1) : NULL;
    PyObject *parent = around ? PyObject_GetAttr(around, text_name) : Py_NewRef(Py_None);
    PyObject *made = parent ? make_empty(self->running_class) : NULL;
    int failed = !made || (around && PyObject_SetAttr(around, text_has_inner, Py_True)) ||
                 PyObject_SetAttr(made, text_module, module) ||
                 PyObject_SetAttr(made, text_name, call->name) ||
                 PyObject_SetAttr(made, text_parent, parent) ||
                 PyObject_SetAttr(made, text_inputs, call->inputs) ||
                 PyObject_SetAttr(made, text_kwargs, call->named) ||
                 PyObject_SetAttr(made, text_parameters, call->parameters) ||
                 PyObject_SetAttr(made, text_edges, call->edges) ||
                 PyObject_SetAttr(made, text_start, call->start) ||
                 PyObject_SetAttr(made, text_stack, call->stack) ||
                 PyObject_SetAttr(made, text_is_by_python, Py_False) ||
                 PyObject_SetAttr(made, text_has_inner, Py_False) || PyList_Append(running, made);
    Py_XDECREF(parent);
    Py_XDECREF(made);
    return failed ? -1 : 0;
}

/* Note the beginning of a module's call: 1 if that was all, 0 if it takes Python, -1 on failure. */
static int enter(FastRecorder *self, PyObject *module, PyObject *args, PyObject *kind)
{
    Call call = {0};
    PyObject *class_name = PyTuple_GetItem(kind, CLASS_NAME), *path = NULL;
    PyObject *own = parameters_of(self, module), *named = NULL, *running = NULL;
    int outcome = own ? own != Py_None : -1;
    if (outcome > 0) {
        call.name = name_call(self, module, class_name, &path);
        outcome = call.name ? call.name != Py_None : -1;
    }
    if (outcome > 0) {
        named = keywords_beside(args);
        running = named ? running_here(self) : NULL;
        /* Gradients may be turned on inside. */
        PyObject *frame = (PyObject *)PyEval_GetFrame();
        Py_XINCREF(frame);
        int failed = !running || !frame || describe_before(self, &call, args, named, own) ||
                     note_beginning(self, &call, frame) ||
                     note_edges(self, &call, args, named) ||
                     hook_parameters(self, own, path, class_name) ||
                     add_running(self, running, module, &call);
        Py_XDECREF(frame);
        outcome = failed ? -1 : 1;
    }
    Py_XDECREF(own);
    Py_XDECREF(path);
    Py_XDECREF(named);
    Py_XDECREF(running);
    forget(&call);
    return outcome;
}

static int take_from(PyObject *running, PyObject *attribute, PyObject **value)
{
    *value = PyObject_GetAttr(running, attribute);
    return !*value;
}

/* Record the call of a module that has run to its end. */
static int record_module(FastRecorder *self, PyObject *running, PyObject *output, PyObject *module, PyObject *kind)
{
    PyObject *parent = NULL;
    Call call = {0};
    int failed = take_from(running, text_name, &call.name) || take_from(running, text_stack, &call.stack) ||
                 take_from(running, text_inputs, &call.inputs) ||
                 take_from(running, text_kwargs, &call.named) ||
                 take_from(running, text_parameters, &call.parameters) ||
                 take_from(running, text_edges, &call.edges) ||
                 take_from(running, text_start, &call.start) || take_from(running, text_parent, &parent);
    if (!failed) {
        call.backward = backward_name(self, call.name);
        call.is_sealed = call.backward ? looks_sealed(module, kind) : -1;
        call.is_late = call.is_sealed < 0 ? -1 : is_true(PyObject_GetAttr(running, text_has_inner));
        failed = call.is_late < 0 || look_after(self, &call, output, parent);
    }
    if (failed && call.name && parent && !(failed = report_failure(self, call.name))) {
        /* It has a place though it has no record. */
        PyObject *left = PyObject_CallMethodObjArgs(self->session, text_leave, call.name, parent, NULL);
        failed = !left;
        Py_XDECREF(left);
    }
    Py_XDECREF(parent);
    forget(&call);
    return failed ? -1 : 1;
}

/* Have the parameters followed of modules in the outermost one that are never called: 1, -1 on failure. */
static int follow_uncalled(FastRecorder *self, PyObject *module)
{
    PyObject *inner = PyObject_GetAttr(module, text__modules), *followed = NULL;
    Py_ssize_t count = inner ? PyObject_Size(inner) : -1;
    if (count > 0)
        followed = PyObject_CallMethodObjArgs(self->modules, text_follow_uncalled, module, NULL);
    int failed = count < 0 || (count > 0 && !followed);
    Py_XDECREF(inner);
    Py_XDECREF(followed);
    return failed ? -1 : 1;
}

/* Record the end of a module's call: 1 if that was all, 0 if it takes Python, -1 on failure. */
static int leave(FastRecorder *self, PyObject *module, PyObject *output, PyObject *kind)
{
    /* The items of a named tuple are outputs, too. */
    if (PyTuple_GetItem(kind, IS_SHARDED) == Py_True || (PyTuple_Check(output) && !PyTuple_CheckExact(output)))
        return 0;
    PyObject *inside = running_here(self);
    Py_ssize_t depth = inside ? PyList_Size(inside) : -1;
    PyObject *running = depth > 0 ? Py_NewRef(PyList_GetItem(inside, depth - 1)) : NULL;
    PyObject *its_module = running ? PyObject_GetAttr(running, text_module) : NULL;
    PyObject *is_by_python = its_module ? PyObject_GetAttr(running, text_is_by_python) : NULL;
    int outcome = PyErr_Occurred() ? -1 : its_module == module && is_by_python == Py_False;
    if (outcome > 0 && PyList_SetSlice(inside, depth - 1, depth, NULL))
        outcome = -1;
    if (outcome > 0)
        outcome = record_module(self, running, output, module, kind);
    if (outcome > 0 && depth == 1)
        outcome = follow_uncalled(self, module);
    Py_XDECREF(its_module);
    Py_XDECREF(is_by_python);
    Py_XDECREF(running);
    Py_XDECREF(inside);
    return outcome;
}

/* Report what went wrong with a module of this class; the user's call goes on. */
static int report_module(FastRecorder *self, PyObject *module)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *class_name = PyObject_GetAttr((PyObject *)Py_TYPE(module), text___name__);
    PyObject *what = class_name ? PyUnicode_FromFormat("the call of a %U", class_name) : NULL;
    Py_XDECREF(class_name);
    PyErr_Clear();
    PyErr_Restore(kind, value, trace);
    int failed = what ? report_failure(self, what) : -1;
    Py_XDECREF(what);
    return failed;
}

static PyObject *call_module_hook(PyObject *object, PyObject *given, PyObject *named)
{
    ModuleHook *hook = (ModuleHook *)object;
    FastRecorder *self = hook->fast_recorder;
    Py_ssize_t count = PyTuple_Size(given);
    PyObject *module = count > 0 ? PyTuple_GetItem(given, 0) : NULL, *guard = NULL;
    PyObject *args = count > 1 ? PyTuple_GetItem(given, 1) : NULL;
    int outcome = 0;
    if (count == 2 + hook->is_after && !(named && PyDict_Size(named)) && PyTuple_CheckExact(args)) {
        PyObject *kind = kind_of(self, module);
        if (!kind)
            outcome = -1;
        else if (PyTuple_GetItem(kind, CLASS_NAME) != Py_None)
            outcome = is_usual_moment(self);
        if (outcome > 0) {
            outcome = -1;
            if ((guard = begin_own(self))) {
                outcome = hook->is_after ? leave(self, module, PyTuple_GetItem(given, 2), kind)
                                         : enter(self, module, args, kind);
                if (end_own(guard))
                    outcome = -1;
            }
        }
        if (outcome < 0 && report_module(self, module))
            return NULL;
    }
    return outcome ? Py_NewRef(Py_None) : PyObject_Call(hook->slow, given, named);
}

/* Return a hook; `name` is what its slow way is called among the parts. */
static PyObject *make_module_hook(FastRecorder *fast_recorder, PyObject *parts, const char *name, int is_after)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)module_hook_class, Py_tp_alloc);
    ModuleHook *hook = (ModuleHook *)allocate((PyTypeObject *)module_hook_class, 0);
    if (hook && take_part(parts, name, &hook->slow))
        Py_CLEAR(hook);
    if (hook) {
        hook->fast_recorder = (FastRecorder *)Py_NewRef(fast_recorder);
        hook->watcher = Py_NewRef(fast_recorder->modules);
        hook->is_after = is_after;
    }
    return (PyObject *)hook;
}

PyObject *watch_modules(PyObject *object, PyObject *parts)
{
    FastRecorder *self = (FastRecorder *)object;
    if (!PyDict_Check(parts) || self->kinds)
        return PyErr_Format(PyExc_TypeError, "wanted the parts of one watcher");
#define TAKE(part)                                                                                   \
    if (take_part(parts, #part, &self->part))                                                        \
        return NULL;
    MODULE_PARTS(TAKE)
    PyObject *before = make_module_hook(self, parts, "before", 0);
    PyObject *after = before ? make_module_hook(self, parts, "after", 1) : NULL;
    PyObject *both = after ? PyTuple_Pack(2, before, after) : NULL;
    Py_XDECREF(before);
    Py_XDECREF(after);
    return both;
}

static int visit_module_hook(PyObject *object, visitproc visit, void *arg)
{
    ModuleHook *hook = (ModuleHook *)object;
    Py_VISIT(hook->fast_recorder);
    Py_VISIT(hook->watcher);
    Py_VISIT(hook->slow);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int clear_module_hook(PyObject *object)
{
    ModuleHook *hook = (ModuleHook *)object;
    Py_CLEAR(hook->fast_recorder);
    Py_CLEAR(hook->watcher);
    Py_CLEAR(hook->slow);
    return 0;
}

static PyMemberDef module_hook_members[] = {
    {"__self__", T_OBJECT, offsetof(ModuleHook, watcher), READONLY, "The watcher whose hook this is."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot module_hook_slots[] = {
    {Py_tp_dealloc, free_with_parts},       {Py_tp_traverse, visit_module_hook},
    {Py_tp_clear, clear_module_hook}, {Py_tp_call, call_module_hook},
    {Py_tp_members, module_hook_members},
    {Py_tp_doc, "What torch calls before, or after, every module."}, {0, NULL},
};

static PyType_Spec module_hook_spec = {
    "tensorprobe.capture._calls.ModuleHook", sizeof(ModuleHook), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    module_hook_slots,
};

int begin_modules(void)
{
    module_hook_class = PyType_FromSpec(&module_hook_spec);
    return module_hook_class ? 0 : -1;
}
