"""K-means over data that several companies hold and none may show."""

__version__ = "0.1.0"
