/* Where the gradients of a call's inputs and outputs are on the autograd graph.
 *
 *     take_edges(tensors)                -> InputEdges, before the call
 *     find_nodes(outputs, edges, start)  -> (roots, leaving, incoming), after it; None: ask Python
 *     find_root(outputs, edges, start, passes_over_shapes)
 *                                        -> (node, places), its only root; (): none; None: ask Python
 *     find_leaving(node, edges, start)   -> (leaving, incoming) of a call with this root
 *
 * Every call of a training pays for this twice, so the usual call is done here. Calls that write into
 * views or hand them back are for graph_edges.py, which has the same meaning and says why in its
 * comments.
 */

#include "_calls.h"

/* AccumulateGrad carries the largest number there is. */
#define NEWEST UINT64_MAX

/* From graph_edges.py. */
static PyObject *edges_class, *view_class, *leaf_node_class, *is_autocast_on, *place_in_base;
static PyObject *only_reshapes, *place_class;

static PyObject *make_named(PyObject *its_class, PyObject *fields)
{
    /* A NamedTuple's own constructor is Python; that of its base is not. */
    newfunc new_tuple = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *arguments = fields ? PyTuple_Pack(1, fields) : NULL;
    PyObject *made = arguments ? new_tuple((PyTypeObject *)its_class, arguments, NULL) : NULL;
    Py_XDECREF(arguments);
    Py_XDECREF(fields);
    return made;
}

static PyObject *make_cut(PyObject *fields)
{
    return make_named(place_class, fields);
}

static int has(PyObject *object, PyObject *attribute)
{
    PyObject *answer = PyObject_GetAttr(object, attribute);
    if (!answer)
        return -1;
    int is_so = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return is_so;
}

/* What is empty in most calls is shared; nobody writes into it. */
static PyObject *no_places, *no_views;

/* Return a dict that may be written into, which is made if it is not there. */
static PyObject *own_dict(PyObject **dict)
{
    if (!*dict)
        *dict = PyDict_New();
    return *dict;
}

static int append_to(PyObject *lists, PyObject *key, PyObject *item)
{
    if (!item)
        return -1;
    int failed = -1;
    PyObject *list = PyDict_GetItemWithError(lists, key);
    if (list) {
        failed = PyList_Append(list, item);
    } else if (!PyErr_Occurred()) {
        list = PyList_New(0);
        failed = !list || PyList_Append(list, item) || PyDict_SetItem(lists, key, list);
        Py_XDECREF(list);
    }
    Py_DECREF(item);
    return failed;
}

static PyObject *edge_of(PyObject *tensor, PyObject *node)
{
    PyObject *number = PyObject_GetAttr(tensor, text_output_nr);
    PyObject *edge = number ? PyTuple_Pack(2, node, number) : NULL;
    Py_XDECREF(number);
    return edge;
}

/* Where the gradients of a call's inputs go; NULL in place of what is empty. */
typedef struct {
    PyObject *nodes, *leaves, *views;
} Inputs;

static int add_input(Inputs *inputs, PyObject *tensor, Py_ssize_t position)
{
    PyObject *node = PyObject_GetAttr(tensor, text_grad_fn);
    if (!node)
        return -1;
    int is_leaf = node == Py_None;
    PyObject *key = is_leaf ? PyLong_FromVoidPtr(tensor) : edge_of(tensor, node);
    Py_DECREF(node);
    PyObject *places = own_dict(is_leaf ? &inputs->leaves : &inputs->nodes);
    int failed = !key || !places || append_to(places, key, PyLong_FromSsize_t(position));
    Py_XDECREF(key);
    return failed ? -1 : 0;
}

static int add_view(Inputs *inputs, PyObject *tensor, Py_ssize_t position)
{
    PyObject *base = PyObject_GetAttr(tensor, text__base);
    PyObject *version = PyObject_GetAttr(tensor, text__version);
    PyObject *node = base ? PyObject_GetAttr(base, text_grad_fn) : NULL;
    PyObject *edge = node ? edge_of(base, node) : NULL;
    PyObject *place = PyLong_FromSsize_t(position);
    int failed = -1;
    if (edge && version && place) {
        int is_written = PyObject_IsTrue(version);
        failed = is_written < 0;
        if (!failed && !is_written)
            failed = add_input(inputs, tensor, position);
        PyObject *view = failed ? NULL : make_named(view_class, PyTuple_Pack(4, place, tensor, version, edge));
        if (!inputs->views)
            inputs->views = PyList_New(0);
        failed = !view || !inputs->views || PyList_Append(inputs->views, view);
        Py_XDECREF(view);
    }
    Py_XDECREF(base);
    Py_XDECREF(version);
    Py_XDECREF(node);
    Py_XDECREF(edge);
    Py_XDECREF(place);
    return failed ? -1 : 0;
}

static int collect_inputs(PyObject *tensors, Inputs *inputs)
{
    Py_ssize_t count = PyList_Size(tensors);
    if (count < 0)
        return -1;
    for (Py_ssize_t position = 0; position < count; position++) {
        PyObject *tensor = PyList_GetItem(tensors, position);
        int wanted = has(tensor, text_requires_grad);
        if (wanted < 0)
            return -1;
        if (!wanted)
            continue;
        int is_view = asks(tensor, text__is_view);
        if (is_view < 0 ||
            (is_view ? add_view(inputs, tensor, position) : add_input(inputs, tensor, position)))
            return -1;
    }
    return 0;
}

PyObject *take_edges(PyObject *tensors)
{
    if (!edges_class || !PyList_Check(tensors)) {
        PyErr_SetString(PyExc_TypeError, "wanted set_up, and then a list of tensors");
        return NULL;
    }
    Inputs inputs = {NULL, NULL, NULL};
    PyObject *count = PyLong_FromSsize_t(PyList_Size(tensors)), *is_cast = NULL, *edges = NULL;
    if (count && !collect_inputs(tensors, &inputs))
        is_cast = inputs.leaves ? PyObject_CallObject(is_autocast_on, NULL) : Py_NewRef(Py_False);
    if (is_cast) {
        edges = make_empty(edges_class);
        if (edges &&
            (PyObject_SetAttr(edges, text_count, count) ||
             PyObject_SetAttr(edges, text_leaves, inputs.leaves ? inputs.leaves : no_places) ||
             PyObject_SetAttr(edges, text_nodes, inputs.nodes ? inputs.nodes : no_places) ||
             PyObject_SetAttr(edges, text_is_cast, is_cast) ||
             PyObject_SetAttr(edges, text_views, no_places) ||
             PyObject_SetAttr(edges, text__view_inputs, inputs.views ? inputs.views : no_views)))
            Py_CLEAR(edges);
    }
    Py_XDECREF(inputs.leaves);
    Py_XDECREF(inputs.nodes);
    Py_XDECREF(inputs.views);
    Py_XDECREF(count);
    Py_XDECREF(is_cast);
    return edges;
}

static PyObject *take(PyObject *self, PyObject *tensors)
{
    (void)self;
    return take_edges(tensors);
}

/* Whether a node was made since the call began; -1 on failure. */
static int is_new(PyObject *node, uint64_t start)
{
    if (node == Py_None)
        return 0;
    PyObject *number = PyObject_CallMethodObjArgs(node, text__sequence_nr, NULL);
    if (!number)
        return -1;
    uint64_t value = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (value == UINT64_MAX && PyErr_Occurred())
        return -1;
    return value >= start && value < NEWEST;
}

typedef enum { FAILED = -1, UNUSUAL = 0, DONE = 1 } Outcome;

/* Add one output's place to those of a node, which is not taken over. */
static int add_root(PyObject *roots, PyObject *node, PyObject *tensor, Py_ssize_t position, PyObject *cut)
{
    PyObject *number = PyObject_GetAttr(tensor, text_output_nr);
    PyObject *place = PyLong_FromSsize_t(position);
    PyObject *output = number && place ? PyTuple_Pack(3, number, place, cut) : NULL;
    Py_XDECREF(number);
    Py_XDECREF(place);
    return append_to(roots, node, output);
}

static PyObject *as_tuple(const int64_t *numbers, int32_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int32_t i = 0; tuple && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (!number || PyTuple_SetItem(tuple, i, number))
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* Return where a view lies in its base, as place_in_base does. */
static PyObject *cut_of(PyObject *tensor, PyObject *base)
{
    Shown view, whole;
    int are_shown = show_tensor(tensor, &view) && show_tensor(base, &whole) && view.data && whole.data &&
                    view.strides && whole.strides;
    int64_t bytes = are_shown ? whole.bits * whole.lanes / 8 : 0;
    if (!bytes || view.code != whole.code || view.bits != whole.bits || view.lanes != whole.lanes)
        return PyObject_CallFunctionObjArgs(place_in_base, tensor, NULL);
    int64_t offset = (int64_t)((char *)view.data - (char *)whole.data) / bytes;
    PyObject *fields[] = {as_tuple(view.shape, view.dimensions), as_tuple(view.strides, view.dimensions),
                          PyLong_FromLongLong(offset), as_tuple(whole.shape, whole.dimensions),
                          as_tuple(whole.strides, whole.dimensions)};
    PyObject *all = NULL;
    if (fields[0] && fields[1] && fields[2] && fields[3] && fields[4])
        all = PyTuple_Pack(5, fields[0], fields[1], fields[2], fields[3], fields[4]);
    for (int i = 0; i < 5; i++)
        Py_XDECREF(fields[i]);
    return make_cut(all);
}

/* Add the node that made a view's base, if the call did; DONE if the view's own node counts, too. */
static Outcome add_base(PyObject *roots, PyObject *tensor, PyObject *views, Py_ssize_t position,
                        uint64_t start, int *is_enough)
{
    for (Py_ssize_t i = 0; i < PyList_Size(views); i++)
        if (PyTuple_GetItem(PyList_GetItem(views, i), 1) == tensor)
            return UNUSUAL;
    PyObject *base = PyObject_GetAttr(tensor, text__base), *cut = NULL;
    PyObject *node = base ? PyObject_GetAttr(base, text_grad_fn) : NULL;
    int made_here = node ? is_new(node, start) : -1;
    int failed = made_here < 0;
    *is_enough = 0;
    if (made_here > 0) {
        cut = cut_of(tensor, base);
        failed = !cut;
        if (cut && cut != Py_None) {
            *is_enough = has(tensor, text__version);
            failed = *is_enough < 0 || add_root(roots, node, base, position, cut);
        }
    }
    Py_XDECREF(cut);
    Py_XDECREF(base);
    Py_XDECREF(node);
    return failed ? FAILED : DONE;
}

static Outcome find_roots(PyObject *outputs, PyObject *views, uint64_t start, PyObject *roots)
{
    Py_ssize_t count = PyList_Size(outputs);
    if (count < 0)
        return FAILED;
    for (Py_ssize_t position = 0; position < count; position++) {
        PyObject *tensor = PyList_GetItem(outputs, position);
        int wanted = has(tensor, text_requires_grad);
        if (wanted < 0)
            return FAILED;
        if (!wanted)
            continue;
        int is_view = asks(tensor, text__is_view);
        if (is_view < 0)
            return FAILED;
        if (is_view) {
            int is_enough;
            Outcome outcome = add_base(roots, tensor, views, position, start, &is_enough);
            if (outcome != DONE)
                return outcome;
            if (is_enough)
                continue;
        }
        PyObject *node = PyObject_GetAttr(tensor, text_grad_fn);
        int made_here = node ? is_new(node, start) : -1;
        if (made_here > 0)
            made_here = add_root(roots, node, tensor, position, Py_None) ? -1 : 1;
        Py_XDECREF(node);
        if (made_here < 0)
            return FAILED;
    }
    return DONE;
}

/* Whether no input that is a view was written into, by this call or before it. */
static Outcome are_views_untouched(PyObject *views)
{
    for (Py_ssize_t i = 0; i < PyList_Size(views); i++) {
        PyObject *tensor = PyTuple_GetItem(PyList_GetItem(views, i), 1);
        int is_written = has(tensor, text__version);
        if (is_written)
            return is_written < 0 ? FAILED : UNUSUAL;
    }
    return DONE;
}

/* Set the places that the gradient over an edge goes to, a new reference or NULL, and its change. */
static int find_places(PyObject *edge, PyObject *child, PyObject *edges, PyObject *nodes,
                       PyObject *leaves, int is_cast, PyObject **places, PyObject **change)
{
    *places = PyDict_GetItemWithError(nodes, edge);
    *change = Py_None;
    if (!*places && !PyErr_Occurred() && PyDict_Size(leaves)) {
        if ((PyObject *)Py_TYPE(child) == leaf_node_class) {
            PyObject *leaf = PyObject_GetAttr(child, text_variable);
            PyObject *key = leaf ? PyLong_FromVoidPtr(leaf) : NULL;
            *places = key ? PyDict_GetItemWithError(leaves, key) : NULL;
            Py_XDECREF(key);
            Py_XDECREF(leaf);
        } else if (is_cast) {
            PyObject *both = PyObject_CallMethodObjArgs(edges, text_positions_under_cast, child, NULL);
            if (!both)
                return -1;
            *places = PyTuple_GetItem(both, 0);
            *change = PyTuple_GetItem(both, 1);
            if (*places == Py_None)
                *places = NULL;
            Py_XINCREF(*places);
            Py_XINCREF(*change);
            Py_DECREF(both);
            return *change ? 0 : -1;
        }
    }
    Py_XINCREF(*places);
    Py_INCREF(*change);
    return PyErr_Occurred() ? -1 : 0;
}

/* Note over which edge a node of the piece is reached; None if over several. */
static int note_edge(PyObject *incoming, PyObject *child, PyObject *node, Py_ssize_t number)
{
    PyObject *edge = Py_BuildValue("On", node, number);
    int failed = !edge || PyDict_SetItem(incoming, child, edge);
    Py_XDECREF(edge);
    return failed;
}

static int walk(PyObject *pending, PyObject *incoming, PyObject *edges, PyObject *nodes, PyObject *leaves,
                int is_cast, uint64_t start, PyObject *leaving)
{
    for (Py_ssize_t left; (left = PyList_Size(pending)) > 0;) {
        PyObject *node = PyList_GetItem(pending, left - 1);
        Py_INCREF(node);
        PyObject *next = PyObject_GetAttr(node, text_next_functions);
        int failed = !next || PyList_SetSlice(pending, left - 1, left, NULL);
        Py_ssize_t count = failed ? 0 : PyTuple_Size(next);
        for (Py_ssize_t number = 0; !failed && number < count; number++) {
            PyObject *edge = PyTuple_GetItem(next, number), *child = PyTuple_GetItem(edge, 0);
            PyObject *places = NULL, *change = NULL;
            if (!child || child == Py_None) {
                failed = !child;
                continue;
            }
            failed = find_places(edge, child, edges, nodes, leaves, is_cast, &places, &change);
            if (!failed && places) {
                PyObject *place = PyLong_FromSsize_t(number);
                failed = !place || append_to(leaving, node, PyTuple_Pack(3, place, places, change));
                Py_XDECREF(place);
            } else if (!failed) {
                int known = PyDict_Contains(incoming, child);
                int made_here = known ? 0 : is_new(child, start);
                failed = known < 0 || made_here < 0;
                if (made_here > 0)
                    failed = note_edge(incoming, child, node, number) || PyList_Append(pending, child);
                else if (known > 0)
                    failed = PyDict_SetItem(incoming, child, Py_None);
            }
            Py_XDECREF(places);
            Py_XDECREF(change);
        }
        Py_XDECREF(next);
        Py_DECREF(node);
        if (failed)
            return -1;
    }
    return 0;
}

static Outcome walk_from(PyObject *roots, PyObject *edges, uint64_t start, PyObject *leaving,
                            PyObject *incoming)
{
    PyObject *nodes = PyObject_GetAttr(edges, text_nodes), *leaves = PyObject_GetAttr(edges, text_leaves);
    PyObject *pending = NULL;
    int failed = !nodes || !leaves;
    if (!failed && (PyDict_Size(nodes) || PyDict_Size(leaves))) {
        int is_cast = has(edges, text_is_cast);
        pending = PySequence_List(roots);
        failed = is_cast < 0 || !pending;
        for (Py_ssize_t i = 0; !failed && i < PyList_Size(pending); i++)
            failed = PyDict_SetItem(incoming, PyList_GetItem(pending, i), Py_None);
        failed = failed || walk(pending, incoming, edges, nodes, leaves, is_cast, start, leaving);
    }
    Py_XDECREF(nodes);
    Py_XDECREF(leaves);
    Py_XDECREF(pending);
    return failed ? FAILED : DONE;
}

/* Find the roots of a usual call whose views nobody wrote into. */
static Outcome find_usual_roots(PyObject *outputs, PyObject *views, uint64_t start, PyObject *roots)
{
    Outcome outcome = views && roots ? find_roots(outputs, views, start, roots) : FAILED;
    return outcome == DONE && PyDict_Size(roots) ? are_views_untouched(views) : outcome;
}

static PyObject *find(PyObject *self, PyObject *args)
{
    PyObject *outputs, *edges, *found = NULL;
    unsigned long long start;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!OK", &PyList_Type, &outputs, &edges, &start))
        return NULL;
    PyObject *views = PyObject_GetAttr(edges, text__view_inputs);
    PyObject *roots = PyDict_New(), *leaving = PyDict_New(), *incoming = PyDict_New();
    Outcome outcome = leaving && incoming ? find_usual_roots(outputs, views, start, roots) : FAILED;
    if (outcome == DONE && PyDict_Size(roots))
        outcome = walk_from(roots, edges, start, leaving, incoming);
    if (outcome == DONE)
        found = PyTuple_Pack(3, roots, leaving, incoming);
    else if (outcome == UNUSUAL)
        found = Py_NewRef(Py_None);
    Py_XDECREF(views);
    Py_XDECREF(roots);
    Py_XDECREF(leaving);
    Py_XDECREF(incoming);
    return found;
}

/* Whether a view's own node only gives the gradient that its base's node gets another shape. */
static int is_reshaping(PyObject *own, PyObject *base)
{
    PyObject *next = PyObject_GetAttr(own, text_next_functions);
    if (!next)
        return -1;
    int is_above = PyTuple_Size(next) == 1 && PyTuple_GetItem(PyTuple_GetItem(next, 0), 0) == base;
    Py_DECREF(next);
    PyObject *answer = is_above ? PyObject_CallFunctionObjArgs(only_reshapes, own, NULL) : NULL;
    int is_so = answer ? PyObject_IsTrue(answer) : is_above ? -1 : 0;
    Py_XDECREF(answer);
    return is_so;
}

/* Set the only node and its places; UNUSUAL if there are more, or a place is a part of a base. */
static Outcome single_root(PyObject *roots, int may_cut, PyObject **found)
{
    PyObject *node, *places, *other;
    Py_ssize_t at = 0, count = PyDict_Size(roots);
    if (!PyDict_Next(roots, &at, &node, &places)) {
        *found = PyTuple_New(0);
        return *found ? DONE : FAILED;
    }
    for (Py_ssize_t i = 0; !may_cut && i < PyList_Size(places); i++)
        if (PyTuple_GetItem(PyList_GetItem(places, i), 2) != Py_None)
            return UNUSUAL;
    if (count == 2 && may_cut && PyDict_Next(roots, &at, &other, NULL)) {
        int is_enough = is_reshaping(other, node);
        if (is_enough < 0)
            return FAILED;
        count -= is_enough;
    }
    if (count > 1)
        return UNUSUAL;
    *found = PyTuple_Pack(2, node, places);
    return *found ? DONE : FAILED;
}

PyObject *root_of(PyObject *outputs, PyObject *edges, uint64_t start, int passes_over_shapes)
{
    PyObject *found = NULL;
    PyObject *views = PyObject_GetAttr(edges, text__view_inputs), *roots = PyDict_New();
    Outcome outcome = find_usual_roots(outputs, views, start, roots);
    if (outcome == DONE)
        outcome = single_root(roots, passes_over_shapes && PyList_Size(outputs) == 1, &found);
    /* Views are tensors, which must not live until the backward pass. */
    if (outcome == DONE && PyList_Size(views) && PyList_SetSlice(views, 0, PyList_Size(views), NULL))
        Py_CLEAR(found);
    Py_XDECREF(views);
    Py_XDECREF(roots);
    return outcome == UNUSUAL ? Py_NewRef(Py_None) : found;
}

static PyObject *root(PyObject *self, PyObject *args)
{
    PyObject *outputs, *edges;
    unsigned long long start;
    int passes_over_shapes;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!OKp", &PyList_Type, &outputs, &edges, &start, &passes_over_shapes))
        return NULL;
    return root_of(outputs, edges, start, passes_over_shapes);
}

int leave_from(PyObject *node, PyObject *edges, uint64_t start, PyObject *leaving, PyObject *incoming)
{
    PyObject *roots = PyTuple_Pack(1, node);
    int failed = !roots || walk_from(roots, edges, start, leaving, incoming) != DONE;
    Py_XDECREF(roots);
    return failed ? -1 : 0;
}

static PyObject *leave(PyObject *self, PyObject *args)
{
    PyObject *node, *edges, *found = NULL;
    unsigned long long start;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOK", &node, &edges, &start))
        return NULL;
    PyObject *leaving = PyDict_New(), *incoming = PyDict_New();
    if (leaving && incoming && !leave_from(node, edges, start, leaving, incoming))
        found = PyTuple_Pack(2, leaving, incoming);
    Py_XDECREF(leaving);
    Py_XDECREF(incoming);
    return found;
}

static PyObject *set_up(PyObject *self, PyObject *args)
{
    PyObject **kept[] = {&edges_class, &view_class, &leaf_node_class, &is_autocast_on, &place_in_base,
                         &only_reshapes, &place_class};
    (void)self;
    return keep_given(args, kept, 7);
}

PyMethodDef graph_methods[] = {
    {"set_up_graph", set_up, METH_VARARGS, "Take the classes of graph_edges.py."},
    {"take_edges", take, METH_O, "Return where the gradients of tensors go."},
    {"find_nodes", find, METH_VARARGS, "Return the nodes that a call's gradients come in at and leave from."},
    {"find_root", root, METH_VARARGS, "Return the one node that a call's gradients come in at."},
    {"find_leaving", leave, METH_VARARGS, "Return the nodes that they leave from."},
    {NULL, NULL, 0, NULL},
};

int begin_graph(void)
{
    no_places = PyDict_New();
    no_views = PyList_New(0);
    return no_places && no_views ? 0 : -1;
}
