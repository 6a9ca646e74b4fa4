"""Drop-in names of the contracts this project grew from: `compat.zerda`, `compat.langchain4j`."""

from turnkeeper.compat.default_runtime import close_default_runtimes

__all__ = ["close_default_runtimes"]
