# shellcheck shell=bash
# Sourced by the tools: where the SDK lives, and how they speak.

tools_dir=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
sdk_dir=${VKATTN_SDK_DIR:-$(dirname "$tools_dir")/.sdk}
[[ $sdk_dir == /* ]] || sdk_dir=$PWD/$sdk_dir
quiet=false

# say TEXT: one line of progress.
say() { $quiet || printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# die TEXT...: the cause in one line, then what can be done about it, one line each.
die() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    shift
    (($# == 0)) || printf '    %s\n' "$@" >&2
    exit 1
}

# print_header FILE: the comment that FILE opens with is its help text.
print_header() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$1"; }

# python_with MODULE: prints a python3 that has it. The system's packages are for the system's python3, which another
# one may hide.
python_with() {
    local python
    for python in python3 /usr/bin/python3; do
        "$python" -c "import $1" 2>/dev/null && printf '%s\n' "$python" && return
    done
    return 1
}
