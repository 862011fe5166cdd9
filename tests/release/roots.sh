# shellcheck shell=bash disable=SC2154 # sdk_dir is of tools/lib/common.sh
# Sourced by tests/release/run: folders of Debian testing's packages in which programs of other platforms run.

roots=$sdk_dir/release

# make_root NAME ARCHITECTURE PACKAGE...: unpacks the packages to $roots/NAME/root, unless they are there.
make_root() (
    # shellcheck disable=SC2034 # all of these are read by get_packages
    suite=${VKATTN_SDK_SUITE:-forky} sdk_dir=$roots/$1 architecture=$2 packages=("${@:3}") by_hand=()
    [[ $(cat "$sdk_dir/complete" 2>/dev/null) != "${packages[*]}" ]] || return 0
    rm -rf "$sdk_dir"
    mkdir -p "$sdk_dir"
    exec 9>"$sdk_dir/lock"
    get_packages "$sdk_dir" || return
    rm -rf "$sdk_dir"/{debs,apt}
    mkdir -p "$sdk_dir/root"/{tmp,proc,dev,root}
    for folder in lib lib64; do
        [[ -e $sdk_dir/root/$folder ]] || ln -s "usr/$folder" "$sdk_dir/root/$folder"
    done
    echo "${packages[*]}" >"$sdk_dir/complete"
)

# make_wine_root: Debian 13 has the first Wine whose Vulkan needs no X server; testing has none at all. What it asks for
# while it makes the folder that it calls Windows is not there, and not needed. libc-bin has the locale C.UTF-8, by
# which Wine reads arguments and the names of files.
make_wine_root() {
    VKATTN_SDK_SUITE=trixie make_root wine amd64 libc6 libc-bin libvulkan1 mesa-vulkan-drivers wine64
}

# in_wine PROGRAM ARGUMENT...: a program of Windows below $work, which is the drive's folder "archives" there.
in_wine() {
    local name_spaces=(unshare --mount --pid --fork)
    ((EUID == 0)) || name_spaces+=(--map-root-user)
    mkdir -p "$roots/wine/root/archives"
    # shellcheck disable=SC2016 # the inner shell's
    "${name_spaces[@]}" bash -euo pipefail -c '
        for folder in dev proc; do mount --rbind "/$folder" "$0/$folder"; done
        mount --bind "$1" "$0/archives"
        PATH=$PATH:/usr/sbin
        exec env -i LC_ALL=C.UTF-8 HOME=/root WINEPREFIX=/root/prefix WINEDEBUG=-all \
            WINESERVER=/usr/lib/wine/wineserver64 \
            WINEPATH=Z:/usr/x86_64-w64-mingw32/lib WINEDLLOVERRIDES="mscoree,mshtml=" \
            GALLIVM_PERF=nopt VK_DRIVER_FILES=/usr/share/vulkan/icd.d/lvp_icd.json \
            "$(command -v chroot)" "$0" /usr/lib/wine/wine64 "/archives${2#"$1"}" "${@:3}"
    ' "$roots/wine/root" "$work" "$@"
}
