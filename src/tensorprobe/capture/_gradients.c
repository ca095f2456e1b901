/* The gradients of a usual call, taken when its only root runs, and when others of its nodes do.
 *
 * As GradientWatcher does it, which says why.
 */

#include "_calls.h"

#include <structmember.h>

static PyObject *list_of_none(Py_ssize_t count)
{
    PyObject *list = count < 0 ? NULL : PyList_New(count);
    for (Py_ssize_t i = 0; list && i < count; i++)
        if (PyList_SetItem(list, i, Py_NewRef(Py_None)))
            Py_CLEAR(list);
    return list;
}

/* A gradient after a change, None or one of graph_edges.py's. */
static PyObject *changed(PyObject *gradient, PyObject *change)
{
    return change == Py_None ? Py_NewRef(gradient) : PyObject_CallFunctionObjArgs(change, gradient, NULL);
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

static PyObject *parent_of(FastRecorder *self, PyObject *call)
{
    PyObject *parent = PyObject_GetAttr(call, text_parent);
    if (!parent || parent == Py_None)
        return parent;
    PyObject *above = backward_name(self, parent);
    Py_DECREF(parent);
    return above;
}

/* Record the gradients that have come in of a call: a RootHook, or a _Call. */
static int add_gradients(FastRecorder *self, PyObject *call, PyObject *of_outputs, PyObject *of_inputs)
{
    PyObject *name = PyObject_GetAttr(call, text_name), *parent = parent_of(self, call);
    PyObject *into = name ? draft_all(self, of_outputs, name, "input") : NULL;
    PyObject *out = into ? draft_all(self, of_inputs, name, "output") : NULL;
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

/* Ask the neighbours of nodes that only reshape, as graph_edges.py has it. */
static int pass_over(FastRecorder *self, PyObject *node, PyObject *leaving, PyObject *incoming)
{
    PyObject *roots = PyTuple_Pack(1, node), *done = NULL;
    if (roots)
        done = PyObject_CallFunctionObjArgs(self->pass_over_shapes, roots, leaving, incoming, NULL);
    Py_XDECREF(roots);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Return where gradients leave a call's piece of the graph, places by node; the root is running. */
static PyObject *find_leaving(FastRecorder *self, PyObject *hook, PyObject *node)
{
    PyObject *edges = PyObject_GetAttr(hook, text_edges), *begin = PyObject_GetAttr(hook, text_start);
    PyObject *leaving = PyDict_New(), *incoming = PyDict_New();
    unsigned long long start = begin ? PyLong_AsUnsignedLongLong(begin) : 0;
    int is_sealed = is_true(PyObject_GetAttr(hook, text_is_sealed));
    int failed = !edges || !begin || !leaving || !incoming || PyErr_Occurred() ||
                 leave_from(node, edges, start, leaving, incoming);
    if (!failed && passes_over(self, is_sealed) && PyDict_Size(incoming) > 1)
        failed = pass_over(self, node, leaving, incoming);
    if (failed)
        Py_CLEAR(leaving);
    Py_XDECREF(edges);
    Py_XDECREF(begin);
    Py_XDECREF(incoming);
    return leaving;
}

/* Whether a call that has some of its gradients is over, now that a node of this number runs; -1 on
 * failure. The newest comes last. */
static int ends_another(PyObject *opened, PyObject *number)
{
    Py_ssize_t count = PyList_Size(opened);
    if (count <= 0)
        return (int)count;
    PyObject *start = PyObject_GetAttr(PyList_GetItem(opened, count - 1), text_start);
    int is_newer = start ? PyObject_RichCompareBool(start, number, Py_GT) : -1;
    Py_XDECREF(start);
    return is_newer;
}

/* Whether a pass is at work that takes nothing but reading, now that a node of this number runs; -1 on
 * failure. */
static int is_plain_pass(FastRecorder *self, PyObject *task, PyObject *number)
{
    int is_active = is_true(PyObject_GetAttr(self->gradients, text_is_active));
    if (is_active <= 0)
        return is_active;
    int has_gradients = is_true(PyObject_CallObject(self->is_grad_enabled, NULL));
    if (has_gradients)
        return has_gradients < 0 ? -1 : 0;
    PyObject *opened = PyDict_GetItemWithError(self->opened, task);
    int ends = PyErr_Occurred() ? -1 : opened ? ends_another(opened, number) : 0;
    return ends ? (ends < 0 ? -1 : 0) : is_alone(self);
}

/* Record the gradients of a call whose root hands them all over. */
static int take_all(FastRecorder *self, PyObject *hook, PyObject *own, PyObject *into, PyObject *out_of)
{
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
    return failed ? -1 : 0;
}

/* Return a _Call in the backward pass that is at work, with so many nodes. */
static PyObject *make_call(FastRecorder *self, PyObject *hook, PyObject *task, Py_ssize_t nodes)
{
    PyObject *call = make_empty(self->call_class), *edges = PyObject_GetAttr(hook, text_edges);
    long long outputs = number_of(PyObject_GetAttr(hook, text_count));
    long long inputs = edges ? number_of(PyObject_GetAttr(edges, text_count)) : -1;
    if (call && (!edges || give(call, text_name, PyObject_GetAttr(hook, text_name)) ||
                 give(call, text_parent, PyObject_GetAttr(hook, text_parent)) ||
                 give(call, text_start, PyObject_GetAttr(hook, text_start)) ||
                 give(call, text_done, PyObject_GetAttr(hook, text_done)) ||
                 give(call, text_nodes, PyLong_FromSsize_t(nodes)) ||
                 give(call, text_missing, PyLong_FromSsize_t(nodes - 1)) ||
                 give(call, text_of_outputs, list_of_none(outputs)) ||
                 give(call, text_of_inputs, list_of_none(inputs)) ||
                 give(call, text_unused, PyTuple_New(0)) || PyObject_SetAttr(call, text_task, task)))
        Py_CLEAR(call);
    Py_XDECREF(edges);
    return call;
}

/* Return what a node of a call calls, a _NodeHook; `number` is taken over. */
static PyObject *make_node_hook(FastRecorder *self, PyObject *call, PyObject *number, PyObject *outputs,
                                PyObject *inputs)
{
    PyObject *hook = number ? make_empty(self->node_hook_class) : NULL;
    if (hook && (PyObject_SetAttr(hook, text_watcher, self->gradients) ||
                 PyObject_SetAttr(hook, text_call, call) || PyObject_SetAttr(hook, text_number, number) ||
                 PyObject_SetAttr(hook, text_outputs, outputs) ||
                 PyObject_SetAttr(hook, text_inputs, inputs)))
        Py_CLEAR(hook);
    Py_XDECREF(number);
    return hook;
}

/* Hook the nodes of a call that run after its root. */
static int hook_rest(FastRecorder *self, PyObject *call, PyObject *root, PyObject *leaving)
{
    PyObject *node, *places, *nothing = PyTuple_New(0);
    Py_ssize_t at = 0;
    int failed = !nothing;
    while (!failed && PyDict_Next(leaving, &at, &node, &places)) {
        if (node == root)
            continue;
        PyObject *hook =
            make_node_hook(self, call, call_method(node, text__sequence_nr), nothing, places);
        failed = !hook || keep_hook(self, node, hook);
        Py_XDECREF(hook);
    }
    Py_XDECREF(nothing);
    return failed ? -1 : 0;
}

/* Put a call among those that have some of their gradients, the newest last. */
static int open_call(FastRecorder *self, PyObject *call, PyObject *task)
{
    PyObject *opened = PyObject_CallMethodObjArgs(self->gradients, text_open_pass, task, NULL);
    PyObject *start = opened ? PyObject_GetAttr(call, text_start) : NULL;
    Py_ssize_t place = start ? PyList_Size(opened) : -1;
    int failed = place < 0;
    for (; !failed && place; place--) {
        PyObject *other = PyObject_GetAttr(PyList_GetItem(opened, place - 1), text_start);
        int is_older = other ? PyObject_RichCompareBool(other, start, Py_LE) : -1;
        Py_XDECREF(other);
        failed = is_older < 0;
        if (is_older)
            break;
    }
    failed = failed || PyList_Insert(opened, place, call);
    Py_XDECREF(opened);
    Py_XDECREF(start);
    return failed ? -1 : 0;
}

/* Take the gradients of a root behind which other nodes hand some over. */
static int take_first(FastRecorder *self, PyObject *hook, PyObject *node, PyObject *number, PyObject *task,
                      PyObject *leaving, PyObject *into, PyObject *out_of)
{
    PyObject *own = PyDict_GetItemWithError(leaving, node);
    PyObject *call = make_call(self, hook, task, PyDict_Size(leaving) + (own ? 0 : 1));
    PyObject *places = call ? PyObject_GetAttr(hook, text_outputs) : NULL, *nothing = PyTuple_New(0);
    PyObject *instead = NULL;
    if (places && nothing)
        instead = make_node_hook(self, call, Py_NewRef(number), places, own ? own : nothing);
    int failed = !instead || hook_rest(self, call, node, leaving) ||
                 PyObject_SetAttr(hook, text_hook, instead) || open_call(self, call, task);
    if (!failed) {
        PyObject *of_outputs = PyObject_GetAttr(call, text_of_outputs);
        PyObject *of_inputs = PyObject_GetAttr(call, text_of_inputs);
        failed = !of_outputs || !of_inputs || place_outputs(places, out_of, of_outputs) ||
                 (own && place_inputs(own, into, of_inputs));
        Py_XDECREF(of_outputs);
        Py_XDECREF(of_inputs);
    }
    Py_XDECREF(call);
    Py_XDECREF(places);
    Py_XDECREF(nothing);
    Py_XDECREF(instead);
    return failed ? -1 : 0;
}

/* Record the gradients of the root that is running: 1 if that was all, 0 if it takes Python. */
static int take_gradients(FastRecorder *self, PyObject *hook, PyObject *into, PyObject *out_of)
{
    PyObject *node = PyObject_CallObject(self->current_node, NULL);
    PyObject *number = node ? call_method(node, text__sequence_nr) : NULL;
    PyObject *task = number ? PyObject_CallObject(self->current_pass, NULL) : NULL, *leaving = NULL;
    int is_usual = task ? is_plain_pass(self, task, number) : -1;
    if (is_usual > 0) {
        leaving = find_leaving(self, hook, node);
        PyObject *own = leaving ? PyDict_GetItemWithError(leaving, node) : NULL;
        int failed = !leaving || PyErr_Occurred();
        if (!failed)
            failed = PyDict_Size(leaving) == (own ? 1 : 0)
                         ? take_all(self, hook, own, into, out_of)
                         : take_first(self, hook, node, number, task, leaving, into, out_of);
        is_usual = failed ? -1 : 1;
    }
    Py_XDECREF(node);
    Py_XDECREF(number);
    Py_XDECREF(task);
    Py_XDECREF(leaving);
    return is_usual;
}

/* Record a call whose gradients are there. */
static int finish_call(FastRecorder *self, PyObject *call, PyObject *task)
{
    PyObject *of_outputs = PyObject_GetAttr(call, text_of_outputs);
    PyObject *of_inputs = PyObject_GetAttr(call, text_of_inputs);
    PyObject *opened = PyDict_GetItemWithError(self->opened, task);
    int failed = !of_outputs || !of_inputs || PyErr_Occurred() || PyObject_SetAttr(call, text_done, Py_None);
    for (Py_ssize_t i = opened && !failed ? PyList_Size(opened) - 1 : -1; i >= 0; i--)
        if (PyList_GetItem(opened, i) == call) {
            failed = PyList_SetSlice(opened, i, i + 1, NULL);
            break;
        }
    /* Nobody needs the tensors any longer, but the graph that is being taken down keeps the call. */
    failed = failed || give(call, text_of_outputs, PyList_New(0)) ||
             give(call, text_of_inputs, PyList_New(0)) || add_gradients(self, call, of_outputs, of_inputs);
    Py_XDECREF(of_outputs);
    Py_XDECREF(of_inputs);
    return failed ? -1 : 0;
}

/* Whether a call waits for gradients towards its inputs, and nothing else, from a node; -1 on failure. */
static int waits_for_inputs(PyObject *hook, PyObject *call, PyObject *task)
{
    PyObject *its_task = PyObject_GetAttr(call, text_task);
    int is_so = its_task ? PyObject_RichCompareBool(its_task, task, Py_EQ) : -1;
    Py_XDECREF(its_task);
    if (is_so <= 0)
        return is_so;
    PyObject *outputs = PyObject_GetAttr(hook, text_outputs);
    Py_ssize_t count = outputs ? PyObject_Size(outputs) : -1;
    Py_XDECREF(outputs);
    return count < 0 ? -1 : !count;
}

static int take_inputs(FastRecorder *self, PyObject *hook, PyObject *call, PyObject *task, PyObject *into)
{
    PyObject *done = PyObject_GetAttr(call, text_done);
    Py_XDECREF(done);
    if (!done || done == Py_None)
        return done ? 0 : -1;
    PyObject *places = PyObject_GetAttr(hook, text_inputs), *found = PyObject_GetAttr(call, text_of_inputs);
    long long missing = number_of(PyObject_GetAttr(call, text_missing)) - 1;
    int failed = !places || !found || PyErr_Occurred() || place_inputs(places, into, found) ||
                 give(call, text_missing, PyLong_FromLongLong(missing)) ||
                 (!missing && finish_call(self, call, task));
    Py_XDECREF(places);
    Py_XDECREF(found);
    return failed ? -1 : 0;
}

/* Take the gradients that a node behind the root hands over: 1 if that was all, 0 if it takes Python. */
static int take_further(FastRecorder *self, PyObject *hook, PyObject *into, PyObject *out_of)
{
    PyObject *call = PyObject_GetAttr(hook, text_call), *number = PyObject_GetAttr(hook, text_number);
    PyObject *task = call && number ? PyObject_CallObject(self->current_pass, NULL) : NULL;
    (void)out_of;
    int is_usual = task ? waits_for_inputs(hook, call, task) : -1;
    if (is_usual > 0)
        is_usual = is_plain_pass(self, task, number);
    if (is_usual > 0 && take_inputs(self, hook, call, task, into))
        is_usual = -1;
    Py_XDECREF(call);
    Py_XDECREF(number);
    Py_XDECREF(task);
    return is_usual;
}

typedef int (*Take)(FastRecorder *, PyObject *, PyObject *, PyObject *);

/* Take what a node hands over to its hook: 1 if that was all, 0 if it takes Python, -1 on failure. */
static int take_from_node(FastRecorder *self, PyObject *hook, PyObject *into, PyObject *out_of, Take take)
{
    PyObject *guard = begin_own(self);
    int is_done = -1;
    if (guard && !lock(self->gradients_lock)) {
        if (!lock_records(self)) {
            is_done = take(self, hook, into, out_of);
            if (unlock_records(self))
                is_done = -1;
        }
        if (unlock(self->gradients_lock))
            is_done = -1;
    }
    if (guard && end_own(guard))
        is_done = -1;
    return is_done;
}

static PyObject *take_for_python(PyObject *object, PyObject *args, Take take)
{
    PyObject *hook, *into, *out_of;
    if (!PyArg_ParseTuple(args, "OO!O!", &hook, &PyTuple_Type, &into, &PyTuple_Type, &out_of))
        return NULL;
    int is_done = take_from_node((FastRecorder *)object, hook, into, out_of, take);
    return is_done < 0 ? NULL : PyBool_FromLong(is_done);
}

PyObject *on_root(PyObject *object, PyObject *args)
{
    return take_for_python(object, args, take_gradients);
}

PyObject *on_node(PyObject *object, PyObject *args)
{
    return take_for_python(object, args, take_further);
}

/* What a root calls, as a RootHook of gradients.py. */
#define ROOT_PARTS(X)                                                                                \
    X(watcher) X(name) X(parent) X(start) X(count) X(edges) X(done) X(outputs) X(is_sealed) X(hook)

typedef struct {
    PyObject_HEAD
    FastRecorder *fast_recorder;
#define FIELD(part) PyObject *part;
    ROOT_PARTS(FIELD)
} Root;

static PyObject *root_class;

PyObject *make_root(FastRecorder *self, Call *call, PyObject *parent, PyObject *outputs, Py_ssize_t count)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)root_class, Py_tp_alloc);
    Root *root = (Root *)allocate((PyTypeObject *)root_class, 0);
    if (!root)
        return NULL;
    root->fast_recorder = (FastRecorder *)Py_NewRef(self);
    root->watcher = Py_NewRef(self->gradients);
    root->name = Py_NewRef(call->backward);
    root->parent = Py_NewRef(parent);
    root->start = Py_NewRef(call->start);
    root->count = PyLong_FromSsize_t(count);
    root->edges = Py_NewRef(call->edges);
    root->done = Py_NewRef(self->done);
    root->outputs = Py_NewRef(outputs);
    root->is_sealed = PyBool_FromLong(call->is_sealed);
    root->hook = Py_NewRef(Py_None);
    if (!root->count)
        Py_CLEAR(root);
    return (PyObject *)root;
}

static PyObject *call_root(PyObject *object, PyObject *given, PyObject *named)
{
    Root *root = (Root *)object;
    PyObject *hook = Py_NewRef(root->hook);
    if (hook == Py_None) {
        PyObject *into, *out_of;
        if (!PyArg_ParseTuple(given, "O!O!", &PyTuple_Type, &into, &PyTuple_Type, &out_of)) {
            Py_DECREF(hook);
            return NULL;
        }
        int is_done = take_from_node(root->fast_recorder, object, into, out_of, take_gradients);
        if (is_done < 0 && report_failure(root->fast_recorder, root->name)) {
            Py_DECREF(hook);
            return NULL;
        }
        if (is_done)
            return hook;
        Py_DECREF(hook);
        hook = PyObject_CallMethodObjArgs(root->watcher, text_find_rest, object, NULL);
        if (!hook || hook == Py_None)
            return hook;
    }
    PyObject *answer = PyObject_Call(hook, given, named);
    Py_DECREF(hook);
    return answer;
}

static int visit_root(PyObject *object, visitproc visit, void *arg)
{
    Root *self = (Root *)object;
    ROOT_PARTS(VISIT)
    Py_VISIT(self->fast_recorder);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int clear_root(PyObject *object)
{
    Root *self = (Root *)object;
    ROOT_PARTS(CLEAR)
    Py_CLEAR(self->fast_recorder);
    return 0;
}

static PyMemberDef root_members[] = {
#define MEMBER(part) {#part, T_OBJECT, offsetof(Root, part), 0, NULL},
    ROOT_PARTS(MEMBER)
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot root_slots[] = {
    {Py_tp_dealloc, free_with_parts}, {Py_tp_traverse, visit_root},   {Py_tp_clear, clear_root},
    {Py_tp_call, call_root},          {Py_tp_members, root_members},
    {Py_tp_doc, "What the only root of a call calls."}, {0, NULL},
};

static PyType_Spec root_spec = {
    "tensorprobe.capture._calls.Root", sizeof(Root), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, root_slots,
};

int begin_gradients(void)
{
    root_class = PyType_FromSpec(&root_spec);
    return root_class ? 0 : -1;
}
