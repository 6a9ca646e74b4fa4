"""Promises of the stores: the contract that both keep, and what each has of its own."""
