/* What the parts of capture's compiled module use of each other. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* _calls.c */

/* Return a new object of a class written in Python, none of whose attributes is set. */
PyObject *make_empty(PyObject *its_class);
/* Set an attribute to a value, which is taken over and may be NULL; 0 if that worked. */
int give(PyObject *object, PyObject *attribute, PyObject *value);

/* _drafts.c: new references, None where there is nothing, NULL on failure; -1 on failure. */

extern PyMethodDef draft_methods[];
int begin_drafts(void);
PyObject *find_draft(PyObject *drafts, PyObject *tensor);
PyObject *make_draft(PyObject *tensor, PyObject *measured, PyObject *checked);
PyObject *key_of_stack(PyObject *frame, PyObject *shown, Py_ssize_t limit);
int looks_plain(PyObject *tensor);

/* _graph.c: new references. */

extern PyMethodDef graph_methods[];
int begin_graph(void);
PyObject *take_edges(PyObject *tensors);
/* Fill two dicts, as find_leaving returns them; -1 on failure. */
int leave_from(PyObject *node, PyObject *edges, uint64_t start, PyObject *leaving, PyObject *incoming);
PyObject *root_of(PyObject *outputs, PyObject *edges, uint64_t start, int passes_over_shapes);
