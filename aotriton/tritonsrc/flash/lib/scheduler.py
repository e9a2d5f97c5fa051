"""Which tile a program of a grid computes: one tile a program, in the order of its work index.

For Triton and for Gluon.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.mask import first_query


@triton.jit
def tile_at(work, tiles):
    """The tile of a head, and the head, of a work index that counts `tiles` of each head, head after head."""
    head = work // tiles
    return work - head * tiles, head


@triton.jit
def tile_of_program(tiles, heads):
    """Tile, head and batch of this program, of a grid with `tiles` for each of `heads` in each batch, along x."""
    program = tl.program_id(0)
    head = program // tiles
    batch = head // heads
    return program - head * tiles, head - batch * heads, batch


@triton.jit
def tile_of_two(tiles_q, heads_q, tiles_k, heads_k):
    """Batch of this program, and its work index inside: tiles of all query heads come first, of all key heads then."""
    each = tiles_q * heads_q + tiles_k * heads_k
    batch = tl.program_id(0) // each
    return batch, tl.program_id(0) - batch * each


@triton.jit
def tile_of_heads_together(tiles, parts, together):
    """Tile, head, counted through all batches, and part of this program, of a grid along x that has `tiles` * `parts`
    for each head. So many heads `together` begin with their first tiles, which are the longest where causal.
    """
    program = tl.program_id(0)
    each = tiles * parts
    begun = program // (each * together) * together  # heads before these
    width = tl.minimum(together, tl.num_programs(0) // each - begun)
    program -= begun * each
    tile = program // (width * parts)
    program -= tile * width * parts
    head = program // parts
    return tile, begun + head, program - head * parts


@triton.jit
def steps_of_part(steps, parts, part):
    """The first of the steps of one of so many `parts`, and how many it has: one more in the first parts, where they
    are not even.
    """
    least = steps // parts
    more = steps - least * parts
    return part * least + tl.minimum(part, more), least + (part < more).to(tl.int32)


@triton.jit
def part_of_walk(
    num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, parts, together,
    KEYS: tl.constexpr, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr, STEP: tl.constexpr = 1,
):  # fmt: skip
    """What this program computes where several walk the query rows of each tile of KEYS keys: the batch, head and first
    row of its keys; the first row of queries, a multiple of STEP, that see any of them; and the head and row of queries
    where its part begins, and how many steps it has.
    """
    tile, head, part = tile_of_heads_together(tl.cdiv(max_seqlen_k, KEYS), parts, together)
    batch = head // num_heads_k
    head_k = head - batch * num_heads_k
    key = tile * KEYS
    first = first_query(key, CAUSAL, STEP)
    group = num_heads_q // num_heads_k
    of_head = tl.cdiv(max_seqlen_q - first, BLOCK_M)
    begin, steps = steps_of_part(group * of_head, parts, part)
    member = begin // of_head
    return batch, head_k, key, first, head_k * group + member, first + (begin - member * of_head) * BLOCK_M, steps
