# shellcheck shell=bash disable=SC2154 # variables of common.sh
# Sourced by tools/demo and tools/check: makes a bare machine ready to build, and builds.

root=$(dirname "$tools_dir")
build_tools=(g++ cmake ninja) # programs; their packages are in package_of
declare -A package_of=([g++]=g++ [cmake]=cmake [ninja]=ninja-build [clang-format-14]=clang-format-14)

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

# apt_install LOG PACKAGE...: waits for another apt at work instead of failing.
apt_install() {
    local log=$1
    shift
    # A source of the machine's that does not answer need not matter; what it costs, install says.
    "${as_root[@]}" apt-get -qq update >>"$log" 2>&1 || true
    # Losing power while this writes is worth more speed than the files.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        -o DPkg::Lock::Timeout=120 -o DPkg::Options::=--force-unsafe-io "$@" >>"$log" 2>&1
}

# install PROGRAM...: from the system's packages, those that are missing. Dies with what to do by hand.
install() {
    local program packages=() log
    for program in $(missing "$@"); do packages+=("${package_of[$program]}"); done
    ((${#packages[@]})) || return 0
    local by_hand="apt-get install --no-install-recommends ${packages[*]}"
    can_install || die "to be installed by hand, as there is no root here: $by_hand"
    say "installing ${packages[*]}"
    log=$(mktemp)
    apt_install "$log" "${packages[@]}" ||
        die "installing failed: $(grep '^E:' "$log" | head -n 1)" "to be done by hand: $by_hand" "apt's messages: $log"
    rm -f "$log"
}

# set_up PROGRAM...: the compiler, PROGRAM... and the SDK folder, at once: one waits for the network
# while the other unpacks.
set_up() {
    local sdk
    "$tools_dir/sdk" &
    sdk=$!
    if ! (install "${build_tools[@]}" "$@"); then
        kill "$sdk" 2>/dev/null || true # it continues where it was another time
        exit 1
    fi
    wait "$sdk" || exit 1
}

# configure FOLDER OPTION...: a build folder, for the SDK folder at hand.
configure() {
    local folder=$1 generator=()
    shift
    # A folder that came here with a moved or copied tree cannot be used.
    if [[ -e $folder/CMakeCache.txt ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$folder/CMakeCache.txt"; then
        rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles"
    fi
    [[ -e $folder/CMakeCache.txt ]] || generator=(-G Ninja)
    cmake -S "$root" -B "$folder" "${generator[@]}" -DVKATTN_SDK="$sdk_dir" "$@"
}

# build FOLDER TARGET...: with its progress on a terminal, where it is one line; elsewhere only
# failures are shown.
build() {
    local folder=$1 log=$1/build.log
    shift
    if [[ -t 1 ]]; then
        cmake --build "$folder" --target "$@"
    else
        cmake --build "$folder" --target "$@" >"$log" 2>&1 || { cat "$log" && return 1; }
    fi
}
