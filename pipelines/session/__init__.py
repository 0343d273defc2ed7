"""One party's side of a run, shared by the jobs."""
