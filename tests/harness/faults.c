/* Preloaded into a server: moves its wall clock, and makes writes and flushes of chosen files fail.
 *
 * The faults are in the file that SLIMIO_TEST_FAULTS names. The test maps this file, too, so that
 * the test can change the faults while the server runs. A file of zeros means no fault. This code
 * sees only calls through the C library. So a server that uses plain system calls gets the errors,
 * but a server that uses io_uring does not. The clock moves for both.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct faults {
    volatile int64_t clock_shift_s;
    volatile int32_t write_errno;
    volatile int32_t flush_errno;
    /* Writes and flushes fail only on files whose path ends with this text. */
    char path_end[112];
};

static struct faults *faults;

__attribute__((constructor)) static void map_faults(void) {
    const char *path = getenv("SLIMIO_TEST_FAULTS");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        abort();
    }
    void *memory = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        abort();
    }
    faults = memory;
    close(fd);
}

static int is_hit(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    size_t end = strlen(faults->path_end);
    return length >= (ssize_t)end && memcmp(path + length - end, faults->path_end, end) == 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define FAIL_IF_HIT(fd, number)                  \
    if (faults->number != 0 && is_hit(fd)) {     \
        errno = faults->number;                  \
        return -1;                               \
    }

int clock_gettime(clockid_t clock, struct timespec *now) {
    static __typeof__(&clock_gettime) real;
    if (real == NULL) {
        real = REAL(clock_gettime);
    }
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && faults != NULL) {
        now->tv_sec += faults->clock_shift_s;
    }
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    int result = REAL(gettimeofday)(now, zone);
    if (result == 0 && faults != NULL) {
        now->tv_sec += faults->clock_shift_s;
    }
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL) {
        *out = now.tv_sec;
    }
    return now.tv_sec;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    FAIL_IF_HIT(fd, write_errno)
    return REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    FAIL_IF_HIT(fd, write_errno)
    return REAL(pwrite64)(fd, data, size, at);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    FAIL_IF_HIT(fd, write_errno)
    return REAL(pwritev)(fd, parts, count, at);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    FAIL_IF_HIT(fd, write_errno)
    return REAL(pwritev64)(fd, parts, count, at);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    FAIL_IF_HIT(fd, write_errno)
    return REAL(pwritev2)(fd, parts, count, at, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    FAIL_IF_HIT(fd, write_errno)
    return REAL(pwritev64v2)(fd, parts, count, at, flags);
}

int fdatasync(int fd) {
    FAIL_IF_HIT(fd, flush_errno)
    return REAL(fdatasync)(fd);
}

int fsync(int fd) {
    FAIL_IF_HIT(fd, flush_errno)
    return REAL(fsync)(fd);
}
