/* Runs a program, and kills it when one of its threads enters the program's Nth system call (N is
 * NUMBER):
 *
 *     kill_at NUMBER every|changing PROGRAM [ARGUMENT]...
 *
 * `changing` counts only calls that change something outside the process, because a kill at any
 * point between two such calls leaves the same state. Of successive calls of the same kind on the
 * same descriptor, it counts only the first few. The calls of all threads are counted together.
 * kill_at ends in the way in which the program ended. After a kill, kill_at ends by SIGKILL, and
 * the last line of standard error names the call. A program that makes fewer than NUMBER calls ends
 * by itself.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of successive calls of a kind, at most this number is counted. */
#define REPEATED_MAX 6

static void fail(const char *what) {
    fprintf(stderr, "kill_at: %s: %s\n", what, strerror(errno));
    exit(125);
}

static int is_changing(const struct __ptrace_syscall_info *call) {
    const uint64_t *args = call->entry.args;
    switch (call->entry.nr) {
#ifdef SYS_open
    case SYS_open:
        return (args[1] & (O_CREAT | O_TRUNC)) != 0;
    case SYS_mkdir:
    case SYS_rename:
    case SYS_unlink:
    case SYS_rmdir:
    case SYS_link:
    case SYS_chmod:
#endif
    case SYS_mkdirat:
#ifdef SYS_renameat
    case SYS_renameat:
#endif
    case SYS_renameat2:
    case SYS_unlinkat:
    case SYS_linkat:
    case SYS_fchmod:
    case SYS_fchmodat:
    case SYS_fallocate:
    case SYS_ftruncate:
    case SYS_truncate:
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_sync_file_range:
    case SYS_msync:
    case SYS_munmap:
    case SYS_write:
    case SYS_writev:
    case SYS_pwrite64:
    case SYS_pwritev:
    case SYS_pwritev2:
    case SYS_flock:
    case SYS_ioctl:
        return 1;
    case SYS_openat:
        return (args[2] & (O_CREAT | O_TRUNC)) != 0;
    case SYS_mmap:
        return (args[3] & MAP_SHARED) != 0 && (args[2] & PROT_WRITE) != 0;
    case SYS_io_uring_enter:
        /* Only calls that submit something count. */
        return args[1] > 0;
    default:
        return 0;
    }
}

/* Whether the call follows too many calls of its kind. */
static int is_repeated(const struct __ptrace_syscall_info *call) {
    static uint64_t last_nr, last_arg, times;
    if (call->entry.nr != last_nr || call->entry.args[0] != last_arg) {
        times = 0;
    }
    last_nr = call->entry.nr;
    last_arg = call->entry.args[0];
    return ++times > REPEATED_MAX;
}

static void trace(pid_t thread, int signal) {
    /* A thread may have ended meanwhile. */
    if (ptrace(PTRACE_SYSCALL, thread, NULL, (void *)(intptr_t)signal) != 0 && errno != ESRCH) {
        fail("cannot let the program go on");
    }
}

int main(int count, char **words) {
    if (count < 4) {
        fprintf(stderr, "usage: kill_at NUMBER every|changing PROGRAM [ARGUMENT]...\n");
        return 125;
    }
    uint64_t number = strtoull(words[1], NULL, 10);
    int is_every = strcmp(words[2], "every") == 0;
    pid_t child = fork();
    if (child < 0) {
        fail("cannot make a process");
    }
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0 || raise(SIGSTOP) != 0) {
            fail("cannot let this process be traced");
        }
        execvp(words[3], words + 3);
        fail(words[3]);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) {
        fail("cannot wait for the new process");
    }
    intptr_t options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
                       PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)options) != 0) {
        fail("cannot trace the new process");
    }
    trace(child, 0);
    uint64_t seen = 0;
    int is_running = 0;
    for (;;) {
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0) {
            fail("cannot wait for the program");
        }
        if (!WIFSTOPPED(status)) {
            if (thread != child) {
                continue;
            }
            if (WIFSIGNALED(status)) {
                signal(WTERMSIG(status), SIG_DFL);
                raise(WTERMSIG(status));
            }
            return WEXITSTATUS(status);
        }
        int stopped_by = WSTOPSIG(status);
        if (stopped_by == (SIGTRAP | 0x80)) {
            struct __ptrace_syscall_info call;
            long size = ptrace(PTRACE_GET_SYSCALL_INFO, thread, (void *)sizeof call, &call);
            /* Calls before the program starts are not counted. */
            if (size > 0 && is_running && call.op == PTRACE_SYSCALL_INFO_ENTRY &&
                (is_every || (is_changing(&call) && !is_repeated(&call))) && ++seen == number) {
                fprintf(stderr, "kill_at: killed at the program's call %llu, system call %llu\n",
                        (unsigned long long)seen, (unsigned long long)call.entry.nr);
                kill(child, SIGKILL);
                continue;
            }
            trace(thread, 0);
        } else if (stopped_by == SIGTRAP && status >> 16 != 0) {
            is_running = is_running || status >> 16 == PTRACE_EVENT_EXEC;
            trace(thread, 0);
        } else {
            /* A new thread begins with a SIGSTOP that does not come from the program. */
            trace(thread, stopped_by == SIGSTOP ? 0 : stopped_by);
        }
    }
}
