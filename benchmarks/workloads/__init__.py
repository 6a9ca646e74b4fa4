"""One file a question; each has `run(...) -> list[Result]`."""
