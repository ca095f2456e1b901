/* A pool: the host's tensors of a record are measured and their data written at the same time.
 *
 *     values of a record -> files to write, arrays to measure -> finish
 *     finish -> torch's threads do both (_write_pool_work.c); meanwhile: second names of other files, what was deferred
 *
 * Where torch computes on every core, its threads wait there for the next operation: no other thread
 * would be let in, so they do it themselves. A tensor may change as soon as finish has returned.
 *
 * The system lets one thread into a file. So one that comes alone waits for the next: to copy its data
 * while they are measured takes a fraction of the time of writing them, and the tensor may change then.
 *
 * What goes wrong in the middle is raised at the end, when all the rest is done; until then handlers of
 * signals wait. Whoever uses a pool holds its lock.
 */

#include "_write_pool.h"

#if defined(HAS_WRITE_POOL)

#include <errno.h>
#include <structmember.h>

/* So much of a record is kept back before it is written. */
#define MOST_FILES 8
/* Two threads have about as much to do when all files are this many times the largest. */
#define BALANCED 1.6
/* Below so many bytes a file is written before its data would be copied. */
#define SMALL (1 << 16)
/* What waits is lost with the process, and holds up the records that come after it. */
#define MOST_WAITING 7
#define LONGEST_WAIT 16

typedef struct {
    void **items;
    Py_ssize_t count, room;
} Line;

/* A file to be written with what lies at an address, the elements of a tensor in C order. */
typedef struct {
    PyObject *file, *tensor;
    /* What gives the memory back where that is our own, or NULL: the tensor may change then. */
    PyObject *release;
    /* Second names of the file, to be given once it is there; NULL: none. */
    PyObject *links;
    char *address;
    Py_ssize_t size;
    /* Where the elements are copied to, and what gives that back. */
    char *copy;
    PyObject *give_back;
} Job;

/* An array to be measured, and who waits for its numbers. */
typedef struct {
    Measuring *array;
    PyObject *measured, *tensor, *owner, *count, *type;
    const char *address;
    Py_ssize_t size;
} Asked;

/* What a pool uses, by the names that host_write_pool.py gives it. */
#define POOL_PARTS(X)                                                                                \
    X(lock) X(region) X(ask_elsewhere) X(ask_alone) X(plan) X(measured_class) X(numbers_of)          \
    X(view_place) X(forget) X(borrow) X(fail) X(hold) X(measuring)

/* Elements without a gap: how many, of what type, and what keeps them; `size` in bytes, 0: not known. */
typedef struct {
    void *address;
    PyObject *count, *type, *owner;
    Py_ssize_t size;
} Elements;

struct HostWritePool {
    PyObject_HEAD
    POOL_PARTS(FIELD)
    const MeasuringApi *api;
    Line jobs, waiting, asked;
    /* What is being done. */
    Line jobs_now, asked_now;
    /* Of files that are there, (second name, file): there is time for it while the next one is written. */
    PyObject *links;
    PyObject *deferred;
    Py_ssize_t waited;
    char is_running;
};

/* What was raised first, or the first interrupt. */
typedef struct {
    PyObject *kind, *value, *trace;
} Trouble;

static void note(Trouble *trouble)
{
    if (!PyErr_Occurred())
        return;
    Trouble new;
    PyErr_Fetch(&new.kind, &new.value, &new.trace);
    if (!trouble->kind || (PyErr_GivenExceptionMatches(trouble->kind, PyExc_Exception) &&
                           !PyErr_GivenExceptionMatches(new.kind, PyExc_Exception))) {
        Trouble before = *trouble;
        *trouble = new;
        new = before;
    }
    /* Only one can be raised. */
    if (new.kind) {
        PyErr_Restore(new.kind, new.value, new.trace);
        PyErr_WriteUnraisable(NULL);
    }
}

static int raise_noted(Trouble *trouble)
{
    if (!trouble->kind)
        return 0;
    PyErr_Restore(trouble->kind, trouble->value, trouble->trace);
    return -1;
}

static int put(Line *line, void *item)
{
    if (line->count == line->room) {
        Py_ssize_t room = line->room ? 2 * line->room : MOST_FILES;
        void **items = PyMem_Realloc(line->items, (size_t)room * sizeof *items);
        if (!items) {
            PyErr_NoMemory();
            return -1;
        }
        line->items = items;
        line->room = room;
    }
    line->items[line->count++] = item;
    return 0;
}

/* Take all that is in a line; whoever has it frees its items. */
static Line take_all(Line *line)
{
    Line taken = *line;
    *line = (Line){0};
    return taken;
}

/* The answer to a question of Python's; -1 on failure. */
static int is_so(PyObject *object, PyObject *attribute) { return is_true(PyObject_GetAttr(object, attribute)); }

static void free_job(Job *job, Trouble *trouble)
{
    PyObject *releases[] = {job->release, job->give_back};
    for (int i = 0; i < 2; i++) {
        PyObject *done = releases[i] ? PyObject_CallObject(releases[i], NULL) : NULL;
        if (releases[i] && !done)
            note(trouble);
        Py_XDECREF(done);
        Py_XDECREF(releases[i]);
    }
    Py_XDECREF(job->file);
    Py_XDECREF(job->tensor);
    Py_XDECREF(job->links);
    PyMem_Free(job);
}

static void free_asked(HostWritePool *self, Asked *asked)
{
    self->api->end(asked->array);
    Py_XDECREF(asked->measured);
    Py_XDECREF(asked->tensor);
    Py_XDECREF(asked->owner);
    Py_XDECREF(asked->count);
    Py_XDECREF(asked->type);
    PyMem_Free(asked);
}

/* Have a file write itself, or tell what is wrong. */
static void write_alone(HostWritePool *self, Job *job, Trouble *trouble)
{
    PyObject *view = PyObject_CallFunction(self->view_place, "Nn", PyLong_FromVoidPtr(job->address), job->size);
    PyObject *done = view ? PyObject_CallMethodObjArgs(job->file, text_write, view, NULL) : NULL;
    if (!done)
        note(trouble);
    Py_XDECREF(view);
    Py_XDECREF(done);
}

static int add_link(HostWritePool *self, PyObject *file, PyObject *source)
{
    PyObject *both = PyTuple_Pack(2, file, source);
    int failed = !both || PyList_Append(self->links, both);
    Py_XDECREF(both);
    return failed ? -1 : 0;
}

static int follow(PyObject *file, PyObject *source)
{
    PyObject *done = PyObject_CallMethodObjArgs(file, text_follow, source, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int end_file(PyObject *file)
{
    PyObject *done = call_method(file, text_end);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Let nobody find what is about to be gone. */
static void take_out(Line *line, void *item)
{
    for (Py_ssize_t i = 0; i < line->count; i++)
        if (line->items[i] == item)
            line->items[i] = NULL;
}

static void end_job(HostWritePool *self, Job *job, int is_written, Trouble *trouble)
{
    int is_done = is_so(job->file, text_is_done);
    if (!is_done && is_written && end_file(job->file))
        note(trouble);
    else if (!is_done && !is_written)
        /* The first of its folder, or too many files are open. */
        write_alone(self, job, trouble);
    for (Py_ssize_t i = 0; job->links && i < PyList_Size(job->links); i++) {
        PyObject *link = PyList_GetItem(job->links, i);
        int is_lost = is_so(job->file, text_is_lost);
        if (is_lost < 0 || (is_lost ? follow(link, job->file) : add_link(self, link, job->file)))
            note(trouble);
    }
    note(trouble);
    take_out(&self->jobs_now, job);
    free_job(job, trouble);
}

/* Put a job into a line; should that fail, it is done here. */
static void put_job(HostWritePool *self, Line *line, Job *job, Trouble *trouble)
{
    if (put(line, job)) {
        note(trouble);
        end_job(self, job, 0, trouble);
    }
}

static void measure_alone(HostWritePool *self, Asked *asked, Trouble *trouble)
{
    if (give(asked->measured, text_numbers, PyObject_CallFunctionObjArgs(self->ask_alone, asked->tensor, NULL))) {
        note(trouble);
        PyObject *forgotten = PyObject_CallObject(self->forget, NULL);
        note(trouble);
        Py_XDECREF(forgotten);
    }
}

static void tell_numbers(HostWritePool *self, Asked *asked, Trouble *trouble)
{
    PyObject *found = self->api->tell(asked->array);
    PyObject *numbers =
        found ? PyObject_CallFunctionObjArgs(self->numbers_of, found, asked->count, asked->type, NULL) : NULL;
    if (numbers && numbers != Py_None && !PyObject_SetAttr(asked->measured, text_numbers, numbers))
        asked = NULL;
    note(trouble);
    Py_XDECREF(found);
    Py_XDECREF(numbers);
    if (asked)
        measure_alone(self, asked, trouble);
}

/* What one round does, for what is done meanwhile. */
typedef struct {
    HostWritePool *pool;
    PyObject *links;
    Naming *namings;
    Trouble *trouble;
} Round;

/* Tell of a chore that failed; an interrupt is no failure. */
static void tell_failure(HostWritePool *self, Trouble *trouble)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        note(trouble);
        return;
    }
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    PyObject *told =
        PyObject_CallFunction(self->fail, "sO", "what was to be done while files are written", value);
    note(trouble);
    Py_XDECREF(told);
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

static void do_meanwhile(void *data)
{
    Round *round = data;
    HostWritePool *self = round->pool;
    for (Py_ssize_t i = 0; round->links && i < PyList_Size(round->links); i++) {
        PyObject *link = PyList_GetItem(round->links, i), *file = PyTuple_GetItem(link, 0);
        /* No hard links here, or the file that was there is gone. */
        if (round->namings[i].error ? follow(file, PyTuple_GetItem(link, 1)) : end_file(file))
            note(round->trouble);
    }
    if (!PyList_Size(self->deferred))
        return;
    PyObject *none = PyList_New(0), *deferred = self->deferred;
    if (!none) {
        note(round->trouble);
        return;
    }
    self->deferred = none;
    for (Py_ssize_t i = 0; i < PyList_Size(deferred); i++) {
        PyObject *done = PyObject_CallObject(PyList_GetItem(deferred, i), NULL);
        if (!done)
            tell_failure(self, round->trouble);
        Py_XDECREF(done);
    }
    Py_DECREF(deferred);
}

/* Return the path of a file as bytes; NULL on failure. */
static PyObject *path_of(PyObject *file)
{
    PyObject *text = PyObject_GetAttr(file, text_path), *path = NULL;
    if (text && !PyUnicode_FSConverter(text, &path))
        path = NULL;
    Py_XDECREF(text);
    return path;
}

/* What a file cannot be written with it says itself, later. */
static void prepare_writing(Job *job, Writing *writing, Trouble *trouble)
{
    PyObject *frame = PyObject_GetAttr(job->file, text_frame);
    char *parts[2] = {NULL, NULL};
    Py_ssize_t sizes[2];
    int failed = !frame;
    for (int i = 0; !failed && i < 2; i++) {
        PyObject *part = PyTuple_GetItem(frame, i);
        failed = !part || PyBytes_AsStringAndSize(part, &parts[i], &sizes[i]);
    }
    /* The file keeps it. */
    Py_XDECREF(frame);
    writing->error = EINVAL;
    writing->path = failed ? NULL : path_of(job->file);
    if (writing->path) {
        writing->pieces[0] = (struct iovec){parts[0], (size_t)sizes[0]};
        writing->pieces[1] = (struct iovec){job->address, (size_t)job->size};
        writing->pieces[2] = (struct iovec){parts[1], (size_t)sizes[1]};
    }
    note(trouble);
}

static void prepare_naming(PyObject *link, Naming *naming, Trouble *trouble)
{
    naming->error = EINVAL;
    naming->path = path_of(PyTuple_GetItem(link, 0));
    naming->old = naming->path ? path_of(PyTuple_GetItem(link, 1)) : NULL;
    note(trouble);
}

/* Have the data of a job copied while they are measured, or beside it. */
static void prepare_copy(Job *job, Line *asked, Work *work)
{
    if (!job->copy)
        return;
    for (Py_ssize_t i = 0; i < asked->count; i++) {
        Asked *one = asked->items[i];
        if (one->address == job->address && one->size == job->size && !work->looks[i].copy) {
            work->looks[i].copy = job->copy;
            return;
        }
    }
    work->copies[work->copy_count++] = (Copy){job->copy, job->address, (size_t)job->size};
}

static void prepare(HostWritePool *self, Work *work, Line *now, Line *copied, Line *asked, PyObject *links, Trouble *trouble)
{
    work->measuring = self->api;
    for (; work->writing_count < now->count; work->writing_count++)
        prepare_writing(now->items[work->writing_count], &work->writings[work->writing_count], trouble);
    for (; links && work->naming_count < PyList_Size(links); work->naming_count++)
        prepare_naming(PyList_GetItem(links, work->naming_count), &work->namings[work->naming_count], trouble);
    for (; work->look_count < asked->count; work->look_count++)
        work->looks[work->look_count].array = ((Asked *)asked->items[work->look_count])->array;
    for (Py_ssize_t i = 0; i < copied->count; i++)
        prepare_copy(copied->items[i], asked, work);
}

static int make_room(Work *work, Py_ssize_t files, Py_ssize_t names, Py_ssize_t arrays, Py_ssize_t copies)
{
    size_t sizes[] = {(size_t)files * sizeof(Writing), (size_t)names * sizeof(Naming),
                      (size_t)arrays * sizeof(Look), (size_t)copies * sizeof(Copy)};
    char *room = PyMem_Calloc(1, sizes[0] + sizes[1] + sizes[2] + sizes[3] + 1);
    if (!room) {
        PyErr_NoMemory();
        return -1;
    }
    work->writings = (Writing *)room;
    work->namings = (Naming *)(room + sizes[0]);
    work->looks = (Look *)(room + sizes[0] + sizes[1]);
    work->copies = (Copy *)(room + sizes[0] + sizes[1] + sizes[2]);
    return 0;
}

static void free_room(Work *work)
{
    for (Py_ssize_t i = 0; i < work->writing_count; i++)
        Py_XDECREF(work->writings[i].path);
    for (Py_ssize_t i = 0; i < work->naming_count; i++) {
        Py_XDECREF(work->namings[i].old);
        Py_XDECREF(work->namings[i].path);
    }
    PyMem_Free(work->writings);
}

/* Let a job whose data were copied wait. */
static void let_wait(HostWritePool *self, Job *job, Trouble *trouble)
{
    if (job->copy) {
        job->address = job->copy;
        job->release = job->give_back;
        job->copy = NULL;
        job->give_back = NULL;
    }
    Py_CLEAR(job->tensor);
    take_out(&self->jobs_now, job);
    /* Somebody could not wait. */
    if (is_so(job->file, text_is_done))
        end_job(self, job, 1, trouble);
    else
        put_job(self, &self->waiting, job, trouble);
}

/* Return what makes torch's threads run a function; NULL where this thread shall do it. */
static Region region_of(HostWritePool *self, Trouble *trouble)
{
    PyObject *answer = self->is_running ? NULL : PyObject_CallObject(self->region, NULL);
    void *region = answer ? PyLong_AsVoidPtr(answer) : NULL;
    Py_XDECREF(answer);
    note(trouble);
    return (Region)region;
}

static PyObject *begin_hold(HostWritePool *self, Trouble *trouble)
{
    PyObject *guard = PyObject_CallObject(self->hold, NULL);
    PyObject *entered = guard ? call_method(guard, text___enter__) : NULL;
    note(trouble);
    if (!entered)
        Py_CLEAR(guard);
    Py_XDECREF(entered);
    return guard;
}

static void end_hold(PyObject *guard, Trouble *trouble)
{
    if (!guard)
        return;
    PyObject *left = PyObject_CallMethodObjArgs(guard, text___exit__, Py_None, Py_None, Py_None, NULL);
    note(trouble);
    Py_XDECREF(left);
    Py_DECREF(guard);
}

/* Put the largest files first: threads that take the next one, each, end at about the same time then. */
static void sort_by_size(Line *jobs)
{
    for (Py_ssize_t i = 1; i < jobs->count; i++) {
        Job *job = jobs->items[i];
        Py_ssize_t place = i;
        for (; place && ((Job *)jobs->items[place - 1])->size < job->size; place--)
            jobs->items[place] = jobs->items[place - 1];
        jobs->items[place] = job;
    }
}

/* Write some files, copy the data of others, and measure what is to be measured; both lines are used up. */
static void work_on(HostWritePool *self, Line *now, Line *copied, Region region, Trouble *trouble)
{
    Work work = {.meanwhile = do_meanwhile};
    Line asked = take_all(&self->asked), *all[] = {now, copied};
    Py_ssize_t jobs_before = self->jobs_now.count, asked_before = self->asked_now.count;
    char was_running = self->is_running;
    sort_by_size(now);
    /* Made first: the collector may come with it, and with that other work. */
    PyObject *none = PyList_New(0), *links = self->links;
    if (none)
        self->links = none;
    else
        links = NULL;
    note(trouble);
    /* Who asks from inside finds them; else it can do without. */
    for (int i = 0; i < 2; i++)
        for (Py_ssize_t k = 0; k < all[i]->count; k++)
            if (put(&self->jobs_now, all[i]->items[k]))
                note(trouble);
    for (Py_ssize_t i = 0; i < asked.count; i++)
        if (put(&self->asked_now, asked.items[i]))
            note(trouble);
    self->is_running = 1;
    Round round = {self, links, NULL, trouble};
    work.data = &round;
    int has_room = !make_room(&work, now->count, links ? PyList_Size(links) : 0, asked.count, copied->count);
    note(trouble);
    if (has_room) {
        prepare(self, &work, now, copied, &asked, links, trouble);
        round.namings = work.namings;
        work_together(&work, region);
    }
    for (Py_ssize_t i = 0; i < asked.count; i++)
        if (has_room)
            tell_numbers(self, asked.items[i], trouble);
        else
            measure_alone(self, asked.items[i], trouble);
    for (Py_ssize_t i = 0; i < now->count; i++)
        end_job(self, now->items[i], has_room && !work.writings[i].error, trouble);
    for (Py_ssize_t i = 0; i < copied->count; i++)
        if (has_room)
            let_wait(self, copied->items[i], trouble);
        else
            end_job(self, copied->items[i], 0, trouble);
    for (Py_ssize_t i = 0; !has_room && links && i < PyList_Size(links); i++) {
        PyObject *link = PyList_GetItem(links, i);
        if (follow(PyTuple_GetItem(link, 0), PyTuple_GetItem(link, 1)))
            note(trouble);
    }
    self->jobs_now.count = jobs_before;
    self->asked_now.count = asked_before;
    self->is_running = was_running;
    for (Py_ssize_t i = 0; i < asked.count; i++)
        free_asked(self, asked.items[i]);
    if (has_room)
        free_room(&work);
    Py_XDECREF(links);
    PyMem_Free(asked.items);
    PyMem_Free(now->items);
    PyMem_Free(copied->items);
}

static int is_overdue(HostWritePool *self) { return self->waited >= LONGEST_WAIT || self->waiting.count >= MOST_WAITING; }

/* Whether two threads have about as much to do with what waits and these. */
static int is_balanced(HostWritePool *self, Line *jobs)
{
    Line *all[] = {&self->waiting, jobs};
    Py_ssize_t total = 0, largest = 0;
    for (int i = 0; i < 2; i++)
        for (Py_ssize_t k = 0; k < all[i]->count; k++) {
            Py_ssize_t size = ((Job *)all[i]->items[k])->size;
            total += size;
            largest = size > largest ? size : largest;
        }
    return (double)total >= BALANCED * (double)largest;
}

/* Whether a job may wait, in memory of our own. */
static int can_wait(HostWritePool *self, Job *job, Trouble *trouble)
{
    if (job->release || job->size < SMALL)
        return job->release != NULL;
    PyObject *memory = PyObject_CallFunction(self->borrow, "n", job->size), *release = NULL, *address = NULL;
    if (memory && memory != Py_None && PyArg_ParseTuple(memory, "OO", &address, &release)) {
        job->copy = PyLong_AsVoidPtr(address);
        job->give_back = Py_NewRef(release);
    }
    note(trouble);
    Py_XDECREF(memory);
    return job->copy != NULL;
}

static void take_jobs(HostWritePool *self, Trouble *trouble)
{
    PyObject *guard = begin_hold(self, trouble);
    Region region = region_of(self, trouble);
    Line jobs = take_all(&self->jobs), now = {0}, copied = {0};
    int all = !self->is_running && (!region || is_overdue(self) || is_balanced(self, &jobs));
    if (all) {
        now = take_all(&self->waiting);
        self->waited = 0;
    }
    for (Py_ssize_t i = 0; i < jobs.count; i++) {
        int waits = !all && !self->is_running && can_wait(self, jobs.items[i], trouble);
        put_job(self, waits ? &copied : &now, jobs.items[i], trouble);
    }
    PyMem_Free(jobs.items);
    work_on(self, &now, &copied, region, trouble);
    end_hold(guard, trouble);
}

static int has_work(HostWritePool *self)
{
    if (self->jobs.count || self->asked.count)
        return 1;
    if (self->is_running)
        return 0;
    self->waited += self->waiting.count > 0;
    return is_overdue(self);
}

int pool_finish(HostWritePool *self)
{
    Trouble trouble = {0};
    while (has_work(self))
        take_jobs(self, &trouble);
    return raise_noted(&trouble);
}

/* Write all that waits. */
static void empty_line(HostWritePool *self, Trouble *trouble)
{
    while (self->waiting.count || self->jobs.count || self->asked.count) {
        PyObject *guard = begin_hold(self, trouble);
        Line now = take_all(&self->waiting), jobs = take_all(&self->jobs), none = {0};
        self->waited = 0;
        for (Py_ssize_t i = 0; i < jobs.count; i++)
            put_job(self, &now, jobs.items[i], trouble);
        PyMem_Free(jobs.items);
        work_on(self, &now, &none, region_of(self, trouble), trouble);
        end_hold(guard, trouble);
    }
}

static void drain_all(HostWritePool *self, Trouble *trouble)
{
    /* Whoever asks from inside cannot wait for what is on its way. */
    for (Py_ssize_t i = 0; i < self->jobs_now.count; i++) {
        Job *job = self->jobs_now.items[i];
        if (job && !is_so(job->file, text_is_done))
            write_alone(self, job, trouble);
    }
    for (Py_ssize_t i = 0; i < self->asked_now.count; i++)
        measure_alone(self, self->asked_now.items[i], trouble);
    empty_line(self, trouble);
    while (PyList_Size(self->links) || PyList_Size(self->deferred)) {
        PyObject *guard = begin_hold(self, trouble);
        Line none[2] = {{0}, {0}};
        work_on(self, &none[0], &none[1], region_of(self, trouble), trouble);
        end_hold(guard, trouble);
    }
}

static int pool_write(HostWritePool *self, PyObject *file, void *address, Py_ssize_t size, PyObject *tensor, PyObject *release)
{
    Job *job = PyMem_Calloc(1, sizeof *job);
    if (!job || put(&self->jobs, job)) {
        Trouble trouble = {0};
        PyErr_NoMemory();
        note(&trouble);
        PyObject *given = release ? PyObject_CallObject(release, NULL) : NULL;
        note(&trouble);
        Py_XDECREF(given);
        PyMem_Free(job);
        return raise_noted(&trouble);
    }
    job->file = Py_NewRef(file);
    job->tensor = Py_NewRef(tensor);
    job->release = Py_XNewRef(release);
    job->address = address;
    job->size = size;
    return self->jobs.count >= MOST_FILES ? pool_finish(self) : 0;
}

static Job *find_job(HostWritePool *self, PyObject *file)
{
    Line *all[] = {&self->waiting, &self->jobs, &self->jobs_now};
    for (int i = 0; i < 3; i++)
        for (Py_ssize_t k = all[i]->count - 1; k >= 0; k--)
            if (all[i]->items[k] && ((Job *)all[i]->items[k])->file == file)
                return all[i]->items[k];
    return NULL;
}

static int pool_link(HostWritePool *self, PyObject *file, PyObject *source)
{
    int is_done = is_so(source, text_is_done);
    if (is_done)
        return is_done < 0 || add_link(self, file, source) ? -1 : 1;
    PyObject *links = PyList_New(0);
    Job *job = links ? find_job(self, source) : NULL;
    if (job && !job->links)
        job->links = Py_NewRef(links);
    Py_XDECREF(links);
    if (!job)
        return links ? 0 : -1;
    return PyList_Append(job->links, file) ? -1 : 1;
}

static PyObject *pool_ask(HostWritePool *self, PyObject *tensor, const Elements *elements)
{
    PyObject *address = PyLong_FromVoidPtr(elements->address);
    Asked *asked = address ? PyMem_Calloc(1, sizeof *asked) : NULL;
    if (asked && (asked->array = self->api->begin(address, elements->count, elements->type))) {
        /* Not by its own function, in which an interrupt might come. */
        asked->measured = make_empty(self->measured_class);
        if (asked->measured && PyObject_SetAttr(asked->measured, text_numbers, Py_None))
            Py_CLEAR(asked->measured);
        asked->tensor = Py_NewRef(tensor);
        asked->owner = Py_NewRef(elements->owner);
        asked->count = Py_NewRef(elements->count);
        asked->type = Py_NewRef(elements->type);
        asked->address = elements->address;
        asked->size = elements->size;
    }
    Py_XDECREF(address);
    if (!asked)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    if (!asked->measured || put(&self->asked, asked)) {
        free_asked(self, asked);
        return NULL;
    }
    return Py_NewRef(asked->measured);
}

/* --- what Python asks of it ---------------------------------------------------------------------*/

static PyObject *write_file(PyObject *object, PyObject *args)
{
    HostWritePool *self = (HostWritePool *)object;
    PyObject *file, *address, *tensor, *release = Py_None;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "OOnO|O", &file, &address, &size, &tensor, &release))
        return NULL;
    void *content = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred())
        return NULL;
    if (size < 0 || (size > 0 && !content))
        return PyErr_Format(PyExc_ValueError, "got %zd bytes at address %p", size, content);
    if (pool_write(self, file, content, size, tensor, release == Py_None ? NULL : release))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *link_file(PyObject *object, PyObject *args)
{
    PyObject *file, *source;
    if (!PyArg_ParseTuple(args, "OO", &file, &source))
        return NULL;
    int is_linked = pool_link((HostWritePool *)object, file, source);
    return is_linked < 0 ? NULL : PyBool_FromLong(is_linked);
}

static PyObject *ask_tensor(PyObject *object, PyObject *tensor)
{
    HostWritePool *self = (HostWritePool *)object;
    /* Its data may just have been put in order, to be written. */
    Job *last = self->jobs.count ? self->jobs.items[self->jobs.count - 1] : NULL;
    int is_ordered = last && last->tensor == tensor;
    PyObject *ordered = is_ordered ? PyLong_FromVoidPtr(last->address) : Py_NewRef(Py_None);
    PyObject *plan = ordered ? PyObject_CallFunctionObjArgs(self->plan, tensor, ordered, NULL) : NULL;
    if (plan && is_ordered && (!self->jobs.count || self->jobs.items[self->jobs.count - 1] != last)) {
        /* Its data were written meanwhile, and are no longer there. */
        is_ordered = 0;
        Py_DECREF(plan);
        plan = PyObject_CallFunctionObjArgs(self->plan, tensor, Py_None, NULL);
    }
    PyObject *measured = NULL, *address;
    Elements elements = {0};
    if (plan == Py_None)
        measured = PyObject_CallFunctionObjArgs(self->ask_elsewhere, tensor, NULL);
    else if (plan && PyArg_ParseTuple(plan, "OOOO", &address, &elements.count, &elements.type, &elements.owner)) {
        elements.address = PyLong_AsVoidPtr(address);
        /* Where its data are copied, that is done while they are measured. */
        if (is_ordered && elements.address == last->address)
            elements.size = last->size;
        measured = PyErr_Occurred() ? NULL : pool_ask(self, tensor, &elements);
    }
    Py_XDECREF(ordered);
    Py_XDECREF(plan);
    return measured;
}

static PyObject *defer(PyObject *object, PyObject *chore)
{
    if (PyList_Append(((HostWritePool *)object)->deferred, chore))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *finish(PyObject *object, PyObject *unused)
{
    (void)unused;
    if (pool_finish((HostWritePool *)object))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *with_lock(PyObject *object, void (*act)(HostWritePool *, Trouble *))
{
    HostWritePool *self = (HostWritePool *)object;
    Trouble trouble = {0};
    if (lock(self->lock))
        return NULL;
    act(self, &trouble);
    raise_noted(&trouble);
    if (unlock(self->lock))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *empty(PyObject *object, PyObject *unused)
{
    (void)unused;
    return with_lock(object, empty_line);
}

static PyObject *drain(PyObject *object, PyObject *unused)
{
    (void)unused;
    return with_lock(object, drain_all);
}

static PyObject *enter(PyObject *object, PyObject *unused)
{
    (void)unused;
    if (lock(((HostWritePool *)object)->lock))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *leave(PyObject *object, PyObject *unused)
{
    (void)unused;
    /* Also inside another block: a call that is made there may change what it was given. */
    pool_finish((HostWritePool *)object);
    if (unlock(((HostWritePool *)object)->lock))
        return NULL;
    Py_RETURN_NONE;
}

static int clear_pool(PyObject *object)
{
    HostWritePool *self = (HostWritePool *)object;
    Trouble before = {0}, trouble = {0};
    note(&before);
    Line jobs[] = {take_all(&self->jobs), take_all(&self->waiting)}, asked = take_all(&self->asked);
    for (int i = 0; i < 2; i++) {
        for (Py_ssize_t k = 0; k < jobs[i].count; k++)
            free_job(jobs[i].items[k], &trouble);
        PyMem_Free(jobs[i].items);
    }
    for (Py_ssize_t i = 0; i < asked.count; i++)
        free_asked(self, asked.items[i]);
    PyMem_Free(asked.items);
    PyMem_Free(take_all(&self->jobs_now).items);
    PyMem_Free(take_all(&self->asked_now).items);
    POOL_PARTS(CLEAR)
    Py_CLEAR(self->links);
    Py_CLEAR(self->deferred);
    if (raise_noted(&trouble))
        PyErr_WriteUnraisable(NULL);
    raise_noted(&before);
    return 0;
}

static int visit_pool(PyObject *object, visitproc visit, void *arg)
{
    HostWritePool *self = (HostWritePool *)object;
    POOL_PARTS(VISIT)
    Py_VISIT(self->links);
    Py_VISIT(self->deferred);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static PyObject *make_write_pool(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *parts;
    if ((kwargs && PyDict_Size(kwargs)) || !PyArg_ParseTuple(args, "O!", &PyDict_Type, &parts))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "no named arguments");
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    HostWritePool *self = (HostWritePool *)allocate(type, 0);
    if (!self)
        return NULL;
#define TAKE(part) || take_part(parts, #part, &self->part)
    if (!(self->links = PyList_New(0)) || !(self->deferred = PyList_New(0)) POOL_PARTS(TAKE) ||
        !(self->api = PyCapsule_GetPointer(self->measuring, MEASURING_NAME))) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyMethodDef pool_methods[] = {
    {"write", write_file, METH_VARARGS,
     "write(file, address, size, tensor, release=None): have a promised file written with what lies at an\n"
     "address, the elements of a tensor in C order; `release` is called when they are no longer needed."},
    {"link", link_file, METH_VARARGS,
     "link(file, source): have a file become another one's second name, if that is done or is done here."},
    {"ask", ask_tensor, METH_O, "Have a tensor measured; its numbers are there when the block ends."},
    {"defer", defer, METH_O, "Have something done while a file is written, at the latest by `drain`."},
    {"finish", finish, METH_NOARGS, "Measure everything now, and write or copy it, inside the block."},
    {"empty", empty, METH_NOARGS, "Write all that waits: somebody needs the memory."},
    {"drain", drain, METH_NOARGS, "Write all files, give them their second names, and do what was deferred."},
    {"__enter__", enter, METH_NOARGS, "Begin to describe values."},
    {"__exit__", leave, METH_VARARGS, "Finish, and end."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef pool_members[] = {
    {"is_running", T_BOOL, offsetof(HostWritePool, is_running), READONLY, "Whether files are being written."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot pool_slots[] = {
    {Py_tp_new, make_write_pool},         {Py_tp_dealloc, free_with_parts}, {Py_tp_traverse, visit_pool},
    {Py_tp_clear, clear_pool},      {Py_tp_members, pool_members},    {Py_tp_methods, pool_methods},
    {Py_tp_doc, "What is to be measured and written by the end of a `with` block."}, {0, NULL},
};

static PyType_Spec pool_spec = {
    "tensorprobe.capture._calls.HostWritePool", sizeof(HostWritePool), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, pool_slots,
};

int begin_pool(PyObject *module)
{
    PyObject *pool_class = PyType_FromSpec(&pool_spec);
    int failed = !pool_class || PyModule_AddObjectRef(module, "HostWritePool", pool_class);
    Py_XDECREF(pool_class);
    return failed ? -1 : 0;
}

#else

int begin_pool(PyObject *module)
{
    (void)module;
    return 0;
}

#endif
