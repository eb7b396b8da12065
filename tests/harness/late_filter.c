/* Preloaded into a server: puts a seccomp filter on all threads when the server gets SIGUSR2.
 *
 * SLIMIO_TEST_FILTER names a file with the filter's program (an array of `struct sock_filter`).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct sock_filter program[64];
static struct sock_fprog filter = {.filter = program};

static void put_on(int signal) {
    (void)signal;
    int before = errno;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0) {
        static const char text[] = "late_filter: the kernel does not take the filter\n";
        (void)!write(2, text, sizeof text - 1);
        abort();
    }
    errno = before;
}

__attribute__((constructor)) static void prepare(void) {
    const char *path = getenv("SLIMIO_TEST_FILTER");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? 0 : read(fd, program, sizeof program);
    if (size <= 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        abort();
    }
    close(fd);
    filter.len = size / sizeof program[0];
    struct sigaction action = {.sa_handler = put_on, .sa_flags = SA_RESTART};
    sigaction(SIGUSR2, &action, NULL);
}
