// Images: unpacking, damage, descriptors that do not match the host code, and candidates with their scratch memory.
#include <algorithm>
#include <cstring>
#include <vector>

#ifdef AOTRITON_HAVE_ZLIB
#include <zlib.h>
#endif

#include "attn_bwd.operator.h"
#include "attn_fwd.operator.h"
#include "calls.h"
#include "launch/candidate.h"
#include "launch/load.h"
#include "program/registry.h"

using namespace aotriton::v2;
using flash::attn_bwd_operator;
using flash::attn_fwd_operator;

namespace {

constexpr char kBinary[] = "an image that says the same again and again and again and again and again and again";

Error load(Image& image) {
  return on_device("test", {}, [&](const Device& device) {
    void* function = nullptr;
    const Error error = load_image(device, image, {}, &function);
    CHECK_EQ(function != nullptr, error == Error::success);
    return error;
  });
}

// An image for a test, which leaves nothing of it behind.
struct TestImage : Image {
  TestImage(const std::vector<unsigned char>& data, size_t unpacked_size)
      : Image{.name = "test_image",
              .entry = "test",
              .data = data.data(),
              .size = static_cast<uint32_t>(data.size()),
              .unpacked_size = static_cast<uint32_t>(unpacked_size),
              .shared = 0,
              .global_scratch = 0,
              .threads = 128,
              .descriptor_count = 0,
              .descriptors = nullptr} {}
  ~TestImage() { CHECK_EQ(unload_image(*this), Error::success); }
};

const std::vector<unsigned char> kPlain(kBinary, kBinary + sizeof kBinary);

const KernelInfo& kernel_of(const OperatorInfo& info, const std::string& name) {
  for (const BackendInfo& backend : info.backends)
    for (const KernelInfo* kernel : backend.kernels)
      if (kernel->name == name) return *kernel;
  throw std::out_of_range(name);
}

// Small tiles of pointers, for bf16 of head dim 64, not causal, general addressing.
struct Small : Candidate {
  Small(const OperatorInfo& info, const char* name) {
    kernel = &kernel_of(info, name);
    for (size_t i = 0; i < kernel->choices.size(); ++i)
      choose(kernel->choices[i].name, wanted(kernel->choices[i].name));
    tunables[0] = 16;
    tunables[1] = 32;
    image.name = "candidate";
    image.entry = name;
    image.data = kPlain.data();
    image.size = image.unpacked_size = sizeof kBinary;
    image.threads = 64;
  }
  ~Small() { CHECK_EQ(unload_image(image), Error::success); }

  static std::string wanted(const std::string& choice) {
    return choice == "T" ? "bf16" : choice == "BLOCK_DMODEL" ? "64" : choice == "CAUSAL" ? "False" : "general";
  }
  void choose(const std::string& choice, const std::string& text) {
    for (size_t i = 0; i < kernel->choices.size(); ++i)
      for (size_t value = 0; value < kernel->choices[i].texts.size(); ++value)
        if (kernel->choices[i].name == choice && kernel->choices[i].texts[value] == text) values[i] = value;
  }
  void take_descriptors(uint16_t count) {
    static constexpr DescriptorLayout kTile = {4, 3, {1, 1, 16, 64}};
    static constexpr DescriptorLayout kTiles[] = {kTile, kTile, kTile, kTile, kTile, kTile};
    image.descriptor_count = count;
    image.descriptors = kTiles;
  }
  // Of the Hopper forward, whose first and last tensors have packed heads.
  void take_packed_descriptors() {
    static constexpr DescriptorLayout kRows = {5, 3, {1, 1, 64, 1, 64}}, kTile = {4, 3, {1, 1, 16, 64}};
    static constexpr DescriptorLayout kTiles[] = {kRows, kTile, kTile, kRows};
    image.descriptor_count = 4;
    image.descriptors = kTiles;
  }
};

Call call_of(const attn_fwd_params& p) {
  using namespace flash::attn_fwd_call;
  Call call(attn_fwd_operator);
  std::fill_n(call.sizes, call.info->sizes.size(), 0);
  for (size_t slot = 0; slot < call.info->slots(); ++slot) call.views[slot] = View::none();
  call.views[q] = View::of(p.q), call.views[k] = View::of(p.k), call.views[v] = View::of(p.v);
  call.views[out] = View::of(p.out), call.views[logsumexp] = View::of(p.logsumexp);
  call.set_real(sm_scale, p.sm_scale);
  for (size_t scalar = sm_scale + 1; scalar < call.info->scalars.size(); ++scalar) call.set_whole(scalar, 0);
  call.set_whole(causal, p.causal);
  call.set_whole(longest_q, p.q.sizes[2]), call.set_whole(longest_k, p.k.sizes[2]);
  call.set_whole(packed_sequences, 1);
  return call;
}

Error run_fwd(Candidate& candidate, const attn_fwd_params& p) {
  Call call = call_of(p);
  return run(candidate, call, {});
}

// A call with those operands of attn_bwd that `slots` names; delta is a workspace tensor.
Call call_of(const attn_bwd_params& p, const Tensor<3>& delta, std::initializer_list<size_t> slots) {
  using namespace flash::attn_bwd_call;
  const View all[] = {View::of(p.q),         View::of(p.k),  View::of(p.v),  View::of(p.out), View::of(p.dout),
                      View::of(p.logsumexp), View::of(p.dq), View::of(p.dk), View::of(p.dv),  View::of(delta)};
  Call call(attn_bwd_operator);
  std::fill_n(call.sizes, call.info->sizes.size(), 0);
  for (size_t slot = 0; slot < attn_bwd_operator.slots(); ++slot) call.views[slot] = View::none();
  for (const size_t slot : slots) call.views[slot] = slot < attn_bwd_operator.operands.size() ? all[slot] : all[9];
  call.set_real(sm_scale, p.sm_scale);
  for (size_t scalar = sm_scale + 1; scalar < call.info->scalars.size(); ++scalar) call.set_whole(scalar, 0);
  call.set_whole(longest_q, p.q.sizes[2]), call.set_whole(longest_k, p.k.sizes[2]);
  call.set_whole(packed_sequences, 1);
  return call;
}

}  // namespace

TEST("an image that is stored plainly is loaded as it is") {
  Recording& recording = start("cuda");
  TestImage image(kPlain, sizeof kBinary);
  CHECK_EQ(load(image), Error::success);
  CHECK_EQ(recording.loads.at(0).head, "an image that sa");
}

#ifdef AOTRITON_HAVE_ZLIB

TEST("a compressed image is unpacked before it is loaded; any damage to it is damaged_image") {
  std::vector<unsigned char> packed(1000);
  uLongf size = packed.size();
  CHECK_EQ(compress(packed.data(), &size, reinterpret_cast<const Bytef*>(kBinary), sizeof kBinary), Z_OK);
  packed.resize(size);
  Recording& recording = start("cuda");
  TestImage whole(packed, sizeof kBinary);
  CHECK_EQ(load(whole), Error::success);
  CHECK_EQ(recording.loads.at(0).head, "an image that sa");

  std::vector<unsigned char> flipped = packed, cut = packed;
  flipped[flipped.size() / 2] ^= 1;
  cut.pop_back();
  TestImage damaged[] = {
      {flipped, sizeof kBinary}, {cut, sizeof kBinary}, {packed, sizeof kBinary + 1}, {packed, sizeof kBinary - 1}};
  for (Image& image : damaged) {
    CHECK_EQ(load(image), Error::damaged_image);
    CHECK_CONTAINS(last_error_message(), "test_image: the embedded image does not unpack");
    // It is not unpacked again at each call: that it is damaged is remembered.
    image.data = packed.data(), image.size = static_cast<uint32_t>(packed.size()), image.unpacked_size = sizeof kBinary;
    CHECK_EQ(load(image), Error::damaged_image);
  }
  CHECK_EQ(recording.loads.size(), 1u);
}

TEST("an image that is stored as its difference from another one is loaded whole; damage to either is damaged_image") {
  std::string other(kBinary, sizeof kBinary), difference(sizeof kBinary, 0);
  other[3] = '!', other[40] ^= 0x55;
  for (size_t i = 0; i < sizeof kBinary; ++i) difference[i] = static_cast<char>(other[i] ^ kBinary[i]);
  const auto packed = [](const char* data) {
    std::vector<unsigned char> made(1000);
    uLongf size = made.size();
    CHECK_EQ(compress(made.data(), &size, reinterpret_cast<const Bytef*>(data), sizeof kBinary), Z_OK);
    made.resize(size);
    return made;
  };
  std::vector<unsigned char> whole = packed(kBinary), changed = packed(difference.data());
  Recording& recording = start("cuda");
  {
    TestImage base(whole, sizeof kBinary), image(changed, sizeof kBinary);
    image.base = &base;
    CHECK_EQ(load(image), Error::success);
    CHECK_EQ(load(base), Error::success);
    CHECK_EQ(recording.loads.at(0).head, "an !mage that sa");
    CHECK_EQ(recording.loads.at(1).head, "an image that sa");
  }
  const auto damaged = [&](std::vector<unsigned char> of_base, std::vector<unsigned char> of_image, size_t size) {
    TestImage base(of_base, size), image(of_image, sizeof kBinary);
    image.base = &base;
    CHECK_EQ(load(image), Error::damaged_image);
    CHECK_CONTAINS(last_error_message(), "test_image: the embedded image does not unpack");
  };
  std::vector<unsigned char> flipped = whole, cut = changed;
  flipped[flipped.size() / 2] ^= 1;
  cut.pop_back();
  damaged(flipped, changed, sizeof kBinary);
  damaged(whole, cut, sizeof kBinary);
  damaged(whole, changed, sizeof kBinary - 1);
  CHECK_EQ(recording.loads.size(), 2u);
}

#else

TEST("a compressed image in a library without zlib is damaged_image and says why") {
  start("cuda");
  TestImage image(kPlain, sizeof kBinary + 100);
  CHECK_EQ(load(image), Error::damaged_image);
  CHECK_CONTAINS(last_error_message(), "has no zlib");
}

#endif

TEST("the images of this build are unpacked to what the packer was given, stored in either way") {
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    CHECK_EQ(aotriton_preload(nullptr), AOTRITON_SUCCESS);
    for (const RecordedLoad& one : recording.loads)
      CHECK_EQ(one.head.find_first_not_of("0123456789abcdef"), std::string::npos);
    CHECK_EQ(attn_fwd(fwd_call(), {}), Error::success);
    Explanation explanation;
    const char* const arch = vendor[0] == 'c' ? "sm_90" : "gfx942";
    CHECK_EQ(explain(fwd_call(), arch, 0, &explanation), Error::success);
    CHECK_EQ(image_of(recording.launches.at(0), arch), explanation.kernels[0].image);
  }
}

TEST("unload_image unloads from every device, and the next use loads again") {
  Recording& recording = start("cuda");
  TestImage image(kPlain, sizeof kBinary);
  void* const other = pointer(0xC8);
  add_context(recording, other);
  CHECK_EQ(load(image), Error::success);
  set_current_context(other);
  CHECK_EQ(load(image), Error::success);
  CHECK_EQ(recording.modules, 2);
  CHECK_EQ(unload_image(image), Error::success);
  CHECK_EQ(recording.modules, 0);
  CHECK_EQ(current_context(), other);
  CHECK_EQ(load(image), Error::success);
  CHECK_EQ(recording.modules, 1);
}

TEST("a candidate is launched with the arguments and the grid of dispatch and its own tunables") {
  Recording& recording = start("cuda");
  Small candidate(attn_fwd_operator, "attn_fwd");
  const attn_fwd_params p = fwd_call();
  CHECK_EQ(run_fwd(candidate, p), Error::success);
  const RecordedLaunch& launch = recording.launches.at(0);
  check_shape(launch, 7 * 4 * 2, 64, 0);  // 100 rows in tiles of 16
  CHECK_EQ(launch.head, "an image that sa");
  CHECK_EQ(launch.argument<void*>(0), p.q.data);
  CHECK_EQ(launch.arguments.size(), 5u + 2 + 12 + 5 + 2);
}

TEST("a candidate of another backend is launched, whatever the tables say") {
  Recording& recording = start("cuda");
  Small candidate(attn_fwd_operator, "attn_fwd_hopper");
  candidate.tunables[0] = 16, candidate.tunables[1] = 2;  // BLOCK_N and CONSUMERS
  candidate.take_packed_descriptors();
  attn_fwd_params p = fwd_call();
  CHECK_EQ(run_fwd(candidate, p), Error::success);
  check_shape(recording.launches.at(0), 2 * 2 * 2, 64, 0);  // 200 rows of 2 heads in tiles of 128
  CHECK_EQ(recording.launches.at(0).arguments.size(), 2u * (1 + 5 + 5) + 2u * (1 + 4 + 4) + 1 + 2 + 7 + 2);

  p.k.strides[0] = 0;  // a broadcast, which no descriptor reaches
  CHECK_EQ(run_fwd(candidate, p), Error::invalid_argument);
  CHECK_CONTAINS(last_error_message(), "candidate: has ADDRESSING=descriptor, the call has 0");
}

TEST("the three backward kernels take candidates, each with its own tensors and no others") {
  using namespace flash::attn_bwd_call;
  Recording& recording = start("cuda");
  const attn_bwd_params p = bwd_call();
  const Tensor<3> sums = rows(address_of(10), 2, 4, 100);
  Small preprocess(attn_bwd_operator, "attn_bwd_preprocess"), dk_dv(attn_bwd_operator, "attn_bwd_dk_dv"),
      dq_kernel(attn_bwd_operator, "attn_bwd_dq");
  const size_t delta = attn_bwd_operator.operands.size();
  Call first = call_of(p, sums, {out, dout, delta});
  Call second = call_of(p, sums, {q, k, v, dout, logsumexp, dk, dv, delta});
  Call third = call_of(p, sums, {q, k, v, dout, logsumexp, dq, delta});
  CHECK_EQ(run(preprocess, first, {}), Error::success);
  CHECK_EQ(run(dk_dv, second, {}), Error::success);
  CHECK_EQ(run(dq_kernel, third, {}), Error::success);
  check_shape(recording.launches.at(0), 7 * 4 * 2, 64, 0);
  check_shape(recording.launches.at(1), 3 * 2 * 2, 64, 0);
  check_shape(recording.launches.at(2), 7 * 4 * 2, 64, 0);
  CHECK_EQ(recording.launches.at(0).argument<void*>(2), sums.data);
  CHECK_EQ(recording.launches.at(1).argument<void*>(4), p.dk.data);
  CHECK_EQ(recording.launches.at(2).argument<void*>(4), p.dq.data);

  Call lacking = call_of(p, sums, {q, k, v, dout, logsumexp, dq});
  CHECK_EQ(run(dq_kernel, lacking, {}), Error::null_pointer);
  CHECK_CONTAINS(last_error_message(), "candidate: delta is not given");
}

TEST("a candidate that does not fit the call is invalid_argument, naming what differs") {
  struct Case {
    void (*spoil)(Small&, attn_fwd_params&);
    const char* message;
  };
  const Case cases[] = {
      {[](auto& c, auto&) { c.arch = 1; }, "candidate: is for gfx942, the device is sm_90"},
      {[](auto& c, auto&) { c.choose("T", "fp16"); }, "candidate: has T=fp16, the call has 2"},
      {[](auto& c, auto&) { c.choose("BLOCK_DMODEL", "32"); }, "candidate: has BLOCK_DMODEL=32, the call has 64"},
      {[](auto& c, auto&) { c.choose("CAUSAL", "True"); }, "candidate: has CAUSAL=True, the call has 0"},
      {[](auto& c, auto& p) {
         c.choose("ADDRESSING", "descriptor");
         p.q.data = pointer(0x10008);
       },
       "candidate: has ADDRESSING=descriptor, the call has 0"},
  };
  for (const auto& [spoil, message] : cases) {
    Recording& recording = start("cuda");
    Small candidate(attn_fwd_operator, "attn_fwd");
    attn_fwd_params p = fwd_call();
    spoil(candidate, p);
    CHECK_EQ(run_fwd(candidate, p), Error::invalid_argument);
    CHECK_CONTAINS(last_error_message(), message);
    CHECK(recording.launches.empty());
  }
}

TEST("a candidate for wider tensors than the call's, or for any strides, may run") {
  Recording& recording = start("cuda");
  Small candidate(attn_fwd_operator, "attn_fwd");
  candidate.choose("BLOCK_DMODEL", "256");
  CHECK_EQ(run_fwd(candidate, fwd_call()), Error::success);
  CHECK_EQ(recording.launches.size(), 1u);
}

TEST("a candidate's workspace is its scratch memory, and no launch is without") {
  Recording& recording = start("cuda");
  Small scratch(attn_fwd_operator, "attn_fwd"), none(attn_fwd_operator, "attn_fwd");
  scratch.image.global_scratch = 512;
  const attn_fwd_params p = fwd_call();
  Call call = call_of(p);
  size_t bytes = 1;
  CHECK_EQ(workspace_size(none, call, {}, &bytes), Error::success);
  CHECK_EQ(bytes, 0u);
  CHECK_EQ(workspace_size(scratch, call, {}, &bytes), Error::success);
  CHECK_EQ(bytes, 7u * 4 * 2 * 512);  // for each program
  CHECK_EQ(run(scratch, call, {}), Error::workspace_too_small);
  CHECK_CONTAINS(last_error_message(), "attn_fwd: workspace is null, 28672 bytes are needed");
  call.workspace = pointer(address_of(10));
  call.workspace_size = bytes - 1;
  CHECK_EQ(run(scratch, call, {}), Error::workspace_too_small);
  CHECK(recording.launches.empty());
  call.workspace_size = bytes;
  CHECK_EQ(run(scratch, call, {}), Error::success);
  const RecordedLaunch& launch = recording.launches.at(0);
  CHECK_EQ(launch.argument<void*>(launch.arguments.size() - 2), call.workspace);
  CHECK_EQ(launch.argument<void*>(launch.arguments.size() - 1), nullptr);
}

TEST("an image that has other descriptors than the host code passes is not launched") {
  Recording& recording = start("cuda");
  for (const uint16_t count : {3, 5}) {
    Small wrong(attn_fwd_operator, "attn_fwd");
    wrong.choose("ADDRESSING", "descriptor");
    wrong.take_descriptors(count);
    CHECK_EQ(run_fwd(wrong, fwd_call()), Error::damaged_image);
    CHECK_CONTAINS(last_error_message(), "candidate: ");
  }
  CHECK(recording.launches.empty());
}

TEST("descriptors on a driver without them are not_supported") {
  Recording& recording = start("hip");
  Small candidate(attn_fwd_operator, "attn_fwd");
  candidate.arch = 1;
  candidate.take_descriptors(4);
  CHECK_EQ(run_fwd(candidate, fwd_call()), Error::not_supported);
  CHECK_CONTAINS(last_error_message(), "candidate: HIP has no tensor descriptors");
  CHECK(recording.launches.empty());
}
