#include "dot_emulation.hpp"

#include <set>
#include <string_view>

namespace vkattn::test {
namespace {

constexpr size_t header_words = 5, bound_at = 3;
constexpr uint32_t first_part = 0, second_part = 1;

enum Op : uint32_t {
    op_extension = 10,
    op_ext_inst_import = 11,
    op_ext_inst = 12,
    op_capability = 17,
    op_type_int = 21,
    op_type_float = 22,
    op_type_vector = 23,
    op_constant = 43,
    op_function = 54,
    op_composite_extract = 81,
    op_copy_object = 83,
    op_convert = 115,
    op_bitcast = 124,
    op_shift_left = 196,
    op_bitwise_and = 199,
    op_dot2 = 6916,
};
constexpr uint32_t glsl_fma = 50;
constexpr uint32_t capability_of_dots = 6912, capability_of_bfloat16_dots = 6914,
                   capability_of_bfloat16 = 5116;

std::string_view text_at(const core::Spirv& module, size_t at) {
    return reinterpret_cast<const char*>(module.data() + at);
}

// Reads a module instruction by instruction and writes it again.
class Emulation {
  public:
    explicit Emulation(const core::Spirv& module) : from_(module) {}

    core::Spirv run() {
        for_each([&](size_t at, uint32_t op) { look_at(at, op); });
        if (!dots_) return from_;
        to_.assign(from_.begin(), from_.begin() + header_words);
        next_id_ = from_[bound_at];
        bool in_functions = false;
        for_each([&](size_t at, uint32_t op) {
            if (op == op_function && !in_functions) {
                in_functions = true;
                add_constants();
            }
            rewrite(at, op);
        });
        to_[bound_at] = next_id_;
        return to_;
    }

  private:
    template <class Each>
    void for_each(const Each& each) {
        for (size_t at = header_words; at < from_.size(); at += from_[at] >> 16) each(at, from_[at] & 0xffff);
    }

    void look_at(size_t at, uint32_t op) {
        const uint32_t count = from_[at] >> 16;
        if (op == op_dot2) dots_ = true;
        if (op == op_ext_inst_import && text_at(from_, at + 2) == "GLSL.std.450") glsl_ = from_[at + 1];
        if (op == op_type_int && from_[at + 2] == 32 && from_[at + 3] == 0) uint_ = from_[at + 1];
        if (op == op_type_float && from_[at + 2] == 32) float_ = from_[at + 1];
        if (op == op_type_float && from_[at + 2] == 16)
            (count == 4 ? bfloat16_ : float16_) = from_[at + 1];  // with an encoding it is bfloat16
        if (op == op_type_vector && bfloat16_ != 0 && from_[at + 2] == bfloat16_)
            pairs_.insert(from_[at + 1]);
    }

    bool is_left_out(size_t at, uint32_t op) const {
        const uint32_t word = from_[at + 1];
        if (op == op_capability)
            return word == capability_of_dots || word == capability_of_bfloat16_dots ||
                   word == capability_of_bfloat16;
        if (op == op_extension)
            return text_at(from_, at + 1) == "SPV_VALVE_mixed_float_dot_product" ||
                   text_at(from_, at + 1) == "SPV_KHR_bfloat16";
        return (op == op_type_float && word == bfloat16_) || (op == op_type_vector && pairs_.contains(word));
    }

    void rewrite(size_t at, uint32_t op) {
        if (is_left_out(at, op)) return;
        if (op == op_dot2) return add_dot(&from_[at + 1]);
        if (op == op_bitcast && pairs_.contains(from_[at + 1]))
            return add(op_copy_object, {uint_, from_[at + 2], from_[at + 3]});
        to_.insert(to_.end(), from_.begin() + static_cast<ptrdiff_t>(at),
                   from_.begin() + static_cast<ptrdiff_t>(at + (from_[at] >> 16)));
    }

    void add(uint32_t op, std::initializer_list<uint32_t> words) {
        to_.push_back(static_cast<uint32_t>(words.size() + 1) << 16 | op);
        to_.insert(to_.end(), words);
    }
    uint32_t add_result(uint32_t op, uint32_t type, std::initializer_list<uint32_t> operands) {
        const uint32_t id = next_id_++;
        to_.push_back(static_cast<uint32_t>(operands.size() + 3) << 16 | op);
        to_.insert(to_.end(), {type, id});
        to_.insert(to_.end(), operands);
        return id;
    }

    void add_constants() {
        sixteen_ = add_result(op_constant, uint_, {16});
        upper_half_ = add_result(op_constant, uint_, {0xffff0000});
    }

    // One number of a pair, as float32.
    uint32_t part_of(uint32_t pair, uint32_t part) {
        if (bfloat16_ == 0) {
            const uint32_t half = add_result(op_composite_extract, float16_, {pair, part});
            return add_result(op_convert, float_, {half});
        }
        const uint32_t bits = part == first_part ? add_result(op_shift_left, uint_, {pair, sixteen_})
                                                 : add_result(op_bitwise_and, uint_, {pair, upper_half_});
        return add_result(op_bitcast, float_, {bits});
    }

    // `words`: type, result, both pairs, sum.
    void add_dot(const uint32_t* words) {
        const uint32_t a = words[2], b = words[3];
        const uint32_t ax = part_of(a, first_part), bx = part_of(b, first_part);
        const uint32_t first = add_result(op_ext_inst, float_, {glsl_, glsl_fma, ax, bx, words[4]});
        const uint32_t ay = part_of(a, second_part), by = part_of(b, second_part);
        add(op_ext_inst, {words[0], words[1], glsl_, glsl_fma, ay, by, first});
    }

    const core::Spirv& from_;
    core::Spirv to_;
    bool dots_ = false;
    uint32_t next_id_ = 0, glsl_ = 0, uint_ = 0, float_ = 0, float16_ = 0, bfloat16_ = 0, sixteen_ = 0,
             upper_half_ = 0;
    std::set<uint32_t> pairs_;  // types: vectors of bfloat16
};

}  // namespace

core::Spirv without_dot_products(const core::Spirv& module) {
    return Emulation(module).run();
}

}  // namespace vkattn::test
