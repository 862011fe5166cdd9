// CUDA's driver as far as vkattn's Python package calls it, over memory that a device on the CPU exports: SwiftShader's
// file descriptors can be mapped by any process. It has the device whose UUID is in FAKE_CUDA_UUID, and counts.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { out_of_memory = 2, invalid_value = 1 };

struct Handle {  // of memory: CUDA_EXTERNAL_MEMORY_HANDLE_DESC
    uint32_t type;
    uint64_t fd[2];
    uint64_t size;
    uint32_t flags, reserved[16];
};
struct Memory {
    void* address;
    size_t size;
};

int fake_imports, fake_mapped, fake_synchronized, fake_depth,
    fake_fails;  // it fails to import (1), or to map (2)

int cuInit(unsigned flags) {
    return flags;
}
int cuGetErrorString(int result, const char** text) {
    *text = result == out_of_memory ? "out of memory" : "invalid value";
    return 0;
}
int cuDeviceGetCount(int* count) {
    return *count = 1, 0;
}
int cuDeviceGet(int* device, int ordinal) {
    return *device = ordinal, 0;
}
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    for (int i = 0; i < 16; i++) sscanf(getenv("FAKE_CUDA_UUID") + 2 * i, "%2hhx", uuid + i);
    return device;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    return *bytes = 1 << 30, device;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
    return *context = &fake_depth, device;
}
int cuCtxPushCurrent_v2(void* context) {
    return fake_depth++, context == &fake_depth ? 0 : invalid_value;
}
int cuCtxPopCurrent_v2(void** context) {
    return *context = &fake_depth, fake_depth-- > 0 ? 0 : invalid_value;
}
int cuCtxSynchronize(void) {
    return fake_synchronized++, fake_depth > 0 ? 0 : invalid_value;
}

int cuImportExternalMemory(struct Memory** memory, const struct Handle* handle) {
    if (fake_depth <= 0 || handle->type != 1 || handle->flags != 1) return invalid_value;
    if (fake_fails == 1) return out_of_memory;
    struct Memory* made = malloc(sizeof *made);
    made->size = handle->size;
    made->address = mmap(NULL, made->size, PROT_READ | PROT_WRITE, MAP_SHARED, (int)handle->fd[0], 0);
    if (made->address == MAP_FAILED) return invalid_value;
    close((int)handle->fd[0]);
    *memory = made;
    fake_imports++;
    return 0;
}
int cuExternalMemoryGetMappedBuffer(uint64_t* address, struct Memory* memory,
                                    const uint64_t* offset_and_size) {
    if (fake_fails == 2) return out_of_memory;
    if (offset_and_size[0] != 0 || offset_and_size[1] != memory->size) return invalid_value;
    *address = (uint64_t)memory->address;
    fake_mapped++;
    return 0;
}
int cuMemFree_v2(uint64_t address) {
    return fake_mapped--, address ? 0 : invalid_value;
}
// Semaphores are the test's business: it stands in their place in Python.
int cuImportExternalSemaphore(void** semaphore, const void* handle) {
    return *semaphore = 0, handle == NULL;
}
int cuDestroyExternalMemory(struct Memory* memory) {
    munmap(memory->address, memory->size);
    free(memory);
    fake_imports--;
    return 0;
}
