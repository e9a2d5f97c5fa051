#include "python/owned_candidate.h"

#include <cstring>
#include <iterator>
#include <sstream>

#include "launch/load.h"

namespace py = pybind11;

namespace aotriton::v2::python {

OwnedCandidate::OwnedCandidate(const py::dict& program, const py::bytes& binary, const py::dict& metadata,
                               const std::map<std::string, int32_t>& tunables)
    : program_(program),
      binary_(binary),
      name_(py::cast<std::string>(metadata["name"])),
      entry_(py::cast<std::string>(metadata["entry"])) {
  const KernelInfo& kernel = program_.kernel();
  candidate_.kernel = &kernel;
  if (binary_.empty()) wrong("the binary is empty");
  if (tunables.size() != kernel.tunables.size())
    wrong(std::string(kernel.name) + " takes " + std::to_string(kernel.tunables.size()) + " tunables");
  for (size_t i = 0; i < kernel.tunables.size(); ++i) {
    const auto found = tunables.find(kernel.tunables[i]);
    if (found == tunables.end() || found->second < 0)
      wrong(std::string("tunable ") + kernel.tunables[i] + " must be given, and not negative");
    candidate_.tunables[i] = found->second;
  }
  const auto arch = py::cast<std::string>(metadata["arch"]);
  candidate_.arch = -1;
  for (int i = 0; i < kArchCount; ++i)
    if (arch == kArchs[i].arch) candidate_.arch = i;
  if (candidate_.arch < 0) wrong("is for an unknown arch, " + arch);
  read_functional(py::cast<std::string>(metadata["functional"]));
  read_descriptors(metadata["descriptors"]);
  Image& image = candidate_.image;
  image.name = name_.c_str();
  image.entry = entry_.c_str();
  image.data = reinterpret_cast<const unsigned char*>(binary_.data());
  image.size = image.unpacked_size = static_cast<uint32_t>(binary_.size());
  image.shared = py::cast<uint32_t>(metadata["shared"]);
  image.global_scratch = py::cast<uint32_t>(metadata["global_scratch"]);
  image.threads = py::cast<uint16_t>(metadata["threads"]);
  if (metadata.contains("level")) image.level = py::cast<uint8_t>(metadata["level"]);
}

OwnedCandidate::~OwnedCandidate() {
  // A failure, on a device whose context is gone for example, leaves nothing to be done about it here.
  static_cast<void>(unload_image(candidate_.image));
}

void OwnedCandidate::wrong(const std::string& what) const { throw py::value_error(name_ + ": " + what); }

// The choices of a functional's text, such as "T=bf16 WIDTH=64". One that is not spelled is at its default.
void OwnedCandidate::read_functional(const std::string& text) {
  const KernelInfo& kernel = program_.kernel();
  std::vector<bool> read(kernel.choices.size());
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    bool known = false;
    for (size_t i = 0; i < kernel.choices.size(); ++i) {
      const ChoiceInfo& choice = kernel.choices[i];
      for (size_t value = 0; value < choice.values.size(); ++value) {
        if (word != std::string(choice.name) + "=" + choice.texts[value]) continue;
        candidate_.values[i] = value;
        read[i] = known = true;
      }
    }
    if (!known) wrong("the functional has an unknown choice, " + word);
  }
  for (size_t i = 0; i < kernel.choices.size(); ++i) {
    if (read[i]) continue;
    if (program_.defaults()[i] < 0) wrong(std::string("the functional does not say ") + kernel.choices[i].name);
    candidate_.values[i] = static_cast<size_t>(program_.defaults()[i]);
  }
}

void OwnedCandidate::read_descriptors(const py::list& rows) {
  if (rows.size() > kMaxDescriptors) wrong("has too many descriptors");
  for (const py::handle item : rows) {
    const py::dict row = py::reinterpret_borrow<py::dict>(item);
    const py::list block = row["block"];
    DescriptorLayout layout = {py::cast<uint8_t>(row["rank"]), py::cast<uint8_t>(row["swizzle"]), {}};
    if (block.size() != layout.rank || block.size() > std::size(layout.block))
      wrong("has a descriptor of a wrong rank");
    for (size_t dim = 0; dim < block.size(); ++dim) layout.block[dim] = py::cast<uint16_t>(block[dim]);
    descriptors_.push_back(layout);
  }
  candidate_.image.descriptors = descriptors_.data();
  candidate_.image.descriptor_count = static_cast<uint16_t>(descriptors_.size());
}

}  // namespace aotriton::v2::python
