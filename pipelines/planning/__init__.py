"""Plans of a run: its messages, bytes and files, and the engines of its products."""
