#include "pipeline_constants.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace vkattn::core {
namespace {

// Numbers of the SPIR-V specification: sections 2.3 "Physical Layout", 3.20 "Decoration", 3.21 "BuiltIn" and 3.49
// "Instructions".
constexpr uint32_t bound_word = 3, header_words = 5, decoration_spec_id = 1, decoration_builtin = 11,
                   builtin_workgroup_size = 25;
constexpr uint32_t op_name = 5, op_member_name = 6, op_spec_constant_true = 48,
                   op_spec_constant_composite = 51, op_spec_constant_op = 52, op_decorate = 71;

struct Instruction {
    uint32_t opcode;
    std::span<const uint32_t> operands;
};

template <class See>
void for_each_instruction(std::span<const uint32_t> module, See see) {
    for (size_t at = header_words; at < module.size();) {
        const uint32_t length = module[at] >> 16;
        see(Instruction{module[at] & 0xffff, module.subspan(at + 1, length - 1)});
        at += length;
    }
}

bool is_spec_constant(const Instruction& i) {
    return i.opcode >= op_spec_constant_true && i.opcode <= op_spec_constant_op;
}

bool names_only(const Instruction& i) {
    return i.opcode == op_name || i.opcode == op_member_name || i.opcode == op_decorate;
}

bool is_workgroup_size(const Instruction& i) {
    return i.opcode == op_decorate && i.operands[1] == decoration_builtin &&
           i.operands[2] == builtin_workgroup_size;
}

// The ids that have been seen among operands.
class Ids {
  public:
    explicit Ids(std::span<const uint32_t> module) : seen_(module[bound_word]) {}
    bool has(uint32_t id) const { return id < seen_.size() && seen_[id]; }
    void add(uint32_t id) {
        if (id < seen_.size())
            seen_[id] = true;  // a literal of an instruction that is not listed below may be larger
    }
    void add(std::span<const uint32_t> ids) {
        for (const uint32_t id : ids) add(id);
    }

  private:
    std::vector<bool> seen_;  // not a set: modules of matrix kernels have 10,000s of ids
};

// Adds the ids among an instruction's operands. Ids are numbered from 1 (spirv-opt --compact-ids), so that a literal
// could be taken for the id of a constant: then devices would build a pipeline for each value of a constant that no
// code reads. The instructions that modules have and that take literals stand here; of any other one each operand is an
// id.
void add_ids(const Instruction& i, Ids& to) {
    size_t ids = i.operands.size(),
           literal = ids;  // operands before the first of only literals; one within them
    switch (i.opcode) {
        case 3:   // OpSource
        case 10:  // OpExtension
        case 11:  // OpExtInstImport
        case 14:  // OpMemoryModel
        case 15:  // OpEntryPoint
        case 16:  // OpExecutionMode
        case 17:  // OpCapability
        case 21:  // OpTypeInt
        case 22:  // OpTypeFloat
        case 23:  // OpTypeVector
        case 32:  // OpTypePointer
        case 43:  // OpConstant
        case 72:  // OpMemberDecorate
            ids = 0;
            break;
        case 59:   // OpVariable
        case 54:   // OpFunction
        case 62:   // OpStore
        case 246:  // OpLoopMerge
        case 251:  // OpSwitch, of which the labels are no constants
            ids = 2;
            break;
        case 247:  // OpSelectionMerge
            ids = 1;
            break;
        case 61:  // OpLoad
        case 81:  // OpCompositeExtract
            ids = 3;
            break;
        case 79:    // OpVectorShuffle
        case 82:    // OpCompositeInsert
        case 4458:  // OpCooperativeMatrixStoreKHR
            ids = 4;
            break;
        case 4457:  // OpCooperativeMatrixLoadKHR
        case 4459:  // OpCooperativeMatrixMulAddKHR
            ids = 5;
            break;
        case 12:    // OpExtInst
        case 342:   // OpGroupNonUniformBallotBitCount
        case 5366:  // OpCooperativeMatrixReduceNV
            literal = 3;
            break;
        default:
            if (i.opcode >= 349 && i.opcode <= 364) literal = 3;  // OpGroupNonUniformIAdd to ...LogicalXor
    }
    for (size_t at = 0; at < std::min(ids, i.operands.size()); at++)
        if (at != literal) to.add(i.operands[at]);
}

}  // namespace

// A constant is read if its id is an operand of an instruction that is no constant, or of a constant that is read
// itself. The workgroup's size counts as read, because the driver uses it.
uint64_t constants_read(const Spirv& module) {
    Ids used(module);
    std::vector<Instruction> derived, numbered;  // constants of constants; decorations that number a constant
    for_each_instruction(module, [&](const Instruction& i) {
        if (is_workgroup_size(i)) used.add(i.operands[0]);
        if (i.opcode == op_decorate && i.operands[1] == decoration_spec_id && i.operands[2] < 64)
            numbered.push_back(i);
        if (i.opcode == op_spec_constant_op || i.opcode == op_spec_constant_composite) derived.push_back(i);
        if (!is_spec_constant(i) && !names_only(i)) add_ids(i, used);
    });
    // They are defined before their users, so they are visited from the last to the first. Operands are its type, its
    // result, then what it depends on; an operation is a literal before that.
    for (auto i = derived.rbegin(); i != derived.rend(); ++i)
        if (used.has(i->operands[1])) used.add(i->operands.subspan(i->opcode == op_spec_constant_op ? 3 : 2));
    uint64_t read = 0;
    for (const Instruction& i : numbered)
        if (used.has(i.operands[0])) read |= uint64_t{1} << i.operands[2];
    return read;
}

void PipelineConstants::keep(const Module& variant, Spirv words) {
    const std::lock_guard lock(mutex_);
    variants_.insert_or_assign(variant, std::move(words));
}

Spirv PipelineConstants::words_of(const Module& module) {
    if (module.variant == 0) return spirv_of(module);
    const std::lock_guard lock(mutex_);
    return variants_.at(module);
}

uint64_t PipelineConstants::read_by(const Module& module) {
    {
        const std::lock_guard lock(mutex_);
        if (const auto known = read_.find(module); known != read_.end()) return known->second;
    }
    // A module is looked through without the lock. Two threads may do so at once, and find the same.
    Spirv words = words_of(module);
    const uint64_t read = constants_read(words);
    const std::lock_guard lock(mutex_);
    if (read_.emplace(module, read).second && module.variant == 0) words_.emplace(module, std::move(words));
    return read;
}

Spirv PipelineConstants::take_words(const Module& module) {
    {
        const std::lock_guard lock(mutex_);
        if (auto words = words_.extract(module)) return std::move(words.mapped());
    }
    return words_of(module);
}

uint32_t constant_of(const PipelineKey& key, std::string_view name) {
    return constant_of(key.module.kernel, key.constants, name);
}

PipelineKey PipelineConstants::key_of(const Pipeline& pipeline) {
    const KernelInfo& kernel = info_of(pipeline.module.kernel);
    const uint64_t read = read_by(pipeline.module);
    PipelineKey key{pipeline.module, {}};
    for (size_t i = 0; i < kernel.constants.size(); i++) {
        const bool kept = kernel.on_matrices && kernel.constants[i] == "subgroup_size";
        if (kept || (read >> i & 1) != 0) key.constants[i] = pipeline.constants[i];
    }
    return key;
}

std::vector<VkSpecializationMapEntry> PipelineConstants::entries_of(const Module& module) {
    const uint64_t read = read_by(module);
    const auto names = info_of(module.kernel).constants;
    std::vector<VkSpecializationMapEntry> entries;
    for (uint32_t i = 0; i < names.size(); i++)
        if ((read >> i & 1) != 0) entries.push_back({i, uint32_t{sizeof(uint32_t)} * i, sizeof(uint32_t)});
    return entries;
}

}  // namespace vkattn::core
