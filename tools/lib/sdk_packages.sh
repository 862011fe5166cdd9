# shellcheck shell=bash disable=SC2154 # variables of tools/sdk
# Sourced by tools/sdk: fetches Debian packages with the machine's apt, under a private state, and unpacks them.

# apt_private COMMAND ARGUMENTS...: an apt program that sees only the private state. Keeps its
# messages in apt/log.
apt_private() { APT_CONFIG=$sdk_dir/apt/apt.conf "$@" 2>>"$sdk_dir/apt/log"; }

# write_apt_conf: a whole configuration, so that no hook of the machine's runs; how to reach, to log
# in to and to trust the mirror is copied from the machine's. architecture can be another one than this machine's.
write_apt_conf() {
    local apt=$sdk_dir/apt netrc netrc_parts trusted trusted_parts architecture=${architecture-}
    architecture=${architecture:-$(dpkg --print-architecture)}
    mkdir -p "$apt"/{empty,sources,lists/partial,none/partial} "$sdk_dir/debs/partial"
    : >"$apt/status"
    : >"$apt/log"
    eval "$(apt-config shell netrc Dir::Etc::netrc/f netrc_parts Dir::Etc::netrcparts/d \
        trusted Dir::Etc::trusted/f trusted_parts Dir::Etc::trustedparts/d)"
    {
        apt-config dump --no-empty --format '%F "%v";%n' |
            grep '^Acquire::' | grep -vE '^Acquire::(IndexTargets|Languages)'
        cat <<CONF
Acquire::Languages "none";
Acquire::PDiffs "false";
Acquire::Retries "3";
// A mirror's copy of testing can be past its date.
Acquire::Check-Valid-Until "false";
// The folder need not be accessible to apt's download user.
APT::Sandbox::User "root";
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Install-Recommends "false";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "$apt/empty";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "$apt/empty";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$apt/sources";
Dir::Etc::netrc "${netrc-}";
Dir::Etc::netrcparts "${netrc_parts-}";
Dir::Etc::trusted "${trusted-}";
Dir::Etc::trustedparts "${trusted_parts-}";
Dir::State "$apt";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
Dir::Cache::archives "$sdk_dir/debs";
Dir::Log "$apt";
CONF
    } >"$apt/apt.conf"
}

# write_source URI FILE: as the private source, FILE's entry for URI with only the suite changed, which
# keeps what it says on keys and trust. source_types can ask for deb-src, too.
write_source() {
    local uri=${1%/} file=$2 type types=${source_types:-deb}
    rm -f "$sdk_dir"/apt/sources/*
    if [[ $file == *.sources ]]; then
        awk -v uri="$uri" -v suite="$suite" -v types="$types" '
            BEGIN { RS = ""; FS = "\n" }
            {
                found = 0
                count = split($0, words, /[ \t\n]+/)
                for (i = 1; i <= count; i++) if (words[i] == uri || words[i] == uri "/") found = 1
            }
            found {
                print "Types: " types "\nSuites: " suite "\nComponents: main"
                for (i = 1; i <= NF; i++) {
                    if ($i !~ /^[ \t]/) replaced = tolower($i) ~ /^(types|suites|components):/
                    if (!replaced) print $i
                }
                exit
            }' "$file" >"$sdk_dir/apt/sources/vkattn.sources"
    else
        for type in $types; do
            sed -nE "s|^[[:space:]]*deb[[:space:]]+(\[[^]]*\][[:space:]]+)?$uri/?[[:space:]].*|$type \1$uri $suite main|p" \
                "$file" | head -n 1
        done >"$sdk_dir/apt/sources/vkattn.list"
    fi
}

# find_suite: makes the first mirror among the machine's sources that has the suite the private source.
find_suite() {
    local uri file uris=()
    # Works from the sources alone: there may never have been an apt-get update.
    # The caches are named away, for root's apt would write them.
    # shellcheck disable=SC2016 # apt's variables, not the shell's
    while read -r uri file; do
        [[ " ${uris[*]} " == *" $uri "* ]] && continue
        uris+=("$uri")
        write_source "$uri" "${file%:*}"
        apt_private apt-get -qq update >>"$sdk_dir/apt/log" || true
        apt_private apt-cache show glslc >/dev/null && return
    done < <(apt-get indextargets --no-release-info 'Created-By: Packages' 'Component: main' \
        -o Dir::Cache::pkgcache='' -o Dir::Cache::srcpkgcache='' --format '$(REPO_URI) $(SOURCESENTRY)')
    ((${#uris[@]})) || die "the machine's apt has no package source with a component 'main'" "${by_hand[@]}"
    if grep -qiE 'resolv|unable to connect|could not connect|unreachable|timed out' "$sdk_dir/apt/log"; then
        die "no network: the package mirror cannot be reached (${uris[*]})" "apt's messages: $sdk_dir/apt/log"
    fi
    die "no package source of this machine has Debian's suite '$suite' (${uris[*]})" \
        "apt's messages: $sdk_dir/apt/log" "${by_hand[@]}"
}

# require_space: debs and unpacked files together, counting what an interrupted run already has.
require_space() {
    local needed=700 free used
    free=$(df --output=avail -m "$sdk_dir" | tail -n 1)
    used=$(du -sm "$sdk_dir/debs" "$1" | awk '{ sum += $1 } END { print sum }')
    ((free + used >= needed)) ||
        die "no disk space: $sdk_dir needs $((needed - used)) MB more, there are $free MB"
}

# unpack_deb DEB: into ./root, leaving out what is heavy and never used, which Python is unless kept_python is set. The
# mark in ./done lets an interrupted run continue.
unpack_deb() {
    local mark=done/${1##*/} only=() python=(--exclude='usr/lib/python3*' --exclude='usr/bin/python3*')
    [[ ! -e $mark ]] || return 0
    [[ -z ${kept_python-} ]] || python=()
    [[ $1 != */chromium-common_* ]] || only=(--wildcards '*swiftshader*')
    dpkg-deb --fsys-tarfile "$1" | tar -xC root --no-same-owner \
        --exclude='usr/share/'{doc,man,locale,info,fonts,zoneinfo,misc,X11,perl5,python3,vulkan/registry} \
        "${python[@]}" --exclude='gconv' \
        --exclude='libgallium-*' --exclude='libvulkan_'{intel,intel_hasvk,gfxstream,virtio}'.so' \
        "${only[@]}"
    : >"$mark"
}

# unpack_arrived NEW: unpacks those of the plan's packages that are there and have not been unpacked. The largest first,
# so that all cores end at about the same time.
unpack_arrived() {
    local deb
    sort -rnk3 "$1/plan" | while read -r _ deb _; do
        [[ ! -e $sdk_dir/debs/$deb || -e $1/done/$deb ]] || printf '%s\0' "$sdk_dir/debs/$deb"
    done | (
        cd "$1"
        # shellcheck disable=SC2016 # the inner shell's $1
        xargs -0 -r -n 1 -P "$(nproc)" bash -euo pipefail -c 'unpack_deb "$1"' _ 9>&-
    )
}

# unpack_meanwhile NEW: unpacks what arrives until standard input ends, which it does with the script at the latest.
# What fails is tried again afterwards. It keeps the folder's lock, so that no other run begins beside its last package.
unpack_meanwhile() {
    while true; do
        read -r -t 0.2 _ || (($? > 128)) || return 0
        unpack_arrived "$1" || return 0
    done
}

# get_packages NEW: downloads $packages with all they depend on and unpacks them into NEW/root.
get_packages() {
    local new=$1 plan=$sdk_dir/apt/plan deb version unpacking
    write_apt_conf
    require_space "$new"
    say "1/3 reading the package index of $suite"
    find_suite
    # What apt would fetch if it had nothing yet: the packages with their versions and sizes.
    apt_private apt-get -qq install --print-uris -o Dir::Cache::archives="$sdk_dir/apt/none" "${packages[@]}" \
        >"$plan" || die "$suite lacks a package: $(grep '^E:' "$sdk_dir/apt/log" | tail -n 1)"
    # The archive may have moved on since an interrupted run: its files are not to be mixed.
    cmp -s "$plan" "$new/plan" || rm -rf "$new/root" "$new/done"
    mkdir -p "$new/root" "$new/done"
    cp "$plan" "$new/plan"
    say "2/3 downloading $(wc -l <"$plan") packages, $(awk '{ sum += $3 } END { print int(sum / 1e6) }' "$plan") MB"
    export -f unpack_deb
    export kept_python=${kept_python-}
    exec 8> >(unpack_meanwhile "$new" >/dev/null 2>&1)
    unpacking=$!
    apt_private apt-get -qq install --yes --download-only "${packages[@]}" >>"$sdk_dir/apt/log" 8>&- ||
        die "the download failed: $(grep '^E:' "$sdk_dir/apt/log" | head -n 1)" "run tools/sdk again to continue"
    exec 8>&-
    wait "$unpacking" || true

    say "3/3 unpacking the rest"
    unpack_arrived "$new" || die "unpacking failed (is the disk full?)" "run tools/sdk again to continue"
    while read -r _ deb _; do
        [[ -e $new/done/$deb ]] || die "$deb has not been downloaded" "apt's messages: $sdk_dir/apt/log"
        version=${deb#*_}
        version=${version%_*}
        printf '%s %s\n' "${deb%%_*}" "${version//%3a/:}"
    done <"$plan" >"$new/versions.txt"
}

# link_devices: in the current folder, beside root/, what tools/on starts programs with. Drivers and
# the layer are named with the folder: by its name alone, a program that has the system's loader would find the
# system's driver instead, without a word.
link_devices() {
    local libs json name
    libs=$(echo root/usr/lib/*/libvulkan.so.1)
    rm -rf lib ld.so icd layers
    mkdir icd layers
    ln -s "${libs%/*}" lib
    ln -s lib/ld-linux*.so.* ld.so
    ln -sf ../chromium/libvk_swiftshader.so lib/
    for json in root/usr/share/vulkan/icd.d/{lvp,radeon,freedreno,nouveau,asahi}_icd*.json \
        root/usr/lib/chromium/vk_swiftshader_icd.json \
        root/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json; do
        name=${json##*/}
        case $name in
            VkLayer_*) name=layers/$name ;;
            vk_*) name=icd/swiftshader.json ;;
            *) name=icd/${name%%_*}.json ;;
        esac
        sed -E 's|("library_path": *")([^"]*/)?|\1../lib/|' "$json" >"$name"
    done
}
