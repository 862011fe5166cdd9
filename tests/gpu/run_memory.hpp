// The memory of one run on the device: inputs are read-only; what lies in scratch and outputs before is poison.
#pragma once

#include <string>
#include <string_view>

#include "arrays.hpp"
#include "guarded.hpp"
#include "inputs.hpp"

namespace vkattn::test {

// A run's result, and where it wrote what it should not have; that is "" if nowhere.
template <class Result>
struct Ran {
    Result result;
    std::string damage;
};

class RunMemory {
  public:
    explicit RunMemory(Device& device, Place place = Place::end, uint32_t old_content = poison_word,
                       VkBufferUsageFlags usage = guarded_usage)
        : device_(device), place_(place), old_content_(old_content), usage_(usage) {}

    // These return addresses. Of an output a run may write all, or the elements of a tensor.
    VkDeviceAddress input(const char* name, std::span<const std::byte> content, uint32_t alignment_bytes = 4);
    VkDeviceAddress output(const char* name, uint64_t size_bytes, uint32_t alignment_bytes = 4);
    VkDeviceAddress output(const char* name, const Tensor& layout, uint32_t alignment_bytes);
    // `written` says which bytes a run may write: empty, none.
    VkDeviceAddress add(const char* name, std::span<const std::byte> content, std::vector<bool> written,
                        uint32_t alignment_bytes);

    // Adds the arrays that forward and backward both read.
    template <class Args>
    void add_inputs(const Case& c, const Inputs& inputs, Args& args) {
        const VkattnProblem& p = c.problem;
        const auto tensor = [&](const char* name, const Tensor& t) {
            return input(name, t.image, alignment_of(c, t));
        };
        args.query = tensor("query", inputs.query);
        args.key = tensor("key", inputs.key);
        if (p.value_in_key == 0) args.value = tensor("value", inputs.value);
        if (p.mask != VKATTN_MASK_NONE)
            args.mask = input("mask", inputs.mask_image,
                              p.mask == VKATTN_MASK_BOOL ? 1 : element_bytes(mask_dtype_of(p)));
        add_arrays(c, args, [&](const char* name, auto content, uint32_t alignment) {
            return input(name, content, alignment);
        });
    }
    template <class Args>
    void add_scratch(const Plan& plan, Args& args) {
        const VkattnScratch needed = plan.scratch();
        if (needed.size_bytes == 0) return;
        args.scratch_address =
            output("scratch", needed.size_bytes, static_cast<uint32_t>(needed.alignment_bytes));
        args.scratch_buffer = parts_.back().memory.buffer();
        args.scratch_offset = parts_.back().memory.offset_bytes();
        args.scratch_bytes = needed.size_bytes;
    }

    // These return what an array holds now, and nothing if it was not added.
    std::vector<std::byte> content(std::string_view name) const;
    std::vector<float> floats(std::string_view name) const;
    std::vector<std::byte> results() const;  // what outputs hold, but for scratch and padding
    std::string damage() const;
    Device& device() const { return device_; }

  private:
    struct Part {
        std::string name;
        Guarded memory;
        std::vector<std::byte> before;
        std::vector<bool> written;
    };
    Device& device_;
    Place place_;
    uint32_t old_content_;
    VkBufferUsageFlags usage_;
    std::vector<Part> parts_;
};

}  // namespace vkattn::test
