# shellcheck shell=bash
# Sourced by tools/release and tests/release/run: the platforms that archives are made for, and the compilers for them.

all_platforms=(linux-x86_64 linux-aarch64 windows-x86_64)
native=linux-$(uname -m)
declare -A prefix_of=([linux-x86_64]=x86_64-linux-gnu- [linux-aarch64]=aarch64-linux-gnu-
    [windows-x86_64]=x86_64-w64-mingw32-)
declare -A compiler_package=([linux-x86_64]=g++-x86-64-linux-gnu [linux-aarch64]=g++-aarch64-linux-gnu
    [windows-x86_64]=g++-mingw-w64-x86-64-posix)

is_platform() { [[ -n ${prefix_of[$1]-} ]]; }

# binutil_of PLATFORM PROGRAM: prints its name.
binutil_of() { [[ $1 == "$native" ]] && echo "$2" || echo "${prefix_of[$1]}$2"; }

# compiler_of PLATFORM gcc|g++: prints its name. Of the two kinds of threads that mingw has, std::thread needs POSIX's.
compiler_of() {
    local name
    name=$(binutil_of "$1" "$2")
    [[ $1 != windows-* ]] || name+=-posix
    echo "$name"
}

# missing_compilers PLATFORM...: prints the packages of those that are not there.
missing_compilers() {
    local platform
    for platform in "$@"; do
        command -v "$(compiler_of "$platform" g++)" >/dev/null || echo "${compiler_package[$platform]}"
    done
}

# cross_options PLATFORM: prints what tells CMake to build for it, one a line. Nothing of this machine's is found.
cross_options() {
    local system=Linux
    [[ $1 != windows-* ]] || system=Windows
    printf '%s\n' "-DCMAKE_SYSTEM_NAME=$system" "-DCMAKE_SYSTEM_PROCESSOR=${1#*-}" \
        "-DCMAKE_C_COMPILER=$(compiler_of "$1" gcc)" "-DCMAKE_CXX_COMPILER=$(compiler_of "$1" g++)" \
        -DCMAKE_FIND_ROOT_PATH_MODE_{LIBRARY,INCLUDE}=ONLY
}

# linking_of PLATFORM: prints the linker's options, by which the compiler's own libraries become part of programs and
# shared libraries. Windows' files would have the time of linking inside. On Linux libgcc stays a library of the system,
# because a copy would need glibc 2.35; and so would one of std::random_device, 2.36. Nothing here has one, and
# whatever did could not be linked, because the other functions of the class come together with this one.
linking_of() {
    case $1 in
        windows-*) echo "-static -Wl,--no-insert-timestamp" ;;
        *) echo "-static-libstdc++ -Wl,--defsym=_ZNSt13random_device7_M_initEPKcm=0" ;;
    esac
}

# suffix_of PLATFORM: prints the archive's.
suffix_of() { [[ $1 == windows-* ]] && echo .zip || echo .tar.gz; }
