# shellcheck shell=bash disable=SC2154,SC2034 # root, here, build, work and names are the caller's; it reads the tables
# Sourced by tests/mutants/run: the list of faults, how a fault gets into the modules of a folder, and the keys by which
# a verdict is kept. tests/emulation/run sources it for the modules alone.
#
# A fault lives in $work/NAME: shaders/ is a copy with the fault, modules/ has the SPIR-V that differs by it, in files
# named as the modules are. $work/built has the modules of the build.

on=$root/tools/on
emulation=$root/tests/emulation

# ---- the list

declare -A file_of script_of what_of case_of  # columns of mutants.txt, by the fault's name
declare -A pass_of text_of place_of           # what the case says: see read_case
all_names=()                                  # in the order of mutants.txt

# read_faults [TEXT...]: sets names to all faults, or to those whose names have one of these texts.
read_faults() {
    local name file script what case text wanted=("$@")
    ((${#wanted[@]} > 0)) || wanted=("")
    while IFS=$'\t' read -r name file script what case; do
        [[ -n $case ]] || die "mutants.txt: five columns are expected: $name"
        [[ -z ${file_of[$name]-} ]] || die "mutants.txt: two faults are named $name"
        file_of[$name]=$file script_of[$name]=$script what_of[$name]=$what case_of[$name]=$case
        all_names+=("$name")
        read_case "$name"
        for text in "${wanted[@]}"; do
            [[ $name != *"$text"* ]] || { names+=("$name") && break; }
        done
    done < <(grep -vE '^(#|$)' "$here/mutants.txt" | awk -F ' *[|] *' -v OFS='\t' '{ $1 = $1; print }')
}

# read_case NAME: sets pass_of to forward, backward or test, text_of to the case or the test's name, and place_of to
# where it runs: lavapipe-128 has subgroups of 4, so that workgroups have several and barriers count, lavapipe has a
# matrix unit, and `emulated` is lavapipe with another unit.
read_case() {
    local case=${case_of[$1]} pass
    place_of[$1]=lavapipe-128 text_of[$1]=$case
    case $case in
        "test "*": "*) pass_of[$1]=test text_of[$1]=${case#*: } ;;
        "emulated "*)
            case=${case#* }
            place_of[$1]=emulated pass_of[$1]=${case%% *} text_of[$1]=${case#* }
            ;;
        *)
            [[ $case != *kernel=matrix* && $case != *precision=* ]] || place_of[$1]=lavapipe
            for pass in forward backward; do
                ! grep -qxF -- "$case" "$root/tests/cases/$pass.txt" || pass_of[$1]=$pass
            done
            [[ -n ${pass_of[$1]-} ]] || die "$1: mutants.txt has a case that is in no file of tests/cases: $case"
            ;;
    esac
}

# device_of NAME: prints the device that its case runs on.
device_of() { echo "${place_of[$1]/emulated/lavapipe}"; }

# unit_of NAME: prints the folder whose shaders stand in place of those of the library.
unit_of() { [[ ${place_of[$1]} != emulated ]] || echo "$emulation"; }

# applies NAME: the fault's sed script still changes its file.
applies() { ! sed -e "${script_of[$1]}" "$root/shaders/${file_of[$1]}" | cmp -s - "$root/shaders/${file_of[$1]}"; }

# ---- modules

# every_module: prints the names of all modules of the build, a line each.
every_module() { sed -E 's,.*/([a-z0-9_]+)\.spv .*,\1,' "$build/src/vkattn_spirv_modules/list.txt"; }

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

# find_module SHADERS MODULE [UNIT]: sets arguments to what glslc gets to read the module, and passes to those of
# spirv-opt, both as the build's list of the kernel's modules has them. Files of UNIT are found before those of SHADERS.
find_module() {
    local line macros kernel spirv from=$1
    line=$(grep -F "/$2.spv " "$build/src/vkattn_spirv_modules/list.txt")
    read -r kernel _ spirv _ <<<"$line"
    line=$(grep "^$2|" "${spirv%/*}/$kernel.txt") || die "the build's lists do not say how $2 is compiled"
    IFS='|' read -r _ macros passes <<<"$line"
    read -ra macros <<<"$macros"
    read -ra passes <<<"$passes"
    [[ ! -e ${3:-/none}/$kernel.comp ]] || from=$3
    arguments=(${3:+-I "$3"} -I "$1" "${macros[@]}" "$from/$kernel.comp")
}

# compile SHADERS MODULE FOLDER [UNIT]: makes FOLDER/MODULE.spv as the build compiles it.
compile() {
    local to=$3/$2.spv passes arguments
    find_module "$1" "$2" "${4-}"
    "${glslc[@]}" -Werror "${arguments[@]}" -o "$to.new" || return
    "$root/.sdk/bin/spirv-opt" --skip-validation --strip-debug "${passes[@]}" --compact-ids "$to.new" \
        -o "$to.new" || return
    mv "$to.new" "$to"  # in one piece: an interrupted run leaves no half of a module
}

# two_at_a_time COMMAND...: starts it in the background as soon as fewer than two others run there.
two_at_a_time() {
    while (($(jobs -rp | wc -l) >= 2)); do wait -n || true; done
    "$@" &
}

# link_built: makes $work/built. The list of the build's modules tells where they are.
link_built() {
    local files
    mapfile -t files < <(awk '{ print $3; print $3 ".d" }' "$build/src/vkattn_spirv_modules/list.txt")
    rm -rf "$work/built"
    mkdir -p "$work/built"
    ln -s -t "$work/built" "${files[@]}"
}

# check_compile MODULE...: stops if `compile` makes something else than the build of one module of each form.
check_compile() {
    local module form
    local -A seen
    mkdir -p "$work/compiled"
    for module in "$@"; do
        form=portable
        [[ $module != *_matrix_* ]] || form=matrix
        [[ $module != *_rolled ]] || form+=_rolled
        [[ -z ${seen[$form]-} ]] || continue
        seen[$form]=$module
        compile "$root/shaders" "$module" "$work/compiled" &&
            cmp -s "$work/compiled/$module.spv" "$work/built/$module.spv" ||
            die "tests/mutants/faults.sh compiles $module otherwise than the build"
    done
}

# compile_emulated FOLDER SHADERS MODULE...: compiles modules of the emulated unit.
compile_emulated() {
    local module
    mkdir -p "$1"
    for module in "${@:3}"; do two_at_a_time compile "$2" "$module" "$1" "$emulation"; done
    wait
    for module in "${@:3}"; do [[ -e $1/$module.spv ]] || die "$module does not compile"; done
}

# ---- planting

# plant NAME: copies the sources with the fault to $work/NAME.
plant() {
    local folder=$work/$1
    rm -rf "$folder"
    mkdir -p "$folder/modules"
    cp -r "$root/shaders" "$folder/shaders"
    sed -i -e "${script_of[$1]}" "$folder/shaders/${file_of[$1]}"
}

# compile_planted NAME MODULE...: compiles those of the modules that the fault changes. False if one does not compile.
compile_planted() {
    local module
    for module in "${@:2}"; do
        [[ ! -e $work/$1/modules/$module.spv ]] || continue
        grep -qF "/shaders/${file_of[$1]}" "$work/built/$module.spv.d" || continue
        two_at_a_time compile_changed "$1" "$module"
    done
    wait
    [[ ! -e $work/$1/failed ]]
}

# compile_changed NAME MODULE: leaves a file `failed` where the module does not compile. What the preprocessor leaves is
# compared first, because modules for matrix units take seconds to compile.
compile_changed() {
    local folder=$work/$1 module=$2 unit unchanged=$work/built
    unit=$(unit_of "$1")
    [[ -z $unit ]] || unchanged=$work/emulated
    [[ $(preprocess "$folder/shaders" "$module" "$unit") != $(preprocess "$root/shaders" "$module" "$unit") ]] ||
        return 0
    compile "$folder/shaders" "$module" "$folder/modules" "$unit" || { touch "$folder/failed" && return; }
    ! cmp -s "$unchanged/$module.spv" "$folder/modules/$module.spv" || rm "$folder/modules/$module.spv"
}

# preprocess SHADERS MODULE [UNIT]: prints a hash of what is left of the module's sources.
preprocess() {
    local arguments passes
    find_module "$@"
    "${glslc[@]}" -E "${arguments[@]}" | grep -vE '^(#line.*|[[:space:]]*)$' | hash
}

# changes_a_module NAME MODULE...: the fault makes a difference in one of the modules that were compiled.
changes_a_module() {
    local module
    for module in "${@:2}"; do [[ ! -e $work/$1/modules/$module.spv ]] || return 0; done
    return 1
}

# ---- keys
#
# Equal keys have equal verdicts. A key covers the fault's file and script, the case, the toolchain, and what the case
# runs without the fault: grids, push constants, and the code of each pipeline. Code is the module with the pipeline's
# constants in it, after passes that remove what these make unreachable. So neither names, nor comments, nor code for
# other problems change it.

toolchain() {
    awk '$1 == "mesa-vulkan-drivers" { mesa = $2 } $1 == "glslc" { glslc = $2 }
        END { print "Mesa " mesa ", glslc " glslc }' "$root/.sdk/versions.txt"
}

# hash: prints 16 digits for standard input.
hash() { sha256sum | cut -c1-16; }

# hash_of_files FOLDER...: prints the hash of the names and contents of all files.
hash_of_files() { (cd "$root" && find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) | hash; }

# without_comments FILE...: prints what is left of their lines.
without_comments() { sed -E 's,//.*,,; s,[[:space:]]+$,,; /^$/d' "$@"; }

# hash_code NUMBER: makes $work/code/NUMBER.hash of NUMBER.spv. Declarations are sorted, because they stand in the order
# in which the sources first use them.
hash_code() {
    local code=$work/code/$1
    "$root/.sdk/bin/spirv-opt" --skip-validation --freeze-spec-const --fold-spec-const-op-composite --ccp \
        --eliminate-dead-branches --merge-blocks --eliminate-dead-code-aggressive --eliminate-dead-const \
        --eliminate-dead-members --compact-ids "$code.spv" -o "$code.plain" || return
    "$root/.sdk/bin/spirv-dis" --no-header --no-indent "$code.plain" >"$code.text" || return
    {
        sed '/OpFunction /,$d' "$code.text" | LC_ALL=C sort
        sed -n '/OpFunction /,$p' "$code.text"
    } | hash >"$code.new"
    rm "$code.plain" "$code.text"
    mv "$code.new" "$code.hash"
}

# plans_at PLACE: prints what the cases of $work/PLACE.cases run there, a line each: see tests/gpu/fingerprint.cpp. On
# the emulated unit the planner chooses modules by what the probe finds.
plans_at() {
    local modules=
    if [[ $1 == emulated ]]; then
        modules=$work/probe
        compile_emulated "$modules" "$root/shaders" probe_matrix_f16
    fi
    VKATTN_SPIRV=$modules "$on" "${1/emulated/lavapipe}" -- "$build/vkattn_fingerprint" "$work/code" <"$work/$1.cases"
}

# find_plans: sets plan_of and modules_of, by the fault's name, for the faults in names whose cases have plans.
declare -A plan_of modules_of key_of
emulated= sum_of_plans=
find_plans() {
    local name place plan module
    mkdir -p "$work/code"
    rm -f "$work"/*.cases "$work"/*.names
    for name in "${names[@]}"; do
        [[ ${pass_of[$name]} != test ]] || continue
        echo "${pass_of[$name]} ${text_of[$name]}" >>"$work/${place_of[$name]}.cases"
        echo "$name" >>"$work/${place_of[$name]}.names"
    done
    for place in lavapipe-128 lavapipe emulated; do
        [[ -e $work/$place.cases ]] || continue
        plans_at "$place" >"$work/$place.plans" || die "vkattn_fingerprint failed on $place"
        while IFS=$'\t' read -r name plan; do
            plan_of[$name]=$plan
            modules_of[$name]=$(for module in ${plan#* }; do echo "${module%:*}"; done | sort -u)
        done < <(paste "$work/$place.names" "$work/$place.plans")
    done
}

# find_test NAME: as find_plans, where the case is a test. It has no plan: mutants.txt says into which of its modules
# the fault is planted, and instead of a plan there are these modules and the test's file.
find_test() {
    local file pattern patterns module modules=()
    file=$(cd "$root" && grep -lF "\"${text_of[$1]}\"" tests/gpu/*.cpp) && [[ $file != *$'\n'* ]] ||
        die "$1: there is no test '${text_of[$1]}', or there are several"
    read -ra patterns <<<"${case_of[$1]%%: *}"
    while IFS= read -r module; do
        # shellcheck disable=SC2053 # it is a pattern
        for pattern in "${patterns[@]:1}"; do [[ $module != $pattern ]] || modules+=("$module"); done
    done < <(modules_on lavapipe-128)
    ((${#modules[@]} > 0)) || die "$1: no module is named as mutants.txt says"
    modules_of[$1]=$(printf '%s\n' "${modules[@]}")
    plan_of[$1]=$({ without_comments "$root/$file" && (cd "$work/built" && cat "${modules[@]/%/.spv}"); } | hash)
}

# covered NAME CODE...: prints what the fault's key covers; CODE is what stands for the code of its pipelines.
covered() {
    printf '%s\n' "${file_of[$1]}" "${script_of[$1]}" "${pass_of[$1]} ${text_of[$1]}" "$toolchain"
    [[ ${place_of[$1]} != emulated ]] || echo "$emulated"
    printf '%s\n' "${@:2}"
}

# find_covered: sets plan_of and modules_of for the faults in names, and sum_of_plans to a hash of all that their keys
# cover, with modules as they are instead of their code. Where it is the table's, so is every key, and nobody has to
# find the code of all pipelines, which takes three minutes of a core.
find_covered() {
    local name words
    find_plans
    emulated=$(without_comments "$emulation"/*.comp "$emulation"/lib/* | hash)
    for name in "${names[@]}"; do
        [[ ${pass_of[$name]} != test ]] || find_test "$name"
    done
    sum_of_plans=$(for name in "${names[@]}"; do
        read -ra words <<<"${plan_of[$name]}"
        covered "$name" "${words[@]}"
    done | hash)
}

# hash_codes: makes the hash of the code of each pipeline in the plans.
hash_codes() {
    local word number
    for word in ${plan_of[*]}; do
        [[ $word != *:* || -e $work/code/${word#*:}.hash ]] || echo "${word#*:}"
    done | sort -u >"$work/code/unknown"
    while IFS= read -r number; do two_at_a_time hash_code "$number"; done <"$work/code/unknown"
    wait
}

# find_keys: sets key_of for the faults in names. The order in which code is hashed is the plan's.
find_keys() {
    local name word words codes
    hash_codes
    for name in "${names[@]}"; do
        codes=()
        read -ra words <<<"${plan_of[$name]}"
        for word in "${words[@]}"; do
            [[ $word != *:* ]] || word=$(<"$work/code/${word#*:}.hash") ||
                die "$name: the code of its case cannot be read"
            codes+=("$word")
        done
        key_of[$name]=$(covered "$name" "${codes[@]}" | hash)
    done
}
