# shellcheck shell=bash disable=SC2016,SC2034,SC2154 # texts, variables and functions of tests/cli/run
#
# Tests of tests/cli/run: tools/on, which has to keep what it starts on the device that is named. These tests run on
# lavapipe themselves, so they name another one.

# on ARGUMENT...: tools/on. Leaves code, and the files stdout and stderr.
on() {
    last_args="(tools/on $*)"
    code=0
    rm -rf out/*
    "$root/tools/on" "$@" >stdout 2>stderr || code=$?
}

# shows_device COMMAND...: started on SwiftShader, it prints what `vkattn info` says there.
shows_device() {
    on swiftshader -- "$@"
    holds "it does not end cleanly" done_cleanly
    holds "it has seen another device" test "$(sed -n 's/^0  //p' stdout)" = 'SwiftShader Device (Subzero)'
}

test_on_starts_others() {
    printf '"%s/vkattn" info\n' "$build" >nameless
    { echo '#!/bin/sh -e' && cat nameless; } >by_sh
    { echo '#!/usr/bin/env bash' && cat nameless; } >by_env
    chmod +x nameless by_sh by_env
    shows_device "$build/vkattn" info
    shows_device bash nameless
    shows_device sh -c './by_env; exit $?'
    shows_device ./nameless
    shows_device ./by_sh
    shows_device "$PWD/by_env"
    shows_device env A=1 nice ./by_sh
    shows_device xargs -n 1 "$build/vkattn" <<<info
    shows_device find by_sh -exec ./{} \;
    shows_device cmake -E env A=1 ./by_env # which has what libuv starts
    shows_device awk 'BEGIN { exit system("./by_env") }'
    shows_device "$root/tools/on" lavapipe -- "$root/tools/on" swiftshader -- bash nameless
    on swiftshader -- sh -c 'exit 7'
    holds "the exit code is $code, not 7" test "$code" = 7
    on swiftshader -- bash -c 'printf "%s|" "$0" "$@"' 'a  b' '' c
    holds "other arguments arrive: $(<stdout)" test "$(<stdout)" = 'a  b||c|'
    on swiftshader -- no-such-program
    holds "a program that is not there" complained 127 'no such command: no-such-program'
}

# There are several ways to start a program, of the current folder and along PATH. `starts WAY PROGRAM ARGUMENT...`
# starts it in the way of WAY's last letter, which may be a script's name. With execle, PROGRAM has one argument.
test_on_ways_to_start() {
    local way
    cat >starts.c <<-'END'
	#include <string.h>
	#include <unistd.h>
	extern char** environ;
	int main(int argc, char** argv) {
	    char* a[16] = {0};
	    for (int i = 2; i < argc && i < 16; i++) a[i - 2] = argv[i];
	    switch (argv[1][strlen(argv[1]) - 1]) {
	        case 'l': execl(a[0], a[0], a[1], a[2], a[3], a[4], a[5], a[6], (char*)0); break;
	        case 'e': execle(a[0], a[0], a[1], (char*)0, environ); break;
	        case 'p': execlp(a[0], a[0], a[1], a[2], a[3], a[4], a[5], a[6], (char*)0); break;
	        case 'v': execv(a[0], a); break;
	    }
	    return 100;
	}
	END
    cc starts.c -o starts
    shows_device ./starts e "$build/vkattn" info
    for way in l v; do shows_device ./starts "$way" starts "$way" "$build/vkattn" info; done
    PATH=$build:$PATH shows_device ./starts p vkattn info
    shows_device env PATH= starts v "$build/vkattn" info
    shows_device env PATH="/nonexistent::/usr/bin" starts v "$build/vkattn" info
    echo '#!starts' >by_bare_v
    chmod +x by_bare_v
    shows_device ./by_bare_v "$build/vkattn" info
    shows_device env ./by_bare_v "$build/vkattn" info
}

# A program that cannot be started ends as it would without tools/on.
test_on_cannot_start() {
    mkdir -p locked
    mkfifo queue
    chmod +x queue
    echo >locked/no-such-program-yet
    on swiftshader -- timeout 20 env ./queue
    holds "the exit code of a pipe is $code, not 126" test "$code" = 126
    PATH=$PWD/locked:$PATH on swiftshader -- env no-such-program-yet
    holds "the exit code of a file that is not executable is $code, not 126" test "$code" = 126
    on swiftshader -- env no-such-program
    holds "the exit code of a program that is not there is $code, not 127" test "$code" = 127
    printf '\1\0\2' >other
    printf '#!./other\n' >by_other
    printf '#!/bin/sh\r\n' >by_return
    chmod +x other by_other by_return
    on swiftshader -- ./other
    holds "bash has read what is no text" grep -q 'cannot execute binary file' stderr
    on swiftshader -- ./by_other
    holds "the loader has got an interpreter that is no program" not grep -qE 'ELF|loading' stderr
    on swiftshader -- ./by_return
    holds "the exit code of an interpreter that is not there is $code, not 127" test "$code" = 127
}

# A script's interpreter may be a script, too; and its argument is what the kernel takes for it.
test_on_interpreters() {
    printf '#!/bin/sh\n"%s/vkattn" info\n' "$build" >inner
    echo '#!./inner' >outer
    printf '#!/bin/echo a b \r\n' >with_return
    { printf '# %0300d\n' 1 | sed 's/0/é/g' && cat inner; } >long
    chmod +x inner outer with_return long
    shows_device ./outer
    shows_device env ./outer
    shows_device ./long # whose first 256 bytes are fewer characters
    on swiftshader -- ./with_return c
    holds "other arguments than the kernel's: $(<stdout)" test "$(<stdout)" = $'a b \r ./with_return c'
    on swiftshader -- env ./with_return c
    holds "other arguments than the kernel's: $(<stdout)" test "$(<stdout)" = $'a b \r ./with_return c'
}

test_on_python() {
    command -v python3 >/dev/null || { skip "no python3 to start others with" && return; }
    printf '#!/usr/bin/env python3\nimport os, subprocess\nsubprocess.run(["./by_hand"], check=True)\n' >by_python
    printf '#!/bin/sh\nexec "%s/vkattn" info\n' "$build" >by_hand
    chmod +x by_python by_hand
    shows_device ./by_python
    shows_device python3 -c 'import ctypes, os; ctypes.CDLL("libvulkan.so.1"); os.execv("by_hand", ["by_hand"])'
}

# A program has its own libraries, and so has one that it starts.
test_on_library_path() {
    mkdir -p libraries
    echo 'int needed(void) { return 5; }' >needed.c
    echo 'int needed(void); int main(void) { return needed(); }' >needs.c
    cc -shared -fPIC needed.c -o libraries/libneeded.so
    cc needs.c -o needs -Llibraries -lneeded
    for command in ./needs 'bash -c ./needs'; do
        # shellcheck disable=SC2086 # several words
        LD_LIBRARY_PATH=$PWD/libraries on lavapipe -- $command
        holds "LD_LIBRARY_PATH does not count for $command" test "$code" = 5
    done
    LD_LIBRARY_PATH=$PWD/libraries shows_device "$build/vkattn" info
}

test_on_device_variable() {
    VKATTN_DEVICE=llvmpipe on swiftshader -- "$build/vkattn" info
    holds "another device is not there" grep -q '^0  SwiftShader' stdout
    holds "it is not said that VKATTN_DEVICE does not count" test \
        "$(<stderr)" = 'on: VKATTN_DEVICE=llvmpipe does not count: the device is swiftshader'
    VKATTN_DEVICE=nonesuch on system -- "$build/vkattn" info
    holds "on the system's devices there is a line, too" not grep -q 'does not count' stderr
}

# without_compiler COMMAND...: on a SDK whose library is not compiled yet, and cannot be.
without_compiler() {
    last_args="(tools/on lavapipe without a compiler: $*)"
    code=0
    env -u LD_PRELOAD -u VKATTN_ON_LOADER -u VKATTN_ON -u VKATTN_ON_SAID CC=/nonexistent VKATTN_SDK_DIR="$PWD/an sdk" \
        "$root/tools/on" lavapipe -- "$@" >stdout 2>stderr || code=$?
}

test_on_without_compiler() {
    local part line="programs that $build/vkattn starts do not run on lavapipe"
    mkdir -p "an sdk"
    for part in ld.so lib icd layers stamp; do ln -sf "$sdk/$part" "an sdk/"; done
    without_compiler "$build/vkattn" info
    holds "the program itself does not run there" test "$code" = 0
    holds "the line on stderr does not say it" grep -qF "$line, because /nonexistent did not compile" stderr
    without_compiler bash -c '"$0" info' "$build/vkattn"
    holds "a program that bash starts finds a device" test "$code" = 3
    holds "the line does not say how to start it" grep -qF 'by tools/on lavapipe -- PROGRAM' stderr
    without_compiler "$root/tools/on" lavapipe -- "$root/tools/on" swiftshader -- "$build/vkattn" info
    holds "the line is not there once" test "$(grep -c 'do not run on' stderr)" = 1
    rm -rf "an sdk/on"
    : >"an sdk/on"
    without_compiler "$root/tools/on" lavapipe -- "$build/vkattn" info
    holds "the line is not about the folder" test "$(sed -n 's/.*, because \(.*\): .*/\1/p' stderr)" = \
        "$PWD/an sdk/on cannot be written"
    rm "an sdk/on"
    # There is a compiler now, and the folder's path has a space.
    VKATTN_SDK_DIR="$PWD/an sdk" on swiftshader -- bash -c '"$0" info' "$build/vkattn"
    holds "a path with a space: another device" grep -q '^0  SwiftShader' stdout
}
