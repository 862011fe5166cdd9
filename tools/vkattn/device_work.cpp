#include "device_work.hpp"

#include <algorithm>

#include "call.hpp"
#include "problem_text.hpp"

namespace vkattn::tools {
namespace {

constexpr size_t piece_bytes = size_t{256} << 20;  // of a transfer, between two looks at the clock

template <class Transfer>
void for_each_piece(size_t size, Phase& progress, const Transfer& transfer) {
    for (size_t at = 0; at < size; at += piece_bytes) {
        const size_t bytes = std::min(piece_bytes, size - at);
        transfer(at, bytes);
        progress.advance(static_cast<double>(bytes));
    }
}

Json describe(const Work& work) {
    const Json plan = Json::parse(work.plan.describe());
    return {{"kernel", plan["kernel"]},
            {"tuning_row", plan["tuning_row"]},
            {"precision", plan["precision"]},
            {"tiles", plan["tiles"]},
            {"dispatches", plan["dispatches"].size()},
            {"segments", work.plan.segments()},
            {"submissions", work.took.submissions},
            {"scratch_bytes", plan["scratch_bytes"]},
            {"time_ms", work.took.time_ms},
            {"record_us", work.took.record_us},
            {"plan_us", work.plan_us},
            {"compile_us", work.compile_us}};
}

// A line for each thing that has a unit.
void print_work(const char* what, const Json& w) {
    fmt::print("{:9} {}, tuning row {}, products of {}\n", what, w["kernel"].get<std::string>(),
               w["tuning_row"].get<std::string>(), w["precision"].get<std::string>());
    fmt::print("tiles     {} query rows x {} keys\n", w["tiles"]["tile_q"].get<int>(),
               w["tiles"]["tile_kv"].get<int>());
    fmt::print("plan      {:.1f} us\n", w["plan_us"].get<double>());
    fmt::print("compile   {:.1f} ms for pipelines\n", 1e-3 * w["compile_us"].get<double>());
    fmt::print("record    {:.1f} us\n", w["record_us"].get<double>());
    fmt::print("time      {:.3f} ms on the device\n", w["time_ms"].get<double>());
    fmt::print("work      {} in {}\n", count_text(w["dispatches"].get<size_t>(), "dispatch", "dispatches"),
               count_text(w["submissions"].get<uint32_t>(), "submission"));
}

}  // namespace

Buffer upload(Runtime& runtime, std::span<const std::byte> data) {
    Phase phase("uploading", static_cast<double>(data.size()));
    return upload(runtime, data, phase);
}

Buffer upload(Runtime& runtime, std::span<const std::byte> data, Phase& progress) {
    Buffer buffer = runtime.allocate(data.size());
    for_each_piece(data.size(), progress,
                   [&](size_t at, size_t bytes) { runtime.upload(buffer, data.subspan(at, bytes), at); });
    return buffer;
}

NpyArray download(Runtime& runtime, const Buffer& buffer, NpyDtype dtype, std::vector<uint64_t> shape) {
    NpyArray array{dtype, false, std::move(shape), std::vector<std::byte>(buffer.size_bytes())};
    Phase phase("downloading", static_cast<double>(buffer.size_bytes()));
    const std::span<std::byte> data = array.data;
    for_each_piece(data.size(), phase,
                   [&](size_t at, size_t bytes) { runtime.download(buffer, data.subspan(at, bytes), at); });
    return array;
}

void make_block_map(Runtime& runtime, Inputs& in, bool with_dbias) {
    const VkattnProblem& p = in.problem;
    std::vector<std::byte>& made = in.arrays[static_cast<size_t>(ArrayName::block_map)];
    if (!in.map_from_mask) return;
    try {
        const Plan plan = Plan::of_block_map(runtime.context(), p);
        const Buffer mask = upload(runtime, in.mask.array.data);
        const std::vector<uint64_t> shape{p.block_map_batches, p.block_map_heads,
                                          vkattn_blocks(p.seqlen_q, p.block_rows),
                                          vkattn_blocks(p.seqlen_kv, p.block_keys)};
        const Buffer map = runtime.allocate(element_count(shape[0], shape[1], shape[2], shape[3]));
        VkattnForwardArgs args = forward_args();
        args.mask = mask.address();
        args.block_map = map.address();
        runtime.run_block_map(plan, args);
        made = download(runtime, map, NpyDtype::uint8, shape).data;
        if (with_dbias) std::ranges::replace(made, std::byte{1}, std::byte{2});
    } catch (const Error& error) {
        rethrow_as_usage(error, Shapes::of_files);
    }
}

DeviceInputs::DeviceInputs(Runtime& runtime, const Inputs& in) {
    size_t bytes = 0;
    for (const FileArray* file : {&in.query, &in.key, &in.value, &in.mask}) bytes += file->array.data.size();
    Phase phase("uploading", static_cast<double>(bytes));
    query_ = upload(runtime, in.query.array.data, phase);
    key_ = upload(runtime, in.key.array.data, phase);
    value_ = upload(runtime, in.value.array.data, phase);
    mask_ = upload(runtime, in.mask.array.data, phase);
    for (size_t i = 0; i < num_arrays; i++) arrays_[i] = upload(runtime, in.arrays[i], phase);
}

uint64_t DeviceInputs::tensor_bytes() const {
    return query_.size_bytes() + key_.size_bytes() + value_.size_bytes() + mask_.size_bytes();
}

void print_report(const AttentionOptions& options, const Runtime& runtime, const Inputs& inputs,
                  const Work& work, uint64_t tensor_bytes, const Work* forward) {
    const VkattnProblem& p = inputs.problem;
    const DeviceInfo& d = runtime.device();
    const uint64_t matrices =
        matrix_bytes(p, forward != nullptr || work.name == std::string_view("backward"));
    const Json described = describe(work);
    if (options.json) {
        Json out = call_json(runtime);
        out["dtype"] = dtype_text(p.dtype);
        out["problem"] = problem_json(p, options.bshd());
        out["options"] = options_json(options);
        out.update(described);
        out["tensor_bytes"] = tensor_bytes;
        out["matrix_bytes"] = matrices;
        if (forward != nullptr) out["forward"] = describe(*forward);
        fmt::print("{}\n", out.dump());
        return;
    }
    for (const std::string& line : problem_lines(inputs, options.bshd())) fmt::print("{}\n", line);
    fmt::print("device    {}\n", d.name);
    fmt::print("driver    {}\n", d.driver);
    if (forward != nullptr) print_work("forward", describe(*forward));
    print_work(work.name, described);
    fmt::print("memory    {} of tensors\n", bytes_text(static_cast<double>(tensor_bytes)));
    fmt::print("          {} of scratch\n", bytes_text(described["scratch_bytes"].get<double>()));
    fmt::print("          {} more would be whole matrices of scores\n",
               bytes_text(static_cast<double>(matrices)));
}

}  // namespace vkattn::tools
