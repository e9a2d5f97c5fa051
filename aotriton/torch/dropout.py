"""Which weights dropout keeps, by torch's own operators: to look into a call, or to compare with another formula."""

from __future__ import annotations

import torch

_WORD = 0xFFFFFFFF
_ROUNDS = 7


def dropout_mask(
    sequences: int,
    heads: int,
    rows: int,
    keys: int,
    dropout: float,
    seed: torch.Tensor | int,
    offset: torch.Tensor | int,
) -> torch.Tensor:
    """True where ``attention`` keeps the weight of a query and a key, [sequences, heads, rows, keys], on seed's device.

    It is that of calls with this ``dropout``, and with ``seed`` and ``offset``, one int64 each, as ``dropout_seed`` and
    ``dropout_offset``. Of packed sequences a query and a key are counted from the begin of theirs. What is kept is
    multiplied by 65536 / (65536 - t), where t is 65536 dropout, rounded. ``c.h`` defines the mask, which is of Philox
    (Salmon et al., 2011). ValueError where dropout is none that attention takes.
    """
    if not 0 <= dropout <= 65534 / 65536:
        raise ValueError(f"dropout_mask: dropout is {dropout:g}, which must be at least 0 and at most 65534 / 65536")
    seed = torch.as_tensor(seed, dtype=torch.int64)
    offset = torch.as_tensor(offset, dtype=torch.int64).to(seed.device)
    sixteen_rows, sixteen_keys = -(-rows // 16), -(-keys // 16)
    every = torch.arange(max(sequences * heads, 8 * sixteen_rows, 4 * sixteen_keys), device=seed.device)
    low, high = offset.reshape(()) & _WORD, offset.reshape(()) >> 32 & _WORD
    of_keys, of_rows = every[: 4 * sixteen_keys], every[: 8 * sixteen_rows, None]
    of_head = every[: sequences * heads, None, None] + high & _WORD
    words = _philox(seed.reshape(()), of_keys, of_rows, low, of_head)
    numbers = torch.stack([word >> at & 0xFFFF for word in words for at in (0, 16)])
    # Of a row its 16, its half and its place there, of a key its 16, its half, its pair and its place in that
    numbers = numbers.view(2, 2, 2, sequences * heads, sixteen_rows, 8, sixteen_keys, 4).permute(3, 4, 0, 5, 6, 1, 7, 2)
    numbers = numbers.reshape(sequences, heads, 16 * sixteen_rows, 16 * sixteen_keys)
    probability = torch.tensor(dropout, dtype=torch.float32).item()  # as kernels take it
    return numbers[..., :rows, :keys] >= int(probability * 65536 + 0.5)


def _philox(
    seed: torch.Tensor, c0: torch.Tensor, c1: torch.Tensor, c2: torch.Tensor, c3: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The four words of Philox 4x32, whose key is the seed. Products of words keep their 64 bits in an int64, whatever
    their sign.
    """
    key_low, key_high = seed & _WORD, seed >> 32 & _WORD
    for _ in range(_ROUNDS):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = b >> 32 & _WORD ^ c1 ^ key_low, b & _WORD, a >> 32 & _WORD ^ c3 ^ key_high, a & _WORD
        key_low, key_high = key_low + 0x9E3779B9 & _WORD, key_high + 0xBB67AE85 & _WORD
    return tuple(torch.broadcast_tensors(c0, c1, c2, c3))
