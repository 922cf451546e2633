"""Grammars of replies: compiled beside an engine, then a mask of tokens for every step.

Knows grammar text, the bytes of tokens, and llguidance, which is imported when the first grammar
comes. Knows nothing of engines or models, nor what a grammar is for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from omni_core.errors import OmniError, RequestError, StageError, as_omni_error
from omni_core.types import Grammar

if TYPE_CHECKING:
    import llguidance

MAX_GRAMMAR_BYTES: Final = 256 * 1024
WHITESPACE: Final = r"( |\n {0,24})?"
"""Between tokens of JSON: models that may write any amount of it sometimes never stop."""
COMPILED_GRAMMARS: Final = 32
"""How many are remembered: requests of one application mostly have the same."""
_MAX_GRAMMAR_SIZE: Final = 100_000
_MAX_LEXER_STATES: Final = 50_000
"""Beside the library's own on the work of compiling, which takes at most about a second, and of one
mask, at most some 20 ms."""
_ERROR_CHARACTERS: Final = 300

Words = npt.NDArray[np.int32]


class TokenGrammar:
    """Where one reply is in its grammar; a `TokenConstraint`."""

    def __init__(self, matcher: llguidance.LLMatcher, ends: Words) -> None:
        """`ends` has the bits of the tokens that end a reply."""
        self._matcher = matcher
        self._ends = ends

    def allowed(self, *, may_end: bool) -> Words:
        """See `TokenConstraint`."""
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)[: len(self._ends)]
        if may_end:
            return words
        others = words & ~self._ends
        return others if others.any() else words

    def advance(self, token: int) -> None:
        """See `TokenConstraint`."""
        self._matcher.consume_token(token)

    @property
    def error(self) -> OmniError | None:
        """See `TokenConstraint`."""
        if not self._matcher.is_error():
            return None
        return StageError(
            "the reply's grammar became too complex to follow; use a simpler schema: "
            + self._matcher.get_error()[:_ERROR_CHARACTERS]
        )


class Grammars:
    """Compiles grammars over the tokens of one model, in a thread of its own."""

    def __init__(
        self,
        spelling: Callable[[], Callable[[int], bytes]],
        vocab_size: int,
        end_ids: Iterable[int],
    ) -> None:
        """`spelling`, called when the first grammar comes, returns what gives the bytes of a token,
        none for those that stand for no text."""
        self._spelling = spelling
        self._vocab_size = vocab_size
        self._end_ids = sorted(end_ids)
        self._ends = np.zeros((vocab_size + 31) // 32, dtype=np.int32)
        for token in self._end_ids:
            self._ends[token // 32] |= np.uint32(1 << token % 32).astype(np.int32)
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, llguidance.LLMatcher] = OrderedDict()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="grammars")

    def submit(
        self, grammar: Grammar, done: Callable[[TokenGrammar | OmniError], None]
    ) -> Future[None]:
        """Compile; `done` is called by the thread, with a RequestError for a bad grammar, and not
        at all if what is returned was cancelled in time."""
        return self._worker.submit(self._compile_for, grammar, done)

    def compile(self, grammar: Grammar) -> TokenGrammar:
        """The same here and now. RequestError names `Grammar.param`."""
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = self._matcher(grammar)
            self._compiled[grammar] = matcher
            if len(self._compiled) > COMPILED_GRAMMARS:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return TokenGrammar(matcher.deep_copy(), self._ends)

    def close(self) -> None:
        """Compile nothing more."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _compile_for(
        self, grammar: Grammar, done: Callable[[TokenGrammar | OmniError], None]
    ) -> None:
        try:
            result: TokenGrammar | OmniError = self.compile(grammar)
        except Exception as exc:  # noqa: BLE001 - request edge: one bad grammar fails alone
            result = as_omni_error(exc)
        except BaseException as exc:  # a panic of the library is none of Python's exceptions
            done(StageError(f"the grammar could not be compiled: {exc}"))
            raise
        done(result)

    def _matcher(self, grammar: Grammar) -> llguidance.LLMatcher:
        import llguidance

        if len(grammar.text.encode()) > MAX_GRAMMAR_BYTES:
            raise _refusal(grammar, f"it has more than {MAX_GRAMMAR_BYTES} bytes")
        self._tokenizer = self._tokenizer or self._build_tokenizer()
        limits = llguidance.LLParserLimits(
            max_grammar_size=_MAX_GRAMMAR_SIZE,
            max_lexer_states=_MAX_LEXER_STATES,
            verbose_errors=False,
        )
        matcher = llguidance.LLMatcher(
            self._tokenizer, _source(grammar), log_level=0, limits=limits
        )
        if matcher.is_error():
            raise _refusal(grammar, matcher.get_error())
        return matcher

    def _build_tokenizer(self) -> llguidance.LLTokenizer:
        import llguidance

        spellings = list(map(self._spelling(), range(self._vocab_size)))
        wrapper = llguidance.TokenizerWrapper(_Vocabulary(spellings, self._end_ids[0]))
        return llguidance.LLTokenizer(wrapper, n_vocab=self._vocab_size, eos_token=self._end_ids)


class _Vocabulary:
    """What llguidance asks of a tokenizer. It tokenizes only to look for forced tokens, which
    nobody here asks for."""

    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, tokens: list[bytes], eos_token_id: int) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self._ids = {spelling: token for token, spelling in enumerate(tokens)}

    def __call__(self, text: bytes) -> list[int]:
        spellings = (bytes([byte]) for byte in text)
        return [self._ids[spelling] for spelling in spellings if spelling in self._ids]


def _source(grammar: Grammar) -> Any:
    """The grammar as llguidance takes it."""
    import llguidance

    if grammar.kind == "lark":
        return llguidance.LLMatcher.grammar_from_lark(grammar.text)
    overrides: Any = {"whitespace_pattern": WHITESPACE}
    try:
        return llguidance.LLMatcher.grammar_from_json_schema(grammar.text, overrides=overrides)
    except ValueError as exc:
        raise _refusal(grammar, str(exc)) from exc


def _refusal(grammar: Grammar, why: str) -> RequestError:
    param = grammar.param or "grammar"
    [reason, *_] = why.strip().splitlines() or ["it is not valid"]
    return RequestError(
        f"'{param}' cannot be kept to: {reason[:_ERROR_CHARACTERS]}",
        param=param,
        code="invalid_grammar",
    )
