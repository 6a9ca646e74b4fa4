"""Subjects that come with the package: its own stores, and floors. Other packages' are in `benchmarks/peers`."""
