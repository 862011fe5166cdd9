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
