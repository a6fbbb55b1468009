"""The prefix cache: chained keys, verified entries, nothing stale and nothing out of reach."""

import hashlib

import pytest

from paged_ref.blocks.block_pool import BlockPool
from paged_ref.blocks.prefix_cache import Entry, PrefixCache, chained_key


def publish(
    cache: PrefixCache, tokens: list[int], block_size: int, blocks: list[int], salt: str | None = None
) -> Entry:
    entry = None
    for i, block in enumerate(blocks):
        entry = cache.publish(entry, tokens[i * block_size : (i + 1) * block_size], salt, block)
    assert entry is not None
    return entry


def blocks_of(entries: list[Entry]) -> list[int]:
    return [entry.block for entry in entries]


def test_the_longest_cached_prefix_is_found() -> None:
    cache = PrefixCache()
    publish(cache, [1, 2, 3, 4, 5, 6], 2, [7, 1, 4])
    assert blocks_of(cache.match([1, 2, 3, 4, 5, 6, 9], 2)) == [7, 1, 4]
    assert blocks_of(cache.match([1, 2, 3, 4, 9, 6, 9], 2)) == [7, 1]
    assert cache.match([9, 2, 3, 4, 5, 6, 9], 2) == []


@pytest.mark.parametrize(("length", "hits"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2), (7, 3)])
def test_hits_stop_one_token_before_the_end(length: int, hits: int) -> None:
    """The whole prompt was cached elsewhere: no query was left, and it crashed."""
    cache = PrefixCache()
    publish(cache, [1, 2, 3, 4, 5, 6], 2, [7, 1, 4])
    assert len(cache.match([1, 2, 3, 4, 5, 6, 7][:length], 2)) == hits


def test_the_same_tokens_under_another_parent_are_another_block() -> None:
    cache = PrefixCache()
    publish(cache, [1, 2, 3, 4], 2, [0, 1])
    publish(cache, [5, 6, 3, 4], 2, [2, 3])
    assert blocks_of(cache.match([5, 6, 3, 4, 0], 2)) == [2, 3]
    assert cache.match([3, 4, 0], 2) == [], "a hit starts at the beginning of a sequence"


def test_a_salt_separates() -> None:
    cache = PrefixCache()
    publish(cache, [1, 2], 2, [0], salt="tenant a")
    assert blocks_of(cache.match([1, 2, 3], 2, "tenant a")) == [0]
    assert cache.match([1, 2, 3], 2, "tenant b") == cache.match([1, 2, 3], 2, None) == []


def test_a_second_block_with_the_same_contents_stays_unfiled() -> None:
    cache = PrefixCache()
    first = publish(cache, [1, 2], 2, [0])
    assert cache.publish(None, [1, 2], None, 5) is first
    assert 5 not in cache
    cache.check()


@pytest.mark.parametrize("constant", [b"", b"same"])
def test_a_hash_function_that_always_collides_finds_the_right_blocks(constant: bytes) -> None:
    cache = PrefixCache(hash_function=lambda parent, tokens, extras: constant)
    publish(cache, [1, 2, 3, 4], 2, [0, 1])
    publish(cache, [5, 6, 3, 4], 2, [2, 3])
    publish(cache, [1, 2, 3, 4], 2, [4, 5], salt="a")
    cache.check()
    assert blocks_of(cache.match([1, 2, 3, 4, 9], 2)) == [0, 1]
    assert blocks_of(cache.match([5, 6, 3, 4, 9], 2)) == [2, 3]
    assert blocks_of(cache.match([1, 2, 3, 4, 9], 2, "a")) == [4, 5]
    assert cache.match([3, 4, 9], 2) == []
    cache.forget(0)
    cache.check()
    assert cache.match([1, 2, 3, 4, 9], 2) == []
    assert blocks_of(cache.match([5, 6, 3, 4, 9], 2)) == [2, 3]


def test_a_constant_hash_is_asked_with_the_parents_name_and_changes_no_result() -> None:
    asked = []

    def name(parent: object, tokens: object, extras: object) -> bytes:
        asked.append((parent, tokens, extras))
        return b"same"

    cache = PrefixCache(hash_function=name)
    publish(cache, [1, 2, 3, 4], 2, [0, 1], salt="a")
    assert asked[:2] == [(b"", (1, 2), "a"), (b"same", (3, 4), "a")]
    chained = PrefixCache(hash_function=chained_key)
    publish(chained, [1, 2, 3, 4], 2, [0, 1])
    assert blocks_of(chained.match([1, 2, 3, 4, 5], 2)) == [0, 1]


def test_tokens_that_python_hashes_alike_are_told_apart() -> None:
    assert hash((-1,)) == hash((-2,))
    cache = PrefixCache()
    publish(cache, [-1], 1, [0])
    assert cache.find(None, [-2]) is None
    publish(cache, [-2], 1, [1])
    cache.check()
    assert blocks_of(cache.match([-2, 5], 1)) == [1]


def test_extras_and_tokens_are_never_taken_for_each_other() -> None:
    cache = PrefixCache()
    publish(cache, [1, 2], 2, [0])
    publish(cache, [1, 2], 2, [1], salt="")
    publish(cache, [1, 2], 2, [2], salt="a")
    assert [blocks_of(cache.match([1, 2, 3], 2, salt)) for salt in (None, "", "a", "b")] == [
        [0],
        [1],
        [2],
        [],
    ]
    cache.check()


def test_a_run_is_published_like_its_blocks_one_by_one() -> None:
    one, run = PrefixCache(), PrefixCache()
    for cache in (one, run):
        publish(cache, [1, 2], 2, [9])
    last = publish(one, [1, 2, 3, 4, 5, 6], 2, [7, 1, 4])
    assert (end := run.publish_run(None, [1, 2, 3, 4, 5, 6], 2, None, [7, 1, 4])) is not None
    assert (end.block, end.tokens) == (last.block, last.tokens) == (4, (5, 6))
    assert 7 not in run, "a duplicate stays unfiled"
    assert run.publish_run(end, [], 2, None, []) is end
    run.check()


def test_a_cleared_cache_finds_nothing_and_entries_found_before_are_not_held() -> None:
    cache = PrefixCache()
    entry = publish(cache, [1, 2, 3, 4], 2, [7, 1])
    assert sorted(cache.clear()) == [1, 7]
    assert (len(cache), cache.match([1, 2, 3, 4, 5], 2), cache.holds(entry)) == (0, [], False)
    publish(cache, [1, 2], 2, [7])
    cache.check()


def test_the_key_is_sha256_and_depends_on_every_part() -> None:
    """Python's own hash() was the key elsewhere: hash(-1) == hash(-2), and strings differ between processes."""
    assert len(chained_key(b"", [1], None)) == hashlib.sha256().digest_size
    keys = {
        chained_key(parent, tokens, extras)
        for parent in (b"", b"p")
        for tokens in ([-1], [-2], [1, 2], [12], [])
        for extras in (None, "a", "None")
    }
    assert len(keys) == 2 * 5 * 3
    assert chained_key(b"", [1, 2], "a").hex().startswith("1b50cb04"), "the same in every process"


def test_a_recycled_block_loses_its_entry() -> None:
    """Elsewhere it kept it, and a later hit read another prompt's cache."""
    pool = BlockPool(2, 2, enable_prefix_caching=True)
    cache = pool.prefix_cache
    assert cache is not None
    blocks = pool.allocate(2)
    publish(cache, [1, 2, 3, 4], 2, blocks)
    pool.free(reversed(blocks))
    assert len(cache.match([1, 2, 3, 4, 5], 2)) == 2, "freed contents can still be found"
    assert pool.allocate(1) == [blocks[1]], "the tail goes first"
    assert blocks_of(cache.match([1, 2, 3, 4, 5], 2)) == [blocks[0]]
    pool.allocate(1)
    assert len(cache) == 0


def test_forgetting_a_block_forgets_what_can_no_longer_be_found() -> None:
    cache = PrefixCache()
    publish(cache, [1, 2, 3, 4, 5, 6], 2, [0, 1, 2])
    publish(cache, [1, 2, 7, 8], 2, [0, 3])
    publish(cache, [9, 9], 2, [4])
    assert sorted(cache.forget(1)) == [1, 2]
    assert sorted(cache.forget(0)) == [0, 3]
    assert cache.forget(0) == []
    cache.check()
    assert len(cache) == 1


def test_nothing_is_filed_below_a_forgotten_entry_or_twice() -> None:
    cache = PrefixCache()
    entry = publish(cache, [1, 2], 2, [0])
    with pytest.raises(ValueError, match="block 0 is cached with other contents"):
        cache.publish(None, [3, 4], None, 0)
    cache.forget(0)
    assert not cache.holds(entry)
    with pytest.raises(ValueError, match="forgotten"):
        cache.publish(entry, [3, 4], None, 1)
    cache.check()


def test_a_long_chain_is_forgotten_without_recursion() -> None:
    cache = PrefixCache()
    publish(cache, [1] * 20_000, 1, list(range(20_000)))
    assert len(cache.forget(0)) == 20_000
    cache.check()


def test_check_finds_indexes_that_disagree() -> None:
    cache = PrefixCache()
    publish(cache, [1, 2, 3, 4], 2, [0, 1])
    del cache._by_block[0]
    with pytest.raises(AssertionError):
        cache.check()
