/* What the parts of capture's compiled module use of each other. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "../_exchange.h"

/* The names of attributes and methods, as objects of Python. */
#define TEXTS(X)                                                                                     \
    X(__dict__) X(__enter__) X(__exit__) X(__name__) X(_add) X(_ask_quickly) X(_ask_unseen)          \
    X(_base) X(_draft_tensor) X(_forward_hooks) X(_forward_pre_hooks) X(_is_view) X(_modules)        \
    X(_parameters) X(_sequence_nr) X(_text) X(_threads) X(_unsent) X(_version) X(_view_inputs)       \
    X(acquire) X(alive) X(args) X(ask) X(asked) X(call) X(checked) X(checksums) X(count)             \
    X(data_ptr) X(defaults) X(detach) X(done) X(dtype) X(edges) X(end) X(f_back) X(f_lasti)          \
    X(f_locals) X(fail) X(file) X(find_rest) X(follow) X(follow_uncalled) X(forget_tensors)          \
    X(forward) X(frame) X(full_name) X(get_device) X(grad_fn) X(has_inner) X(hook) X(inputs)         \
    X(is_active) X(is_by_python) X(is_cast) X(is_conj) X(is_contiguous) X(is_done) X(is_inference)   \
    X(is_late) X(is_lost) X(is_meta) X(is_neg) X(is_nested) X(is_paused) X(is_recompute)             \
    X(is_sealed) X(kwargs) X(layout) X(leave) X(leaves) X(measured) X(memory) X(missing) X(module)   \
    X(n_sequence_fields) X(name) X(next_functions) X(next_number) X(nodes) X(note_place) X(number)   \
    X(numbers) X(numel) X(of_inputs) X(of_outputs) X(open_pass) X(output_nr) X(outputs)              \
    X(parameters) X(parent) X(pass_over) X(path) X(positions_under_cast) X(register_hook)            \
    X(release) X(requires_grad) X(running) X(saved) X(send) X(shape) X(stack) X(start)               \
    X(statistics) X(stride) X(task) X(unused) X(variable) X(version) X(views) X(watch_gradients)     \
    X(watcher) X(write)
#define DECLARE(text) extern PyObject *text_##text;
TEXTS(DECLARE)

/* What a fast recorder uses of the session's parts, by the names that fast_recorder.py gives them. */
#define PARTS(X)                                                                                     \
    X(session) X(modules) X(recorder) X(gradients) X(statistics) X(checksums) X(drafts) X(owners)    \
    X(memory_class) X(merge) X(known_ints) X(counters) X(pending_class) X(begin) X(lock) X(done)     \
    X(add_handle) X(stacks) X(codes) X(read_stack) X(inside_custom) X(tensor_class)                  \
    X(parameter_class) X(no_name) X(as_spelled) X(describe) X(tensors_in) X(is_grad_enabled)         \
    X(next_sequence_number) X(current_pass) X(current_node) X(count_dispatch_modes)                  \
    X(is_transforming) X(without_functions) X(backward_of) X(opened) X(call_class)                   \
    X(node_hook_class) X(gradients_lock) X(keep) X(pool) X(written_tensors) X(add_raised)            \
    X(input_edges) X(pass_over_shapes)
/* What it uses of the watcher of modules, where there is one. */
#define MODULE_PARTS(X)                                                                              \
    X(kinds) X(kind_of) X(paths) X(running_class) X(hook_parameters)
/* What torch asks about is known only where the fast recorder is a mode's. */
#define MODE_PARTS(X) X(mode) X(slow) X(functions) X(note) X(as_written) X(is_machinery)

/* For fields of an object, and for what the collector asks of them. */
#define FIELD(part) PyObject *part;
#define CLEAR(part) Py_CLEAR(self->part);
#define VISIT(part) Py_VISIT(self->part);

typedef struct {
    PyObject_HEAD
    PARTS(FIELD)
    MODULE_PARTS(FIELD)
    /* The mode, for torch to find; what answers where a call is not usual; by function, None if its
     * calls do not count, else (api, full name, FLAGS); two questions about a call. */
    MODE_PARTS(FIELD)
    /* Names of backward calls by those of modules' forward calls. */
    PyObject *backward_names;
    Py_ssize_t deepest, many, batch;
    int with_checksums;
    int is_distributed;
    /* Where the last call was made that is known to the gradients. */
    unsigned long thread;
    long device;
    int has_place;
    /* Whether whoever holds the lock has asked whether it is alone. */
    int is_alone;
} FastRecorder;

/* One call, between its beginning and its record; all but what a function was given is owned. */
typedef struct {
    PyObject *name, *backward, *inputs, *named, *parameters, *edges, *start, *stack;
    PyObject *given, *given_named;
    /* As GradientWatcher.watch has them. */
    int is_sealed, is_late;
} Call;

/* Unless something else is said: new references, NULL on failure; 0 if it worked, -1 on failure. */

/* _fast_recorder.c */

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
int is_alone(FastRecorder *self);
/* Whether the gradients of a call are looked for behind changes of their shape: where data are kept, calls
 * hand over the same tensors. */
int passes_over(FastRecorder *self, int is_sealed);
int lock(PyObject *lock);
/* Release a lock, whatever has been raised meanwhile; -1 if something has. */
int unlock(PyObject *lock);
int lock_records(FastRecorder *self);
/* The same for records; what their data need is done before. */
int unlock_records(FastRecorder *self);
/* Keep torch's functions away from modes until end_own, which takes over what this returns and returns
 * -1 if something has been raised meanwhile. */
PyObject *begin_own(FastRecorder *self);
int end_own(PyObject *guard);
/* Free an object by what its type says of its parts. */
void free_with_parts(PyObject *object);
/* Keep what Python has handed over in order, in place of what was there; None. */
PyObject *keep_given(PyObject *args, PyObject **const *kept, Py_ssize_t count);
/* Take a part by its name out of what was handed over. */
int take_part(PyObject *parts, const char *name, PyObject **part);
/* The name of the backward call of a module's call, which many calls inside ask for. */
PyObject *backward_name(FastRecorder *self, PyObject *name);
/* The number of the next call that is counted under this key. */
PyObject *number_call(FastRecorder *self, PyObject *key);
/* Count a failure of ours, so that the user's call goes on; -1 if it must not, as with Ctrl-C. */
int report_failure(FastRecorder *self, PyObject *name);

/* _values.c: drafts of values, and the tensors in them. `named` may be NULL. */

/* Where a value stands: of this name, as the key or, without one, as the index of a part of it. */
typedef struct {
    PyObject *name, *key;
    const char *part;
    Py_ssize_t index;
} Place;


/* Where data are kept they go to files of these names, `{name}.{part}.{index or key}`; `part` may be NULL. */
PyObject *draft_all(FastRecorder *self, PyObject *values, PyObject *name, const char *part);
PyObject *draft_named(FastRecorder *self, PyObject *values, PyObject *name, const char *part);
PyObject *tensors_of(FastRecorder *self, PyObject *values, PyObject *named);
/* Return the values that a function returned, as a tuple. */
PyObject *values_of(PyObject *result);

/* _write_pool.c: what measures and writes the host's tensors; whoever asks holds its lock. */

typedef struct HostWritePool HostWritePool;
int begin_pool(PyObject *module);
int pool_finish(HostWritePool *self);

/* _records.c: a record takes nothing over; queue_record takes it. */

PyObject *make_record(FastRecorder *self, PyObject *name, PyObject *inputs, PyObject *named,
                      PyObject *parameters, PyObject *outputs, PyObject *is_recompute, PyObject *stack,
                      PyObject *parent);
int queue_record(FastRecorder *self, PyObject *record);
/* Say that a call begins, and where: a run that ends inside it is told from one that ends behind it. */
int note_beginning(FastRecorder *self, Call *call, PyObject *frame);
int add_record(FastRecorder *self, Call *call, PyObject *result, PyObject *parent);

/* _calls.c: a method of a fast recorder. */

PyObject *answer_torch(PyObject *object, PyObject *given, PyObject *named);
/* Parts of any call: what it is given, where the gradients of that go, and its record. */
int describe_before(FastRecorder *self, Call *call, PyObject *shown, PyObject *shown_named, PyObject *parameters);
int note_edges(FastRecorder *self, Call *call, PyObject *shown, PyObject *shown_named);
int look_after(FastRecorder *self, Call *call, PyObject *result, PyObject *parent);
void forget(Call *call);
/* Hook a node until the gradients are closed. */
int keep_hook(FastRecorder *self, PyObject *node, PyObject *hook);
/* Whether no backward pass, mode, transform or record of another kind is at work. */
int is_usual_moment(FastRecorder *self);

/* _modules.c: a method of a fast recorder. */

int begin_modules(void);
/* The module calls that run in this thread, the innermost last. */
PyObject *running_here(FastRecorder *self);
PyObject *watch_modules(PyObject *object, PyObject *parts);

/* _gradients.c: two more. */

PyObject *on_root(PyObject *object, PyObject *args);
PyObject *on_node(PyObject *object, PyObject *args);
int begin_gradients(void);
/* What the only root of a call calls; `outputs` says which of its gradients are of which of so many. */
PyObject *make_root(FastRecorder *self, Call *call, PyObject *parent, PyObject *outputs, Py_ssize_t count);

/* _pending_tensors.c; None where there is nothing. */

extern PyMethodDef draft_methods[];
PyObject *find_pending_tensor(PyObject *drafts, PyObject *tensor);
int remember_pending_tensor(PyObject *drafts, PyObject *tensor, PyObject *draft);
PyObject *make_pending_tensor(PyObject *tensor, PyObject *measured, PyObject *checked);
int looks_plain(PyObject *tensor);
/* Whether a tensor says what it is, by DLPack's exchange: 1 or 0. */
int show_tensor(PyObject *tensor, Shown *shown);

/* _frames.c */

extern PyMethodDef frame_methods[];
void begin_frames(void);
PyObject *key_of_stack(PyObject *frame, PyObject *shown, Py_ssize_t limit);
/* The value of a variable of a frame; NULL without an error if it has none. */
PyObject *local_of(PyObject *frame, PyObject *name);

/* _graph.c */

extern PyMethodDef graph_methods[];
int begin_graph(void);
PyObject *take_edges(PyObject *tensors);
/* Fill two dicts, as find_leaving returns them. */
int leave_from(PyObject *node, PyObject *edges, uint64_t start, PyObject *leaving, PyObject *incoming);
PyObject *root_of(PyObject *outputs, PyObject *edges, uint64_t start, int passes_over_shapes);
