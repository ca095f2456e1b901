/* Which modules there are, and which of them a hook is for.
 *
 *     walk_modules(model, method)  -> [(path, module)], as named_modules gives them; None: some class has
 *                                     another method of that name
 *     hook_for(hook, is_wanted)    -> the hook of modules, for those whose class is wanted
 *
 * named_models.py and fast_paths.py have the same meaning.
 */

#include "_calls.h"

#include <structmember.h>

/* A hook for modules of some classes, which most are not of. */
typedef struct {
    PyObject_HEAD
    PyObject *hook, *is_wanted, *classes, *owner;
} ClassHook;

static PyObject *class_hook_class;

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

int begin_walks(void)
{
    class_hook_class = PyType_FromSpec(&class_hook_spec);
    return class_hook_class ? 0 : -1;
}
