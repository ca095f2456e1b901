/* One row of a table as text, for csv and for a sheet.
 *
 *     cells -> their text, one after the other, in a buffer that grows -> bytes
 *
 * A row of a result has a dozen numbers of seventeen digits, and Python takes a microsecond for each;
 * _digits.h is faster. csv_table.py and xlsx_cells.py say what a row is in Python; whatever is
 * unusual about a row makes these functions answer None, and Python writes it.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>

#include "../_digits.h"

/* --- a buffer that grows ------------------------------------------------------------------------ */

typedef struct {
    char *start;
    size_t length, room;
    char first[4096];
} Buffer;

static void begin(Buffer *buffer)
{
    buffer->start = buffer->first;
    buffer->length = 0;
    buffer->room = sizeof buffer->first;
}

static void end(Buffer *buffer)
{
    if (buffer->start != buffer->first)
        free(buffer->start);
}

/* Make room for so many more bytes; 0, and an exception, where there is no memory. */
static int reserve(Buffer *buffer, size_t more)
{
    if (buffer->room - buffer->length >= more)
        return 1;
    size_t room = buffer->room * 2 + more;
    char *moved = buffer->start == buffer->first ? malloc(room) : realloc(buffer->start, room);
    if (!moved) {
        PyErr_NoMemory();
        return 0;
    }
    if (buffer->start == buffer->first)
        memcpy(moved, buffer->first, buffer->length);
    buffer->start = moved;
    buffer->room = room;
    return 1;
}

static int put(Buffer *buffer, const char *text, size_t length)
{
    if (!reserve(buffer, length))
        return 0;
    memcpy(buffer->start + buffer->length, text, length);
    buffer->length += length;
    return 1;
}

#define PUT(buffer, literal) put(buffer, literal, sizeof(literal) - 1)

/* --- rows ---------------------------------------------------------------------------------------- */

typedef enum { FAILED = -1, UNUSUAL = 0, DONE = 1 } Outcome;

static PyObject *cell_of(PyObject *row, Py_ssize_t index)
{
    return PyTuple_CheckExact(row) ? PyTuple_GetItem(row, index) : PyList_GetItem(row, index);
}

/* The number of cells, or -1 for a row that is neither a tuple nor a list. */
static Py_ssize_t width_of(PyObject *row)
{
    if (PyTuple_CheckExact(row))
        return PyTuple_Size(row);
    return PyList_CheckExact(row) ? PyList_Size(row) : -1;
}

/* The text of a str as UTF-8; NULL, and no exception, for one with half of a surrogate pair. */
static const char *utf8_of(PyObject *text, Py_ssize_t *length)
{
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, length);
    if (!utf8 && PyErr_ExceptionMatches(PyExc_UnicodeError))
        PyErr_Clear();
    return utf8;
}

static Outcome put_number(Buffer *buffer, PyObject *cell, long long largest)
{
    if (!reserve(buffer, 32))
        return FAILED;
    char *out = buffer->start + buffer->length;
    if (Py_IS_TYPE(cell, &PyFloat_Type)) {
        double value = PyFloat_AsDouble(cell);
        if (!is_finite(value))
            return UNUSUAL;
        buffer->length += write_double(out, value);
        return DONE;
    }
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(cell, &overflow);
    if (overflow || value > largest || value < -largest)
        return UNUSUAL;
    buffer->length += write_whole(out, value);
    return DONE;
}

/* Whether a byte is a control, or begins a sign that may be one or may have no shape: a mark that
 * reorders text is one of U+061C, U+200E to U+206F and so on. CJK, Greek, Cyrillic are not.
 * Without a branch, so that the compiler looks at many bytes at once. */
static inline unsigned char may_command(unsigned char c)
{
    return (c < 32) | (c == 127) | (c == 0xC2) | ((unsigned char)(c - 0xD8) <= 4) |
           ((unsigned char)(c - 0xE0) <= 2) | (c >= 0xEF);
}

static Outcome put_csv_text(Buffer *buffer, PyObject *cell)
{
    Py_ssize_t length;
    const char *text = utf8_of(cell, &length);
    if (!text)
        return PyErr_Occurred() ? FAILED : UNUSUAL;
    if (length && strchr("=+-@", text[0])) /* matches NUL, too */
        return UNUSUAL;
    Py_ssize_t quotes = 0, commas = 0;
    unsigned char odd = 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        quotes += text[i] == '"';
        commas += text[i] == ',';
        odd |= may_command((unsigned char)text[i]);
    }
    if (odd)
        return UNUSUAL;
    if (!quotes && !commas)
        return put(buffer, text, (size_t)length) ? DONE : FAILED;
    if (!reserve(buffer, (size_t)(length + quotes + 2)))
        return FAILED;
    char *out = buffer->start + buffer->length;
    *out++ = '"';
    for (Py_ssize_t i = 0; i < length; i++) {
        if (text[i] == '"')
            *out++ = '"';
        *out++ = text[i];
    }
    *out++ = '"';
    buffer->length = (size_t)(out - buffer->start);
    return DONE;
}

static Outcome put_csv_cell(Buffer *buffer, PyObject *cell)
{
    if (Py_IS_TYPE(cell, &PyUnicode_Type))
        return put_csv_text(buffer, cell);
    if (Py_IS_TYPE(cell, &PyFloat_Type) || Py_IS_TYPE(cell, &PyLong_Type))
        return put_number(buffer, cell, INT64_MAX);
    if (cell == Py_None)
        return DONE;
    if (cell == Py_True || cell == Py_False)
        return (cell == Py_True ? PUT(buffer, "True") : PUT(buffer, "False")) ? DONE : FAILED;
    return UNUSUAL;
}

static PyObject *finish(Buffer *buffer, Outcome outcome)
{
    PyObject *result = NULL;
    if (outcome == DONE)
        result = PyBytes_FromStringAndSize(buffer->start, (Py_ssize_t)buffer->length);
    else if (outcome == UNUSUAL)
        result = Py_NewRef(Py_None);
    end(buffer);
    return result;
}

static PyObject *csv_row(PyObject *module, PyObject *row)
{
    (void)module;
    Py_ssize_t width = width_of(row);
    Buffer buffer;
    begin(&buffer);
    Outcome outcome = width > 1 && has_powers ? DONE : UNUSUAL;
    for (Py_ssize_t index = 0; index < width && outcome == DONE; index++) {
        if (index && !PUT(&buffer, ","))
            outcome = FAILED;
        else
            outcome = put_csv_cell(&buffer, cell_of(row, index));
    }
    if (outcome == DONE && !PUT(&buffer, "\n"))
        outcome = FAILED;
    return finish(&buffer, outcome);
}

/* Whether a text needs no closer look: short, printable ASCII, none of &, < and >, no white space at
 * its ends, and no `_x`, which may begin an escape. */
static int is_plain(const char *text, Py_ssize_t length)
{
    if (length == 0 || length > 16000 || text[0] == ' ' || text[length - 1] == ' ')
        return 0;
    unsigned odd = 0;
    char before = 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        odd |= (c < 32) | (c > 126) | (c == '&') | (c == '<') | (c == '>') |
               ((c == 'x') & (before == '_'));
        before = (char)c;
    }
    return !odd;
}

static Outcome put_sheet_text(Buffer *buffer, PyObject *cell, PyObject *texts)
{
    Py_ssize_t length;
    const char *text = utf8_of(cell, &length);
    if (!text && PyErr_Occurred())
        return FAILED;
    if (text && is_plain(text, length)) {
        int is_put = PUT(buffer, " t=\"inlineStr\"><is><t>") && put(buffer, text, (size_t)length) &&
                     PUT(buffer, "</t></is></c>");
        return is_put ? DONE : FAILED;
    }
    PyObject *made = PyObject_GetItem(texts, cell);
    if (!made)
        return FAILED;
    text = PyUnicode_AsUTF8AndSize(made, &length);
    int is_put = text && put(buffer, text, (size_t)length) && PUT(buffer, "</c>");
    Py_DECREF(made);
    return is_put ? DONE : FAILED;
}

static Outcome put_sheet_cell(Buffer *buffer, PyObject *cell, PyObject *texts)
{
    if (Py_IS_TYPE(cell, &PyUnicode_Type))
        return put_sheet_text(buffer, cell, texts);
    if (Py_IS_TYPE(cell, &PyFloat_Type) || Py_IS_TYPE(cell, &PyLong_Type)) {
        if (!PUT(buffer, "><v>"))
            return FAILED;
        Outcome outcome = put_number(buffer, cell, INT64_C(1) << 53);
        if (outcome == DONE && !PUT(buffer, "</v></c>"))
            return FAILED;
        return outcome;
    }
    if (cell == Py_None)
        return PUT(buffer, "/>") ? DONE : FAILED;
    if (cell == Py_True)
        return PUT(buffer, " t=\"b\"><v>1</v></c>") ? DONE : FAILED;
    if (cell == Py_False)
        return PUT(buffer, " t=\"b\"><v>0</v></c>") ? DONE : FAILED;
    return UNUSUAL;
}

/* Write `<c r="AB12" s="3"` without its end. */
static int put_place(Buffer *buffer, Py_ssize_t column, const char *number, size_t digits, int style)
{
    if (!reserve(buffer, 64))
        return 0;
    char *out = buffer->start + buffer->length;
    memcpy(out, "<c r=\"", 6);
    out += 6;
    char letters[8];
    int count = 0;
    for (Py_ssize_t rest = column + 1; rest; rest = (rest - 1) / 26)
        letters[sizeof letters - ++count] = (char)('A' + (rest - 1) % 26);
    memcpy(out, letters + sizeof letters - count, (size_t)count);
    out += count;
    memcpy(out, number, digits);
    out += digits;
    *out++ = '"';
    if (style) {
        memcpy(out, " s=\"", 4);
        out += 4;
        out += write_whole(out, style);
        *out++ = '"';
    }
    buffer->length = (size_t)(out - buffer->start);
    return 1;
}

static PyObject *sheet_row(PyObject *module, PyObject *arguments)
{
    (void)module;
    long number;
    int style;
    PyObject *row, *texts;
    if (!PyArg_ParseTuple(arguments, "lOiO", &number, &row, &style, &texts))
        return NULL;
    Py_ssize_t width = width_of(row);
    char digits[24];
    size_t digit_count = write_whole(digits, number);
    Buffer buffer;
    begin(&buffer);
    Outcome outcome = width >= 0 && width <= 16384 && has_powers ? DONE : UNUSUAL;
    if (outcome == DONE && !(PUT(&buffer, "<row r=\"") && put(&buffer, digits, digit_count) &&
                             PUT(&buffer, "\">")))
        outcome = FAILED;
    for (Py_ssize_t index = 0; index < width && outcome == DONE; index++) {
        PyObject *cell = cell_of(row, index);
        if (!cell)
            outcome = FAILED; /* the list became shorter while a text was made */
        else if (cell == Py_None && !style)
            continue;
        else if (!put_place(&buffer, index, digits, digit_count, style))
            outcome = FAILED;
        else
            outcome = put_sheet_cell(&buffer, cell, texts);
    }
    if (outcome == DONE && !PUT(&buffer, "</row>"))
        outcome = FAILED;
    return finish(&buffer, outcome);
}

static PyObject *set_powers(PyObject *module, PyObject *table)
{
    (void)module;
    return take_powers(table);
}

static PyMethodDef methods[] = {
    {"csv_row", csv_row, METH_O, "The line of a row, or None if Python must write it."},
    {"sheet_row", sheet_row, METH_VARARGS, "The <row> of (number, row, style, texts), or None."},
    {"set_powers", set_powers, METH_O, "Take the table of powers of ten."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_row_text", "Rows of tables as text.", -1, methods,
    NULL,                  NULL,        NULL,                      NULL,
};

PyMODINIT_FUNC PyInit__row_text(void) { return PyModule_Create(&definition); }
