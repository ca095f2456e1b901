/* Drafts of tensors whose data are kept: a second name of the file that was written before, or a new file.
 *
 *     a tensor -> known? a link : shown by DLPack, on the host? a file and numbers, by the team
 *
 * As Recorder._draft_kept, KeptData and TensorFiles do it, which say why, and which do all others.
 */

#include "_calls.h"

#include "../_sides.h"

#include <string.h>

/* Of a file's name, in bytes. */
#define LONGEST_NAME 255

/* Below so many bytes without a gap, torch's threads copy them faster. */
#define SHORTEST_RUN 256

enum { ON_HOST = 1 };

/* Return a file's name where a value's name and this ending are one; NULL, without an error: ask Python. */
static PyObject *plain_name(PyObject *name, PyObject *suffix)
{
    Py_ssize_t size, ending;
    const char *text = PyUnicode_AsUTF8AndSize(name, &size);
    if (!text || !PyUnicode_AsUTF8AndSize(suffix, &ending)) {
        PyErr_Clear();
        return NULL;
    }
    int is_plain = size + ending <= LONGEST_NAME && size == PyUnicode_GetLength(name) &&
                   !memchr(text, '/', (size_t)size) && !memchr(text, 0, (size_t)size);
    return is_plain ? PyUnicode_Concat(name, suffix) : NULL;
}

/* Make a file of a name that was taken for it, as PendingFile's own function does. */
static PyObject *make_file(Gate *self, PyObject *files, PyObject *name, PyObject *data_name, PyObject *suffix,
                           PyObject *frame)
{
    PyObject *file = make_empty(self->file_class), *folder = PyObject_GetAttr(files, text__folder);
    if (file && (!folder || PyObject_SetAttr(file, text__name, name) || PyObject_SetAttr(file, text__folder, folder) ||
                 PyObject_SetAttr(file, text__promised_name, data_name) || PyObject_SetAttr(file, text_suffix, suffix) ||
                 give(file, text_path, PyUnicode_FromFormat("%U/%U", folder, data_name)) ||
                 PyObject_SetAttr(file, text_frame, frame) ||
                 give(file, text__lose, PyObject_GetAttr(files, text__lose)) ||
                 PyObject_SetAttr(file, text__lock, Py_None) || PyObject_SetAttr(file, text__hidden, Py_None) ||
                 give(file, text__followers, PyList_New(0)) || give(file, text__parts_left, PyLong_FromLong(0)) ||
                 PyObject_SetAttr(file, text__error, Py_None) || PyObject_SetAttr(file, text_data_name, data_name) ||
                 PyObject_SetAttr(file, text_is_done, Py_False)))
        Py_CLEAR(file);
    Py_XDECREF(folder);
    return file;
}

/* Take a name for a file; None if it is taken. */
static PyObject *take_name(Gate *self, PyObject *files, PyObject *name, PyObject *suffix, PyObject *frame)
{
    PyObject *data_name = plain_name(name, suffix), *names = PyObject_GetAttr(files, text_names);
    PyObject *taken = names ? PyObject_GetAttr(names, text__names) : NULL, *file = NULL;
    int is_taken = !taken ? -1 : data_name ? PySet_Contains(taken, data_name) : 1;
    if (is_taken > 0)
        /* Which says so. */
        file = PyObject_CallMethodObjArgs(files, text__take, name, suffix, frame, NULL);
    else if (!is_taken && !PySet_Add(taken, data_name))
        file = make_file(self, files, name, data_name, suffix, frame);
    Py_XDECREF(data_name);
    Py_XDECREF(names);
    Py_XDECREF(taken);
    return file;
}

/* Promise a file of this frame, or a second name of one; None if there can be none. */
static PyObject *promise(Gate *self, PyObject *name, PyObject *suffix, PyObject *frame)
{
    PyObject *files = PyObject_GetAttr(self->writer, text_tensor_files);
    PyObject *file = files && files != Py_None ? take_name(self, files, name, suffix, frame) : Py_XNewRef(files);
    Py_XDECREF(files);
    if (file && file != Py_None) {
        PyObject *waits = PyObject_CallFunctionObjArgs(self->await_file, file, NULL);
        if (!waits)
            Py_CLEAR(file);
        Py_XDECREF(waits);
    }
    return file;
}

/* Draft a tensor that is known, as a second name of its file. */
static PyObject *draft_linked(Gate *self, PyObject *tensor, PyObject *name, PyObject *known, PyObject *source)
{
    PyObject *suffix = PyObject_GetAttr(source, text_suffix), *frame = PyObject_GetAttr(source, text_frame);
    PyObject *file = suffix && frame ? promise(self, name, suffix, frame) : NULL;
    PyObject *measured = PyObject_GetAttr(known, text_measured), *checked = PyObject_GetAttr(known, text_checked);
    PyObject *draft = file && measured && checked ? make_draft(tensor, measured, checked) : NULL;
    int is_linked = draft && file != Py_None ? team_link((Team *)self->team, file, source) : 1;
    if (!is_linked) {
        PyObject *follows = PyObject_CallMethodObjArgs(file, text_follow, source, NULL);
        is_linked = follows ? 1 : -1;
        Py_XDECREF(follows);
    }
    if (draft && (is_linked < 0 || PyObject_SetAttr(draft, text_file, file)))
        Py_CLEAR(draft);
    Py_XDECREF(suffix);
    Py_XDECREF(frame);
    Py_XDECREF(file);
    Py_XDECREF(measured);
    Py_XDECREF(checked);
    return draft;
}

/* Return (frame, suffix) of a file with elements of these strides, None: C's; None if there can be none. */
static PyObject *frame_of(Gate *self, PyObject *tensor, PyObject *strides)
{
    PyObject *dtype = PyObject_GetAttr(tensor, text_dtype), *shape = PyObject_GetAttr(tensor, text_shape);
    PyObject *key = dtype && shape ? PyTuple_Pack(3, dtype, shape, strides) : NULL;
    PyObject *frame = key ? Py_XNewRef(PyDict_GetItemWithError(self->frames, key)) : NULL;
    if (key && !frame && !PyErr_Occurred()) {
        frame = PyObject_CallFunctionObjArgs(self->frame_of, dtype, shape, strides, NULL);
        if (frame && frame != Py_None && PyDict_SetItem(self->frames, key, frame))
            Py_CLEAR(frame);
    }
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    Py_XDECREF(key);
    return frame;
}

/* How the elements of a tensor lie in memory: its sides from the one with the shortest steps on, and the
 * strides that they have once they are written one after the other. */
typedef struct {
    int64_t count, strides[MOST_SIDES];
    int sides[MOST_SIDES], side_count;
    int is_dense, is_in_order;
    /* Of how many sides there are no gaps, and of how many bytes that is. */
    int run_sides;
    size_t run_size;
} Laid;

/* Find out; 0 if elements share memory, or there are none. */
static int lay(const Shown *shown, Laid *laid)
{
    laid->side_count = 0;
    laid->count = 1;
    for (int32_t i = shown->dimensions - 1; i >= 0; i--) {
        laid->count *= shown->shape[i];
        laid->strides[i] = 1;
        int place = laid->side_count;
        if (shown->shape[i] == 1)
            continue;
        for (; place && shown->strides[i] < shown->strides[laid->sides[place - 1]]; place--)
            laid->sides[place] = laid->sides[place - 1];
        laid->sides[place] = i;
        laid->side_count++;
    }
    int64_t step = 1, least = 1;
    laid->is_dense = laid->is_in_order = 1;
    laid->run_sides = 0;
    laid->run_size = shown->bits / 8;
    for (int k = 0; k < laid->side_count; k++) {
        int side = laid->sides[k];
        if (shown->strides[side] < least)
            return 0;
        laid->is_dense = laid->is_dense && shown->strides[side] == step;
        if (laid->is_dense) {
            laid->run_sides++;
            laid->run_size *= (size_t)shown->shape[side];
        }
        laid->is_in_order = laid->is_in_order && (!k || side < laid->sides[k - 1]);
        laid->strides[side] = step;
        least = shown->strides[side] * shown->shape[side];
        step *= shown->shape[side];
    }
    return laid->count > 0;
}

/* Copy what lies below one side in the order of memory, one run after the other; returns where the next goes. */
static char *gather(const Shown *shown, const Laid *laid, int side_number, const char *source, char *target)
{
    int side = laid->sides[side_number];
    int64_t step = shown->strides[side] * (shown->bits / 8);
    for (int64_t i = 0; i < shown->shape[side]; i++, source += step)
        if (side_number > laid->run_sides)
            target = gather(shown, laid, side_number - 1, source, target);
        else {
            memcpy(target, source, laid->run_size);
            target += laid->run_size;
        }
    return target;
}

/* Put elements with gaps into memory of our own, and return what gives that back; None: it takes Python. */
static PyObject *close_gaps(Gate *self, const Shown *shown, const Laid *laid, Elements *elements)
{
    if (laid->run_size < SHORTEST_RUN)
        Py_RETURN_NONE;
    PyObject *memory = PyObject_CallFunction(self->borrow, "n", elements->size), *address, *release;
    if (!memory || memory == Py_None)
        return memory;
    char *target = PyArg_ParseTuple(memory, "OO", &address, &release) ? PyLong_AsVoidPtr(address) : NULL;
    if (target) {
        Py_INCREF(release);
        Py_BEGIN_ALLOW_THREADS
        gather(shown, laid, laid->side_count - 1, elements->address, target);
        Py_END_ALLOW_THREADS
        elements->address = target;
    }
    Py_DECREF(memory);
    return target ? release : NULL;
}

/* Have elements measured; without them, the tensor. */
static PyObject *ask_team(Gate *self, PyObject *tensor, void *elements)
{
    return elements ? team_ask((Team *)self->team, tensor, elements)
                    : PyObject_CallMethodObjArgs(self->team, text_ask, tensor, NULL);
}

static PyObject *measure_kept(Gate *self, PyObject *tensor, Elements *elements)
{
    PyObject *owner = PyObject_GetAttr(tensor, text__base), *measured = NULL;
    if (owner == Py_None)
        measured = ask_team(self, tensor, elements);
    else if (owner && (measured = measure_view(self, tensor, owner, ask_team, elements)) == Py_None) {
        Py_DECREF(measured);
        measured = ask_team(self, tensor, NULL);
    }
    Py_XDECREF(owner);
    return measured;
}

/* Give memory back, whatever has been raised before; -1 if something is raised now. */
static int give_back(PyObject *release)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *given = PyObject_CallObject(release, NULL);
    Py_XDECREF(given);
    if (kind)
        PyErr_Restore(kind, value, trace);
    return PyErr_Occurred() ? -1 : 0;
}

/* Draft a tensor of these elements, with a file of its own. `release` gives them back; NULL: they are its own. */
static PyObject *draft_elements(Gate *self, PyObject *tensor, PyObject *name, PyObject *framed, Elements *elements,
                                PyObject *release)
{
    PyObject *draft = NULL, *measured = NULL, *frame, *suffix;
    PyObject *file = PyArg_ParseTuple(framed, "OO", &frame, &suffix) ? promise(self, name, suffix, frame) : NULL;
    int is_kept = file && file != Py_None;
    if (file)
        measured = measure_kept(self, tensor, is_kept || !release ? elements : NULL);
    if (measured && is_kept)
        is_kept = team_write((Team *)self->team, file, elements->address, elements->size, tensor, release) ? -1 : 1;
    else if (release && give_back(release))
        is_kept = -1;
    if (measured && is_kept >= 0)
        draft = draft_measured(self, tensor, measured, Py_None);
    if (draft && PyObject_SetAttr(draft, text_file, file))
        Py_CLEAR(draft);
    Py_XDECREF(file);
    Py_XDECREF(measured);
    return draft;
}

static PyObject *strides_of(const Shown *shown, const Laid *laid)
{
    if (laid->is_in_order)
        Py_RETURN_NONE;
    PyObject *strides = PyTuple_New(shown->dimensions);
    for (int32_t i = 0; strides && i < shown->dimensions; i++) {
        PyObject *stride = PyLong_FromLongLong(laid->strides[i]);
        if (!stride || PyTuple_SetItem(strides, i, stride))
            Py_CLEAR(strides);
    }
    return strides;
}

/* Draft a tensor of a type that the kernel knows; None: by Python. */
static PyObject *draft_laid(Gate *self, PyObject *tensor, PyObject *name, PyObject *type, const Shown *shown,
                            const Laid *laid)
{
    Elements elements = {(char *)shown->data + shown->offset, PyLong_FromLongLong(laid->count), type, tensor,
                         (Py_ssize_t)(laid->count * shown->bits / 8)};
    PyObject *strides = strides_of(shown, laid), *draft = NULL, *release = NULL;
    PyObject *framed = elements.count && strides ? frame_of(self, tensor, strides) : NULL;
    int is_usual = framed && framed != Py_None;
    if (is_usual && !laid->is_dense) {
        release = close_gaps(self, shown, laid, &elements);
        is_usual = release && release != Py_None;
    }
    if (is_usual)
        draft = draft_elements(self, tensor, name, framed, &elements, release);
    else if (framed && !PyErr_Occurred())
        draft = Py_NewRef(Py_None);
    Py_XDECREF(elements.count);
    Py_XDECREF(strides);
    Py_XDECREF(framed);
    Py_XDECREF(release);
    return draft;
}

/* Draft a tensor that none is known of; None: by Python. */
static PyObject *draft_new_file(Gate *self, PyObject *tensor, PyObject *name)
{
    Shown shown;
    Laid laid;
    if (self->with_checksums || PyDict_Size(self->drafts) >= self->many || !show_tensor(tensor, &shown) ||
        !shown.data || shown.device_type != ON_HOST || !shown.dimensions || shown.dimensions > MOST_SIDES ||
        !shown.strides || shown.code == COMPLEX || !lay(&shown, &laid) || laid.count > self->most_elements)
        Py_RETURN_NONE;
    int aside = is_true(PyObject_CallObject(self->writes_aside, NULL));
    /* Memory of a view that negates does not hold its numbers. */
    int is_other = aside ? aside : asks(tensor, text_is_neg);
    PyObject *dtype = is_other ? NULL : PyObject_GetAttr(tensor, text_dtype), *draft = NULL;
    PyObject *type = dtype ? PyDict_GetItemWithError(self->kernel_types, dtype) : NULL;
    if (type)
        draft = draft_laid(self, tensor, name, type, &shown, &laid);
    else if (!PyErr_Occurred())
        draft = Py_NewRef(Py_None);
    Py_XDECREF(dtype);
    return draft;
}

/* Draft a tensor by what is known of it, or by what it shows; None: by Python. */
static PyObject *draft_usual(Gate *self, PyObject *tensor, PyObject *name)
{
    PyObject *known = find_draft(self->drafts, tensor), *draft = NULL;
    if (known == Py_None)
        draft = draft_new_file(self, tensor, name);
    else if (known) {
        PyObject *source = PyObject_GetAttr(known, text_file);
        int is_lost = !source ? -1 : source == Py_None ? 1 : is_true(PyObject_GetAttr(source, text_is_lost));
        draft = is_lost < 0 ? NULL : is_lost ? Py_NewRef(Py_None) : draft_linked(self, tensor, name, known, source);
        Py_XDECREF(source);
    }
    Py_XDECREF(known);
    return draft;
}

PyObject *draft_kept(Gate *self, PyObject *tensor, const Place *place)
{
    int alone = self->is_alone ? 1 : is_alone(self);
    if (alone <= 0)
        return alone < 0 ? NULL : draft_by_python(self, tensor, place);
    PyObject *name = text_of(place);
    int is_kept = !name ? -1 : is_true(PyObject_CallFunctionObjArgs(self->is_kept, name, NULL));
    PyObject *draft = is_kept < 0 ? NULL : Py_NewRef(Py_None);
    if (is_kept > 0 && self->team != Py_None) {
        Py_DECREF(draft);
        draft = draft_usual(self, tensor, name);
    }
    if (draft == Py_None) {
        Py_DECREF(draft);
        draft = PyObject_CallFunctionObjArgs(self->keep, tensor, name, NULL);
    }
    Py_XDECREF(name);
    return draft;
}
