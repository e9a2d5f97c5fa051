"""Backward for Hopper at head dims 192 and 256, DK and DV: a consumer for each, with columns in two parts.

The accumulators of DK and DV leave room for 64 keys only, and dQ is a kernel of its own: with so few keys, adding it up
in memory would take longer than two products more. The parts are of 128 columns and of the rest, 64 or 128.

A program owns 64 key rows of one key head, and takes BLOCK_M query rows at a time. One consumer computes P and DV, the
other one dS and DK. Scores are transposed, [keys, queries], so that P and dS are register operands; at head dim 192 K
and V are, too. Of a product then only Q or DO is read from shared memory, which is what limits. For step i, where Q, K,
V and DO are tiles of the first part of the columns, QRest and so on of the others:

    consumer of values                                  consumer of keys
    ──────────────────                                  ────────────────
    S = K Q(i)ᵀ + KRest QRest(i)ᵀ                       DK += dS(i-1) Q(i-1),  the same of DKRest
    DV += P(i-1) DO(i-1),  the same of DVRest           dP = V DO(i)ᵀ + VRest DORest(i)ᵀ
    wait for S     P(i) = exp2(scale S - lse) → shared  wait for DK
    wait for DV                                         wait for dP, P(i)   dS(i) = P(i) (dP - delta)

Who waits for whom. Each arrow is an mbarrier, from who arrives, with what a phase counts, to who waits:

    producer warp of Q                                  consumers
    ──────────────────                                  ─────────
    loads K                   ── k_full, bytes ──▶      that of values, before the first step
    loads Q, lse              ── q_full[slot], bytes    S and DK of step i
                                 and 1 for the rows ─▶
    loads the slot's next     ◀─ q_empty[slot], 2 ──    after S, and after DK of step i

The same of another warp for DO, with V, delta, do_full and do_empty, after dP and after DV. Q and DO have as many slots
as there is shared memory for. The consumer of values arrives at p_full[slot] with P, which has two slots, and that of
keys, when it has read it, at p_empty[slot].
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
)

from aotriton.tritonsrc.flash.lib.backward import LOG2_E
from aotriton.tritonsrc.flash.lib.backward_split import (
    all_barriers,
    all_slots,
    load_keys,
    load_step,
    walk_of_keys,
    walk_of_values,
)
from aotriton.tritonsrc.flash.lib.mask import first_query
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program


@gluon.jit
def producer(
    q_tensors, k_tensors, Rows, q_slots, k_slots, row_slots, k_full, full, empty, key, head_k, batch, first,
    num_heads_q, num_heads_k, max_seqlen_q, FACTOR: gl.constexpr, BEYOND: gl.constexpr,
):  # fmt: skip
    """Loads K, and all steps."""
    BLOCK_M: gl.constexpr = q_tensors[0].block_shape[2]
    load_keys(k_tensors, k_slots, k_full, batch, head_k, key)
    group = num_heads_q // num_heads_k
    step = 0
    for member in range(group):
        head = head_k * group + member
        head_row = (batch * num_heads_q + head).to(gl.int64) * max_seqlen_q
        for row in range(first, max_seqlen_q, BLOCK_M):
            load_step(
                q_tensors, Rows, q_slots, row_slots, full, empty, batch, head, head_row, row, step, max_seqlen_q,
                FACTOR, BEYOND,
            )  # fmt: skip
            step += 1


@gluon.jit
def store(tensors, places, x, x_rest, batch, head, key):
    """Both parts to memory, from where K or V was, which this consumer has in registers."""
    KEYS: gl.constexpr = places[0].shape[3]
    FIRST: gl.constexpr = places[0].shape[4]
    REST: gl.constexpr = places[1].shape[4]
    places[0].index(0).reshape([KEYS, FIRST]).store(x.to(places[0].dtype))
    places[1].index(0).reshape([KEYS, REST]).store(x_rest.to(places[0].dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(tensors[0], [batch, head, key, 0], places[0].index(0))
    tma.async_copy_shared_to_global(tensors[1], [batch, head, key, FIRST], places[1].index(0))
    tma.store_wait(0)


@gluon.jit
def value_consumer(
    dv_tensors, k_slots, q_slots, do_slots, lse_slots, p_slots, k_full, q_full, q_empty, do_full, do_empty, p_full,
    p_empty, sm_scale, key, head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    steps = num_heads_q // num_heads_k * gl.cdiv(max_seqlen_q - first, q_slots[0].shape[3])
    dv, dv_rest = walk_of_values(
        k_slots, q_slots, do_slots, lse_slots, p_slots, k_full, q_full, q_empty, do_full, do_empty, p_full, p_empty,
        sm_scale, key, first, first, steps, max_seqlen_q, max_seqlen_k, CAUSAL,
    )  # fmt: skip
    store(dv_tensors, k_slots, dv, dv_rest, batch, head_k, key)


@gluon.jit
def key_consumer(
    dk_tensors, v_slots, q_slots, do_slots, delta_slots, p_slots, v_full, q_full, q_empty, do_full, do_empty, p_full,
    p_empty, sm_scale, key, head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q,
):  # fmt: skip
    steps = num_heads_q // num_heads_k * gl.cdiv(max_seqlen_q - first, q_slots[0].shape[3])
    dk, dk_rest = walk_of_keys(
        v_slots, q_slots, do_slots, delta_slots, p_slots, v_full, q_full, q_empty, do_full, do_empty, p_full, p_empty,
        steps,
    )  # fmt: skip
    store(dk_tensors, v_slots, dk * sm_scale, dk_rest * sm_scale, batch, head_k, key)


@gluon.jit
def attn_bwd_hopper_dk_dv(
    Q,
    K,
    V,
    DO,
    DK,
    DV,
    QRest,
    KRest,
    VRest,
    DORest,
    DKRest,
    DVRest,
    L,
    Delta,
    sm_scale,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim,
    BLOCK_M: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """Grid (cdiv(max_seqlen_k, 64) * num_heads_k * batch). `sm_scale` must not be negative.

    Q, K, V, DO, DK, DV: TMA descriptors of [batch, heads, seqlen, head_dim] with boxes of 128 columns and of BLOCK_M
    rows (Q, DO) or 64 (the others); those with Rest: of the same tensors, with boxes of BLOCK_DMODEL - 128 columns.
    CAUSAL needs max_seqlen_q == max_seqlen_k. L and Delta are contiguous fp32 [batch, num_heads_q, max_seqlen_q].
    """
    KEYS: gl.constexpr = K.block_shape[2]
    STAGES: gl.constexpr = 3 if BLOCK_DMODEL == 192 else 2
    k_slots, v_slots, q_slots, do_slots, lse_slots, delta_slots, p_slots = all_slots(
        (Q, QRest), (K, KRest), (V, VRest), (DO, DORest), STAGES
    )
    k_full, v_full, q_full, q_empty, do_full, do_empty, p_full, p_empty = all_barriers(STAGES)

    tile, head_k, batch = tile_of_program(gl.cdiv(max_seqlen_k, KEYS), num_heads_k)
    key = tile * KEYS  # causal: the first tile has the most queries
    first = first_query(key, CAUSAL)
    gl.warp_specialize([
        (value_consumer, ((DV, DVRest), k_slots, q_slots, do_slots, lse_slots, p_slots, k_full, q_full, q_empty,
                          do_full, do_empty, p_full, p_empty, sm_scale, key, head_k, batch, first, num_heads_q,
                          num_heads_k, max_seqlen_q, max_seqlen_k, CAUSAL)),
        (key_consumer, ((DK, DKRest), v_slots, q_slots, do_slots, delta_slots, p_slots, v_full, q_full, q_empty,
                        do_full, do_empty, p_full, p_empty, sm_scale, key, head_k, batch, first, num_heads_q,
                        num_heads_k, max_seqlen_q)),
        (producer, ((Q, QRest), (K, KRest), L, q_slots, k_slots, lse_slots, k_full, q_full, q_empty, key, head_k, batch,
                    first, num_heads_q, num_heads_k, max_seqlen_q, -LOG2_E, float("inf"))),
        (producer, ((DO, DORest), (V, VRest), Delta, do_slots, v_slots, delta_slots, v_full, do_full, do_empty, key,
                    head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q, 1.0, 0.0)),
    ], [4, 1, 1], [232, 32, 32])  # fmt: skip
