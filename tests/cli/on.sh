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

test_on_python() {
    if ! command -v python3 >/dev/null; then return; fi
    printf '#!/usr/bin/env python3\nimport os, subprocess\nsubprocess.run(["./by_hand"], check=True)\n' >by_python
    printf '#!/bin/sh\nexec "%s/vkattn" info\n' "$build" >by_hand
    chmod +x by_python by_hand
    shows_device ./by_python
    shows_device python3 -c 'import ctypes, os; ctypes.CDLL("libvulkan.so.1"); os.execv("by_hand", ["by_hand"])'
}

# A program's own libraries, and those of a program that it starts.
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
    env -u LD_PRELOAD -u VKATTN_ON_LOADER -u VKATTN_ON CC=/nonexistent VKATTN_SDK_DIR="$PWD/an sdk" \
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
    # With one, in a folder whose path has a space.
    VKATTN_SDK_DIR="$PWD/an sdk" on swiftshader -- bash -c '"$0" info' "$build/vkattn"
    holds "a path with a space: another device" grep -q '^0  SwiftShader' stdout
}
