/* Makes calls on files below one folder fail, as a full, broken or read-only disk does.

   Loaded with LD_PRELOAD. Nothing happens until FAULT_FOLDER is set; the variables are read at each
   call, so a process that has been running for long can still be given a fault.

   FAULT_FOLDER   calls on other files are left alone
   FAULT_ERRNO    the number of the error; without it, calls are only counted
   FAULT_KIND     "data" (space and writing), "names" (creating, renaming), or "all"
   FAULT_FIRST    number of the first call that fails; all later ones fail as well
   FAULT_ONCE     if set, only that call fails
   FAULT_COUNTER  a file of 8 bytes, shared by all processes, with the number of calls so far
   FAULT_CLOCK    seconds by which the wall clock is wrong from call FAULT_FIRST to it on */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static long *counter(void) {
    static long *shared;
    const char *path = getenv("FAULT_COUNTER");
    if (shared || !path) return shared;
    int fd = REAL(open64)(path, O_RDWR);
    if (fd < 0) return NULL;
    void *found = mmap(NULL, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED) shared = found;
    return shared;
}

static int due(void) {
    const char *first = getenv("FAULT_FIRST");
    long *count = counter();
    if (!first || !count) return 0;
    long number = __sync_add_and_fetch(count, 1);
    return getenv("FAULT_ONCE") ? number == atol(first) : number >= atol(first);
}

/* Whether this call fails; sets errno. */
static int fails(const char *kind, const char *path) {
    const char *folder = getenv("FAULT_FOLDER"), *wanted = getenv("FAULT_KIND");
    char full[PATH_MAX];
    if (!folder || !path || !wanted || getenv("FAULT_CLOCK")) return 0;
    if (strcmp(wanted, "all") && strcmp(wanted, kind)) return 0;
    if (path[0] != '/') {
        char here[PATH_MAX];
        if (!getcwd(here, sizeof here)) return 0;
        if (snprintf(full, sizeof full, "%s/%s", here, path) >= (int)sizeof full) return 0;
        path = full;
    }
    if (strncmp(path, folder, strlen(folder)) || !due()) return 0;
    const char *number = getenv("FAULT_ERRNO");
    if (!number) return 0;
    errno = atoi(number);
    return 1;
}

static int fails_fd(const char *kind, int fd) {
    char link[64], path[PATH_MAX];
    if (!getenv("FAULT_FOLDER")) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    if (path[0] != '/') return 0; /* a socket or a pipe */
    return fails(kind, path);
}

static int writes(int flags) {
    return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC));
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode_t mode = va_arg(rest, mode_t);                                                        \
        va_end(rest);                                                                              \
        if (writes(flags) && fails("names", path)) return -1;                                      \
        return REAL(name)(path, flags, mode);                                                      \
    }
#define OPENAT(name)                                                                               \
    int name(int folder, const char *path, int flags, ...) {                                       \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode_t mode = va_arg(rest, mode_t);                                                        \
        va_end(rest);                                                                              \
        if (folder == AT_FDCWD && writes(flags) && fails("names", path)) return -1;                \
        return REAL(name)(folder, path, flags, mode);                                              \
    }
#define FOPEN(name)                                                                                \
    FILE *name(const char *path, const char *mode) {                                               \
        if (strpbrk(mode, "wa+") && fails("names", path)) return NULL;                             \
        return REAL(name)(path, mode);                                                             \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)

int mkdir(const char *path, mode_t mode) {
    return fails("names", path) ? -1 : REAL(mkdir)(path, mode);
}
int rename(const char *from, const char *to) {
    return fails("names", to) ? -1 : REAL(rename)(from, to);
}
int renameat(int a, const char *from, int b, const char *to) {
    return fails("names", to) ? -1 : REAL(renameat)(a, from, b, to);
}
int symlink(const char *target, const char *path) {
    return fails("names", path) ? -1 : REAL(symlink)(target, path);
}
ssize_t write(int fd, const void *data, size_t size) {
    return fails_fd("data", fd) ? -1 : REAL(write)(fd, data, size);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    return fails_fd("data", fd) ? -1 : REAL(writev)(fd, parts, count);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return fails_fd("data", fd) ? -1 : REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return fails_fd("data", fd) ? -1 : REAL(pwrite64)(fd, data, size, at);
}
int ftruncate(int fd, off_t size) {
    return fails_fd("data", fd) ? -1 : REAL(ftruncate)(fd, size);
}
int ftruncate64(int fd, off64_t size) {
    return fails_fd("data", fd) ? -1 : REAL(ftruncate64)(fd, size);
}
int posix_fallocate(int fd, off_t at, off_t size) {
    return fails_fd("data", fd) ? errno : REAL(posix_fallocate)(fd, at, size);
}
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    return fails_fd("data", fd) ? errno : REAL(posix_fallocate64)(fd, at, size);
}
int fsync(int fd) { return fails_fd("data", fd) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fails_fd("data", fd) ? -1 : REAL(fdatasync)(fd); }
int msync(void *start, size_t size, int flags) {
    const char *folder = getenv("FAULT_FOLDER");
    return folder && fails("data", folder) ? -1 : REAL(msync)(start, size, flags);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static __typeof__(&clock_gettime) real;
    if (!real) real = REAL(clock_gettime);
    int code = real(clock, now);
    const char *wrong = getenv("FAULT_CLOCK");
    if (wrong && clock == CLOCK_REALTIME && due()) now->tv_sec += atol(wrong);
    return code;
}
