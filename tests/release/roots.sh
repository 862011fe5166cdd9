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
