/* Keeps what a program starts on the device of tools/on, which preloads this library into it (LD_PRELOAD): a shell, an
 * interpreter, make or ctest. A program that is started gets the SDK's dynamic loader, as tools/on itself gives it to
 * the first one, and not the system's, with which the SDK's drivers do not load. A script's interpreter does, too.
 *
 * The environment of the call says with what, so a program that is started without it runs as it would anywhere:
 *
 *   VKATTN_ON_LOADER      the SDK's dynamic loader
 *   VKATTN_ON_LIBRARIES   the folder of its libraries; LD_LIBRARY_PATH comes behind it
 *   VKATTN_PRELOAD        a library that pretends to be the kernel's driver, or ""
 *
 * Programs that are linked statically, run as another user or are of another machine start as they would without it.
 * Programs with file capabilities lose them, because the kernel gives them to the file that it starts: the loader. What
 * fexecve and execveat start stays as it is, too: they have a descriptor, and the loader wants a path.
 *
 * A child of vfork may be calling, so nothing here allocates. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int Spawn(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                  char* const[], char* const[]);
static Spawn* next_spawn;

/* The loader calls this before a child of vfork can, but another library's constructor may start a program earlier. */
__attribute__((constructor)) static void find_next(void) {
    if (next_spawn == NULL) next_spawn = (Spawn*)dlsym(RTLD_NEXT, "posix_spawn");
}

/* This is what a call becomes. Texts that the arguments point to are kept here. */
struct Call {
    const char* path;
    char line[256];             /* the first one of a script */
    char program[PATH_MAX + 2]; /* a program of the current folder, with that folder */
    char libraries[4 * PATH_MAX];
    char* argv[]; /* more_arguments more than the caller's */
};
enum { more_arguments = 10 };

static char* value_of(char* const env[], const char* name) {
    const size_t length = strlen(name);
    for (; env != NULL && *env != NULL; env++)
        if (strncmp(*env, name, length) == 0 && (*env)[length] == '=') return *env + length + 1;
    return NULL;
}

static size_t count_of(char* const argv[]) {
    size_t count = 0;
    while (argv != NULL && argv[count] != NULL) count++;
    return count;
}

/* Reads the start of a file that may be executed, and with the user's own rights; returns how much it has read. Nothing
 * waits for a pipe's other end. */
static ssize_t read_start(const char* path, void* to, size_t size) {
    struct stat about;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return 0;
    const int plain =
        fstat(file, &about) == 0 && S_ISREG(about.st_mode) && (about.st_mode & (S_ISUID | S_ISGID)) == 0;
    const ssize_t got = plain && access(path, X_OK) == 0 ? read(file, to, size) : 0;
    close(file);
    return got;
}

/* Whether it is a program of the loader's machine that wants a loader. */
static int wants_loader(const char* path, const char* loader) {
    ElfW(Ehdr) own;
    struct {
        ElfW(Ehdr) header;
        char rest[2048]; /* has the program headers, which follow it */
    } start;
    const ssize_t got = read_start(path, &start, sizeof start);
    if (got < (ssize_t)sizeof own || read_start(loader, &own, sizeof own) != sizeof own) return 0;
    if (memcmp(start.header.e_ident, own.e_ident, EI_DATA + 1) != 0 ||
        start.header.e_machine != own.e_machine)
        return 0;
    for (size_t i = 0; i < start.header.e_phnum; i++) {
        ElfW(Phdr) part;
        const size_t at = start.header.e_phoff + i * sizeof part;
        if (at + sizeof part > (size_t)got) return 0;
        memcpy(&part, (const char*)&start + at, sizeof part);
        if (part.p_type == PT_INTERP) return 1;
    }
    return 0;
}

/* Puts a script's interpreter, and the argument that its first line may have, before the script's path. Returns how
 * many arguments that makes; 0: it is no script. */
static size_t read_interpreter(struct Call* call, const char* path) {
    const ssize_t got = read_start(path, call->line, sizeof call->line - 1);
    if (got < 3 || memcmp(call->line, "#!", 2) != 0) return 0;
    call->line[got] = 0;
    call->line[strcspn(call->line, "\n")] = 0;
    char* at = call->line + 2 + strspn(call->line + 2, " \t");
    char* argument = at + strcspn(at, " \t");
    if (*argument != 0) *argument++ = 0;
    argument += strspn(argument, " \t");
    for (char* end = argument + strlen(argument); end > argument && strchr(" \t", end[-1]) != NULL;)
        *--end = 0;
    size_t count = 0;
    call->argv[count++] = at;
    if (*argument != 0) call->argv[count++] = argument;
    call->argv[count++] = (char*)path;
    return *at != 0 ? count : 0;
}

/* Makes `call` what is to be called instead; leaves path null where it is as it stands. */
static void redirect(struct Call* call, const char* path, char* const argv[], char* const env[]) {
    static char none[] = "", argv0[] = "--argv0", preload[] = "--preload", library_path[] = "--library-path";
    char *const loader = value_of(env, "VKATTN_ON_LOADER"), *const libraries =
                                                                value_of(env, "VKATTN_ON_LIBRARIES");
    char *const shim = value_of(env, "VKATTN_PRELOAD"), *const callers = value_of(env, "LD_LIBRARY_PATH");
    call->path = NULL;
    if (loader == NULL || libraries == NULL || path == NULL || argv == NULL || argv[0] == NULL) return;
    size_t count = read_interpreter(call, path);
    char* program = count != 0 ? call->argv[0] : (char*)path;
    char* const started = count != 0 ? program : argv[0];
    if (strchr(program, '/') == NULL) { /* the loader would look for it in the library path */
        if ((size_t)snprintf(call->program, sizeof call->program, "./%s", program) >= sizeof call->program)
            return;
        program = call->program;
    }
    if (!wants_loader(program, loader)) return;
    const int length = snprintf(call->libraries, sizeof call->libraries, "%s%s%s", libraries,
                                callers != NULL && *callers != 0 ? ":" : "", callers != NULL ? callers : "");
    if (length < 0 || (size_t)length >= sizeof call->libraries) return;
    char* const all[] = {loader,       argv0,           started, preload, shim != NULL ? shim : none,
                         library_path, call->libraries, program};
    const size_t before = sizeof all / sizeof *all;
    if (count == 0) call->argv[count++] = started;
    memmove(call->argv + before, call->argv + 1, (count - 1) * sizeof *call->argv);
    memcpy(call->argv, all, sizeof all);
    memcpy(call->argv + before + count - 1, argv + 1,
           count_of(argv) * sizeof *argv); /* with the final null */
    call->path = loader;
}

#define CALL_FOR(argv)                                    \
    ((struct Call*)__builtin_alloca(sizeof(struct Call) + \
                                    (count_of(argv) + 1 + more_arguments) * sizeof(char*)))

int execve(const char* path, char* const argv[], char* const env[]) {
    struct Call* const call = CALL_FOR(argv);
    redirect(call, path, argv, env);
    if (call->path != NULL) return (int)syscall(SYS_execve, call->path, call->argv, env);
    return (int)syscall(SYS_execve, path, argv, env);
}

int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const argv[], char* const env[]) {
    struct Call* const call = CALL_FOR(argv);
    find_next();
    redirect(call, path, argv, env);
    if (call->path != NULL) return next_spawn(pid, call->path, actions, attributes, call->argv, env);
    return next_spawn(pid, path, actions, attributes, argv, env);
}

/* Finds a program of this name: the name itself if it has a folder in it, null with errno set if there is none. */
static const char* find(const char* name, char found[PATH_MAX]) {
    const char* at = getenv("PATH");
    int why = ENOENT;
    if (strchr(name, '/') != NULL) return name;
    if (at == NULL) at = "/bin:/usr/bin";
    for (size_t length; *name != 0; at += length + 1) {
        struct stat about;
        length = strcspn(at, ":");
        const int written = /* an empty part is the current folder */
            snprintf(found, PATH_MAX, "%.*s%s%s", (int)length, at, length != 0 ? "/" : "./", name);
        if (written >= 0 && written < PATH_MAX) {
            const int there = stat(found, &about) == 0;
            if (there && S_ISREG(about.st_mode) && access(found, X_OK) == 0) return found;
            if (there || errno == EACCES) why = EACCES;
        }
        if (at[length] == 0) break;
    }
    errno = why;
    return NULL;
}

/* A file that is neither a program nor names its interpreter is for the shell. */
int execvpe(const char* name, char* const argv[], char* const env[]) {
    char found[PATH_MAX];
    const char* const path = find(name, found);
    if (path == NULL) return -1;
    execve(path, argv, env);
    if (errno != ENOEXEC || count_of(argv) == 0) return -1;
    const size_t count = count_of(argv);
    char** const all = __builtin_alloca((count + 2) * sizeof *all);
    all[0] = (char*)"sh";
    all[1] = (char*)path;
    memcpy(all + 2, argv + 1, count * sizeof *argv);
    return execve("/bin/sh", all, env);
}

int posix_spawnp(pid_t* pid, const char* name, const posix_spawn_file_actions_t* actions,
                 const posix_spawnattr_t* attributes, char* const argv[], char* const env[]) {
    char found[PATH_MAX];
    const char* const path = find(name, found);
    if (path == NULL) return errno;
    return posix_spawn(pid, path, actions, attributes, argv, env);
}

int execvp(const char* name, char* const argv[]) {
    return execvpe(name, argv, environ);
}
int execv(const char* path, char* const argv[]) {
    return execve(path, argv, environ);
}

/* Takes the arguments of execl and its like up to the null, into `to` unless that is null; returns how many. */
static size_t take(va_list* list, const char* first, char** to) {
    size_t count = 0;
    for (const char* one = first;; one = va_arg(*list, const char*)) {
        if (to != NULL) to[count] = (char*)one;
        if (one == NULL) return count;
        count++;
    }
}

/* Makes an array `argv` of them; va_arg then has what comes behind the null. */
#define TAKE_LIST(first)                                                                  \
    va_list list;                                                                         \
    va_start(list, first);                                                                \
    char** const argv = __builtin_alloca((take(&list, first, NULL) + 1) * sizeof(char*)); \
    va_end(list);                                                                         \
    va_start(list, first);                                                                \
    take(&list, first, argv)

int execl(const char* path, const char* first, ...) {
    TAKE_LIST(first);
    va_end(list);
    return execve(path, argv, environ);
}

int execlp(const char* name, const char* first, ...) {
    TAKE_LIST(first);
    va_end(list);
    return execvpe(name, argv, environ);
}

int execle(const char* path, const char* first, ...) {
    TAKE_LIST(first);
    char* const* const env = va_arg(list, char* const*);
    va_end(list);
    return execve(path, argv, env);
}
