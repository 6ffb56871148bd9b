"""Estimates which prefixes of prompts a replica has in its cache, from the requests that were sent to it (serving
anchors 5).

A prompt is cut into blocks, and each block is named by a hash of it and all before it. A block at a replica counts as
forgotten once the replica got as many new blocks as its cache holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from ai.backend.core.proxy.routing import RouteKey

BLOCK_BYTES = 512
"""The number of bytes in one block, which is about 128 tokens."""
MAX_BLOCKS = 128
"""The largest number of blocks of a prompt that are examined, so that long prompts do not cost more."""
DEFAULT_CAPACITY = 8192
"""The number of blocks that a replica's cache is assumed to hold if its engine does not report it."""
_MAX_HOLDERS = 8


def hash_blocks(prompt: bytes, salt: bytes = b"") -> list[bytes]:
    """Splits a prompt into blocks, and returns a hash for each full block.

    An incomplete last block has no hash. ``salt`` is what keeps prompts apart that no cache shares: model, adapter,
    salt of the tenant.
    """
    block_hash, block_hashes = blake2b(salt, digest_size=8).digest(), []
    end = min(len(prompt) // BLOCK_BYTES, MAX_BLOCKS) * BLOCK_BYTES
    for start in range(0, end, BLOCK_BYTES):
        block_hash = blake2b(prompt[start : start + BLOCK_BYTES], digest_size=8, key=block_hash).digest()
        block_hashes.append(block_hash)
    return block_hashes


class PrefixIndex:
    """Maps blocks of prompts to the replicas that have received the blocks.

    ``max_blocks`` bounds the memory; those used longest ago go first.
    """

    def __init__(self, *, capacity: int = DEFAULT_CAPACITY, max_blocks: int = 1 << 18) -> None:
        self._capacity = capacity
        self._max_blocks = max_blocks
        self._holders: OrderedDict[bytes, dict[RouteKey, int]] = OrderedDict()
        self._received: dict[RouteKey, int] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def holders(self, blocks: Sequence[bytes]) -> tuple[list[RouteKey], int]:
        """Returns the replicas that have the longest prefix of a prompt, and the number of blocks in that prefix.

        Those that got it first come first. Whoever has a block has those before it, so that the length is found by
        halving.
        """
        lower_bound, upper_bound = 0, len(blocks)
        while lower_bound < upper_bound:
            middle = (lower_bound + upper_bound + 1) // 2
            if self._present_holders(blocks[middle - 1]):
                lower_bound = middle
            else:
                upper_bound = middle - 1
        return (self._present_holders(blocks[lower_bound - 1]), lower_bound) if lower_bound else ([], 0)

    def _present_holders(self, block: bytes) -> list[RouteKey]:
        holders, received_counts, capacity = self._holders.get(block), self._received, self._capacity
        if not holders:
            return []
        return [
            key
            for key, block_number in holders.items()
            if (latest_number := received_counts.get(key)) is not None and latest_number - block_number < capacity
        ]

    def add(self, key: RouteKey, blocks: Sequence[bytes]) -> None:
        """Records that a prompt was sent to a replica."""
        all_holders, next_number = self._holders, self._received.get(key, 0)
        for block in blocks:
            holders = all_holders.get(block)
            if holders is None:
                all_holders[block] = {key: next_number}
                next_number += 1
                continue
            all_holders.move_to_end(block)
            earlier_number = holders.get(key)
            if earlier_number is None or next_number - earlier_number >= self._capacity:
                holders.pop(key, None)
                next_number += 1
            holders[key] = next_number
            if len(holders) > _MAX_HOLDERS:
                del holders[next(iter(holders))]
        self._received[key] = next_number
        while len(all_holders) > self._max_blocks:
            all_holders.popitem(last=False)

    def forget(self, key: RouteKey) -> None:
        """Removes all records of a replica that no longer exists."""
        self._received.pop(key, None)
