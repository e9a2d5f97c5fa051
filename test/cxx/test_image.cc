// Images: unpacking, damage, scratch memory, and descriptors that do not match the host code.
#include <cstring>
#include <vector>

#ifdef AOTRITON_HAVE_ZLIB
#include <zlib.h>
#endif

#include "calls.h"
#include "flash/candidate.h"
#include "load.h"

using namespace aotriton::v2;

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

Image image_of(const std::vector<unsigned char>& data, uint32_t unpacked_size) {
  return {.name = "test_image",
          .entry = "test",
          .data = data.data(),
          .size = static_cast<uint32_t>(data.size()),
          .unpacked_size = unpacked_size,
          .shared = 0,
          .global_scratch = 0,
          .threads = 128,
          .descriptor_count = 0,
          .descriptors = {}};
}

// A candidate with pointer arguments and small tiles.
struct Small : flash::Candidate {
  explicit Small(const char* name) {
    kernel = name;
    arch = "sm_90";
    T = DType::bfloat16;
    BLOCK_DMODEL = 64;
    psels[0] = 16;
    psels[1] = 32;
    image.name = "candidate";
    image.entry = name;
    image.data = reinterpret_cast<const unsigned char*>(kBinary);
    image.size = image.unpacked_size = sizeof kBinary;
    image.threads = 64;
  }

  void take_descriptors(uint16_t count) {
    image.descriptor_count = count;
    for (DescriptorLayout& layout : image.descriptors) layout = {4, 3, {1, 1, 16, 64}};
  }
};

}  // namespace

TEST("an image that is stored plainly is loaded as it is") {
  Recording& recording = start("cuda");
  const std::vector<unsigned char> data(kBinary, kBinary + sizeof kBinary);
  Image image = image_of(data, sizeof kBinary);
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
  Image whole = image_of(packed, sizeof kBinary);
  CHECK_EQ(load(whole), Error::success);
  CHECK_EQ(recording.loads.at(0).head, "an image that sa");

  std::vector<unsigned char> flipped = packed, cut = packed;
  flipped[flipped.size() / 2] ^= 1;
  cut.pop_back();
  Image damaged[] = {image_of(flipped, sizeof kBinary), image_of(cut, sizeof kBinary),
                     image_of(packed, sizeof kBinary + 1), image_of(packed, sizeof kBinary - 1)};
  for (Image& image : damaged) {
    CHECK_EQ(load(image), Error::damaged_image);
    CHECK_CONTAINS(last_error_message(), "test_image: the embedded image does not unpack");
  }
  CHECK_EQ(recording.loads.size(), 1u);
}

#else

TEST("a compressed image in a library without zlib is damaged_image and says why") {
  start("cuda");
  const std::vector<unsigned char> data(kBinary, kBinary + sizeof kBinary);
  Image image = image_of(data, sizeof kBinary + 100);
  CHECK_EQ(load(image), Error::damaged_image);
  CHECK_CONTAINS(last_error_message(), "has no zlib");
}

#endif

TEST("unload_image unloads from every device, and the next use loads again") {
  Recording& recording = start("cuda");
  const std::vector<unsigned char> data(kBinary, kBinary + sizeof kBinary);
  Image image = image_of(data, sizeof kBinary);
  void* const other = pointer(0xC8);
  recording.devices[other] = {"sm_90", 132};
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

TEST("a candidate is launched with the arguments and the grid of dispatch and its own psels") {
  Recording& recording = start("cuda");
  Small c("attn_fwd");
  const attn_fwd_params p = fwd_call();
  CHECK_EQ(flash::launch_attn_fwd(c, p, {}), Error::success);
  const RecordedLaunch& launch = recording.launches.at(0);
  check_shape(launch, 7, 4, 2, 64, 0);  // 100 rows in tiles of 16
  CHECK_EQ(launch.head, "an image that sa");
  CHECK_EQ(launch.argument<void*>(0), p.q.data);
  CHECK_EQ(launch.arguments.size(), 5u + 2 + 12 + 5 + 2);
}

TEST("the three backward kernels take candidates, each with its own tensors") {
  Recording& recording = start("cuda");
  const attn_bwd_params p = bwd_call();
  const Tensor<3> delta = rows(0xA0000, 2, 4, 100);
  Small preprocess("attn_bwd_preprocess");
  Small dk_dv("attn_bwd_dk_dv");
  Small dq("attn_bwd_dq");
  CHECK_EQ(flash::launch_attn_bwd_preprocess(preprocess, p.out, p.dout, delta, {}), Error::success);
  CHECK_EQ(flash::launch_attn_bwd_dk_dv(dk_dv, p.q, p.k, p.v, p.dout, p.logsumexp, delta, p.dk, p.dv, 1, false, {}),
           Error::success);
  CHECK_EQ(flash::launch_attn_bwd_dq(dq, p.q, p.k, p.v, p.dout, p.logsumexp, delta, p.dq, 1, false, {}),
           Error::success);
  check_shape(recording.launches.at(0), 7, 4, 2, 64, 0);
  check_shape(recording.launches.at(1), 3, 2, 2, 64, 0);
  check_shape(recording.launches.at(2), 7, 4, 2, 64, 0);
  CHECK_EQ(recording.launches.at(1).argument<void*>(4), p.dk.data);
  CHECK_EQ(recording.launches.at(2).argument<void*>(4), p.dq.data);
}

TEST("a candidate that does not fit the call is invalid_argument, naming what differs") {
  struct Case {
    void (*spoil)(flash::Candidate&, attn_fwd_params&);
    const char* message;
  };
  const Case cases[] = {
      {[](auto& c, auto&) { c.kernel = "attn_bwd_dq"; }, "candidate: is an image of attn_bwd_dq, not of attn_fwd"},
      {[](auto& c, auto&) { c.arch = "gfx942"; }, "candidate: is for gfx942, the device is sm_90"},
      {[](auto& c, auto&) { c.T = DType::float16; }, "candidate: is for float16, the tensors are bfloat16"},
      {[](auto& c, auto&) { c.BLOCK_DMODEL = 32; }, "candidate: is for head dims up to 32, the tensors have 64"},
      {[](auto& c, auto&) { c.CAUSAL = true; }, "candidate: has CAUSAL=True, the call has not"},
      {[](auto& c, auto& p) {
         c.ADDRESSING = Addressing::descriptor;
         p.q.data = pointer(0x10008);
       },
       "candidate: has ADDRESSING=descriptor, the tensors' layout allows general"},
  };
  for (const auto& [spoil, message] : cases) {
    Recording& recording = start("cuda");
    Small c("attn_fwd");
    attn_fwd_params p = fwd_call();
    spoil(c, p);
    CHECK_EQ(flash::launch_attn_fwd(c, p, {}), Error::invalid_argument);
    CHECK_CONTAINS(last_error_message(), message);
    CHECK(recording.launches.empty());
  }
}

TEST("an image that needs scratch memory, or has other descriptors than the host code passes, is not launched") {
  Recording& recording = start("cuda");
  Small scratch("attn_fwd");
  scratch.image.global_scratch = 512;
  CHECK_EQ(flash::launch_attn_fwd(scratch, fwd_call(), {}), Error::not_supported);
  CHECK_CONTAINS(last_error_message(), "candidate: needs scratch memory");
  for (const uint16_t count : {3, 5}) {
    Small wrong("attn_fwd");
    wrong.ADDRESSING = Addressing::descriptor;
    wrong.take_descriptors(count);
    CHECK_EQ(flash::launch_attn_fwd(wrong, fwd_call(), {}), Error::damaged_image);
    CHECK_CONTAINS(last_error_message(), "candidate: ");
  }
  CHECK(recording.launches.empty());
}

TEST("descriptors on a driver without them are not_supported") {
  Recording& recording = start("hip");
  Small c("attn_fwd");
  c.arch = "gfx942";
  c.take_descriptors(4);
  CHECK_EQ(flash::launch_attn_fwd(c, fwd_call(), {}), Error::not_supported);
  CHECK_CONTAINS(last_error_message(), "candidate: HIP has no tensor descriptors");
  CHECK(recording.launches.empty());
}
