/* The first process of a pod's sandbox, and of a cluster's namespaces: it waits, and reaps whatever is given to it.
 *
 * With the argument `owner` it ends when its standard input does, and takes with it all processes of its namespace. */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal_number) {
    (void)signal_number;
    _exit(0);
}

static void reap(int signal_number) {
    (void)signal_number;
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

int main(int count, char **words) {
    struct pollfd owner = {.fd = 0, .events = POLLIN};
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, reap);
    if (count < 2 || strcmp(words[1], "owner") != 0) {
        for (;;) {
            pause();
        }
    }
    while (!(owner.revents & (POLLHUP | POLLERR | POLLNVAL))) {
        poll(&owner, 1, -1);
    }
    return 0;
}
