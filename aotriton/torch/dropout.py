"""Which weights dropout keeps, by torch's own operators: to look into a call, or to compare with another formula."""

from __future__ import annotations

import torch

_WORD = 0xFFFFFFFF
_ROUNDS = 7
_WEYL = 0x9E3779B9, 0xBB67AE85  # what keys grow by from round to round
_NUMBERS = 32768  # of which those below a threshold drop a weight


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
    multiplied by 32768 / (32768 - t), where t is 32768 dropout, rounded. ``c.h`` defines the mask, which is of Philox
    (Salmon et al., 2011). ValueError where dropout is none that attention takes.
    """
    if not 0 <= dropout <= 255 / 256:
        raise ValueError(f"dropout_mask: dropout is {dropout:g}, which must be at least 0 and at most 255 / 256")
    seed = torch.as_tensor(seed, dtype=torch.int64)
    offset = torch.as_tensor(offset, dtype=torch.int64).to(seed.device)
    low, high = offset.reshape(()) & _WORD, offset.reshape(()) >> 32 & _WORD
    of_call, of_keys, of_rows, _ = _philox_4x32(seed.reshape(()), low, high, low * 0, low * 0)
    sixteen_rows, sixteen_keys = -(-rows // 16), -(-keys // 16)
    every = torch.arange(max(sequences * heads, 8 * sixteen_rows, 4 * sixteen_keys), device=seed.device)
    c0 = every[: 4 * sixteen_keys] + of_keys & _WORD
    c1 = every[: 8 * sixteen_rows, None] + of_rows & _WORD
    words = _philox_2x32(every[: sequences * heads, None, None] * _WEYL[1] + of_call & _WORD, c0, c1)
    turned = (word >> at | word << 32 - at for word in words for at in (0, 16, 8, 24))
    numbers = torch.stack([word & _NUMBERS - 1 for word in turned])
    # Of a row its 16, its half and its place there, of a key its 16, its half, its pair and its place in that
    numbers = numbers.view(2, 2, 2, sequences * heads, sixteen_rows, 8, sixteen_keys, 4).permute(3, 4, 0, 5, 6, 1, 7, 2)
    numbers = numbers.reshape(sequences, heads, 16 * sixteen_rows, 16 * sixteen_keys)
    probability = torch.tensor(dropout, dtype=torch.float32).item()  # as kernels take it
    return numbers[..., :rows, :keys] >= int(probability * _NUMBERS + 0.5)


def _philox_4x32(seed: torch.Tensor, *counter: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The four words of Philox 4x32, whose key is the seed. Products of words keep their 64 bits in an int64, whatever
    their sign.
    """
    c0, c1, c2, c3 = counter
    key_low, key_high = seed & _WORD, seed >> 32 & _WORD
    for _ in range(_ROUNDS):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = b >> 32 & _WORD ^ c1 ^ key_low, b & _WORD, a >> 32 & _WORD ^ c3 ^ key_high, a & _WORD
        key_low, key_high = key_low + _WEYL[0] & _WORD, key_high + _WEYL[1] & _WORD
    return c0, c1, c2, c3


def _philox_2x32(key: torch.Tensor, c0: torch.Tensor, c1: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The two words of Philox 2x32."""
    for _ in range(_ROUNDS):
        product = c0 * 0xD256D193
        c0, c1 = product >> 32 & _WORD ^ c1 ^ key, product & _WORD
        key = key + _WEYL[0] & _WORD
    return tuple(torch.broadcast_tensors(c0, c1))
