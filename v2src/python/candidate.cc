#include "python/candidate.h"

#include <iterator>
#include <sstream>

#include "load.h"
#include "lut.h"

namespace py = pybind11;

namespace aotriton::v2::python {

namespace {

[[noreturn]] void wrong(const std::string& name, const std::string& what) { throw py::value_error(name + ": " + what); }

// The choices of a functional's text, such as "T=bf16 BLOCK_DMODEL=64 CAUSAL=False ADDRESSING=general".
void read_functional(const std::string& name, const std::string& text, flash::Candidate* candidate) {
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string choice = word.substr(0, equals), value = equals < word.size() ? word.substr(equals + 1) : "";
    if (choice == "T" && value == "fp16")
      candidate->T = DType::float16;
    else if (choice == "T" && value == "bf16")
      candidate->T = DType::bfloat16;
    else if (choice == "BLOCK_DMODEL" && !value.empty() && value.find_first_not_of("0123456789") == std::string::npos)
      candidate->BLOCK_DMODEL = std::stoi(value);
    else if (choice == "CAUSAL" && (value == "True" || value == "False"))
      candidate->CAUSAL = value == "True";
    else if (choice == "ADDRESSING" && value == "general")
      candidate->ADDRESSING = Addressing::general;
    else if (choice == "ADDRESSING" && value == "offset32")
      candidate->ADDRESSING = Addressing::offset32;
    else if (choice == "ADDRESSING" && value == "descriptor")
      candidate->ADDRESSING = Addressing::descriptor;
    else
      wrong(name, "the functional has an unknown choice, " + word);
  }
}

void read_descriptors(const std::string& name, const py::list& rows, Image* image) {
  if (rows.size() > kMaxDescriptors) wrong(name, "has too many descriptors");
  image->descriptor_count = static_cast<uint16_t>(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const py::dict row = rows[i];
    const py::list block = row["block"];
    DescriptorLayout& layout = image->descriptors[i];
    layout.rank = py::cast<uint8_t>(row["rank"]);
    layout.swizzle = py::cast<uint8_t>(row["swizzle"]);
    if (block.size() != layout.rank || block.size() > std::size(layout.block))
      wrong(name, "has a descriptor of a wrong rank");
    for (size_t dim = 0; dim < block.size(); ++dim) layout.block[dim] = py::cast<uint16_t>(block[dim]);
  }
}

}  // namespace

Candidate::Candidate(const std::string& kernel, const py::bytes& binary, const py::dict& metadata,
                     const std::map<std::string, int32_t>& psels)
    : kernel_(kernel),
      binary_(binary),
      name_(py::cast<std::string>(metadata["name"])),
      entry_(py::cast<std::string>(metadata["entry"])),
      arch_(py::cast<std::string>(metadata["arch"])) {
  const KernelInfo* info = flash::find_kernel(kernel.c_str());
  if (!info) wrong(name_, "there is no kernel " + kernel);
  if (binary_.empty()) wrong(name_, "the binary is empty");
  if (psels.size() != info->psels.size())
    wrong(name_, kernel + " takes " + std::to_string(info->psels.size()) + " psels");
  for (size_t i = 0; i < info->psels.size(); ++i) {
    const auto found = psels.find(info->psels[i]);
    if (found == psels.end() || found->second < 0)
      wrong(name_, std::string("psel ") + info->psels[i] + " must be given, and not negative");
    candidate_.psels[i] = found->second;
  }
  candidate_.kernel = kernel_.c_str();
  candidate_.arch = arch_.c_str();
  read_functional(name_, py::cast<std::string>(metadata["functional"]), &candidate_);
  Image& image = candidate_.image;
  image.name = name_.c_str();
  image.entry = entry_.c_str();
  image.data = reinterpret_cast<const unsigned char*>(binary_.data());
  image.size = image.unpacked_size = static_cast<uint32_t>(binary_.size());
  image.shared = py::cast<uint32_t>(metadata["shared"]);
  image.global_scratch = py::cast<uint32_t>(metadata["global_scratch"]);
  image.threads = py::cast<uint16_t>(metadata["threads"]);
  read_descriptors(name_, metadata["descriptors"], &image);
}

Candidate::~Candidate() {
  // A failure, on a device whose context is gone for example, leaves nothing to be done about it here.
  static_cast<void>(unload_image(candidate_.image));
}

}  // namespace aotriton::v2::python
