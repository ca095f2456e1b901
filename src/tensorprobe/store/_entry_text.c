/* The JSON text of a record's usual values and of a usual record.
 *
 *     tensor_text(draft)    -> str, or None: its numbers are unusual, ask Python
 *     call_text(call, is_module, is_backward)
 *                           -> str, or None: something in it is nested, ask Python
 *
 * Every call of a captured step pays for its text, half of which is the repr of floats. leaf_encode.py
 * has the same meaning and says it in Python.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* From leaf_encode.py: the class whose instances are read here, what values may not be for a record to
 * be flat, and functions: a tensor's text up to its numbers, any value's text, a key's text. */
static PyObject *draft_class, *list_class, *dict_class, *head_of, *text_of, *key_text;
/* Heads by dtype and shape. */
static PyObject *heads;

#define MOST_HEADS 4096

#define TEXTS(X)                                                                                     \
    X(_text) X(data_name) X(file) X(measured) X(numbers) X(dtype) X(shape) X(requires_grad)          \
    X(checked) X(value) X(inputs) X(kwargs) X(outputs) X(parameters) X(is_recompute)
#define DECLARE(text) static PyObject *text_##text;
TEXTS(DECLARE)

typedef struct {
    char *bytes;
    size_t size, room;
} Text;

static int put(Text *text, const char *bytes, size_t count)
{
    if (text->size + count > text->room) {
        size_t room = 2 * (text->size + count) + 256;
        char *grown = PyMem_Realloc(text->bytes, room);
        if (!grown) {
            PyErr_NoMemory();
            return -1;
        }
        text->bytes = grown;
        text->room = room;
    }
    memcpy(text->bytes + text->size, bytes, count);
    text->size += count;
    return 0;
}

#define PUT(text, literal) put(text, literal, sizeof(literal) - 1)

static int put_object(Text *text, PyObject *string)
{
    Py_ssize_t count;
    const char *bytes = string ? PyUnicode_AsUTF8AndSize(string, &count) : NULL;
    return bytes ? put(text, bytes, (size_t)count) : -1;
}

static int put_float(Text *text, PyObject *number)
{
    char *digits = PyOS_double_to_string(PyFloat_AsDouble(number), 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
    if (!digits)
        return -1;
    int failed = put(text, digits, strlen(digits));
    PyMem_Free(digits);
    return failed;
}

static PyObject *finish(Text *text, int failed)
{
    PyObject *made = failed ? NULL : PyUnicode_DecodeUTF8(text->bytes, (Py_ssize_t)text->size, NULL);
    PyMem_Free(text->bytes);
    return made;
}

typedef enum { FAILED = -1, UNUSUAL = 0, DONE = 1 } Outcome;

/* A new reference. */
static PyObject *find_head(PyObject *draft)
{
    PyObject *dtype = PyObject_GetAttr(draft, text_dtype), *shape = PyObject_GetAttr(draft, text_shape);
    PyObject *key = dtype && shape ? PyTuple_Pack(2, dtype, shape) : NULL;
    PyObject *head = key ? PyDict_GetItemWithError(heads, key) : NULL;
    Py_XINCREF(head);
    if (!head && key && !PyErr_Occurred()) {
        head = PyObject_CallFunctionObjArgs(head_of, dtype, shape, NULL);
        if (head && PyDict_Size(heads) >= MOST_HEADS)
            PyDict_Clear(heads);
        if (head && PyDict_SetItem(heads, key, head))
            Py_CLEAR(head);
    }
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    Py_XDECREF(key);
    return head;
}

static int are_usual(PyObject *numbers)
{
    if (!PyTuple_Check(numbers) || PyTuple_Size(numbers) != 4)
        return 0;
    for (Py_ssize_t i = 0; i < 4; i++) {
        PyObject *number = PyTuple_GetItem(numbers, i);
        if (!Py_IS_TYPE(number, &PyFloat_Type) || !isfinite(PyFloat_AsDouble(number)))
            return 0;
    }
    return 1;
}

static int put_checksum(Text *text, PyObject *draft)
{
    PyObject *checked = PyObject_GetAttr(draft, text_checked);
    if (!checked || checked == Py_None) {
        Py_XDECREF(checked);
        return checked ? 0 : -1;
    }
    PyObject *value = PyObject_GetAttr(checked, text_value);
    char digits[32];
    unsigned long long number = value ? PyLong_AsUnsignedLongLong(value) : 0;
    int failed = !value || PyErr_Occurred();
    Py_XDECREF(checked);
    Py_XDECREF(value);
    if (failed)
        return -1;
    int count = snprintf(digits, sizeof digits, ", \"md5\": \"%08llx\"", number);
    return put(text, digits, (size_t)count);
}

static int is_quoted_as_it_is(const char *bytes)
{
    while (*bytes >= ' ' && *bytes < 0x7F && *bytes != '"' && *bytes != '\\')
        bytes++;
    return !*bytes;
}

/* A file may be lost, and has no name then. */
static int put_data_name(Text *text, PyObject *file)
{
    PyObject *name = file == Py_None ? Py_NewRef(Py_None) : PyObject_GetAttr(file, text_data_name);
    if (!name || name == Py_None) {
        Py_XDECREF(name);
        return name ? 0 : -1;
    }
    Py_ssize_t count;
    const char *bytes = PyUnicode_AsUTF8AndSize(name, &count);
    if (!bytes)
        /* A name that stands for bytes which are no text; Python writes it all the same. */
        PyErr_Clear();
    int failed = PUT(text, ", \"data_name\": ");
    if (!failed && bytes && is_quoted_as_it_is(bytes)) {
        failed = PUT(text, "\"") || put(text, bytes, (size_t)count) || PUT(text, "\"");
    } else if (!failed) {
        PyObject *quoted = PyObject_CallFunctionObjArgs(key_text, name, NULL);
        failed = put_object(text, quoted);
        Py_XDECREF(quoted);
    }
    Py_DECREF(name);
    return failed;
}

static int put_numbers(Text *text, PyObject *draft, PyObject *numbers)
{
    static const char *const between[] = {", \"Min\": ", ", \"Mean\": ", ", \"Norm\": "};
    PyObject *head = find_head(draft);
    int failed = put_object(text, head);
    Py_XDECREF(head);
    for (Py_ssize_t i = 0; !failed && i < 4; i++) {
        failed = put_float(text, PyTuple_GetItem(numbers, i));
        if (!failed && i < 3)
            failed = put(text, between[i], strlen(between[i]));
    }
    return failed;
}

static Outcome put_draft(Text *text, PyObject *draft)
{
    PyObject *file = PyObject_GetAttr(draft, text_file);
    PyObject *measured = PyObject_GetAttr(draft, text_measured);
    PyObject *numbers = measured ? PyObject_GetAttr(measured, text_numbers) : NULL;
    PyObject *with_gradient = PyObject_GetAttr(draft, text_requires_grad);
    Outcome outcome = FAILED;
    if (file && numbers && with_gradient) {
        int is_usual = are_usual(numbers) && PyBool_Check(with_gradient);
        outcome = is_usual ? DONE : UNUSUAL;
        if (is_usual && (put_numbers(text, draft, numbers) ||
                         (with_gradient == Py_True ? PUT(text, ", \"requires_grad\": true")
                                                   : PUT(text, ", \"requires_grad\": false")) ||
                         put_data_name(text, file) || put_checksum(text, draft) || PUT(text, "}")))
            outcome = FAILED;
    }
    Py_XDECREF(file);
    Py_XDECREF(measured);
    Py_XDECREF(numbers);
    Py_XDECREF(with_gradient);
    return outcome;
}

static PyObject *tensor_text(PyObject *self, PyObject *draft)
{
    Text text = {0};
    (void)self;
    Outcome outcome = put_draft(&text, draft);
    if (outcome == UNUSUAL) {
        PyMem_Free(text.bytes);
        Py_RETURN_NONE;
    }
    return finish(&text, outcome == FAILED);
}

/* Add what is known of a draft's text, or find it out and leave it with the draft. */
static int put_known_draft(Text *text, PyObject *draft)
{
    PyObject *known = PyObject_GetAttr(draft, text__text);
    if (known == Py_None) {
        Py_DECREF(known);
        known = tensor_text(NULL, draft);
        if (known == Py_None) {
            Py_DECREF(known);
            known = PyObject_CallFunctionObjArgs(text_of, draft, NULL);
        } else if (known && PyObject_SetAttr(draft, text__text, known)) {
            Py_CLEAR(known);
        }
    }
    int failed = put_object(text, known);
    Py_XDECREF(known);
    return failed;
}

static Outcome put_value(Text *text, PyObject *value)
{
    int failed;
    if (value == Py_None) {
        failed = PUT(text, "null");
    } else if ((PyObject *)Py_TYPE(value) == draft_class) {
        failed = put_known_draft(text, value);
    } else if ((PyObject *)Py_TYPE(value) == list_class || (PyObject *)Py_TYPE(value) == dict_class) {
        return UNUSUAL;
    } else {
        PyObject *made = PyObject_CallFunctionObjArgs(text_of, value, NULL);
        failed = put_object(text, made);
        Py_XDECREF(made);
    }
    return failed ? FAILED : DONE;
}

static Outcome put_array(Text *text, PyObject *values)
{
    if (!PyTuple_Check(values))
        return UNUSUAL;
    Outcome outcome = PUT(text, "[") ? FAILED : DONE;
    for (Py_ssize_t i = 0; outcome == DONE && i < PyTuple_Size(values); i++) {
        if (i && PUT(text, ", "))
            return FAILED;
        outcome = put_value(text, PyTuple_GetItem(values, i));
    }
    return outcome == DONE && PUT(text, "]") ? FAILED : outcome;
}

static Outcome put_object_of(Text *text, PyObject *values)
{
    if (!PyDict_Check(values))
        return UNUSUAL;
    PyObject *key, *value;
    Py_ssize_t place = 0;
    int is_first = 1;
    Outcome outcome = PUT(text, "{") ? FAILED : DONE;
    while (outcome == DONE && PyDict_Next(values, &place, &key, &value)) {
        PyObject *shown = PyObject_CallFunctionObjArgs(key_text, key, NULL);
        if ((!is_first && PUT(text, ", ")) || put_object(text, shown) || PUT(text, ": "))
            outcome = FAILED;
        else
            outcome = put_value(text, value);
        Py_XDECREF(shown);
        is_first = 0;
    }
    return outcome == DONE && PUT(text, "}") ? FAILED : outcome;
}

/* Add a part of a record under its title, unless it is None. */
static Outcome put_part(Text *text, PyObject *call, PyObject *attribute, const char *title,
                        Outcome (*put_values)(Text *, PyObject *))
{
    PyObject *values = PyObject_GetAttr(call, attribute);
    Outcome outcome = values ? DONE : FAILED;
    if (values && values != Py_None) {
        if ((text->size > 1 && PUT(text, ", ")) || put(text, title, strlen(title)))
            outcome = FAILED;
        else
            outcome = put_values(text, values);
    }
    Py_XDECREF(values);
    return outcome;
}

static Outcome put_truth(Text *text, PyObject *value)
{
    int is_so = PyObject_IsTrue(value);
    if (is_so < 0)
        return FAILED;
    return (is_so ? PUT(text, "true") : PUT(text, "false")) ? FAILED : DONE;
}

static PyObject *call_text(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 3 || !draft_class) {
        PyErr_SetString(PyExc_TypeError, "wanted set_up, and then a call, is_module, is_backward");
        return NULL;
    }
    PyObject *call = args[0];
    int is_module = args[1] == Py_True, is_backward = args[2] == Py_True;
    Text text = {0};
    const char *inputs = is_backward ? "\"input\": " : "\"input_args\": ";
    const char *recompute = "\"is_recompute\": ";
    Outcome outcome = PUT(&text, "{") ? FAILED : DONE;
#define PART(condition, attribute, title, put_values)                                                \
    if (outcome == DONE && (condition))                                                              \
        outcome = put_part(&text, call, text_##attribute, title, put_values);
    PART(1, inputs, inputs, put_array)
    PART(1, kwargs, "\"input_kwargs\": ", put_object_of)
    PART(!is_module, is_recompute, recompute, put_truth)
    PART(1, outputs, "\"output\": ", put_array)
    PART(1, parameters, "\"parameters\": ", put_object_of)
    PART(is_module, is_recompute, recompute, put_truth)
    if (outcome == UNUSUAL) {
        PyMem_Free(text.bytes);
        Py_RETURN_NONE;
    }
    return finish(&text, outcome == FAILED || PUT(&text, "}"));
}

static PyObject *set_up(PyObject *self, PyObject *args)
{
    PyObject *given[6];
    PyObject **kept[] = {&draft_class, &list_class, &dict_class, &head_of, &text_of, &key_text};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOO", given, given + 1, given + 2, given + 3, given + 4, given + 5))
        return NULL;
    for (int i = 0; i < 6; i++) {
        Py_XDECREF(*kept[i]);
        *kept[i] = Py_NewRef(given[i]);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, "Take the classes and functions of leaf_encode.py."},
    {"tensor_text", tensor_text, METH_O, "Return the text of a tensor, or None."},
    {"call_text", (PyCFunction)(void (*)(void))call_text, METH_FASTCALL,
     "Return the text of a call, or None."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_entry_text", "The JSON text of records.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__entry_text(void)
{
#define INTERN(text)                                                                                 \
    if (!(text_##text = PyUnicode_InternFromString(#text)))                                          \
        return NULL;
    TEXTS(INTERN)
    if (!(heads = PyDict_New()))
        return NULL;
    return PyModule_Create(&module);
}
