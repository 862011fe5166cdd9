// Tests of the tests: guard pages, sentinels and the validation layer notice what they are there to notice.
#include "fixture.hpp"
#include "guarded.hpp"
#include "skip.hpp"

using namespace vkattn::test;

TEST_CASE_FIXTURE(OnDevice, "guard pages stop what runs past a tensor") {
    if (!device.has_guard_pages())
        return skip("guard pages stop what runs past a tensor: there are none here");
    const GuardProbes seen = guard_probes();
    CHECK(seen.read_behind == "SIGSEGV");
    CHECK(seen.write_before == "SIGSEGV");
    CHECK(seen.write_to_input == "SIGSEGV");
}

TEST_CASE_FIXTURE(OnDevice, "a guarded tensor stands where it should") {
    for (const Place place : places)
        for (const uint32_t alignment : {4u, 16u, 64u}) {
            CAPTURE(std::string(name_of(place)));
            CAPTURE(alignment);
            const Guarded tensor(device, 4 * 13, place, alignment);
            CHECK(tensor.address() % alignment == 0);
            if (!device.has_guard_pages()) continue;
            const uint64_t in_page =
                (tensor.address() + (place == Place::end ? 4 * 13 : 0)) % device.page_bytes();
            CHECK((place == Place::start
                       ? in_page == 0
                       : (device.page_bytes() - in_page) % device.page_bytes() < alignment));
        }
}

TEST_CASE_FIXTURE(OnDevice, "sentinels around a tensor tell of writes") {
    for (const Place place : places) {
        Guarded tensor(device, 400, place);
        CHECK(tensor.intact());
        tensor.fill(0);
        CHECK(tensor.intact());
        const uint64_t beside = tensor.offset_bytes() + (place == Place::start ? 400 : -4ull);
        runtime.submit([&](VkCommandBuffer commands) {
            device.vk().vkCmdFillBuffer(commands, tensor.buffer(), beside, 4, 0);
        });
        CHECK(!tensor.intact());
    }
}

TEST_CASE_FIXTURE(OnDevice, "validation sees a missing barrier and a wrong argument") {
    if (!device.validated()) return skip("validation sees a missing barrier: the layer is not there");
    device.take_messages();
    const vkattn::Buffer buffer = runtime.allocate(64);
    const auto messages_of = [&](auto record) {
        runtime.submit(record);
        return device.take_messages();
    };
    const auto& vk = device.vk();
    const auto hazard = messages_of([&](VkCommandBuffer commands) {
        vk.vkCmdFillBuffer(commands, buffer.handle(), 0, 64, 0);
        vk.vkCmdFillBuffer(commands, buffer.handle(), 0, 64, 1);
    });
    CHECK(!hazard.empty());
    const auto invalid = messages_of(
        [&](VkCommandBuffer commands) { vk.vkCmdFillBuffer(commands, buffer.handle(), 0, 62, 0); });
    CHECK(!invalid.empty());
}
