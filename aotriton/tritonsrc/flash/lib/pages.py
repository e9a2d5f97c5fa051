"""Pages: keys and values of a sequence that lie in pages of one tensor, in the order that a block table says."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import OWN_LAST, PACKED, USED_Q
from aotriton.tritonsrc.flash.lib.sequence import Sequence, Side, sequence_of


@bundle
class Pages:
    """The pages of a sequence: ``table`` has their numbers, in the order of keys. `page_size` is a multiple of 16, and
    ``magic`` 2³¹ / (page_size / 16), rounded up. Entries behind the last of the ``used`` keys are not read.
    """

    table: tl.tensor
    page_size: tl.tensor
    magic: tl.tensor
    used: tl.tensor


@triton.jit
def place_in_table(pages, keys):
    """Where the table has the page of each key.

    A number of 16 keys times ``magic`` is 2³¹ times its place, and less than 2³¹ more while a sequence's keys times
    `page_size` are at most 2³⁹: the high half of the product is the place.
    """
    return tl.math.umulhi((keys // 16 * 2).to(tl.uint32), pages.magic.to(tl.uint32)).to(tl.int32)


@triton.jit
def pages_of(pages, key, KEYS: tl.constexpr):
    """The page of each of KEYS keys from ``key`` on."""
    keys = key + tl.arange(0, KEYS)
    return tl.load(pages.table + place_in_table(pages, keys), mask=keys < pages.used, other=0)


@triton.jit
def load_from_pages(x, pages, head, page, key, KEYS: tl.constexpr, COLUMNS: tl.constexpr):
    """[KEYS, COLUMNS] elements of keys from ``key`` on, which lie in each one's ``page``, of a tensor [pages, heads,
    page_size, head_dim]; those that are not used, and those outside of head_dim, are zero.
    """
    keys = key + tl.arange(0, KEYS)
    columns = tl.arange(0, COLUMNS)
    row = keys - place_in_table(pages, keys) * pages.page_size
    offsets = (page.to(tl.int64) * x.stride_b + row.to(tl.int64) * x.stride_s)[:, None] + columns[None, :]
    mask = (keys < pages.used)[:, None] & (columns[None, :] < x.head_dim)
    return tl.load(x.tensor + head * x.stride_h + offsets, mask=mask, other=0.0)


@triton.jit
def sequence_in_pages(index, features, lo, hi, CuSeqlensQ, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k):
    """As sequence_of, of a sequence whose keys lie in pages: SequsedK says how many there are."""
    # Its own keys and band are put in place of those of the queries.
    of = sequence_of(
        index, features & (PACKED | USED_Q), lo, hi, CuSeqlensQ, CuSeqlensQ, SequsedQ, SequsedQ,
        max_seqlen_q, max_seqlen_q, True,
    )  # fmt: skip
    used = tl.minimum(tl.load(SequsedK + index), max_seqlen_k)
    if (features & OWN_LAST) != 0:
        lo += used - of.q.used
        hi += used - of.q.used
    return Sequence(index, of.batch, of.q, Side(used * 0, max_seqlen_k, used), lo, hi)
