#include "torch/append.h"

#include <type_traits>

#include "torch/hints.h"
#include "torch/reference.h"

namespace aotriton_torch {

void kv_append(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache, const Tensor& seqused_k,
               const Maybe& q, const Maybe& rotary_cos, const Maybe& rotary_sin, const Maybe& cu_seqlens_k,
               const Maybe& block_table, const Maybe& k_descale, const Maybe& v_descale, bool rotary_interleaved,
               const std::string& hints) {
  aotriton_kv_append_params params = {};
  params.size = sizeof params;
  const auto as_it_is = [&](const char* name, const Tensor& tensor, auto& view) {
    require_rank("kv_append", name, tensor, std::size(view.sizes));
    require_one_device("kv_append", {{"k", k}, {name, tensor}});
    view = given_view_of<std::remove_reference_t<decltype(view)>>(tensor);
  };
  std::vector<Tensor> copies;  // which live until the call is made
  const auto read = [&](const char* name, const Tensor& tensor, auto& view) {
    as_it_is(name, tensor, view);
    if (tensor.stride(-1) == 1) return;
    copies.push_back(with_contiguous_rows(tensor));
    view = given_view_of<std::remove_reference_t<decltype(view)>>(copies.back());
  };
  read("k", k, params.k);
  read("v", v, params.v);
  as_it_is("k_cache", k_cache, params.k_cache);
  as_it_is("v_cache", v_cache, params.v_cache);
  read("seqused_k", seqused_k, params.seqused_k);
  if (q) as_it_is("q", *q, params.q);
  if (rotary_cos) read("rotary_cos", *rotary_cos, params.rotary_cos);
  if (rotary_sin) read("rotary_sin", *rotary_sin, params.rotary_sin);
  if (cu_seqlens_k) read("cu_seqlens_k", *cu_seqlens_k, params.cu_seqlens_k);
  if (block_table) read("block_table", *block_table, params.block_table);
  if (k_descale) as_it_is("k_descale", *k_descale, params.k_descale);
  if (v_descale) as_it_is("v_descale", *v_descale, params.v_descale);
  params.rotary_interleaved = rotary_interleaved;
  const Hints told("kv_append", hints);
  params.hints = told.get();
  if (k.is_cuda()) {
    raise_if(run(params, k, aotriton_kv_append));
  } else {
    raise_if(check_as_on_gpu(params, aotriton_explain_kv_append));
    reference(params);
  }
}

}  // namespace aotriton_torch
