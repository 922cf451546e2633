"""Pages, the prefix cache and what sequences hold of them, under any order of events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from omni_core.engine.base import KVSpec
from omni_core.engine.torch_engine.kv import KVCache, PageAllocator
from omni_core.engine.torch_engine.memory import KVMemory, SequencePages
from omni_core.engine.torch_engine.radix import Node, RadixTree

PAGE, PAGES, ROWS, MAX_LEN = 4, 12, 4, 40


def small_cache() -> KVCache:
    spec = KVSpec(layers=1, kv_heads=1, head_dim=1, max_len=MAX_LEN)
    device, dtype = torch.device("cpu"), torch.float32
    budget = PAGES * 2 * PAGE * dtype.itemsize
    return KVCache(spec, budget_bytes=budget, rows=ROWS, device=device, dtype=dtype, page_size=PAGE)


def below(node: Node) -> Iterator[Node]:
    for child in node.children.values():
        yield child
        yield from below(child)


def test_pages_cannot_be_freed_twice_or_taken_beyond_the_pool() -> None:
    pages = PageAllocator(3)
    taken = pages.take(2)
    with pytest.raises(ValueError, match="2 pages wanted, 1 free"):
        pages.take(2)
    with pytest.raises(ValueError, match="not in use"):
        pages.give([taken[0], taken[0]])
    pages.give(taken)
    with pytest.raises(ValueError, match="not in use"):
        pages.give(taken)
    assert (pages.used, pages.free) == (0, 3)
    assert sorted(pages.take(3)) == [0, 1, 2]


@given(st.lists(st.integers(0, 6), max_size=40))
def test_a_page_is_free_or_handed_out_once(counts: list[int]) -> None:
    pages, handed = PageAllocator(10), []
    for count in counts:
        if count <= pages.free:
            handed.append(pages.take(count))
        elif handed:
            pages.give(handed.pop(0))
        out = [page for taken in handed for page in taken]
        assert len(set(out)) == len(out) == pages.used == pages.total - pages.free


def test_what_no_sequence_uses_is_forgotten_and_its_pages_are_free() -> None:
    cache = small_cache()
    memory = KVMemory(cache, ROWS)
    ended, running = memory.open(), memory.open()
    for held, keys in ((ended, [b"a", b"b"]), (running, [b"x"])):
        assert memory.extend(held, PAGE * len(keys))
        memory.publish(held, keys, lambda index: None)
    memory.close(ended)
    assert (memory.cached, cache.pages.free) == (2, PAGES - 3)
    memory.forget()
    assert (memory.cached, memory.used, cache.pages.free) == (0, 1, PAGES - 1)
    assert memory.in_use([b"a"]) == 0
    assert memory.reuse(memory.open(), [b"a", b"b"]) == []


def test_the_least_recently_used_prefix_is_evicted_first_and_leaves_before_roots() -> None:
    tree = RadixTree()

    def add(page: int, *path: bytes) -> None:
        known = tree.match(tree.root, path[:-1])
        tree.use(known)
        parent = known[-1] if known else tree.root
        tree.leave([*known, tree.insert(parent, path[-1], page, None)])

    add(1, b"a")
    add(2, b"a", b"b")
    add(3, b"x")
    add(4, b"a", b"c")
    touched = tree.match(tree.root, [b"a", b"b"])
    assert [node.page for node in touched] == [1, 2]
    tree.use(touched)
    assert (tree.pages, tree.unused) == (4, 2)
    assert tree.evict(2) == [3, 4]
    tree.leave(touched)
    assert tree.evict(2) == [2, 1]
    assert (tree.pages, tree.unused) == (0, 0)


def test_a_hot_prefix_does_not_grow_the_tree() -> None:
    tree = RadixTree()
    tree.leave([tree.insert(tree.root, b"k", 0, "kept")])
    for _ in range(100):
        found = tree.match(tree.root, [b"k", b"other"])
        tree.use(found)
        tree.leave(found)
    assert len(tree._idle) < 5
    assert found[0].kept == "kept"
    assert tree.evict(1) == [0]


class Sequences(RuleBasedStateMachine):
    """Sequences of a tiny alphabet that grow, publish, share, retract and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = small_cache()
        self.memory = KVMemory(self.cache, ROWS)
        self.root = self.memory.next_page(SequencePages(row=0))
        self.held: dict[SequencePages, list[bytes]] = {}

    def pick(self, data: st.DataObject) -> SequencePages:
        return data.draw(st.sampled_from(list(self.held)))

    @precondition(lambda self: self.memory.has_row)
    @rule(keys=st.lists(st.sampled_from([b"a", b"b"]), max_size=MAX_LEN // PAGE))
    def open(self, keys: list[bytes]) -> None:
        held = self.memory.open()
        found = self.memory.reuse(held, keys)
        assert [node.key for node in found] == keys[: len(found)]
        self.held[held] = keys

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def reuse(self, data: st.DataObject) -> None:
        held = self.pick(data)
        own = len(held.pages) - len(held.shared)
        found = self.memory.reuse(held, self.held[held][len(held.shared) :])
        assert not (own and found)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=st.integers(1, 3 * PAGE))
    def extend(self, data: st.DataObject, more: int) -> None:
        held = self.pick(data)
        rows = min(len(held.pages) * PAGE + more, MAX_LEN)
        before, available = list(held.pages), self.memory.available
        wanted = self.cache.pages_for(rows) - len(before)
        assert self.memory.extend(held, rows) == (wanted <= available)
        assert held.pages[: len(before)] == before
        assert len(held.pages) == len(before) + (wanted if wanted <= available else 0)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), most=st.integers(1, 4))
    def publish(self, data: st.DataObject, most: int) -> None:
        held = self.pick(data)
        first = len(held.shared)
        keys = self.held[held][first : min(len(held.pages), first + most)]
        self.memory.publish(held, keys, keep=lambda index: index)
        assert [node.key for node in held.shared] == self.held[held][: first + len(keys)]
        assert [node.kept for node in held.shared] == list(range(len(held.shared)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        held = self.pick(data)
        del self.held[held]
        self.memory.close(held)

    @invariant()
    def every_page_has_one_owner(self) -> None:
        cached = [node.page for node in below(self.root)]
        own = [page for h in self.held for page in h.pages[len(h.shared) :]]
        assert len(set(cached + own)) == len(cached + own) == self.cache.pages.used
        shared = {node for held in self.held for node in held.shared}
        assert self.memory.cached == len(cached) - len(shared)
        assert self.memory.used == len(own) + len(shared)
        assert self.memory.available == PAGES - self.memory.used

    @invariant()
    def shared_pages_come_first_and_are_counted(self) -> None:
        for held in self.held:
            assert [node.page for node in held.shared] == held.pages[: len(held.shared)]
        for node in below(self.root):
            assert node.users == sum(node in held.shared for held in self.held)

    @invariant()
    def page_tables_say_where_pages_are(self) -> None:
        self.memory.map()
        for held in self.held:
            assert self.cache.tables[held.row, : len(held.pages)].tolist() == held.pages

    def teardown(self) -> None:
        for held in self.held:
            self.memory.close(held)
        assert (self.memory.used, self.memory.available) == (0, PAGES)


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
