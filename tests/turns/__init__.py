"""Promises of turns: exclusive, fenced, all or nothing, and nobody is kept out for ever."""
