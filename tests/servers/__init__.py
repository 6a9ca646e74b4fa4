"""Promises on the servers themselves: cut, restarted, frozen, full, read-only, failed over, and used by a crowd."""
