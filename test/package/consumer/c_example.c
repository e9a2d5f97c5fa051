/* The C interface from C99: what needs no GPU, and what is said where there is none. Exits with 0 where all is as it
 * should be. */
#include <aotriton/c.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

static void check(int holds, const char* what) {
  if (holds) return;
  ++failures;
  printf("not true: %s; last error: %s\n", what, aotriton_last_error_message());
}
#define CHECK(condition) check(condition, #condition)

static aotriton_tensor4 tensor(int64_t heads) {
  const aotriton_tensor4 made = {NULL, AOTRITON_BFLOAT16, {2, heads, 1024, 64}, {heads * 65536, 65536, 64, 1}};
  return made;
}

/* Neither has a device, or none is current: this program selects none. */
static int without_device(aotriton_error error) { return error == AOTRITON_NO_DRIVER || error == AOTRITON_NO_CONTEXT; }

static aotriton_attn_bwd_params backward(void) {
  aotriton_attn_bwd_params params = {.size = sizeof params};
  const aotriton_tensor3 rows = {NULL, AOTRITON_FLOAT32, {2, 16, 1024}, {16384, 1024, 1}};
  params.q = params.out = params.dout = params.dq = tensor(16);
  params.k = params.v = params.dk = params.dv = tensor(4);
  params.logsumexp = rows;
  params.causal = 1;
  return params;
}

int main(void) {
  aotriton_attn_bwd_params params = backward();
  aotriton_kernel_choice kernels[8] = {{.size = sizeof kernels[0]}};
  aotriton_prepared* prepared = NULL;
  size_t count = 8, bytes = 1;

  CHECK(strchr(aotriton_version(), '.') != NULL);
  CHECK(strcmp(aotriton_error_name(AOTRITON_WORKSPACE_TOO_SMALL), "workspace_too_small") == 0);

  CHECK(aotriton_explain_attn_bwd(&params, "gfx942", 0, kernels, &count) == AOTRITON_SUCCESS);
  CHECK(count == 3);
  CHECK(strcmp(kernels[0].kernel, "attn_bwd_preprocess") == 0);
  CHECK(strcmp(kernels[2].arch, "gfx942") == 0);
  CHECK(strcmp(kernels[2].backend, "portable") == 0);
  CHECK(strstr(kernels[2].functional, "CAUSAL=True") != NULL);
  CHECK(kernels[2].keys[0].value == 1024 && kernels[2].keys[0].representative >= 1024);

  count = 1;
  CHECK(aotriton_explain_attn_bwd(&params, "gfx942", 0, kernels, &count) == AOTRITON_INVALID_ARGUMENT);
  CHECK(strcmp(aotriton_last_error_message(), "explain: room for 1 kernels, 3 are needed") == 0);

  CHECK(without_device(aotriton_attn_bwd_workspace_size(&params, NULL, &bytes)));
  CHECK(bytes == 0);
  CHECK(!aotriton_attn_bwd_supported(&params, NULL));
  CHECK(without_device(aotriton_preload(NULL)));

  CHECK(aotriton_attn_bwd(&params, NULL) == AOTRITON_NULL_POINTER);
  CHECK(strcmp(aotriton_last_error_message(), "attn_bwd: q has no data") == 0);
  CHECK(aotriton_attn_bwd_prepare(&params, NULL, &prepared) == AOTRITON_NULL_POINTER);
  CHECK(prepared == NULL);
  CHECK(aotriton_launch(prepared, NULL, 0, NULL) == AOTRITON_NULL_POINTER);
  aotriton_destroy(prepared);

  aotriton_hints hints = {.size = sizeof hints};
  CHECK(aotriton_parse_hints("deterministic workspace_limit=1", &hints) == AOTRITON_SUCCESS);
  params.hints = &hints;
  count = 8;
  CHECK(aotriton_explain_attn_bwd(&params, "gfx942", 0, kernels, &count) == AOTRITON_SUCCESS);
  CHECK(kernels[0].hint_count == 2);
  CHECK(strcmp(kernels[0].hints[0].name, "workspace_limit") == 0 && !kernels[0].hints[0].honoured);
  CHECK(strcmp(kernels[0].hints[1].name, "deterministic") == 0 && kernels[0].hints[1].honoured);
  CHECK(aotriton_parse_hints("schedule=up", &hints) == AOTRITON_INVALID_ARGUMENT);

  params.features.block_table.data = &params;
  CHECK(aotriton_attn_bwd(&params, NULL) == AOTRITON_NOT_SUPPORTED);
  CHECK(strcmp(aotriton_last_error_message(), "attn_bwd: no kernel has block_table yet; served without it") == 0);
  return failures != 0;
}
