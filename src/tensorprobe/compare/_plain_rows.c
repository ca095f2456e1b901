/* Pairs and rows of calls about which nothing is unusual.
 *
 *     two lists of leaves -> [Pair, ...], where all stand at the same places and look alike
 *     [Pair, ...] of statistics -> [Row, ...], where both sides are tensors with four finite numbers
 *
 * A large dump has a million values, nearly all of them like that. match.py, rows.py and judge.py say
 * in Python what pairs and rows are; whatever is unusual is left to them.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>

#include "../_digits.h"

#define LARGEST_RELATIVE_ERROR 0.5
/* Of a reference that is 0. */
#define NO_PERCENT (-1.0)
#define MOST_CACHED 100000

/* The fields of a Leaf and of a Pair. */
enum { PLACE, KIND, DTYPE, SHAPE, MAX, REQUIRES_GRAD = 8, LEAF_FIELDS = 12 };
enum { CANDIDATE, REFERENCE, REFERENCE_CALL, PAIR_FIELDS = 4 };

/* From plain_rows.py: the classes, the texts of the last cells by [is far + 2 * is inconsistent], and
 * what gives the text of a shape and the state of a place. */
static PyObject *pair_class, *row_class, *messages, *shape_text, *state_at;
static PyObject *shape_texts, *states;
static PyObject *tensor_kind, *dot, *true_text, *false_text, *absent_text, *warning, *empty, *failed,
    *passed;

static PyObject *make(PyObject *type, PyObject *fields)
{
    /* A NamedTuple's own constructor is Python; that of its base is not. */
    static newfunc new_tuple = NULL;
    if (!new_tuple)
        new_tuple = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *arguments = fields ? PyTuple_Pack(1, fields) : NULL;
    PyObject *made = arguments ? new_tuple((PyTypeObject *)type, arguments, NULL) : NULL;
    Py_XDECREF(arguments);
    Py_XDECREF(fields);
    return made;
}

static int has_size(PyObject *value, Py_ssize_t size)
{
    return PyTuple_Check(value) && PyTuple_Size(value) == size;
}

static int are_equal(PyObject *one, PyObject *other)
{
    return one == other ? 1 : PyObject_RichCompareBool(one, other, Py_EQ);
}

/* --- pairs --------------------------------------------------------------------------------------- */

/* Whether two leaves have the same place, dtype and shape; -1 with an exception. */
static int are_alike(PyObject *ours, PyObject *theirs)
{
    static const int fields[] = {PLACE, DTYPE, SHAPE};
    if (!has_size(ours, LEAF_FIELDS) || !has_size(theirs, LEAF_FIELDS))
        return 0;
    for (int i = 0; i < 3; i++) {
        int equal = are_equal(PyTuple_GetItem(ours, fields[i]), PyTuple_GetItem(theirs, fields[i]));
        if (equal != 1)
            return equal;
    }
    return 1;
}

static PyObject *alike_pairs(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *ours, *theirs, *name;
    if (!PyArg_ParseTuple(arguments, "O!O!U", &PyList_Type, &ours, &PyList_Type, &theirs, &name))
        return NULL;
    Py_ssize_t count = PyList_Size(ours);
    if (!pair_class || PyList_Size(theirs) != count)
        return Py_NewRef(Py_None);
    for (Py_ssize_t i = 0; i < count; i++) {
        int alike = are_alike(PyList_GetItem(ours, i), PyList_GetItem(theirs, i));
        if (alike < 0)
            return NULL;
        if (!alike)
            return Py_NewRef(Py_None);
    }
    PyObject *pairs = PyList_New(count);
    for (Py_ssize_t i = 0; pairs && i < count; i++) {
        PyObject *pair = make(pair_class, PyTuple_Pack(4, PyList_GetItem(ours, i),
                                                       PyList_GetItem(theirs, i), name, Py_False));
        if (!pair || PyList_SetItem(pairs, i, pair)) {
            Py_DECREF(pairs);
            return NULL;
        }
    }
    return pairs;
}

/* --- rows of statistics -------------------------------------------------------------------------- */

/* What a function says of a value, which it is asked once; a borrowed reference. */
static PyObject *known(PyObject *answers, PyObject *function, PyObject *value)
{
    PyObject *answer = PyDict_GetItemWithError(answers, value);
    if (answer || PyErr_Occurred())
        return answer;
    if (PyDict_Size(answers) >= MOST_CACHED)
        PyDict_Clear(answers);
    answer = PyObject_CallFunctionObjArgs(function, value, NULL);
    int is_kept = answer && !PyDict_SetItem(answers, value, answer);
    Py_XDECREF(answer);
    return is_kept ? answer : NULL;
}

static PyObject *grad_text(PyObject *grad)
{
    if (grad == Py_None)
        return absent_text;
    return grad == Py_True ? true_text : grad == Py_False ? false_text : NULL;
}

/* Whether the name of a value is its call's and its place. */
static int is_named_by_place(PyObject *place)
{
    if (!PyUnicode_CheckExact(place))
        return 0;
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(place, &length);
    if (!text)
        PyErr_Clear();
    return text && length && (length < 7 || memcmp(text, "kwargs.", 7));
}

static PyObject *percent(double value)
{
    if (value == NO_PERCENT)
        return Py_NewRef(absent_text);
    char out[32];
    size_t length = write_double(out, value);
    out[length] = '%';
    return PyUnicode_FromStringAndSize(out, (Py_ssize_t)length + 1);
}

/* The differences and relative errors of four numbers; 0 unless all of them are finite. */
static int subtract(PyObject *ours, PyObject *theirs, double differences[4], double percents[4],
                    int *is_far)
{
    *is_far = 0;
    for (int i = 0; i < 4; i++) {
        PyObject *one = PyTuple_GetItem(ours, MAX + i), *other = PyTuple_GetItem(theirs, MAX + i);
        if (!PyFloat_CheckExact(one) || !PyFloat_CheckExact(other))
            return 0;
        double reference = PyFloat_AsDouble(other);
        differences[i] = PyFloat_AsDouble(one) - reference;
        if (reference == 0) {
            percents[i] = NO_PERCENT;
            *is_far |= differences[i] != 0;
        } else {
            double relative = differences[i] / reference;
            relative = fabs(relative);
            percents[i] = relative * 100;
            *is_far |= relative > LARGEST_RELATIVE_ERROR;
        }
        if (!is_finite(differences[i]) || !is_finite(percents[i]))
            return 0;
    }
    return 1;
}

#define CELLS 27

static int fill_first(PyObject *cells[CELLS], PyObject *call_dot, PyObject *call, PyObject *pair)
{
    PyObject *ours = PyTuple_GetItem(pair, CANDIDATE), *theirs = PyTuple_GetItem(pair, REFERENCE);
    PyObject *other_call = PyTuple_GetItem(pair, REFERENCE_CALL);
    PyObject *place = PyTuple_GetItem(ours, PLACE), *other_place = PyTuple_GetItem(theirs, PLACE);
    cells[0] = PyUnicode_Concat(call_dot, place);
    if (!cells[0])
        return 0;
    int is_same = are_equal(call, other_call);
    if (is_same == 1)
        is_same = are_equal(place, other_place);
    if (is_same == 1)
        cells[1] = Py_NewRef(cells[0]);
    else if (!is_same)
        cells[1] = PyUnicode_FromFormat("%U.%U", other_call, other_place);
    PyObject *sides[2] = {ours, theirs};
    for (int side = 0; side < 2; side++) {
        PyObject *shape = known(shape_texts, shape_text, PyTuple_GetItem(sides[side], SHAPE));
        cells[2 + side] = Py_NewRef(PyTuple_GetItem(sides[side], DTYPE));
        cells[4 + side] = Py_XNewRef(shape);
        cells[6 + side] = Py_NewRef(grad_text(PyTuple_GetItem(sides[side], REQUIRES_GRAD)));
    }
    return cells[1] && cells[4] && cells[5];
}

static int fill_rest(PyObject *cells[CELLS], PyObject *pair, const double differences[4],
                     const double percents[4], int is_far)
{
    PyObject *ours = PyTuple_GetItem(pair, CANDIDATE), *theirs = PyTuple_GetItem(pair, REFERENCE);
    for (int i = 0; i < 4; i++) {
        cells[8 + i] = PyFloat_FromDouble(differences[i]);
        cells[12 + i] = percent(percents[i]);
        cells[16 + i] = Py_NewRef(PyTuple_GetItem(ours, MAX + i));
        cells[20 + i] = Py_NewRef(PyTuple_GetItem(theirs, MAX + i));
        if (!cells[8 + i] || !cells[12 + i])
            return 0;
    }
    int is_consistent = cells[6] == cells[7];
    cells[24] = PyBool_FromLong(is_consistent);
    cells[25] = Py_NewRef(is_far ? warning : empty);
    cells[26] = Py_NewRef(PyTuple_GetItem(messages, is_far + 2 * !is_consistent));
    return 1;
}

static int is_usual(PyObject *pair)
{
    if (!has_size(pair, PAIR_FIELDS))
        return 0;
    for (int side = CANDIDATE; side <= REFERENCE; side++) {
        PyObject *leaf = PyTuple_GetItem(pair, side);
        if (!has_size(leaf, LEAF_FIELDS) || PyTuple_GetItem(leaf, KIND) != tensor_kind ||
            !PyTuple_Check(PyTuple_GetItem(leaf, SHAPE)) ||
            !grad_text(PyTuple_GetItem(leaf, REQUIRES_GRAD)) ||
            !is_named_by_place(PyTuple_GetItem(leaf, PLACE)))
            return 0;
    }
    return PyUnicode_CheckExact(PyTuple_GetItem(pair, REFERENCE_CALL));
}

static PyObject *plain_row(PyObject *call_dot, PyObject *call, PyObject *pair,
                           const double differences[4], const double percents[4], int is_far)
{
    PyObject *cells[CELLS] = {NULL};
    PyObject *list = NULL, *row = NULL;
    if (fill_first(cells, call_dot, call, pair) &&
        fill_rest(cells, pair, differences, percents, is_far))
        list = PyList_New(CELLS);
    for (int i = 0; i < CELLS; i++) {
        if (list)
            PyList_SetItem(list, i, cells[i]);
        else
            Py_XDECREF(cells[i]);
    }
    PyObject *place = PyTuple_GetItem(PyTuple_GetItem(pair, CANDIDATE), PLACE);
    PyObject *state = list ? known(states, state_at, place) : NULL;
    if (state)
        row = make(row_class, PyTuple_Pack(4, list, state, is_far ? failed : passed, pair));
    Py_XDECREF(list);
    return row;
}

static PyObject *statistics_rows(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *call, *pairs, *make_other;
    if (!PyArg_ParseTuple(arguments, "UO!O", &call, &PyList_Type, &pairs, &make_other))
        return NULL;
    if (!row_class || !has_powers) {
        PyErr_SetString(PyExc_RuntimeError, "set_up comes first");
        return NULL;
    }
    PyObject *call_dot = PyUnicode_Concat(call, dot);
    PyObject *rows = call_dot ? PyList_New(0) : NULL;
    for (Py_ssize_t i = 0; rows && i < PyList_Size(pairs); i++) {
        PyObject *pair = PyList_GetItem(pairs, i), *row;
        double differences[4], percents[4];
        int is_far;
        if (is_usual(pair) && subtract(PyTuple_GetItem(pair, CANDIDATE),
                                       PyTuple_GetItem(pair, REFERENCE), differences, percents, &is_far))
            row = plain_row(call_dot, call, pair, differences, percents, is_far);
        else
            row = PyObject_CallFunctionObjArgs(make_other, call, pair, NULL);
        if (!row || (row != Py_None && PyList_Append(rows, row)))
            Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    Py_XDECREF(call_dot);
    return rows;
}

/* --- the module ---------------------------------------------------------------------------------- */

static int is_tuple_class(PyObject *value)
{
    return PyType_Check(value) && PyType_IsSubtype((PyTypeObject *)value, &PyTuple_Type);
}

static PyObject *set_up(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *pair, *row, *texts, *shapes, *places, *table;
    if (!PyArg_ParseTuple(arguments, "OOO!OOO", &pair, &row, &PyTuple_Type, &texts, &shapes, &places,
                          &table))
        return NULL;
    if (!is_tuple_class(pair) || !is_tuple_class(row) || PyTuple_Size(texts) != 4) {
        PyErr_SetString(PyExc_TypeError, "wanted two named tuples and four messages");
        return NULL;
    }
    PyObject *none = take_powers(table);
    if (!none)
        return NULL;
    pair_class = Py_NewRef(pair);
    row_class = Py_NewRef(row);
    messages = Py_NewRef(texts);
    shape_text = Py_NewRef(shapes);
    state_at = Py_NewRef(places);
    return none;
}

static PyMethodDef methods[] = {
    {"alike_pairs", alike_pairs, METH_VARARGS, "The Pairs of (leaves, leaves, call), or None."},
    {"statistics_rows", statistics_rows, METH_VARARGS, "The Rows of (call, pairs, make_other)."},
    {"set_up", set_up, METH_VARARGS, "Take the classes, the messages, two functions, the powers."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_plain_rows", "Pairs and rows of usual calls.", -1, methods,
    NULL,                  NULL,          NULL,                             NULL,
};

static int intern(PyObject **slot, const char *text)
{
    *slot = PyUnicode_InternFromString(text);
    return *slot != NULL;
}

PyMODINIT_FUNC PyInit__plain_rows(void)
{
    if (!intern(&tensor_kind, "tensor") || !intern(&dot, ".") || !intern(&true_text, "True") ||
        !intern(&false_text, "False") || !intern(&absent_text, "N/A") ||
        !intern(&warning, "Warning") || !intern(&empty, "") || !intern(&failed, "failed") ||
        !intern(&passed, "passed"))
        return NULL;
    shape_texts = PyDict_New();
    states = PyDict_New();
    return shape_texts && states ? PyModule_Create(&definition) : NULL;
}
