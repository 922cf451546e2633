"""The prefix cache: a radix tree whose edges are pages' row keys.

Knows keys, pages and how often a page is in use. Knows nothing of tensors, sequences or free pages.

Only full pages are in the tree. A page stays while a sequence uses it or a longer prefix needs it;
of the others the least recently used is evicted first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias


class Node:
    """One cached page: the rows `key`, after the rows of its ancestors."""

    __slots__ = ("children", "kept", "key", "last_used", "page", "parent", "users")

    def __init__(self, parent: Node | None, key: bytes, page: int, kept: Any) -> None:
        self.parent = parent
        self.key = key
        self.page = page
        self.kept = kept
        self.children: dict[bytes, Node] = {}
        self.users = 0
        self.last_used = 0

    @property
    def idle(self) -> bool:
        """Nobody uses the page and no longer prefix needs it."""
        return self.users == 0 and not self.children


_Entry: TypeAlias = tuple[int, int, Node]
"""(last use, order of entry, node)."""


class RadixTree:
    """Pages by the keys of their rows and of all rows before.

    Whoever uses a node uses its ancestors too, so what lies below an unused node is unused.
    """

    def __init__(self) -> None:
        self.root = Node(None, b"", -1, None)
        self.pages = 0
        self.unused = 0
        """Pages that nobody uses; `evict` can give all of them."""
        self._clock = 0
        self._idle: list[_Entry] = []
        """Heap by last use of the idle nodes, and of nodes that were idle once."""
        self._pushed = 0

    def match(self, node: Node, keys: Iterable[bytes]) -> list[Node]:
        """The nodes that continue `node` along the pages' `keys`, as far as they are here."""
        found: list[Node] = []
        for key in keys:
            child = node.children.get(key)
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def use(self, nodes: Sequence[Node]) -> None:
        """Keep the nodes, whose ancestors the caller already uses, until `leave`."""
        for node in nodes:
            self.unused -= node.users == 0
            node.users += 1

    def leave(self, nodes: Sequence[Node]) -> None:
        """Undo `use` for a whole path, from the root."""
        self._clock += 1
        for node in nodes:
            node.users -= 1
            node.last_used = self._clock
            self.unused += node.users == 0
        if nodes and nodes[-1].idle:
            self._push(nodes[-1])

    def insert(self, parent: Node, key: bytes, page: int, kept: Any) -> Node:
        """Hand over `page`; the caller uses `parent` and now the new node too."""
        node = Node(parent, key, page, kept)
        node.users = 1
        parent.children[key] = node
        self.pages += 1
        return node

    def evict(self, count: int) -> list[int]:
        """Drop `count` unused pages, the least recently used first; at most `unused`."""
        pages: list[int] = []
        while len(pages) < count:
            entry = heapq.heappop(self._idle)
            node = entry[2]
            if not _is_current(entry):
                continue
            pages.append(node.page)
            parent = self._unlink(node)
            if parent.idle and parent is not self.root:
                self._push(parent)
        self.pages -= count
        self.unused -= count
        return pages

    def _unlink(self, node: Node) -> Node:
        parent, node.parent = node.parent, None
        if parent is None:
            raise ValueError(f"page {node.page} is not in the tree")
        del parent.children[node.key]
        return parent

    def _push(self, node: Node) -> None:
        if len(self._idle) > 2 * self.pages:  # mostly stale; would grow with every use
            current = {entry[2]: entry for entry in self._idle if _is_current(entry)}
            self._idle = list(current.values())
            heapq.heapify(self._idle)
        self._pushed += 1
        heapq.heappush(self._idle, (node.last_used, self._pushed, node))


def _is_current(entry: _Entry) -> bool:
    last_used, _, node = entry
    return node.idle and node.parent is not None and node.last_used == last_used
