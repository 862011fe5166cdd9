// The kernels' interfaces: names and places of constants and push constants, as shaders/kernels.def has them.
#include <doctest/doctest.h>

#include <cstddef>
#include <set>
#include <span>
#include <string>

#include "plan_flaws.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::Kernel;
using core::Module;

namespace {

template <class Each>
void for_each_kernel(const Each& each) {
    for (uint32_t k = 0; k < static_cast<uint32_t>(Kernel::count); k++) {
        const core::KernelInfo& info = core::info_of(static_cast<Kernel>(k));
        INFO(std::string(info.name));
        each(static_cast<Kernel>(k), info);
    }
}

core::Pipeline pipeline_with(Module module) {
    core::Pipeline pipeline;
    pipeline.module = module;
    for (uint32_t i = 0; i < pipeline.constants.size(); i++) pipeline.constants[i] = 100 + i;
    return pipeline;
}

}  // namespace

TEST_CASE("interfaces: no name stands for two constants") {
    for_each_kernel([](Kernel, const core::KernelInfo& info) {
        std::set<std::string_view> names;
        for (const std::string_view name : info.constants) CHECK(names.insert(name).second);
        CHECK(names.count("threads") == 1);
    });
}

namespace {

// The lists as data: an assertion for each line of them would take the compiler half a minute.
struct Listed {
    std::string_view name;
    size_t at, size;
};

#define KERNEL(kernel)                              \
    namespace list_of_##kernel {                    \
        using Constants = core::constants::kernel;  \
        using Push = core::push::kernel;            \
        constexpr size_t push_bytes = sizeof(Push); \
        constexpr Listed constants[] = {
#define CONSTANT(type, member, NAME, value) {#member, offsetof(Constants, member), 4},
#define KERNEL_END(kernel) \
    }                      \
    ;                      \
    }
#include "kernels.def"

#define KERNEL(kernel)           \
    namespace list_of_##kernel { \
        constexpr Listed fields[] = {
#define FIELD(type, member) {#member, offsetof(Push, member), sizeof(Push::member)},
#define FIELD_ARRAY(type, member, count) FIELD(type, member)
#define KERNEL_END(kernel) \
    }                      \
    ;                      \
    }
#include "kernels.def"

struct Lists {
    std::span<const Listed> constants, fields;
    size_t push_bytes;
};
const Lists lists[] = {
#define KERNEL(kernel) {list_of_##kernel::constants, list_of_##kernel::fields, list_of_##kernel::push_bytes},
#include "kernels.def"
};

}  // namespace

TEST_CASE("interfaces: a struct's members have the names and places of the list") {
    for_each_kernel([](Kernel kernel, const core::KernelInfo& info) {
        const Lists& list = lists[static_cast<size_t>(kernel)];
        const core::Pipeline pipeline = pipeline_with({kernel, core::macros::F32});
        CHECK_EQ(info.push_bytes, list.push_bytes);
        REQUIRE_EQ(info.constants.size(), list.constants.size());
        for (size_t i = 0; i < list.constants.size(); i++) {
            const Listed& c = list.constants[i];
            INFO(std::string(c.name));
            CHECK(info.constants[i] == c.name);
            CHECK_EQ(constant_of(pipeline, c.name), 100 + c.at / c.size);
        }
        REQUIRE_EQ(info.fields.size(), list.fields.size());
        for (size_t i = 0; i < list.fields.size(); i++) {
            INFO(std::string(list.fields[i].name));
            CHECK(info.fields[i].name == list.fields[i].name);
            CHECK_EQ(info.fields[i].offset_bytes, list.fields[i].at);
            CHECK_EQ(info.fields[i].size_bytes, list.fields[i].size);
        }
    });
    CHECK_EQ(constant_of(pipeline_with({Kernel::combine, core::macros::F32}), "head_dim_qk"), 0);
}

TEST_CASE("interfaces: push constants lie as GLSL's std430 has them") {
    for_each_kernel([](Kernel, const core::KernelInfo& info) {
        uint32_t end = 0;
        for (const core::FieldInfo& field : info.fields) {
            INFO(std::string(field.name));
            const uint32_t array = field.name == "operand_layout" ? 48 : field.name == "words" ? 112 : 0;
            CHECK_EQ(field.size_bytes, array != 0 ? array : field.size_bytes == 8 ? 8 : 4);
            const uint64_t alignment = field.size_bytes == 8 ? 8 : 4;
            CHECK_EQ(field.offset_bytes, round_up(end, alignment));
            end = field.offset_bytes + field.size_bytes;
        }
        CHECK_LE(end, info.push_bytes);
        CHECK_LE(info.push_bytes, core::max_push_bytes);
    });
}

TEST_CASE("interfaces: a dispatch's cut goes where the kernel has fields for it") {
    constexpr std::string_view words[] = {"first_x", "first_y", "first_z", "first_step", "end_step"};
    for_each_kernel([&](Kernel kernel, const core::KernelInfo&) {
        const core::CutPlace place = core::cut_place(kernel);
        uint32_t bytes = 0;
        for (const std::string_view word : words) {
            const core::FieldInfo* field = find_field(kernel, word);
            if (field == nullptr) continue;
            CHECK_EQ(field->offset_bytes, place.offset_bytes + bytes);
            bytes += field->size_bytes;
        }
        CHECK_EQ(place.size_bytes, bytes);
        CHECK((bytes == 0 || bytes == 12 || bytes == sizeof(core::Cut)));
    });
    CHECK_EQ(offsetof(core::Cut, first_step), 12);
    CHECK_EQ(offsetof(core::Cut, end_step), 16);
}

TEST_CASE("interfaces: a module's name says what it is of and what it needs") {
    std::set<std::string> names;
    for (const Module& module : core::built_modules()) {
        const std::string name = core::name_of(module);
        INFO(name);
        CHECK(names.insert(name).second);
        CHECK(name.starts_with(std::string(core::info_of(module.kernel).name) + "_"));
        CHECK_EQ(module.has(core::macros::ROLLED), has_part(module, "_rolled"));
        CHECK_EQ(core::in_gpu_form(core::in_cpu_form(module)), core::in_gpu_form(module));
        const uint32_t needs = core::needs_of(module);
        const VkattnDtype storage = core::storage_of(module);
        const bool matrix = core::info_of(module.kernel).on_matrices, mixed = has_part(module, "_mixed"),
                   half = mixed || storage != VKATTN_DTYPE_FLOAT32;
        CHECK_EQ((needs & core::NEED_MATRIX) != 0, matrix);
        // The shape of the unit is also told to a kernel that finds its way in matrices which others have spilled.
        const bool shaped = matrix || find_field(module.kernel, "spill") != nullptr;
        CHECK_EQ(std::ranges::count(core::info_of(module.kernel).constants, "matrix_m"), shaped ? 1 : 0);
        CHECK_EQ((needs & core::NEED_16BIT_STORAGE) != 0, half && !matrix && !has_part(module, "_packed"));
        CHECK_EQ((needs & core::NEED_DOT) != 0, has_part(module, "_dot"));
        // The name says the storage type, or the one that it is rounded to.
        const char* const type = mixed                             ? "_mixed"
                                 : storage == VKATTN_DTYPE_FLOAT32 ? "_f32"
                                 : storage == VKATTN_DTYPE_FLOAT16 ? "_f16"
                                                                   : "_bf16";
        CHECK(has_part(module, type));
    }
    CHECK_EQ(std::string(core::name_of({Kernel::combine, core::macros::TURNED})), "");
}
