"""Records of messages: the log of received ones, and the transcript of a run."""
