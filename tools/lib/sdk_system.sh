# shellcheck shell=bash disable=SC2034,SC2154 # variables of tools/sdk
# Sourced by tools/sdk: is the system's own SDK recent enough to compile with, and where are its parts?

# find_file NAME DIR...: prints the path of the first of them that exists.
find_file() {
    local dir
    for dir in "${@:2}"; do
        [[ -e $dir/$1 ]] && printf '%s\n' "$dir/$1" && return
    done
    return 1
}

# find_header NAME: prints the path of a header, or of a folder of headers, of the system.
find_header() {
    find_file "$1" ${VULKAN_SDK:+"$VULKAN_SDK/include" "$VULKAN_SDK/include/vma"} /usr/local/include /usr/include \
        "/usr/include/$(uname -m)-linux-gnu"
}

# find_library NAME: prints the path of a static library of the system.
find_library() { find_file "$1" /usr/local/lib "/usr/lib/$(uname -m)-linux-gnu" /usr/lib64 /usr/lib; }

# system_has HEADER: the system has it and, if it is libzstd's, all else that libzstd-dev would bring.
system_has() {
    find_header "$1" >/dev/null || return
    [[ $1 != zstd.h ]] || { find_header zstd_errors.h >/dev/null && find_library libzstd.a >/dev/null; }
}

# system_can_compile: else it sets system_lacks to the first thing that is missing.
system_can_compile() {
    local name core
    for name in "${compilers[@]}"; do
        system_lacks="no $name"
        # Our own wrappers may be in PATH; they are not the system's.
        [[ $(command -v "$name") == /* && $(command -v "$name") != "$sdk_dir"/* ]] || return
    done
    for name in vulkan/vulkan_core.h vk_video vk_mem_alloc.h; do
        system_lacks="no header $name"
        find_header "$name" >/dev/null || return
    done
    core=$(find_header vulkan/vulkan_core.h)
    for name in VK_NV_cooperative_matrix2 VK_KHR_shader_bfloat16; do
        system_lacks="$core is too old for $name"
        grep -q "define $name 1" "$core" || return
    done
    system_lacks="glslc is too old for GL_KHR_cooperative_matrix, GL_NV_cooperative_matrix2 or GL_EXT_bfloat16"
    glslc --target-env=vulkan1.3 -fshader-stage=compute -o /dev/null - 2>/dev/null <<'SHADER'
#version 450
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require
#extension GL_EXT_bfloat16 : require
void main() {}
SHADER
}
