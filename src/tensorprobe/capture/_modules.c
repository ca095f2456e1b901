/* The usual call of a module, and the gradients of its parameters.
 *
 *     gate.watch_modules(parts)    -> (before, after), what torch calls before and after every module
 *     walk_modules(model, method)  -> [(path, module)], as named_modules gives them; None: some class has
 *                                     another method of that name
 *     hook_for(hook, is_wanted)    -> the hook of modules, for those whose class is wanted
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
    Gate *gate;
    PyObject *watcher, *slow;
    int is_after;
} ModuleHook;

/* What a parameter calls in a backward pass: it is that of this name, of so many of its module. */
typedef struct {
    PyObject_HEAD
    Gate *gate;
    PyObject *base, *key;
    Py_ssize_t count;
} ParameterHook;

/* A hook for modules of some classes, which most are not of. */
typedef struct {
    PyObject_HEAD
    PyObject *hook, *is_wanted, *classes, *owner;
} ClassHook;

static PyObject *module_hook_class, *parameter_hook_class, *class_hook_class;

/* Return what is known of a module's class, borrowed. */
static PyObject *kind_of(Gate *self, PyObject *module)
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

/* Return the module calls that run in this thread, the innermost last. */
static PyObject *running_here(Gate *self)
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
static PyObject *name_call(Gate *self, PyObject *module, PyObject *class_name, PyObject **path)
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
static PyObject *parameters_of(Gate *self, PyObject *module)
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

static int hook_parameters(Gate *self, PyObject *own, PyObject *path, PyObject *class_name)
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

static int add_running(Gate *self, PyObject *running, PyObject *module, Call *call)
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
                 PyObject_SetAttr(made, text_is_by_python, Py_False) ||
                 PyObject_SetAttr(made, text_has_inner, Py_False) || PyList_Append(running, made);
    Py_XDECREF(parent);
    Py_XDECREF(made);
    return failed ? -1 : 0;
}

/* Note the beginning of a module's call: 1 if that was all, 0 if it takes Python, -1 on failure. */
static int enter(Gate *self, PyObject *module, PyObject *args, PyObject *kind)
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
        int failed = !running || describe_before(self, &call, args, named, own) ||
                     note_edges(self, &call, args, named) ||
                     (PyDict_Size(own) && hook_parameters(self, own, path, class_name)) ||
                     add_running(self, running, module, &call);
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
static int record_module(Gate *self, PyObject *running, PyObject *output, PyObject *module, PyObject *kind)
{
    PyObject *parent = NULL, *frame = (PyObject *)PyEval_GetFrame();
    Call call = {0};
    Py_XINCREF(frame);
    int failed = !frame || take_from(running, text_name, &call.name) ||
                 take_from(running, text_inputs, &call.inputs) ||
                 take_from(running, text_kwargs, &call.named) ||
                 take_from(running, text_parameters, &call.parameters) ||
                 take_from(running, text_edges, &call.edges) ||
                 take_from(running, text_start, &call.start) || take_from(running, text_parent, &parent);
    if (!failed) {
        call.backward = backward_name(self, call.name);
        call.is_sealed = call.backward ? looks_sealed(module, kind) : -1;
        call.is_late = call.is_sealed < 0 ? -1 : is_true(PyObject_GetAttr(running, text_has_inner));
        failed = call.is_late < 0 || look_after(self, &call, output, frame, parent);
    }
    if (failed && call.name && parent && !(failed = report_failure(self, call.name))) {
        /* It has a place though it has no record. */
        PyObject *left = PyObject_CallMethodObjArgs(self->session, text_leave, call.name, parent, NULL);
        failed = !left;
        Py_XDECREF(left);
    }
    Py_XDECREF(frame);
    Py_XDECREF(parent);
    forget(&call);
    return failed ? -1 : 1;
}

/* Record the end of a module's call: 1 if that was all, 0 if it takes Python, -1 on failure. */
static int leave(Gate *self, PyObject *module, PyObject *output, PyObject *kind)
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
    Py_XDECREF(its_module);
    Py_XDECREF(is_by_python);
    Py_XDECREF(running);
    Py_XDECREF(inside);
    return outcome;
}

/* Report what went wrong with a module of this class; the user's call goes on. */
static int report_module(Gate *self, PyObject *module)
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
    Gate *self = hook->gate;
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
    PyObject *values = gathered ? PyTuple_Pack(1, gradient) : NULL, *drafts = NULL;
    if (values && !lock_records(self)) {
        drafts = draft_all(self, values);
        if (unlock_records(self))
            Py_CLEAR(drafts);
    }
    PyObject *arrived = drafts ? PyTuple_GetItem(gathered, 1) : NULL;
    int failed = !drafts || PyDict_SetItem(arrived, hook->key, PyTuple_GetItem(drafts, 0));
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

/* Return a hook; `name` is what its slow way is called among the parts. */
static PyObject *make_module_hook(Gate *gate, PyObject *parts, const char *name, int is_after)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)module_hook_class, Py_tp_alloc);
    ModuleHook *hook = (ModuleHook *)allocate((PyTypeObject *)module_hook_class, 0);
    if (hook && take_part(parts, name, &hook->slow))
        Py_CLEAR(hook);
    if (hook) {
        hook->gate = (Gate *)Py_NewRef(gate);
        hook->watcher = Py_NewRef(gate->modules);
        hook->is_after = is_after;
    }
    return (PyObject *)hook;
}

PyObject *watch_modules(PyObject *object, PyObject *parts)
{
    Gate *self = (Gate *)object;
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

static PyObject *call_class_hook(PyObject *object, PyObject *given, PyObject *named)
{
    ClassHook *self = (ClassHook *)object;
    PyObject *module = PyTuple_Size(given) > 0 ? PyTuple_GetItem(given, 0) : NULL;
    PyObject *type = module ? (PyObject *)Py_TYPE(module) : Py_None;
    PyObject *known = PyDict_GetItemWithError(self->classes, type);
    if (!known && !PyErr_Occurred()) {
        int is_so = is_true(PyObject_CallFunctionObjArgs(self->is_wanted, type, NULL));
        known = is_so < 0 ? NULL : is_so ? Py_True : Py_False;
        if (known && PyDict_SetItem(self->classes, type, known))
            known = NULL;
    }
    if (!known)
        return NULL;
    return known == Py_True ? PyObject_Call(self->hook, given, named) : Py_NewRef(Py_None);
}

static PyObject *hook_for(PyObject *nobody, PyObject *args)
{
    PyObject *hook, *is_wanted;
    (void)nobody;
    if (!PyArg_ParseTuple(args, "OO", &hook, &is_wanted))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)class_hook_class, Py_tp_alloc);
    ClassHook *self = (ClassHook *)allocate((PyTypeObject *)class_hook_class, 0);
    if (!self)
        return NULL;
    self->hook = Py_NewRef(hook);
    self->is_wanted = Py_NewRef(is_wanted);
    self->classes = PyDict_New();
    self->owner = PyObject_GetAttr(hook, text___self__);
    if (!self->classes || !self->owner)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Add the modules in one, each once: 1 if that worked, 0 if it takes Python, -1 on failure. */
static int walk(PyObject *module, PyObject *path, PyObject *method, PyObject *seen, PyObject *found)
{
    PyObject *own = PyObject_GetAttr((PyObject *)Py_TYPE(module), text_named_modules);
    PyObject *number = own ? PyLong_FromVoidPtr(module) : NULL;
    Py_XDECREF(own);
    PyObject *attributes = number ? PyObject_GetAttr(module, text___dict__) : NULL;
    int is_own = attributes ? PyDict_Contains(attributes, text_named_modules) : -1;
    Py_XDECREF(attributes);
    int is_usual = is_own < 0 ? -1 : own == method && !is_own;
    int is_known = is_usual > 0 ? PySet_Contains(seen, number) : 0;
    if (is_usual <= 0 || is_known) {
        Py_XDECREF(number);
        return is_known < 0 ? -1 : is_usual;
    }
    PyObject *both = PyTuple_Pack(2, path, module);
    int failed = !both || PySet_Add(seen, number) || PyList_Append(found, both);
    Py_XDECREF(both);
    Py_DECREF(number);
    PyObject *inside = failed ? NULL : PyObject_GetAttr(module, text__modules), *name, *child;
    Py_ssize_t at = 0;
    int outcome = !inside ? -1 : PyDict_Check(inside);
    while (outcome > 0 && PyDict_Next(inside, &at, &name, &child)) {
        if (child == Py_None)
            continue;
        PyObject *below = PyUnicode_GetLength(path) ? PyUnicode_FromFormat("%U.%S", path, name)
                                                    : PyObject_Str(name);
        outcome = !below || Py_EnterRecursiveCall(" in a model") ? -1 : 1;
        if (outcome > 0) {
            outcome = walk(child, below, method, seen, found);
            Py_LeaveRecursiveCall();
        }
        Py_XDECREF(below);
    }
    Py_XDECREF(inside);
    return outcome;
}

static PyObject *walk_modules(PyObject *self, PyObject *args)
{
    PyObject *model, *method;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO", &model, &method))
        return NULL;
    PyObject *path = PyUnicode_FromString(""), *seen = PySet_New(NULL), *found = PyList_New(0);
    int outcome = path && seen && found ? walk(model, path, method, seen, found) : -1;
    Py_XDECREF(path);
    Py_XDECREF(seen);
    if (outcome > 0)
        return found;
    Py_XDECREF(found);
    return outcome < 0 ? NULL : Py_NewRef(Py_None);
}

PyMethodDef module_methods[] = {
    {"hook_for", hook_for, METH_VARARGS, "Return a hook for modules of some classes."},
    {"walk_modules", walk_modules, METH_VARARGS, "Return the paths of modules, and the modules."},
    {NULL, NULL, 0, NULL},
};

static int visit_module_hook(PyObject *object, visitproc visit, void *arg)
{
    ModuleHook *hook = (ModuleHook *)object;
    Py_VISIT(hook->gate);
    Py_VISIT(hook->watcher);
    Py_VISIT(hook->slow);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int clear_module_hook(PyObject *object)
{
    ModuleHook *hook = (ModuleHook *)object;
    Py_CLEAR(hook->gate);
    Py_CLEAR(hook->watcher);
    Py_CLEAR(hook->slow);
    return 0;
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

static int visit_class_hook(PyObject *object, visitproc visit, void *arg)
{
    ClassHook *self = (ClassHook *)object;
    Py_VISIT(self->hook);
    Py_VISIT(self->is_wanted);
    Py_VISIT(self->classes);
    Py_VISIT(self->owner);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int clear_class_hook(PyObject *object)
{
    ClassHook *self = (ClassHook *)object;
    Py_CLEAR(self->hook);
    Py_CLEAR(self->is_wanted);
    Py_CLEAR(self->classes);
    Py_CLEAR(self->owner);
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

static PyType_Slot parameter_hook_slots[] = {
    {Py_tp_dealloc, free_with_parts},          {Py_tp_traverse, visit_parameter_hook},
    {Py_tp_clear, clear_parameter_hook}, {Py_tp_call, call_parameter_hook},
    {Py_tp_doc, "What a parameter calls in a backward pass."}, {0, NULL},
};

static PyMemberDef class_hook_members[] = {
    {"__self__", T_OBJECT, offsetof(ClassHook, owner), READONLY, "Whose method the hook is."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot class_hook_slots[] = {
    {Py_tp_dealloc, free_with_parts}, {Py_tp_traverse, visit_class_hook},
    {Py_tp_clear, clear_class_hook},  {Py_tp_call, call_class_hook},
    {Py_tp_members, class_hook_members},
    {Py_tp_doc, "A hook for modules of some classes."}, {0, NULL},
};

static PyType_Spec class_hook_spec = {
    "tensorprobe.capture._calls.ClassHook", sizeof(ClassHook), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    class_hook_slots,
};

static PyType_Spec module_hook_spec = {
    "tensorprobe.capture._calls.ModuleHook", sizeof(ModuleHook), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    module_hook_slots,
};

static PyType_Spec parameter_hook_spec = {
    "tensorprobe.capture._calls.ParameterHook", sizeof(ParameterHook), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, parameter_hook_slots,
};

int begin_modules(void)
{
    module_hook_class = PyType_FromSpec(&module_hook_spec);
    parameter_hook_class = PyType_FromSpec(&parameter_hook_spec);
    class_hook_class = PyType_FromSpec(&class_hook_spec);
    return module_hook_class && parameter_hook_class && class_hook_class ? 0 : -1;
}
