# shellcheck shell=bash disable=SC2154,SC2034 # here, root, build and blind are the caller's; it reads the tables
# Sourced by tests/mutants/run: the table of faults, and how a fault gets into the modules of a folder.
#
# A fault lives in $work/NAME: shaders/ is a copy with the fault, modules/ has the SPIR-V that differs by it, in files
# named as the variants are. $work/unchanged/modules has the modules of the shaders as they are.

declare -A line_of file_of script_of what_of case_of  # by the fault's name
names=()
work=$build/mutants
! $blind || work=$build/mutants_blind  # which takes long: others may run meanwhile
! $conformance || work=$build/mutants_conformance
on=$root/tools/on

# read_faults [TEXT...]: all faults, or those whose names have one of these texts.
read_faults() {
    local line name file script what case text wanted=("$@")
    ((${#wanted[@]} > 0)) || wanted=("")
    while IFS= read -r line; do
        IFS=$'\t' read -r name file script what case < <(awk -F ' *[|] *' -v OFS='\t' '{ $1 = $1; print }' <<<"$line")
        [[ -n $case ]] || die "mutants.txt: five columns are expected: $line"
        [[ -z ${line_of[$name]-} ]] || die "mutants.txt: two faults are named $name"
        line_of[$name]=$line file_of[$name]=$file script_of[$name]=$script what_of[$name]=$what case_of[$name]=$case
        for text in "${wanted[@]}"; do
            [[ $name != *"$text"* ]] || { names+=("$name") && break; }
        done
    done < <(grep -vE '^(#|$)' "$here/mutants.txt")
}

# applies NAME: the fault's sed script still changes its file.
applies() { ! sed -e "${script_of[$1]}" "$root/shaders/${file_of[$1]}" | cmp -s - "$root/shaders/${file_of[$1]}"; }

# device_of CASE: prints where it runs. lavapipe-128 has subgroups of 4, so that workgroups have several and barriers
# count, but no matrix unit.
device_of() {
    case $1 in
        *kernel=matrix* | *precision=* | "test lavapipe: "*) echo lavapipe ;;
        *) echo lavapipe-128 ;;
    esac
}

# pass_of CASE: prints forward, backward or test. False if there is no such case.
pass_of() {
    if [[ $1 == "test: "* || $1 == "test lavapipe: "* ]]; then
        echo test
    elif grep -qxF -- "$1" "$root/tests/cases/backward.txt"; then
        echo backward
    else
        grep -qxF -- "$1" "$root/tests/cases/forward.txt" && echo forward
    fi
}

# ---- modules

# every_module: prints the names of all modules, a line each.
every_module() {
    sed -nE 's/^MODULE\(([a-z0-9_]+), .*, ([12])\)$/\1 \2/p' "$root"/shaders/interface/*.def |
        while read -r name forms; do
            echo "$name"
            [[ $forms == 1 ]] || echo "${name}_rolled"
        done
}

# modules_on DEVICE: prints the modules that a test there runs, unless it asks for modules of GPUs (the tuning
# rolled=0).
modules_on() {
    every_module | awk -v matrix="$([[ $1 == lavapipe ]] && echo yes)" '
        { name[NR] = $0; known[$0] }
        END {
            for (i = 1; i <= NR; i++)
                if (!((name[i] "_rolled") in known) && (matrix || name[i] !~ /_matrix_/)) print name[i]
        }'
}

glslc=("$root/.sdk/bin/glslc" --target-env=vulkan1.2 -fshader-stage=compute)

# find_module MODULE: sets file, needs and macros to what its interface says.
find_module() {
    local line form='^(.*)/interface/(.*)\.def:MODULE\([a-z0-9_]+, [A-Z0-9]+, "([^"]*)", (.*), [12]\)$'
    line=$(grep -H "^MODULE(${1%_rolled}," "$root"/shaders/interface/*.def)
    [[ $line =~ $form ]]
    file=${BASH_REMATCH[2]}.comp needs=${BASH_REMATCH[4]}
    read -ra macros <<<"${BASH_REMATCH[3]}"
    [[ $1 != *_rolled ]] || macros+=(-DROLLED -O)
}

# compile SHADERS MODULE FOLDER: makes FOLDER/MODULE.spv as src/shaders.cmake compiles it. FOLDER/MODULE.d lists the
# files that the module includes.
compile() {
    local shaders=$1 module=$2 to=$3/$2.spv passes=() file needs macros
    find_module "$module"
    "${glslc[@]}" -Werror -I "$shaders" "${macros[@]}" \
        -MD -MF "$3/$module.d" -MT "$module" "$shaders/$file" -o "$to.new" || return
    [[ $needs != NEED_MATRIX || $module == *_rolled ]] ||
        passes=(--merge-return --inline-entry-points-exhaustive --eliminate-dead-functions --private-to-local)
    "$root/.sdk/bin/spirv-opt" "${passes[@]}" --strip-debug --compact-ids "$to.new" -o "$to.new" || return
    mv "$to.new" "$to"  # in one piece: an interrupted run leaves no half of a module
}

# two_at_a_time COMMAND...: starts it in the background as soon as fewer than two others run there.
two_at_a_time() {
    while (($(jobs -rp | wc -l) >= 2)); do wait -n || true; done
    "$@" &
}

# compile_unchanged MODULE...: compiles those that are not there yet. Modules older than the sources, the SDK or this
# file are removed before.
compile_unchanged() {
    local folder=$work/unchanged/modules newest module
    mkdir -p "$folder"
    newest=$(find "$root/shaders" "$root/.sdk/versions.txt" "$here/faults.sh" -type f -printf '%T@ %p\n' |
        sort -n | tail -n 1 | cut -d' ' -f2-)
    find "$folder" -name '*.spv' ! -newer "$newest" -delete
    for module in "$@"; do
        [[ -e $folder/$module.spv ]] || two_at_a_time compile "$root/shaders" "$module" "$folder"
    done
    wait
    for module in "$@"; do [[ -e $folder/$module.spv ]] || die "$module does not compile"; done
}

# preprocess SHADERS MODULE: prints a hash of what is left of the module's sources.
preprocess() {
    local file needs macros
    find_module "$2"
    "${glslc[@]}" -E -I "$1" "${macros[@]}" "$1/$file" | grep -vE '^(#line.*|[[:space:]]*)$' | hash
}

# take_unchanged MODULE...: as compile_unchanged, but takes the modules from the build, which is up to date.
take_unchanged() {
    local folder=$work/unchanged/modules module
    rm -rf "$folder"
    mkdir -p "$folder"
    for module in "$@"; do
        cp "$build/src/vkattn_spirv_modules/$module.spv" "$folder"
        cp "$build/src/vkattn_spirv_modules/$module.spv.d" "$folder/$module.d"
    done
}

# plant NAME MODULE...: copies the sources with the fault to $work/NAME. Sets affected: those of the modules that
# include the faulted file.
plant() {
    local folder=$work/$1 module
    rm -rf "$folder"
    mkdir -p "$folder/modules"
    cp -r "$root/shaders" "$folder/shaders"
    sed -i -e "${script_of[$1]}" "$folder/shaders/${file_of[$1]}"
    affected=()
    for module in "${@:2}"; do
        ! grep -qF "/shaders/${file_of[$1]}" "$work/unchanged/modules/$module.d" || affected+=("$module")
    done
}

# changes_a_module NAME: the fault makes a difference in one of the affected modules.
changes_a_module() {
    local module
    for module in "${affected[@]}"; do
        cmp -s "$work/unchanged/modules/$module.spv" "$work/$1/modules/$module.spv" || return 0
    done
    return 1
}

# all_compiled NAME: every affected module is there.
all_compiled() {
    local module
    for module in "${affected[@]}"; do [[ -e $work/$1/modules/$module.spv ]] || return; done
}

# ---- keys

toolchain() {
    awk '$1 == "mesa-vulkan-drivers" { mesa = $2 } $1 == "glslc" { glslc = $2 }
        END { print "Mesa " mesa ", glslc " glslc }' "$root/.sdk/versions.txt"
}

# hash: prints 16 digits for standard input.
hash() { sha256sum | cut -c1-16; }

# hash_of_files FOLDER...: prints the hash of the names and contents of all files.
hash_of_files() { (cd "$root" && find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) | hash; }

# find_plans: sets fingerprint_of and modules_of, by the case, for the faults in names. vkattn_fingerprint asks the
# planner and runs nothing. A test has no plan: its fingerprint is that of its file and of all modules.
declare -A fingerprint_of modules_of
find_plans() {
    local name case pass device test_file
    mkdir -p "$work"
    rm -f "$work"/*.plans "$work"/*.cases
    for name in "${names[@]}"; do
        case=${case_of[$name]}
        pass=$(pass_of "$case") || die "$name: mutants.txt has a case that is in no file of tests/cases: $case"
        if [[ $pass == test ]]; then
            test_file=$(cd "$root" && grep -lF "\"${case#*: }\"" tests/gpu/*.cpp) && [[ $test_file != *$'\n'* ]] ||
                die "$name: there is no test '${case#*: }', or there are several"
            fingerprint_of[$case]=$(cat "$build"/src/vkattn_spirv_modules/*.spv "$root/$test_file" | hash)
            modules_of[$case]=$(modules_on "$(device_of "$case")")
        else
            printf '%s %s\n' "$pass" "$case" >>"$work/$(device_of "$case").cases"
        fi
    done
    for device in lavapipe-128 lavapipe; do
        [[ -e $work/$device.cases ]] || continue
        plans_on "$device" >"$work/$device.plans" || die "vkattn_fingerprint failed on $device"
        while IFS=$'\t' read -r case plan; do
            fingerprint_of[${case#* }]=${plan%% *} modules_of[${case#* }]=${plan#* }
        done < <(paste "$work/$device.cases" "$work/$device.plans")
    done
}

# plans_on DEVICE: prints the fingerprints and modules of its cases.
plans_on() { "$on" "$1" -- "$build/vkattn_fingerprint" <"$work/$1.cases"; }

# key_of NAME: equal keys have equal verdicts.
key_of() { printf '%s\n' "${line_of[$1]}" "${fingerprint_of[${case_of[$1]}]}" "$toolchain" | hash; }
