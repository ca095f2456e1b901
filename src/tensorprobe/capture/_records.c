/* Records at the end of the recorder's line, as Recorder.add puts them there. */

#include "_calls.h"

PyObject *stack_of(FastRecorder *self, PyObject *frame)
{
    if (self->codes == Py_None)
        return PyObject_CallObject(self->read_stack, NULL);
    PyObject *key = key_of_stack(frame, self->codes, self->deepest);
    PyObject *stack = key && key != Py_None ? PyDict_GetItemWithError(self->stacks, key) : NULL;
    Py_XINCREF(stack);
    int is_new = key && !stack && !PyErr_Occurred();
    Py_XDECREF(key);
    return is_new ? PyObject_CallObject(self->read_stack, NULL) : stack;
}

/* Put a record, which is taken over, at the end of the recorder's line. */
int queue_record(FastRecorder *self, PyObject *record)
{
    /* Who writes records believes that all numbers from the host are there. */
    int failed = !record || (self->pool != Py_None && pool_finish((HostWritePool *)self->pool));
    PyObject *added = failed ? NULL : PyObject_CallMethodObjArgs(self->recorder, text__add, record, NULL);
    Py_XDECREF(record);
    Py_XDECREF(added);
    return added ? 0 : -1;
}

/* What is not there is NULL. */
PyObject *make_record(FastRecorder *self, PyObject *name, PyObject *inputs, PyObject *named,
                             PyObject *parameters, PyObject *outputs, PyObject *is_recompute,
                             PyObject *stack, PyObject *parent)
{
    PyObject *record = make_empty(self->pending_class);
    if (record &&
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
         give(record, text_checksums, PyObject_GetAttr(self->checksums, text_asked))))
        Py_CLEAR(record);
    return record;
}

int note_beginning(FastRecorder *self, Call *call, PyObject *frame)
{
    call->stack = stack_of(self, frame);
    PyObject *noted =
        call->stack ? PyObject_CallFunctionObjArgs(self->begin, call->name, call->stack, NULL) : NULL;
    Py_XDECREF(noted);
    return noted ? 0 : -1;
}

int add_record(FastRecorder *self, Call *call, PyObject *result, PyObject *parent)
{
    PyObject *values = values_of(result);
    PyObject *outputs = NULL;
    int failed = !values || lock_records(self);
    if (!failed) {
        self->is_alone = 1;
        outputs = draft_all(self, values, call->name, "output");
        failed = !outputs ||
                 queue_record(self, make_record(self, call->name, call->inputs, call->named, call->parameters,
                                                outputs, Py_False, call->stack, parent));
        failed = unlock_records(self) || failed;
    }
    Py_XDECREF(values);
    Py_XDECREF(outputs);
    return failed ? -1 : 0;
}
