"""What the tests of LangChain4j's names share."""

from compat.langchain4j.ways import way

__all__ = ["way"]
