/* A slow disk for the program that this is preloaded into: each flush takes as many microseconds more as the file
 * FOREBAY_SLOW_DISK says, a native 32-bit number that may change at any time.
 * Writes stay as they are: it is the flush that a confirm waits for. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static const volatile uint32_t *more_us;

__attribute__((constructor)) static void find_the_platter(void) {
    const char *path = getenv("FOREBAY_SLOW_DISK");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    void *bytes = mmap(NULL, sizeof *more_us, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (bytes != MAP_FAILED) more_us = bytes;
}

static void wait_for_the_platter(void) {
    uint32_t us = more_us == NULL ? 0 : *more_us;
    if (us > 0) usleep(us);
}

int fdatasync(int fd) {
    wait_for_the_platter();
    return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd) {
    wait_for_the_platter();
    return (int)syscall(SYS_fsync, fd);
}
