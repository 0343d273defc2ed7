"""Signed transcripts, echoes of broadcasts, and the replay of a run."""
