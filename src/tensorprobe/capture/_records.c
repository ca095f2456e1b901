/* Records at the end of the recorder's line, as Recorder.add puts them there. */

#include "_calls.h"

static PyObject *stack_of(Gate *self, PyObject *frame)
{
    PyObject *key = key_of_stack(frame, self->codes, self->deepest);
    PyObject *stack = key && key != Py_None ? PyDict_GetItemWithError(self->stacks, key) : NULL;
    Py_XINCREF(stack);
    int is_new = key && !stack && !PyErr_Occurred();
    Py_XDECREF(key);
    return is_new ? PyObject_CallObject(self->read_stack, NULL) : stack;
}

/* Whether numbers of a queue are still on a device; -1 on failure. */
static int is_waiting(PyObject *queue)
{
    long long asked = number_of(PyObject_GetAttr(queue, text_asked));
    PyObject *line = PyObject_GetAttr(queue, text__line);
    long long delivered = line ? number_of(PyObject_GetAttr(line, text_delivered)) : -1;
    Py_XDECREF(line);
    return PyErr_Occurred() ? -1 : asked > delivered;
}

/* Whether records need not be looked at yet, which are so many now; -1 on failure. */
static int may_wait(Gate *self, Py_ssize_t unlooked)
{
    PyObject *answer = PyObject_CallObject(self->monotonic, NULL);
    PyObject *looked = PyObject_GetAttr(self->recorder, text__looked);
    double waited = answer && looked ? PyFloat_AsDouble(answer) - PyFloat_AsDouble(looked) : 0;
    Py_XDECREF(answer);
    Py_XDECREF(looked);
    if (PyErr_Occurred())
        return -1;
    if (unlooked < self->together && waited < self->longest_wait)
        return 1;
    if (unlooked >= self->together_on_device || waited >= self->longest_wait_on_device)
        return 0;
    int waits = is_waiting(self->statistics);
    return waits ? waits : is_waiting(self->checksums);
}

/* Put a record, whose data are kept, at the end of the recorder's line. */
static int queue_kept(Gate *self, PyObject *record)
{
    /* Who writes records believes that all numbers from the host are there. */
    if (self->team != Py_None && team_finish((Team *)self->team))
        return -1;
    PyObject *added = PyObject_CallMethodObjArgs(self->recorder, text__add, record, NULL);
    Py_XDECREF(added);
    return added ? 0 : -1;
}

/* Put a record, which is taken over, at the end of the recorder's line. */
int queue_record(Gate *self, PyObject *record)
{
    if (self->keep != Py_None) {
        int failed = record ? queue_kept(self, record) : -1;
        Py_XDECREF(record);
        return failed;
    }
    PyObject *added = record ? PyObject_CallFunctionObjArgs(self->add_pending, record, NULL) : NULL;
    Py_XDECREF(record);
    Py_XDECREF(added);
    if (!added)
        return -1;
    long long unlooked = increase(self->recorder, text__unlooked);
    if (unlooked < 0)
        return -1;
    int waits = may_wait(self, (Py_ssize_t)unlooked);
    if (waits)
        return waits < 0 ? -1 : 0;
    PyObject *looked = call_method(self->recorder, text__look);
    Py_XDECREF(looked);
    return looked ? 0 : -1;
}

/* What is not there is NULL. */
PyObject *make_record(Gate *self, PyObject *name, PyObject *inputs, PyObject *named,
                             PyObject *parameters, PyObject *outputs, PyObject *is_recompute,
                             PyObject *stack, PyObject *parent)
{
    PyObject *record = make_empty(self->pending_class), *none = PyLong_FromLong(0);
    if (record && none &&
        (PyObject_SetAttr(record, text_name, name) ||
         PyObject_SetAttr(record, text_inputs, inputs ? inputs : Py_None) ||
         PyObject_SetAttr(record, text_kwargs, named ? named : Py_None) ||
         PyObject_SetAttr(record, text_outputs, outputs ? outputs : Py_None) ||
         PyObject_SetAttr(record, text_parameters, parameters ? parameters : Py_None) ||
         PyObject_SetAttr(record, text_saved, Py_None) ||
         PyObject_SetAttr(record, text_is_recompute, is_recompute) ||
         PyObject_SetAttr(record, text_defaults, Py_None) ||
         PyObject_SetAttr(record, text_stack, stack) || PyObject_SetAttr(record, text_parent, parent) ||
         give(record, text_statistics, PyObject_GetAttr(self->statistics, text_asked)) ||
         give(record, text_checksums, PyObject_GetAttr(self->checksums, text_asked)) ||
         PyObject_SetAttr(record, text_files, none)))
        Py_CLEAR(record);
    Py_XDECREF(none);
    return record;
}

int add_record(Gate *self, Call *call, PyObject *result, PyObject *frame, PyObject *parent)
{
    PyObject *values = values_of(result);
    PyObject *outputs = NULL, *stack = NULL;
    int failed = !values || lock_records(self);
    if (!failed) {
        self->is_alone = 1;
        outputs = draft_all(self, values, call->name, "output");
        stack = outputs ? stack_of(self, frame) : NULL;
        failed = !stack || queue_record(self, make_record(self, call->name, call->inputs, call->named,
                                                   call->parameters, outputs, Py_False, stack, parent));
        failed = unlock_records(self) || failed;
    }
    Py_XDECREF(values);
    Py_XDECREF(outputs);
    Py_XDECREF(stack);
    return failed ? -1 : 0;
}
