/* The CNI executable in C: what cni/client.py does, started in half a millisecond instead of seven.
 *
 * Built by `calico-node install-cni` where a C compiler is installed; the Python client is what runs
 * everywhere else, and what runs here too for everything that is not a plain exchange with felix:
 * when felix does not answer, or ends half way, the request is handed to it unread.
 *
 * SOCKET_PATH and PYTHON_CLIENTS (a folder with one script per plugin name) are set by the build.
 * The wire is described in cni/wire.py.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_STDIN (1u << 20)

extern char **environ;

struct buffer {
    char *data;
    size_t size, room;
};

static void append(struct buffer *to, const void *data, size_t size)
{
    if (to->size + size > to->room) {
        to->room = (to->size + size) * 2 + 4096;
        to->data = realloc(to->data, to->room);
        if (!to->data)
            _exit(1);
    }
    memcpy(to->data + to->size, data, size);
    to->size += size;
}

static void append_sized(struct buffer *to, const void *data, size_t size)
{
    unsigned char length[4] = {size >> 24, size >> 16, size >> 8, size};
    append(to, length, sizeof length);
    append(to, data, size);
}

static size_t length_at(const char *data)
{
    const unsigned char *b = (const unsigned char *)data;
    return (size_t)b[0] << 24 | (size_t)b[1] << 16 | (size_t)b[2] << 8 | b[3];
}

/* Read until the end, or until there is more than `limit`. Returns 0, or -1 on an error. */
static int read_all(int fd, struct buffer *into, size_t limit)
{
    char part[65536];
    ssize_t got;
    while (into->size <= limit) {
        got = read(fd, part, sizeof part);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return (int)got;
        append(into, part, (size_t)got);
    }
    return 0;
}

static int write_all(int fd, const char *data, size_t size)
{
    while (size) {
        ssize_t done = send(fd, data, size, MSG_NOSIGNAL);
        if (done < 0 && errno == ENOTSOCK)
            done = write(fd, data, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -1;
        data += done;
        size -= (size_t)done;
    }
    return 0;
}

static int connect_to_felix(void)
{
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    const char *run_dir = getenv("CALICO_RUN_DIR");
    int n = run_dir && *run_dir
        ? snprintf(place.sun_path, sizeof place.sun_path, "%s/cni.sock", run_dir)
        : snprintf(place.sun_path, sizeof place.sun_path, "%s", SOCKET_PATH);
    if (n < 0 || (size_t)n >= sizeof place.sun_path)
        return -1;
    int link = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (link >= 0 && connect(link, (struct sockaddr *)&place, sizeof place) == 0)
        return link;
    return -1;
}

/* The Python client takes over: same name, same environment, stdin from its beginning. */
static int hand_over(const char *plugin, char **argv, const struct buffer *input)
{
    char path[4096];
    if (input) {
        int again = memfd_create("stdin", 0);
        if (again < 0 || write_all(again, input->data, input->size) < 0)
            return 1;
        lseek(again, 0, SEEK_SET);
        dup2(again, 0);
    }
    snprintf(path, sizeof path, "%s/%s", PYTHON_CLIENTS, plugin);
    char *nothing[] = {path, NULL};
    if (*argv)
        *argv = path;
    execv(path, *argv ? argv : nothing);
    fprintf(stderr, "cannot run %s: %s\n", path, strerror(errno));
    return 1;
}

int main(int argc, char **argv)
{
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    const char *plugin = slash ? slash + 1 : argc > 0 ? argv[0] : "calico";
    const char *command = getenv("CNI_COMMAND");
    if (argc > 1 || !command || !*command)
        return hand_over(plugin, argv, NULL);
    int link = connect_to_felix();
    if (link < 0)
        return hand_over(plugin, argv, NULL);

    struct buffer input = {0}, block = {0}, request = {0}, answer = {0};
    if (read_all(0, &input, MAX_STDIN) < 0)
        return hand_over(plugin, argv, NULL);
    for (char **entry = environ; *entry; entry++)
        if (strncmp(*entry, "CNI_", 4) == 0) {
            if (block.size)
                append(&block, "", 1);
            append(&block, *entry, strlen(*entry));
        }
    append(&request, "BRN1", 4);
    append_sized(&request, plugin, strlen(plugin));
    append_sized(&request, block.data ? block.data : "", block.size);
    append_sized(&request, input.data ? input.data : "", input.size);
    if (write_all(link, request.data, request.size) < 0 || read_all(link, &answer, SIZE_MAX - 1) < 0)
        return hand_over(plugin, argv, &input);
    if (answer.size < 12)
        return hand_over(plugin, argv, &input);
    size_t out = length_at(answer.data + 4);
    if (answer.size < 12 + out)
        return hand_over(plugin, argv, &input);
    size_t error = length_at(answer.data + 8 + out);
    if (answer.size != 12 + out + error)
        return hand_over(plugin, argv, &input);
    write_all(2, answer.data + 12 + out, error);
    write_all(1, answer.data + 8, out);
    return (int)length_at(answer.data);
}
