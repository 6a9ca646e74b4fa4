"""The newest messages that fit a number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, runtime_checkable

from turnkeeper.compat.langchain4j.ids import IdCodec
from turnkeeper.compat.langchain4j.window_memory import Limit, StoreLike, WindowChatMemory, limit_of
from turnkeeper.errors import InvalidArgumentError
from turnkeeper.messages import Message
from turnkeeper.tokens import TokenCounter
from turnkeeper.windows import TokenWindow

__all__ = ["TokenCountEstimator", "TokenWindowChatMemory"]


@runtime_checkable
class TokenCountEstimator(Protocol):
    """LangChain4j's interface for counting tokens."""

    def estimate_token_count_in_message(self, message: Message, /) -> int:
        """Return the tokens of a message."""
        ...

    def estimate_token_count_in_messages(self, messages: Iterable[Message], /) -> int:
        """Return the tokens of a list of messages."""
        ...


class TokenWindowChatMemory(WindowChatMemory):
    """The newest messages that fit a number of tokens; otherwise `MessageWindowChatMemory`.

    Args:
        max_tokens: a number of at least 1, or a function of the id that is asked at every operation.
        token_count_estimator: a `TokenCountEstimator`, a `turnkeeper.TokenCounter` such as `BpeCounter()`, or a
            function that returns the tokens of a text.
        id: see `MessageWindowChatMemory`; the same for the other arguments.

    Raises:
        InvalidArgumentError: a limit below 1, an unknown choice, or nothing that counts.
        InvalidMemoryIdError: no id for a store, or one of a type without an `id_codec`.
        UnsupportedByStoreError: `history="keep"` with a store of the user's own.
    """

    def __init__(
        self,
        max_tokens: Limit,
        token_count_estimator: TokenCountEstimator | TokenCounter | Callable[[str], int],
        *,
        id: Hashable | None = None,  # noqa: A002
        always_keep_system_message_first: bool = False,
        chat_memory_store: StoreLike | None = None,
        offload_blocking_store: bool = False,
        id_codec: IdCodec | None = None,
        history: Literal["keep", "window"] = "window",
    ) -> None:
        """Find the store; no I/O."""
        window = TokenWindow(
            limit_of(max_tokens, id),
            _counter(token_count_estimator),
            system_first=always_keep_system_message_first,
            on_overflow="evict",
        )
        super().__init__(
            window, id, chat_memory_store, offload=offload_blocking_store, id_codec=id_codec, history=history
        )

    @classmethod
    def with_max_tokens(
        cls,
        max_tokens: int,
        token_count_estimator: TokenCountEstimator | TokenCounter | Callable[[str], int],
    ) -> Self:
        """Make a memory without a store, of the id "default".

        Raises:
            InvalidArgumentError: a limit below 1, or nothing that counts.
        """
        return cls(max_tokens, token_count_estimator)


@dataclass(frozen=True)
class _Estimator:
    """A `TokenCountEstimator` as a window asks for it."""

    estimator: TokenCountEstimator

    @property
    def list_overhead(self) -> int:
        return self.estimator.estimate_token_count_in_messages(())

    def count(self, message: Message) -> int:
        return self.estimator.estimate_token_count_in_message(message)


def _counter(estimator: Any) -> TokenCounter | Callable[[str], int]:
    if isinstance(estimator, TokenCountEstimator):
        return _Estimator(estimator)
    if estimator is None:
        raise InvalidArgumentError("a token_count_estimator is required: an estimate is nothing to rely on silently")
    counter: TokenCounter | Callable[[str], int] = estimator
    return counter
