"""Finding custom_ids that occur twice among millions, in about eight bytes a line.

The first pass keeps a 64-bit hash of each id, spread over buckets. Only where two hashes are equal
does a second pass look at the ids themselves, so that the answer is exact.
"""

from array import array
from collections.abc import Iterable, Iterator

BUCKET_MASK = 255
# Bounds the memory of the second pass in a file that is nothing but duplicates; every duplicate it
# names is one, though then not always the first ones of the file.
_MAX_CLASHES = 100_000


class IdHashes:
    """The hashes of all ids seen, in `buckets` by their low bits.

    Python keys its string hash anew in each process, so nobody can aim ids at one hash.
    """

    def __init__(self) -> None:
        self.buckets = [array("q", ()) for _ in range(BUCKET_MASK + 1)]

    def add(self, custom_id: str) -> None:
        value = hash(custom_id)
        self.buckets[value & BUCKET_MASK].append(value)

    def clashing(self) -> set[int]:
        """Hashes that occurred more than once."""
        clashes: set[int] = set()
        for bucket in self.buckets:
            if len(set(bucket)) == len(bucket):
                continue
            seen: set[int] = set()
            for value in bucket:
                if value in seen:
                    clashes.add(value)
                    if len(clashes) >= _MAX_CLASHES:
                        return clashes
                seen.add(value)
        return clashes


def repeated(ids: Iterable[tuple[int, str]], clashes: set[int]) -> Iterator[tuple[int, str, int]]:
    """(line, custom_id, line of its first occurrence) for each id that occurred before."""
    first: dict[str, int] = {}
    for line, custom_id in ids:
        if hash(custom_id) in clashes:
            before = first.setdefault(custom_id, line)
            if before != line:
                yield line, custom_id, before
