"""Private alignment of rows by id: shards of a private set intersection among all parties."""
