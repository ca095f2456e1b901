/* What the parts of capture's compiled module use of each other. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* The names of attributes and methods, as objects of Python. */
#define TEXTS(X)                                                                                     \
    X(__dict__) X(__enter__) X(__exit__) X(_ask_quickly) X(_ask_unseen) X(_base) X(_draft_tensor)    \
    X(_is_view) X(_line) X(_look) X(_looked) X(_sequence_nr) X(_text) X(_threads) X(_unlooked)       \
    X(_unsent) X(_version) X(_view_inputs) X(acquire) X(alive) X(ask) X(asked) X(checked) X(checksums)          \
    X(count) X(data_ptr) X(defaults) X(delivered) X(detach) X(done) X(dtype) X(edges) X(f_back)      \
    X(f_code) X(f_lasti) X(fail) X(file) X(files) X(forget_tensors) X(full_name) X(get_device)       \
    X(grad_fn) X(hook) X(inputs) X(is_active) X(is_cast) X(is_conj) X(is_contiguous)                 \
    X(is_inference) X(is_meta) X(is_neg) X(is_nested) X(is_paused) X(is_recompute) X(is_sealed)      \
    X(kwargs) X(layout) X(leaves) X(measured) X(name) X(next_functions) X(next_number) X(nodes)      \
    X(note_place) X(numbers) X(numel) X(output_nr) X(outputs) X(parameters) X(parent) X(pass_over)   \
    X(positions_under_cast) X(register_hook) X(release) X(requires_grad) X(running) X(saved)         \
    X(send) X(shape) X(stack) X(start) X(statistics) X(stride) X(variable) X(version) X(views)       \
    X(watch_gradients) X(watcher)
#define DECLARE(text) extern PyObject *text_##text;
TEXTS(DECLARE)

/* What a gate uses of the session's parts, by the names that gate.py gives them. */
#define PARTS(X)                                                                                     \
    X(session) X(modules) X(recorder) X(gradients) X(statistics) X(checksums) X(drafts) X(owners)    \
    X(memory_class) X(merge) X(known_ints) X(counters) X(pending_class) X(add_pending) X(lock)       \
    X(hook_class) X(done) X(add_handle) X(stacks) X(codes) X(read_stack) X(inside_custom)            \
    X(tensor_class) X(parameter_class) X(no_name) X(as_spelled) X(describe) X(tensors_in)            \
    X(is_grad_enabled) X(next_sequence_number) X(current_pass) X(current_node)                       \
    X(count_dispatch_modes) X(is_transforming) X(monotonic) X(pass_over_shapes)                      \
    X(without_functions) X(backward_of) X(opened)
/* What torch asks about is known only where the gate is a mode's. */
#define MODE_PARTS(X) X(mode) X(slow) X(functions) X(as_written) X(is_machinery)

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

/* One call, between its beginning and its record; everything is owned. */
typedef struct {
    PyObject *name, *backward, *inputs, *named, *parameters, *edges, *start;
    int is_sealed;
} Call;

/* Unless something else is said: new references, NULL on failure; 0 if it worked, -1 on failure. */

/* _gate.c */

/* An object of a class written in Python, none of whose attributes is set. */
PyObject *make_empty(PyObject *its_class);
/* Set an attribute to a value, which is taken over and may be NULL. */
int give(PyObject *object, PyObject *attribute, PyObject *value);
/* What an answer says, which is taken over and may be NULL; -1 on failure, or if it is that. */
int is_true(PyObject *answer);
long long number_of(PyObject *answer);
/* The answer of a method without arguments, and whether it is true. */
PyObject *call_method(PyObject *object, PyObject *method);
int asks(PyObject *object, PyObject *method);
/* Add one to a number that an object holds, and return it. */
long long increase(PyObject *object, PyObject *attribute);
/* Whether no mode or transform would see what a tensor is read with. */
int is_alone(Gate *self);
int lock_records(Gate *self);
int unlock_records(Gate *self);
/* Count a failure of ours, so that the user's call goes on; -1 if it must not, as with Ctrl-C. */
int report_failure(Gate *self, PyObject *name);

/* _values.c: drafts of values, and the tensors in them. `named` may be NULL. */

PyObject *draft_all(Gate *self, PyObject *values);
PyObject *draft_named(Gate *self, PyObject *values);
PyObject *tensors_of(Gate *self, PyObject *values, PyObject *named);

/* _records.c: a record takes nothing over; queue_record takes it. */

PyObject *make_record(Gate *self, PyObject *name, PyObject *inputs, PyObject *named,
                      PyObject *parameters, PyObject *outputs, PyObject *is_recompute, PyObject *stack,
                      PyObject *parent);
int queue_record(Gate *self, PyObject *record);
int add_record(Gate *self, Call *call, PyObject *result, PyObject *frame, PyObject *parent);

/* _calls.c: methods of a gate. */

PyObject *answer_torch(PyObject *object, PyObject *given, PyObject *named);
PyObject *enter_module(PyObject *object, PyObject *args);
PyObject *leave_module(PyObject *object, PyObject *args);

/* _gradients.c: another. */

PyObject *on_root(PyObject *object, PyObject *args);

/* _drafts.c; None where there is nothing. */

extern PyMethodDef draft_methods[];
PyObject *find_draft(PyObject *drafts, PyObject *tensor);
PyObject *make_draft(PyObject *tensor, PyObject *measured, PyObject *checked);
PyObject *key_of_stack(PyObject *frame, PyObject *shown, Py_ssize_t limit);
int looks_plain(PyObject *tensor);

/* _graph.c */

extern PyMethodDef graph_methods[];
int begin_graph(void);
PyObject *take_edges(PyObject *tensors);
/* Fill two dicts, as find_leaving returns them. */
int leave_from(PyObject *node, PyObject *edges, uint64_t start, PyObject *leaving, PyObject *incoming);
PyObject *root_of(PyObject *outputs, PyObject *edges, uint64_t start, int passes_over_shapes);
