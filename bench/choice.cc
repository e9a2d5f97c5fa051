// What a choice costs the host: by the call's cell alone, and by predicted times. Needs no GPU.
//
// bench-choice [--json OUT]
#include <aotriton/c.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "dispatch/select.h"

namespace {

using namespace aotriton::v2;

constexpr int kBatch = 2000, kBatches = 31;

struct Shape {
  const char* op;
  int64_t batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim;
  bool causal;
};

constexpr Shape kShapes[] = {
    {"attn_fwd", 2, 16, 4, 1000, 1000, 128, true},  {"attn_fwd", 4, 32, 32, 4096, 4096, 64, false},
    {"attn_fwd", 1, 8, 8, 77, 3000, 256, false},    {"attn_bwd", 2, 16, 4, 1000, 1000, 128, true},
    {"attn_bwd", 4, 32, 32, 4096, 4096, 64, false}, {"attn_bwd", 1, 8, 8, 77, 3000, 256, false},
};

// A call of contiguous tensors without data.
class Contiguous {
 public:
  explicit Contiguous(const Shape& shape) : call(*find_operator(shape.op)) {
    const auto size_of = [&](const char* name) {
      const std::string_view text = name;
      return text == "batch"      ? shape.batch
             : text == "heads_q"  ? shape.heads_q
             : text == "heads_k"  ? shape.heads_k
             : text == "seqlen_q" ? shape.seqlen_q
             : text == "seqlen_k" ? shape.seqlen_k
                                  : shape.head_dim;
    };
    const OperatorInfo& info = *call.info;
    for (size_t slot = 0; slot < info.slots(); ++slot) call.views[slot] = View::none();
    for (size_t slot = 0; slot < info.operands.size(); ++slot) {
      const OperandInfo& operand = info.operands[slot];
      int64_t stride = 1;
      for (size_t i = operand.dims.size(); i-- > 0;) {
        sizes[slot][i] = size_of(info.sizes[operand.dims[i]]);
        strides[slot][i] = stride;
        stride *= sizes[slot][i];
      }
      const DType dtype = operand.dtype == DType::none ? DType::bfloat16 : operand.dtype;
      call.views[slot] = {nullptr, dtype, sizes[slot], strides[slot]};
    }
    for (size_t i = 0; i < info.scalars.size(); ++i) {
      if (info.scalars[i].type == ScalarType::fp32)
        call.set_real(i, 0.1F);
      else
        call.set_whole(i, !strcmp(info.scalars[i].name, "causal") && shape.causal);
    }
  }
  Call call;
  int64_t sizes[kMaxOperands][kMaxRank], strides[kMaxOperands][kMaxRank];
};

// Median nanoseconds of one choice.
double time_of(CheckedCall call, const Gpu& gpu, By by) {
  std::vector<double> batches;
  for (int i = 0; i < kBatches; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (int j = 0; j < kBatch; ++j) {
      Dispatch found;
      if (dispatch(call, gpu, &found, Backends::all, by).error() != Error::success) return 0;
    }
    batches.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() /
                      kBatch);
  }
  std::nth_element(batches.begin(), batches.begin() + kBatches / 2, batches.end());
  return batches[kBatches / 2];
}

}  // namespace

int main(int count, char** arguments) {
  Gpu gpu;
  if (find_gpu("bench-choice", "sm_90", "NVIDIA H200", 0, &gpu) != Error::success) {
    fprintf(stderr, "%s\n", last_error_message());
    return 1;
  }
  std::string json = "[";
  printf("| operator | shape | by cell, ns | by predicted time, ns | more |\n|---|---|---|---|---|\n");
  for (const Shape& shape : kShapes) {
    Contiguous made(shape);
    const Result<CheckedCall> checked = check_call(made.call, Data::optional);
    if (checked.error() != Error::success) {
      fprintf(stderr, "%s\n", last_error_message());
      return 1;
    }
    const double by_cell = time_of(*checked, gpu, By::cell), by_time = time_of(*checked, gpu, By::time);
    char line[300];
    snprintf(line, sizeof line, "%ld x %ld:%ld x %ld:%ld x %ld%s", long(shape.batch), long(shape.heads_q),
             long(shape.heads_k), long(shape.seqlen_q), long(shape.seqlen_k), long(shape.head_dim),
             shape.causal ? " causal" : "");
    printf("| %s | %s | %.0f | %.0f | %.0f |\n", shape.op, line, by_cell, by_time, by_time - by_cell);
    char row[400];
    snprintf(row, sizeof row,
             "%s\n {\"operator\": \"%s\", \"shape\": \"%s\", \"by_cell_ns\": %.1f, \"by_time_ns\": %.1f}",
             json.size() > 1 ? "," : "", shape.op, line, by_cell, by_time);
    json += row;
  }
  if (count == 3 && !strcmp(arguments[1], "--json")) {
    FILE* const file = fopen(arguments[2], "w");
    if (!file) return 1;
    fprintf(file, "%s\n]\n", json.c_str());
    fclose(file);
  }
  return 0;
}
