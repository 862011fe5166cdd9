# shellcheck shell=bash disable=SC2154 # variables of common.sh
# Sourced by tools/demo and tools/check: makes a bare machine ready to build, and builds.

root=$(dirname "$tools_dir")
build_tools=(g++ cmake ninja)
declare -A package_of=([g++]=g++ [cmake]=cmake [ninja]=ninja-build)

# missing PROGRAM...: prints those that are not there.
missing() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || printf '%s\n' "$program"
    done
}

# can_install: sets as_root to what makes a command run as root. False without apt or a way to be root.
can_install() {
    as_root=()
    command -v apt-get >/dev/null || return
    ((EUID == 0)) && return
    as_root=(sudo -n)
    sudo -n true 2>/dev/null
}

# install PACKAGE...: with the system's apt; waits for another one at work instead of failing.
install() {
    local log
    log=$(mktemp)
    say "installing $*"
    # A source of the machine's that does not answer need not matter; if it does, the next command says so.
    "${as_root[@]}" apt-get -qq update >>"$log" 2>&1 || true
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        -o DPkg::Lock::Timeout=120 "$@" >>"$log" 2>&1 ||
        die "installing failed: $(grep '^E:' "$log" | head -n 1)" "apt's messages: $log"
    rm -f "$log"
}

# install_all OPTIONAL...: $packages, and what is good to have, which may fail.
install_all() {
    ((${#packages[@]} == 0)) || install "${packages[@]}"
    (($# == 0)) || (install "$@") || say "going on without $*"
}

# set_up [OPTIONAL...]: what building needs: the compiler from the system's packages, and the SDK folder.
# OPTIONAL packages are installed too where that is possible.
set_up() {
    local program packages=() installing
    for program in $(missing "${build_tools[@]}"); do packages+=("${package_of[$program]}"); done
    if ! can_install; then
        ((${#packages[@]} == 0)) ||
            die "please install ${packages[*]} (there is no apt, or no root to run it with), then run this again"
        set --
    fi
    # At once: the one waits for the network while the other unpacks.
    install_all "$@" &
    installing=$!
    "$tools_dir/sdk" || exit 1
    wait "$installing" || exit 1
}

# configure FOLDER OPTION...: a build folder, for the SDK folder at hand, with the tool.
configure() {
    local folder=$1 generator=()
    shift
    # A folder that came here with a moved or copied tree cannot be used.
    if [[ -e $folder/CMakeCache.txt ]] &&
        ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$folder/CMakeCache.txt"; then
        rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles"
    fi
    [[ -e $folder/CMakeCache.txt ]] || generator=(-G Ninja)
    mkdir -p "$folder"
    flock "$folder/lock" cmake -S "$root" -B "$folder" "${generator[@]}" -DVKATTN_SDK="$sdk_dir" -DVKATTN_TOOLS=ON \
        -DVKATTN_WERROR=ON "$@"
}

# build FOLDER TARGET...: one at a time in a folder, which ninja does not see to. With its progress on a terminal, where
# it is one line; elsewhere only failures are shown.
build() {
    local folder=$1 log=$1/build.log
    shift
    if [[ -t 1 ]]; then
        flock "$folder/lock" cmake --build "$folder" --target "$@"
    else
        flock "$folder/lock" cmake --build "$folder" --target "$@" >"$log" 2>&1 || { cat "$log" && return 1; }
    fi
}
