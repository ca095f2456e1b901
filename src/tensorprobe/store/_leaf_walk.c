/* The leaves of one call from its JSON text.
 *
 *     {"input_args": [...], "input_kwargs": {...}, "parameters": {...}, "output": [...]}
 *         -> CallLeaves(name, [Leaf, ...], is_recompute)
 *
 * A large dump has a million leaves, nearly all of them tensors with statistics, plain numbers and
 * texts, or nothing. Those are read here, without building the dicts and lists in between. Whatever
 * else a call holds, be it nested, escaped, out of order or no JSON, makes the answer None; then it is
 * parsed, and leaf_walk.py, which has the same meaning and says it in Python, reads it.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../_digits.h"

typedef enum { FAILED = -1, UNUSUAL = 0, DONE = 1 } Outcome;

/* From leaf_walk.py: the classes, and the places of the first arguments and results. */
static PyObject *leaf_class, *call_class, *input_places, *output_places;
static PyObject *tensor_kind, *none_kind, *no_shape;

/* --- characters ---------------------------------------------------------------------------------- */

/* What is left of the text; a NUL stands behind its end. */
typedef struct {
    const char *at, *end;
} Text;

typedef struct {
    const char *start;
    Py_ssize_t length;
} Span;

static void skip_space(Text *text)
{
    while (*text->at == ' ' || *text->at == '\n' || *text->at == '\r' || *text->at == '\t')
        text->at++;
}

static int take(Text *text, char wanted)
{
    skip_space(text);
    if (*text->at != wanted)
        return 0;
    text->at++;
    return 1;
}

static int take_word(Text *text, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(text->end - text->at) < length || memcmp(text->at, word, length))
        return 0;
    text->at += length;
    return 1;
}

/* Take a string of printable ASCII without escapes. */
static int take_string(Text *text, Span *span)
{
    if (!take(text, '"'))
        return 0;
    const char *at = text->at;
    while ((unsigned char)*at >= ' ' && (unsigned char)*at < 127 && *at != '"' && *at != '\\')
        at++;
    if (*at != '"')
        return 0;
    *span = (Span){text->at, at - text->at};
    text->at = at + 1;
    return 1;
}

static int is_text(Span span, const char *wanted)
{
    return (size_t)span.length == strlen(wanted) && !memcmp(span.start, wanted, (size_t)span.length);
}

/* After a value: 1 if another one follows, 0 if this was the last, -1 for something else. */
static int has_next(Text *text, char close)
{
    if (take(text, ','))
        return 1;
    return take(text, close) ? 0 : -1;
}

/* --- values -------------------------------------------------------------------------------------- */

#define SLOTS 256

static size_t slot_of(const void *bytes, size_t length)
{
    uint64_t mixed = length;
    const unsigned char *at = bytes;
    for (size_t i = 0; i < length; i++)
        mixed = (mixed ^ at[i]) * UINT64_C(0x9E3779B97F4A7C15);
    return mixed >> 56;
}

/* A str that many leaves share: a dtype, a type, a place. A new reference. */
static PyObject *shared_text(const char *text, size_t length)
{
    static PyObject *texts[SLOTS];
    PyObject **slot = &texts[slot_of(text, length)];
    if (*slot) {
        Py_ssize_t size;
        const char *known = PyUnicode_AsUTF8AndSize(*slot, &size);
        if (known && (size_t)size == length && !memcmp(known, text, length))
            return Py_NewRef(*slot);
    }
    PyObject *made = PyUnicode_FromStringAndSize(text, (Py_ssize_t)length);
    if (made) {
        Py_XDECREF(*slot);
        *slot = Py_NewRef(made);
    }
    return made;
}

static int count_digits(const char *at)
{
    int count = 0;
    while (at[count] >= '0' && at[count] <= '9')
        count++;
    return count;
}

#define MOST_WHOLE_DIGITS 18

/* Take a number without fraction and exponent; -0 is left to others. */
static int take_whole(Text *text, long long *value)
{
    const char *at = text->at;
    int is_negative = *at == '-';
    at += is_negative;
    int digits = count_digits(at);
    if (!digits || digits > MOST_WHOLE_DIGITS || (*at == '0' && (digits > 1 || is_negative)))
        return 0;
    long long whole = 0;
    for (int i = 0; i < digits; i++)
        whole = whole * 10 + (at[i] - '0');
    *value = is_negative ? -whole : whole;
    text->at = at + digits;
    return 1;
}

static Outcome take_number(Text *text, PyObject **number)
{
    const char *at = text->at + (*text->at == '-');
    if (*at == '-' || *at == '.')
        return UNUSUAL;
    if (take_word(text, "NaN"))
        *number = PyFloat_FromDouble(Py_NAN);
    else if (take_word(text, "Infinity"))
        *number = PyFloat_FromDouble(Py_HUGE_VAL);
    else if (take_word(text, "-Infinity"))
        *number = PyFloat_FromDouble(-Py_HUGE_VAL);
    else {
        int digits = count_digits(at);
        if (at[digits] != '.' && at[digits] != 'e' && at[digits] != 'E') {
            long long whole;
            if (!take_whole(text, &whole))
                return UNUSUAL;
            *number = PyLong_FromLongLong(whole);
        } else {
            double value;
            const char *end = read_double(text->at, &value);
            if (!end)
                return UNUSUAL;
            text->at = end;
            *number = PyFloat_FromDouble(value);
        }
    }
    return *number ? DONE : FAILED;
}

static Outcome take_string_object(Text *text, PyObject **value)
{
    Span span;
    if (!take_string(text, &span))
        return UNUSUAL;
    *value = PyUnicode_FromStringAndSize(span.start, span.length);
    return *value ? DONE : FAILED;
}

/* Take a number, true, false, null, or a string. */
static Outcome take_plain(Text *text, PyObject **value)
{
    skip_space(text);
    if (*text->at == '"')
        return take_string_object(text, value);
    if (take_word(text, "null"))
        *value = Py_NewRef(Py_None);
    else if (take_word(text, "true"))
        *value = Py_NewRef(Py_True);
    else if (take_word(text, "false"))
        *value = Py_NewRef(Py_False);
    else
        return take_number(text, value);
    return DONE;
}

#define MOST_SIZES 8

/* The tuple of a shape that leaf_decode.py has seen and found good. */
static Outcome find_shape(const long long *sizes, int count, PyObject *shapes, PyObject **shape)
{
    static struct {
        long long sizes[MOST_SIZES];
        int count;
        PyObject *shape;
    } slots[SLOTS];
    size_t length = (size_t)count * sizeof *sizes;
    size_t number = slot_of(sizes, length);
    if (!slots[number].shape || slots[number].count != count ||
        memcmp(slots[number].sizes, sizes, length)) {
        PyObject *key = PyTuple_New(count);
        for (int i = 0; key && i < count; i++) {
            PyObject *size = PyLong_FromLongLong(sizes[i]);
            if (!size || PyTuple_SetItem(key, i, size))
                Py_CLEAR(key);
        }
        PyObject *known = key ? PyDict_GetItemWithError(shapes, key) : NULL;
        Py_XDECREF(key);
        if (!known)
            return PyErr_Occurred() ? FAILED : UNUSUAL;
        Py_XDECREF(slots[number].shape);
        slots[number].shape = Py_NewRef(known);
        slots[number].count = count;
        memcpy(slots[number].sizes, sizes, length);
    }
    *shape = Py_NewRef(slots[number].shape);
    return DONE;
}

static Outcome take_shape(Text *text, PyObject *shapes, PyObject **shape)
{
    long long sizes[MOST_SIZES];
    int count = 0;
    if (!take(text, '['))
        return UNUSUAL;
    if (!take(text, ']')) {
        int next = 1;
        while (next == 1) {
            skip_space(text);
            if (count == MOST_SIZES || !take_whole(text, &sizes[count++]))
                return UNUSUAL;
            next = has_next(text, ']');
        }
        if (next < 0)
            return UNUSUAL;
    }
    return find_shape(sizes, count, shapes, shape);
}

/* --- leaves -------------------------------------------------------------------------------------- */

enum { TYPE, DTYPE, SHAPE, MAX, MIN, MEAN, NORM, REQUIRES_GRAD, MD5, DATA_NAME, VALUE, KEYS };
static const char *const key_texts[KEYS] = {
    "type", "dtype",         "shape", "Max",       "Min",   "Mean",
    "Norm", "requires_grad", "md5",   "data_name", "value",
};

/* A new instance of a NamedTuple; it takes over the fields, also where it fails. */
static PyObject *make(PyObject *type, PyObject **fields, Py_ssize_t count)
{
    PyObject *made = PyType_GenericAlloc((PyTypeObject *)type, count);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (made)
            PyTuple_SetItem(made, i, fields[i]);
        else
            Py_DECREF(fields[i]);
    }
    return made;
}

/* Append a leaf that takes over nothing. */
static Outcome add(PyObject *leaves, PyObject *place, PyObject *kind, PyObject *dtype, PyObject *shape,
                   PyObject *const statistics[4], PyObject *grad, PyObject *checksum, PyObject *name)
{
    PyObject *fields[12] = {place,         kind,          dtype,         shape, statistics[0],
                            statistics[1], statistics[2], statistics[3], grad,  checksum,
                            name,          Py_None};
    for (int i = 0; i < 12; i++)
        Py_INCREF(fields[i]);
    PyObject *leaf = make(leaf_class, fields, 12);
    if (!leaf)
        return FAILED;
    int failed = PyList_Append(leaves, leaf);
    Py_DECREF(leaf);
    return failed ? FAILED : DONE;
}

static int is_number(PyObject *value)
{
    return PyFloat_CheckExact(value) || PyLong_CheckExact(value) || value == Py_None ||
           value == Py_True || value == Py_False;
}

static int is_text_or_none(PyObject *value)
{
    return value == Py_None || PyUnicode_CheckExact(value);
}

static Outcome add_tensor(PyObject *leaves, PyObject *place, PyObject *found[KEYS])
{
    if (!found[DTYPE] || !found[SHAPE] || found[VALUE])
        return UNUSUAL;
    PyObject *fields[KEYS];
    for (int key = MAX; key <= DATA_NAME; key++)
        fields[key] = found[key] ? found[key] : Py_None;
    for (int key = MAX; key <= NORM; key++)
        if (!is_number(fields[key]))
            return UNUSUAL;
    PyObject *grad = fields[REQUIRES_GRAD], *name = fields[DATA_NAME];
    if (grad != Py_None && grad != Py_True && grad != Py_False)
        return UNUSUAL;
    if (!is_text_or_none(fields[MD5]) || !is_text_or_none(name) ||
        (name != Py_None && PyUnicode_GetLength(name) == 0))
        return UNUSUAL;
    return add(leaves, place, tensor_kind, found[DTYPE], found[SHAPE], fields + MAX, grad, fields[MD5],
               name);
}

static Outcome add_scalar(PyObject *leaves, PyObject *place, Span type, PyObject *found[KEYS])
{
    PyTypeObject *wanted = NULL;
    if (is_text(type, "int"))
        wanted = &PyLong_Type;
    else if (is_text(type, "float"))
        wanted = &PyFloat_Type;
    else if (is_text(type, "bool"))
        wanted = &PyBool_Type;
    else if (is_text(type, "str"))
        wanted = &PyUnicode_Type;
    PyObject *value = found[VALUE];
    if (!wanted || !value || !Py_IS_TYPE(value, wanted))
        return UNUSUAL;
    for (int key = DTYPE; key <= DATA_NAME; key++)
        if (found[key])
            return UNUSUAL;
    PyObject *const four[4] = {value, value, value, value};
    return add(leaves, place, found[TYPE], found[TYPE], no_shape, four, Py_None, Py_None, Py_None);
}

static Outcome take_field(Text *text, PyObject *shapes, PyObject *found[KEYS], Span *type)
{
    Span key;
    if (!take_string(text, &key) || !take(text, ':'))
        return UNUSUAL;
    int number = 0;
    while (number < KEYS && !is_text(key, key_texts[number]))
        number++;
    if (number == KEYS || found[number])
        return UNUSUAL;
    if (number == SHAPE)
        return take_shape(text, shapes, &found[SHAPE]);
    if (number != TYPE && number != DTYPE)
        return take_plain(text, &found[number]);
    Span span;
    if (!take_string(text, &span))
        return UNUSUAL;
    if (number == TYPE)
        *type = span;
    found[number] = shared_text(span.start, (size_t)span.length);
    return found[number] ? DONE : FAILED;
}

static Outcome take_object(Text *text, PyObject *shapes, PyObject *found[KEYS], Span *type)
{
    int next = 1;
    while (next == 1) {
        Outcome outcome = take_field(text, shapes, found, type);
        if (outcome != DONE)
            return outcome;
        next = has_next(text, '}');
    }
    return next == 0 && found[TYPE] ? DONE : UNUSUAL;
}

static Outcome take_value(Text *text, PyObject *leaves, PyObject *place, PyObject *shapes)
{
    skip_space(text);
    if (take_word(text, "null")) {
        PyObject *const four[4] = {Py_None, Py_None, Py_None, Py_None};
        return add(leaves, place, none_kind, none_kind, no_shape, four, Py_None, Py_None, Py_None);
    }
    if (!take(text, '{'))
        return UNUSUAL;
    PyObject *found[KEYS] = {NULL};
    Span type = {NULL, 0};
    Outcome outcome = take_object(text, shapes, found, &type);
    if (outcome == DONE)
        outcome = is_text(type, "torch.Tensor") ? add_tensor(leaves, place, found)
                                                : add_scalar(leaves, place, type, found);
    for (int key = 0; key < KEYS; key++)
        Py_XDECREF(found[key]);
    return outcome;
}

/* --- sections ------------------------------------------------------------------------------------ */

static Outcome take_list(Text *text, PyObject *leaves, PyObject *places, PyObject *shapes)
{
    skip_space(text);
    if (take_word(text, "null"))
        return DONE;
    if (!take(text, '['))
        return UNUSUAL;
    if (take(text, ']'))
        return DONE;
    int next = 1;
    for (Py_ssize_t index = 0; next == 1; index++) {
        if (index == PyTuple_Size(places))
            return UNUSUAL;
        Outcome outcome = take_value(text, leaves, PyTuple_GetItem(places, index), shapes);
        if (outcome != DONE)
            return outcome;
        next = has_next(text, ']');
    }
    return next == 0 ? DONE : UNUSUAL;
}

#define MOST_NAMED 64
#define LONGEST_PLACE 256

static Outcome take_named(Text *text, PyObject *leaves, const char *prefix, Span key, PyObject *shapes)
{
    char place[LONGEST_PLACE];
    size_t start = strlen(prefix), length = start + (size_t)key.length;
    if (length > sizeof place)
        return UNUSUAL;
    memcpy(place, prefix, start);
    memcpy(place + start, key.start, (size_t)key.length);
    PyObject *name = shared_text(place, length);
    Outcome outcome = name ? take_value(text, leaves, name, shapes) : FAILED;
    Py_XDECREF(name);
    return outcome;
}

static Outcome take_dict(Text *text, PyObject *leaves, const char *prefix, PyObject *shapes)
{
    skip_space(text);
    if (take_word(text, "null"))
        return DONE;
    if (!take(text, '{'))
        return UNUSUAL;
    if (take(text, '}'))
        return DONE;
    Span keys[MOST_NAMED];
    int next = 1;
    for (int count = 0; next == 1; count++) {
        if (count == MOST_NAMED || !take_string(text, &keys[count]) || !take(text, ':'))
            return UNUSUAL;
        for (int i = 0; i < count; i++)
            if (keys[i].length == keys[count].length &&
                !memcmp(keys[i].start, keys[count].start, (size_t)keys[i].length))
                return UNUSUAL;
        Outcome outcome = take_named(text, leaves, prefix, keys[count], shapes);
        if (outcome != DONE)
            return outcome;
        next = has_next(text, '}');
    }
    return next == 0 ? DONE : UNUSUAL;
}

/* The order in which the sections' leaves come; the text must have them so. */
enum { NO_SECTION, INPUTS, KWARGS, PARAMETERS, OUTPUTS };

static Outcome take_section(Text *text, PyObject *leaves, PyObject *shapes, int *section,
                            PyObject **is_recompute)
{
    Span key;
    if (!take_string(text, &key) || !take(text, ':'))
        return UNUSUAL;
    if (is_text(key, "is_recompute")) {
        skip_space(text);
        if (*is_recompute)
            return UNUSUAL;
        *is_recompute = take_word(text, "true")    ? Py_True
                        : take_word(text, "false") ? Py_False
                                                   : NULL;
        return *is_recompute ? DONE : UNUSUAL;
    }
    int is_input = is_text(key, "input_args") || is_text(key, "input");
    int now = is_input                       ? INPUTS
              : is_text(key, "input_kwargs") ? KWARGS
              : is_text(key, "parameters")   ? PARAMETERS
              : is_text(key, "output")       ? OUTPUTS
                                             : NO_SECTION;
    if (now <= *section)
        return UNUSUAL;
    *section = now;
    if (now == INPUTS || now == OUTPUTS)
        return take_list(text, leaves, now == INPUTS ? input_places : output_places, shapes);
    return take_dict(text, leaves, now == KWARGS ? "kwargs." : "parameters.", shapes);
}

static Outcome take_call(Text *text, PyObject *leaves, PyObject *shapes, PyObject **is_recompute)
{
    if (!take(text, '{'))
        return UNUSUAL;
    int section = NO_SECTION, next = take(text, '}') ? 0 : 1;
    while (next == 1) {
        Outcome outcome = take_section(text, leaves, shapes, &section, is_recompute);
        if (outcome != DONE)
            return outcome;
        next = has_next(text, '}');
    }
    skip_space(text);
    return next == 0 && text->at == text->end ? DONE : UNUSUAL;
}

static PyObject *call_leaves(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *name, *piece, *shapes;
    if (!PyArg_ParseTuple(arguments, "USO!", &name, &piece, &PyDict_Type, &shapes))
        return NULL;
    char *start;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(piece, &start, &length))
        return NULL;
    if (!leaf_class)
        return Py_NewRef(Py_None);
    PyObject *leaves = PyList_New(0), *is_recompute = NULL;
    if (!leaves)
        return NULL;
    Text text = {start, start + length};
    Outcome outcome = take_call(&text, leaves, shapes, &is_recompute);
    if (outcome == DONE) {
        PyObject *fields[3] = {Py_NewRef(name), leaves,
                               Py_NewRef(is_recompute ? is_recompute : Py_None)};
        return make(call_class, fields, 3);
    }
    Py_DECREF(leaves);
    return outcome == UNUSUAL ? Py_NewRef(Py_None) : NULL;
}

/* --- the module ---------------------------------------------------------------------------------- */

static int is_tuple_class(PyObject *value)
{
    return PyType_Check(value) && PyType_IsSubtype((PyTypeObject *)value, &PyTuple_Type);
}

static PyObject *set_up(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *leaf, *call, *inputs, *outputs, *table;
    if (!PyArg_ParseTuple(arguments, "OOO!O!O", &leaf, &call, &PyTuple_Type, &inputs, &PyTuple_Type,
                          &outputs, &table))
        return NULL;
    if (!is_tuple_class(leaf) || !is_tuple_class(call)) {
        PyErr_SetString(PyExc_TypeError, "wanted two named tuples");
        return NULL;
    }
    PyObject *none = take_powers(table);
    if (!none)
        return NULL;
    leaf_class = Py_NewRef(leaf);
    call_class = Py_NewRef(call);
    input_places = Py_NewRef(inputs);
    output_places = Py_NewRef(outputs);
    return none;
}

static PyMethodDef methods[] = {
    {"call_leaves", call_leaves, METH_VARARGS, "The CallLeaves of (name, text, shapes), or None."},
    {"set_up", set_up, METH_VARARGS, "Take the classes, the first places, and the powers of ten."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_leaf_walk", "The leaves of calls in JSON.", -1, methods,
    NULL,                  NULL,         NULL,                           NULL,
};

static int intern(PyObject **slot, const char *text)
{
    *slot = PyUnicode_InternFromString(text);
    return *slot != NULL;
}

PyMODINIT_FUNC PyInit__leaf_walk(void)
{
    if (!intern(&tensor_kind, "tensor") || !intern(&none_kind, "none"))
        return NULL;
    no_shape = PyTuple_New(0);
    return no_shape ? PyModule_Create(&definition) : NULL;
}
