/* A slow disk for the program that this is preloaded into: each flush takes FOREBAY_SLOW_DISK_US more.
 * Writes stay as they are: it is the flush that a confirm waits for. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void wait_for_the_platter(void) {
    const char *us = getenv("FOREBAY_SLOW_DISK_US");
    if (us != NULL) usleep((useconds_t)strtoul(us, NULL, 10));
}

int fdatasync(int fd) {
    wait_for_the_platter();
    return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd) {
    wait_for_the_platter();
    return (int)syscall(SYS_fsync, fd);
}
