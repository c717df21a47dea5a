/* Preloaded, it makes the n-th call of one kind fail, as a full or broken disk and an exhausted memory do.

   cc -shared -fPIC -O1 -o failing.so failing.c -ldl
   LD_PRELOAD=./failing.so FAILING_UNDER=/folder python ...   then failing_arm(kind, n) from there

   Calls on files count where the file lies under $FAILING_UNDER; requests for memory from 1 MiB on. */
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
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, WRITE, FSYNC, RENAME, UNLINK, MMAP, MEMORY, KINDS };
#define LARGE (1 << 20)

static long counts[KINDS];
static int armed_kind = -1;
static long armed_at;
static int counting;

void failing_arm(int kind, long n) {
    memset(counts, 0, sizeof counts);
    armed_kind = kind;
    armed_at = n;
    counting = 1;
}

long failing_count(int kind) { return counts[kind]; }

void failing_stop(void) { counting = 0; }

static int fails(int kind) {
    if (!counting) return 0;
    long now = __atomic_add_fetch(&counts[kind], 1, __ATOMIC_SEQ_CST);
    return kind == armed_kind && now == armed_at;
}

static int under(const char *path) {
    const char *folder = getenv("FAILING_UNDER");
    return counting && folder && path && !strncmp(path, folder, strlen(folder));
}

static int fd_under(int fd) {
    if (!counting) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return under(path);
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL(why) do { errno = why; return -1; } while (0)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if (fd_under(fd) && fails(WRITE)) FAIL(ENOSPC);
    return real(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    if (fd_under(fd) && fails(WRITE)) FAIL(ENOSPC);
    return real(fd, parts, count);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    if (fd_under(fd) && fails(WRITE)) FAIL(ENOSPC);
    return real(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    if (fd_under(fd) && fails(WRITE)) FAIL(ENOSPC);
    return real(fd, data, size, at);
}

int ftruncate(int fd, off_t size) {
    REAL(ftruncate);
    if (fd_under(fd) && fails(WRITE)) FAIL(ENOSPC);
    return real(fd, size);
}

int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    if (fd_under(fd) && fails(WRITE)) FAIL(ENOSPC);
    return real(fd, size);
}

int fsync(int fd) {
    REAL(fsync);
    if (fd_under(fd) && fails(FSYNC)) FAIL(EIO);
    return real(fd);
}

ssize_t sendfile(int to, int from, off_t *at, size_t size) {
    REAL(sendfile);
    if (fd_under(to) && fails(WRITE)) FAIL(ENOSPC);
    return real(to, from, at, size);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    if (under(to) && fails(RENAME)) FAIL(EIO);
    return real(from, to);
}

int link(const char *from, const char *to) {
    REAL(link);
    if (under(to) && fails(RENAME)) FAIL(EIO);
    return real(from, to);
}

int unlink(const char *path) {
    REAL(unlink);
    if (under(path) && fails(UNLINK)) FAIL(EIO);
    return real(path);
}

int rmdir(const char *path) {
    REAL(rmdir);
    if (under(path) && fails(UNLINK)) FAIL(EIO);
    return real(path);
}

int unlinkat(int folder, const char *path, int flags) { /* whole folders are deleted by it */
    REAL(unlinkat);
    if ((under(path) || (*path != '/' && fd_under(folder))) && fails(UNLINK)) FAIL(EIO);
    return real(folder, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    if (under(path) && fails(OPEN)) FAIL(ENOSPC);
    return real(path, mode);
}

#define OPENED(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        int mode = va_arg(rest, int); \
        va_end(rest); \
        if (under(path) && fails(OPEN)) FAIL(EMFILE); \
        return real(path, flags, mode); \
    }
OPENED(open)
OPENED(open64)

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    REAL(mmap);
    int kind = fd >= 0 ? MMAP : MEMORY;
    if ((fd >= 0 ? fd_under(fd) : size >= LARGE) && fails(kind)) { errno = ENOMEM; return MAP_FAILED; }
    return real(at, size, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset) {
    REAL(mmap64);
    int kind = fd >= 0 ? MMAP : MEMORY;
    if ((fd >= 0 ? fd_under(fd) : size >= LARGE) && fails(kind)) { errno = ENOMEM; return MAP_FAILED; }
    return real(at, size, protection, flags, fd, offset);
}

void *malloc(size_t size) {
    REAL(malloc);
    if (size >= LARGE && fails(MEMORY)) { errno = ENOMEM; return NULL; }
    return real(size);
}

extern void *__libc_calloc(size_t, size_t);

void *calloc(size_t count, size_t size) { /* dlsym asks for memory by calloc itself */
    if (count && size >= LARGE / count && fails(MEMORY)) { errno = ENOMEM; return NULL; }
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
    REAL(realloc);
    if (size >= LARGE && fails(MEMORY)) { errno = ENOMEM; return NULL; }
    return real(old, size);
}

int posix_memalign(void **found, size_t alignment, size_t size) {
    REAL(posix_memalign);
    if (size >= LARGE && fails(MEMORY)) return ENOMEM;
    return real(found, alignment, size);
}
