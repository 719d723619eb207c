/* Makes the n-th file operation below one directory fail, for LD_PRELOAD.
 *
 * fault_arm(root, at, error, mode): the at-th of the operations below on files under root fails with
 * error: mode 0 that one, mode 1 from then on; mode 2 every operation that a signal can interrupt,
 * once before it works; mode 3 none, but a write takes 7 bytes at most. fault_count() is how many
 * there were. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { DESCRIPTORS = 4096 };

static char root[4096];
static int armed, at, error_number, mode, count, interrupted;
static char ours[DESCRIPTORS];

void fault_arm(const char *directory, int n, int error, int how) {
    strncpy(root, directory, sizeof root - 1);
    at = n, error_number = error, mode = how, count = 0, interrupted = 0, armed = 1;
}

int fault_count(void) { return count; }

static int is_under(const char *path) {
    return armed && path && strncmp(path, root, strlen(root)) == 0;
}

static int is_ours(int descriptor) {
    return armed && descriptor >= 0 && descriptor < DESCRIPTORS && ours[descriptor];
}

static int strikes(int concerned, int interruptible) {
    int now;
    if (!concerned || (mode == 2 && !interruptible)) return 0;
    if (mode == 2) {
        now = interrupted = !interrupted;
        count += now;
    } else {
        count++;
        now = mode == 0 ? count == at : mode == 1 ? count >= at : 0;
    }
    if (now) errno = error_number;
    return now;
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int note(int descriptor, int concerned) {
    if (descriptor >= 0 && descriptor < DESCRIPTORS) ours[descriptor] = concerned;
    return descriptor;
}

#define OPEN(name)                                                             \
    int name(const char *path, int flags, ...) {                               \
        REAL(name);                                                            \
        va_list rest;                                                          \
        va_start(rest, flags);                                                 \
        mode_t bits = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                          \
        int concerned = is_under(path);                                        \
        return strikes(concerned, 1) ? -1 : note(real(path, flags, bits), concerned); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                           \
    int name(int descriptor, const char *path, int flags, ...) {               \
        REAL(name);                                                            \
        va_list rest;                                                          \
        va_start(rest, flags);                                                 \
        mode_t bits = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                          \
        int concerned = is_ours(descriptor) || is_under(path);                 \
        return strikes(concerned, 1) ? -1 : note(real(descriptor, path, flags, bits), concerned); \
    }
OPENAT(openat)
OPENAT(openat64)

#define ON_DESCRIPTOR(interruptible, name, parameters, arguments) \
    int name parameters {                                          \
        REAL(name);                                                \
        return strikes(is_ours(descriptor), interruptible) ? -1 : real arguments; \
    }
ON_DESCRIPTOR(1, fsync, (int descriptor), (descriptor))
ON_DESCRIPTOR(1, ftruncate, (int descriptor, off_t size), (descriptor, size))
ON_DESCRIPTOR(1, ftruncate64, (int descriptor, off64_t size), (descriptor, size))
ON_DESCRIPTOR(0, mkdirat, (int descriptor, const char *path, mode_t bits), (descriptor, path, bits))
ON_DESCRIPTOR(0, renameat, (int descriptor, const char *path, int there, const char *target),
              (descriptor, path, there, target))
ON_DESCRIPTOR(0, unlinkat, (int descriptor, const char *path, int flags), (descriptor, path, flags))

ssize_t write(int descriptor, const void *data, size_t size) {
    REAL(write);
    int concerned = is_ours(descriptor);
    if (strikes(concerned, 1)) return -1;
    return real(descriptor, data, concerned && mode == 3 && size > 7 ? 7 : size);
}

#define ON_PATH(name, parameters, arguments)                      \
    int name parameters {                                         \
        REAL(name);                                               \
        return strikes(is_under(path), 0) ? -1 : real arguments;     \
    }
ON_PATH(mkdir, (const char *path, mode_t bits), (path, bits))
ON_PATH(unlink, (const char *path), (path))
ON_PATH(rmdir, (const char *path), (path))
ON_PATH(rename, (const char *path, const char *target), (path, target))

int close(int descriptor) {
    REAL(close);
    int concerned = is_ours(descriptor);
    note(descriptor, 0);
    int closed = real(descriptor);  /* it is closed, whatever is told */
    return strikes(concerned, 0) ? -1 : closed;
}
