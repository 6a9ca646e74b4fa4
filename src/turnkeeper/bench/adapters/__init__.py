"""Subjects that come with the package: its own stores, and floors. Those of other packages are in `benchmarks/peers`."""
