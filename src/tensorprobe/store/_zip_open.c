/* Open a stored zip as torch.save writes it, and find its records.
 *
 *     path -> (descriptor, size, None, {name: (start, size)})     a large file, to be mapped
 *     path -> (-1, size, content, {name: (start, size)})          a small one, read
 *
 * A dump has thousands of such files, and Python takes a dozen steps for each, at every one of which
 * another thread may take over. What is unusual about a file, be it missing, damaged or only different,
 * makes the answer None; tensor_file.py and zip_directory.py, which say all of this in Python, then see
 * what it is. No number in the file is trusted.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_RECORDS 32
#define MOST_NAME_BYTES 1024
/* The records before a tensor's own, and all that follows it, are a few hundred bytes each. */
#define EDGE 4096

enum { END_SIZE = 22, LOCATOR_SIZE = 20, END64_SIZE = 56, ENTRY_SIZE = 46, LOCAL_SIZE = 30 };

typedef struct {
    const unsigned char *head, *tail;
    uint64_t size, edge; /* of the file; of the head, and of the tail */
} File;

typedef struct {
    const unsigned char *name;
    uint64_t name_length, start, size;
} Record;

/* Where some bytes of the file are in memory, or NULL. */
static const unsigned char *bytes_at(const File *file, uint64_t offset, uint64_t count)
{
    if (count > file->size || offset > file->size - count)
        return NULL;
    if (offset + count <= file->edge)
        return file->head + offset;
    uint64_t tail_start = file->size - file->edge;
    return offset >= tail_start ? file->tail + (offset - tail_start) : NULL;
}

/* A number as a zip has it, the lowest byte first. */
static uint64_t number_at(const unsigned char *at, int bytes)
{
    uint64_t number = 0;
    for (int i = bytes - 1; i >= 0; i--)
        number = number << 8 | at[i];
    return number;
}

static int has_mark(const unsigned char *at, const char *mark) { return at && !memcmp(at, mark, 4); }

/* Find the directory: its entries, where it starts and how long it is; 0 if anything is unusual. */
static int find_directory(const File *file, uint64_t *count, uint64_t *start, uint64_t *length)
{
    if (file->size < END_SIZE)
        return 0;
    uint64_t end_at = file->size - END_SIZE, limit = end_at;
    const unsigned char *end = bytes_at(file, end_at, END_SIZE);
    if (!has_mark(end, "PK\5\6") || number_at(end + 20, 2))
        return 0;
    *count = number_at(end + 10, 2);
    *length = number_at(end + 12, 4);
    *start = number_at(end + 16, 4);
    if (end_at >= LOCATOR_SIZE) {
        uint64_t locator_at = end_at - LOCATOR_SIZE;
        const unsigned char *locator = bytes_at(file, locator_at, LOCATOR_SIZE);
        if (!locator)
            return 0;
        /* torch writes the zip64 records into small files too, and reads them first. */
        if (has_mark(locator, "PK\6\7")) {
            limit = number_at(locator + 8, 8);
            const unsigned char *end64 = bytes_at(file, limit, END64_SIZE);
            if (!has_mark(end64, "PK\6\6") || limit + END64_SIZE > locator_at)
                return 0;
            *count = number_at(end64 + 32, 8);
            *length = number_at(end64 + 40, 8);
            *start = number_at(end64 + 48, 8);
        }
    }
    return *length <= limit && *start <= limit - *length && *count <= MOST_RECORDS &&
           *count * ENTRY_SIZE <= *length;
}

static int find_record(const File *file, const unsigned char *entry, uint64_t directory, Record *record)
{
    uint64_t flags = number_at(entry + 8, 2), method = number_at(entry + 10, 2);
    uint64_t packed = number_at(entry + 20, 4), header = number_at(entry + 42, 4);
    record->size = number_at(entry + 24, 4);
    if (flags & 1 || method || packed != record->size || record->size == UINT32_MAX ||
        header == UINT32_MAX || header + LOCAL_SIZE > directory)
        return 0;
    const unsigned char *local = bytes_at(file, header, LOCAL_SIZE);
    if (!has_mark(local, "PK\3\4"))
        return 0;
    record->start = header + LOCAL_SIZE + number_at(local + 26, 2) + number_at(local + 28, 2);
    return record->start + record->size <= directory;
}

/* Return how many records there are, or -1 if anything is unusual. */
static int find_records(const File *file, Record records[MOST_RECORDS])
{
    uint64_t count, start, length;
    if (!has_mark(bytes_at(file, 0, 4), "PK\3\4") || !find_directory(file, &count, &start, &length))
        return -1;
    const unsigned char *at = bytes_at(file, start, length);
    uint64_t left = length;
    if (!at)
        return -1;
    for (uint64_t i = 0; i < count; i++) {
        if (left < ENTRY_SIZE || !has_mark(at, "PK\1\2") || !find_record(file, at, start, &records[i]))
            return -1;
        uint64_t name_length = number_at(at + 28, 2);
        uint64_t entry = ENTRY_SIZE + name_length + number_at(at + 30, 2) + number_at(at + 32, 2);
        if (entry > left || name_length > MOST_NAME_BYTES)
            return -1;
        records[i].name = at + ENTRY_SIZE;
        records[i].name_length = name_length;
        at += entry;
        left -= entry;
    }
    return (int)count;
}

static int read_fully(int descriptor, unsigned char *into, size_t count, off_t offset)
{
    while (count) {
        ssize_t done = pread(descriptor, into, count, offset);
        if (done <= 0)
            return 0;
        into += done;
        offset += done;
        count -= (size_t)done;
    }
    return 1;
}

/* Open a regular file that is not empty; -1 for anything else. */
static int open_regular(const char *path, uint64_t *size)
{
    struct stat status;
    if (stat(path, &status) || !S_ISREG(status.st_mode))
        return -1;
    /* O_NONBLOCK: should a fifo take the file's place after the check, opening it must not hang. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0)
        return -1;
    if (fstat(descriptor, &status) || !S_ISREG(status.st_mode) || status.st_size <= 0) {
        close(descriptor);
        return -1;
    }
    *size = (uint64_t)status.st_size;
    return descriptor;
}

static PyObject *dict_of(const Record *records, int count)
{
    PyObject *found = PyDict_New();
    for (int i = 0; found && i < count; i++) {
        PyObject *name = PyUnicode_DecodeUTF8((const char *)records[i].name,
                                              (Py_ssize_t)records[i].name_length, "surrogateescape");
        PyObject *place = Py_BuildValue("(KK)", (unsigned long long)records[i].start,
                                        (unsigned long long)records[i].size);
        if (!name || !place || PyDict_SetItem(found, name, place))
            Py_CLEAR(found);
        Py_XDECREF(name);
        Py_XDECREF(place);
    }
    return found;
}

static PyObject *open_zip(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *path;
    unsigned long long map_from;
    if (!PyArg_ParseTuple(arguments, "O&K", PyUnicode_FSConverter, &path, &map_from))
        return NULL;
    const char *path_text = PyBytes_AsString(path);
    if (!path_text) {
        Py_DECREF(path);
        return NULL;
    }
    unsigned char *memory = NULL;
    File file = {NULL, NULL, 0, 0};
    Record records[MOST_RECORDS];
    int count = -1, is_small = 0, descriptor;
    Py_BEGIN_ALLOW_THREADS;
    descriptor = open_regular(path_text, &file.size);
    if (descriptor >= 0) {
        is_small = file.size < map_from;
        file.edge = is_small || file.size < EDGE ? file.size : EDGE;
        memory = malloc(is_small ? file.size : 2 * file.edge);
        file.head = memory;
        file.tail = is_small ? memory : memory + file.edge;
        if (memory && read_fully(descriptor, memory, file.edge, 0) &&
            (is_small || read_fully(descriptor, memory + file.edge, file.edge,
                                    (off_t)(file.size - file.edge))))
            count = find_records(&file, records);
        if (is_small || count < 0) {
            close(descriptor);
            descriptor = -1;
        }
    }
    Py_END_ALLOW_THREADS;
    Py_DECREF(path);
    PyObject *result = NULL, *found = NULL, *content = NULL;
    if (count < 0)
        result = Py_NewRef(Py_None);
    else
        found = dict_of(records, count);
    if (found && PyDict_Size(found) != count) {
        /* Two records of one name. */
        Py_CLEAR(found);
        result = Py_NewRef(Py_None);
    }
    if (found)
        content = is_small ? PyBytes_FromStringAndSize((const char *)memory, (Py_ssize_t)file.size)
                           : Py_NewRef(Py_None);
    if (content)
        result = Py_BuildValue("(iKOO)", descriptor, (unsigned long long)file.size, content, found);
    /* Whoever gets no result closes nothing. */
    if (descriptor >= 0 && (!result || result == Py_None))
        close(descriptor);
    Py_XDECREF(found);
    Py_XDECREF(content);
    free(memory);
    return result;
}

static PyMethodDef methods[] = {
    {"open_zip", open_zip, METH_VARARGS, "Descriptor, size, content and records of (path, map_from)."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_zip_open", "Stored zips.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__zip_open(void) { return PyModule_Create(&definition); }
