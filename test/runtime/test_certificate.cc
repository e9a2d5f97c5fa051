// Certificates: which one of an image an explanation has. Those of the made-up build are in test/fake_build.py.
#include <string>

#include "calls.h"
#include "program/image.h"

using namespace aotriton::v2;

namespace {

KernelChoice explained(const char* device) {
  Explanation made = {};
  CHECK_EQ(explain(fwd_call(), device, 0, &made), Error::success);
  return made.kernels[0];
}

}  // namespace

TEST("an explanation has the certificate of the product's own checks, or else of another product's") {
  const KernelChoice choice = explained("NVIDIA H200");
  CHECK_EQ(choice.certificate_product, std::string("NVIDIA H200"));
  CHECK_EQ(choice.certificate_day, 20261124);
  CHECK_EQ(choice.certificate_problems, 12);
  CHECK_EQ(choice.certificate_checks, 20);
  CHECK_EQ(choice.certificate_error, 0.0021f);
  CHECK_EQ(choice.certificate_allowed, 0.0047f);
}

TEST("an image that nobody ran was compiled only") {
  const KernelChoice choice = explained("gfx942");
  CHECK_EQ(choice.certificate_product, std::string(""));
  CHECK_EQ(choice.certificate_problems, 0);
  CHECK_EQ(choice.certificate_day, 0);
}

TEST("of several certificates the product's own counts, and where it has none that of the most problems") {
  static constexpr Certificate kOwn[] = {{0, 3, 9, 20260101, 0.1f, 0.2f}, {2, 7, 7, 20260102, 0.3f, 0.4f}};
  Image image = {};
  CHECK(!certificate_of(image, 0));
  image.certificates = kOwn;
  CHECK_EQ(certificate_of(image, 0), &kOwn[0]);
  CHECK_EQ(certificate_of(image, 2), &kOwn[1]);
  CHECK_EQ(certificate_of(image, 1), &kOwn[1]);
}
