"""The newest messages."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, Self

from turnkeeper.compat.langchain4j.ids import IdCodec
from turnkeeper.compat.langchain4j.window_memory import Limit, StoreLike, WindowChatMemory, limit_of
from turnkeeper.windows import MessageWindow

__all__ = ["MessageWindowChatMemory"]


class MessageWindowChatMemory(WindowChatMemory):
    """The newest messages: when one comes too many, the oldest leaves.

    A system message is never evicted; an equal one is ignored, another one replaces it. A call leaves with its results.
    See docs/langchain4j.md for what differs from LangChain4j.

    Args:
        max_messages: how many may stay, the system message included: a number of at least 1, or a function of the id
            that is asked at every operation.
        id: any hashable; "default" without a store. With a store it is required, and a str, int, UUID or tuple of such.
        always_keep_system_message_first: show the system message first, and not where it was added.
        chat_memory_store: where the messages are kept; memories of one id and store share a conversation. A
            `ChatMemoryStore`, or one of turnkeeper's own: a URL, a `Store` or an open runtime. None: in this process,
            until this object is collected.
        offload_blocking_store: call a blocking `ChatMemoryStore` in several threads (never in two for one id), and let
            the async twins do so, too.
        id_codec: for ids of other types.
        history: "window": what leaves the window leaves the store; "keep": turnkeeper's own stores keep it.

    Raises:
        InvalidArgumentError: a limit below 1, or an unknown choice.
        InvalidMemoryIdError: no id for a store, or one of a type without an `id_codec`.
        UnsupportedByStoreError: `history="keep"` with a store of the user's own.
    """

    def __init__(
        self,
        max_messages: Limit,
        *,
        id: Hashable | None = None,  # noqa: A002 (LangChain4j's name)
        always_keep_system_message_first: bool = False,
        chat_memory_store: StoreLike | None = None,
        offload_blocking_store: bool = False,
        id_codec: IdCodec | None = None,
        history: Literal["keep", "window"] = "window",
    ) -> None:
        """Find the store; no I/O."""
        window = MessageWindow(
            limit_of(max_messages, id), system_first=always_keep_system_message_first, on_overflow="evict"
        )
        super().__init__(
            window, id, chat_memory_store, offload=offload_blocking_store, id_codec=id_codec, history=history
        )

    @classmethod
    def with_max_messages(cls, max_messages: int) -> Self:
        """Make a memory without a store, of the id "default".

        Raises:
            InvalidArgumentError: a limit below 1.
        """
        return cls(max_messages)
