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
 * Programs that are linked statically, run as another user or are of another machine start as they would without it. A
 * child of vfork may be calling, so nothing here allocates. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int Spawn(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                  char* const[], char* const[]);
static Spawn* next_spawn;

__attribute__((constructor)) static void find_next(void) {
    next_spawn = (Spawn*)dlsym(RTLD_NEXT, "posix_spawn");
}

/* What a call becomes. Texts that the arguments point to are kept here. */
struct Call {
    const char* path;
    char line[256]; /* the first one of a script */
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

/* Reads the start of a file that may be executed, and with the user's own rights; returns how much it has read. */
static ssize_t read_start(const char* path, void* to, size_t size) {
    struct stat about;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
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
    for (char* end = argument + strlen(argument); end > argument && strchr(" \t\r", end[-1]) != NULL;)
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
    char* const program = count != 0 ? call->argv[0] : (char*)path;
    if (!wants_loader(program, loader)) return;
    const int length = snprintf(call->libraries, sizeof call->libraries, "%s%s%s", libraries,
                                callers != NULL && *callers != 0 ? ":" : "", callers != NULL ? callers : "");
    if (length < 0 || (size_t)length >= sizeof call->libraries) return;
    char* const started = count != 0 ? program : argv[0];
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
    redirect(call, path, argv, env);
    if (call->path != NULL) return next_spawn(pid, call->path, actions, attributes, call->argv, env);
    return next_spawn(pid, path, actions, attributes, argv, env);
}

/* Where a program of this name is; the name itself if it has a folder in it, or is nowhere. */
static const char* find(const char* name, char found[PATH_MAX]) {
    const char* at = getenv("PATH");
    if (strchr(name, '/') != NULL) return name;
    for (at = at != NULL ? at : "/bin:/usr/bin"; *at != 0; at += *at == ':') {
        const size_t length = strcspn(at, ":");
        const int written =
            snprintf(found, PATH_MAX, "%.*s%s%s", (int)length, at, length != 0 ? "/" : "./", name);
        struct stat about;
        if (written < PATH_MAX && stat(found, &about) == 0 && S_ISREG(about.st_mode) &&
            access(found, X_OK) == 0)
            return found;
        at += length;
    }
    return name;
}

/* A file that is neither a program nor names its interpreter is for the shell. */
int execvpe(const char* name, char* const argv[], char* const env[]) {
    char found[PATH_MAX];
    const char* const path = find(name, found);
    if (path == name && strchr(name, '/') == NULL) return errno = ENOENT, -1;
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
    if (path == name && strchr(name, '/') == NULL) return ENOENT;
    return posix_spawn(pid, path, actions, attributes, argv, env);
}

int execvp(const char* name, char* const argv[]) {
    return execvpe(name, argv, environ);
}
int execv(const char* path, char* const argv[]) {
    return execve(path, argv, environ);
}
