/*
 * Records what a process does to the files below one folder: a library that is loaded before libc (LD_PRELOAD).
 *
 * Each operation is carried out and written to the trace under one lock that all recorded processes share, so the trace
 * has the order in which the operations took effect. A file is named by its inode, a name by its canonical path. A sync is
 * recorded but not carried out: no recorded process loses power.
 *
 * The recorder sees what goes through libc: Python, SQLite and RocksDB do. It does not see writes through a shared mapping
 * and through stdio, so it records that a file was mapped ('m') or opened by stdio ('s'); tests/power/recording.py refuses
 * a recording with such files unless nothing depends on their content.
 *
 * RECORDER_ROOT: the folder. RECORDER_TRACE: the file to append to. Without them nothing is recorded.
 * An operation that the recorder cannot describe ends the process: an incomplete recording would prove nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) \
    static __typeof__(name) *real; \
    if (real == NULL) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

struct __attribute__((packed)) head {
    uint32_t size; /* of the whole record */
    uint8_t operation;
    uint32_t pid;
    uint16_t first, second; /* lengths of the two paths */
    uint64_t inode, offset, length;
};

static char root[PATH_MAX];
static size_t root_length;
static dev_t root_device;
static int trace = -1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void fail(const char *what, const char *path) {
    dprintf(2, "recorder: %s: %s (%s)\n", what, path, strerror(errno));
    abort();
}

/* --- the lock of all recorded processes: a mutex for threads, a record lock for processes */

static void file_lock(short type) {
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    while (syscall(SYS_fcntl, trace, type == F_UNLCK ? F_SETLK : F_SETLKW, &range) != 0)
        if (errno != EINTR) fail("the trace cannot be locked", "");
}

static void enter(void) {
    int before = errno;
    pthread_mutex_lock(&mutex);
    file_lock(F_WRLCK);
    errno = before;
}

static void leave(void) {
    int before = errno;
    file_lock(F_UNLCK);
    pthread_mutex_unlock(&mutex);
    errno = before;
}

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void after_fork(void) { pthread_mutex_unlock(&mutex); }

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("RECORDER_ROOT"), *file = getenv("RECORDER_TRACE");
    struct stat found;
    if (folder == NULL || file == NULL) return;
    if (realpath(folder, root) == NULL || stat(root, &found) != 0) fail("no folder to record", folder);
    root_length = strlen(root);
    root_device = found.st_dev;
    int low = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (low < 0) fail("the trace cannot be opened", file);
    trace = (int)syscall(SYS_fcntl, low, F_DUPFD_CLOEXEC, 200); /* out of the way of programs that count on low numbers */
    if (trace < 0) fail("the trace cannot be opened", file);
    syscall(SYS_close, low);
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* --- writing to the trace */

static void record(char operation, uint64_t inode, const char *first, const char *second, uint64_t offset,
                   uint64_t length, const struct iovec *data, int count, size_t bytes) {
    int before = errno;
    struct iovec parts[3 + IOV_MAX];
    struct head head = {0};
    size_t total = sizeof head + (first ? strlen(first) : 0) + (second ? strlen(second) : 0) + bytes;
    head.size = (uint32_t)total;
    head.operation = (uint8_t)operation;
    head.pid = (uint32_t)getpid();
    head.first = (uint16_t)(first ? strlen(first) : 0);
    head.second = (uint16_t)(second ? strlen(second) : 0);
    head.inode = inode;
    head.offset = offset;
    head.length = length;
    int used = 0;
    parts[used++] = (struct iovec){&head, sizeof head};
    parts[used++] = (struct iovec){(void *)(uintptr_t)first, head.first};
    parts[used++] = (struct iovec){(void *)(uintptr_t)second, head.second};
    for (int i = 0; i < count && bytes > 0 && used < IOV_MAX; i++) {
        size_t part = data[i].iov_len < bytes ? data[i].iov_len : bytes;
        parts[used++] = (struct iovec){data[i].iov_base, part};
        bytes -= part;
    }
    if (bytes > 0) fail("a write has too many parts", "");
    if ((size_t)syscall(SYS_writev, trace, parts, used) != total) fail("the trace cannot be written", "");
    errno = before;
}

static int is_recorded(int fd, uint64_t *inode) {
    struct stat found;
    int before = errno;
    int is = trace >= 0 && fd != trace && fstat(fd, &found) == 0 && found.st_dev == root_device &&
             (S_ISREG(found.st_mode) || S_ISDIR(found.st_mode));
    errno = before;
    if (is) *inode = found.st_ino;
    return is;
}

/* The canonical form of a path whose last part need not exist; whether it is below the root. */
static int below_root(int folder, const char *path, char *canonical) {
    char whole[2 * PATH_MAX], parent[PATH_MAX], base[PATH_MAX];
    int before = errno, is = 0;
    if (trace < 0 || path == NULL || *path == 0) return 0;
    if (*path == '/' || folder == AT_FDCWD) {
        snprintf(whole, sizeof whole, "%s", path);
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, parent, sizeof parent - 1);
        if (length < 0) goto done;
        parent[length] = 0;
        snprintf(whole, sizeof whole, "%s/%s", parent, path);
    }
    size_t length = strlen(whole);
    while (length > 1 && whole[length - 1] == '/') whole[--length] = 0;
    char *slash = strrchr(whole, '/');
    snprintf(base, sizeof base, "%s", slash ? slash + 1 : whole);
    if (slash == NULL) {
        snprintf(whole, sizeof whole, ".");
    } else if (slash == whole) {
        whole[1] = 0;
    } else {
        *slash = 0;
    }
    if (realpath(whole, parent) == NULL) goto done;
    snprintf(whole, sizeof whole, "%s/%s", strcmp(parent, "/") ? parent : "", base);
    if (strlen(whole) >= PATH_MAX) goto done;
    memcpy(canonical, whole, strlen(whole) + 1);
    is = strncmp(canonical, root, root_length) == 0 && canonical[root_length] == '/';
done:
    errno = before;
    return is;
}

static uint64_t inode_of(const char *path) {
    struct stat found;
    int before = errno;
    uint64_t inode = lstat(path, &found) == 0 ? found.st_ino : 0;
    errno = before;
    return inode;
}

/* A mark of the recorded program: it says to the reader of the trace that something was promised at this point. */
void recorder_mark(const char *text, size_t length);
void recorder_mark(const char *text, size_t length) {
    struct iovec data = {(void *)(uintptr_t)text, length};
    if (trace < 0) return;
    enter();
    record('A', 0, NULL, NULL, 0, length, &data, 1, length);
    leave();
}

/* --- opening */

static int opened(int (*call)(int, const char *, int, mode_t), int folder, const char *path, int flags, mode_t mode) {
    char canonical[PATH_MAX];
    if ((flags & (O_CREAT | O_TRUNC)) == 0 || !below_root(folder, path, canonical)) return call(folder, path, flags, mode);
    if ((flags & O_TMPFILE) == O_TMPFILE || (flags & O_DIRECT)) fail("O_TMPFILE and O_DIRECT are not recorded", path);
    enter();
    uint64_t known = inode_of(canonical);
    int fd = call(folder, path, flags, mode);
    uint64_t inode;
    if (fd >= 0 && is_recorded(fd, &inode)) {
        if (known == 0)
            record('C', inode, canonical, NULL, 0, 0, NULL, 0, 0);
        else if (flags & O_TRUNC)
            record('T', inode, NULL, NULL, 0, 0, NULL, 0, 0);
    }
    leave();
    return fd;
}

static int call_openat(int folder, const char *path, int flags, mode_t mode) {
    REAL(openat64);
    return real(folder, path, flags, mode);
}

static mode_t mode_of(int flags, va_list arguments) {
    return flags & (O_CREAT | __O_TMPFILE) ? (mode_t)va_arg(arguments, int) : 0;
}

#define OPEN(name, before, folder) \
    int name(before const char *path, int flags, ...); \
    int name(before const char *path, int flags, ...) { \
        va_list arguments; \
        va_start(arguments, flags); \
        mode_t mode = mode_of(flags, arguments); \
        va_end(arguments); \
        return opened(call_openat, folder, path, flags, mode); \
    }
#define NOTHING
#define FOLDER int folder,
OPEN(open, NOTHING, AT_FDCWD)
OPEN(open64, NOTHING, AT_FDCWD)
OPEN(openat, FOLDER, folder)
OPEN(openat64, FOLDER, folder)
int __open_2(const char *path, int flags);
int __open_2(const char *path, int flags) { return opened(call_openat, AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags);
int __open64_2(const char *path, int flags) { return opened(call_openat, AT_FDCWD, path, flags, 0); }
int __openat_2(int folder, const char *path, int flags);
int __openat_2(int folder, const char *path, int flags) { return opened(call_openat, folder, path, flags, 0); }
int __openat64_2(int folder, const char *path, int flags);
int __openat64_2(int folder, const char *path, int flags) { return opened(call_openat, folder, path, flags, 0); }
int creat(const char *path, mode_t mode) {
    return opened(call_openat, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int creat64(const char *path, mode_t mode) {
    return opened(call_openat, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

static FILE *opened_by_stdio(FILE *(*call)(const char *, const char *), const char *path, const char *mode) {
    char canonical[PATH_MAX];
    if (strpbrk(mode, "wa+") == NULL || !below_root(AT_FDCWD, path, canonical)) return call(path, mode);
    enter();
    uint64_t known = inode_of(canonical);
    FILE *file = call(path, mode);
    if (file != NULL) {
        uint64_t inode = inode_of(canonical);
        if (known == 0)
            record('C', inode, canonical, NULL, 0, 0, NULL, 0, 0);
        else if (*mode == 'w')
            record('T', inode, NULL, NULL, 0, 0, NULL, 0, 0);
        record('s', inode, canonical, NULL, 0, 0, NULL, 0, 0);
    }
    leave();
    return file;
}
FILE *fopen(const char *path, const char *mode) {
    REAL(fopen);
    return opened_by_stdio(real, path, mode);
}
FILE *fopen64(const char *path, const char *mode) {
    REAL(fopen64);
    return opened_by_stdio(real, path, mode);
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    REAL(mmap);
    uint64_t inode;
    if ((flags & MAP_SHARED) && (protection & PROT_WRITE) && fd >= 0 && is_recorded(fd, &inode)) {
        enter();
        record('m', inode, NULL, NULL, 0, 0, NULL, 0, 0);
        leave();
    }
    return real(address, length, protection, flags, fd, offset);
}
void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset) {
    return mmap(address, length, protection, flags, fd, offset);
}

/* --- writing */

static void written(int fd, uint64_t inode, ssize_t count, off_t offset, const struct iovec *data, int parts) {
    if (count <= 0) return;
    if (offset < 0) offset = lseek(fd, 0, SEEK_CUR) - count;
    record('W', inode, NULL, NULL, (uint64_t)offset, (uint64_t)count, data, parts, (size_t)count);
}

#define WRITE(call, offset, data, parts) \
    uint64_t inode; \
    if (!is_recorded(fd, &inode)) return call; \
    enter(); \
    ssize_t count = call; \
    written(fd, inode, count, offset, data, parts); \
    leave(); \
    return count

ssize_t write(int fd, const void *buffer, size_t length) {
    REAL(write);
    struct iovec data = {(void *)(uintptr_t)buffer, length};
    WRITE(real(fd, buffer, length), -1, &data, 1);
}
ssize_t pwrite(int fd, const void *buffer, size_t length, off_t offset) {
    REAL(pwrite);
    struct iovec data = {(void *)(uintptr_t)buffer, length};
    WRITE(real(fd, buffer, length, offset), offset, &data, 1);
}
ssize_t pwrite64(int fd, const void *buffer, size_t length, off64_t offset) {
    return pwrite(fd, buffer, length, offset);
}
ssize_t writev(int fd, const struct iovec *data, int parts) {
    REAL(writev);
    WRITE(real(fd, data, parts), -1, data, parts);
}
ssize_t pwritev(int fd, const struct iovec *data, int parts, off_t offset) {
    REAL(pwritev);
    WRITE(real(fd, data, parts, offset), offset, data, parts);
}
ssize_t pwritev64(int fd, const struct iovec *data, int parts, off64_t offset) {
    return pwritev(fd, data, parts, offset);
}
ssize_t pwritev2(int fd, const struct iovec *data, int parts, off_t offset, int flags) {
    REAL(pwritev2);
    WRITE(real(fd, data, parts, offset, flags), offset, data, parts);
}
ssize_t pwritev64v2(int fd, const struct iovec *data, int parts, off64_t offset, int flags) {
    return pwritev2(fd, data, parts, offset, flags);
}

/* What the kernel has copied into a file is read back from it, by another descriptor: this one may be for writing only. */
static void copied(int fd, uint64_t inode, ssize_t count, off_t offset) {
    char link[64];
    if (count <= 0) return;
    if (offset < 0) offset = lseek(fd, 0, SEEK_CUR) - count;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int reader = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC);
    void *buffer = malloc((size_t)count);
    if (reader < 0 || buffer == NULL || pread(reader, buffer, (size_t)count, offset) != count)
        fail("a copied file cannot be read", link);
    struct iovec data = {buffer, (size_t)count};
    written(fd, inode, count, offset, &data, 1);
    free(buffer);
    syscall(SYS_close, reader);
}

ssize_t sendfile64(int fd, int from, off64_t *at, size_t length);
ssize_t sendfile64(int fd, int from, off64_t *at, size_t length) {
    REAL(sendfile64);
    uint64_t inode;
    if (!is_recorded(fd, &inode)) return real(fd, from, at, length);
    enter();
    ssize_t count = real(fd, from, at, length);
    copied(fd, inode, count, -1);
    leave();
    return count;
}
ssize_t sendfile(int fd, int from, off_t *at, size_t length);
ssize_t sendfile(int fd, int from, off_t *at, size_t length) { return sendfile64(fd, from, at, length); }
ssize_t copy_file_range(int from, off64_t *at, int fd, off64_t *to, size_t length, unsigned int flags) {
    REAL(copy_file_range);
    uint64_t inode;
    if (!is_recorded(fd, &inode)) return real(from, at, fd, to, length, flags);
    enter();
    ssize_t count = real(from, at, fd, to, length, flags);
    copied(fd, inode, count, to == NULL ? -1 : *to - count);
    leave();
    return count;
}

/* --- sizes */

int ftruncate(int fd, off_t length) {
    REAL(ftruncate);
    uint64_t inode;
    if (!is_recorded(fd, &inode)) return real(fd, length);
    enter();
    int done = real(fd, length);
    if (done == 0) record('T', inode, NULL, NULL, 0, (uint64_t)length, NULL, 0, 0);
    leave();
    return done;
}
int ftruncate64(int fd, off64_t length) { return ftruncate(fd, length); }
int truncate(const char *path, off_t length) {
    REAL(truncate);
    char canonical[PATH_MAX];
    if (!below_root(AT_FDCWD, path, canonical)) return real(path, length);
    enter();
    int done = real(path, length);
    if (done == 0) record('T', inode_of(canonical), NULL, NULL, 0, (uint64_t)length, NULL, 0, 0);
    leave();
    return done;
}
int truncate64(const char *path, off64_t length) { return truncate(path, length); }

static int allocated(int fd, int mode, off_t offset, off_t length, int done, uint64_t inode) {
    struct stat found;
    if (mode & ~FALLOC_FL_KEEP_SIZE) fail("this mode of fallocate is not recorded", "");
    if (done == 0 && mode == 0 && fstat(fd, &found) == 0 && found.st_size == offset + length)
        record('T', inode, NULL, NULL, 0, (uint64_t)found.st_size, NULL, 0, 0);
    return done;
}
int fallocate(int fd, int mode, off_t offset, off_t length) {
    REAL(fallocate);
    uint64_t inode;
    if (!is_recorded(fd, &inode)) return real(fd, mode, offset, length);
    enter();
    int done = allocated(fd, mode, offset, length, real(fd, mode, offset, length), inode);
    leave();
    return done;
}
int fallocate64(int fd, int mode, off64_t offset, off64_t length) { return fallocate(fd, mode, offset, length); }
int posix_fallocate(int fd, off_t offset, off_t length) {
    REAL(posix_fallocate);
    uint64_t inode;
    if (!is_recorded(fd, &inode)) return real(fd, offset, length);
    enter();
    int done = allocated(fd, 0, offset, length, real(fd, offset, length), inode);
    leave();
    return done;
}
int posix_fallocate64(int fd, off64_t offset, off64_t length) { return posix_fallocate(fd, offset, length); }

/* --- names */

static int renamed(int from, const char *old, int to, const char *new, unsigned int flags) {
    char first[PATH_MAX], second[PATH_MAX];
    int known = below_root(from, old, first), wanted = below_root(to, new, second);
    if (!known && !wanted) return (int)syscall(SYS_renameat2, from, old, to, new, flags);
    if (!known || !wanted || (flags & ~RENAME_NOREPLACE)) fail("this rename is not recorded", old);
    enter();
    int done = (int)syscall(SYS_renameat2, from, old, to, new, flags);
    if (done == 0) record('R', 0, first, second, 0, 0, NULL, 0, 0);
    leave();
    return done;
}
int rename(const char *old, const char *new) { return renamed(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return renamed(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned int flags) {
    return renamed(from, old, to, new, flags);
}

static int linked(int from, const char *old, int to, const char *new, int flags) {
    char first[PATH_MAX], second[PATH_MAX];
    int known = below_root(from, old, first), wanted = below_root(to, new, second);
    if (wanted && !known) fail("this link is not recorded", old);
    if (!wanted) return (int)syscall(SYS_linkat, from, old, to, new, flags);
    enter();
    int done = (int)syscall(SYS_linkat, from, old, to, new, flags);
    if (done == 0) record('L', inode_of(second), first, second, 0, 0, NULL, 0, 0);
    leave();
    return done;
}
int link(const char *old, const char *new) { return linked(AT_FDCWD, old, AT_FDCWD, new, 0); }
int linkat(int from, const char *old, int to, const char *new, int flags) { return linked(from, old, to, new, flags); }

static int linked_by_name(const char *target, int folder, const char *path) {
    char canonical[PATH_MAX];
    if (below_root(folder, path, canonical)) fail("symbolic links are not recorded", path);
    return (int)syscall(SYS_symlinkat, target, folder, path);
}
int symlink(const char *target, const char *path) { return linked_by_name(target, AT_FDCWD, path); }
int symlinkat(const char *target, int folder, const char *path) { return linked_by_name(target, folder, path); }

static int unlinked(int folder, const char *path, int flags) {
    char canonical[PATH_MAX];
    if (!below_root(folder, path, canonical)) return (int)syscall(SYS_unlinkat, folder, path, flags);
    enter();
    int done = (int)syscall(SYS_unlinkat, folder, path, flags);
    if (done == 0) record(flags & AT_REMOVEDIR ? 'X' : 'U', 0, canonical, NULL, 0, 0, NULL, 0, 0);
    leave();
    return done;
}
int unlink(const char *path) { return unlinked(AT_FDCWD, path, 0); }
int unlinkat(int folder, const char *path, int flags) { return unlinked(folder, path, flags); }
int rmdir(const char *path) { return unlinked(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    struct stat found;
    if (lstat(path, &found) != 0) return -1;
    return unlinked(AT_FDCWD, path, S_ISDIR(found.st_mode) ? AT_REMOVEDIR : 0);
}

static int folder_made(int folder, const char *path, mode_t mode) {
    char canonical[PATH_MAX];
    if (!below_root(folder, path, canonical)) return (int)syscall(SYS_mkdirat, folder, path, mode);
    enter();
    int done = (int)syscall(SYS_mkdirat, folder, path, mode);
    if (done == 0) record('M', inode_of(canonical), canonical, NULL, 0, 0, NULL, 0, 0);
    leave();
    return done;
}
int mkdir(const char *path, mode_t mode) { return folder_made(AT_FDCWD, path, mode); }
int mkdirat(int folder, const char *path, mode_t mode) { return folder_made(folder, path, mode); }

/* --- syncs */

static int synced(int fd, char operation) {
    uint64_t inode;
    if (!is_recorded(fd, &inode)) return (int)syscall(operation == 'F' ? SYS_fsync : SYS_fdatasync, fd);
    enter();
    record(operation, inode, NULL, NULL, 0, 0, NULL, 0, 0);
    leave();
    return 0;
}
int fsync(int fd) { return synced(fd, 'F'); }
int fdatasync(int fd) { return synced(fd, 'D'); }

static void all_synced(void) {
    if (trace < 0) return;
    enter();
    record('S', 0, NULL, NULL, 0, 0, NULL, 0, 0);
    leave();
}
void sync(void) { all_synced(); }
int syncfs(int fd) {
    uint64_t inode;
    if (!is_recorded(fd, &inode)) return (int)syscall(SYS_syncfs, fd);
    all_synced();
    return 0;
}
