/* Measure arrays, write files and give others second names at the same time, with the threads torch
 * computes with.
 *
 *     caller:        second names -> what Python has to do beside it -> files -> arrays -> copies
 *     other threads: files -> arrays -> copies
 *
 * Why torch's threads: between two operations they wait without leaving their cores, so a thread of
 * our own would share a core with one that does nothing. They are reached through the function that
 * compilers call for `#pragma omp parallel`. One file is not written by two threads: the system lets
 * only one of them in. A file has a hidden name until it is whole, as new_file.py has it.
 */

/* For fallocate. */
#define _GNU_SOURCE 1

#include "_write_pool.h"

#if defined(HAS_WRITE_POOL)

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/vfs.h>
#endif

/* Below so many bytes the pool takes longer to come together than to do the work. */
#define WORTH_SHARING (1 << 16)

/* What statfs says of a file on it; as ext2 and ext3, which refuse what is asked of ext4. */
#define EXT4 0xEF53

/* Not every system takes twice as much in one call. */
#define MOST_AT_ONCE ((size_t)1 << 30)

/* Other processes may have made files of these names, on other machines too. */
#define MOST_ATTEMPTS 1000
/* What such a name takes, beside its folder. */
#define HIDDEN_ROOM 64
static unsigned long hidden_count;

/* Memory is copied in pieces that several threads share. */
#define COPIED_AT_ONCE ((size_t)1 << 18)

/* What the threads take from, one by one. */
typedef struct {
    Work *work;
    Py_ssize_t part_count, piece_count;
    Py_ssize_t next_file, next_part, next_piece;
    unsigned long caller;
    PyThreadState *state;
} Shared;

/* Write all pieces; returns the number of the error, 0 without any. */
static int write_pieces(int descriptor, struct iovec *piece, struct iovec *end)
{
    for (;;) {
        while (piece < end && piece->iov_len == 0)
            piece++;
        if (piece == end)
            return 0;
        int count = 0;
        while (piece + count < end && piece[count].iov_len <= MOST_AT_ONCE)
            count++;
        ssize_t written = count ? writev(descriptor, piece, count)
                                : write(descriptor, piece->iov_base, MOST_AT_ONCE);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? errno : EIO;
        for (size_t left = (size_t)written; left > 0;) {
            size_t part = left < piece->iov_len ? left : piece->iov_len;
            piece->iov_base = (char *)piece->iov_base + part;
            piece->iov_len -= part;
            left -= part;
            if (piece->iov_len == 0)
                piece++;
        }
    }
}

/* Make a hidden file beside `path`, whose name is put into `hidden`; returns its descriptor, or -1. */
static int open_hidden(const char *path, char *hidden)
{
    const char *slash = strrchr(path, '/');
    size_t folder = slash == NULL ? 0 : (size_t)(slash - path) + 1;
    memcpy(hidden, path, folder);
    for (int attempt = 0; attempt < MOST_ATTEMPTS; attempt++) {
        unsigned long number = __atomic_fetch_add(&hidden_count, 1, __ATOMIC_RELAXED);
        snprintf(hidden + folder, HIDDEN_ROOM, ".tmp-%ld-t%lu", (long)getpid(), number);
        int descriptor = open(hidden, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0 || (errno != EEXIST && errno != EINTR))
            return descriptor;
    }
    return -1;
}

/* Take the blocks of a file at once where that is known to help: ext4 reserves them one by one else, which
 * takes a sixth of the time of writing it. Whether there is room is for those who write to say. */
static void take_blocks(int descriptor, const Writing *writing)
{
#if defined(__linux__)
    struct statfs system;
    size_t size = 0;
    for (int i = 0; i < 3; i++)
        size += writing->pieces[i].iov_len;
    if (size >= WORTH_SHARING && !fstatfs(descriptor, &system) && system.f_type == EXT4)
        (void)!fallocate(descriptor, 0, 0, (off_t)size);
#else
    (void)descriptor;
    (void)writing;
#endif
}

static int write_hidden(const Writing *writing, const char *path, char *hidden)
{
    struct iovec pieces[3];
    memcpy(pieces, writing->pieces, sizeof pieces);
    int descriptor = open_hidden(path, hidden);
    if (descriptor < 0)
        return errno;
    take_blocks(descriptor, writing);
    int error = write_pieces(descriptor, pieces, pieces + 3);
    /* Whatever close says, the descriptor is gone. */
    if (close(descriptor) && errno != EINTR && !error)
        error = errno;
    if (!error && rename(hidden, path))
        error = errno;
    if (error)
        unlink(hidden);
    return error;
}

static void run_writing(Writing *writing)
{
    if (writing->path == NULL)
        return;
    const char *path = PyBytes_AsString(writing->path);
    char *hidden = malloc(strlen(path) + HIDDEN_ROOM);
    writing->error = hidden == NULL ? ENOMEM : write_hidden(writing, path, hidden);
    free(hidden);
}

static void run_namings(Naming *namings, Py_ssize_t count)
{
    for (Naming *naming = namings; naming < namings + count; naming++) {
        if (naming->old == NULL || naming->path == NULL)
            continue;
        const char *old = PyBytes_AsString(naming->old), *path = PyBytes_AsString(naming->path);
        naming->error = link(old, path) ? errno : 0;
    }
}

/* Return the number of the next one of so many; or -1. */
static Py_ssize_t take_next(Py_ssize_t *next, Py_ssize_t count)
{
    Py_ssize_t taken = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
    return taken < count ? taken : -1;
}

static int take_file(Shared *shared)
{
    Py_ssize_t next = take_next(&shared->next_file, shared->work->writing_count);
    if (next >= 0)
        run_writing(&shared->work->writings[next]);
    return next >= 0;
}

static int take_look(Shared *shared)
{
    Py_ssize_t part = take_next(&shared->next_part, shared->part_count), count;
    if (part < 0)
        return 0;
    const MeasuringApi *measuring = shared->work->measuring;
    Look *look = shared->work->looks;
    for (; part >= (count = measuring->count_parts(look->array)); look++)
        part -= count;
    measuring->run_part(look->array, part, look->copy);
    return 1;
}

static Py_ssize_t count_pieces(const Copy *copy)
{
    return (Py_ssize_t)((copy->size + COPIED_AT_ONCE - 1) / COPIED_AT_ONCE);
}

static int take_piece(Shared *shared)
{
    Py_ssize_t piece = take_next(&shared->next_piece, shared->piece_count), count;
    if (piece < 0)
        return 0;
    const Copy *copy = shared->work->copies;
    for (; piece >= (count = count_pieces(copy)); copy++)
        piece -= count;
    size_t at = (size_t)piece * COPIED_AT_ONCE, left = copy->size - at;
    memcpy(copy->target + at, copy->source + at, left < COPIED_AT_ONCE ? left : COPIED_AT_ONCE);
    return 1;
}

/* What every thread of the pool does. */
static void take_jobs(void *data)
{
    Shared *shared = data;
    if (PyThread_get_thread_ident() == shared->caller) {
        run_namings(shared->work->namings, shared->work->naming_count);
        PyEval_RestoreThread(shared->state);
        shared->work->meanwhile(shared->work->data);
        shared->state = PyEval_SaveThread();
    }
    while (take_file(shared) || take_look(shared) || take_piece(shared))
        ;
}

void work_together(Work *work, Region region)
{
    Shared shared = {.work = work, .caller = PyThread_get_thread_ident()};
    size_t bytes = 0;
    for (Py_ssize_t i = 0; i < work->writing_count; i++)
        bytes += work->writings[i].pieces[1].iov_len;
    for (Py_ssize_t i = 0; i < work->look_count; i++) {
        Py_ssize_t parts = work->measuring->count_parts(work->looks[i].array);
        shared.part_count += parts;
        bytes += parts > 1 ? WORTH_SHARING : 0;
    }
    for (Py_ssize_t i = 0; i < work->copy_count; i++) {
        shared.piece_count += count_pieces(&work->copies[i]);
        bytes += work->copies[i].size;
    }
    shared.state = PyEval_SaveThread();
    /* As many threads as torch uses: for another number the pool would be made anew. */
    if (region != NULL && bytes >= WORTH_SHARING)
        region(take_jobs, &shared, 0, 0);
    else
        take_jobs(&shared);
    PyEval_RestoreThread(shared.state);
}

#endif
