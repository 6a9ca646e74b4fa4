"""What the model is shown."""

from turnkeeper.windows.base import Messages, Unbounded, Window

__all__ = ["Messages", "Unbounded", "Window"]
