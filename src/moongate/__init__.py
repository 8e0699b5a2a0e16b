"""moongate: a production gateway for Kimi."""

__version__ = "0.1.0"
