// What a program that trains through vkattn records beside attention: dispatches of its own, and the barriers between
// them and attention.
#pragma once

#include <string_view>

#include "device.hpp"

namespace vkattn::test {

// A compute pipeline of a shader of the tests (shaders.def), which takes everything by push constants.
class OwnShader {
  public:
    OwnShader(Device& device, std::string_view name, uint32_t push_size);
    OwnShader(const OwnShader&) = delete;
    ~OwnShader();

    template <class Push>
    void record(VkCommandBuffer commands, const Push& push, uint32_t groups) const {
        record(commands, &push, sizeof push, groups);
    }

  private:
    void record(VkCommandBuffer commands, const void* push, uint32_t size, uint32_t groups) const;

    Device& device_;
    VkPipelineLayout layout_ = VK_NULL_HANDLE;
    VkPipeline pipeline_ = VK_NULL_HANDLE;
};

// Where and how a piece of work touches memory first, or last.
struct Use {
    VkPipelineStageFlags stages;
    VkAccessFlags access;
};
constexpr Use attention_first{VKATTN_FIRST_STAGES, VKATTN_FIRST_ACCESS};
constexpr Use attention_last{VKATTN_LAST_STAGES, VKATTN_LAST_ACCESS};
constexpr Use own_first{VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                        VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};
constexpr Use own_last{VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT};

// Everything that `from` wrote is visible to `to`, and what came before `to` is done with the memory that it writes.
void barrier_between(Device& device, VkCommandBuffer commands, const Use& from, const Use& to);

}  // namespace vkattn::test
