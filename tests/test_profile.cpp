// Reading the profiles of devices.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include "plan_cases.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::DeviceCaps;

TEST_CASE("profiles: what a file says reaches the caps") {
    CHECK_EQ(profiles().size(), 30);
    const DeviceCaps& caps = profile("nvidia_h200");
    CHECK_EQ(caps.name, "NVIDIA H200");
    CHECK_EQ(caps.vendor_id, 0x10de);
    CHECK_EQ(caps.type, core::DeviceType::discrete);
    CHECK_EQ(caps.api_version, (1u << 22 | 4u << 12));
    CHECK_EQ(caps.subgroup_size, 32);
    CHECK_EQ(caps.max_shared_bytes, 49152);
    CHECK_EQ(caps.max_invocations, 1024);
    CHECK(caps.max_workgroup_size == std::array<uint32_t, 3>{1024, 1024, 64});
    CHECK(caps.max_workgroup_count == std::array<uint32_t, 3>{2147483647, 65535, 65535});
    CHECK_EQ(caps.max_push_constant_bytes, 256);
    CHECK_EQ(caps.max_buffer_bytes, 4292870144);
    CHECK(caps.buffer_device_address);
    CHECK_EQ(core::mesa_version_in("llvmpipe Mesa 22.3.6 (LLVM 15.0.6)"), core::mesa_number(22, 3, 6));
    CHECK_EQ(core::mesa_version_in("Mesa 25.0.7-2+deb13u1 (LLVM 19.1.7)"), core::mesa_number(25, 0, 7));
    CHECK_EQ(core::mesa_version_in("Mesa 24.2.0-devel (git-0123456789)"), core::mesa_number(24, 2, 0));
    CHECK_EQ(core::mesa_version_in("Mesa 23"), core::mesa_number(23, 0, 0));
    CHECK_EQ(core::mesa_version_in("580.159"), 0);
    CHECK_EQ(core::mesa_version_in("Mesa "), 0);
    CHECK_EQ(profile("powervr_bxs").max_buffer_bytes, 18957385728);
    CHECK_EQ(profile("swiftshader").type, core::DeviceType::cpu);
    CHECK(caps.storage_16bit);
    CHECK_FALSE(profile("swiftshader").storage_16bit);
}

TEST_CASE("profiles: a missing, repeated or malformed key is named with its file") {
    const std::string good =
        "device=\"A B\" api=1.2 vendor=0x10de type=2\n sg=8 [8..8] shmem=1 wginv=2 wgsize=3,4,5 "
        "wgcount=6,7,8 pc=128\n"
        " maxAlloc=4294967296 bda=1 s16=0 x=\"(\" KHR A=f16 A=f16\n";
    REQUIRE_EQ(parse_profile(good, "f.txt").name, "A B");
    const auto message = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        text.replace(text.find(from), from.size(), to);
        try {
            parse_profile(text, "f.txt");
        } catch (const std::runtime_error& error) {
            return std::string(error.what());
        }
        return "accepted: " + text;
    };
    for (const char* key : {"device", "api", "vendor", "type", "sg", "shmem", "wginv", "wgsize", "wgcount",
                            "pc", "maxAlloc", "bda", "s16"}) {
        const std::string assigned = std::string(key) + "=";
        CHECK_EQ(message(assigned, "other="), fmt::format("f.txt: {} is missing", key));
        CHECK_EQ(message(assigned, assigned + "1 " + assigned),
                 fmt::format("f.txt: {} stands there twice", key));
        CHECK_EQ(message(assigned, assigned + "z").rfind(fmt::format("f.txt: {} ", key), 0), 0);
    }
    CHECK_EQ(message("wgsize=3,4,5", "wgsize=3,4"), "f.txt: wgsize does not hold three numbers");
    CHECK_EQ(message("wgsize=3,4,5", "wgsize=3,4,5,6"), "f.txt: wgsize does not hold three numbers");
    CHECK_EQ(message("shmem=1", "shmem=4294967296"), "f.txt: shmem does not hold a number that fits");
    CHECK_EQ(message("type=2", "type=5"), "f.txt: type is not a device type");
    CHECK_EQ(message("bda=1", "bda=2"), "f.txt: bda is neither 0 nor 1");
    CHECK_EQ(message("api=1.2", "api=12"), "f.txt: api is not major.minor");
    CHECK_EQ(message("x=\"(\"", "x=\"("), "f.txt: x has no closing quote");
    CHECK_THROWS_AS(load_profile("/nonexistent/f.txt"), std::runtime_error);
}
